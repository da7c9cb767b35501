//! Counts requests by kind, for the table of requests per operation and for statistics.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! requests {
    ($($variant:ident = $name:literal,)*) => {
        /// The kinds of requests that the kernel sends.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Op { $($variant,)* }
        const NAMES: &[&str] = &[$($name,)*];
    };
}

requests! {
    Lookup = "lookup", Forget = "forget", Getattr = "getattr", Setattr = "setattr", Readlink = "readlink",
    Mknod = "mknod", Mkdir = "mkdir", Unlink = "unlink", Rmdir = "rmdir", Symlink = "symlink", Rename = "rename",
    Link = "link", Open = "open", Read = "read", Write = "write", Flush = "flush", Release = "release",
    Fsync = "fsync", Opendir = "opendir", Readdir = "readdir", Readdirplus = "readdirplus",
    Releasedir = "releasedir", Fsyncdir = "fsyncdir", Statfs = "statfs", Setxattr = "setxattr",
    Getxattr = "getxattr", Listxattr = "listxattr", Removexattr = "removexattr", Access = "access",
    Create = "create", Fallocate = "fallocate", Lseek = "lseek", CopyFileRange = "copy_file_range",
    Getlk = "getlk", Setlk = "setlk",
}

impl Op {
    /// The name of the kind in statistics.
    pub(crate) fn name(self) -> &'static str {
        NAMES[self as usize]
    }
}

/// One counter per kind. Sums are exact; a count is not ordered with other memory accesses.
pub(crate) struct Counters([AtomicU64; NAMES.len()]);

impl Counters {
    /// All counters at zero.
    pub(crate) fn new() -> Self {
        Counters(std::array::from_fn(|_| AtomicU64::new(0)))
    }
    /// Counts one request.
    pub(crate) fn add(&self, op: Op) {
        self.0[op as usize].fetch_add(1, Ordering::Relaxed);
    }
    /// All counts, by name, in a fixed order, zeroes included.
    pub(crate) fn snapshot(&self) -> Vec<(&'static str, u64)> {
        NAMES.iter().zip(&self.0).map(|(name, n)| (*name, n.load(Ordering::Relaxed))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_counted_under_its_own_name() {
        let counters = Counters::new();
        counters.add(Op::Lookup);
        counters.add(Op::CopyFileRange);
        counters.add(Op::CopyFileRange);
        let counted: Vec<_> = counters.snapshot().into_iter().filter(|(_, n)| *n > 0).collect();
        assert_eq!(counted, [(Op::Lookup.name(), 1), ("copy_file_range", 2)]);
    }
}
