//! `starling advise`: recommends settings for a user's own trace.

use super::output;
use crate::args::{Advise, Output};
use crate::traces::Source;
use crate::usage;
use serde_json::json;
use std::process::ExitCode;
use studies::advise::{Evidence, Item, Verdict, advise, steps};
use studies::mobile::ActivityError;

/// Runs `starling advise`.
pub fn run(asked: &Advise) -> anyhow::Result<ExitCode> {
    let files = Output { json: asked.json.clone(), plot: None };
    output::check(&files, Some(&asked.trace))?;
    let shown = asked.trace.display();
    let source = Source::open(&asked.trace, false)?;
    let about = source.about();
    let evidence = Evidence::of(source).map_err(|error| match error {
        ActivityError::Trace(error) => error,
        ActivityError::Unsorted(record) => usage(format!("{shown}: record {record}: earlier than the one before it")),
        ActivityError::TooMany(what, record) => {
            usage(format!("{shown}: record {record}: more {what} than can be simulated"))
        }
    })?;
    let bar = output::progress(steps(&evidence), "simulations")?;
    let advice = advise(&evidence, || bar.inc(1));
    bar.finish_and_clear();
    if advice.records == 0 {
        return Err(usage(format!("{shown}: nothing is done in it")));
    }
    output::write(&files, &json!({ "about": about, "advice": advice }), &[])?;
    println!("{about}");
    println!("clients: {}; records: {}\n", advice.clients, advice.records);
    let of = |verdict| advice.items.iter().filter(move |item| item.verdict == verdict);
    match of(Verdict::Change).next() {
        None if of(Verdict::Keep).next().is_none() => println!("the trace is too short for advice"),
        None => println!("no other setting is better by more than {:.0} %", 100.0 * advice.worth),
        Some(_) => of(Verdict::Change).for_each(print),
    }
    for (title, verdict) in [("leave as it is:", Verdict::Keep), ("the trace does not tell:", Verdict::Unknown)] {
        if of(verdict).next().is_some() {
            println!("\n{title}");
            of(verdict).for_each(|item| println!("- {}{}: {}", item.subject, place(item), item.reason));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn print(item: &Item) {
    match &item.setting {
        Some(setting) => println!("{setting}"),
        None => println!("{}", item.subject),
    }
    println!("    {}{}: {}", item.subject, place(item), item.reason);
    if let Some(gain) = &item.gain {
        let part = 100.0 * gain.part();
        println!(
            "    {}: {:.1} {} instead of {:.1}, {part:.0} % less",
            gain.measure, gain.after, gain.unit, gain.before
        );
    }
}

/// The client and the link that the advice is for, if it is for particular ones.
fn place(item: &Item) -> String {
    let client = item.client.map(|client| format!(", client {client}")).unwrap_or_default();
    let link = item.link.as_ref().map(|link| format!(", over {link}")).unwrap_or_default();
    client + &link
}
