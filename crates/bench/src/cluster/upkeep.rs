//! What a cluster costs besides work: memory of tokens, and messages while nothing happens.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::rig::{Cluster, WORKER};
use super::{Effort, NODES};
use crate::process::memory_bytes;
use crate::report::{count, number};
use crate::roam::found::{Figure, Found};
use crate::run::{arguments, work};
use crate::scripted::Site;

/// Most frames per second for each pair of nodes of an idle cluster.
const IDLE_FRAMES_MAX: f64 = 1.0;
/// Most memory of the managers' node for a token, in bytes.
const TOKEN_BYTES_MAX: f64 = 512.0;
const PAIRS: f64 = (NODES * (NODES - 1) / 2) as f64;

pub(super) fn measure(site: &Site, effort: Effort) -> Result<Found> {
    let (files, idle_time) =
        if effort.quick { (2_000, Duration::from_secs(4)) } else { (200_000, Duration::from_secs(60)) };
    let cluster = Cluster::start(site, "upkeep", NODES)?;
    work(&arguments("make-files", &cluster.path(WORKER, "many"), &[("files", files)]))?;
    cluster.sync()?;
    let first = i32::try_from(cluster.process(0)?).context("a process id")?;
    let memory = || memory_bytes(first, "VmRSS").context("the first node has no memory");
    let (bytes_before, tokens_before) = (memory()?, cluster.tokens()?);
    work(&arguments("stat-files", &cluster.path(WORKER + 1, "many"), &[]))?;
    let tokens = cluster.tokens()? - tokens_before;
    let bytes = memory()?.saturating_sub(bytes_before) as f64 / tokens as f64;
    // All that was dirty is committed by now, and the first seconds after work do not count.
    cluster.sync()?;
    cluster.settle()?;
    std::thread::sleep(idle_time / 4);
    let (frames_before, since) = (cluster.frames()?, Instant::now());
    std::thread::sleep(idle_time);
    let rate = (cluster.frames()? - frames_before) as f64 / since.elapsed().as_secs_f64();
    Ok(Found {
        conditions: format!(
            "One node makes {} empty files, and another one looks at all of them: memory is what the first node's process has grown \
             by then. Then nothing happens for {} s.",
            count(files),
            idle_time.as_secs()
        ),
        figures: vec![
            Figure::at_most("frames per second for each pair of nodes, idle", rate / PAIRS, IDLE_FRAMES_MAX, ""),
            Figure::at_most("memory of the managers' node for a token", bytes, TOKEN_BYTES_MAX, " bytes").ours(),
            Figure::beside("tokens granted", count(tokens)),
            Figure::beside("frames per second of all nodes, idle", number(rate)),
        ],
        samples: serde_json::json!({ "tokens": tokens, "bytes_per_token": bytes, "idle_frames_per_s": rate }),
        ..Found::default()
    })
}
