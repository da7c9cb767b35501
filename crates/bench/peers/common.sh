# What the peers' scripts share. A script is called as `SCRIPT ACTION`, where ACTION is one of
#   check     succeed if all programs are there; otherwise say on stdout what is missing
#   start     start the servers of machine $NODE, with everything they keep under $ROOT. Machines start in order, and the last
#             one returns when the servers of all machines work together
#   mount     mount at $MNT and return once mounted
#   unmount   unmount $MNT and return once the client is gone
#   stop      stop the servers of all machines; called on the first one
# and, where machines may die while others work (`bench survive --peer`),
#   restart   start the servers of machine $NODE again after they were killed
#   whole     succeed if all servers work together and nothing is left to repair
# with, in the environment,
#   ROOT      an empty folder on the local disk that belongs to this target alone
#   MNT       the mount point (an existing folder)
#   HOSTS     the addresses of the machines, in order. Each machine is a network namespace, and its address is up there
#   NODE      the number of the machine in which the action runs; the first one is 0
#   HOST      its address
#   SOURCES   the folder with these scripts and fusept.c
#   VARIANT   which of the script's variants (each script says which it has)
#   STARLING_ARGS   what else `starling up` is given (the do-nothing file system follows it)
# All machines share this machine's files, so $ROOT is the same on all. A script that knows only one machine ignores NODE.
# Processes that a script leaves behind inherit the caller's environment, which is how the benchmark finds them to measure and to stop
# them. A daemon that overwrites its environment (with its title) must be named in $ROOT/pids.

read -ra hosts <<< "${HOSTS:-}"

# host_of SERVER: the address of the machine of a server. Servers with numbers from 0 are spread over the machines in turn.
host_of() {
    echo "${hosts[$(($1 % ${#hosts[@]}))]}"
}

# is_here SERVER: true if the server is one of this machine.
is_here() {
    [ "$(host_of "$1")" = "$HOST" ]
}

# is_last: true on the last machine.
is_last() {
    [ "${hosts[-1]}" = "$HOST" ]
}

require() {
    local missing=()
    for program in "$@"; do
        command -v "$program" > /dev/null || missing+=("$program")
    done
    if [ ${#missing[@]} -gt 0 ]; then
        echo "not installed: ${missing[*]}"
        exit 1
    fi
}

# until_true SECONDS COMMAND...: repeats the command until it succeeds.
until_true() {
    local tries=$(($1 * 20))
    shift
    for _ in $(seq "$tries"); do
        "$@" > /dev/null 2>&1 && return 0
        sleep 0.05
    done
    echo "gave up waiting for: $*" >&2
    return 1
}

# until_gone SECONDS PID: waits for a process to end. One that has ended and waits for its parent has no program any more.
until_gone() {
    until_true "$1" bash -c "! readlink /proc/$2/exe"
}

# terminate FILE: ends the processes whose ids are listed in the file.
terminate() {
    [ -f "$1" ] || return 0
    local pid
    for pid in $(tac "$1"); do
        kill "$pid" 2> /dev/null || true
    done
    for pid in $(cat "$1"); do
        until_gone 20 "$pid" || kill -9 "$pid" 2> /dev/null || true
    done
    rm -f "$1"
}
