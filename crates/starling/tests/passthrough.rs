//! Cached files that the kernel reads by itself, on real roaming mounts. The kernel does so only
//! for root, and from Linux 6.9 on. Elsewhere these tests say so and check nothing.

mod common;
#[path = "common/roaming.rs"]
mod roaming;

use roaming::{Home, Laptop};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const LONG: Duration = Duration::from_secs(60);
const LEN: usize = 2 << 20;

fn bytes(seed: u8) -> Vec<u8> {
    (0..LEN).map(|i| (i as u32 * 7 / 5) as u8 ^ seed).collect()
}

/// A mount with one long file in its cache, `file`, and its home.
struct Site {
    laptop: Laptop,
    home: Home,
    _below: TempDir,
}

impl Site {
    /// `None` where the kernel does not read files itself.
    fn new() -> Option<Site> {
        let below = tempfile::tempdir().expect("folder");
        let home = Home::serve(below.path());
        fs::write(home.exported.join("file"), bytes(0)).expect("write");
        let laptop = Laptop::mount(&home, below.path(), "laptop");
        let site = Site { laptop, home, _below: below };
        if site.laptop.ask(&["status"])["reads"] != "passthrough" {
            eprintln!("left out: the kernel does not read files itself here");
            return None;
        }
        assert!(fs::read(site.file()).expect("read") == bytes(0));
        Some(site)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.laptop.mountpoint.join(name)
    }

    fn file(&self) -> PathBuf {
        self.path("file")
    }

    fn open(&self) -> Reader {
        Reader { file: File::open(self.file()).expect("open"), process: self.laptop.process() }
    }

    /// A program that has the file open, and that the kernel serves by itself. The kernel cannot
    /// while the mount has not heard that the file was closed before.
    fn reader(&self) -> Reader {
        let mut passed = None;
        self.laptop.wait(LONG, "the kernel reads it itself", |_| {
            let reader = self.open();
            passed = reader.is_passed().then_some(reader);
            passed.is_some()
        });
        passed.expect("it was waited for")
    }

