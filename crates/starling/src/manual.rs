//! Help by command and by topic, man pages, and shell completions.

use crate::args::Args;
use crate::usage;
use anyhow::Context;
use clap::CommandFactory;
use clap::error::ErrorKind;
use clap_complete::Shell;
use std::path::Path;
use std::process::ExitCode;

/// Says what to type when something went wrong. Each section is a topic.
const OPERATIONS: &str = include_str!("../../../docs/operations.md");

/// Titles and texts of all topics.
fn topics() -> impl Iterator<Item = (&'static str, &'static str)> {
    OPERATIONS.split("\n## ").skip(1).filter_map(|section| section.split_once('\n'))
}

/// Replaces links by their texts.
fn without_links(text: &str) -> String {
    let (mut out, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once("](")
        && let (Some((start, link)), Some((_, next))) = (before.rsplit_once('['), after.split_once(')'))
    {
        out += start;
        out += link;
        rest = next;
    }
    out + rest
}

/// Shows the help of the command that `words` name, or the topic whose title has them all. Without
/// words it shows all commands and topics.
pub fn help(words: &[String]) -> anyhow::Result<ExitCode> {
    let asked = ["starling"].into_iter().chain(words.iter().map(String::as_str)).chain(["--help"]);
    match Args::command().try_get_matches_from(asked) {
        Err(help) if help.kind() == ErrorKind::DisplayHelp => help.print()?,
        _ => return topic(words),
    }
    if words.is_empty() {
        println!("\nTopics, as in `starling help disk died`:");
        topics().for_each(|(title, _)| println!("  {title}"));
    }
    Ok(ExitCode::SUCCESS)
}

fn topic(words: &[String]) -> anyhow::Result<ExitCode> {
    let words: Vec<String> = words.iter().flat_map(|word| word.split_whitespace()).map(str::to_lowercase).collect();
    let has_all = |title: &str| words.iter().all(|word| title.to_lowercase().contains(word));
    let found: Vec<_> = topics().filter(|(title, _)| has_all(title)).collect();
    match found[..] {
        [] => {
            let words = words.join(" ");
            return Err(usage(format!("no command or topic is called {words:?}; `starling help` lists them")));
        }
        [(title, text)] => println!("{title}\n{}", without_links(text).trim_end()),
        _ => {
            println!("Several topics have these words. Add one:");
            found.iter().for_each(|(title, _)| println!("  {title}"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints a script that completes commands.
pub fn completions(shell: Shell) -> ExitCode {
    clap_complete::generate(shell, &mut Args::command(), "starling", &mut std::io::stdout());
    ExitCode::SUCCESS
}

/// Writes a man page for each command.
pub fn man(folder: &Path) -> anyhow::Result<ExitCode> {
    let shown = folder.display();
    std::fs::create_dir_all(folder).with_context(|| format!("create {shown}"))?;
    clap_mangen::generate_to(Args::command(), folder).with_context(|| format!("write man pages into {shown}"))?;
    println!("{shown}: a page for each command; `man -l {shown}/starling.1` shows the first");
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_topic_has_a_title_and_a_text_without_links() {
        assert!(topics().count() > 5);
        for (title, text) in topics() {
            let text = without_links(text);
            assert!(!title.is_empty() && text.len() > 100 && !text.contains("]("), "{title}: {text}");
        }
        assert_eq!(without_links("a [b](c) d [e](f)."), "a b d e.");
        assert_eq!(without_links("a ](b [c](d"), "a ](b [c](d");
    }
}
