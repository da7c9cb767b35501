//! Answers the commands about a roaming mount: for all its volumes, or for the one that the
//! command's path leads to.

use crate::args::Behaviour;
use crate::attributes::Meant;
use crate::conflicts::{BASE, CASE};
use crate::control::{self, Request, not_here};
use crate::node::who;
use crate::recording::Recordings;
use crate::{hoarding, names, private};
use host::{Clock, join_all};
use roam::conflict::Case;
use roam::replica::Paths;
use roam::schedule::Direction;
use roam::{Client, Fullness, LinkState, SettingError, Writes};
use roam_proto::codec::Wire;
use roam_proto::operation::{Operation, Place};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use types::{BoxFuture, FsError, Time};
use vfs::FileSystem;

/// Folder of a cache that has the state of each volume.
const STATE: &str = "state";
/// Folder of a cache that keeps the versions of resolved conflicts.
const RESOLVED: &str = "resolved";

/// How long `starling set` and `starling connect` wait until the mount is attached to its home.
const ATTACH_TIME_MAX: Duration = Duration::from_secs(2);

/// A volume of a mount.
#[derive(Clone)]
pub struct Volume {
    pub name: String,
    pub client: Client,
}

/// A roaming mount.
pub struct Mounted {
    /// A single volume is the whole mount; of several, each is a directory of it.
    pub volumes: Vec<Volume>,
    pub clock: Arc<dyn Clock>,
    /// Addresses of the home.
    pub home: Vec<String>,
    /// Folder of the cache.
    pub cache: PathBuf,
    /// How the kernel reads long cached files: by passthrough, or by requests.
    pub reads: &'static str,
    /// The recordings of the mount.
    pub recording: Arc<Recordings>,
}

/// The folder of a volume's state in a cache.
pub fn state_folder(cache: &Path, volume: &str) -> PathBuf {
    cache.join(STATE).join(volume)
}

/// The volumes that a command is about. If it is one, `path` is from its root.
struct Asked<'a> {
    volumes: &'a [Volume],
    path: &'a str,
}

impl Asked<'_> {
    fn only(&self) -> Result<&Volume, String> {
        match self.volumes {
            [only] => Ok(only),
            several => {
                let names: Vec<_> = several.iter().map(|volume| &volume.name[..]).collect();
                Err(format!("give a path in one of the volumes: {}", names.join(", ")))
            }
        }
    }
}

impl Mounted {
    /// The volumes that a path from the mount's root is about.
    fn asked<'a>(&'a self, path: &'a str) -> Result<Asked<'a>, String> {
        if self.volumes.len() == 1 || path.is_empty() {
            return Ok(Asked { volumes: &self.volumes, path });
        }
        let (name, path) = path.split_once('/').unwrap_or((path, ""));
        let found = self.volumes.iter().position(|volume| volume.name == name);
        let at = found.ok_or_else(|| format!("there is no volume {name} here"))?;
        Ok(Asked { volumes: &self.volumes[at..=at], path })
    }

    /// The beginning of a volume's paths from the mount's root.
    fn prefix(&self, volume: &Volume) -> String {
        if self.volumes.len() == 1 { String::new() } else { format!("{}/", volume.name) }
    }

    /// The folder that keeps the versions of a volume's resolved conflicts.
    fn resolved(&self, volume: &Volume) -> PathBuf {
        self.cache.join(RESOLVED).join(&volume.name)
    }

    fn clients(&self) -> Vec<Client> {
        self.volumes.iter().map(|volume| volume.client.clone()).collect()
    }
}

/// Reads a setting, if it is to change.
fn chosen<T: FromStr<Err = SettingError>>(text: Option<String>) -> Result<Option<T>, String> {
    text.map(|text| text.parse()).transpose().map_err(|error: SettingError| error.to_string())
}

