/* A FUSE file system that does nothing: every request is passed to a directory of the local disk.
 *
 * It is the yardstick for what FUSE itself costs. To be a fair one it answers all that Starling's front end answers:
 * extended attributes too, so that the kernel sends it the same GETXATTR per write (security.capability) and the same
 * requests for ACLs (system.posix_acl_*), and takes requests as large (1 MiB).
 *
 * Usage: fusept -f [-d] -o base=DIR[,writeback][,acl][,timeout=SECONDS] MOUNTPOINT
 *   writeback   the kernel's write-back cache
 *   acl         POSIX ACLs, which the kernel then reads and checks (needs default_permissions)
 *   timeout     how long the kernel may keep names and attributes (default 1 s, which is also libfuse's)
 * -d prints every request, which is how the request table is counted.
 * Build: cc -O2 -o fusept fusept.c $(pkg-config --cflags --libs fuse3)
 */
#define FUSE_USE_VERSION 31
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse.h>
#include <limits.h>
#include <linux/fuse.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <unistd.h>

static struct options {
    char *base;
    int writeback;
    int acl;
    double timeout;
} options = {.timeout = 1.0};

/* The base, opened once (for the *at calls), and its full name (for the xattr calls, which have no *at form in libc). */
static int base_fd;
static char base_path[PATH_MAX];

#define RELATIVE(path) ((path)[1] ? (path) + 1 : ".")
#define RESULT(call) return (call) < 0 ? -errno : 0

static int full_path(char out[PATH_MAX], const char *path)
{
    int n = snprintf(out, PATH_MAX, "%s%s", base_path, path);
    return n < 0 || n >= PATH_MAX ? -ENAMETOOLONG : 0;
}

static int do_getattr(const char *path, struct stat *st, struct fuse_file_info *fi)
{
    RESULT(fi ? fstat(fi->fh, st) : fstatat(base_fd, RELATIVE(path), st, AT_SYMLINK_NOFOLLOW));
}

static int do_readlink(const char *path, char *buffer, size_t size)
{
    ssize_t n = readlinkat(base_fd, RELATIVE(path), buffer, size - 1);
    if (n < 0)
        return -errno;
    buffer[n] = 0;
    return 0;
}

static int do_mkdir(const char *path, mode_t mode) { RESULT(mkdirat(base_fd, RELATIVE(path), mode)); }
static int do_unlink(const char *path) { RESULT(unlinkat(base_fd, RELATIVE(path), 0)); }
static int do_rmdir(const char *path) { RESULT(unlinkat(base_fd, RELATIVE(path), AT_REMOVEDIR)); }
static int do_symlink(const char *target, const char *path) { RESULT(symlinkat(target, base_fd, RELATIVE(path))); }

static int do_rename(const char *from, const char *to, unsigned int flags)
{
    RESULT(renameat2(base_fd, RELATIVE(from), base_fd, RELATIVE(to), flags));
}

static int do_link(const char *from, const char *to)
{
    RESULT(linkat(base_fd, RELATIVE(from), base_fd, RELATIVE(to), 0));
}

static int do_chmod(const char *path, mode_t mode, struct fuse_file_info *fi)
{
    (void)fi;
    RESULT(fchmodat(base_fd, RELATIVE(path), mode, 0));
}

static int do_chown(const char *path, uid_t uid, gid_t gid, struct fuse_file_info *fi)
{
    (void)fi;
    RESULT(fchownat(base_fd, RELATIVE(path), uid, gid, AT_SYMLINK_NOFOLLOW));
}

static int do_truncate(const char *path, off_t size, struct fuse_file_info *fi)
{
    if (fi)
        RESULT(ftruncate(fi->fh, size));
    int fd = openat(base_fd, RELATIVE(path), O_WRONLY);
    if (fd < 0)
        return -errno;
    int result = ftruncate(fd, size) ? -errno : 0;
    close(fd);
    return result;
}

static int do_utimens(const char *path, const struct timespec times[2], struct fuse_file_info *fi)
{
    (void)fi;
    RESULT(utimensat(base_fd, RELATIVE(path), times, AT_SYMLINK_NOFOLLOW));
}

