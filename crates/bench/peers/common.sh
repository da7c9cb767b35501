# What the peers' scripts share. A script is called as `SCRIPT ACTION`, where ACTION is one of
#   check     succeed if all programs are there; otherwise say on stdout what is missing
#   start     start the servers, with everything they keep under $ROOT
#   mount     mount at $MNT and return once mounted
#   unmount   unmount $MNT and return once the client is gone
#   stop      stop the servers
# with, in the environment,
#   ROOT      an empty folder on the local disk that belongs to this target alone
#   MNT       the mount point (an existing folder)
#   HOST      an address that is up in the target's own network namespace, in which every action runs
#   SOURCES   the folder with these scripts and fusept.c
#   VARIANT   which of the script's variants (each script says which it has)
#   STARLING_ARGS   what else `starling up` is given (the do-nothing file system follows it)
# Processes that a script leaves behind inherit the caller's environment, which is how the benchmark finds them to measure and to stop
# them. A daemon that overwrites its environment (with its title) must be named in $ROOT/pids.

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
