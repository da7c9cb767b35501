//! A folder that one storage server serves: with a store, or with nothing yet, until the one who
//! creates a file system has a store made in it.

use crate::api::{Identity, Presence, StorageError};
use crate::files::Files;
use crate::server::{OpenError, Server};
use host::{Disk, Host};
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use types::{FsUuid, StoreId};

/// The file that a storage server's process may log to; an empty folder may have it.
pub const LOG: &str = "starling.log";

/// True if a store can be made in the folder: there is nothing, or what a creation that was cut
/// short has left (which is completed to empty files).
pub async fn is_empty(disk: &dyn Disk) -> io::Result<bool> {
    let mut names = disk.list().await?;
    names.retain(|name| name != LOG);
    if names.is_empty() || !names.iter().all(|name| Files::is_name(name)) {
        return Ok(names.is_empty());
    }
    Ok(matches!(Files::open(disk).await?.newest_head().await, Err(OpenError::NotAStore)))
}

/// See the module's header.
pub struct Site {
    host: Host,
    disk: Arc<dyn Disk>,
    server: Mutex<Option<Arc<Server>>>,
    /// Held while a store is made.
    making: tokio::sync::Mutex<()>,
}

impl Site {
    /// Opens the store, if there is one. Errs if what is there cannot be opened.
    pub async fn open(host: Host, disk: Arc<dyn Disk>) -> Result<Arc<Site>, OpenError> {
        let empty = is_empty(disk.as_ref()).await?;
        let server = match empty {
            true => None,
            false => Some(Server::open(host.clone(), disk.clone()).await?),
        };
        Ok(Arc::new(Site { host, disk, server: Mutex::new(server), making: tokio::sync::Mutex::default() }))
    }

    fn server(&self) -> Option<Arc<Server>> {
        self.server.lock().clone()
    }

    /// What is there.
    pub async fn presence(&self) -> io::Result<Presence> {
        match self.server() {
            Some(server) => Ok(Presence::Store(server.identity())),
            None => Ok(Presence::Empty(self.disk.space().await?)),
        }
    }

    /// Makes a store. Refused ([`OpenError::Foreign`]) if there is one.
    pub async fn initialise(&self, identity: Identity) -> Result<(), OpenError> {
        let _one_at_a_time = self.making.lock().await;
        if self.server().is_some() {
            return Err(OpenError::Foreign);
        }
        let server = Server::create(self.host.clone(), self.disk.clone(), identity).await?;
        *self.server.lock() = Some(server);
        Ok(())
    }

    /// The store, if it is this one.
    pub fn store(&self, fs: FsUuid, store: StoreId) -> Option<Arc<Server>> {
        self.server().filter(|server| (server.identity().fs, server.identity().store) == (fs, store))
    }

    /// Closes the store, as [`Server::close`].
    pub async fn close(&self) -> Result<(), StorageError> {
        let _one_at_a_time = self.making.lock().await;
        match self.server() {
            Some(server) => server.close().await,
            None => Ok(()),
        }
    }
}