/* With write-back the kernel reads through write-only descriptors, and appends by offset. */
static int open_flags(int flags)
{
    if (options.writeback) {
        flags &= ~O_APPEND;
        if ((flags & O_ACCMODE) == O_WRONLY)
            flags = (flags & ~O_ACCMODE) | O_RDWR;
    }
    return flags;
}

static int do_open(const char *path, struct fuse_file_info *fi)
{
    int fd = openat(base_fd, RELATIVE(path), open_flags(fi->flags));
    if (fd < 0)
        return -errno;
    fi->fh = fd;
    fi->keep_cache = 1;
    return 0;
}

static int do_create(const char *path, mode_t mode, struct fuse_file_info *fi)
{
    int fd = openat(base_fd, RELATIVE(path), open_flags(fi->flags) | O_CREAT, mode);
    if (fd < 0)
        return -errno;
    fi->fh = fd;
    return 0;
}

static int do_read_buf(const char *path, struct fuse_bufvec **out, size_t size, off_t offset, struct fuse_file_info *fi)
{
    (void)path;
    struct fuse_bufvec *source = malloc(sizeof *source);
    if (!source)
        return -ENOMEM;
    *source = FUSE_BUFVEC_INIT(size);
    source->buf[0].flags = FUSE_BUF_IS_FD | FUSE_BUF_FD_SEEK;
    source->buf[0].fd = fi->fh;
    source->buf[0].pos = offset;
    *out = source;
    return 0;
}

static int do_write_buf(const char *path, struct fuse_bufvec *source, off_t offset, struct fuse_file_info *fi)
{
    (void)path;
    struct fuse_bufvec target = FUSE_BUFVEC_INIT(fuse_buf_size(source));
    target.buf[0].flags = FUSE_BUF_IS_FD | FUSE_BUF_FD_SEEK;
    target.buf[0].fd = fi->fh;
    target.buf[0].pos = offset;
    return fuse_buf_copy(&target, source, 0);
}

static int do_statfs(const char *path, struct statvfs *st)
{
    (void)path;
    RESULT(fstatvfs(base_fd, st));
}

static int do_release(const char *path, struct fuse_file_info *fi)
{
    (void)path;
    close(fi->fh);
    return 0;
}

static int do_fsync(const char *path, int data_only, struct fuse_file_info *fi)
{
    (void)path;
    RESULT(data_only ? fdatasync(fi->fh) : fsync(fi->fh));
}

static int do_fsyncdir(const char *path, int data_only, struct fuse_file_info *fi)
{
    (void)fi;
    int fd = openat(base_fd, RELATIVE(path), O_RDONLY | O_DIRECTORY);
    if (fd < 0)
        return -errno;
    int result = (data_only ? fdatasync(fd) : fsync(fd)) ? -errno : 0;
    close(fd);
    return result;
}

static int do_readdir(const char *path, void *buffer, fuse_fill_dir_t fill, off_t offset, struct fuse_file_info *fi,
                      enum fuse_readdir_flags flags)
{
    (void)offset;
    (void)fi;
    int fd = openat(base_fd, RELATIVE(path), O_RDONLY | O_DIRECTORY);
    if (fd < 0)
        return -errno;
    DIR *dir = fdopendir(fd);
    if (!dir) {
        int error = errno;
        close(fd);
        return -error;
    }
    struct dirent *entry;
    while ((entry = readdir(dir))) {
        struct stat st = {.st_ino = entry->d_ino, .st_mode = (mode_t)entry->d_type << 12};
        enum fuse_fill_dir_flags fill_flags = 0;
        if ((flags & FUSE_READDIR_PLUS) && !fstatat(fd, entry->d_name, &st, AT_SYMLINK_NOFOLLOW))
            fill_flags = FUSE_FILL_DIR_PLUS;
        if (fill(buffer, entry->d_name, &st, 0, fill_flags))
            break;
    }
    closedir(dir);
    return 0;
}

static int do_getxattr(const char *path, const char *name, char *value, size_t size)
{
    char full[PATH_MAX];
    int error = full_path(full, path);
    if (error)
        return error;
    ssize_t n = lgetxattr(full, name, value, size);
    return n < 0 ? -errno : (int)n;
}

