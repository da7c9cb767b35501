//! What programs see on a shared mount: another hand changes the file system behind the mount, and
//! the kernel is made to forget.

mod common;

use common::programs::bring;
use common::*;
use fuse::{Invalidator, MountOptions};
use std::ffi::{CStr, CString};
use std::fs::{self, File, OpenOptions};
use std::future::IntoFuture;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use types::{Answer, FileId};
use vfs::fs::*;
use vfs::{Kernel, Recalled};

fn wait_for<T>(work: impl IntoFuture<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(work.into_future())
}

fn done<T: Send + 'static>(answer: Answer<T>) -> T {
    wait_for(answer).unwrap()
}

fn shared(options: &mut MountOptions) {
    options.shared = true;
}

/// The other hand.
struct Other<'a>(&'a Mounted);

impl Other<'_> {
    fn id(&self, name: &str) -> FileId {
        done(self.0.fs.lookup(&Cred::ROOT, FileId::ROOT, name.as_bytes())).attr.id
    }

    fn handle(&self, name: &str) -> (FileId, Handle) {
        let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
        let id = self.id(name);
        (id, done(self.0.fs.open(&Cred::ROOT, id, flags)))
    }

    fn write(&self, name: &str, offset: u64, data: &[u8]) {
        let (id, handle) = self.handle(name);
        done(self.0.fs.write(&Cred::ROOT, id, handle, offset, data));
        done(self.0.fs.release(id, handle, None));
    }

    fn append(&self, name: &str, data: &[u8]) {
        let (id, handle) = self.handle(name);
        done(self.0.fs.append(&Cred::ROOT, id, handle, data));
        done(self.0.fs.release(id, handle, None));
    }

    fn set(&self, name: &str, set: SetAttr) {
        done(self.0.fs.setattr(&Cred::ROOT, self.id(name), None, set));
    }

    fn make(&self, name: &str, contents: &[u8]) {
        let (parent, flags) = (FileId::ROOT, OpenFlags { write: true, ..OpenFlags::default() });
        let (entry, handle) = done(self.0.fs.create(&Cred::ROOT, parent, name.as_bytes(), 0o644, 0, flags));
        done(self.0.fs.write(&Cred::ROOT, entry.attr.id, handle, 0, contents));
        done(self.0.fs.release(entry.attr.id, handle, None));
    }

    fn rename(&self, from: &str, to: &str) {
        let (root, flags) = (FileId::ROOT, RenameFlags::default());
        done(self.0.fs.rename(&Cred::ROOT, root, from.as_bytes(), root, to.as_bytes(), flags));
    }

    fn unlink(&self, name: &str) {
        done(self.0.fs.unlink(&Cred::ROOT, FileId::ROOT, name.as_bytes()));
    }
}

fn kernel(m: &Mounted) -> Invalidator {
    m.mount.as_ref().unwrap().invalidator()
}

/// Makes the kernel forget all names, and the attributes of these names and of the root.
fn forget(m: &Mounted, names: &[&str]) {
    let files = names.iter().map(|name| Other(m).id(name)).chain([FileId::ROOT]).collect();
    wait_for(kernel(m).forget(Recalled { files, names: true }));
}

/// Makes the kernel forget the attributes of these names.
fn forget_attributes(m: &Mounted, names: &[&str]) {
    let files = names.iter().map(|name| Other(m).id(name)).collect();
    wait_for(kernel(m).forget(Recalled { files, names: false }));
}

