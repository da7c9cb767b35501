#!/bin/bash
# Starling on this machine. STARLING is the program, STARLING_ARGS what else `up` is given (split at spaces). Variants: local (all
# roles in one process), tcp and tls (five processes with a store each, reached over loopback, and one with the rest).
set -euo pipefail
. "$SOURCES/common.sh"

PORT=7450
stores() { seq 0 4; }
keys=()
[ "${VARIANT:-}" = tls ] && keys=(--keys "$ROOT/keys")

case $1 in
check)
    [ -x "$STARLING" ] || { echo "no program at $STARLING"; exit 1; }
    ;;
start)
    mkdir -p "$ROOT/data"
    [ "$VARIANT" = local ] && exit 0
    [ "$VARIANT" = tls ] && "$STARLING" keys "$ROOT/keys" > /dev/null
    for i in $(stores); do
        "$STARLING" store "$ROOT/store$i" --listen "127.0.0.1:$((PORT + i))" "${keys[@]}" --background > "$ROOT/store$i.out"
        sed -n 's/^serving as process \([0-9]*\);.*/\1/p' "$ROOT/store$i.out" >> "$ROOT/stores"
    done
    ;;
mount)
    places=()
    if [ "$VARIANT" != local ]; then
        for i in $(stores); do
            places+=(--store "$VARIANT://127.0.0.1:$((PORT + i))")
        done
    fi
    # shellcheck disable=SC2086
    "$STARLING" up "$MNT" --data "$ROOT/data" "${places[@]}" "${keys[@]}" --background ${STARLING_ARGS:-} \
        > "$ROOT/up.log" 2>&1 || {
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
stop) terminate "$ROOT/stores" ;;
esac
