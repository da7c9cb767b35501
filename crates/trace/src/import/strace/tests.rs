use super::*;
use proptest::prelude::*;

fn read(text: &str) -> Result<Vec<Record>, ImportError> {
    Strace::new(text.as_bytes()).collect()
}

/// The records of calls, one per millisecond, of process 7 unless another one is named.
fn deeds(calls: &[&str]) -> Vec<(u64, Deed)> {
    let line = |(nth, call): (usize, &&str)| match call.split_once("@") {
        Some((pid, call)) => format!("{pid} 1700000000.{:03} {call}\n", nth),
        None => format!("7 1700000000.{:03} {call}\n", nth),
    };
    let text: String = calls.iter().enumerate().map(line).collect();
    read(&text).expect(&text).into_iter().map(|record| (record.file, record.deed)).collect()
}

fn read_of(file: u64, offset: u64, len: u64) -> (u64, Deed) {
    (file, Deed::Read { offset, len })
}

fn write_of(file: u64, offset: u64, len: u64) -> (u64, Deed) {
    (file, Deed::Write { offset, len })
}

#[test]
fn reads_and_writes_go_on_where_the_last_ones_ended() {
    let found = deeds(&[
        "openat(AT_FDCWD, \"/a\", O_RDONLY|O_CLOEXEC) = 3",
        "read(3, \"abc\"..., 4096) = 4096",
        "read(3, \"abc\"..., 4096) = 10",
        "read(3, \"\", 4096) = 0",
        "lseek(3, 0, SEEK_SET) = 0",
        "pread64(3, \"x\", 1, 77) = 1",
        "read(3, \"x\", 5) = 5",
        "openat(AT_FDCWD, \"/b\", O_WRONLY|O_CREAT|O_APPEND, 0644) = 4",
        "write(4, \"x\", 9) = 9",
        "pwrite64(4, \"x\", 1, 100) = 1",
        "write(4, \"x\", 9) = 9",
        "close(4) = 0",
        "write(4, \"x\", 9) = -1 EBADF (Bad file descriptor)",
        "readv(0, [{iov_base=\"a)\", iov_len=5}], 1) = 5",
    ]);
    let expected = [
        read_of(0, 0, 4096),
        read_of(0, 4096, 10),
        read_of(0, 77, 1),
        read_of(0, 0, 5),
        write_of(1, 0, 9),
        write_of(1, 100, 1),
        write_of(1, 101, 9),
    ];
    assert_eq!(found, expected);
}

#[test]
fn descriptors_are_followed_through_copies_forks_and_programs() {
    let found = deeds(&[
        "open(\"/a\", O_RDWR) = 3",
        "open(\"/b\", O_RDONLY|O_CLOEXEC) = 4",
        "dup2(3, 9) = 9",
        "read(9, \"x\", 10) = 10",
        // It shares the position in the file, but not the descriptors that it closes.
        "clone(child_stack=NULL, flags=CLONE_CHILD_CLEARTID|SIGCHLD, child_tidptr=0x7f) = 8",
        "8@read(3, \"x\", 10) = 10",
        "8@close(3) = 0",
        "8@read(4, \"x\", 1) = 1",
        "8@execve(\"/bin/true\", [\"true\"], 0x7ffe /* 3 vars */) = 0",
        "8@read(4, \"x\", 1) = 1",
        "8@read(9, \"x\", 1) = 1",
        "8@+++ exited with 0 +++",
        "read(3, \"x\", 1) = 1",
        "fcntl(3, F_DUPFD_CLOEXEC, 10) = 10",
        // A thread closes descriptors for all threads; it exists before the call that makes it
        // returns.
        "clone(child_stack=0x7f, flags=CLONE_VM|CLONE_FILES|CLONE_THREAD <unfinished ...>",
        "10@close(3) = 0",
        "<... clone resumed>) = 10",
        "read(3, \"x\", 1) = 1",
        "read(10, \"x\", 1) = 1",
    ]);
    let expected = [
        read_of(0, 0, 10),
        read_of(0, 10, 10),
        read_of(1, 0, 1),
        read_of(0, 20, 1),
        read_of(0, 21, 1),
        read_of(0, 22, 1),
    ];
    assert_eq!(found, expected);
}

