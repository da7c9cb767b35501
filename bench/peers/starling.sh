#!/bin/bash
# Starling, all roles in one process on this machine. STARLING is the program, STARLING_ARGS what else `up` is given
# (split at spaces). No variants.
set -euo pipefail
. "$SOURCES/common.sh"

case $1 in
check)
    [ -x "$STARLING" ] || { echo "no program at $STARLING"; exit 1; }
    ;;
start) mkdir -p "$ROOT/data" ;;
mount)
    # shellcheck disable=SC2086
    "$STARLING" up "$MNT" --data "$ROOT/data" --background ${STARLING_ARGS:-} > "$ROOT/up.log" 2>&1 || {
        cat "$ROOT/up.log" >&2
        exit 1
    }
    until_true 30 mountpoint -q "$MNT"
    ;;
unmount)
    "$STARLING" down "$MNT"
    # The next `up` needs the lock on the data folder, which goes with the process.
    until_gone 30 "$(sed -n 's/^serving as process \([0-9]*\);.*/\1/p' "$ROOT/up.log")"
    ;;
stop) ;;
esac
