//! Stores that all clients see before they are done: partial write-back (Zhao and Figueiredo,
//! section 4.3).
//!
//! A client that has changed much of a file and is to let others read it returns its delegation at
//! once, and says what its store will change. From then on, all clients see the file as the store
//! will make it. The home reads bytes that have come from the upload, asks the client first for
//! those that have not, and reads what the store leaves alone from the file. No client changes the
//! file meanwhile. Nothing changes in the file system behind before the whole store is applied.
//!
//! If the client is not heard of, or sends nothing, for as long as a lease, or if the home crashes,
//! the file is what it was before. That is a change like any other. The home still does the store
//! when it comes, unless another client or program has changed the file by then.
//!
//! Invariant: contents that clients were told under some number stay the same for as long as they
//! have that number.

use crate::Inner;
use crate::exported::Exported;
use crate::promised_store::Promise;
use crate::state::HomeRecord;
use crate::volume::OTHERS;
use crate::whose::{Whose, cred};
use bytes::Bytes;
use host::{Clock, timeout};
use parking_lot::Mutex;
use roam_proto::delegation::{Behind, LEASE};
use roam_proto::message::Pushed;
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Duration;
use types::{FileId, FsError, Kind};
use vfs::fs::Handle;

/// How long a read waits at most for promised bytes. The client hears of the failure before it
/// takes the home to be out of reach, and asks again.
const WAIT_MAX: Duration = Duration::from_secs(4);
/// A promised store that is not done within this time is given up.
const TIME_MAX: Duration = Duration::from_secs(600);
/// How often the home looks whether a client does what it promised.
const LOOK_PERIOD: Duration = Duration::from_secs(1);

impl Exported {
    /// Takes a client's promise to do a store, with which it returns a delegation. EINVAL if it
    /// cannot promise that: it has to send everything before it returns the delegation.
    pub(crate) async fn promise(
        self: &Arc<Self>,
        home: &Inner,
        whose: &Whose,
        recall: u64,
        behind: Behind,
    ) -> Result<(), FsError> {
        let Behind { seq, base, change } = behind;
        let file = self.claims.recalled(whose.author, recall).ok_or(FsError::InvalidArgument)?;
        let one_at_a_time = self.applying.lock().await;
        if !change.fits(vfs::fs::FILE_SIZE_MAX) || self.has_ended(whose, seq)? {
            return Err(FsError::InvalidArgument);
        }
        let user = cred(&whose.user);
        let place = self.with(|volume| volume.file(file).and_then(|file| file.place().cloned()))?;
        self.check_reach(&user, place.ok_or(FsError::Stale)?.0).await?;
        // Requests that look see the file and its promise together.
        let scene = self.scene.write().await;
        let (source, entry) = self.glance(file, OTHERS).await?;
        if entry.attr.kind != Kind::File {
            return Err(FsError::InvalidArgument);
        }
        self.check_write(&user, source, &entry).await?;
        {
            let mut live = self.live.lock();
            let mut promises = self.promises.lock();
            let volume = live.volume(&self.name).ok_or(FsError::Stale)?;
            let base = volume.base(base);
            let as_known = volume.file(file).is_some_and(|file| file.contents.is_as_known(base, whose.author));
            let learned = volume.rewritten(file, whose.author).filter(|_| as_known && !promises.contains_key(&file));
            let learned = learned.ok_or(FsError::InvalidArgument)?;
            let contents = learned.file.contents.seq;
            live.record(HomeRecord::Promised { key: whose.key, volume: self.name.clone(), file, contents });
            live.learn(&self.name, learned, whose.author);
            let claim = self.claims.returned_to_read(whose.author, recall, file);
            let (whose, begun) = (whose.clone(), home.host.clock.now());
            let promise = Promise { file, whose, seq, change, contents, claim, begun, progressed: Mutex::new(begun) };
            let promise = Arc::new(promise);
            promises.insert(file, promise.clone());
            let looking = look_after(Arc::downgrade(self), promise, home.host.clock.clone());
            home.host.tasks.spawn(Box::pin(looking));
        }
        // Clients that are answered or told wait until the promise is durable. No other request has
        // to.
        drop((scene, one_at_a_time));
        self.tell().await;
        Ok(())
    }

    /// Returns the promise of a file's contents of this number.
    pub(crate) fn promised(&self, file: FileId, contents: u64) -> Option<Arc<Promise>> {
        self.promises.lock().get(&file).filter(|promise| promise.contents == contents).cloned()
    }

    /// Returns the client's promise of the store of this number.
    pub(crate) fn promised_by(&self, whose: &Whose, seq: u64) -> Option<Arc<Promise>> {
        let promises = self.promises.lock();
        promises.values().find(|promise| promise.is_by(whose, seq)).cloned()
    }

    /// Ends the promise of a store that has ended, or is given up. If the store is not done, the
    /// file's contents get a new number.
    pub(crate) fn conclude(&self, whose: &Whose, seq: u64, done: bool) {
        let Some(promise) = self.promised_by(whose, seq) else { return };
        let (file, author) = (promise.file, whose.author);
        if !done {
            // No claim has made other clients return the file, so all are told.
            self.learn(OTHERS, |volume| {
                let is_so = volume.file(file).is_some_and(|file| file.contents.seq == promise.contents);
                volume.rewritten(file, author).filter(|_| is_so)
            });
        }
        self.promises.lock().remove(&file);
        self.live.lock().record(HomeRecord::Concluded { key: whose.key, volume: self.name.clone(), file });
        self.claims.end(promise.claim);
    }