fn names(m: &Mounted) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(m.root()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Runs a check on shared mounts, in both manners of answering, with entries that last.
fn both(check: impl Fn(&Mounted)) {
    for later in [false, true] {
        check(&Mounted::with(Manner { later, ..NOW }, shared));
    }
}

#[test]
fn names_and_attributes_are_cached_until_they_are_forgotten() {
    let m = Mounted::with(NOW, shared);
    fs::write(m.path("file"), "x").unwrap();
    fs::metadata(m.path("file")).unwrap();
    let stat = || {
        let before = [m.count("lookup"), m.count("getattr")];
        fs::metadata(m.path("file")).unwrap();
        [m.count("lookup") - before[0], m.count("getattr") - before[1]]
    };
    assert_eq!(stat(), [0, 0], "both are cached");
    forget_attributes(&m, &["file"]);
    assert_eq!(stat(), [0, 1]);
    assert_eq!(stat(), [0, 0], "both are again");
    if m.forgets_names() {
        forget(&m, &[]);
        // The reply to a lookup carries no attributes that may be kept.
        assert_eq!(stat(), [1, 1]);
        assert_eq!(stat(), [0, 0]);
    }
}

#[test]
fn attributes_are_those_of_the_file_system_once_forgotten() {
    both(|m| {
        fs::write(m.path("file"), "one").unwrap();
        let file = File::open(m.path("file")).unwrap();
        assert_eq!((file.metadata().unwrap().len(), fs::metadata(m.path("file")).unwrap().len()), (3, 3));
        Other(m).write("file", 3, b" and two");
        Other(m).set("file", SetAttr { mode: Some(0o640), uid: Some(7), ..SetAttr::default() });
        forget_attributes(m, &["file"]);
        for seen in [file.metadata().unwrap(), fs::metadata(m.path("file")).unwrap()] {
            assert_eq!((seen.len(), seen.mode() & 0o777, seen.uid()), (11, 0o640, 7));
        }
        Other(m).set("file", SetAttr { size: Some(2), ..SetAttr::default() });
        forget_attributes(m, &["file"]);
        assert_eq!(file.metadata().unwrap().len(), 2);
    });
}

#[test]
fn names_mean_what_they_do_in_the_file_system_once_forgotten() {
    both(|m| {
        for name in ["stays", "goes", "moves", "target"] {
            fs::write(m.path(name), name).unwrap();
        }
        std::os::unix::fs::symlink("stays", m.path("link")).unwrap();
        let read = |name: &str| fs::read_to_string(m.path(name)).map_err(|error| error.raw_os_error().unwrap());
        assert_eq!(read("link").unwrap(), "stays");
        assert_eq!(read("new"), Err(libc::ENOENT));
        for name in ["stays", "goes", "moves", "target"] {
            assert_eq!(read(name).unwrap(), name);
        }
        assert_eq!(names(m), ["goes", "link", "moves", "stays", "target"]);
        Other(m).unlink("goes");
        Other(m).rename("moves", "target");
        Other(m).make("new", b"made by another");
        Other(m).unlink("link");
        done(m.fs.symlink(&Cred::ROOT, FileId::ROOT, b"link", b"target"));
        forget(m, &[]);
        assert_eq!(read("goes"), Err(libc::ENOENT));
        assert_eq!(read("moves"), Err(libc::ENOENT));
        assert_eq!(read("target").unwrap(), "moves");
        assert_eq!(read("new").unwrap(), "made by another");
        assert_eq!(fs::read_link(m.path("link")).unwrap().to_str(), Some("target"));
        assert_eq!(read("link").unwrap(), "moves");
        assert_eq!(names(m), ["link", "new", "stays", "target"]);
    });
}

#[test]
fn absent_names_are_cached_until_names_are_forgotten() {
    both(|m| {
        let is_there = || m.path("name").exists();
        for round in 0..3 {
            assert!(!is_there());
            let before = m.count("lookup");
            assert!(!is_there() && !is_there());
            assert_eq!(m.count("lookup") == before, m.forgets_names(), "it is cached if it can be forgotten");
            match round {
                0 => fs::write(m.path("name"), "").unwrap(),
                _ => {
                    Other(m).make("name", b"");
                    forget(m, &[]);
                }
            }
            assert!(is_there());
            fs::remove_file(m.path("name")).unwrap();
        }
    });
}

/// The names in an open directory, from its first one on.
struct OpenDirectory(*mut libc::DIR);

impl OpenDirectory {
    fn open(path: &Path) -> OpenDirectory {
        let path = CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: the path ends with a zero byte.
        let dir = unsafe { libc::opendir(path.as_ptr()) };
        assert!(!dir.is_null(), "{}", io::Error::last_os_error());
        OpenDirectory(dir)
    }

    /// Starts at the first name again.
    fn list_again(&self) -> Vec<String> {
        let mut names = Vec::new();
        // SAFETY: the directory is open until it is dropped, and a name is read before the next.
        unsafe {
            libc::rewinddir(self.0);
            while let Some(entry) = libc::readdir(self.0).as_ref() {
                names.push(CStr::from_ptr(entry.d_name.as_ptr()).to_str().unwrap().to_owned());
            }
        }
        names.retain(|name| name != "." && name != "..");
        names.sort();
        names
    }
}

impl Drop for OpenDirectory {
    fn drop(&mut self) {
        // SAFETY: it is open, and not used any more.
        unsafe { libc::closedir(self.0) };
    }
}

fn list(m: &Mounted, name: &str) -> Vec<String> {
    OpenDirectory::open(&m.path(name)).list_again()
}

/// Another hand makes a directory in `dir`. The time of the last change of `dir` may stay as it
/// was; then only what the kernel has dropped shows that something has changed.
fn make_below(m: &Mounted, name: &str, keeps_time: bool) {
    let dir = Other(m).id("dir");
    let before = done(m.fs.getattr(dir)).attr.mtime;
    done(m.fs.mkdir(&Cred::ROOT, dir, name.as_bytes(), 0o755, 0));
    if keeps_time {
        Other(m).set("dir", SetAttr { mtime: Some(SetTime::At(before)), ..SetAttr::default() });
    }
    forget_attributes(m, &["dir"]);
}

#[test]
fn listings_are_cached_until_they_are_forgotten() {
    both(|m| {
        fs::create_dir(m.path("dir")).unwrap();
        let mut there = Vec::new();
        for round in 0..6 {
            assert_eq!(list(m, "dir"), there);
            let before = m.count("readdir");
            assert_eq!((list(m, "dir"), list(m, "dir")), (there.clone(), there.clone()));
            assert_eq!(m.count("readdir"), before, "they are cached");
            there.push(format!("name {round}"));
            match round {
                0 | 1 => fs::create_dir(m.path("dir").join(&there[round])).unwrap(),
                _ => make_below(m, &there[round], round % 2 == 0),
            }
        }
        assert_eq!(m.count("readdirplus"), 0, "its names could be cached after they were forgotten");
    });
}

#[test]
fn directories_that_stay_open_are_listed_anew_once_forgotten() {
    both(|m| {
        fs::create_dir(m.path("dir")).unwrap();
        let open = OpenDirectory::open(&m.path("dir"));
        assert!(open.list_again().is_empty() && open.list_again().is_empty());
        make_below(m, "one", false);
        assert_eq!(open.list_again(), ["one"]);
        assert_eq!(list(m, "dir"), ["one"]);
        make_below(m, "two", true);
        assert_eq!(list(m, "dir"), ["one", "two"], "it is open from before");
        drop(open);
        // The kernel says later that it is closed.
        let until = Instant::now() + Duration::from_secs(20);
        let is_cached = || {
            assert_eq!(list(m, "dir"), ["one", "two"]);
            let before = m.count("readdir");
            list(m, "dir");
            m.count("readdir") == before
        };
        while !is_cached() {
            assert!(Instant::now() < until, "it is not cached again");
            // The directory is open until the kernel has also told of the end of these listings.
            std::thread::sleep(Duration::from_millis(20));
        }
    });
}

/// Programs list a directory without a pause while another hand makes names in it and sets the
/// earlier time again. Each listing that is begun after the kernel has forgotten shows them.
#[test]
fn every_listing_after_forgetting_shows_what_was_made() {
    let m = Mounted::with(NOW, shared);
    fs::create_dir(m.path("dir")).unwrap();
    let (ended, made) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let lists = || {
            let mut fewest = None;
            while !ended.load(SeqCst) {
                let before = made.load(SeqCst);
                let count = list(&m, "dir").len() as u64;
                if count < before {
                    fewest = fewest.or(Some((count, before)));
                }
            }
            fewest
        };
        let listing: Vec<_> = (0..3).map(|_| scope.spawn(lists)).collect();
        for round in 1..=400 {
            make_below(&m, &round.to_string(), round % 4 != 0);
            made.store(round, SeqCst);
            if round % 3 == 0 {
                list(&m, "dir");
            }
        }
        ended.store(true, SeqCst);
        for listing in listing {
            assert_eq!(listing.join().unwrap(), None, "a listing has fewer names than there were");
        }
    });
}