#[test]
fn calls_in_two_parts_are_put_together() {
    let found = deeds(&[
        "openat(AT_FDCWD, \"/a\", O_RDWR <unfinished ...>",
        "8@openat(AT_FDCWD, \"/b\", O_RDWR) = 3",
        "<... openat resumed>) = 3",
        "read(3,  <unfinished ...>",
        "8@write(3, \"unfinished ...>\", 4) = 4",
        "<... read resumed>\"x\", 10) = 10",
        // Its first part came before strace attached.
        "9@<... read resumed>\"x\", 10) = 10",
    ]);
    assert_eq!(found, [write_of(0, 0, 4), read_of(1, 0, 10)]);
}

#[test]
fn the_first_process_is_the_one_that_is_not_new() {
    let text = "1700000000.1 openat(AT_FDCWD</home>, \"a\", O_RDONLY) = 3</home/a>\n\
        1700000000.2 clone(child_stack=NULL, flags=SIGCHLDstrace: Process 9 attached\n <unfinished ...>\n\
        [pid     9] 1700000000.3 read(3, \"x\", 5) = 5\n\
        [pid     8] 1700000000.3 <... clone resumed>) = 9\n\
        [pid     8] 1700000000.4 read(3, \"x\", 5) = 5\n\
        [pid     8] 1700000000.5 clone(child_stack=NULL, flags=SIGCHLDstrace: Process 10 attached\n\
        , child_tidptr=0x7f) = 10\n\
        [pid    10] 1700000000.5 read(3, \"x\", 5) = 5\n\
        [pid     8] 1700000000.5 unlink(\"a\") = 0\n\
        [pid     8] 1700000000.6 +++ exited with 0 +++\n";
    let found: Vec<(u64, Deed)> = read(text).expect("read").iter().map(|record| (record.file, record.deed)).collect();
    assert_eq!(found, [read_of(0, 0, 5), read_of(0, 5, 5), read_of(0, 10, 5), (0, Deed::Delete)]);
}

#[test]
fn names_are_followed_and_what_is_removed_or_emptied_is_gone() {
    let found = deeds(&[
        "chdir(\"/home/ann\") = 0",
        "openat(AT_FDCWD, \"x.tmp\", O_WRONLY|O_CREAT|O_TRUNC, 0644) = 3",
        "write(3, \"x\", 7) = 7",
        "openat(AT_FDCWD, \"/home/ann/x\", O_RDONLY) = 4",
        "read(4, \"x\", 3) = 3",
        "rename(\"x.tmp\", \"./x\") = 0",
        "read(4, \"x\", 3) = 3",
        "open(\"x\", O_RDONLY) = 5",
        "read(5, \"x\", 7) = 7",
        "open(\"x\", O_WRONLY|O_TRUNC) = 6",
        "ftruncate(6, 0) = 0",
        "write(6, \"x\", 2) = 2",
        "ftruncate(6, 1) = 0",
        "truncate(\"x\", 0) = 0",
        "openat(AT_FDCWD, \"/home\", O_RDONLY|O_DIRECTORY) = 7",
        "linkat(7, \"ann/x\", AT_FDCWD, \"y\", 0) = 0",
        "unlinkat(7, \"ann/x\", 0) = 0",
        "unlinkat(AT_FDCWD, \"d\", AT_REMOVEDIR) = 0",
        "unlink(\"y\") = 0",
        "unlink(\"y\") = -1 ENOENT (No such file or directory)",
        "open(\"/dev/null\", O_RDWR) = 8",
        "write(8, \"x\", 2) = 2",
    ]);
    let expected = [
        write_of(0, 0, 7),
        read_of(1, 0, 3),
        (1, Deed::Delete),
        read_of(1, 3, 3),
        read_of(0, 0, 7),
        (0, Deed::Delete),
        write_of(0, 0, 2),
        (0, Deed::Delete),
        (0, Deed::Delete),
    ];
    assert_eq!(found, expected);
}

#[test]
fn maps_and_copies_count() {
    let found = deeds(&[
        "open(\"/lib\", O_RDONLY) = 3",
        "mmap(NULL, 8192, PROT_READ, MAP_PRIVATE, 3, 0x1000) = 0x7f0000000000",
        "mmap(NULL, 8192, PROT_READ, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0) = 0x7f0000000000",
        "open(\"/out\", O_WRONLY|O_CREAT, 0644) = 4",
        "copy_file_range(3, [5], 4, NULL, 100, 0) = 60",
        "copy_file_range(3, [65], 4, NULL, 100, 0) = 40",
        "sendfile(4, 3, NULL, 10) = 10",
        "read(5</shown, by, strace>, \"x\", 3) = 3",
        "write(6<socket:[12]>, \"x\", 3) = 3",
        "write(2</dev/pts/0<char 136:0>>, \"x\", 3) = 3",
    ]);
    let expected = [
        read_of(0, 4096, 8192),
        read_of(0, 5, 60),
        write_of(1, 0, 60),
        read_of(0, 65, 40),
        write_of(1, 60, 40),
        read_of(0, 0, 10),
        write_of(1, 100, 10),
        read_of(2, 0, 3),
    ];
    assert_eq!(found, expected);
}

