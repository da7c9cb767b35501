//! Mounts an empty file system in memory, until it is unmounted: `memfs [--allow-other] FOLDER`.
//!
//! For trying the front end by itself, with POSIX test suites or by hand.

use std::future::IntoFuture;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use types::{FileId, Time};
use vfs::fs::{Cred, FileSystem, SetAttr};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (allow_other, folder) = match arguments.as_slice() {
        [flag, folder] if flag == "--allow-other" => (true, folder),
        [folder] => (false, folder),
        _ => {
            eprintln!("usage: memfs [--allow-other] FOLDER");
            return ExitCode::from(2);
        }
    };
    match serve(Path::new(folder), allow_other) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("memfs: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(folder: &Path, allow_other: bool) -> Result<(), Box<dyn std::error::Error>> {
    let runtime = tokio::runtime::Runtime::new()?;
    let fs = vfs::MemFs::new(Arc::new(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Time { sec: now.as_secs() as i64, nsec: now.subsec_nanos() }
    }));
    // The root belongs to the user who mounts, so that an ordinary user can write to it.
    let owner = std::fs::metadata("/proc/self")?;
    let set = SetAttr { uid: Some(owner.uid()), gid: Some(owner.gid()), ..SetAttr::default() };
    runtime.block_on(fs.setattr(&Cred::ROOT, FileId::ROOT, None, set).into_future())?;
    let mut options = fuse::MountOptions::new(runtime.handle().clone());
    options.allow_other = allow_other;
    options.fs_name = "memfs".to_owned();
    // Takes effect only where the kernel permits it.
    options.passthrough = true;
    fuse::mount(Arc::new(fs), folder, options)?.wait();
    Ok(())
}
