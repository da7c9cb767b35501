//! Begins to export a file system.

use crate::claims::Claims;
use crate::company::Company;
use crate::durable::make_durable;
use crate::export::Export;
use crate::exported::{Exported, look_now_and_then, notice};
use crate::live::Live;
use crate::seen::Seen;
use crate::state::HomeRecord;
use crate::uploading::tidy;
use crate::volume::OTHERS;
use host::Host;
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::watch;
use types::{FileId, FsError};

impl Exported {
    /// Begins to export a file system, and looks at everything that clients know of.
    pub(crate) async fn open(
        host: &Host,
        live: &Arc<Mutex<Live>>,
        name: &str,
        fs: Arc<dyn Export>,
    ) -> Result<Arc<Exported>, FsError> {
        if live.lock().volume(name).is_none() {
            let epoch = host.random.next_u64();
            live.lock().record(HomeRecord::Volume { name: name.to_string(), epoch });
        }
        {
            let mut live = live.lock();
            let start = live.volume(name).ok_or(FsError::Stale)?.run_start(host.clock.wall());
            live.record(HomeRecord::Run { volume: name.to_string(), start });
        }
        let volume = Arc::new(Exported {
            name: name.to_string(),
            fs,
            live: live.clone(),
            sources: Mutex::default(),
            told_of: Mutex::default(),
            unwatched: watch::Sender::default(),
            applying: tokio::sync::Mutex::default(),
            turns: Mutex::default(),
            seen: Seen::default(),
            telling: tokio::sync::Mutex::default(),
            scene: tokio::sync::RwLock::default(),
            uploads: Mutex::default(),
            promises: Mutex::default(),
            kept_before: Mutex::default(),
            arrived: watch::Sender::new(0),
            claims: Claims::new(host, live.lock().state.delegated(name)),
            company: Company::default(),
        });
        let root = volume.fs.getattr(FileId::ROOT).await?;
        let identity = volume.fs.identity(FileId::ROOT).await?;
        volume.saw(&root, &identity, None, OTHERS);
        volume.finish_operations().await?;
        volume.forget_promises();
        volume.clear_own().await?;
        volume.look_at_all().await?;
        host.tasks.spawn(Box::pin(notice(Arc::downgrade(&volume))));
        host.tasks.spawn(Box::pin(tidy(Arc::downgrade(&volume), host.clock.clone())));
        host.tasks.spawn(Box::pin(make_durable(Arc::downgrade(&volume), host.clock.clone())));
        host.tasks.spawn(Box::pin(look_now_and_then(Arc::downgrade(&volume), host.clock.clone())));
        Ok(volume)
    }
}
