#!/bin/bash
# The do-nothing file system (fusept.c) over a folder of the local disk. Variants: plain, writeback (the kernel's
# write-back cache). If FUSEPT_LOG is set, every request is printed to that file.
set -euo pipefail
. "$SOURCES/common.sh"

case $1 in
check)
    require gcc pkg-config umount
    pkg-config --exists fuse3 || { echo "not installed: libfuse3-dev"; exit 1; }
    ;;
start)
    mkdir -p "$ROOT/base"
    # shellcheck disable=SC2046
    gcc -O2 -o "$ROOT/fusept" "$SOURCES/fusept.c" $(pkg-config --cflags --libs fuse3)
    ;;
mount)
    options=base=$ROOT/base
    [ "$VARIANT" != writeback ] || options+=,writeback
    if [ -n "${FUSEPT_LOG:-}" ]; then
        "$ROOT/fusept" -f -d -o "$options" "$MNT" > "$ROOT/out" 2>> "$FUSEPT_LOG" &
    else
        "$ROOT/fusept" -f -o "$options" "$MNT" > "$ROOT/out" 2>&1 &
    fi
    echo $! > "$ROOT/client"
    until_true 10 mountpoint -q "$MNT"
    ;;
unmount)
    umount "$MNT"
    until_gone 10 "$(cat "$ROOT/client")"
    ;;
stop) ;;
esac
