//! The data folder.
//!
//! `stores.json` lists the stores' folders in their order (fixed at creation), `lock` is locked by the process that serves
//! the file system, `control.sock` leads to it, `store-N/` are the stores unless they are elsewhere, `starling.log` is where
//! a background process logs.

use crate::settings::Geometry;
use crate::usage;
use anyhow::Context;
use cluster::Place;
use host::real::RealDisk;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

const STORES: &str = "stores.json";
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stores {
    version: u32,
    /// Relative ones are relative to the data folder.
    folders: Vec<PathBuf>,
}

/// A locked data folder.
pub struct Folder {
    path: PathBuf,
    _lock: File,
}

impl Folder {
    /// True if no file system has been created in this folder.
    pub fn is_new(path: &Path) -> bool {
        !path.join(STORES).exists()
    }

    /// Locks the folder; `create` makes it if it is not there. Refused if another process has it, or if it holds other
    /// things than a file system's.
    pub fn open(path: &Path, create: bool) -> anyhow::Result<Folder> {
        let shown = path.display();
        if !path.exists() {
            if !create {
                return Err(usage(format!(
                    "{shown} does not exist: name the folder that `starling up --data` was given"
                )));
            }
            std::fs::create_dir_all(path).map_err(|e| usage(format!("cannot make the data folder {shown}: {e}")))?;
        }
        let path = path.canonicalize().map_err(|e| usage(format!("{shown}: {e}")))?;
        let known = [STORES, "lock", "control.sock", "starling.log"];
        if !path.join(STORES).exists() {
            let entries = std::fs::read_dir(&path).map_err(|e| usage(format!("{shown}: {e}")))?;
            let foreign = entries.flatten().map(|e| e.file_name()).find(|n| !known.iter().any(|k| **k == **n));
            match foreign {
                Some(name) => {
                    let name = name.to_string_lossy();
                    return Err(usage(format!(
                        "{shown} holds other things ({name}) and no file system: give an empty or new folder"
                    )));
                }
                None if !create => return Err(usage(format!("{shown} holds no file system"))),
                None => {}
            }
        }
        let lock_path = path.join("lock");
        let lock = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&lock_path);
        let mut lock = lock.map_err(|e| usage(format!("{}: {e}", lock_path.display())))?;
        // SAFETY: flock takes a descriptor that is open, and nothing else.
        if unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
            let mut pid = String::new();
            let _ = lock.read_to_string(&mut pid);
            return Err(usage(format!(
                "{shown} is in use by process {}: use that mount, or end it with `starling down`",
                pid.trim()
            )));
        }
        lock.set_len(0).context("lock file")?;
        lock.rewind().context("lock file")?;
        writeln!(lock, "{}", std::process::id()).context("lock file")?;
        Ok(Folder { path, _lock: lock })
    }

    /// Its absolute path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The stores' folders; `None` if there is no file system yet.
    pub fn stores(&self) -> anyhow::Result<Option<Vec<PathBuf>>> {
        let path = self.path.join(STORES);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(usage(format!("{}: {e}", path.display()))),
        };
        let stores: Stores = serde_json::from_str(&text)
            .map_err(|e| usage(format!("{} is damaged ({e}): restore it, or write it anew by hand", path.display())))?;
        if stores.version != VERSION {
            let version = stores.version;
            return Err(usage(format!(
                "{} has version {version}, this program knows {VERSION}: use a newer starling",
                path.display()
            )));
        }
        Ok(Some(stores.folders.into_iter().map(|f| self.path.join(f)).collect()))
    }

    /// Chooses and makes the stores' folders of a new file system.
    pub fn make_stores(&self, geometry: &Geometry) -> anyhow::Result<Vec<PathBuf>> {
        let folders: Vec<PathBuf> = if geometry.store.is_empty() {
            (0..geometry.store_count()).map(|i| PathBuf::from(format!("store-{i}"))).collect()
        } else {
            let absolute = geometry.store.iter().map(std::path::absolute);
            absolute.collect::<Result<_, _>>().map_err(|e| usage(format!("--store: {e}")))?
        };
        for folder in &folders {
            let path = self.path.join(folder);
            std::fs::create_dir_all(&path).map_err(|e| usage(format!("store folder {}: {e}", path.display())))?;
        }
        Ok(folders)
    }

    /// Records the stores' folders, once the file system has been created.
    pub fn record_stores(&self, folders: Vec<PathBuf>) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(&Stores { version: VERSION, folders })?;
        let (path, temporary) = (self.path.join(STORES), self.path.join("stores.json.new"));
        let mut file = File::create(&temporary).context("stores.json")?;
        file.write_all(text.as_bytes()).context("stores.json")?;
        file.sync_all().context("stores.json")?;
        std::fs::rename(&temporary, &path).context("stores.json")?;
        File::open(&self.path).and_then(|d| d.sync_all()).context("data folder")
    }

    /// The places of the stores.
    pub fn places(&self, folders: &[PathBuf]) -> anyhow::Result<Vec<Place>> {
        let open = |folder: &PathBuf| -> anyhow::Result<Place> {
            let path = self.path.join(folder);
            if !path.is_dir() {
                return Ok(Place::Missing);
            }
            let disk = RealDisk::open(&path).with_context(|| format!("store folder {}", path.display()))?;
            Ok(Place::Disk(disk))
        };
        folders.iter().map(open).collect()
    }
}