impl control::Served for Mounted {
    fn answer(&self, request: Request, progress: mpsc::Sender<Value>) -> BoxFuture<Result<Value, String>> {
        match self.answer_now(request, progress) {
            Ok(answer) => answer,
            Err(error) => Box::pin(async { Err(error) }),
        }
    }
}

type Answer = BoxFuture<Result<Value, String>>;

fn ready(value: Value) -> Answer {
    Box::pin(async { Ok(value) })
}

impl Mounted {
    fn answer_now(&self, request: Request, progress: mpsc::Sender<Value>) -> Result<Answer, String> {
        let clients = self.clients();
        Ok(match request {
            Request::Sync { home } => Box::pin(async move {
                for client in &clients {
                    client.sync().await.map_err(|e| format!("cannot make changes durable: {e}"))?;
                }
                for client in clients.iter().filter(|_| home) {
                    let held = client.look(|_, state| state == LinkState::FetchOnly);
                    client.send_all().await.map_err(|_| match held {
                        true => "nothing is sent while the mount is fetch-only: see `starling connect auto`",
                        false => "the home cannot be reached: the changes wait here",
                    })?;
                }
                Ok(json!({}))
            }),
            Request::Set { consistency, writes, unit, validation, durability, cache_bytes, cache_files } => {
                let behaviour = Behaviour {
                    consistency: chosen(consistency)?,
                    writes: chosen(writes)?,
                    unit: chosen(unit)?,
                    validation: chosen(validation)?,
                    durability: chosen(durability)?,
                    cache_size: cache_bytes,
                    cache_files,
                };
                let is_attached = |client: &&Client| client.look(|_, state| state != LinkState::Disconnected);
                let attached: Vec<Client> = clients.iter().filter(is_attached).cloned().collect();
                clients.iter().for_each(|client| client.set(|settings| behaviour.apply(settings)));
                Box::pin(async move {
                    // Wait a moment until the home knows the settings, so that programs which use
                    // the mount next find them in effect.
                    let again = join_all(attached.iter().map(Client::attached).collect());
                    // If the home does not answer in time, `status` shows that.
                    let _ = tokio::time::timeout(ATTACH_TIME_MAX, again).await;
                    Ok(json!({}))
                })
            }
            Request::Hoard { path, priority } => {
                let asked = self.asked(&path)?;
                let (volumes, inside) = (asked.volumes.to_vec(), asked.path.to_string());
                Box::pin(async move {
                    for volume in volumes {
                        volume.client.hoard(inside.as_bytes(), priority).await.map_err(|error| match error {
                            FsError::NotFound => format!("/{path} is not hoarded: see `starling hoard list`"),
                            error => error.to_string(),
                        })?;
                    }
                    Ok(json!({}))
                })
            }
            Request::Hoarded => {
                let of = |volume: &Volume| {
                    let prefix = self.prefix(volume);
                    volume.client.look(|replica, _| hoarding::listed(replica, &prefix))
                };
                ready(self.volumes.iter().flat_map(of).collect())
            }
            Request::Walk { path } => {
                let volumes = self.asked(&path)?.volumes;
                let volumes = volumes.iter().map(|volume| (self.prefix(volume), volume.client.clone())).collect();
                Box::pin(hoarding::serve_walk(volumes, progress))
            }
            Request::Record => {
                let recording = Arc::clone(&self.recording);
                Box::pin(async move { recording.serve(progress).await })
            }
            Request::EndRecord { number } => ready(self.recording.end(number)?),
            Request::Status => ready(self.status()),
            Request::Pending { path } => {
                let volumes = self.asked(&path)?.volumes;
                ready(self.pending(volumes))
            }
            Request::Conflicts { path } => {
                let asked = self.asked(&path)?;
                let all: Value = asked.volumes.iter().flat_map(|volume| self.conflicts(volume)).collect();
                let mut answer = json!({ "conflicts": all });
                if let Ok(only) = asked.only() {
                    names::put(&mut answer, "resolved", self.resolved(only).as_os_str().as_encoded_bytes());
                }
                let clients: Vec<Client> = asked.volumes.iter().map(|volume| volume.client.clone()).collect();
                Box::pin(async move {
                    // The command reads the files that the answer names.
                    for client in &clients {
                        client.file_contents().await.map_err(|e| format!("cannot write contents of conflicts: {e}"))?;
                    }
                    Ok(answer)
                })
            }
            Request::Connect { state, now } => {
                let state = match &state[..] {
                    "auto" => None,
                    "weak" => Some(LinkState::Weak),
                    "fetch-only" => Some(LinkState::FetchOnly),
                    "off" => Some(LinkState::Disconnected),
                    other => return Err(format!("there is no state {other}")),
                };
                Box::pin(async move {
                    let left = match state {
                        Some(LinkState::Disconnected) => hoarding::get_ready(&clients, now, progress).await,
                        _ => json!({}),
                    };
                    let mut durable = Ok(());
                    if state == Some(LinkState::Disconnected) {
                        for client in &clients {
                            durable = durable.and(client.sync().await);
                        }
                    }
                    clients.iter().for_each(|client| client.pin(state));
                    durable.map_err(|error| format!("the mount is offline, but changes are not durable: {error}"))?;
                    if state == Some(LinkState::Disconnected) {
                        return Ok(left);
                    }
                    // Wait a moment for the home, so that `sync --home` works after this.
                    let attached = join_all(clients.iter().map(Client::attached).collect());
                    Ok(json!({ "home": tokio::time::timeout(ATTACH_TIME_MAX, attached).await.is_ok() }))
                })
            }
            Request::Settle { path, number } => {
                let asked = self.asked(&path)?;
                let volume = asked.only()?;
                let (client, kept) = (volume.client.clone(), self.resolved(volume).join(number.to_string()));
                Box::pin(async move {
                    if let Some(case) = client.case(number)
                        && kept.is_dir()
                    {
                        private::put(&kept, CASE, &case.to_bytes()).map_err(|e| format!("{}: {e}", kept.display()))?;
                    }
                    match client.settle(number).await {
                        Ok(true) => Ok(json!({})),
                        Ok(false) => Err(format!("there is no conflict {number}")),
                        Err(e) => Err(e.to_string()),
                    }
                })
            }
            Request::Reopen { path, number, mine } => {
                let asked = self.asked(&path)?;
                let volume = asked.only()?;
                let (client, kept) = (volume.client.clone(), self.resolved(volume).join(number.to_string()));
                Box::pin(async move {
                    // If the conflict was never marked as resolved, it is still there.
                    if client.case(number).is_none() {
                        let failed = |e: String| format!("{}: {e}", kept.join(CASE).display());
                        let case = std::fs::read(kept.join(CASE)).map_err(|e| failed(e.to_string()))?;
                        let case = Case::from_bytes(&case).map_err(|e| failed(e.to_string()))?;
                        client.reopen(number, case, mine).await.map_err(|e| e.to_string())?;
                    }
                    Ok(json!({}))
                })
            }
            Request::Who { .. } => {
                ready(who::unshared("this is a roaming mount: its home decides about what several clients change"))
            }
            Request::Down
            | Request::Scrub { .. }
            | Request::InviteNode { .. }
            | Request::DrainNode { .. }
            | Request::RemoveNode { .. }
            | Request::ReplaceStore { .. }
            | Request::Nodes
            | Request::Clients
            | Request::TurnAway { .. } => {
                return not_here().map(ready);
            }
        })
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn state_name(state: LinkState) -> &'static str {
    match state {
        LinkState::Connected => "connected",
        LinkState::Weak => "weak",
        LinkState::FetchOnly => "fetch-only",
        LinkState::Disconnected => "disconnected",
    }
}

/// The path of a place, from the mount's root.
fn path_at(paths: &Paths<'_>, prefix: &str, place: &Place) -> Vec<u8> {
    let path = paths.path_at(place);
    [prefix.as_bytes(), path.as_ref().unwrap_or(&place.1)].concat()
}

/// What an operation does, in words, and the path of its file.
fn describe(paths: &Paths<'_>, prefix: &str, operation: &Operation) -> (&'static str, String) {
    let at = |place: &Place| text(&path_at(paths, prefix, place));
    let file = |id| paths.path_of(id).map_or_else(|| format!("file {id}"), |path| prefix.to_string() + &text(&path));
    match operation {
        Operation::Make { at: place, .. } => ("make", at(place)),
        Operation::Link { at: place, .. } => ("link", at(place)),
        Operation::Remove { at: place, .. } => ("remove", at(place)),
        Operation::Rename { from, to, .. } => ("rename", format!("{} to {}", at(from), at(to))),
        Operation::Exchange { from, to, .. } => ("exchange", format!("{} and {}", at(from), at(to))),
        Operation::Set { file: id, .. } => ("set attributes", file(*id)),
        Operation::SetXattr { file: id, .. } => ("set attributes", file(*id)),
        Operation::Store { file: id, .. } => ("store", file(*id)),
        Operation::Copy { file: id, .. } => ("copy", file(*id)),
    }
}

fn seconds_since(now: Time, then: Option<Time>) -> i64 {
    then.map_or(0, |then| (now.sec - then.sec).max(0))
}

/// What `status` shows of a volume, or of several together.
struct Counts {
    state: LinkState,
    attached_before: bool,
    /// Why the home turned this client away.
    turned_away: Option<String>,
    held_up: Option<String>,
    /// How long nothing goes home, because programs wait for reads over a slow link.
    held_back: Option<Duration>,
    full: Fullness,
    operations: u64,
    operation_bytes: u64,
    logged: u64,
    saved: u64,
    saved_bytes: u64,
    conflicts: u64,
    files: u64,
    file_bytes: u64,
    hoarded: u64,
    consistency_calls: u64,
    /// Bytes of stores that the home had already and that were not sent.
    found_there: u64,
}

impl Counts {
    fn of(client: &Client) -> Counts {
        let (held_up, consistency_calls) = (client.held_up(), client.consistency_calls());
        let turned_away = client.turned_away();
        let (held_back, full) = (client.held_back(), client.fullness());
        client.look(|replica, state| {
            let saved = replica.log().saved();
            Counts {
                state,
                attached_before: replica.stamp().is_some(),
                turned_away,
                held_up: held_up.map(|error| error.to_string()),
                held_back,
                full,
                operations: replica.log().len() as u64,
                operation_bytes: replica.log().cost(),
                logged: saved.logged,
                saved: saved.operations,
                saved_bytes: saved.bytes,
                conflicts: replica.conflicts().count() as u64,
                files: replica.nodes().count() as u64,
                file_bytes: replica.nodes().map(|(_, node)| node.have.len()).sum(),
                hoarded: replica.hoard().len() as u64,
                consistency_calls,
                found_there: client.found_there(),
            }
        })
    }

