//! `starling trace`: making traces, by hand and on real mounts.

mod common;

use common::{refused, run, starling};
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

fn trace(words: &[&str], out: &Path) -> Command {
    let mut command = starling();
    command.arg("trace").args(words).arg("--out").arg(out);
    command
}

fn shown(trace: &Path) -> Value {
    serde_json::from_str(&run(starling().args(["trace", "show", "--json"]).arg(trace))).expect("JSON")
}

#[test]
fn each_synthetic_trace_is_the_same_for_one_seed_and_has_what_was_asked_for() {
    let below = tempfile::tempdir().expect("folder");
    let at = |name: &str| below.path().join(name);
    for (words, clients, requests) in [
        (&["sprite", "--clients", "5", "--accesses", "3000"][..], 5, 3000),
        (&["auspex", "--clients", "7", "--accesses", "3000", "--unseen-s", "0"], 7, 3000),
        (&["worst-case", "--clients", "3", "--requests", "3000"], 3, 3000),
        (&["office", "--requests", "3000", "--files", "50"], 1, 3000),
        (&["stress", "--writes", "90%"], 1, 53_860),
    ] {
        let made = ["1", "1", "2"].iter().enumerate().map(|(nth, seed)| {
            let name = at(&format!("{}{nth}", words[0]));
            run(&mut trace(&[&["synth"], words, &["--seed", seed]].concat(), &name));
            fs::read(name).expect("trace")
        });
        let made: Vec<Vec<u8>> = made.collect();
        assert!(made[0] == made[1] && made[0] != made[2], "{words:?}");
        let shown = shown(&at(&format!("{}0", words[0])));
        let count = |what: &str| shown[what].as_u64().expect("a number");
        assert_eq!((count("clients"), count("reads") + count("writes")), (clients, requests), "{words:?}");
        let said = run(starling().args(["trace", "show"]).arg(at(&format!("{}0", words[0]))));
        for line in ["clients", "reads", "writes", "mix", "files", "sharing", "overwritten", "by hour"] {
            assert!(said.lines().any(|said| said.starts_with(line)), "{line} in {said}");
        }
    }
    for (kind, option) in [("sprite", "--clients=0"), ("sprite", "--foreign=200%"), ("auspex", "--unseen-s=-1")] {
        let said = refused(&mut trace(&["synth", kind, option], &at("no")));
        assert!(said.contains(option.split('=').next().expect("an option")), "{said}");
    }
    for option in ["--days=0", "--active-h=0", "--files=0", "--unique-bytes=1", "--read-bytes=1MiB", "--recency=-1"] {
        let said = refused(&mut trace(&["synth", "office", option], &at("no")));
        assert!(said.contains(option.split('=').next().expect("an option")), "{said}");
    }
    assert!(!at("no").exists() && !at("no.partial").exists());
}

const TABLE: &str = "time_s,client,op,file,offset,len\n5,ann,write,a,0,8192\n6.5,bob,read,a,0,8192\n7,ann,read,b,4096,1\n8,bob,delete,a,,\n";

#[test]
fn what_other_programs_write_is_imported_from_files_and_standard_input() {
    let below = tempfile::tempdir().expect("folder");
    let at = |name: &str| below.path().join(name);
    fs::write(at("table.csv"), TABLE).expect("write");
    let table = at("table.csv").display().to_string();
    run(&mut trace(&["import", "csv", &table], &at("one")));
    let mut import = trace(&["import", "csv", "-"], &at("two"));
    let mut import = import.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("start");
    import.stdin.take().expect("input").write_all(TABLE.as_bytes()).expect("write");
    assert!(import.wait().expect("wait").success());
    assert!(fs::read(at("one")).expect("trace") == fs::read(at("two")).expect("trace"));
    let facts = shown(&at("one"));
    let expected = [("clients", 2), ("reads", 2), ("read_bytes", 8193), ("writes", 1), ("deletes", 1), ("files", 2)];
    expected.into_iter().for_each(|(what, count)| assert_eq!(facts[what], count, "{what}"));
    assert_eq!(facts["seconds"], 3.0);
    let calls = "7 1.0 openat(AT_FDCWD, \"/x/y\", O_RDONLY) = 3</x/y>\n7 1.5 read(3</x/y>, \"\"..., 4096) = 100\n";
    fs::write(at("calls"), calls).expect("write");
    run(&mut trace(&["import", "strace", &at("calls").display().to_string()], &at("three")));
    assert_eq!(shown(&at("three"))["read_bytes"], 100);
    // What is wrong is said with file and line, and leaves nothing.
    fs::write(at("bad.csv"), TABLE.replace("6.5", "4")).expect("write");
    let said = refused(&mut trace(&["import", "csv", &at("bad.csv").display().to_string()], &at("no")));
    assert!(said.contains("bad.csv: line 3: time_s"), "{said}");
    let said = refused(&mut trace(&["import", "strace", &table], &at("no")));
    assert!(said.contains("table.csv: line 1: "), "{said}");
    assert!(refused(&mut trace(&["import", "csv", "nowhere"], &at("no"))).contains("nowhere"));
    assert!(refused(&mut trace(&["import", "csv", &table], &at("one"))).contains("exists"));
    assert!(refused(&mut trace(&["import", "csv", &table], &at("none/one"))).contains("none/one"));
    let left: Vec<_> =
        fs::read_dir(below.path()).expect("list").map(|entry| entry.expect("entry").file_name()).collect();
    assert_eq!(left.len(), 6, "{left:?}");
}

#[test]
fn traces_are_merged_with_files_of_their_own_or_the_same() {
    let below = tempfile::tempdir().expect("folder");
    let at = |name: &str| below.path().join(name);
    fs::write(at("table.csv"), TABLE).expect("write");
    run(&mut trace(&["import", "csv", &at("table.csv").display().to_string()], &at("one")));
    let one = at("one").display().to_string();
    run(&mut trace(&["merge", &one, &one], &at("own")));
    run(&mut trace(&["merge", &one, &one, "--same-files", "--begin", "0,7.25"], &at("same")));
    let (own, same) = (shown(&at("own")), shown(&at("same")));
    assert_eq!(json!([own["clients"], own["files"], own["seconds"]]), json!([4, 4, 3.0]));
    assert_eq!(json!([same["clients"], same["files"], same["seconds"]]), json!([4, 2, 10.25]));
    let whole = fs::read(at("one")).expect("trace");
    fs::write(at("part"), &whole[..whole.len() - 1]).expect("write");
    let part = at("part").display().to_string();
    assert!(refused(&mut trace(&["merge", &one, &part], &at("no"))).contains("part: it breaks off"));
    assert!(refused(&mut trace(&["merge", &one, &one, "--begin", "1"], &at("no"))).contains("--begin"));
    assert!(refused(&mut trace(&["merge", &one, "--begin=-1"], &at("no"))).contains("--begin"));
    assert!(refused(&mut trace(&["merge"], &at("no"))).contains("TRACES"));
    assert!(!at("no").exists());
}
