//! `starling advise`, as users see it.

mod common;

use common::{refused, run, starling};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

fn advise(trace: &Path) -> Command {
    let mut command = starling();
    command.args(["advise", "--trace"]).arg(trace);
    command
}

#[test]
fn what_is_advised_is_what_was_simulated_and_the_same_each_time() {
    let below = tempfile::tempdir().expect("folder");
    let (trace, json) = (below.path().join("work.trace"), below.path().join("advice.json"));
    // Two clients read shared data. All of it fits into each client's cache.
    let synth = ["trace", "synth", "worst-case", "--clients", "2", "--locality", "0%", "--requests", "3000", "--out"];
    run(starling().args(synth).arg(&trace));
    let said = [(); 2].map(|()| {
        let said = run(advise(&trace).arg("--json").arg(&json));
        (said, fs::read(&json).expect("advice"))
    });
    assert!(said[0] == said[1]);
    let advice: Value = serde_json::from_slice(&said[0].1).expect("JSON");
    assert_eq!(advice["advice"]["clients"], 2);
    let items = advice["advice"]["items"].as_array().expect("a list");
    for item in items {
        assert_eq!(item["verdict"] == "change", !item["setting"].is_null(), "{item}");
        assert!(said[0].0.contains(item["reason"].as_str().expect("a reason")), "{item}");
    }
    assert!(items.iter().any(|item| item["subject"] == "cooperative caching"), "{items:?}");
}

#[test]
fn what_is_no_trace_is_refused() {
    let below = tempfile::tempdir().expect("folder");
    let (trace, json) = (below.path().join("work.trace"), below.path().join("advice.json"));
    fs::write(&trace, "something else").expect("write");
    let said = refused(advise(&trace).arg("--json").arg(&json));
    assert!(said.contains("not a Starling trace"), "{said}");
    fs::remove_file(&trace).expect("removed");
    run(starling().args(["trace", "synth", "worst-case", "--requests", "0", "--out"]).arg(&trace));
    let said = refused(advise(&trace).arg("--json").arg(&json));
    assert!(said.contains("nothing is done in it"), "{said}");
    assert!(!json.exists());
}