#[test]
fn times_are_read_in_each_of_straces_ways() {
    let times = |stamps: &[&str]| -> Vec<u64> {
        let open = |stamp: &&str| format!("{stamp} read(0</a>, \"x\", 1) = 1\n");
        let text: String = stamps.iter().map(open).collect();
        read(&text).expect(&text).iter().map(|record| record.time_us).collect()
    };
    assert_eq!(times(&["1700000000.000001", "1700000001.5"]), [0, 1_499_999]);
    assert_eq!(times(&["    0.5", "     0.25", "     0.25"]), [0, 250_000, 500_000]);
    let days = ["23:59:59.5", "00:00:01.5", "11:00:00", "22:00:00", "00:00:00"];
    assert_eq!(times(&days), [0, 2_000_000, 39_600_500_000, 79_200_500_000, 86_400_500_000]);
    assert_eq!(times(&["10:00:00", "10:00:01"]), [0, 1_000_000]);
    assert_eq!(times(&["1700000000.5 (+     0.000000)", "1700000001.5 (+     1.000000)"]), [0, 1_000_000]);
    // A clock that goes back a little.
    assert_eq!(times(&["1700000001.5", "1700000001.4", "1700000001.6"]), [0, 0, 100_000]);
}

#[test]
fn the_beginning_is_known_where_times_are_counted_from_1970() {
    for (stamp, begun_us) in [("1700000000.5", Some(1_700_000_000_500_000)), ("0.5", None), ("10:00:00", None)] {
        let text = format!("{stamp} read(0</a>, \"x\", 1) = 1\n");
        let mut strace = Strace::new(text.as_bytes());
        assert_eq!((strace.begun_us(), strace.by_ref().count(), strace.begun_us()), (None, 1, begun_us), "{stamp}");
    }
}

#[test]
fn what_is_wrong_is_said_with_the_line() {
    let good = "7 1700000005.0 getpid() = 7\n";
    for (line, said) in [
        ("7 read(3, \"x\", 1) = 1\n", "line 2: it has no time"),
        ("dear reader\n", "line 2: not a line of strace"),
        ("7 1700000001.0 getpid() = 7\n", "line 2: earlier"),
        ("7 1700000006.0 read(3, \"x\n", "line 2: the call breaks off"),
        ("7 1700000006.0 read(3, \"x", "line 2: it breaks off"),
        ("7 25:00:00 getpid() = 7\n", "line 2: not a time"),
        ("7 1.1.1 getpid() = 7\n", "line 2: not a time"),
        ("7 0.5 getpid() = 7\n", "line 2: 0.5 is another kind of time"),
        ("7 10:00:00 getpid() = 7\n", "line 2: 10:00:00 is another kind of time"),
    ] {
        let error = read(&format!("{good}{line}")).expect_err(line).to_string();
        assert!(error.starts_with(said), "{line}: {error}");
    }
    assert!(matches!(read(""), Err(ImportError::Empty)));
    assert!(read(good).expect("nothing was done").is_empty());
}

#[test]
fn regression_ordinary_lines_are_not_refused() {
    let found = deeds(&[
        "mmap(NULL, 2097152, PROT_READ, MAP_PRIVATE|MAP_ANONYMOUS|MAP_HUGETLB|21<<MAP_HUGE_SHIFT, -1, 0) = 0x7f0000000000",
        "8@???( <unfinished ...>",
        "8@<... ??? resumed>) = ?",
        "9@???() = ?",
        "9@???( <unfinished ...>",
        "9@+++ killed by SIGKILL +++",
        "read(3</a>, \"x\", 5) = 5",
    ]);
    assert_eq!(found, [read_of(0, 0, 5)]);
}

