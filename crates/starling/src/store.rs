//! `starling store`: serves one storage server from a folder, until a signal ends it.

use crate::args::ServedStore;
use crate::location::split_port;
use crate::{background, keys, say, usage};
use anyhow::Context;
use host::real::RealDisk;
use std::process::ExitCode;
use storage::site::Site;
use storage::tcp::serve;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

/// What the process prints when it serves; `background` waits for it.
pub const READY: &str = "store listening at";

/// Runs `starling store`.
pub async fn run(args: ServedStore) -> anyhow::Result<ExitCode> {
    let shown = args.folder.display();
    let keys = args.keys.as_deref().map(keys::of_store).transpose()?;
    let listener = listen(&args.listen, keys.is_some()).await?;
    std::fs::create_dir_all(&args.folder).map_err(|e| usage(format!("cannot make the folder {shown}: {e}")))?;
    let disk = RealDisk::open(&args.folder).map_err(|e| usage(format!("{shown}: {e}")))?;
    disk.lock().map_err(|_| usage(format!("{shown} is in use by another process")))?;
    let host = host::real::host(tokio::runtime::Handle::current()).context("host")?;
    let site = Site::open(host.clone(), disk).await;
    let site = site.map_err(|e| usage(format!("{shown}: {e}; a new store needs an empty folder")))?;
    background::take_over(&args.folder)?;
    let address = listener.local_addr().context("own address")?;
    let (mut interrupt, mut terminate) =
        (signal(SignalKind::interrupt()).context("signals")?, signal(SignalKind::terminate()).context("signals")?);
    host.tasks.spawn(Box::pin(serve(host.clone(), listener, site.clone(), keys)));
    say(&format!("{READY} {address}"));

    host::first(interrupt.recv(), terminate.recv()).await;
    site.close().await.context("close the store")?;
    say("store closed");
    Ok(ExitCode::SUCCESS)
}

/// Listens; without keys, at loopback addresses only.
async fn listen(text: &str, with_keys: bool) -> anyhow::Result<TcpListener> {
    let (host, port) = split_port(text).ok_or_else(|| usage(format!("--listen {text}: write it as ADDRESS:PORT")))?;
    let found = tokio::net::lookup_host((host, port)).await;
    let addresses: Vec<_> = found.map_err(|e| usage(format!("--listen {text}: {e}")))?.collect();
    if !with_keys && !addresses.iter().all(|address| address.ip().is_loopback()) {
        return Err(usage(format!(
            "--listen {text}: other machines could reach this store; give --keys (`starling keys` makes them) and mount it as tls://"
        )));
    }
    TcpListener::bind(&addresses[..]).await.map_err(|e| usage(format!("--listen {text}: {e}")))
}
