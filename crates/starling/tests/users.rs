//! The command as an ordinary user, who mounts through fusermount3.
//!
//! The tests run in a mount namespace of their own, where /dev/fuse is open to all and
//! /etc/fuse.conf is empty here, unlike the machine's own. Its mounts vanish with it.

mod common;

use common::run;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

/// The user `nobody`, which every system has.
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

/// The same, with a home and a mount that roams.
const ROAMING_AS_USER: &str = r#"
    cd home
    trap 'test -z "$(jobs -p)" || kill -9 $(jobs -p); fusermount3 -uz work 2> /dev/null || true' EXIT
    said() { until grep -q "^$1" "$2"; do kill -0 $! || { cat "$2.log"; exit 1; }; sleep 0.05; done; }
    mkdir src src/dir && echo there > src/dir/file
    "$1" home serve dir:src --data data --listen 127.0.0.1:0 > home 2> home.log & home=$!
    said 'home listening at' home
    "$1" invite --data data --address "$(sed -n 's/^home listening at //p' home)" | tail -n 1 > token
    "$1" mount "$(cat token)" work --cache cache > mount 2> mount.log & mount=$!
    said 'mounted at' mount
    test "$(stat -c %u:%a cache data | sort -u)" = "$2:700"
    test "$(cat work/dir/file)" = there
    echo mine > work/mine && chmod 600 work/mine
    if chown 0 work/mine 2> /dev/null; then echo "an ordinary user gave a file away"; exit 1; fi
    "$1" hoard add work/dir --priority 90
    "$1" hoard walk work | grep -q 'you can unplug now'
    "$1" sync --home work
    test "$(stat -c %u:%a src/mine):$(cat src/mine)" = "$2:600:mine"
    "$1" pending work | grep -q 'everything is home'
    "$1" connect off work
    echo again >> work/mine
    "$1" pending work | grep -q mine
    "$1" set --writes idle work
    "$1" connect auto work
    until "$1" sync --home work 2> /dev/null; do sleep 0.05; done
    test "$(tail -n 1 src/mine)" = again
    "$1" conflicts list work | grep -q 'no conflicts'
    "$1" status work --json | grep -q '"roaming": true'
    "$1" down work
    wait $mount
    kill -TERM $home
    wait $home
"#;

/// A home of root's with a user of its own; `$1` is a folder, and `$2` the command.
const GROUPS: &str = r#"
    set -e
    cd "$1"
    trap 'test -z "$(jobs -p)" || kill -9 $(jobs -p); fusermount3 -uz work 2> /dev/null || true' EXIT
    said() { until grep -q "^$1" "$2"; do kill -0 $! || { cat "$2.log"; exit 1; }; sleep 0.05; done; }
    cp /etc/passwd passwd && echo 'anna:x:4243:4243::/:/bin/sh' >> passwd && mount --bind passwd /etc/passwd
    cp /etc/group group && cp group without && mount --bind group /etc/group
    mkdir src && echo there > src/file && chgrp 4242 src/file && chmod 640 src/file
    "$2" home serve dir:src --data data --listen 127.0.0.1:0 > home 2> home.log & home=$!
    said 'home listening at' home
    "$2" invite --data data --user anna --address "$(sed -n 's/^home listening at //p' home)" | tail -n 1 > token
    looks() {
        : > mount
        "$2" mount "$(cat token)" work --cache cache > mount 2> mount.log &
        said 'mounted at' mount
        if test "$(cat work/file 2> refused)" = there; then echo yes; else grep -q 'Permission denied' refused && echo no; fi
        "$2" down work > /dev/null
    }
    test "$(looks "$@")" = no
    echo 'editors:x:4242:anna' >> /etc/group
    test "$(looks "$@")" = yes
    cat without > /etc/group
    test "$(looks "$@")" = no
    kill -TERM $home
    wait $home
"#;

/// Runs a script as that user.
fn run_as_user(script: &str) {
    let dir = tempfile::tempdir().expect("temporary folder");
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).expect("chmod");
    fs::copy(env!("CARGO_BIN_EXE_starling"), dir.path().join("starling")).expect("copy the command");
    let path = fs::canonicalize(dir.path()).expect("path");
    run(Command::new("unshare").args(["-m", "sh", "-c", PREPARE, "sh"]).arg(path).arg(USER.to_string()).arg(script));
}

#[test]
fn an_ordinary_user_does_everything_through_fusermount3() {
    run_as_user(AS_USER);
}

#[test]
fn an_ordinary_user_serves_a_home_and_mounts_it() {
    run_as_user(ROAMING_AS_USER);
}

#[test]
fn groups_at_home_are_those_of_now() {
    let dir = tempfile::tempdir().expect("temporary folder");
    run(Command::new("unshare")
        .args(["-m", "sh", "-c", GROUPS, "sh"])
        .arg(dir.path())
        .arg(env!("CARGO_BIN_EXE_starling")));
}