    /// Both together: counts are added; otherwise the worse value counts.
    fn and(self, other: Counts) -> Counts {
        Counts {
            state: self.state.max(other.state),
            attached_before: self.attached_before && other.attached_before,
            turned_away: self.turned_away.or(other.turned_away),
            held_up: self.held_up.or(other.held_up),
            held_back: self.held_back.max(other.held_back),
            full: Fullness {
                writers_wait: self.full.writers_wait || other.full.writers_wait,
                // They share one bound, so each reports by how much all are beyond it.
                beyond: self.full.beyond.max(other.full.beyond),
                disk_is_full: self.full.disk_is_full || other.full.disk_is_full,
                log_has_failed: self.full.log_has_failed || other.full.log_has_failed,
            },
            operations: self.operations + other.operations,
            operation_bytes: self.operation_bytes + other.operation_bytes,
            logged: self.logged + other.logged,
            saved: self.saved + other.saved,
            saved_bytes: self.saved_bytes + other.saved_bytes,
            conflicts: self.conflicts + other.conflicts,
            files: self.files + other.files,
            file_bytes: self.file_bytes + other.file_bytes,
            hoarded: self.hoarded + other.hoarded,
            consistency_calls: self.consistency_calls + other.consistency_calls,
            found_there: self.found_there + other.found_there,
        }
    }

