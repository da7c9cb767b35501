#!/bin/bash
# CephFS: a monitor, a manager and a metadata server on the first machine, 3 OSDs, and ceph-fuse. Variant: size2 (two
# copies). Each OSD keeps its objects with BlueStore in a file. Nothing is authenticated or encrypted.
set -euo pipefail
. "$SOURCES/common.sh"
export CEPH_CONF=${ROOT:-}/ceph.conf
OSDS="0 1 2"
META_GROUPS=16
DATA_GROUPS=32
ADMIN_SECONDS=20

# The monitor may be busy with an election.
admin() { ceph --connect-timeout $ADMIN_SECONDS "$@"; }
new_id() { cat /proc/sys/kernel/random/uuid; }

# serve NAME PROGRAM ARGUMENTS...: a daemon of this machine.
serve() {
    local name=$1
    shift
    "$@" -f > "$ROOT/log/$name.out" 2>&1 &
    echo $! >> "$ROOT/pids"
}

write_configuration() {
    cat > "$CEPH_CONF" << X
[global]
fsid = $1
mon_initial_members = a
mon_host = [v2:$HOST:3300,v1:$HOST:6789]
auth_cluster_required = none
auth_service_required = none
auth_client_required = none
keyring = $ROOT/keyring
run_dir = $ROOT/run
admin_socket = $ROOT/run/\$name.asok
pid_file = $ROOT/run/\$name.pid
log_file = $ROOT/log/\$name.log
crash_dir = $ROOT/log
mon_cluster_log_file = $ROOT/log/cluster.log
mon_data = $ROOT/mon
mgr_data = $ROOT/mgr
mds_data = $ROOT/mds
osd_data = $ROOT/osd\$id
osd_pool_default_size = 2
osd_pool_default_min_size = 1
osd_crush_chooseleaf_type = 0
osd_pool_default_pg_autoscale_mode = off
osd_memory_target = 939524096
bluestore_block_size = 12884901888
bluestore_block_create = true
X
}

start_first() {
    local id
    id=$(new_id)
    mkdir -p "$ROOT/mon" "$ROOT/mgr" "$ROOT/mds" "$ROOT/run" "$ROOT/log"
    write_configuration "$id"
    ceph-authtool --create-keyring "$ROOT/keyring" --gen-key -n mon. --cap mon 'allow *'
    ceph-authtool "$ROOT/keyring" --gen-key -n client.admin \
        --cap mon 'allow *' --cap osd 'allow *' --cap mds 'allow *' --cap mgr 'allow *'
    monmaptool --create --addv a "[v2:$HOST:3300,v1:$HOST:6789]" --fsid "$id" "$ROOT/monmap"
    ceph-mon --mkfs -i a --monmap "$ROOT/monmap" --keyring "$ROOT/keyring"
    serve mon ceph-mon -i a --public-addr "$HOST"
    until_true 20 admin status
    serve mgr ceph-mgr -i x --public-addr "$HOST"
    serve mds ceph-mds -i m --public-addr "$HOST"
}

# start_osd NUMBER
start_osd() {
    local id
    id=$(new_id)
    mkdir -p "$ROOT/osd$1"
    admin osd new "$id" "$1"
    ceph-osd -i "$1" --mkfs --osd-uuid "$id" > "$ROOT/log/mkfs$1.out" 2>&1
    serve "osd$1" ceph-osd -i "$1" --public-addr "$HOST"
}

all_osds_up() { admin osd stat | grep -q "$(echo "$OSDS" | wc -w) up"; }
mds_active() { admin mds stat | grep -q up:active; }
groups_clean() { admin pg stat | grep -Eq '^([0-9]+) pgs: \1 active\+clean;'; }

make_fs() {
    until_true 40 all_osds_up
    admin osd pool create meta $META_GROUPS
    admin osd pool create data $DATA_GROUPS
    admin fs new fs meta data
    until_true 40 mds_active
    until_true 40 groups_clean
}

case $1 in
check) require ceph-mon ceph-mgr ceph-osd ceph-mds ceph-fuse ceph ceph-authtool monmaptool umount ;;
start)
    if is_here 0; then start_first; fi
    for i in $OSDS; do
        if is_here "$i"; then start_osd "$i"; fi
    done
    if is_last; then make_fs; fi
    ;;
mount)
    ceph-fuse -f -n client.admin "$MNT" > "$ROOT/log/client.out" 2>&1 &
    echo $! > "$ROOT/client"
    until_true 40 mountpoint -q "$MNT"
    ;;
unmount)
    umount "$MNT"
    until_gone 20 "$(cat "$ROOT/client")"
    ;;
stop) terminate "$ROOT/pids" ;;
esac