#[test]
fn folders_are_followed_wherever_they_are() {
    let found = deeds(&[
        "chdir(\"/home/ann\") = 0",
        "chdir(\"/\") = 0",
        "open(\"a\", O_RDONLY) = 3",
        "read(3, \"x\", 1) = 1",
        "open(\"/a\", O_RDONLY) = 4",
        "read(4, \"x\", 1) = 1",
        "chdir(\"/proc/self\") = 0",
        "open(\"maps\", O_RDONLY) = 5",
        "read(5, \"x\", 1) = 1",
        "chdir(\"../../home\") = 0",
        "fchdir(9</q>) = 0",
        "open(\"b\", O_RDONLY) = 5",
        "read(5, \"x\", 1) = 1",
        "read(6</q/b>, \"x\", 1) = 1",
        "fchdir(9</dev>) = 0",
        "open(\"null\", O_RDWR) = 7",
        "write(7, \"x\", 1) = 1",
    ]);
    let expected = [read_of(0, 0, 1), read_of(0, 0, 1), read_of(1, 0, 1), read_of(1, 0, 1)];
    assert_eq!(found, expected);
}

#[test]
fn what_is_shown_counts_for_more_than_what_was_followed() {
    let open = "open(\"/a\", O_RDWR) = 3";
    for closes in [
        &["close_range(3, 4294967295, 0) = 0"][..],
        &["close_range(2, ~0U, 0) = 0"],
        &["close_range(3, 3, CLOSE_RANGE_CLOEXEC) = 0", "execve(\"/b\", [\"b\"], 0x7ffe /* 3 vars */) = 0"],
        // It was closed by a call that strace was told not to show.
        &["pipe2([3, 4], O_CLOEXEC) = 0"],
        &["pipe([2<pipe:[7]>, 3<pipe:[7]>]) = 0"],
        &["socketpair(AF_UNIX, SOCK_STREAM, 0, [3, 4]) = 0"],
        &["socket(AF_INET, SOCK_STREAM, IPPROTO_TCP) = 3"],
        &["accept4(5, NULL, NULL, SOCK_CLOEXEC) = 3"],
        &["eventfd2(0, EFD_CLOEXEC) = 3"],
        &["memfd_create(\"x\", MFD_CLOEXEC) = 3"],
        &["read(3<socket:[12]>, \"x\", 3) = 3"],
        &["write(3</dev/null<char 1:3>>, \"x\", 3) = 3"],
        &["read(3</memfd:x (deleted)>, \"x\", 3) = 3"],
    ] {
        assert_eq!(deeds(&[&[open], closes, &["read(3, \"x\", 10) = 10"]].concat()), [], "{closes:?}");
    }
    let found = deeds(&[
        open,
        "read(3</a>, \"x\", 10) = 10",
        // A file that was moved, and then removed, is the same file.
        "rename(\"/a\", \"/b\") = 0",
        "read(3</b>, \"x\", 10) = 10",
        "unlink(\"/b\") = 0",
        "read(3</b (deleted)>, \"x\", 10) = 10",
        "read(3</b>(deleted), \"x\", 10) = 10",
        // Another file.
        "read(3</c>, \"x\", 10) = 10",
        "read(3, \"x\", 10) = 10",
        "read(4</memfd:x (deleted)>, \"x\", 10) = 10",
    ]);
    let expected = [
        read_of(0, 0, 10),
        read_of(0, 10, 10),
        (0, Deed::Delete),
        read_of(0, 20, 10),
        read_of(0, 30, 10),
        read_of(1, 0, 10),
        read_of(1, 10, 10),
    ];
    assert_eq!(found, expected);
    // Of two processes that shared the descriptor, one no longer does.
    let found = deeds(&[
        open,
        "clone(child_stack=0x7f, flags=CLONE_VM|CLONE_FILES|CLONE_THREAD) = 8",
        "8@close_range(3, 3, CLOSE_RANGE_UNSHARE) = 0",
        "8@read(3, \"x\", 1) = 1",
        "read(3, \"x\", 1) = 1",
    ]);
    assert_eq!(found, [read_of(0, 0, 1)]);
}

#[test]
fn files_without_names_are_told_apart() {
    let found = deeds(&[
        "open(\"/tmp\", O_RDWR|O_TMPFILE, 0600) = 3",
        "open(\"/tmp\", O_RDWR|O_TMPFILE, 0600) = 4",
        "openat(AT_FDCWD, \"/tmp\", O_RDWR|O_TMPFILE, 0600) = 5</tmp/#7 (deleted)>",
        "write(3, \"x\", 1) = 1",
        "write(4, \"x\", 1) = 1",
        "write(5</tmp/#7 (deleted)>, \"x\", 1) = 1",
        "open(\"/tmp\", O_RDONLY|O_DIRECTORY) = 6",
        "openat(6, \"x\", O_RDONLY) = 7",
        "read(7</tmp/x>, \"x\", 1) = 1",
    ]);
    let of = |nth: usize| found[nth].0;
    assert_eq!(found.len(), 4, "{found:?}");
    assert!(of(0) != of(1) && of(1) != of(2) && of(0) != of(2) && of(3) > of(2), "{found:?}");
}

