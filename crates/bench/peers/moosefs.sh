#!/bin/bash
# MooseFS, a master on the first machine and 3 chunk servers. Variant: goal2 (two copies).
# The chunk server refuses a master on a loopback address in 127/8, hence $HOST.
set -euo pipefail
. "$SOURCES/common.sh"
EMPTY=/var/lib/mfs/metadata.mfs.empty
SERVERS="0 1 2"

answers() {
    until_true 20 bash -c "exec 3<> /dev/tcp/$1/$2"
}

start_master() {
    mkdir -p "$ROOT/meta"
    cp $EMPTY "$ROOT/meta/metadata.mfs"
    printf '* / rw,alldirs,admin,maproot=0:0\n' > "$ROOT/exports.cfg"
    : > "$ROOT/topology.cfg"
    cat > "$ROOT/master.cfg" << X
WORKING_USER = root
WORKING_GROUP = root
DATA_PATH = $ROOT/meta
EXPORTS_FILENAME = $ROOT/exports.cfg
TOPOLOGY_FILENAME = $ROOT/topology.cfg
MATOML_LISTEN_HOST = $HOST
MATOCS_LISTEN_HOST = $HOST
MATOCL_LISTEN_HOST = $HOST
X
    mfsmaster -f -c "$ROOT/master.cfg" start > "$ROOT/master.log" 2>&1 &
    echo $! >> "$ROOT/pids"
    answers "$HOST" 9420
}

# start_server NUMBER
start_server() {
    local here=$ROOT/cs$1
    mkdir -p "$here/data" "$here/var"
    echo "$here/data" > "$here/hdd.cfg"
    cat > "$here/cs.cfg" << X
WORKING_USER = root
WORKING_GROUP = root
DATA_PATH = $here/var
HDD_CONF_FILENAME = $here/hdd.cfg
HDD_LEAVE_SPACE_DEFAULT = 256MiB
MASTER_HOST = ${hosts[0]}
CSSERV_LISTEN_HOST = $HOST
CSSERV_LISTEN_PORT = $((9431 + $1))
X
    mfschunkserver -f -c "$here/cs.cfg" start > "$here/log" 2>&1 &
    echo $! >> "$ROOT/pids"
    answers "$HOST" $((9431 + $1))
}

case $1 in
check)
    require mfsmaster mfschunkserver mfsmount mfssetgoal umount
    [ -f $EMPTY ] || { echo "not installed: $EMPTY (of moosefs-master)"; exit 1; }
    ;;
start)
    if is_here 0; then start_master; fi
    for i in $SERVERS; do
        if is_here "$i"; then start_server "$i"; fi
    done
    ;;
mount)
    mfsmount -f "$MNT" -H "${hosts[0]}" > "$ROOT/mount.log" 2>&1 &
    echo $! > "$ROOT/client"
    until_true 20 mountpoint -q "$MNT"
    mfssetgoal -r 2 "$MNT" > /dev/null
    # Writable only once the chunk servers have registered with the master.
    until_true 20 bash -c "echo x > '$MNT/.connected' && sync '$MNT/.connected' && rm '$MNT/.connected'"
    ;;
unmount)
    umount "$MNT"
    until_gone 10 "$(cat "$ROOT/client")"
    ;;
stop) terminate "$ROOT/pids" ;;
esac