    fn json(&self, volume: &str) -> Value {
        json!({
            "volume": volume,
            "state": state_name(self.state),
            "attached_before": self.attached_before,
            "turned_away": self.turned_away,
            "pending": {
                "operations": self.operations,
                "bytes": self.operation_bytes,
                "held_up": self.held_up,
                "held_back_s": self.held_back.map(|time| time.as_secs()),
            },
            "saved": {
                "logged": self.logged,
                "operations": self.saved,
                "bytes": self.saved_bytes,
                "found_at_home": self.found_there,
            },
            "conflicts": self.conflicts,
            "cache": {
                "files": self.files,
                "bytes": self.file_bytes,
                "writers_wait": self.full.writers_wait,
                "beyond": self.full.beyond,
                "disk_is_full": self.full.disk_is_full,
                "log_has_failed": self.full.log_has_failed,
            },
            "hoarded": self.hoarded,
            "consistency_calls": self.consistency_calls,
        })
    }
}

impl Mounted {
    fn status(&self) -> Value {
        let all = || self.volumes.iter().map(|volume| (&volume.name[..], Counts::of(&volume.client)));
        let names: Vec<&str> = self.volumes.iter().map(|volume| &volume.name[..]).collect();
        let together = all().map(|(_, counts)| counts).reduce(Counts::and);
        let (Some(together), Some(first)) = (together, self.volumes.first()) else { return Value::Null };
        let (settings, schedule) = (first.client.settings(), first.client.schedule());
        let rate = |direction| schedule.rate(direction) as u64;
        let mut status = together.json(&names.join(", "));
        status["cache"]["bytes_max"] = json!(settings.cache_bytes);
        status["cache"]["files_max"] = json!(settings.cache_files);
        let mount = json!({
            "roaming": true,
            "home": self.home,
            "reads": self.reads,
            "volumes": all().map(|(name, counts)| counts.json(name)).collect::<Value>(),
            "consistency": settings.consistency.to_string(),
            "writes": settings.writes.to_string(),
            "unit": settings.unit.to_string(),
            "durability": settings.durability.to_string(),
            "rate": { "up": rate(Direction::Up), "down": rate(Direction::Down) },
        });
        if let (Some(status), Value::Object(mount)) = (status.as_object_mut(), mount) {
            status.extend(mount);
        }
        status
    }

