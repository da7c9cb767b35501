//! A short round of `bench survive`: nodes in network namespaces of their own, with programs on
//! every mount. The one that leads dies, and one is cut off.

#[path = "../../fuse/tests/common/programs.rs"]
mod programs;

use programs::bring;
use std::path::Path;
use std::process::Command;

#[test]
fn a_leader_dies_a_member_is_cut_off_and_nothing_is_lost() {
    bring("ip", "iproute2");
    let bench = Path::new(env!("CARGO_BIN_EXE_bench"));
    let starling = bench.with_file_name("starling");
    assert!(starling.is_file(), "there is no {}: run `cargo build -p starling` first", starling.display());
    let dir = tempfile::tempdir().expect("temporary folder");
    let mut survive = Command::new(bench);
    survive.args(["survive", "--quick", "--only", "leader/kill,member/cut", "--dir"]).arg(dir.path());
    let output = survive.arg("--starling").arg(starling).output().expect("start");
    let (said, report) = (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{said}{report}");
    // It reports both, and says what it found.
    assert!(report.contains("leader/kill") && report.contains("member/cut"), "{report}");
}
