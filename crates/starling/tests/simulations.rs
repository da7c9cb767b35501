//! `starling trace` and `starling sim`, as users see them.

mod common;

use common::{refused, run, starling};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

fn synth(out: &Path, options: &[&str]) -> Command {
    let mut command = starling();
    command.args(["trace", "synth", "worst-case"]).args(options).arg("--out").arg(out);
    command
}

fn sim(trace: &Path, options: &[&str]) -> Command {
    let mut command = starling();
    command.args(["sim", "cooperative", "--trace"]).arg(trace).args(options);
    command
}

/// As in the thesis: ten blocks for each client, none at the server.
const SMALL: [&str; 4] = ["--client-cache", "80KiB", "--server-cache", "0"];

#[test]
fn one_seed_gives_the_same_trace_and_the_same_figures() {
    let below = tempfile::tempdir().expect("folder");
    let at = |name: &str| below.path().join(name);
    let made = ["one", "two"].map(|name| {
        run(&mut synth(&at(name), &["--locality", "80%", "--requests", "20000"]));
        let json = at(&format!("{name}.json"));
        run(sim(&at(name), &SMALL).arg("--json").arg(&json));
        (fs::read(at(name)).expect("trace"), fs::read(json).expect("figures"))
    });
    assert!(made[0] == made[1]);
    let shown: Value =
        serde_json::from_str(&run(starling().args(["trace", "show", "--json"]).arg(at("one")))).expect("JSON");
    assert_eq!((&shown["clients"], &shown["reads"], &shown["shared_files"]), (&10.into(), &20_000.into(), &10.into()));
    run(&mut synth(&at("three"), &["--locality", "80%", "--requests", "20000", "--seed", "2"]));
    assert!(fs::read(at("three")).expect("trace") != made[0].0);
}

#[test]
fn the_worst_case_is_as_bad_as_the_thesis_says() {
    let below = tempfile::tempdir().expect("folder");
    let (trace, json) = (below.path().join("worst"), below.path().join("worst.json"));
    run(&mut synth(&trace, &[]));
    let said = run(sim(&trace, &SMALL).args(["--algorithm", "base,greedy,n-chance"]).arg("--json").arg(&json));
    assert!(said.contains("n-chance") && !said.contains("central"), "{said}");
    let figures: Value = serde_json::from_slice(&fs::read(json).expect("figures")).expect("JSON");
    let speed_up = |at: usize| figures["algorithms"][at]["speed_up"].as_f64().expect("a number");
    assert_eq!([speed_up(0), speed_up(1)], [1.0, 1.0]);
    assert!((1.0 / 1.2..1.0).contains(&speed_up(2)), "{}", speed_up(2));
}

#[test]
fn what_is_wrong_is_said_and_leaves_nothing() {
    let below = tempfile::tempdir().expect("folder");
    let at = |name: &str| below.path().join(name);
    for (option, wrong) in
        [("--clients", "0"), ("--working-set", "-1"), ("--locality", "101%"), ("--cache-blocks", "0"), ("--gap", "x")]
    {
        let said = refused(&mut synth(&at("trace"), &[&format!("{option}={wrong}")]));
        assert!(said.contains(option), "{said}");
    }
    assert_eq!(fs::read_dir(below.path()).expect("list").count(), 0);
    run(&mut synth(&at("trace"), &["--requests", "5000"]));
    assert!(refused(&mut synth(&at("trace"), &[])).contains("exists"));
    let whole = fs::read(at("trace")).expect("trace");
    fs::write(at("part"), &whole[..whole.len() / 2]).expect("write");
    assert!(refused(&mut sim(&at("part"), &SMALL)).contains("breaks off after"));
    fs::write(at("other"), "text").expect("write");
    assert!(refused(&mut sim(&at("other"), &SMALL)).contains("not a trace"));
    assert!(refused(&mut sim(&at("nowhere"), &SMALL)).contains("nowhere"));
    let json = at("figures").display().to_string();
    for (option, wrong) in [
        ("--client-cache", "1KiB"),
        ("--block", "0"),
        ("--algorithm", "magic"),
        ("--n", "16"),
        ("--n", "-1"),
        ("--warm-up", "5000"),
    ] {
        let said = refused(&mut sim(&at("trace"), &[&format!("{option}={wrong}"), "--json", &json]));
        assert!(said.contains(option), "{said}");
    }
    run(&mut synth(&at("nothing"), &["--requests", "0"]));
    assert!(refused(&mut sim(&at("nothing"), &SMALL)).contains("0 accesses"));
    assert!(!at("figures").exists());
}