    /// The operations that wait, in the order in which they go home.
    fn pending(&self, volumes: &[Volume]) -> Value {
        let now = self.clock.wall();
        let (mut before, mut requests) = (0, 0);
        let mut of = |volume: &Volume| -> Vec<Value> {
            let (prefix, client) = (self.prefix(volume), &volume.client);
            let (writes, schedule) = (client.settings().writes, client.schedule());
            let rate = schedule.rate(Direction::Up).max(1.0);
            // What holds up the first operation holds up all others.
            let held_up = client.held_up().map(|error| error.to_string());
            let held_back = client.held_back();
            client.look(|replica, state| {
                let paths = Paths::of(replica);
                let all = replica.log().iter().enumerate().map(|(at, (seq, operation))| {
                    let (what, path) = describe(&paths, &prefix, operation);
                    let (age, bytes) = (seconds_since(now, replica.done_at(seq)), operation.cost());
                    before += bytes;
                    // A store takes three requests: ask which chunks the home has, send, do.
                    requests += if matches!(operation, Operation::Store { .. }) { 3 } else { 1 };
                    // An estimate for the link as it is now, without other traffic.
                    let is_held = state == LinkState::FetchOnly && held_back.is_none();
                    let goes = state != LinkState::Disconnected && held_up.is_none() && !is_held;
                    let hold_max = writes.hold_time_max().filter(|_| goes);
                    let rest = |hold: Duration| hold.as_secs().saturating_sub(age.unsigned_abs());
                    let later = held_back.map_or(0, |time| time.as_secs());
                    let soon =
                        if matches!(writes, Writes::Delayed(_)) { hold_max.map(rest) } else { hold_max.map(|_| 0) };
                    let home_in = soon.map(|soon| later + soon + (before as f64 / rate).ceil() as u64);
                    let within = schedule.home_within(requests, before);
                    let home_within =
                        hold_max.zip(within).map(|(hold, within)| later + rest(hold) + within.as_secs() + 1);
                    let waits_for = (writes == Writes::Manual).then_some("starling sync --home");
                    let held_up = held_up.as_ref().filter(|_| at == 0);
                    json!({
                        "number": seq,
                        "what": what,
                        "path": path,
                        "bytes": bytes,
                        "age_s": age,
                        "home_in_s": home_in,
                        "home_within_s": home_within,
                        "waits_for": waits_for,
                        "held_up": held_up,
                    })
                });
                all.collect()
            })
        };
        volumes.iter().flat_map(&mut of).collect()
    }