/// The kernel drops a reply to GETATTR that it receives while it forgets. It does not drop other
/// attributes, so it must not keep them at all.
#[test]
fn only_attributes_that_were_asked_for_are_kept() {
    let m = Mounted::with(NOW, shared);
    let asks = |what: &str, change: &dyn Fn()| {
        change();
        let before = m.count("getattr") + m.count("lookup");
        fs::symlink_metadata(m.path(what)).unwrap();
        assert!(m.count("getattr") + m.count("lookup") > before, "{what} was answered from a reply to its change");
        let before = m.count("getattr");
        fs::symlink_metadata(m.path(what)).unwrap();
        assert_eq!(m.count("getattr"), before, "{what} is cached once it was asked for");
    };
    asks("file", &|| drop(File::create(m.path("file")).unwrap()));
    asks("dir", &|| fs::create_dir(m.path("dir")).unwrap());
    asks("symlink", &|| std::os::unix::fs::symlink("file", m.path("symlink")).unwrap());
    asks("file", &|| fs::set_permissions(m.path("file"), fs::Permissions::from_mode(0o600)).unwrap());
    asks("file", &|| OpenOptions::new().write(true).open(m.path("file")).unwrap().set_len(5).unwrap());
    asks("link", &|| fs::hard_link(m.path("file"), m.path("link")).unwrap());
    asks("file", &|| fs::write(m.path("file"), "contents").unwrap());
}

