//! `starling trace`: making traces, by hand and on real mounts.

mod common;
#[path = "common/lua.rs"]
mod lua;
#[path = "common/roaming.rs"]
mod roaming;

use common::{Mounted, refused, run, starling, text};
use roaming::{Home, LONG, Laptop};
use serde_json::{Value, json};
use std::ffi::CString;
use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use trace::format::{Origin, Reader, Writer};
use trace::{Deed, Record};

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
    // Errors name file and line, and leave no file behind.
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
    // They begin when they were recorded, where both say so, and what one lacks, both lack.
    let recorded = |name: &str, begun_us, lost_count, is_cut_short| {
        let mut writer = Writer::new(fs::File::create(at(name)).expect("file"), "recorded on /mnt").expect("begun");
        let read = Deed::Read { offset: 0, len: 10 };
        writer.add(&Record { time_us: 1_000_000, client: 0, file: 1, deed: read }).expect("added");
        writer.finish_with(&Origin { begun_us, lost_count, is_cut_short }).expect("ended");
        at(name).display().to_string()
    };
    let early = recorded("early", Some(1_700_000_000_000_000), 2, false);
    let late = recorded("late", Some(1_700_000_007_250_000), 3, true);
    run(&mut trace(&["merge", &late, &early], &at("both")));
    let both = shown(&at("both"));
    assert_eq!(json!([both["begun"], both["seconds"]]), json!(["2023-11-14T22:13:20Z", 8.25]));
    assert_eq!(json!([both["lost_records"], both["is_cut_short"]]), json!([5, true]));
    run(&mut trace(&["merge", &late, &early, "--begin", "0,1"], &at("set")));
    assert_eq!(json!([shown(&at("set"))["begun"], shown(&at("set"))["seconds"]]), json!([null, 2.0]));
    let output = trace(&["merge", &late, &one], &at("mixed")).output().expect("start");
    assert!(output.status.success() && text(&output).contains("--begin"), "{}", text(&output));
    assert_eq!(shown(&at("mixed"))["begun"], Value::Null);
    // `show` and the simulations report it.
    let sim = ["sim", "cooperative", "--client-cache", "1MiB", "--warm-up", "0", "--trace"];
    for command in [&["trace", "show"][..], &sim] {
        let said = run(starling().args(command).arg(at("both")));
        assert!(said.contains("recorded on /mnt; recorded on /mnt; cut short"), "{said}");
        assert!(said.contains("5 records are missing"), "{said}");
    }
}

#[test]
fn figures_go_through_what_is_no_file_and_take_the_place_of_nothing_else() {
    let below = tempfile::tempdir().expect("folder");
    let at = |name: &str| below.path().join(name);
    run(&mut trace(&["synth", "worst-case", "--requests", "2000"], &at("trace")));
    let sim = |json: &Path, plot: &Path| {
        let mut sim = starling();
        sim.args(["sim", "cooperative", "--client-cache", "80KiB", "--algorithm", "base", "--warm-up", "0", "--trace"]);
        sim.arg(at("trace")).arg("--json").arg(json).arg("--plot").arg(plot);
        sim
    };
    // A pipe and a device, both by links, so that it is these that would be replaced.
    let pipe = CString::new(at("pipe").as_os_str().as_bytes()).expect("a name");
    // SAFETY: the string ends with NUL.
    assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);
    std::os::unix::fs::symlink("/dev/null", at("null")).expect("link");
    let from = at("pipe");
    let reader = std::thread::spawn(move || fs::read_to_string(from).expect("read"));
    run(&mut sim(&at("pipe"), &at("null")));
    let through: Value = serde_json::from_str(&reader.join().expect("read")).expect("JSON");
    assert!(fs::metadata(at("pipe")).expect("facts").file_type().is_fifo());
    assert_eq!(fs::read_link(at("null")).expect("a link"), Path::new("/dev/null"));
    // Files are replaced through their links; partial files of other processes stay.
    fs::write(at("figures"), "old").expect("write");
    fs::write(at("figures.partial"), "somebody's").expect("write");
    std::os::unix::fs::symlink("figures", at("link")).expect("link");
    run(&mut sim(&at("link"), &at("drawing.svg")));
    let figures = fs::read_to_string(at("figures")).expect("figures");
    assert_eq!(serde_json::from_str::<Value>(&figures).expect("JSON"), through);
    assert_eq!(fs::read_to_string(at("figures.partial")).expect("kept"), "somebody's");
    assert!(fs::symlink_metadata(at("link")).expect("facts").is_symlink());
    let mode = |name: &str| fs::metadata(at(name)).expect("facts").mode();
    assert_eq!(mode("drawing.svg"), mode("figures.partial"));
    assert!(refused(&mut sim(Path::new("-"), &at("drawing.svg"))).contains("--json: -: "));
    assert_eq!(fs::read_dir(below.path()).expect("list").count(), 7);
}