    fn conflicts(&self, volume: &Volume) -> Vec<Value> {
        let (now, prefix) = (self.clock.wall(), self.prefix(volume));
        let (state, resolved) = (state_folder(&self.cache, &volume.name), self.resolved(volume));
        let all: Vec<(Value, Option<PathBuf>)> = volume.client.look(|replica, _| {
            let paths = Paths::of(replica);
            let all = replica.conflicts().map(|(number, conflict)| {
                let operation = replica.meant(number);
                let meant = operation.map(Meant::of).filter(|meant| *meant != Meant::default());
                let at = |place: &Place| path_at(&paths, &prefix, place);
                let file = || Some([prefix.as_bytes(), &paths.path_of(conflict.file)?].concat());
                // Attributes belong to the file, even if it has moved.
                let path = meant.as_ref().and_then(|_| file()).or_else(|| conflict.place.as_ref().map(at));
                // The place may be unknown by now.
                let path = path.unwrap_or_else(|| [prefix.as_bytes(), b"lost"].concat());
                let in_cache = |number| (number > 0).then(|| state.join(roam::data_name(number)));
                let mut about = json!({
                    "number": number,
                    "here": conflict.deed.text(),
                    "why": conflict.why(),
                    "mine": null,
                    "base": null,
                    "kept": null,
                    "meant": meant,
                    "age_s": seconds_since(now, Some(conflict.when)),
                });
                let (mut before, mut named_now) = (None, None);
                if let (Some(Operation::Rename { from, .. }), None) = (operation, &conflict.mine) {
                    (before, named_now) = (Some(at(from)), file());
                }
                let kept = in_cache(conflict.kept).map(|path| path.into_os_string().into_encoded_bytes());
                let mine = conflict.mine.as_ref().map(at);
                let paths =
                    [("path", Some(path)), ("mine", mine), ("kept", kept), ("before", before), ("now", named_now)];
                for (field, path) in paths {
                    path.into_iter().for_each(|path| names::put(&mut about, field, &path));
                }
                (about, in_cache(conflict.base))
            });
            all.collect()
        });
        let with_base = all.into_iter().map(|(mut about, base)| {
            // A conflict that was resolved and reopened has its base there.
            let kept = || resolved.join(about["number"].to_string()).join(BASE);
            if let Some(base) = base.or_else(|| Some(kept()).filter(|path| path.exists())) {
                names::put(&mut about, "base", base.as_os_str().as_encoded_bytes());
            }
            about
        });
        with_base.collect()
    }
}