    /// Waits until the home has this in `file`.
    fn wait_for_home(&self, wanted: &[u8]) {
        self.laptop.wait_until_home(LONG);
        let home = self.home.exported.join("file");
        let deadline = Instant::now() + LONG;
        loop {
            let found = fs::read(&home).expect("read");
            if found == wanted {
                return;
            }
            if Instant::now() > deadline {
                let at = found.iter().zip(wanted).position(|(found, wanted)| found != wanted);
                let part = |all: &[u8]| at.map(|at| all[at..].iter().take(16).copied().collect::<Vec<u8>>());
                let (found_part, wanted_part) = (part(&found), part(wanted));
                panic!(
                    "the home has {found_part:?} at {at:?}, and not {wanted_part:?}; lengths {}, {}; {}",
                    found.len(),
                    wanted.len(),
                    self.laptop.ask(&["status"])
                );
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

struct Reader {
    file: File,
    process: u32,
}

impl Reader {
    fn all(&self) -> Vec<u8> {
        let mut all = Vec::new();
        (&self.file).seek(SeekFrom::Start(0)).expect("seek");
        (&self.file).read_to_end(&mut all).expect("read");
        all
    }

    /// True if reading it makes the process write nothing to the kernel.
    fn is_passed(&self) -> bool {
        // SAFETY: it takes numbers only.
        assert_eq!(unsafe { libc::posix_fadvise(self.file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) }, 0);
        let before = self.written();
        let len = self.all().len() as u64;
        self.written() - before < len / 2
    }

    /// Bytes that the process has written anywhere.
    fn written(&self) -> u64 {
        let counts = fs::read_to_string(format!("/proc/{}/io", self.process)).expect("counts");
        let line = counts.lines().find_map(|line| line.strip_prefix("wchar: ")).expect("a count");
        line.parse().expect("a number")
    }
}

struct Mapping {
    at: *mut u8,
    len: usize,
}

impl Mapping {
    fn new(file: &File, len: usize, may: i32, sharing: i32) -> std::io::Result<Mapping> {
        // SAFETY: a new mapping overlaps no other memory.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, may, sharing, file.as_raw_fd(), 0) };
        if at == libc::MAP_FAILED { Err(std::io::Error::last_os_error()) } else { Ok(Mapping { at: at.cast(), len }) }
    }

    fn get(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= self.len);
        // SAFETY: it is within the mapping, which is readable.
        (at..at + len).map(|at| unsafe { self.at.add(at).read_volatile() }).collect()
    }

    fn sync(&self) {
        // SAFETY: it is the mapping that was made.
        assert_eq!(unsafe { libc::msync(self.at.cast(), self.len, libc::MS_SYNC) }, 0);
    }

    fn put(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len);
        // SAFETY: it is within the mapping, which the caller has made writable.
        bytes.iter().enumerate().for_each(|(i, byte)| unsafe { self.at.add(at + i).write_volatile(*byte) });
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it is the mapping that was made.
        unsafe { libc::munmap(self.at.cast(), self.len) };
    }
}

fn append(path: &Path, more: &[u8]) {
    OpenOptions::new().append(true).open(path).expect("open").write_all(more).expect("write");
}

#[test]
fn whoever_has_a_file_open_sees_what_is_written_here() {
    let Some(site) = Site::new() else { return };
    let (reader, mut now) = (site.reader(), bytes(0));
    assert!(reader.all() == now);
    append(&site.file(), b"more");
    now.extend(b"more");
    assert!(reader.all() == now);
    assert_eq!(reader.file.metadata().expect("stat").len(), now.len() as u64);
    for copy in [site.path("copy"), site.laptop.cache.join("copy")] {
        fs::copy(site.file(), &copy).expect("copy");
        assert!(fs::read(copy).expect("read") == now);
    }
    let writer = OpenOptions::new().write(true).open(site.file()).expect("open");
    writer.write_all_at(b"in the middle", 1000).expect("write");
    now[1000..1013].copy_from_slice(b"in the middle");
    assert!(reader.all() == now);
    writer.set_len(3000).expect("truncate");
    now.truncate(3000);
    assert!(reader.all() == now);
    drop(writer);
    assert!(site.reader().all() == now, "it is short, but it is the same file");
    fs::write(site.file(), "anew").expect("write");
    assert_eq!(reader.all(), b"anew");
    assert_eq!(reader.file.metadata().expect("stat").len(), 4);
    site.wait_for_home(b"anew");
    // No program has the file open by then.
    drop(reader);
    assert_eq!(fs::read(site.file()).expect("read"), b"anew");
}

#[test]
fn whoever_opens_to_write_first_is_seen_by_who_reads_then() {
    let Some(site) = Site::new() else { return };
    let writer = OpenOptions::new().read(true).write(true).open(site.file()).expect("open");
    let reader = site.open();
    assert!(!reader.is_passed());
    writer.write_all_at(b"seen", 5).expect("write");
    let mut now = bytes(0);
    now[5..9].copy_from_slice(b"seen");
    assert!(reader.all() == now);
    drop((reader, writer));
    assert!(site.reader().all() == now);
    site.wait_for_home(&now);
}

#[test]
fn what_changes_at_home_is_read_by_whoever_opens_then_and_not_before() {
    let Some(site) = Site::new() else { return };
    let reader = site.reader();
    let mapping = Mapping::new(&reader.file, LEN, libc::PROT_READ, libc::MAP_SHARED).expect("map");
    for seed in [1, 2] {
        let mut newer = bytes(seed);
        newer.extend(b"and longer");
        fs::write(site.home.exported.join("file"), &newer).expect("write");
        site.laptop.wait(LONG, "the new contents", |_| fs::read(site.file()).expect("read") == newer);
        assert!(reader.all() == bytes(0) && mapping.get(0, LEN) == bytes(0), "it is as it was opened");
        let other = site.open();
        let other = Mapping::new(&other.file, newer.len(), libc::PROT_READ, libc::MAP_SHARED).expect("map");
        assert!(other.get(0, newer.len()) == newer);
        assert_eq!(fs::metadata(site.file()).expect("stat").len(), newer.len() as u64);
    }
    append(&site.file(), b", and more");
    let mut now = bytes(2);
    now.extend(b"and longer, and more");
    assert!(fs::read(site.file()).expect("read") == now && reader.all() == bytes(0));
    site.wait_for_home(&now);
    fs::rename(site.file(), site.path("moved")).expect("rename");
    fs::hard_link(site.path("moved"), site.file()).expect("link");
    let inodes: Vec<u64> =
        ["file", "moved"].iter().map(|name| fs::metadata(site.path(name)).expect("stat").ino()).collect();
    let listed = fs::read_dir(&site.laptop.mountpoint).expect("list").map(|entry| entry.expect("entry"));
    assert!(listed.map(|entry| std::os::unix::fs::DirEntryExt::ino(&entry)).all(|inode| inode == inodes[0]));
    assert_eq!(inodes[0], inodes[1]);
}

#[test]
fn while_a_file_keeps_changing_at_home_nobody_meets_errors() {
    const VERSION_COUNT: u8 = 30;
    let Some(site) = Site::new() else { return };
    let (stop, file) = (AtomicBool::new(false), site.file());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    let reader = File::open(&file).expect("open");
                    let mut some = vec![0; LEN / 2];
                    reader.read_exact_at(&mut some, 0).expect("read");
                    let mapping = Mapping::new(&reader, LEN, libc::PROT_READ, libc::MAP_SHARED).expect("map");
                    std::thread::sleep(Duration::from_millis(u64::from(mapping.get(0, 1)[0] % 20)));
                }
            });
        }
        let at_home = OpenOptions::new().write(true).open(site.home.exported.join("file")).expect("open");
        for version in 1..=VERSION_COUNT {
            at_home.write_all_at(&bytes(version), 0).expect("write");
            std::thread::sleep(Duration::from_millis(50));
        }
        stop.store(true, Relaxed);
    });
    site.laptop.wait(LONG, "the last version", |_| fs::read(&file).expect("read") == bytes(VERSION_COUNT));
}

