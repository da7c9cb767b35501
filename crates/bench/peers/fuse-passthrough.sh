#!/bin/bash
# The do-nothing file system (fusept.c) over a folder of the local disk, mounted as Starling's front end mounts. Variants:
# plain, writeback (the kernel's write-back cache). If FUSEPT_LOG is set, every request is printed to that file.
set -euo pipefail
. "$SOURCES/common.sh"

case $1 in
check)
    require gcc pkg-config umount
    pkg-config --exists fuse3 || { echo "not installed: libfuse3-dev"; exit 1; }
    ;;
start)
    mkdir -p "$ROOT/base"
    # Each scenario's folder apart from the others on ext4, as in the column of the local disk (`spread` in target.rs).
    chattr +T "$ROOT/base" 2> /dev/null || true
    # shellcheck disable=SC2046
    gcc -O2 -o "$ROOT/fusept" "$SOURCES/fusept.c" $(pkg-config --cflags --libs fuse3)
    ;;
mount)
    options=base=$ROOT/base
    [ "$VARIANT" != writeback ] || options+=,writeback
    # Starling then asks for ACLs and for permission checks in the kernel, which cost requests.
    case " ${STARLING_ARGS:-} " in *" --allow-other "*) options+=,acl,allow_other,default_permissions ;; esac
    if [ -n "${FUSEPT_LOG:-}" ]; then
        "$ROOT/fusept" -f -d -o "$options" "$MNT" > "$ROOT/out" 2>> "$FUSEPT_LOG" &
    else
        "$ROOT/fusept" -f -o "$options" "$MNT" > "$ROOT/out" 2>&1 &
    fi
    echo $! > "$ROOT/client"
    until_true 10 mountpoint -q "$MNT"
    # As Starling's front end does: the kernel's own limit is 128 KiB.
    echo 4096 > "/sys/class/bdi/$(mountpoint -d "$MNT")/read_ahead_kb"
    ;;
unmount)
    umount "$MNT"
    until_gone 10 "$(cat "$ROOT/client")"
    ;;
stop) ;;
esac
