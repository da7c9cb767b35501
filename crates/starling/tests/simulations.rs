//! `starling trace` and `starling sim`, as users see them.

mod common;

use common::{refused, run, starling};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use trace::{Deed, Record};

fn synth(out: &Path, options: &[&str]) -> Command {
    let mut command = starling();
    command.args(["trace", "synth", "worst-case"]).args(options).arg("--out").arg(out);
    command
}

fn sim(trace: &Path, options: &[&str]) -> Command {
    study("cooperative", trace, options)
}

fn study(name: &str, trace: &Path, options: &[&str]) -> Command {
    let mut command = starling();
    command.args(["sim", name, "--trace"]).arg(trace).args(options);
    command
}

/// The text between tags. Every tag must be closed, and nothing else may be between `<` and `>`.
fn texts(xml: &str) -> Vec<String> {
    let (mut open, mut texts) = (Vec::new(), Vec::new());
    for part in xml.split('<').skip(1) {
        let (tag, text) = part.split_once('>').expect("a tag that ends");
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name));
        } else if !tag.ends_with('/') {
            open.push(tag.split_whitespace().next().expect("a name"));
        }
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        let entities = text.matches('&').count();
        assert_eq!(
            ["&lt;", "&gt;", "&amp;", "&quot;", "&apos;"].map(|one| text.matches(one).count()).iter().sum::<usize>(),
            entities
        );
        texts.push(text.trim().replace("&apos;", "'").replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"));
    }
    assert!(open.is_empty(), "{open:?}");
    texts
}

/// Numbers and drawing of a study that is made twice: they are the same, and all that is drawn has
/// axes and says what the curves are.
fn made_twice(below: &Path, command: impl Fn() -> Command) -> Value {
    let made = ["one", "two"].map(|name| {
        let (json, plot) = (below.join(format!("{name}.json")), below.join(format!("{name}.svg")));
        run(command().arg("--json").arg(&json).arg("--plot").arg(&plot));
        (fs::read_to_string(json).expect("numbers"), fs::read_to_string(plot).expect("drawing"))
    });
    assert!(made[0] == made[1], "one seed, one result");
    let (numbers, drawing) = &made[0];
    let numbers: Value = serde_json::from_str(numbers).expect("JSON");
    let said = texts(drawing).join(" ");
    let figures = numbers["figures"].as_array().expect("figures");
    assert!(!figures.is_empty());
    for figure in figures {
        let words =
            |text: &Value| text.as_str().expect("text").split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let curves = figure["curves"].as_array().expect("curves").iter().map(|curve| words(&curve["name"]));
        for what in curves.chain([words(&figure["title"]), words(&figure["y"]["label"])]) {
            // Long names are in several lines.
            assert!(what.iter().all(|word| said.contains(word)), "{what:?}");
        }
    }
    numbers
}

/// As in the thesis: ten blocks for each client, none at the server.
const SMALL: [&str; 6] = ["--rules", "paper", "--client-cache", "80KiB", "--server-cache", "0"];

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
fn each_study_of_a_trace_gives_the_same_numbers_and_drawing_twice() {
    let below = tempfile::tempdir().expect("folder");
    let trace = below.path().join("trace");
    run(&mut synth(&trace, &["--requests", "5000", "--locality", "50%"]));
    let numbers = made_twice(below.path(), || sim(&trace, &SMALL));
    let names: Vec<&str> =
        numbers["algorithms"].as_array().expect("all").iter().map(|row| row["name"].as_str().expect("name")).collect();
    let all = "base direct greedy central hash weighted-lru weighted-lru-singlets weighted-lru-global n-chance two-choices epochs best";
    assert_eq!(names.join(" "), all);
    // With the defaults, the machines are the product's: all data fit the caches, and there is no
    // server.
    let product = made_twice(below.path(), || sim(&trace, &["--algorithm", "n-chance"]));
    let setup = &product["setup"];
    assert_eq!([&setup["block_bytes"], &setup["client_blocks"], &setup["server_blocks"]], [65536, 8192, 0]);
    assert_eq!(product["algorithms"][1]["outcome"]["reads"][2], 0);
    // What is read from the other memory is the same with other machines, and takes less time
    // there.
    let options = [&SMALL[..], &["--algorithm", "greedy", "--technology", "nvme-100g"]].concat();
    let today = made_twice(below.path(), || sim(&trace, &options));
    let (then, now) = (&numbers["algorithms"][2], &today["algorithms"][1]);
    assert_eq!((&then["name"], &then["outcome"]["reads"]), (&now["name"], &now["outcome"]["reads"]));
    assert_eq!(now["times_us"][1], 1.0 + 0.7 + 3.0 * 2.0);
    let numbers = made_twice(below.path(), || study("locality", &trace, &SMALL[..4]));
    assert_eq!(numbers["policies"].as_array().map(Vec::len), Some(3));
    let options = ["--caches", "80KiB,200KiB", "--bandwidths", "28800", "--cache", "100KiB"];
    let numbers = made_twice(below.path(), || study("mobile", &trace, &options));
    assert_eq!(numbers["policies"].as_array().map(Vec::len), Some(5));
    assert!(numbers["policies"][0]["outcome"]["misses"].as_u64() > Some(0));
}

