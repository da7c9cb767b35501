#!/bin/bash
# Linux's own NFS client, version 3, with nfs-ganesha as the server. The client runs in a guest: User Mode Linux, whose
# root is this machine's root, so that it has all programs. No redundancy, no variants. What differs from the other scripts:
#   start     starts the server and the guest, and returns once the guest has mounted at $MNT (in the guest, not here)
#   work ...  runs a command in the guest and prints what it printed
# There is no `mount` or `unmount`. HOST is the server's address, and GUEST the client's. Of this machine's files, the guest
# can write only those below $ROOT.
set -euo pipefail
. "$SOURCES/common.sh"
PATH=$PATH:/usr/sbin:/sbin
NFS_PORT=2049
MOUNT_PORT=20048
MODULES=/usr/lib/uml/modules
OPTIONS=vers=3,nolock,proto=tcp,addr=${HOST:-},port=$NFS_PORT,mountproto=tcp,mountaddr=${HOST:-},mountport=$MOUNT_PORT

answers() {
    until_true 30 bash -c "exec 3<> /dev/tcp/$HOST/$1"
}

# The server registers with rpcbind, whose socket has a fixed path. Both get a /run of their own.
start_server() {
    mkdir -p "$ROOT/export" "$ROOT/recovery"
    cat > "$ROOT/ganesha.conf" << X
NFS_CORE_PARAM {
    Protocols = 3; Bind_addr = $HOST; NFS_Port = $NFS_PORT; MNT_Port = $MOUNT_PORT;
    Enable_NLM = false; Enable_RQUOTA = false;
}
NFSv4 { Graceless = true; RecoveryRoot = $ROOT/recovery; }
EXPORT {
    Export_Id = 1; Path = $ROOT/export; Pseudo = /export; Access_Type = RW; Squash = No_Root_Squash;
    SecType = sys; Protocols = 3; Transports = TCP; FSAL { Name = VFS; }
}
LOG { Default_Log_Level = EVENT; }
X
    cat > "$ROOT/serve" << X
mount -t tmpfs run /run
mkdir /run/rpcbind
rpcbind -f -h $HOST &
echo \$! >> "$ROOT/pids"
until (exec 3<> /dev/tcp/$HOST/111) 2> /dev/null; do sleep 0.05; done
exec ganesha.nfsd -F -L "$ROOT/ganesha.log" -f "$ROOT/ganesha.conf" -p "$ROOT/ganesha.pid"
X
    unshare --mount bash "$ROOT/serve" > "$ROOT/serve.log" 2>&1 &
    echo $! >> "$ROOT/pids"
    answers "$NFS_PORT"
    answers "$MOUNT_PORT"
}

# Prints the script that the guest runs as its first process. It looks for a command ten times a second; `read` waits
# without a new process.
guest_script() {
    cat << X
#!/bin/bash
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
mount -n -t proc proc /proc
mount -n -t sysfs sys /sys
mount -n -t tmpfs run /run
mount -n -t hostfs -o "$ROOT" root "$ROOT"
exec > "$ROOT/guest.log" 2>&1
set -x
ip link set lo up
ip addr add $GUEST/24 dev vec0
ip link set vec0 up
modprobe -d "$ROOT/modules" nfsv3
mount -i -n -t nfs -o "$OPTIONS" "$HOST:$ROOT/export" "$MNT" && touch "$ROOT/mounted"
set +x
mkfifo /run/pause
exec 9<> /run/pause
while :; do
    if [ -e "$ROOT/command" ]; then
        mv "$ROOT/command" "$ROOT/running"
        bash "$ROOT/running" > "$ROOT/output" 2> "$ROOT/errors"
        echo \$? > "$ROOT/result"
        mv "$ROOT/result" "$ROOT/ended"
    fi
    read -r -t 0.1 -u 9
done
X
}

start_link() {
    ip tuntap add dev guest mode tap
    ip addr add "$HOST/24" dev guest
    ip link set guest up
}

start_guest() {
    # modprobe looks in lib/modules below the folder that it is given.
    mkdir -p "$ROOT/modules/lib"
    ln -s "$MODULES" "$ROOT/modules/lib/modules"
    guest_script > "$ROOT/guest"
    chmod +x "$ROOT/guest"
    gcc -O2 -shared -fPIC -o "$ROOT/umlshim.so" "$SOURCES/umlshim.c"
    # The guest's memory is a file in TMPDIR, which must not be on a disk.
    TMPDIR=/dev/shm LD_PRELOAD=$ROOT/umlshim.so linux.uml mem=1G root=/dev/root rootfstype=hostfs rootflags=/ ro \
        con=null con0=null,fd:1 con1=null ssl=null vec0:transport=tap,ifname=guest,depth=128,gro=1 init="$ROOT/guest" \
        umid=guest uml_dir="$ROOT/uml" < /dev/null > "$ROOT/kernel.log" 2>&1 &
    echo $! | tee -a "$ROOT/pids" > "$ROOT/guest.pid"
    until_true 60 test -e "$ROOT/mounted" || {
        tail -n 3 "$ROOT/kernel.log" "$ROOT/guest.log" >&2
        exit 1
    }
}

case $1 in
check)
    require rpcbind ganesha.nfsd linux.uml uml_mconsole modprobe gcc ip unshare
    compgen -G '/usr/lib/*/ganesha/libfsalvfs.so' > /dev/null || { echo "not installed: nfs-ganesha-vfs"; exit 1; }
    ;;
start)
    start_link
    start_server
    start_guest
    ;;
work)
    shift
    rm -f "$ROOT/ended"
    printf '%q ' "$@" > "$ROOT/command.new"
    mv "$ROOT/command.new" "$ROOT/command"
    until [ -e "$ROOT/ended" ]; do sleep 0.05; done
    cat "$ROOT/errors" >&2
    cat "$ROOT/output"
    exit "$(cat "$ROOT/ended")"
    ;;
stop)
    # A guest that is killed leaves processes behind. uml_mconsole waits without end for one that is dead.
    timeout 10 uml_mconsole "$ROOT/uml/guest/mconsole" halt > "$ROOT/halt.log" 2>&1 || true
    until_gone 10 "$(cat "$ROOT/guest.pid")" || true
    terminate "$ROOT/pids"
    ;;
esac
