/*
 * Lets User Mode Linux 6.1 run on processors with AMX.
 *
 * It keeps the registers of its processes (the register set NT_X86_XSTATE of ptrace) in a buffer that is large enough for
 * AVX-512. With AMX the set is larger, and PTRACE_SETREGSET fails ("ptrace set fp regs failed, errno = 14"). This library
 * stands in front of ptrace. It reads and writes the whole set, and shows User Mode Linux the part that fits its buffer.
 * The rest keeps its first value: no program here uses it.
 *
 *     cc -O2 -shared -fPIC -o umlshim.so umlshim.c; LD_PRELOAD=./umlshim.so linux.uml ...
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define XSTATE 0x202
#define ROOM 65536

static char whole[ROOM] __attribute__((aligned(64)));
static size_t whole_bytes;

static long call(int request, int pid, void *address, void *data)
{
    return syscall(SYS_ptrace, request, pid, address, data);
}

static size_t fitting(const struct iovec *part)
{
    return part->iov_len < whole_bytes ? part->iov_len : whole_bytes;
}

static int read_whole(int pid)
{
    struct iovec all = { whole, sizeof whole };
    if (call(PTRACE_GETREGSET, pid, (void *)XSTATE, &all) < 0)
        return -1;
    whole_bytes = all.iov_len;
    return 0;
}

static int get(int pid, struct iovec *part)
{
    if (read_whole(pid) < 0)
        return -1;
    part->iov_len = fitting(part);
    memcpy(part->iov_base, whole, part->iov_len);
    return 0;
}

/* Writes what does not fit as it was read last. */
static int set(int pid, const struct iovec *part)
{
    static char written[ROOM] __attribute__((aligned(64)));
    if (whole_bytes == 0 && read_whole(pid) < 0)
        return -1;
    memcpy(written, whole, whole_bytes);
    memcpy(written, part->iov_base, fitting(part));
    struct iovec all = { written, whole_bytes };
    return call(PTRACE_SETREGSET, pid, (void *)XSTATE, &all) < 0 ? -1 : 0;
}

long ptrace(enum __ptrace_request request, ...)
{
    va_list arguments;
    va_start(arguments, request);
    int pid = va_arg(arguments, int);
    void *address = va_arg(arguments, void *);
    void *data = va_arg(arguments, void *);
    va_end(arguments);

    if (request == PTRACE_GETREGSET && (long)address == XSTATE)
        return get(pid, data);
    if (request == PTRACE_SETREGSET && (long)address == XSTATE)
        return set(pid, data);
    if (request != PTRACE_PEEKTEXT && request != PTRACE_PEEKDATA && request != PTRACE_PEEKUSER)
        return call(request, pid, address, data);
    /* The system call stores the word that glibc's function returns. */
    long word;
    if (call(request, pid, address, &word) < 0)
        return -1;
    errno = 0;
    return word;
}