#[test]
fn cleaning_is_studied_on_what_is_written() {
    let below = tempfile::tempdir().expect("folder");
    let trace = below.path().join("trace");
    let mut writer = trace::format::Writer::new(fs::File::create(&trace).expect("file"), "a test").expect("begun");
    for at in 0..4000 {
        // Two megabytes, in an order of its own.
        let (time_us, client, offset) = (at * 100_000, (at % 2) as u32, at * 97 % 256 * 8192);
        let deed = Deed::Write { offset, len: 8192 };
        writer.add(&Record { time_us, client, file: 1, deed }).expect("added");
    }
    writer.finish().expect("ended");
    let numbers = made_twice(below.path(), || study("cleaning", &trace, &["--rules", "paper", "--segment", "64KiB"]));
    let cost = |at: usize| numbers["outcome"]["utilisations"][0][at]["outcome"]["write_cost"].as_f64().expect("a cost");
    assert!(1.0 <= cost(0) && cost(0) <= cost(5), "{} {}", cost(0), cost(5));
}

#[test]
fn availability_is_computed_and_tried() {
    let below = tempfile::tempdir().expect("folder");
    let command = || {
        let mut command = starling();
        command.args(["sim", "availability", "--years", "10", "--machines", "20", "--parities", "0"]);
        command
    };
    let numbers = made_twice(below.path(), command);
    let computed = numbers["hours_per_month"]["computed"].as_f64().expect("a number");
    let expected = 720.0 * (1.0 - (719.0f64 / 720.0).powi(20));
    assert!((computed / expected - 1.0).abs() < 1e-9, "{computed} {expected}");
}

#[test]
fn what_redundancy_costs_is_of_one_parity_and_of_as_many_disks_as_a_group_needs() {
    let below = tempfile::tempdir().expect("folder");
    let json = below.path().join("numbers.json");
    let disks = |options: &[&str]| {
        let said = run(starling().args(["sim", "availability", "--years", "1"]).args(options).arg("--json").arg(&json));
        let numbers: Value = serde_json::from_slice(&fs::read(&json).expect("numbers")).expect("JSON");
        (said, [&numbers["disks"]["data"], &numbers["disks"]["group"]].map(|number| number.as_u64().expect("a number")))
    };
    let (said, large) = disks(&["--machines", "200", "--group", "100"]);
    assert!(large == [99, 99] && said.contains("99 disks of data in groups of 99, each with one parity"), "{said}");
    let (said, two) = disks(&["--parities", "2", "--group", "10"]);
    assert!(two == [90, 9] && said.contains("groups of 9, each with one parity, as in table 4-1"), "{said}");
    assert_eq!(disks(&["--parities", "0", "--group", "1"]).1, [90, 1]);
    assert_eq!(disks(&["--data", "5"]).1, [5, 5]);
    let options = ["sim", "availability", "--machines", "200", "--group", "100", "--data", "50"];
    let said = refused(starling().args(options));
    assert!(said.contains("--data"), "{said}");
    let options = ["sim", "availability", "--up", "1ms", "--down", "1ms", "--machines", "2", "--years", "1"];
    let said = refused(starling().args(options));
    assert!(said.contains("--years"), "{said}");
}

