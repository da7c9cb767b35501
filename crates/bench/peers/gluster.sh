#!/bin/bash
# GlusterFS, with a glusterd per machine. Variants: disperse (4+1 on one machine, a brick of 2+1 or more per machine on
# several), replica (3), replica-lease (the same, with a server given up after 5 s of silence instead of 42 s).
# glusterd refuses bricks on a loopback address in 127/8, hence $HOST. Its state and logs are all under $ROOT.
set -euo pipefail
. "$SOURCES/common.sh"

# privately COMMAND...: runs it with folders of its own where GlusterFS has files and sockets at fixed paths.
privately() {
    unshare --mount bash -ec 'mount -t tmpfs run /run; mkdir /run/gluster; mount -t tmpfs state /var/lib/glusterd; exec "$@"' \
        bash "$@"
}

cli() {
    local here=$ROOT/node$NODE
    privately gluster --mode=script --glusterd-sock="$here/glusterd.socket" --log-file="$here/log/cli.log" "$@"
}

start_glusterd() {
    local here=$ROOT/node$NODE
    mkdir -p "$here/work" "$here/run" "$here/log"
    cat > "$here/glusterd.vol" << X
volume management
    type mgmt/glusterd
    option working-directory $here/work
    option run-directory $here/run
    option logging-directory $here/log
    option glusterd-sockfile $here/glusterd.socket
    option transport-type socket
    option transport.socket.listen-port 24007
    option transport.socket.keepalive-time 10
    option transport.socket.keepalive-interval 2
    option ping-timeout 0
    option event-threads 1
    option max-port 60999
end-volume
X
    privately glusterd --volfile="$here/glusterd.vol" --pid-file="$here/glusterd.pid" \
        --log-file="$here/log/glusterd.log" --log-level=WARNING
    until_true 20 cli volume list
    { cat "$here/glusterd.pid"; echo; } >> "$ROOT/glusterds"
}

# True if this machine is connected to all others, which have accepted it.
all_joined() {
    [ "$(cli peer status | grep -c 'Peer in Cluster (Connected)')" = $((${#hosts[@]} - 1)) ]
}

make_volume() {
    local host count shape bricks=()
    for host in "${hosts[@]}"; do
        [ "$host" = "$HOST" ] || until_true 20 cli peer probe "$host"
    done
    until_true 20 all_joined
    case $VARIANT in
    disperse)
        count=5
        [ ${#hosts[@]} -gt 1 ] && count=${#hosts[@]}
        shape="disperse-data $((count - 1)) redundancy 1"
        ;;
    replica*) count=3 shape="replica 3" ;;
    esac
    for i in $(seq 0 $((count - 1))); do
        mkdir -p "$ROOT/brick$i"
        bricks+=("$(host_of "$i"):$ROOT/brick$i")
    done
    # shellcheck disable=SC2086
    cli volume create bench $shape "${bricks[@]}" force
    [ "$VARIANT" != replica-lease ] || cli volume set bench network.ping-timeout 5
    cli volume start bench
}

# True if three bricks and their self-heal daemons work, and nothing is left to heal.
is_whole() {
    all_joined
    [ "$(cli volume status bench --xml | grep -c '<status>1</status>')" = 6 ]
    # A brick lists here what others lack; the file that all names link to stays.
    [ -z "$(find "$ROOT"/brick*/.glusterfs/indices/xattrop -type f ! -name 'xattrop-*')" ]
}

case $1 in
check) require glusterd glusterfs gluster umount unshare ;;
start)
    start_glusterd
    if is_last; then make_volume; fi
    ;;
restart) start_glusterd ;;
whole) is_whole ;;
mount)
    mkdir -p "$ROOT/node$NODE/log"
    # shellcheck disable=SC2046
    glusterfs $(printf -- '-s %s ' "${hosts[@]}") --volfile-id=bench --pid-file="$ROOT/node$NODE/client" \
        --log-file="$ROOT/node$NODE/log/client.log" --log-level=WARNING "$MNT"
    until_true 20 mountpoint -q "$MNT"
    # The mount is there before its connections to the bricks are.
    until_true 20 bash -c "touch '$MNT/.connected$NODE' && rm '$MNT/.connected$NODE'"
    ;;
unmount)
    client=$(cat "$ROOT/node$NODE/client")
    umount "$MNT"
    # The client has written all by now, but it hangs at times when it ends.
    until_gone 10 "$client" || kill -9 "$client"
    ;;
stop)
    cli volume stop bench force || true
    terminate "$ROOT/glusterds"
    ;;
esac