#[test]
fn permissions_and_acls_count_once_forgotten() {
    bring("setfacl", "acl");
    let options = |options: &mut MountOptions| {
        shared(options);
        options.allow_other = true;
    };
    let m = Mounted::with(NOW, options);
    fs::write(m.path("file"), "contents").unwrap();
    fs::create_dir(m.path("dir")).unwrap();
    fs::write(m.path("dir/file"), "contents").unwrap();
    allowed(USER, &[], m.root(), "cat file dir/file");
    Other(&m).set("file", SetAttr { mode: Some(0o600), ..SetAttr::default() });
    Other(&m).set("dir", SetAttr { mode: Some(0o700), ..SetAttr::default() });
    forget_attributes(&m, &["file", "dir"]);
    refused(USER, &[], m.root(), "cat file");
    refused(USER, &[], m.root(), "cat dir/file");
    // The kernel caches that there is no ACL.
    allowed(0, &[], m.root(), "getfacl -c file && setfacl -m u:65534:r file");
    let acl = done(m.fs.getxattr(&Cred::ROOT, Other(&m).id("file"), b"system.posix_acl_access"));
    allowed(0, &[], m.root(), "setfacl -b file");
    refused(USER, &[], m.root(), "cat file");
    let name = b"system.posix_acl_access";
    done(m.fs.setxattr(&Cred::ROOT, Other(&m).id("file"), name, &acl, XattrMode::Any));
    forget_attributes(&m, &["file"]);
    allowed(USER, &[], m.root(), "cat file");
    done(m.fs.removexattr(&Cred::ROOT, Other(&m).id("file"), name));
    forget_attributes(&m, &["file"]);
    refused(USER, &[], m.root(), "cat file");
}

#[test]
fn reads_and_writes_through_open_files_reach_the_file_system() {
    both(|m| {
        fs::write(m.path("file"), "0123456789").unwrap();
        let file = OpenOptions::new().read(true).write(true).open(m.path("file")).unwrap();
        let contents = || {
            let mut all = vec![0; 100];
            let len = file.read_at(&mut all, 0).unwrap();
            String::from_utf8(all[..len].to_vec()).unwrap()
        };
        assert_eq!(contents(), "0123456789");
        // Nothing is forgotten: contents are not cached, and the kernel's size does not cut a read.
        Other(m).write("file", 8, b"abcdef");
        assert_eq!(contents(), "01234567abcdef");
        file.write_all_at(b"XY", 0).unwrap();
        Other(m).set("file", SetAttr { size: Some(4), ..SetAttr::default() });
        assert_eq!(contents(), "XY23");
        // The kernel believes that the file ends at 14.
        file.write_all_at(b"Z", 6).unwrap();
        assert_eq!(contents(), "XY23\0\0Z");
        forget_attributes(m, &["file"]);
        assert_eq!(file.metadata().unwrap().len(), 7);
    });
}