    /// Ends all promises of a client, which will not keep them.
    pub(crate) async fn break_promises(&self, author: u32) {
        // An operation that keeps one of them may be under way.
        let _one_at_a_time = self.applying.lock().await;
        let promised: Vec<Arc<Promise>> = self.promises.lock().values().cloned().collect();
        for promise in promised.into_iter().filter(|promise| promise.whose.author == author) {
            self.conclude(&promise.whose, promise.seq, false);
        }
        self.tell().await;
    }

    /// Ends the promises of an earlier run. The stores may still come.
    pub(crate) fn forget_promises(&self) {
        let mut live = self.live.lock();
        let mut promised = Vec::new();
        for (key, client) in &live.state.clients {
            let grant = client.grants.get(&self.name);
            let files = grant.into_iter().flat_map(|grant| &grant.promised);
            promised.extend(files.map(|(file, contents)| (*key, client.number, *file, *contents)));
        }
        for (key, author, file, contents) in promised {
            let known = live.volume(&self.name);
            let is_so = known.and_then(|volume| volume.file(file)).is_some_and(|file| file.contents.seq == contents);
            if let Some(learned) = known.and_then(|volume| volume.rewritten(file, author)).filter(|_| is_so) {
                live.learn(&self.name, learned, author);
            }
            live.record(HomeRecord::Concluded { key, volume: self.name.clone(), file });
        }
    }

    /// Notes that a client has sent bytes of a store.
    pub(crate) fn progresses(&self, whose: &Whose, seq: u64, now: Duration) {
        if let Some(promise) = self.promised_by(whose, seq) {
            *promise.progressed.lock() = now;
            self.arrived.send_modify(|count| *count += 1);
        }
    }

    /// Waits until the bytes of a range have come, if they are promised. EBUSY: they may come
    /// later.
    pub(crate) async fn wait_for(&self, file: FileId, contents: u64, range: Range<u64>) -> Result<(), FsError> {
        let Some(promise) = self.promised(file, contents) else { return Ok(()) };
        let clock = self.claims.clock();
        let (end, mut asked) = (clock.now() + WAIT_MAX, false);
        loop {
            let mut arrived = self.arrived.subscribe();
            let upload = self.uploads.lock().get(promise.whose.author, promise.seq);
            let have = match upload {
                Some(upload) => upload.lock().await.have.clone(),
                None => Default::default(),
            };
            let wanted = promise.change.ranges.within(range.clone());
            let missing = wanted
                .flat_map(|(range, at)| have.missing(at..at + (range.end - range.start)).iter().collect::<Vec<_>>());
            let missing: Vec<_> = missing.collect();
            if missing.is_empty() || self.promised(file, contents).is_none() {
                return Ok(());
            }
            if !std::mem::replace(&mut asked, true) {
                for Range { start, end } in missing {
                    let wanted = Pushed::Wanted { seq: promise.seq, offset: start, len: end - start };
                    self.claims.push(promise.whose.author, &wanted);
                }
            }
            let now = clock.now();
            if now >= end {
                return Err(FsError::Busy);
            }
            let _ = timeout(&**clock, (end - now).min(LOOK_PERIOD), arrived.changed()).await;
        }
    }

    /// Reads a file as its store will make it. EBUSY if bytes of the store have not come.
    pub(crate) async fn read_promised(
        &self,
        promise: &Promise,
        (source, handle): (FileId, Handle),
        range: Range<u64>,
    ) -> Result<Bytes, FsError> {
        let change = &promise.change;
        let range = range.start.min(change.size)..range.end.min(change.size);
        let mut bytes = vec![0; (range.end - range.start) as usize];
        for kept in change.ranges.missing(range.start..range.end.min(change.cut).max(range.start)).iter() {
            let mut at = kept.start;
            while at < kept.end {
                let some = self.fs.read(source, handle, at, (kept.end - at) as u32).await?;
                if some.is_empty() {
                    break;
                }
                bytes[(at - range.start) as usize..][..some.len()].copy_from_slice(&some);
                at += some.len() as u64;
            }
        }
        let upload = self.uploads.lock().get(promise.whose.author, promise.seq);
        for (stored, from) in change.ranges.within(range.clone()) {
            let upload = upload.as_ref().ok_or(FsError::Busy)?.lock().await;
            let len = stored.end - stored.start;
            let (id, handle) = upload.open.ok_or(FsError::Busy)?;
            if !upload.have.missing(from..from + len).is_empty() {
                return Err(FsError::Busy);
            }
            let some = self.fs.read(id, handle, from, len as u32).await?;
            bytes[(stored.start - range.start) as usize..][..some.len()].copy_from_slice(&some);
        }
        Ok(bytes.into())
    }
}

/// Watches over a promise, as long as the client does its part.
async fn look_after(volume: Weak<Exported>, promise: Arc<Promise>, clock: Arc<dyn Clock>) {
    loop {
        clock.sleep(LOOK_PERIOD).await;
        let Some(volume) = volume.upgrade() else { return };
        let now = clock.now();
        let goes_on = volume.claims.has_kept(promise.whose.author)
            && now < *promise.progressed.lock() + LEASE
            && now < promise.begun + TIME_MAX;
        if goes_on && volume.promised_by(&promise.whose, promise.seq).is_some() {
            continue;
        }
        // An operation that keeps the promise may be under way.
        let _one_at_a_time = volume.applying.lock().await;
        volume.conclude(&promise.whose, promise.seq, false);
        volume.tell().await;
        return;
    }
}
