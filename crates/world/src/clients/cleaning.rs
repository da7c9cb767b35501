//! Cleaning, while clients work: the machine with all roles asks clients to copy what they wrote.
//!
//! Requests and answers take their time, and may be lost. A request may come twice.

use super::wire::Session;
use client::Client;
use cluster::cleaner::{Copier, Writers};
use host::sim::Machine;
use host::{Either, first};
use manager::api::{BlockAt, ManagerError};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use types::{BoxFuture, LogId};

/// A client that can be asked.
#[derive(Clone)]
pub(super) struct Site {
    pub(super) on: Machine,
    pub(super) client: Client,
    pub(super) session: Arc<Session>,
}

/// The clients far away.
#[derive(Clone, Default)]
pub(super) struct Sites(Arc<All>);

#[derive(Default)]
struct All {
    by_log: Mutex<BTreeMap<LogId, Site>>,
    /// Requests that were done, and answered.
    done_count: AtomicU64,
}

impl Sites {
    /// A client has come.
    pub(super) fn come(&self, log: LogId, site: Site) {
        self.0.by_log.lock().insert(log, site);
    }

    /// Number of requests that were done, and answered.
    pub(super) fn done_count(&self) -> u64 {
        self.0.done_count.load(SeqCst)
    }
}

impl Writers for Sites {
    fn writer(&self, log: LogId) -> Option<Arc<dyn Copier>> {
        let site = self.0.by_log.lock().get(&log).filter(|site| !site.session.is_over()).cloned()?;
        Some(Arc::new(Asked { site, sites: self.clone() }))
    }
}

struct Asked {
    site: Site,
    sites: Sites,
}

impl Site {
    /// A request that arrives, and its answer.
    async fn ask(self, runs: Vec<BlockAt>) -> Result<(), ManagerError> {
        let Site { on, client, session } = self;
        let asked = async {
            session.delay().await;
            let done = on.run(async move { client.relocate(runs).await }).await;
            session.delay().await;
            done.unwrap_or(Err(ManagerError::Away))
        };
        match first(Box::pin(asked), session.ended()).await {
            Either::Left(done) => done,
            Either::Right(()) => Err(ManagerError::Away),
        }
    }

    /// A request without an answer.
    fn tell(&self, runs: &[BlockAt]) {
        let asked = self.clone().ask(runs.to_vec());
        self.session.network().host.tasks.spawn(Box::pin(async move {
            let _ = asked.await;
        }));
    }
}

impl Copier for Asked {
    fn relocate(&self, runs: Vec<BlockAt>) -> BoxFuture<Result<(), ManagerError>> {
        let random = &self.site.session.network().random;
        if random.chance(1, 10) {
            return Box::pin(std::future::ready(Err(ManagerError::Away)));
        }
        if random.chance(1, 10) {
            self.site.tell(&runs);
        }
        if random.chance(1, 10) {
            self.site.tell(&runs);
            return Box::pin(std::future::ready(Err(ManagerError::Away)));
        }
        let (asked, sites) = (self.site.clone().ask(runs), self.sites.clone());
        Box::pin(async move {
            let done = asked.await;
            sites.0.done_count.fetch_add(done.is_ok().into(), SeqCst);
            done
        })
    }
}
