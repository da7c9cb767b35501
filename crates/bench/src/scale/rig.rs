//! A machine of the core in this process, over stores whose fragments are listed but have no bytes.

use std::path::Path;
use std::sync::Arc;
use std::{fs, io};

use anyhow::{Context, Result};
use bytes::Bytes;
use cluster::config::CLIENT_LOG;
use cluster::machine::{self, CoreMachine, Create, INDEX_RANGE_LEN, Lengths, Run};
use cluster::stores::StorePlace;
use host::real::RealDisk;
use host::{Disk, DiskSpace, File, Host};
use manager::api::{Manager, ManagerAdmin, SegmentDeltas};
use manager::{Delta, DirectoryShape, InodeRecord};
use storage::testing::list_fragments;
use striped_log::fragment::{CHUNK_LEN, FragmentHeader, Geometry};
use types::{BlockAddr, BoxFuture, Extent, FileId, FragmentId, Kind, SegmentId, StoreId, Time};
use vfs::fs::FileSystem;

/// Stores: one data fragment and one of parity.
const STORE_COUNT: u16 = 2;
const PARITY: u8 = 1;
const BLOCK_SIZE: u32 = 64 << 10;
/// The capacity in bytes: as much as a store can address.
const CAPACITY_BYTES: u64 = 16 << 40;
const CACHE_BYTES: u64 = 512 << 20;
/// Most files whose inodes the manager may have changed in memory before a checkpoint.
const FILES_PER_CHECKPOINT: u64 = 1 << 16;
/// The first number of the study's files, far beyond those that are handed out.
const FILE_FIRST: u64 = 1 << 36;

/// A disk that claims to have room, and reserves none.
struct Roomy(Arc<dyn Disk>);

impl Disk for Roomy {
    fn open(&self, name: &str, create: bool) -> BoxFuture<io::Result<Arc<dyn File>>> {
        let file = self.0.open(name, create);
        Box::pin(async move { Ok(Arc::new(Sparse(file.await?)) as Arc<dyn File>) })
    }
    fn list(&self) -> BoxFuture<io::Result<Vec<String>>> {
        self.0.list()
    }
    fn remove(&self, name: &str) -> BoxFuture<io::Result<()>> {
        self.0.remove(name)
    }
    fn rename(&self, from: &str, to: &str) -> BoxFuture<io::Result<()>> {
        self.0.rename(from, to)
    }
    fn sync_names(&self) -> BoxFuture<io::Result<()>> {
        self.0.sync_names()
    }
    fn sync_all(&self) -> BoxFuture<io::Result<()>> {
        self.0.sync_all()
    }
    fn space(&self) -> BoxFuture<io::Result<DiskSpace>> {
        let space = self.0.space();
        Box::pin(async move {
            let most = 4 * CAPACITY_BYTES;
            Ok(DiskSpace { total_bytes: most, free_bytes: most, ..space.await? })
        })
    }
    fn tasks(&self, host: &Host) -> Arc<dyn host::Tasks> {
        self.0.tasks(host)
    }
}

/// A file that grows by holes.
struct Sparse(Arc<dyn File>);

impl File for Sparse {
    fn read_at(&self, offset: u64, len: usize) -> BoxFuture<io::Result<Bytes>> {
        self.0.read_at(offset, len)
    }
    fn write_at(&self, offset: u64, pieces: Vec<Bytes>) -> BoxFuture<io::Result<()>> {
        self.0.write_at(offset, pieces)
    }
    fn write_and_sync(&self, writes: Vec<(u64, Vec<Bytes>)>) -> BoxFuture<io::Result<()>> {
        self.0.write_and_sync(writes)
    }
    fn sync_data(&self) -> BoxFuture<io::Result<()>> {
        self.0.sync_data()
    }
    fn len(&self) -> BoxFuture<io::Result<u64>> {
        self.0.len()
    }
    fn set_len(&self, len: u64) -> BoxFuture<io::Result<()>> {
        self.0.set_len(len)
    }
    fn allocate(&self, len: u64) -> BoxFuture<io::Result<()>> {
        let file = Arc::clone(&self.0);
        Box::pin(async move { if file.len().await? < len { file.set_len(len).await } else { Ok(()) } })
    }
    fn change_mark(&self) -> BoxFuture<io::Result<u128>> {
        self.0.change_mark()
    }
    fn descriptor(&self) -> Option<Arc<dyn std::os::fd::AsFd + Send + Sync>> {
        self.0.descriptor()
    }
}

/// The host and the disks of the study's machine.
pub struct Rig {
    host: Host,
    disks: Vec<Arc<dyn Disk>>,
    consensus: Arc<dyn Disk>,
}