#[test]
fn the_papers_report_is_one_page_that_is_the_same_twice() {
    let below = tempfile::tempdir().expect("folder");
    let report = |name: &str| {
        let out = below.path().join(name);
        let said = run(starling().args(["sim", "papers", "--quick", "--out"]).arg(&out));
        assert!(said.contains("orderings hold"), "{said}");
        let names: BTreeSet<_> = fs::read_dir(&out).expect("list").map(|one| one.expect("file").file_name()).collect();
        assert!(names.into_iter().eq(["figures.json", "index.html"]));
        ["index.html", "figures.json"].map(|name| fs::read_to_string(out.join(name)).expect("text"))
    };
    let [one, two] = std::thread::scope(|scope| {
        ["one", "two"].map(|name| scope.spawn(move || report(name))).map(|made| made.join().expect("made"))
    });
    assert!(one == two, "one seed, one report");
    let [page, numbers] = one;
    let numbers: Value = serde_json::from_str(&numbers).expect("JSON");
    let sections = numbers["sections"].as_array().expect("sections");
    let figures: usize = sections.iter().map(|section| section["figures"].as_array().expect("figures").len()).sum();
    // Curves that lie on top of each other are shown as ratios, too.
    let ratios = page.matches("as a ratio to the base case\"").count();
    assert_eq!((page.matches("<svg ").count(), page.matches("<script").count()), (figures + ratios, 0));
    assert!(figures > 40 && page.contains("quick report") && page.contains("synthetic"));
    // Nothing is fetched: what looks like an address is the name of SVG.
    assert_eq!(page.matches("http").count(), page.matches("\"http://www.w3.org/2000/svg\"").count());
    for svg in page.split("<svg ").skip(1) {
        texts(&format!("<svg {}</svg>", svg.split("</svg>").next().expect("a drawing")));
    }
    for section in sections {
        assert!(page.contains(&format!("<h2 id={}", section["id"])), "{}", section["id"]);
    }
    // What is there is not written over, and nothing is left beside it.
    let again = refused(starling().args(["sim", "papers", "--quick", "--out"]).arg(below.path().join("one")));
    assert!(again.contains("--out"), "{again}");
    let nowhere = refused(starling().args(["sim", "papers", "--out"]).arg(below.path().join("no/where")));
    assert!(nowhere.contains("folder does not exist"), "{nowhere}");
    assert_eq!(fs::read_dir(below.path()).expect("list").count(), 2);
}

#[test]
fn impossible_parameters_of_studies_are_named_and_leave_nothing() {
    let below = tempfile::tempdir().expect("folder");
    let trace = below.path().join("trace");
    run(&mut synth(&trace, &["--requests", "2000"]));
    let out = below.path().join("out");
    let text = out.display().to_string();
    fs::write(&out, "as it was").expect("write");
    let refuses = |name: &str, option: &str, wrong: &str| {
        let set = format!("{option}={wrong}");
        let mut options = vec![set.as_str(), "--json", &text];
        let said = match name {
            "availability" => refused(starling().args(["sim", name]).args(&options)),
            _ => {
                options.extend(["--trace", trace.to_str().expect("text")]);
                refused(starling().args(["sim", name]).args(&options))
            }
        };
        assert!(said.contains(option), "{said}");
    };
    for (option, wrong) in [
        ("--technology", "steam"),
        ("--rules", "none"),
        ("--client-cache", "0"),
        ("--plot", text.as_str()),
        ("--plot", "/no/such/folder/x.svg"),
        ("--plot", trace.to_str().expect("text")),
    ] {
        refuses("cooperative", option, wrong);
    }
    for (option, wrong) in [
        ("--cache", "1KiB"),
        ("--bandwidth", "0"),
        ("--unit", "byte"),
        ("--rules", "none"),
        ("--replacement", "fifo"),
        ("--hoard", "2h"),
        ("--idle", "5"),
        ("--read-tickets", "0"),
        ("--caches", "1KiB"),
        ("--bandwidths", "0"),
    ] {
        refuses("mobile", option, wrong);
    }
    for (option, wrong) in [("--segment", "1KiB"), ("--utilisation", "100%"), ("--client-cache", "0"), ("--block", "0")]
    {
        refuses("cleaning", option, wrong);
    }
    for (option, wrong) in [("--client-cache", "1KiB"), ("--warm-up", "2h"), ("--commit", "soon")] {
        refuses("locality", option, wrong);
    }
    for (option, wrong) in [
        ("--machines", "0"),
        ("--group", "1"),
        ("--group", "101"),
        ("--up", "0h"),
        ("--rebuild", "0s"),
        ("--years", "0"),
        ("--years", "4000000000"),
        ("--data", "0"),
        ("--small", "0"),
    ] {
        refuses("availability", option, wrong);
    }
    // No client writes: there is nothing to clean.
    assert!(refused(&mut study("cleaning", &trace, &["--json", &text])).contains("too little is written"));
    assert_eq!(fs::read_to_string(&out).expect("text"), "as it was");
    assert_eq!(fs::read_dir(below.path()).expect("list").count(), 2);
    run(&mut study("locality", &trace, &["--json", &text]));
    assert!(fs::read_to_string(&out).expect("text").starts_with('{'), "a right one replaces it");
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
    assert!(refused(&mut sim(&at("other"), &SMALL)).contains("not a Starling trace"));
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