#[test]
fn what_is_open_stays_readable_when_the_cache_is_full() {
    let Some(site) = Site::new() else { return };
    let reader = site.reader();
    let mapping = Mapping::new(&reader.file, LEN, libc::PROT_READ, libc::MAP_SHARED).expect("map");
    common::run(common::starling().args(["set", "--cache-size", "1MiB"]).arg(&site.laptop.mountpoint));
    fs::write(site.home.exported.join("other"), bytes(1)).expect("write");
    site.laptop.wait(LONG, "the other file", |_| site.path("other").exists());
    assert!(fs::read(site.path("other")).expect("read") == bytes(1));
    let is_small = |laptop: &Laptop| laptop.ask(&["status"])["cache"]["bytes"].as_u64().expect("bytes") <= LEN as u64;
    site.laptop.wait(LONG, "the other file to be dropped", is_small);
    assert!(reader.is_passed() && reader.all() == bytes(0));
    drop(reader);
    site.laptop.wait(LONG, "this one to be dropped", |laptop| laptop.ask(&["status"])["cache"]["bytes"] == 0);
    assert!(mapping.get(0, LEN) == bytes(0));
    assert!(fs::read(site.file()).expect("read") == bytes(0));
}

#[test]
fn what_is_stored_to_a_mapping_while_others_read_goes_home() {
    let Some(site) = Site::new() else { return };
    let reader = site.reader();
    let writer = OpenOptions::new().read(true).write(true).open(site.file()).expect("open");
    let mapping = Mapping::new(&writer, LEN, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED).expect("map");
    let mut now = bytes(0);
    let check = |now: &[u8]| assert!(reader.all() == now && mapping.get(0, LEN) == now[..LEN]);
    mapping.put(100, b"stored");
    now[100..106].copy_from_slice(b"stored");
    check(&now);
    writer.write_all_at(b"written", 5000).expect("write");
    now[5000..5007].copy_from_slice(b"written");
    check(&now);
    writer.sync_all().expect("fsync");
    site.wait_for_home(&now);
    mapping.put(200, b"again");
    now[200..205].copy_from_slice(b"again");
    drop(writer);
    site.wait_for_home(&now);
    // Long after it was closed.
    mapping.put(LEN - 4, b"late");
    now[LEN - 4..].copy_from_slice(b"late");
    check(&now);
    site.wait_for_home(&now);
    drop(reader);
    assert!(fs::read(site.file()).expect("read") == now);
}

#[test]
fn what_was_stored_to_a_mapping_and_synced_goes_home_after_a_crash() {
    let Some(mut site) = Site::new() else { return };
    let reader = site.reader();
    let writer = OpenOptions::new().read(true).write(true).open(site.file()).expect("open");
    let mapping = Mapping::new(&writer, LEN, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED).expect("map");
    let mut now = bytes(0);
    for (at, text) in [(100, b"first"), (70_000, b"after")] {
        mapping.put(at, text);
        now[at..at + 5].copy_from_slice(text);
        writer.sync_all().expect("fsync");
    }
    mapping.put(LEN - 4, b"last");
    now[LEN - 4..].copy_from_slice(b"last");
    mapping.sync();
    site.laptop.stop(libc::SIGKILL);
    drop((reader, writer, mapping));
    site.laptop.mount_again();
    site.wait_for_home(&now);
}