impl Rig {
    /// A rig in this folder, which may already have a machine.
    pub fn new(folder: &Path) -> Result<Rig> {
        let open = |name: &str| -> Result<Arc<dyn Disk>> {
            let path = folder.join(name);
            fs::create_dir_all(&path).with_context(|| format!("create {}", path.display()))?;
            let disk: Arc<dyn Disk> = RealDisk::open(&path).with_context(|| format!("open {}", path.display()))?;
            Ok(Arc::new(Roomy(disk)))
        };
        let disks = (0..STORE_COUNT).map(|store| open(&format!("store-{store}"))).collect::<Result<_>>()?;
        let host = host::real::host(tokio::runtime::Handle::current()).context("this machine")?;
        Ok(Rig { host, disks, consensus: open("consensus")? })
    }

    fn places(&self) -> Vec<StorePlace> {
        self.disks.iter().cloned().map(StorePlace::Disk).collect()
    }

    /// Starts the machine.
    pub async fn start(&self) -> Result<CoreMachine> {
        let run = Run {
            cache_bytes: CACHE_BYTES,
            root_mode: 0o755,
            root_uid: 0,
            root_gid: 0,
            index_range_len: INDEX_RANGE_LEN,
            manager_lengths: Lengths::LARGEST,
            accepts_loss: false,
            claim: cluster::Claim::NONE,
        };
        CoreMachine::start(self.host.clone(), &self.places(), &self.consensus, run).await.context("start the machine")
    }

    /// Makes a machine with this many full segments of this many files, and stops it.
    pub async fn make(&self, segments: u64, files: u64) -> Result<()> {
        let create = Create {
            parity: PARITY,
            block_size: BLOCK_SIZE,
            manager_count: 1,
            store_capacity_bytes: Some(CAPACITY_BYTES),
        };
        machine::create(&self.host, &self.places(), &self.consensus, create).await.context("create")?;
        let machine = self.start().await?;
        machine.client.sync().await.context("sync")?;
        let manager = machine.servers().into_iter().next().context("a manager")?;
        let before = manager.applied(CLIENT_LOG).unwrap_or(0);
        let last = machine.stripe.log_segments(CLIENT_LOG, before).await?.into_iter().max().context("a segment")?;
        let plan = Plan { last, segments, files, payload_len: machine.stripe.payload_len_max() };
        let mut unsaved = 0;
        for at in 1..=segments {
            unsaved += plan.files_of(at).count() as u64;
            manager.apply(vec![plan.deltas(at)]).await.context("apply")?;
            if unsaved >= FILES_PER_CHECKPOINT {
                crate::command::check_interrupt()?;
                manager.checkpoint().await.context("checkpoint")?;
                unsaved = 0;
            }
        }
        let fs = machine.config.fs;
        machine.stop().await.context("stop")?;
        drop(machine);
        for (index, disk) in self.disks.iter().enumerate() {
            let headers = (1..=segments).map(|at| plan.header(fs, at, index as u8));
            list_fragments(disk.as_ref(), headers).await.context("list fragments")?;
        }
        Ok(())
    }
}

/// The segments and files to make.
struct Plan {
    /// The segment before all.
    last: SegmentId,
    segments: u64,
    files: u64,
    payload_len: u32,
}

impl Plan {
    fn segment(&self, at: u64) -> SegmentId {
        SegmentId { seq: self.last.seq + at, ..self.last }
    }

    fn files_of(&self, at: u64) -> std::ops::Range<u64> {
        let first = |at: u64| (u128::from(self.files) * u128::from(at) / u128::from(self.segments)) as u64;
        first(at - 1)..first(at)
    }

    /// The files of a segment share its bytes.
    fn deltas(&self, at: u64) -> SegmentDeltas {
        let (segment, files) = (self.segment(at), self.files_of(at));
        let len = self.payload_len / (files.end - files.start).max(1) as u32;
        let deltas = files.clone().flat_map(|number| {
            let file = FileId::new(FILE_FIRST + number);
            let offset = (number - files.start) as u32 * len;
            let extent = Extent { first: 0, count: len.div_ceil(BLOCK_SIZE), addr: BlockAddr { segment, offset, len } };
            [Delta::Inode(inode(file, len.into())), Delta::Blocks { file, extent }]
        });
        SegmentDeltas { segment, order: at, deltas: Arc::new(deltas.collect()) }
    }

    fn header(&self, fs: types::FsUuid, at: u64, index: u8) -> FragmentHeader {
        let len = self.payload_len;
        let members = (0..STORE_COUNT).map(StoreId::new).collect();
        FragmentHeader {
            fs,
            id: FragmentId { segment: self.segment(at), index },
            attempt: 0,
            geometry: Geometry { k: 1, m: PARITY, fragment_len: len, payload_len: len, members },
            delta_offset: len,
            previous: Some(self.segment(at - 1)),
            order: at,
            chunk_crcs: vec![0; len.div_ceil(CHUNK_LEN) as usize],
            len,
        }
    }
}

fn inode(id: FileId, size: u64) -> InodeRecord {
    let time = Time { sec: 1, nsec: 0 };
    InodeRecord {
        id,
        kind: Kind::File,
        mode: 0o644,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        size,
        stored_bytes: size,
        atime: time,
        mtime: time,
        ctime: time,
        crtime: time,
        parent: FileId::new(0),
        shape: DirectoryShape::default(),
    }
}
