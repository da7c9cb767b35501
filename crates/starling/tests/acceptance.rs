//! Builds a tree of real sources with `make` in a `--parity 2` mount, while one store is taken away
//! and another is corrupted. Then the process is killed and the file system started again.
//! Everything synced must be there, byte for byte.
//!
//! The store that is taken away lies on a file system of its own: another Starling, whose process
//! is killed. From then on every access fails, as with a disk that is pulled out.

mod common;
#[path = "common/lua.rs"]
mod lua;

use common::{Mounted, run, starling, tree};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Flips a byte in every 8 KiB that a store has written.
fn corrupt(store: &Path) {
    let file = OpenOptions::new().read(true).write(true).open(store.join("fragments")).expect("fragments");
    let len = file.metadata().expect("length").len();
    let mut byte = [0];
    for at in (4096 + 700..len).step_by(8192) {
        file.read_exact_at(&mut byte, at).expect("read");
        if byte[0] != 0 {
            file.write_all_at(&[byte[0] ^ 0x5a], at).expect("write");
        }
    }
}

#[test]
fn crash_sources_are_built_while_stores_fail_and_everything_synced_survives() {
    lua::bring_tools();
    let dir = tempfile::tempdir().expect("temporary folder");
    let disk = Mounted::up(dir.path(), "disk", &["--stores", "2", "--store-size", "2GiB"]);
    let mut fs = {
        let stores: Vec<PathBuf> = (0..5)
            .map(|i| if i == 1 { disk.mountpoint.join("store") } else { dir.path().join(format!("store-{i}")) })
            .collect();
        let mut flags = vec!["--parity".to_string(), "2".into(), "--store-size".into(), "512MiB".into()];
        stores.iter().for_each(|s| flags.extend(["--store".to_string(), s.display().to_string()]));
        Mounted::up(dir.path(), "fs", &flags.iter().map(String::as_str).collect::<Vec<_>>())
    };

    let lua = fs.mountpoint.join("lua");
    lua::put_sources(&lua);
    run(starling().arg("sync").arg(&fs.mountpoint));

    let make = Command::new("make").arg("-j2").current_dir(&lua).stdout(std::process::Stdio::piped()).spawn();
    let mut make = make.expect("make");
    while fs::read_dir(&lua).expect("list").flatten().filter(|e| e.path().extension().is_some_and(|x| x == "o")).count()
        < 3
    {
        assert!(make.try_wait().expect("make").is_none_or(|s| s.success()), "make failed before any fault");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    disk.kill();
    corrupt(&dir.path().join("store-3"));
    assert!(make.wait().expect("make").success(), "make failed while stores were bad");
    assert_eq!(run(Command::new(lua.join("lua")).arg("print(6 * 7)")).trim(), "42");

    run(starling().arg("sync").arg(&fs.mountpoint));
    let synced = tree(&lua);
    assert!(synced.len() > 90, "sources, objects and the program: {}", synced.len());
    fs::write(fs.mountpoint.join("not-synced"), "may be lost").expect("write");
    fs.kill();

    fs.up_again();
    assert_eq!(tree(&lua), synced);
    let status: serde_json::Value =
        serde_json::from_str(&run(starling().args(["status", "--json"]).arg(&fs.mountpoint))).expect("status");
    assert_eq!(status["parity"], 2);

    run(starling().args(["scrub", "--repair"]).arg(&fs.mountpoint));
    let report: serde_json::Value =
        serde_json::from_str(&run(starling().args(["scrub", "--json"]).arg(&fs.mountpoint))).expect("scrub");
    assert_eq!((&report["missing"], &report["damaged"]), (&0.into(), &0.into()), "{report}");
    fs.down();
    let checked = run(starling().arg("fsck").arg("--data").arg(&fs.data));
    assert!(checked.contains("no problems"), "{checked}");
}
