#!/bin/bash
# GlusterFS, one glusterd with all bricks on this machine. Variants: disperse (4+1), replica (3).
# glusterd refuses bricks on a loopback address in 127/8, hence $HOST; its state, sockets and logs are all under $ROOT.
set -euo pipefail
. "$SOURCES/common.sh"
cli() { gluster --mode=script --glusterd-sock="$ROOT/glusterd.socket" --log-file="$ROOT/log/cli.log" "$@"; }

case $1 in
check) require glusterd glusterfs gluster umount ;;
start)
    mkdir -p "$ROOT/work" "$ROOT/run" "$ROOT/log"
    cat > "$ROOT/glusterd.vol" << X
volume management
    type mgmt/glusterd
    option working-directory $ROOT/work
    option run-directory $ROOT/run
    option glusterd-sockfile $ROOT/glusterd.socket
    option transport-type socket
    option transport.socket.listen-port 24007
    option ping-timeout 0
    option event-threads 1
    option max-port 60999
end-volume
X
    glusterd --volfile="$ROOT/glusterd.vol" --pid-file="$ROOT/glusterd.pid" --log-file="$ROOT/log/glusterd.log" \
        --log-level=WARNING
    until_true 20 cli volume list
    bricks=()
    case $VARIANT in
    disperse) count=5 shape="disperse-data 4 redundancy 1" ;;
    replica) count=3 shape="replica 3" ;;
    esac
    for i in $(seq "$count"); do
        mkdir -p "$ROOT/brick$i"
        bricks+=("$HOST:$ROOT/brick$i")
    done
    # shellcheck disable=SC2086
    cli volume create bench $shape "${bricks[@]}" force
    cli volume start bench
    ;;
mount)
    glusterfs -s "$HOST" --volfile-id=bench --pid-file="$ROOT/client" --log-file="$ROOT/log/client.log" \
        --log-level=WARNING "$MNT"
    until_true 20 mountpoint -q "$MNT"
    # The mount is there before its connections to the bricks are.
    until_true 20 bash -c "touch '$MNT/.connected' && rm '$MNT/.connected'"
    ;;
unmount)
    client=$(cat "$ROOT/client")
    umount "$MNT"
    until_gone 10 "$client"
    ;;
stop)
    # The bricks' sockets are the one thing that glusterd puts outside its folders: named in their command lines.
    sockets=$(
        for file in "$ROOT"/run/vols/bench/*.pid; do
            [ -f "$file" ] && tr '\0' '\n' < "/proc/$(cat "$file")/cmdline" | grep '^/var/run/gluster/.*\.socket$'
        done || true
    )
    cli volume stop bench force || true
    terminate "$ROOT/glusterd.pid"
    # shellcheck disable=SC2086
    rm -f $sockets
    ;;
esac