#[test]
fn appends_go_to_the_end_whatever_size_the_kernel_knows() {
    both(|m| {
        let open = || OpenOptions::new().append(true).create(true).open(m.path("file")).unwrap();
        let (mut one, mut two) = (open(), open());
        for _ in 0..2 {
            one.write_all(b"one ").unwrap();
            Other(m).append("file", b"other ");
            two.write_all(b"two ").unwrap();
        }
        assert_eq!(fs::read_to_string(m.path("file")).unwrap(), "one other two one other two ");
        Other(m).set("file", SetAttr { size: Some(4), ..SetAttr::default() });
        one.write_all(b"end").unwrap();
        assert_eq!(fs::read_to_string(m.path("file")).unwrap(), "one end");
    });
}

#[test]
fn the_end_of_a_file_is_where_others_left_it_once_forgotten() {
    both(|m| {
        fs::write(m.path("file"), "0123").unwrap();
        let mut file = File::open(m.path("file")).unwrap();
        assert_eq!(file.seek(SeekFrom::End(0)).unwrap(), 4);
        for (size, expected) in [(9, 9), (2, 2)] {
            Other(m).set("file", SetAttr { size: Some(size), ..SetAttr::default() });
            forget_attributes(m, &["file"]);
            assert_eq!(file.seek(SeekFrom::End(0)).unwrap(), expected);
        }
    });
}

/// Maps the first bytes of a file, or fails with an errno.
fn mapped(file: &File, len: usize, flags: libc::c_int) -> Result<Vec<u8>, i32> {
    // SAFETY: the mapping has `len` bytes and is only read, before it is taken away.
    unsafe {
        let at = libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, flags, file.as_raw_fd(), 0);
        if at == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error().raw_os_error().unwrap());
        }
        let bytes = std::slice::from_raw_parts(at.cast::<u8>(), len).to_vec();
        libc::munmap(at, len);
        Ok(bytes)
    }
}

#[test]
fn files_are_mapped_privately_but_not_shared() {
    both(|m| {
        fs::write(m.path("file"), "before").unwrap();
        let file = File::open(m.path("file")).unwrap();
        assert_eq!(mapped(&file, 6, libc::MAP_PRIVATE).unwrap(), b"before");
        Other(m).write("file", 0, b"after!");
        assert_eq!(mapped(&file, 6, libc::MAP_PRIVATE).unwrap(), b"after!", "a new mapping reads anew");
        assert_eq!(mapped(&file, 6, libc::MAP_SHARED), Err(libc::ENODEV));
        fs::copy("/bin/echo", m.path("echo")).unwrap();
        let output = Command::new(m.path("echo")).arg("runs").output().unwrap();
        assert_eq!(output.stdout, b"runs\n");
    });
}