#[test]
fn a_trace_on_a_file_system_without_nameless_files_replaces_nothing() {
    let below = tempfile::tempdir().expect("folder");
    let mounted = Mounted::up(below.path(), "fs", &["--store-size", "64MiB"]);
    let at = |name: &str| mounted.mountpoint.join(name);
    fs::write(at("made.partial"), "somebody's").expect("write");
    run(&mut trace(&["synth", "worst-case", "--requests", "2000"], &at("made")));
    assert_eq!(shown(&at("made"))["reads"], 2000);
    assert!(refused(&mut trace(&["synth", "worst-case"], &at("made"))).contains("exists"));
    fs::write(below.path().join("bad.csv"), TABLE.replace("6.5", "4")).expect("write");
    let bad = below.path().join("bad.csv").display().to_string();
    refused(&mut trace(&["import", "csv", &bad], &at("none")));
    assert_eq!(fs::read_to_string(at("made.partial")).expect("kept"), "somebody's");
    assert_eq!(fs::read_dir(&mounted.mountpoint).expect("list").count(), 2);
}

/// A recording that goes on; ended when dropped.
struct Recording {
    child: Child,
    out: PathBuf,
}

impl Recording {
    /// Begins, and waits until it goes on.
    fn begin(mountpoint: &Path, out: &Path) -> Recording {
        // The tests may be run by a program that ignores the signal.
        Recording::begin_with(&["env", "--default-signal=HUP"], mountpoint, out)
    }

