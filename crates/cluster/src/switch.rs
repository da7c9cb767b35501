//! A store whose place can change while it is used.

use bytes::Bytes;
use host::Tasks;
use parking_lot::RwLock;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use storage::api::{Seal, Storage, StorageError, StoreStatus};
use storage::server::StoreServer;
use striped_log::fragment::{Fragment, FragmentHeader};
use tokio::sync::OwnedRwLockWriteGuard;
use types::{BoxFuture, FragmentId, LogId, Maps, SegmentId};

/// A store, wherever it is at the moment. It passes each request on. While it is
/// [held](Self::hold), changes wait, and reads go on.
#[derive(Clone)]
pub struct SwitchStore(Arc<Switch>);

struct Switch {
    place: RwLock<Place>,
    /// Changes hold it shared, a move holds it alone.
    gate: Arc<tokio::sync::RwLock<()>>,
}

/// Where requests go.
#[derive(Clone)]
struct Place {
    store: Arc<dyn Storage>,
    /// Where tasks that put into it best run.
    tasks: Option<Arc<dyn Tasks>>,
}

/// While it lives, no change reaches the store.
pub struct HeldStore(#[expect(dead_code, reason = "its drop lets changes through")] OwnedRwLockWriteGuard<()>);

impl SwitchStore {
    /// A store that is at this place for now.
    pub fn new(store: Arc<dyn Storage>) -> SwitchStore {
        Self::at(Place { store, tasks: None })
    }

    /// A store of this process.
    pub fn of_server(server: &Arc<StoreServer>) -> SwitchStore {
        Self::at(Place { store: server.clone(), tasks: Some(server.tasks().clone()) })
    }

    fn at(place: Place) -> SwitchStore {
        SwitchStore(Arc::new(Switch { place: RwLock::new(place), gate: Arc::default() }))
    }

    /// Where requests go at the moment.
    pub fn now(&self) -> Arc<dyn Storage> {
        self.0.place.read().store.clone()
    }

    /// Where tasks that put into the store best run, if that is known.
    pub fn tasks(&self) -> Option<Arc<dyn Tasks>> {
        self.0.place.read().tasks.clone()
    }

    /// Sends requests to another place from now on. Those under way go on where they are.
    pub fn set(&self, store: Arc<dyn Storage>) {
        *self.0.place.write() = Place { store, tasks: None };
    }

    /// Like [`set`](Self::set), for a store of this process.
    pub fn set_server(&self, server: &Arc<StoreServer>) {
        *self.0.place.write() = Place { store: server.clone(), tasks: Some(server.tasks().clone()) };
    }

    /// Holds changes up, and waits until those under way have ended.
    pub async fn hold(&self) -> HeldStore {
        HeldStore(self.0.gate.clone().write_owned().await)
    }

    /// Sends a change. It waits while the store is held.
    fn change<T: Send + 'static>(
        &self,
        request: impl FnOnce(&dyn Storage) -> BoxFuture<Result<T, StorageError>> + Send + 'static,
    ) -> BoxFuture<Result<T, StorageError>> {
        match self.0.gate.clone().try_read_owned() {
            Ok(passed) => {
                // Sent at once, as callers expect of a store.
                let answer = request(&*self.now());
                Box::pin(async move {
                    let answer = answer.await;
                    drop(passed);
                    answer
                })
            }
            Err(_) => {
                let store = self.clone();
                Box::pin(async move {
                    let passed = store.0.gate.clone().read_owned().await;
                    let answer = request(&*store.now()).await;
                    drop(passed);
                    answer
                })
            }
        }
    }
}

impl Storage for SwitchStore {
    fn put(&self, fragment: Fragment) -> BoxFuture<Result<(), StorageError>> {
        self.change(|store| store.put(fragment))
    }
    fn read(&self, id: FragmentId, attempt: u16, range: Range<u32>) -> BoxFuture<Result<Bytes, StorageError>> {
        self.now().read(id, attempt, range)
    }
    fn put_behind(&self, fragment: Fragment) -> BoxFuture<Result<(), StorageError>> {
        self.change(|store| store.put_behind(fragment))
    }
    fn read_behind(&self, id: FragmentId, attempt: u16, range: Range<u32>) -> BoxFuture<Result<Bytes, StorageError>> {
        self.now().read_behind(id, attempt, range)
    }
    fn rest(&self) -> BoxFuture<Result<Duration, StorageError>> {
        self.now().rest()
    }
    fn describe(&self, segment: SegmentId) -> BoxFuture<Result<Vec<FragmentHeader>, StorageError>> {
        self.now().describe(segment)
    }
    fn list(
        &self,
        log: LogId,
        from_seq: u64,
        count_max: usize,
    ) -> BoxFuture<Result<Vec<FragmentHeader>, StorageError>> {
        self.now().list(log, from_seq, count_max)
    }
    fn segments(&self) -> BoxFuture<Result<Vec<(SegmentId, u64)>, StorageError>> {
        self.now().segments()
    }
    fn delete(&self, segments: Vec<SegmentId>) -> BoxFuture<Result<(), StorageError>> {
        self.change(|store| store.delete(segments))
    }
    fn seal(&self, seal: Seal) -> BoxFuture<Result<Seal, StorageError>> {
        self.change(|store| store.seal(seal))
    }
    fn seals(&self) -> BoxFuture<Result<Vec<Seal>, StorageError>> {
        self.now().seals()
    }
    fn put_maps(&self, maps: Maps) -> BoxFuture<Result<(), StorageError>> {
        self.change(|store| store.put_maps(maps))
    }
    fn maps(&self) -> BoxFuture<Result<Maps, StorageError>> {
        self.now().maps()
    }
    fn verify(&self, id: FragmentId) -> BoxFuture<Result<(), StorageError>> {
        self.now().verify(id)
    }
    fn status(&self) -> BoxFuture<Result<StoreStatus, StorageError>> {
        self.now().status()
    }
}