static int do_setxattr(const char *path, const char *name, const char *value, size_t size, int flags)
{
    char full[PATH_MAX];
    int error = full_path(full, path);
    if (error)
        return error;
    RESULT(lsetxattr(full, name, value, size, flags));
}

static int do_listxattr(const char *path, char *list, size_t size)
{
    char full[PATH_MAX];
    int error = full_path(full, path);
    if (error)
        return error;
    ssize_t n = llistxattr(full, list, size);
    return n < 0 ? -errno : (int)n;
}

static int do_removexattr(const char *path, const char *name)
{
    char full[PATH_MAX];
    int error = full_path(full, path);
    if (error)
        return error;
    RESULT(lremovexattr(full, name));
}

/* libfuse answers the kernel's requests through this, and takes ours instead of libc's. libfuse 3.14 does
 * not know FUSE_HANDLE_KILLPRIV_V2, which Starling's front end asks for and without which the kernel sends a GETXATTR
 * with every write(2) rather than with a file's first. So the flag is put into the first answer, the one to INIT. */
ssize_t writev(int fd, const struct iovec *parts, int count)
{
    static int init_answered;
    if (!init_answered && count == 2 && parts[1].iov_len >= offsetof(struct fuse_init_out, max_background)) {
        struct fuse_init_out *answer = parts[1].iov_base;
        if (answer->major == FUSE_KERNEL_VERSION)
            answer->flags |= FUSE_HANDLE_KILLPRIV_V2;
        init_answered = 1;
    }
    return syscall(SYS_writev, fd, parts, count);
}

static void *do_init(struct fuse_conn_info *connection, struct fuse_config *config)
{
    config->use_ino = 1;
    config->entry_timeout = config->attr_timeout = options.timeout;
    if (options.writeback)
        connection->want |= FUSE_CAP_WRITEBACK_CACHE;
    if (options.acl)
        connection->want |= FUSE_CAP_POSIX_ACL;
    if (connection->max_write < 1 << 20)
        connection->max_write = 1 << 20;
    connection->max_readahead = 1 << 20;
    return NULL;
}

static const struct fuse_operations operations = {
    .init = do_init,
    .getattr = do_getattr,
    .readlink = do_readlink,
    .mkdir = do_mkdir,
    .unlink = do_unlink,
    .rmdir = do_rmdir,
    .symlink = do_symlink,
    .rename = do_rename,
    .link = do_link,
    .chmod = do_chmod,
    .chown = do_chown,
    .truncate = do_truncate,
    .utimens = do_utimens,
    .open = do_open,
    .create = do_create,
    .read_buf = do_read_buf,
    .write_buf = do_write_buf,
    .statfs = do_statfs,
    .release = do_release,
    .fsync = do_fsync,
    .fsyncdir = do_fsyncdir,
    .readdir = do_readdir,
    .getxattr = do_getxattr,
    .setxattr = do_setxattr,
    .listxattr = do_listxattr,
    .removexattr = do_removexattr,
};

static const struct fuse_opt option_spec[] = {
    {"base=%s", offsetof(struct options, base), 0},
    {"writeback", offsetof(struct options, writeback), 1},
    {"acl", offsetof(struct options, acl), 1},
    {"timeout=%lf", offsetof(struct options, timeout), 0},
    FUSE_OPT_END,
};

int main(int argc, char **argv)
{
    struct fuse_args args = FUSE_ARGS_INIT(argc, argv);
    if (fuse_opt_parse(&args, &options, option_spec, NULL) || !options.base) {
        fprintf(stderr, "usage: fusept -f [-d] -o base=DIR[,writeback][,acl][,timeout=SECONDS] MOUNTPOINT\n");
        return 2;
    }
    base_fd = open(options.base, O_RDONLY | O_DIRECTORY);
    if (base_fd < 0 || !realpath(options.base, base_path)) {
        perror(options.base);
        return 1;
    }
    umask(0);
    return fuse_main(args.argc, args.argv, &operations, NULL);
}