    /// The same, by another program.
    fn begin_with(words: &[&str], mountpoint: &Path, out: &Path) -> Recording {
        let recording = trace(&["record"], out);
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).arg(recording.get_program()).args(recording.get_args());
        let mut child = command.arg(mountpoint).stdout(Stdio::piped()).spawn().expect("start");
        let mut lines = BufReader::new(child.stdout.take().expect("output")).lines();
        let line = lines.next().expect("a line").expect("a line");
        assert!(line.starts_with("recording "), "{line}");
        // What it says later goes nowhere, but it may say it.
        std::thread::spawn(move || lines.count());
        Recording { child, out: out.to_owned() }
    }

    /// Whether a short recording is refused since another goes on.
    fn is_refused(mountpoint: &Path, out: &Path) -> bool {
        let output = trace(&["record", "--seconds", "1"], out).arg(mountpoint).output().expect("start");
        let _ = fs::remove_file(out);
        assert!(output.status.success() || text(&output).contains("recorded already"), "{}", text(&output));
        !output.status.success()
    }

    fn signal(&self, signal: i32) {
        // SAFETY: kill takes numbers only; the process is a child that has not been waited for.
        unsafe { libc::kill(self.child.id() as i32, signal) };
    }

    /// Waits for the end, and gives the trace.
    fn end(mut self) -> Vec<Record> {
        assert!(self.child.wait().expect("wait").success());
        let file = fs::File::open(&self.out).expect("trace");
        Reader::new(BufReader::new(file)).expect("a trace").map(|record| record.expect("a record")).collect()
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What was done with a file.
fn deeds(records: &[Record], file: u64) -> Vec<Deed> {
    records.iter().filter(|record| record.file == file).map(|record| record.deed).collect()
}

const READ: Deed = Deed::Read { offset: 0, len: 10_000 };
const WRITE: Deed = Deed::Write { offset: 0, len: 10_000 };

/// Works in an empty folder of a mount while it is recorded, and checks what is in the trace.
fn record_work(mountpoint: &Path, below: &Path) {
    let at = |name: &str| mountpoint.join(name);
    let number = |name: &str| fs::metadata(at(name)).expect("facts").ino();
    let bytes = [7; 10_000];
    fs::write(at("before"), bytes).expect("write");
    assert_eq!(fs::read(at("before")).expect("read"), bytes);
    let before = number("before");
    let now_us = || SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_micros() as u64;
    let before_us = now_us();
    // Of anything on it.
    let recording = Recording::begin(&at("before"), &below.join("work.trace"));
    let begun_us = before_us..now_us();
    // The kernel has it, and passes it by where it can; each open reads it anew all the same.
    (0..2).for_each(|_| assert_eq!(fs::read(at("before")).expect("read"), bytes));
    fs::write(at("made"), bytes).expect("write");
    let made = number("made");
    assert_eq!(fs::read(at("made")).expect("read"), bytes);
    let mut file = OpenOptions::new().write(true).open(at("made")).expect("open");
    file.seek(SeekFrom::Start(100)).expect("seek");
    file.write_all(&[8; 50]).expect("write");
    drop(file);
    // Emptied, and written anew under its number; then cut to nothing, which it is already the
    // second time.
    fs::write(at("made"), bytes).expect("write");
    let file = OpenOptions::new().write(true).open(at("made")).expect("open");
    (0..2).for_each(|_| file.set_len(0).expect("cut"));
    drop(file);
    // Removed with its last name only.
    fs::write(at("removed"), bytes).expect("write");
    let removed = number("removed");
    fs::hard_link(at("removed"), at("linked")).expect("link");
    fs::remove_file(at("removed")).expect("remove");
    fs::remove_file(at("linked")).expect("remove");
    assert!(fs::remove_file(at("linked")).is_err());
    // Replaced.
    fs::write(at("old"), bytes).expect("write");
    fs::write(at("new"), bytes).expect("write");
    let (old, new) = (number("old"), number("new"));
    fs::rename(at("new"), at("old")).expect("rename");
    fs::create_dir(at("dir")).expect("directory");
    fs::remove_dir(at("dir")).expect("remove");
    recording.signal(libc::SIGINT);
    let records = recording.end();
    assert_eq!(deeds(&records, before), [READ, READ]);
    let part = Deed::Write { offset: 100, len: 50 };
    assert_eq!(deeds(&records, made), [WRITE, READ, part, Deed::Delete, WRITE, Deed::Delete]);
    assert_eq!(deeds(&records, removed), [WRITE, Deed::Delete]);
    assert_eq!((deeds(&records, old), deeds(&records, new)), (vec![WRITE, Deed::Delete], vec![WRITE]));
    assert_eq!(records.len(), 13, "{records:?}");
    assert!(records.iter().all(|record| record.client == 0));
    let bytes = fs::read(below.join("work.trace")).expect("trace");
    let has = |name: &[u8]| bytes.windows(name.len()).any(|part| part == name);
    assert!(!has(b"before") && !has(b"removed"));
    let reader = Reader::new(&bytes[..]).expect("a trace");
    let Origin { begun_us: said_us, lost_count, is_cut_short } = reader.origin();
    assert!(said_us.is_some_and(|us| begun_us.contains(&us)), "{said_us:?} in {begun_us:?}");
    assert_eq!((lost_count, is_cut_short), (0, false));
    let mount = mountpoint.canonicalize().expect("a mount");
    assert_eq!(reader.source(), format!("recorded on {}", mount.display()));
    // What it is for.
    let facts = shown(&below.join("work.trace"));
    assert_eq!(json!([facts["reads"], facts["writes"], facts["deletes"]]), json!([3, 6, 4]));
    let json = below.join("work.json");
    let mut sim = starling();
    sim.args(["sim", "cooperative", "--client-cache", "1MiB", "--warm-up", "0", "--trace"])
        .arg(below.join("work.trace"));
    run(sim.arg("--json").arg(&json));
    assert!(fs::metadata(json).expect("figures").len() > 0);
}

#[test]
fn what_is_done_on_a_mount_of_a_file_system_is_recorded() {
    let below = tempfile::tempdir().expect("folder");
    let fs = Mounted::up(below.path(), "fs", &["--store-size", "64MiB"]);
    record_work(&fs.mountpoint, below.path());
}

#[test]
fn what_is_done_on_a_mount_that_roams_is_recorded() {
    let below = tempfile::tempdir().expect("folder");
    let home = Home::serve(below.path());
    let laptop = Laptop::mount(&home, below.path(), "laptop");
    record_work(&laptop.mountpoint, below.path());
}

#[test]
fn what_is_recorded_of_a_build_is_what_policies_are_tried_on() {
    lua::bring_tools();
    let below = tempfile::tempdir().expect("folder");
    let at = |name: &str| below.path().join(name);
    let home = Home::serve(below.path());
    let laptop = Laptop::mount(&home, below.path(), "laptop");
    let recording = Recording::begin(&laptop.mountpoint, &at("build.trace"));
    let lua = laptop.mountpoint.join("lua");
    lua::put_sources(&lua);
    run(Command::new("make").arg("-j2").current_dir(&lua));
    let objects =
        fs::read_dir(&lua).expect("list").flatten().filter(|one| one.path().extension() == Some("o".as_ref()));
    let (objects, program) = (objects.count() as u64, fs::metadata(lua.join("lua")).expect("program"));
    recording.signal(libc::SIGINT);
    let records = recording.end();
    assert!(deeds(&records, program.ino()).iter().any(|deed| matches!(deed, Deed::Write { .. })));
    let facts = shown(&at("build.trace"));
    assert!(
        facts["files"].as_u64() > Some(2 * objects) && facts["written_bytes"].as_u64() > Some(program.len()),
        "{facts}"
    );
    let study = |words: &[&str], json: &str| -> Value {
        let mut command = starling();
        run(command.args(words).arg("--trace").arg(at("build.trace")).arg("--json").arg(at(json)));
        serde_json::from_slice(&fs::read(at(json)).expect("numbers")).expect("JSON")
    };
    let cooperative =
        study(&["sim", "cooperative", "--client-cache", "1MiB", "--algorithm", "n-chance"], "cooperative");
    assert!(cooperative["algorithms"][1]["outcome"]["reads"][0].as_u64() > Some(objects), "{cooperative}");
    let mobile = study(&["sim", "mobile", "--caches", "1MiB", "--bandwidths", "28800"], "mobile");
    assert!(mobile["policies"][0]["outcome"]["reads"].as_u64() > Some(objects), "{}", mobile["policies"][0]);
    let advice = study(&["advise"], "advice");
    assert!(advice["advice"]["items"].as_array().is_some_and(|items| !items.is_empty()), "{advice}");
}

#[test]
fn files_that_the_kernel_reads_itself_are_recorded_when_they_are_opened_anew() {
    const LEN: u64 = 2 << 20;
    let below = tempfile::tempdir().expect("folder");
    let home = Home::serve(below.path());
    for name in ["long", "open"] {
        fs::write(home.exported.join(name), vec![7; LEN as usize]).expect("write");
    }
    let laptop = Laptop::mount(&home, below.path(), "laptop");
    if laptop.ask(&["status"])["reads"] != "passthrough" {
        eprintln!("the kernel does not read files itself here: it reads from its cache");
    }
    let path = |name: &str| laptop.mountpoint.join(name);
    let number = |name: &str| fs::metadata(path(name)).expect("facts").ino();
    let read = |name: &str| assert_eq!(fs::read(path(name)).expect("read").len() as u64, LEN);
    ["long", "open"].into_iter().for_each(read);
    let open = fs::File::open(path("open")).expect("open");
    let recording = Recording::begin(&laptop.mountpoint, &below.path().join("trace"));
    ["long", "open", "long"].into_iter().for_each(read);
    recording.signal(libc::SIGTERM);
    let records = recording.end();
    let bytes = |name: &str| -> u64 {
        let len = |deed: &Deed| match deed {
            Deed::Read { len, .. } => *len,
            other => panic!("{other:?}"),
        };
        deeds(&records, number(name)).iter().map(len).sum()
    };
    assert_eq!((bytes("long"), bytes("open")), (2 * LEN, LEN));
    // Nothing of the recording stays.
    ["long", "open"].into_iter().for_each(read);
    drop(open);
}

#[test]
fn a_recording_ends_with_its_time_its_command_or_its_mount() {
    let below = tempfile::tempdir().expect("folder");
    let at = |name: &str| below.path().join(name);
    let mounted = Mounted::up(below.path(), "fs", &["--store-size", "64MiB"]);
    let file = mounted.mountpoint.join("file");
    // One at a time. A command that dies leaves nothing, and the next one can record.
    let recording = Recording::begin(&mounted.mountpoint, &at("killed.trace"));
    assert!(Recording::is_refused(&mounted.mountpoint, &at("second.trace")));
    fs::write(&file, "text").expect("write");
    recording.signal(libc::SIGKILL);
    drop(recording);
    let deadline = Instant::now() + LONG;
    while Recording::is_refused(&mounted.mountpoint, &at("timed.trace")) {
        assert!(Instant::now() < deadline, "the recording goes on");
    }
    let left = fs::read_dir(below.path()).expect("list").map(|entry| entry.expect("entry").file_name());
    assert!(left.into_iter().all(|name| !name.to_string_lossy().contains("trace")));
    // With the terminal, unless it is to outlive that.
    let recording = Recording::begin(&mounted.mountpoint, &at("hangup.trace"));
    fs::write(&file, "text").expect("write");
    recording.signal(libc::SIGHUP);
    assert_eq!(recording.end().len(), 2);
    let recording = Recording::begin_with(&["nohup"], &mounted.mountpoint, &at("outlives.trace"));
    recording.signal(libc::SIGHUP);
    fs::write(&file, "text").expect("write");
    recording.signal(libc::SIGINT);
    assert_eq!(recording.end().len(), 2);
    // Other users may not record, and a trace on the recorded mount is refused.
    let mut stranger = trace(&["record"], &at("strange.trace"));
    assert!(!stranger.arg(&mounted.mountpoint).uid(65_534).output().expect("start").status.success());
    let on_it = mounted.mountpoint.join("trace");
    assert!(refused(trace(&["record"], &on_it).arg(&mounted.mountpoint)).contains("--out"));
    let elsewhere = refused(trace(&["record"], &at("no.trace")).arg(below.path()));
    assert!(elsewhere.contains("not on a mounted starling file system"), "{elsewhere}");
    // The end of the mount is the end of the trace.
    let recording = Recording::begin(&mounted.mountpoint, &at("unmounted.trace"));
    fs::write(&file, "other").expect("write");
    mounted.down();
    let deeds: Vec<Deed> = recording.end().into_iter().map(|record| record.deed).collect();
    assert_eq!(deeds, [Deed::Delete, Deed::Write { offset: 0, len: 5 }]);
    assert_eq!(shown(&at("unmounted.trace"))["is_cut_short"], false);
    // The trace says that it was not this that ended it.
    let mounted = Mounted::up(below.path(), "killed", &["--store-size", "64MiB"]);
    let mut recording = Recording::begin(&mounted.mountpoint, &at("cut.trace"));
    mounted.kill();
    assert_eq!(recording.child.wait().expect("wait").code(), Some(1));
    assert_eq!(shown(&at("cut.trace"))["is_cut_short"], true);
    assert!(!at("strange.trace").exists() && !at("no.trace").exists());
}
