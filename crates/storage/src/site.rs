//! A folder that one storage server serves. It has a store, or it is empty until the program that
//! creates a file system makes a store in it.

use crate::api::{Presence, StorageError, StoreIdentity};
use crate::files::StoreFiles;
use crate::server::{StoreOpenError, StoreServer};
use crate::wire::StoreName;
use host::{Disk, Host};
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;

/// The file that a storage server's process may log to. A folder with only this file counts as
/// empty.
pub const LOG: &str = "starling.log";

/// True if a store can be made in the folder: it is empty, or has the leftovers of a creation that
/// was cut short. In that case, creates the missing ones of the store's files, empty.
pub async fn is_empty(disk: &dyn Disk) -> io::Result<bool> {
    let mut names = disk.list().await?;
    names.retain(|name| name != LOG);
    if names.is_empty() || !names.iter().all(|name| StoreFiles::is_name(name)) {
        return Ok(names.is_empty());
    }
    Ok(matches!(StoreFiles::open(disk).await?.newest_head().await, Err(StoreOpenError::NotAStore)))
}

/// Removes the store from a folder, and nothing else. It must not be open.
pub async fn clear(disk: &dyn Disk) -> io::Result<()> {
    for name in disk.list().await?.iter().filter(|name| StoreFiles::is_name(name)) {
        disk.remove(name).await?;
    }
    disk.sync_names().await
}

/// The folder that a storage server serves, and its store, if there is one.
pub struct Site {
    host: Host,
    disk: Arc<dyn Disk>,
    server: Mutex<Option<Arc<StoreServer>>>,
    /// Held while a store is made.
    making: tokio::sync::Mutex<()>,
}

impl Site {
    /// Opens the store, if there is one. Fails if the folder is not empty and has no store that can
    /// be opened.
    pub async fn open(host: Host, disk: Arc<dyn Disk>) -> Result<Arc<Site>, StoreOpenError> {
        let empty = is_empty(disk.as_ref()).await?;
        let server = match empty {
            true => None,
            false => Some(StoreServer::open(host.clone(), disk.clone()).await?),
        };
        Ok(Arc::new(Site { host, disk, server: Mutex::new(server), making: tokio::sync::Mutex::default() }))
    }

    fn server(&self) -> Option<Arc<StoreServer>> {
        self.server.lock().clone()
    }

    /// The store's identity, if there is a store.
    pub fn identity(&self) -> Option<StoreIdentity> {
        self.server().map(|server| server.identity())
    }

    /// The store, or the room for one.
    pub async fn presence(&self) -> io::Result<Presence> {
        match self.server() {
            Some(server) => Ok(Presence::Store(server.identity())),
            None => Ok(Presence::Empty(self.disk.space().await?)),
        }
    }

    /// Makes a store. Fails with [`StoreOpenError::Foreign`] if there is one.
    pub async fn initialise(&self, identity: StoreIdentity) -> Result<(), StoreOpenError> {
        let _one_at_a_time = self.making.lock().await;
        if self.server().is_some() {
            return Err(StoreOpenError::Foreign);
        }
        let server = StoreServer::create(self.host.clone(), self.disk.clone(), identity).await?;
        *self.server.lock() = Some(server);
        Ok(())
    }

    /// The store, if it is the one with this name.
    pub fn store(&self, name: StoreName) -> Option<Arc<StoreServer>> {
        self.server().filter(|server| (server.identity().fs, server.identity().store) == (name.fs, name.store))
    }

    /// Closes the store, as [`StoreServer::close`] does.
    pub async fn close(&self) -> Result<(), StorageError> {
        let _one_at_a_time = self.making.lock().await;
        match self.server() {
            Some(server) => server.close().await,
            None => Ok(()),
        }
    }
}
