//! The report as one page without scripts, which needs no network and no other file.

use super::super::plot;
use super::{Report, Section};
use std::fmt::Write;
use studies::figure::{Finding, Kind};

const HEAD: &str = "<!DOCTYPE html>
<html lang=\"en\">
<head>
<meta charset=\"utf-8\">
<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">
<title>Starling: the papers' studies</title>
<style>
:root { color-scheme: light dark; --text: #1c1f23; --back: #fff; --soft: #f1f3f5; --line: #cfd4da; --link: #0b57a4; --good: #17692c; --bad: #a81c1c; }
@media (prefers-color-scheme: dark) { :root { --text: #e3e6ea; --back: #15181c; --soft: #22272d; --line: #444b53; --link: #7ab7ff; --good: #6fd08a; --bad: #ff8d85; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
a { color: var(--link); }
h2 { margin-top: 3rem; border-bottom: 1px solid var(--line); }
nav, .note { background: var(--soft); padding: .6rem 1.2rem; border-radius: 6px; margin: 1rem 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 14px; width: 100%; }
th, td { border: 1px solid var(--line); padding: .3rem .5rem; text-align: left; vertical-align: top; }
th { background: var(--soft); }
.yes { color: var(--good); font-weight: bold; }
.no { color: var(--bad); font-weight: bold; }
figure { margin: 1rem 0; background: #fff; border: 1px solid var(--line); border-radius: 6px; overflow-x: auto; max-width: 802px; }
figure svg { display: block; max-width: 100%; height: auto; }
pre { background: var(--soft); padding: .8rem; overflow-x: auto; font-size: 13px; white-space: pre-wrap; }
</style>
</head>
<body>
";

const TRACES: &str = "The papers' traces are not published. Those used here are synthetic. They match what the papers state of theirs (clients, requests, files and bytes, shares of \
reads and writes, hours of activity; and, as inputs, for Sprite five rates, and for Auspex how many blocks do not last). Nothing is tuned to what an algorithm makes of a trace. So \
orderings pass or fail: which algorithm is better, and what grows with what. Values are shown beside each other, for Sprite's speed-ups as a range over all sets of parameters that \
meet the inputs. The worst case of cooperative caching, availability, and costs are specified completely by their papers: there numbers must be the same.";

/// The whole page.
pub fn html(report: &Report) -> anyhow::Result<String> {
    let mut page = HEAD.to_owned();
    page += "<h1>The papers' studies, on the code that runs Starling</h1>\n";
    writeln!(
        page,
        "<p>Seed {}. All numbers are in <a href=\"figures.json\">figures.json</a>. The same seed gives the same numbers.</p>",
        report.seed
    )?;
    if report.quick {
        page += "<p class=\"note\"><strong>This is a quick report (<code>--quick</code>): traces are a small part of what the papers have, and its numbers mean little.</strong></p>\n";
    }
    writeln!(page, "<p class=\"note\">{}</p>", escaped(TRACES))?;
    page += "<nav><h2>Contents</h2>\n<ul>\n<li><a href=\"#summary\">Summary</a></li>\n";
    for section in &report.sections {
        writeln!(page, "<li><a href=\"#{}\">{}</a></li>", section.id, escaped(section.title))?;
    }
    page += "</ul></nav>\n";
    summary(&mut page, report)?;
    for section in &report.sections {
        show(&mut page, section)?;
    }
    page += "</body>\n</html>\n";
    Ok(page)
}

fn count(section: &Section, kind: Kind, holds: Option<bool>) -> usize {
    section.findings.iter().filter(|finding| (finding.kind, finding.holds) == (kind, holds)).count()
}

fn fails(section: &Section) -> bool {
    section.findings.iter().any(|finding| finding.holds == Some(false))
}

fn summary(page: &mut String, report: &Report) -> anyhow::Result<()> {
    *page += "<h2 id=\"summary\">Summary</h2>\n";
    let all = |kind, holds| report.sections.iter().map(|section| count(section, kind, holds)).sum::<usize>();
    let [hold, not] = [true, false].map(|holds| all(Kind::Measured, Some(holds)));
    let [right, wrong] = [true, false].map(|holds| all(Kind::Computed, Some(holds)));
    let shown = all(Kind::Measured, None) + all(Kind::Computed, None);
    writeln!(
        page,
        "<p><strong>{hold} of {} statements about simulations hold.</strong> Apart from these, {right} of {} values that formulas, constants or definitions give are the papers'; \
         such a value says nothing about an algorithm. {shown} more values are shown beside the papers' without a verdict.</p>",
        hold + not,
        right + wrong
    )?;
    *page += "<div class=\"wide\"><table>\n<tr><th>study</th><th>holds</th><th>does not</th><th>computed, as stated</th><th>computed, not as stated</th><th>values beside each other</th></tr>\n";
    for section in &report.sections {
        let [hold, not, shown] = [Some(true), Some(false), None].map(|holds| count(section, Kind::Measured, holds));
        let [right, wrong, beside] = [Some(true), Some(false), None].map(|holds| count(section, Kind::Computed, holds));
        let class = |count: usize| if count > 0 { " class=\"no\"" } else { "" };
        writeln!(
            page,
            "<tr><td><a href=\"#{}\">{}</a></td><td>{hold}</td><td{}>{not}</td><td>{right}</td><td{}>{wrong}</td><td>{}</td></tr>",
            section.id,
            escaped(section.title),
            class(not),
            class(wrong),
            shown + beside
        )?;
    }
    *page += "</table></div>\n";
    let failing = || report.sections.iter().filter(|section| fails(section));
    if failing().next().is_some() {
        *page += "<p>These do not hold:</p>\n<ul>\n";
    }
    for section in failing() {
        for finding in section.findings.iter().filter(|finding| finding.holds == Some(false)) {
            let Finding { stated, what, theirs, ours, .. } = finding;
            writeln!(
                page,
                "<li><a href=\"#{}\">{}</a>: {} ({}). Theirs: {}. Ours: {}.</li>",
                section.id,
                escaped(section.title),
                escaped(what),
                escaped(stated),
                escaped(theirs),
                escaped(ours)
            )?;
        }
    }
    if failing().next().is_some() {
        *page += "</ul>\n";
    }
    Ok(())
}

fn show(page: &mut String, section: &Section) -> anyhow::Result<()> {
    writeln!(page, "<h2 id=\"{}\">{}</h2>\n<p>{}</p>", section.id, escaped(section.title), escaped(section.about))?;
    let with_ratios =
        section.figures.iter().flat_map(|figure| std::iter::once(figure.clone()).chain(figure.relative()));
    for figure in with_ratios {
        let name = escaped(&figure.title);
        let svg = plot::svg(std::slice::from_ref(&figure))?;
        let svg = svg.replacen("<svg ", &format!("<svg role=\"img\" aria-label=\"{name}\" "), 1);
        writeln!(page, "<figure>\n{svg}</figure>")?;
    }
    *page += "<div class=\"wide\"><table>\n<tr><th>stated in</th><th>what</th><th>theirs</th><th>ours</th><th>holds</th><th>why they differ</th></tr>\n";
    for finding in &section.findings {
        let Finding { stated, what, theirs, ours, kind, holds, why } = finding;
        let (class, verdict) = match (holds, kind) {
            (Some(true), Kind::Measured) => ("yes", "yes"),
            (Some(true), Kind::Computed) => ("", "computed"),
            (Some(false), _) => ("no", "no"),
            (None, _) => ("", "–"),
        };
        let [stated, what, theirs, ours, why] = [stated, what, theirs, ours, why].map(|text| escaped(text));
        writeln!(
            page,
            "<tr><td>{stated}</td><td>{what}</td><td>{theirs}</td><td>{ours}</td><td class=\"{class}\">{verdict}</td><td>{why}</td></tr>"
        )?;
    }
    let parameters = serde_json::to_string_pretty(&section.parameters)?;
    writeln!(
        page,
        "</table></div>\n<details><summary>Parameters</summary><pre>{}</pre></details>",
        escaped(&parameters)
    )?;
    Ok(())
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