#[test]
fn a_mapping_shows_what_is_written_after_its_file_was_closed() {
    let Some(site) = Site::new() else { return };
    let reader = site.reader();
    let mapping = Mapping::new(&reader.file, LEN, libc::PROT_READ, libc::MAP_SHARED).expect("map");
    drop(reader);
    fs::write(site.file(), bytes(3)).expect("write");
    assert!(mapping.get(0, LEN) == bytes(3));
    site.wait_for_home(&bytes(3));
}

#[test]
fn programs_run_and_are_busy_meanwhile() {
    let Some(site) = Site::new() else { return };
    let program = site.path("program");
    fs::copy("/bin/sleep", site.home.exported.join("program")).expect("copy");
    site.laptop.wait(LONG, "the program", |_| program.exists());
    let sleep = fs::read(&program).expect("read");
    OpenOptions::new().append(true).open(&program).expect("open").write_all(&vec![0; LEN]).expect("write");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("chmod");
    assert!(fs::read(&program).expect("read").starts_with(&sleep));
    let mut running = Command::new(&program).arg("60").spawn().expect("run");
    let busy = OpenOptions::new().write(true).open(&program).map_err(|error| error.raw_os_error());
    running.kill().expect("kill");
    running.wait().expect("wait");
    assert_eq!(busy.err(), Some(Some(libc::ETXTBSY)));
    assert!(Command::new(&program).arg("0").status().expect("run").success());
}

#[test]
fn who_comes_and_goes_at_once_meets_no_errors() {
    const WRITTEN: usize = 64 << 10;
    let Some(site) = Site::new() else { return };
    let (stop, file) = (AtomicBool::new(false), site.file());
    let counts: Vec<u64> = std::thread::scope(|scope| {
        let work = |number: u64| {
            let (stop, file) = (&stop, &file);
            move || {
                let mut count = 0;
                while !stop.load(Relaxed) {
                    count += 1;
                    let mut open = OpenOptions::new();
                    match number % 5 {
                        0 | 1 => {
                            let all = fs::read(file).expect("read");
                            assert!(all.len() >= LEN && all[WRITTEN..LEN] == bytes(0)[WRITTEN..], "{}", all.len());
                        }
                        2 => {
                            let reader = open.read(true).open(file).expect("open");
                            let mapping = Mapping::new(&reader, LEN, libc::PROT_READ, libc::MAP_SHARED).expect("map");
                            drop(reader);
                            assert!(mapping.get(LEN - 10, 10) == bytes(0)[LEN - 10..]);
                        }
                        3 => open
                            .write(true)
                            .open(file)
                            .expect("open")
                            .write_all_at(b"over", count % 1000)
                            .expect("write"),
                        _ => {
                            // No other thread writes there.
                            let at = 2000 * (number + 1) + count % 1000;
                            let writer = open.read(true).write(true).open(file).expect("open");
                            writer.write_all_at(b"and over", at).expect("write");
                            let mut found = [0; 8];
                            writer.read_exact_at(&mut found, at).expect("read");
                            assert_eq!(&found, b"and over");
                        }
                    }
                }
                count
            }
        };
        let threads: Vec<_> = (0..10).map(|number| scope.spawn(work(number))).collect();
        std::thread::sleep(Duration::from_secs(1));
        stop.store(true, Relaxed);
        threads.into_iter().map(|thread| thread.join().expect("no errors")).collect()
    });
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
    let now = fs::read(&file).expect("read");
    site.wait_for_home(&now);
    let start = Instant::now();
    while !site.open().is_passed() {
        assert!(start.elapsed() < LONG, "the last close is told of by and by");
    }
}

#[test]
fn under_strong_nothing_is_passed_by() {
    let Some(site) = Site::new() else { return };
    let reader = site.reader();
    common::run(common::starling().args(["set", "--consistency", "strong"]).arg(&site.laptop.mountpoint));
    // It attaches to its home anew, without which it believes nothing.
    let start = Instant::now();
    let other = loop {
        match File::open(site.file()) {
            Err(_) if start.elapsed() < LONG => std::thread::sleep(Duration::from_millis(20)),
            opened => break opened.expect("open"),
        }
    };
    let mapped = Mapping::new(&other, LEN, libc::PROT_READ, libc::MAP_SHARED);
    assert_eq!(mapped.err().and_then(|error| error.raw_os_error()), Some(libc::ENODEV));
    append(&site.file(), b"more");
    assert_eq!(fs::metadata(site.file()).expect("stat").len(), LEN as u64 + 4);
    drop(reader);
}