#[test]
fn what_a_program_maps_again_was_read_once() {
    let found = deeds(&[
        "open(\"/lib\", O_RDONLY) = 3",
        // As libraries are loaded: the whole file, and then each part again.
        "mmap(NULL, 40960, PROT_READ, MAP_PRIVATE|MAP_DENYWRITE, 3, 0) = 0x7f0000000000",
        "mmap(0x7f0000002000, 8192, PROT_READ|PROT_EXEC, MAP_PRIVATE|MAP_FIXED|MAP_DENYWRITE, 3, 0x2000) = 0x7f0000002000",
        "mmap(0x7f0000002000, 8192, PROT_READ, MAP_PRIVATE|MAP_FIXED|MAP_DENYWRITE, 3, 0x9000) = 0x7f0000002000",
        "execve(\"/b\", [\"b\"], 0x7ffe /* 3 vars */) = 0",
        "mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, 3, 0) = 0x7f0000000000",
    ]);
    assert_eq!(found, [read_of(0, 0, 40960), read_of(0, 40960, 4096), read_of(0, 0, 4096)]);
}

#[test]
fn an_offset_of_minus_one_is_where_the_last_bytes_ended() {
    let found = deeds(&[
        "open(\"/a\", O_RDWR) = 3",
        "preadv2(3, [{iov_base=\"x\", iov_len=5}], 1, -1, 0) = 5",
        "pwritev2(3, [{iov_base=\"x\", iov_len=5}], 1, -1, 0) = 5",
        "preadv2(3, [{iov_base=\"x\", iov_len=5}], 1, 2, 0) = 5",
    ]);
    assert_eq!(found, [read_of(0, 0, 5), write_of(0, 5, 5), read_of(0, 2, 5)]);
}

proptest! {
    #[test]
    fn prop_garbage_is_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        Strace::new(&bytes[..]).for_each(drop);
    }

    /// Calls with arguments of all kinds, right and wrong.
    #[test]
    fn prop_whatever_calls_say_records_are_such_as_can_be_kept(
        calls in prop::collection::vec((0usize..40, prop::collection::vec(0usize..20, 0..7), 0usize..8, 1u32..4), 0..40),
    ) {
        const NAMES: [&str; 40] = [
            "open", "openat", "creat", "read", "write", "pread64", "pwrite64", "lseek", "_llseek", "close", "dup", "dup2", "dup3",
            "fcntl", "fork", "clone", "clone3", "execve", "unlink", "unlinkat", "rename", "renameat2", "link", "linkat",
            "truncate", "ftruncate", "mmap", "sendfile", "copy_file_range", "chdir", "fchdir", "readv", "openat2", "splice",
            "preadv2", "write", "read", "open", "open", "exit",
        ];
        const ARGS: [&str; 20] = [
            "3", "4", "\"/a\"", "\"b\"", "AT_FDCWD", "O_RDWR|O_TRUNC", "O_APPEND", "18446744073709551615", "9223372036854775807",
            "-1", "NULL", "[5]", "\"/a/b\"", "\"..\"", "3</x>", "0", "CLONE_FILES", "F_DUPFD", "{a=[1", "\"cut\"...",
        ];
        const RESULTS: [&str; 8] = ["0", "3", "4", "100", "9223372036854775807", "-1 EIO", "?", "5</q>"];
        let line = |(name, args, result, pid): &(usize, Vec<usize>, usize, u32)| {
            let args: Vec<&str> = args.iter().map(|arg| ARGS[*arg]).collect();
            format!("{pid} 1700000000.0 {}({}) = {}\n", NAMES[*name], args.join(", "), RESULTS[*result])
        };
        let text: String = calls.iter().map(line).collect();
        let mut writer = crate::format::Writer::new(Vec::new(), "a test").expect("begun");
        for record in Strace::new(text.as_bytes()).map_while(Result::ok) {
            writer.add(&record).expect("it can be kept");
        }
    }
}