/// Reads with sendfile(2), which takes the way of the page cache.
fn sent(file: &File) -> Vec<u8> {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut offset = 0;
    // SAFETY: a plain call on open descriptors, with an offset that outlives it.
    let sent = unsafe { libc::sendfile(writer.as_raw_fd(), file.as_raw_fd(), &raw mut offset, 4096) };
    assert!(sent >= 0, "{}", std::io::Error::last_os_error());
    drop(writer);
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn sendfile_shows_what_others_wrote_soon_after_it_was_forgotten() {
    both(|m| {
        fs::write(m.path("file"), "before").unwrap();
        let file = File::open(m.path("file")).unwrap();
        assert_eq!(sent(&file), b"before");
        // With another size, the kernel would drop the pages by itself.
        Other(m).write("file", 0, b"after!");
        forget_attributes(m, &["file"]);
        // A thread of its own forgets the pages.
        let since = Instant::now();
        while sent(&file) != b"after!" {
            assert!(since.elapsed() < Duration::from_secs(20), "the pages stay");
            std::thread::yield_now();
        }
        Other(m).write("file", 0, b"again!");
        assert_eq!(sent(&File::open(m.path("file")).unwrap()), b"again!", "an open drops pages");
    });
}

/// The environment variable that makes a process read this file with sendfile(2).
const SEND: &str = "STARLING_TEST_SEND";

/// Not a test, but the process that another test starts.
#[test]
fn send_file_if_asked_to() {
    let Some(path) = std::env::var_os(SEND) else { return };
    sent(&File::open(path).unwrap());
}

/// A process that holds a request which is never answered, with its locks.
fn stuck(m: &Mounted, mut command: Command, request: &str) -> Child {
    let before = m.count(request);
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    while m.count(request) == before {
        std::thread::yield_now();
    }
    child
}

/// Programs wait in the kernel for answers, and hold the lock of a directory, a file, or a page. A
/// token that they wait for can be given back all the same.
#[test]
fn forgetting_waits_for_no_request() {
    let mut m = Mounted::serving(Mannered::silent(mem_fs()), shared);
    fs::write(m.path("file"), "x".repeat(8192)).unwrap();
    fs::write(m.path("goes"), "x").unwrap();
    let mut by_page = Command::new(std::env::current_exe().unwrap());
    by_page.args(["--exact", "send_file_if_asked_to"]).env(SEND, m.path("file"));
    let (mut remove, mut read) = (Command::new("rm"), Command::new("cat"));
    remove.arg("-f").arg(m.path("goes"));
    read.arg(m.path("file"));
    let mut children = [stuck(&m, remove, "unlink"), stuck(&m, read, "read"), stuck(&m, by_page, "read")];
    let files = vec![FileId::ROOT, Other(&m).id("file"), Other(&m).id("goes")];
    let forget = kernel(&m).forget(Recalled { files, names: m.forgets_names() });
    let (forgotten, has_forgotten) = channel();
    let forgetting = std::thread::spawn(move || {
        wait_for(forget);
        forgotten.send(()).unwrap();
    });
    let ended = has_forgotten.recv_timeout(Duration::from_secs(20));
    let all_wait = children.iter_mut().all(|child| child.try_wait().unwrap().is_none());
    // Fails their requests.
    let path = c(m.root());
    for flags in [libc::MNT_FORCE, libc::MNT_DETACH] {
        // SAFETY: the pointer is to a NUL-terminated string that outlives the call.
        unsafe { libc::umount2(path.as_ptr(), flags | libc::UMOUNT_NOFOLLOW) };
    }
    for child in &mut children {
        child.wait().unwrap();
    }
    forgetting.join().unwrap();
    drop(m.mount.take());
    assert!(ended.is_ok(), "forgetting waited for a request");
    assert!(all_wait, "the requests were under way");
}

/// An answer was computed, but not sent, when forgetting began.
#[test]
fn forgetting_waits_until_answers_under_way_are_sent() {
    let (computed, is_computed) = channel();
    let has_forgotten = Arc::new(AtomicBool::new(false));
    let was_early = Arc::new(AtomicBool::new(false));
    let (forgotten, early) = (has_forgotten.clone(), was_early.clone());
    let before_late = move || {
        computed.send(()).unwrap();
        // Forgetting has all this time to be wrong; it cannot be right.
        let since = Instant::now();
        while since.elapsed() < Duration::from_millis(300) && !forgotten.load(SeqCst) {
            std::thread::yield_now();
        }
        early.store(forgotten.load(SeqCst), SeqCst);
    };
    let m = Mounted::serving(Mannered::with_late(mem_fs(), NOW, before_late), |options| {
        shared(options);
        options.threads = 2;
    });
    Other(&m).make("late", b"contents");
    let path = m.path("late");
    let stat = std::thread::spawn(move || fs::metadata(path).unwrap().len());
    is_computed.recv().unwrap();
    forget(&m, &["late"]);
    has_forgotten.store(true, SeqCst);
    assert_eq!(stat.join().unwrap(), 8);
    assert!(!was_early.load(SeqCst), "the kernel was told to forget before the answer was sent");
}

/// The answer to an earlier request for the attributes of a directory used to reach the kernel
/// after that of a change in the directory, and was kept.
#[test]
fn regression_attributes_of_a_directory_from_before_a_change_in_it_are_not_kept() {
    let changes: [fn(&Path); 3] = [
        |dir| fs::create_dir(dir.join("new")).unwrap(),
        |dir| fs::remove_dir(dir.join("old")).unwrap(),
        |dir| fs::rename(dir.join("old"), dir.join("../old")).unwrap(),
    ];
    for (change, nlink) in changes.into_iter().zip([4, 2, 2]) {
        let (computed, is_computed) = channel();
        let (is_awaited, has_changed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (awaited, changed) = (is_awaited.clone(), has_changed.clone());
        let before_reply = move || {
            if awaited.swap(false, SeqCst) {
                computed.send(()).unwrap();
                while !changed.load(SeqCst) {
                    std::thread::yield_now();
                }
            }
        };
        let m = Mounted::serving(Mannered::with_late(mem_fs(), NOW, before_reply), |options| {
            shared(options);
            options.threads = 2;
        });
        fs::create_dir_all(m.path("dir/old")).unwrap();
        let dir = File::open(m.path("dir")).unwrap();
        is_awaited.store(true, SeqCst);
        let earlier = dir.try_clone().unwrap();
        let stat = std::thread::spawn(move || earlier.metadata().unwrap().nlink());
        is_computed.recv().unwrap();
        change(&m.path("dir"));
        has_changed.store(true, SeqCst);
        assert_eq!(stat.join().unwrap(), 3);
        assert_eq!(dir.metadata().unwrap().nlink(), nlink);
    }
}

/// A new epoch would detach a file system that is mounted below this one.
#[test]
fn what_is_mounted_below_stays_and_names_are_forgotten_all_the_same() {
    let manner = Manner { valid: Duration::from_millis(300), ..NOW };
    let m = Mounted::with(manner, shared);
    fs::create_dir(m.path("below")).unwrap();
    fs::write(m.path("goes"), "x").unwrap();
    let below = m.path("below");
    let mount = |arguments: &[&str]| Command::new("mount").args(arguments).arg(&below).status().unwrap().success();
    assert!(mount(&["-t", "tmpfs", "nested"]));
    fs::write(below.join("file"), "nested").unwrap();
    let mut seen = Vec::new();
    let lookups = |name: &str| {
        let before = m.count("lookup");
        let is_there = fs::metadata(m.path(name)).is_ok();
        (is_there, m.count("lookup") - before)
    };
    lookups("goes");
    Other(&m).rename("goes", "came");
    forget(&m, &[]);
    seen.push((lookups("goes").0, fs::read_to_string(below.join("file")).ok()));
    assert!(lookups("came").0);
    assert_eq!(lookups("came"), (true, 1), "names are not kept");
    Other(&m).rename("came", "goes");
    seen.push((lookups("came").0, fs::read_to_string(below.join("file")).ok()));
    assert!(Command::new("umount").arg(&below).status().unwrap().success());
    forget(&m, &[]);
    lookups("goes");
    assert_eq!(lookups("goes"), (true, u64::from(!m.forgets_names())), "names are kept again");
    assert_eq!(seen, vec![(false, Some("nested".to_owned())); 2]);
}

/// Ends the directory `d` by `end`. While the request is held, another hand moves the directory
/// away, and may move another one there. The kernel forgets, or, if it keeps no names, a program
/// walks along the name: then the kernel asks for it, and forgets the answer at once.
fn ends_while_the_name_changes(end: impl Fn(&Mounted) -> io::Result<()> + Sync, comes: bool, is_walked: bool) {
    let (removals, arrives) = Removals::new();
    let manner = if is_walked { Manner { valid: Duration::ZERO, ..NOW } } else { NOW };
    let m = Mounted::serving(Mannered::with_removals(mem_fs(), manner, removals.clone()), shared);
    for name in ["d", "other", "source"] {
        fs::create_dir(m.path(name)).unwrap();
    }
    // The kernel keeps what it believes of a directory while a program uses it.
    let _used = File::open(m.path("d")).unwrap();
    std::thread::scope(|scope| {
        let ending = scope.spawn(|| end(&m));
        arrives.recv().unwrap();
        Other(&m).rename("d", "moved");
        if comes {
            Other(&m).rename("other", "d");
        }
        if is_walked {
            let before = m.count("lookup");
            scope.spawn(|| fs::metadata(m.path("d")));
            while m.count("lookup") == before {
                std::thread::yield_now();
            }
        } else {
            forget(&m, &[]);
        }
        removals.let_go(100);
        ending.join().unwrap().unwrap();
    });
    File::create(m.path("moved/file")).unwrap();
    assert_eq!(names(&m).contains(&"d".to_owned()), !names(&m).contains(&"source".to_owned()));
    assert_eq!(names(&m).contains(&"other".to_owned()), !comes);
}

#[test]
fn regression_a_removal_makes_the_kernel_take_no_other_directory_for_removed() {
    for is_walked in [false, true] {
        ends_while_the_name_changes(|m| fs::remove_dir(m.path("d")), true, is_walked);
        for comes in [false, true] {
            ends_while_the_name_changes(|m| fs::rename(m.path("source"), m.path("d")), comes, is_walked);
        }
    }
}

/// A program that is refused sees no error, but takes another request. One node alone takes none.
#[test]
fn directories_that_only_one_node_changes_end_at_the_first_request() {
    let (removals, _arrives) = Removals::new();
    let m = Mounted::serving(Mannered::with_removals(mem_fs(), NOW, removals.clone()), shared);
    removals.let_go(1000);
    let (make, remove) = (|name| fs::create_dir(m.path(name)).unwrap(), |name| fs::remove_dir(m.path(name)).unwrap());
    let rename = |from, to| fs::rename(m.path(from), m.path(to)).unwrap();
    let exchange = |one: &str, other: &str| {
        let (one, other) = (c(&m.path(one)), c(&m.path(other)));
        let at = libc::AT_FDCWD;
        // SAFETY: both are NUL-terminated strings.
        let done = unsafe { libc::renameat2(at, one.as_ptr(), at, other.as_ptr(), libc::RENAME_EXCHANGE) };
        check(done.into()).unwrap();
    };
    let (mut removal_count, mut rename_count) = (0, 0);
    for round in 0..3 {
        make("a");
        remove("a");
        ["a", "b", "c"].into_iter().for_each(make);
        make("a/below");
        exchange("a", "c");
        rename("b", "a");
        rename("a", "b");
        exchange("c", "b");
        File::create(m.path("file")).unwrap();
        rename("file", "c/file");
        // "b" has contents, "c" is the one that was "b".
        fs::remove_file(m.path("c/file")).unwrap();
        rename("b/below", "c");
        ["b", "c"].into_iter().for_each(remove);
        removal_count += 3;
        rename_count += 6;
        if round == 1 {
            forget(&m, &[]);
        }
    }
    assert_eq!([m.count("rmdir"), m.count("rename")], [removal_count, rename_count]);
}

#[test]
fn a_mount_that_has_ended_has_nothing_to_forget() {
    let mut m = Mounted::with(NOW, shared);
    fs::write(m.path("file"), "x").unwrap();
    let (kernel, file) = (kernel(&m), Other(&m).id("file"));
    m.unmount();
    wait_for(kernel.forget(Recalled { files: vec![file], names: true }));
    assert_eq!(done(m.fs.getattr(file)).attr.size, 1);
}

/// Two programs and another hand change one directory and one file, and the kernel is made to
/// forget after each change of the other hand. Every look sees the last state.
#[test]
fn every_look_after_forgetting_sees_the_last_state() {
    let m = Mounted::with(NOW, shared);
    fs::write(m.path("file"), "").unwrap();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let busy = || {
            while !ended.load(SeqCst) {
                let _ = (fs::metadata(m.path("file")), fs::metadata(m.path("name")), fs::metadata(m.path("none")));
            }
        };
        for _ in 0..2 {
            scope.spawn(busy);
        }
        let looks = || -> Result<(), String> {
            for round in 1..=500u64 {
                let is_there = round.is_multiple_of(2);
                if is_there {
                    Other(&m).make("name", b"")
                } else if round > 1 {
                    Other(&m).unlink("name")
                }
                Other(&m).set("file", SetAttr { size: Some(round), ..SetAttr::default() });
                forget(&m, &["file"]);
                let (size, found) = (fs::metadata(m.path("file")).unwrap().len(), m.path("name").exists());
                if (size, found) != (round, is_there) {
                    return Err(format!("round {round}: size {size}, name is there: {found}"));
                }
            }
            Ok(())
        };
        let seen = looks();
        ended.store(true, SeqCst);
        seen.unwrap();
    });
}
