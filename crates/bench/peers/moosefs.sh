#!/bin/bash
# MooseFS, a master and 3 chunk servers. Variant: goal2 (two copies).
# The chunk server refuses a master on a loopback address in 127/8, hence $HOST.
set -euo pipefail
. "$SOURCES/common.sh"
EMPTY=/var/lib/mfs/metadata.mfs.empty

case $1 in
check)
    require mfsmaster mfschunkserver mfsmount mfssetgoal umount
    [ -f $EMPTY ] || { echo "not installed: $EMPTY (of moosefs-master)"; exit 1; }
    ;;
start)
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
    : > "$ROOT/pids"
    mfsmaster -f -c "$ROOT/master.cfg" start > "$ROOT/master.log" 2>&1 &
    echo $! >> "$ROOT/pids"
    until_true 20 bash -c "exec 3<> /dev/tcp/$HOST/9420"
    for i in 1 2 3; do
        mkdir -p "$ROOT/cs$i/data" "$ROOT/cs$i/var"
        echo "$ROOT/cs$i/data" > "$ROOT/cs$i/hdd.cfg"
        cat > "$ROOT/cs$i/cs.cfg" << X
WORKING_USER = root
WORKING_GROUP = root
DATA_PATH = $ROOT/cs$i/var
HDD_CONF_FILENAME = $ROOT/cs$i/hdd.cfg
HDD_LEAVE_SPACE_DEFAULT = 256MiB
MASTER_HOST = $HOST
CSSERV_LISTEN_HOST = $HOST
CSSERV_LISTEN_PORT = $((9430 + i))
X
        mfschunkserver -f -c "$ROOT/cs$i/cs.cfg" start > "$ROOT/cs$i/log" 2>&1 &
        echo $! >> "$ROOT/pids"
    done
    for i in 1 2 3; do
        until_true 20 bash -c "exec 3<> /dev/tcp/$HOST/$((9430 + i))"
    done
    ;;
mount)
    mfsmount -f "$MNT" -H "$HOST" > "$ROOT/mount.log" 2>&1 &
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
