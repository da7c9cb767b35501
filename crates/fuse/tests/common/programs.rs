//! Programs that tests need; the tests of other crates use this too.

use std::process::Command;

/// Installs the packages of a program that a test needs, if it is missing. Works on Debian as root,
/// as these tests run.
pub fn bring(program: &str, packages: &str) {
    let install = format!("apt-get update -qq && apt-get install -y -qq --no-install-recommends {packages}");
    let script = format!("command -v {program} || flock /var/lock/starling-tests sh -c '{install}'");
    let output = Command::new("sh").args(["-c", &script]).env("DEBIAN_FRONTEND", "noninteractive").output();
    let installed = output.is_ok_and(|output| output.status.success());
    assert!(installed, "this test needs {program} and cannot install it: install {packages}");
}
