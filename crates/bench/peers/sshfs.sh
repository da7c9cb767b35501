#!/bin/bash
# sshfs over an sshd of its own. No redundancy: it is here because it is what many people use. No variants.
set -euo pipefail
. "$SOURCES/common.sh"
PORT=2299

case $1 in
check)
    PATH=$PATH:/usr/sbin
    require sshfs ssh sshd ssh-keygen umount
    ;;
start)
    mkdir -p "$ROOT/export" /run/sshd
    chmod 700 "$ROOT"
    ssh-keygen -q -t ed25519 -N '' -f "$ROOT/host-key"
    ssh-keygen -q -t ed25519 -N '' -f "$ROOT/client-key"
    cp "$ROOT/client-key.pub" "$ROOT/authorized"
    cat > "$ROOT/sshd_config" << X
Port $PORT
ListenAddress $HOST
HostKey $ROOT/host-key
PidFile $ROOT/sshd.pid
AuthorizedKeysFile $ROOT/authorized
PermitRootLogin prohibit-password
PasswordAuthentication no
UsePAM no
StrictModes no
Subsystem sftp internal-sftp
X
    /usr/sbin/sshd -D -f "$ROOT/sshd_config" -E "$ROOT/sshd.log" &
    echo $! > "$ROOT/pids"
    until_true 10 bash -c "exec 3<> /dev/tcp/$HOST/$PORT"
    ;;
mount)
    options=IdentityFile=$ROOT/client-key,port=$PORT,StrictHostKeyChecking=no,UserKnownHostsFile=$ROOT/known
    sshfs -f -o "$options" "root@$HOST:$ROOT/export" "$MNT" > "$ROOT/mount.log" 2>&1 &
    echo $! > "$ROOT/client"
    until_true 20 mountpoint -q "$MNT"
    ;;
unmount)
    umount "$MNT"
    until_gone 10 "$(cat "$ROOT/client")"
    ;;
stop) terminate "$ROOT/pids" ;;
esac
