//! The command as an ordinary user, who mounts through fusermount3.
//!
//! In a mount namespace of its own, where /dev/fuse is open to all and /etc/fuse.conf empty, whatever the machine has. All that is
//! mounted there goes with it.

mod common;

use common::run;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

/// `nobody`, whom every system has.
const USER: u32 = 65_534;

/// `$1` is a folder that everyone can enter, with the command in it, and `$2` the user.
const PREPARE: &str = r#"
    set -e
    cd "$1"
    mkdir device home && chown "$2:$2" home
    mount -t tmpfs -o dev,mode=755 device device
    mknod -m 666 device/fuse c 10 229
    mount --bind device/fuse /dev/fuse
    : > fuse.conf && chmod 644 fuse.conf && mount --bind fuse.conf /etc/fuse.conf
    exec setpriv --reuid="$2" --regid="$2" --clear-groups --inh-caps=-all sh -e -c "$3" sh "$1/starling" "$2"
"#;

/// `$1` is the command and `$2` the user, who runs this in the folder that the one above has made.
const AS_USER: &str = r#"
    cd home
    trap 'test -z "$(jobs -p)" || kill -9 $(jobs -p); fusermount3 -uz mnt 2> /dev/null || true' EXIT
    "$1" up mnt --data data --stores 3 --store-size 64MiB > said 2> log & server=$!
    until grep -q '^mounted at' said; do kill -0 $server || { cat log; exit 1; }; sleep 0.05; done
    test "$(stat -c %u:%a mnt)" = "$2:755"
    mkdir mnt/d && echo hello > mnt/d/f && ln -s d/f mnt/link && ln mnt/d/f mnt/hard && chmod 600 mnt/hard
    test "$(stat -c %u:%g:%a:%h mnt/d/f)" = "$2:$2:600:2"
    if chown 0 mnt/d/f 2> /dev/null; then echo "an ordinary user gave a file away"; exit 1; fi
    "$1" sync mnt
    "$1" status mnt | grep -q '^store 2 up'
    "$1" status --json mnt/d | grep -q '"uncommitted_bytes": 0'
    "$1" scrub mnt --repair
    "$1" down mnt
    wait $server
    test ! -e mnt/d
    "$1" fsck --data data | grep -q 'no problems'

    "$1" up mnt --data data --background > /dev/null
    grep -q hello mnt/link
    "$1" down mnt
    if "$1" up mnt --data data --allow-other 2> refused; then echo "allow_other was allowed"; exit 1; fi
    grep -q user_allow_other refused
    if "$1" up mnt --data other --allow-other 2> refused; then echo "allow_other was allowed"; exit 1; fi
    grep -q user_allow_other refused
    test ! -e other
    if "$1" up /usr --data other 2> refused; then echo "mounted on /usr"; exit 1; fi
    grep -q 'choose a folder that you own' refused
    test ! -e other
"#;

#[test]
fn an_ordinary_user_does_everything_through_fusermount3() {
    let dir = tempfile::tempdir().expect("temporary folder");
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).expect("chmod");
    fs::copy(env!("CARGO_BIN_EXE_starling"), dir.path().join("starling")).expect("copy the command");
    let path = fs::canonicalize(dir.path()).expect("path");
    run(Command::new("unshare").args(["-m", "sh", "-c", PREPARE, "sh"]).arg(path).arg(USER.to_string()).arg(AS_USER));
}
