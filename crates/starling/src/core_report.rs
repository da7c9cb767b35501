//! What a process that serves a file system of the core says of itself.

use crate::location::Location;
use crate::node::places::PlaceRecord;
use crate::recording::Recordings;
use crate::roaming_status::seconds_left;
use cluster::CoreMachine;
use cluster::maps::MapsStatus;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex, PoisonError};
use stripe::{ScrubReport, StoreState};
use tokio::sync::mpsc;

/// What a process that serves a file system of the core consists of.
pub struct ServedCore {
    /// The roles.
    pub machine: CoreMachine,
    /// The places of its stores.
    pub places: Arc<PlaceRecord>,
    /// The mount, until it ends.
    pub mount: Mutex<Option<fuse::Mount>>,
    /// The recordings of the mount.
    pub recording: Arc<Recordings>,
}

fn state_name(state: &StoreState) -> &'static str {
    match state {
        StoreState::Up => "up",
        StoreState::Failing => "failing",
        StoreState::Absent => "absent",
    }
}

/// The state of the consensus folder and of the maps, as JSON.
pub fn maps_json(status: &MapsStatus) -> Value {
    let state = match (&status.voter, &status.rebuilt) {
        (Err(_), _) => "unusable",
        (Ok(voter), _) if voter.stopped.is_some() => "stopped",
        (Ok(_), Some(_)) => "rebuilt from the stores",
        (Ok(_), None) => "ok",
    };
    let voter = status.voter.as_ref();
    let stopped = voter.ok().and_then(|v| v.stopped.as_ref());
    json!({
        "state": state,
        "reason": voter.err().or(stopped).or(status.rebuilt.as_ref()),
        "epoch": status.epoch,
        "term": voter.ok().map(|v| v.term),
        "entries": voter.ok().map(|v| v.agreed_count),
    })
}

/// Compares and repairs the stores, and says how far it is.
pub async fn scrub(machine: &CoreMachine, repair: bool, progress: mpsc::Sender<Value>) -> Result<Value, String> {
    let tell = move |p: stripe::ScrubProgress| {
        let value = json!({"done": p.segments_done, "total": p.segments_total, "bad": p.bad_fragments});
        let _ = progress.try_send(value);
    };
    let report = machine.maintenance.scrub(repair, tell).await;
    report.map(|report| scrub_json(&report)).map_err(|e| format!("scrub: {e}"))
}

/// Everything that `status` shows.
pub async fn collect(served: &ServedCore) -> Value {
    let places: Vec<String> = served.places.places().iter().map(Location::shown).collect();
    let mut all = of_machine(&served.machine, &places).await;
    let requests = match &*served.mount.lock().unwrap_or_else(PoisonError::into_inner) {
        Some(mount) => mount.requests(),
        None => Vec::new(),
    };
    all["fuse_requests"] = requests.into_iter().map(|(name, count)| (name.to_string(), json!(count))).collect();
    all
}

/// Counters, and the stores' last reports. It waits for no maintenance round and for no store that
/// hangs. `places` are those of the stores, as users see them.
pub async fn of_machine(machine: &CoreMachine, places: &[String]) -> Value {
    let config = &machine.config;
    let healths = machine.stripe.glance().await;
    let parity_bytes: u64 = healths.iter().filter_map(|s| Some(s.status.as_ref()?.parity_bytes)).sum();
    let stores: Vec<Value> = healths
        .iter()
        .map(|s| {
            json!({
                "id": s.id.raw(),
                "place": places.get(usize::from(s.id.raw())),
                "state": state_name(&s.state),
                "damaged": s.damaged_count,
                // The age of the store's report, which the following fields are from.
                "age_ms": s.status.as_ref().map(|_| s.age.as_millis() as u64),
                "writable": s.status.as_ref().map(|t| t.writable),
                "capacity_bytes": s.status.as_ref().map(|t| t.capacity_bytes),
                "used_bytes": s.status.as_ref().map(|t| t.used_bytes),
                "parity_bytes": s.status.as_ref().map(|t| t.parity_bytes),
                "disk_free_bytes": s.status.as_ref().map(|t| t.disk.free_bytes),
                "fragments": s.status.as_ref().map(|t| t.fragment_count),
            })
        })
        .collect();
    let client = machine.client.status();
    let done = machine.maintenance.done();
    let redundancy = done.redundancy.current(&machine.stripe);
    let managers: Vec<Value> = machine
        .managers
        .iter()
        .map(|m| {
            let s = manager::api::Manager::status(&**m);
            json!({"files": s.file_count, "cached": s.cached_count, "dirty": s.dirty_count, "tokens": s.token_count,
                   "checkpoints": s.checkpoint_count})
        })
        .collect();
    json!({
        "file_system": config.fs.to_string(),
        "parity": config.parity,
        "block_size": config.block_size,
        "stores": stores,
        "consensus": maps_json(&machine.maps.status()),
        "space": {
            "admitted_bytes": client.limit_bytes,
            "used_bytes": client.used_bytes,
            "live_bytes": done.live_bytes,
            "stored_bytes": done.segment_bytes,
            "parity_bytes": parity_bytes,
            "reclaimable_bytes": done.segment_bytes.saturating_sub(
                done.live_bytes + done.live_bytes * u64::from(config.parity) / u64::from(machine.stripe.redundancy().0)),
        },
        "segments": done.segment_count,
        "redundancy": {
            // Unknown if a store has left service or come back since the stores were compared.
            "lacking_segments": redundancy.and_then(|now| now.lacking_count),
            "lost_segments": redundancy.map(|now| now.lost_count),
            "lacking_bytes": redundancy.map(|now| now.lacking_bytes),
            "left_s": redundancy.and_then(|now| now.time_left).map(seconds_left),
            "restored_segments": done.redundancy.restored_count,
            "restored_bytes": done.redundancy.restored_bytes,
        },
        "read_only": client.read_only.map(|why| why.to_string()),
        "uncommitted_bytes": client.dirty_bytes + client.in_flight_bytes,
        "cache": {
            // Reads that were answered from memory; reads that went to stores; and of these, reads
            // that were rebuilt from other fragments.
            "hits": client.cache.hits,
            "misses": client.cache.misses,
            "rebuilt": machine.stripe.rebuilt_count(),
            "inode_misses": client.inode_fetch_count,
            "clean_bytes": client.cache.clean_bytes,
            "pinned_bytes": client.cache.pinned_bytes,
            "inodes": client.inode_count,
        },
        "cleaner": {
            "checkpoints": done.checkpoint_count,
            "deleted_segments": done.deleted_count,
            "cleaned_segments": done.cleaned_count,
            "moved_bytes": done.moved_bytes,
        },
        "managers": managers,
        "recovery": {
            "segments": machine.recovery.segment_count,
            "deltas": machine.recovery.delta_count,
            "milliseconds": machine.recovery.time.as_millis() as u64,
        },
        "messages": client.message_count + machine.stripe.request_count(),
        "frames_sent": link::frames::sent_count(),
        "disk_syncs": host::real::sync_count(),
    })
}

/// A scrub's report as JSON.
fn scrub_json(r: &ScrubReport) -> Value {
    let names = |list: &[types::SegmentId]| list.iter().map(|s| s.to_string()).collect::<Vec<_>>();
    json!({
        "segments": r.segments,
        "fragments": r.fragments,
        "missing": r.missing,
        "damaged": r.damaged,
        "unchecked": r.unchecked,
        "repaired_segments": r.repaired,
        "unrepaired_segments": names(&r.unrepaired),
        "uncertain_segments": names(&r.uncertain),
        "unreadable_segments": names(&r.unreadable),
    })
}
