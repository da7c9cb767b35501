//! The control socket: how other commands reach the process that serves a mount.
//!
//! Homes have one too. A connection carries one request, a line of JSON. The answer is any number
//! of `{"progress": ...}` lines and one `{"ok": ...}` or `{"error": "..."}`. Every file of a mount
//! has an extended attribute with the socket's path, so a command needs only a path on the mount.
//! Only the owner of the data folder can connect.

use crate::args::Process;
use anyhow::Context;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::ffi::CString;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Notify, mpsc, watch};
use types::BoxFuture;

/// Name of the socket in the data folder.
pub const SOCKET: &str = "control.sock";
/// The extended attribute that has the socket's path.
pub const XATTR: &[u8] = b"starling.control";
const REQUEST_LEN_MAX: u64 = 64 * 1024;
const PROGRESS_QUEUE_MAX: usize = 64;

/// Requests of commands.
#[derive(Serialize, Deserialize, Debug, Clone)]
#[serde(tag = "command", rename_all = "kebab-case")]
pub enum Request {
    /// Commit everything.
    Sync {
        /// Also send everything home.
        home: bool,
    },
    /// Commit everything, unmount, and end the process.
    Down,
    /// See [`crate::ask::status`].
    Status,
    /// See [`crate::ask::scrub`].
    Scrub {
        /// Rebuild missing and damaged fragments.
        repair: bool,
    },
    /// See [`crate::roaming::pending`].
    Pending {
        /// From the mount's root: of the volume that it leads to, or of all.
        path: String,
    },
    /// See [`crate::roaming::connect`].
    Connect {
        /// The state; `auto` lets the link decide.
        state: String,
        /// Do not fetch anything before going offline.
        now: bool,
    },
    /// See [`crate::roaming::set`].
    Set {
        /// How long the mount trusts its cache.
        consistency: Option<String>,
        /// When changes go home.
        writes: Option<String>,
        /// How much of a file a read fetches.
        unit: Option<String>,
        /// How the mount validates its cache.
        validation: Option<String>,
        /// When changes are durable on this machine.
        durability: Option<String>,
        /// Bound of the cache in bytes.
        cache_bytes: Option<u64>,
        /// Number of files whose metadata the mount caches.
        cache_files: Option<u64>,
    },
    /// See [`crate::hoarding`].
    Hoard {
        /// From the mount's root.
        path: String,
        /// The priority; `None` stops hoarding the path.
        priority: Option<u8>,
    },
    /// Lists the hoarded paths.
    Hoarded,
    /// Fetches all hoarded files.
    Walk {
        /// From the mount's root: of the volume that it leads to, or of all.
        path: String,
    },
    /// See [`crate::conflicts`].
    Conflicts {
        /// From the mount's root: of the volume that it leads to, or of all.
        path: String,
    },
    /// Marks a conflict as resolved.
    Settle {
        /// From the mount's root, to a volume if there are several.
        path: String,
        /// Its number.
        number: u64,
    },
    /// Marks a conflict as unresolved again.
    Reopen {
        /// From the mount's root, to a volume if there are several.
        path: String,
        /// Its number.
        number: u64,
        /// The name of this mount's version beside the home's, if it had no place of its own
        /// before.
        mine: Option<Vec<u8>>,
    },
    /// See [`crate::recording`].
    Record,
    /// Ends a recording.
    EndRecord {
        /// Its number.
        number: u64,
    },
    /// See [`crate::node::invite`].
    InviteNode {
        /// The node's name; empty if it may choose.
        name: String,
        /// Addresses at which it finds this one; if there are none, those of this machine.
        addresses: Vec<String>,
    },
    /// See [`crate::node::removal`].
    DrainNode {
        /// The node's name.
        name: String,
        /// It drains from now on, at so many bytes per second at most (0: no bound), or no more.
        rate: Option<u64>,
        /// Another node may have more stores then than may be lost.
        #[serde(default)]
        accepts_risk: bool,
    },
    /// See [`crate::node::removal`].
    RemoveNode {
        /// The node's name.
        name: String,
        /// Its stores are lost for good.
        is_dead: bool,
        /// What only its stores had is given up.
        accepts_loss: bool,
    },
    /// See [`crate::node::replace`].
    ReplaceStore {
        /// Its number.
        store: u16,
        /// The folder that is to have it, with its absolute path.
        folder: PathBuf,
        /// What it has is given up.
        is_dead: bool,
        /// What only it may have is given up, too.
        accepts_loss: bool,
    },
    /// See [`crate::node::report`].
    Nodes,
    /// See [`crate::node::who`].
    Who {
        /// From the mount's root, in bytes.
        path: Vec<u8>,
    },
    /// See [`crate::clients`].
    Clients,
    /// Turns a client of a home away.
    TurnAway {
        /// Its number.
        number: u32,
    },
}

/// Answers requests, except for [`Request::Down`].
pub trait Served: Send + Sync + 'static {
    /// Answers a request. Progress goes to `progress`, as far as there is room.
    fn answer(&self, request: Request, progress: mpsc::Sender<Value>) -> BoxFuture<Result<Value, String>>;
}

/// The answer to requests that do not apply to this kind of mount or home.
pub fn not_here() -> Result<Value, String> {
    Err("this command does not apply here: it is for another kind of mount".into())
}

type Outcome = Option<Result<String, String>>;

/// The serving side.
pub struct Server {
    path: PathBuf,
    down: Arc<Notify>,
    outcome: watch::Sender<Outcome>,
    /// Closes when the last connection has ended.
    connections: Mutex<Option<mpsc::Receiver<()>>>,
    accepting: tokio::task::JoinHandle<()>,
}

/// A path to the socket that fits into a socket address, however long the folder's path is. It is
/// valid while the returned file is open.
fn short(path: &Path) -> anyhow::Result<(std::fs::File, PathBuf)> {
    let folder = path.parent().context("socket path")?;
    let open = std::fs::File::open(folder).with_context(|| format!("open {}", folder.display()))?;
    let short = PathBuf::from(format!("/proc/self/fd/{}/{SOCKET}", open.as_raw_fd()));
    Ok((open, short))
}

/// A listening socket. Connections wait until it is [served](Self::serve), so it can exist before
/// the mount that leads to it.
pub struct Socket {
    path: PathBuf,
    listener: UnixListener,
}

impl Socket {
    /// Starts to listen. The caller has locked the data folder, so a socket that exists is left
    /// over from a dead process.
    pub fn listen(path: &Path) -> anyhow::Result<Socket> {
        let _ = std::fs::remove_file(path);
        let (_folder, address) = short(path)?;
        let listener = UnixListener::bind(address).context("control socket")?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).context("control socket")?;
        Ok(Socket { path: path.to_owned(), listener })
    }

    /// Answers requests from now on, including those that wait.
    pub fn serve(self, served: Arc<dyn Served>) -> Server {
        let Socket { path, listener } = self;
        let (alive, connections) = mpsc::channel(1);
        let down = Arc::new(Notify::new());
        let outcome = watch::Sender::new(None);
        let shared = (down.clone(), outcome.clone());
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (served, alive) = (served.clone(), alive.clone());
                let (down, outcome) = (shared.0.clone(), shared.1.subscribe());
                tokio::spawn(async move {
                    if let Err(e) = connection(stream, served, down, outcome).await {
                        tracing::debug!("control connection: {e:#}");
                    }
                    drop(alive);
                });
            }
        });
        Server { path, down, outcome, connections: Mutex::new(Some(connections)), accepting }
    }

    /// Removes the socket: no mount will lead to it.
    pub fn remove(self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Server {
    /// Waits until a command asks for the end.
    pub async fn down(&self) {
        self.down.notified().await;
    }

    /// Answers the commands that asked for the end, and stops listening.
    pub async fn finish(&self, outcome: Result<String, String>) {
        self.accepting.abort();
        let _ = std::fs::remove_file(&self.path);
        self.outcome.send_replace(Some(outcome));
        let connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut connections) = connections {
            let told = tokio::time::timeout(std::time::Duration::from_secs(2), connections.recv());
            // Nothing is ever sent on this channel: the wait ends when the last connection has
            // ended, or after two seconds.
            let _ = told.await;
        }
    }
}

async fn connection(
    mut stream: UnixStream,
    served: Arc<dyn Served>,
    down: Arc<Notify>,
    mut outcome: watch::Receiver<Outcome>,
) -> anyhow::Result<()> {
    let (read, mut write) = stream.split();
    let mut line = String::new();
    BufReader::new(read.take(REQUEST_LEN_MAX)).read_line(&mut line).await?;
    let answer = match serde_json::from_str::<Request>(&line) {
        Err(e) => Err(format!("bad request: {e}")),
        Ok(Request::Down) => {
            down.notify_one();
            let ended = outcome.wait_for(Option::is_some).await?.clone();
            ended.unwrap_or(Ok(String::new())).map(|told| json!({ "process": std::process::id(), "told": told }))
        }
        Ok(request) => {
            // If the queue is full, a progress line is dropped.
            let (sender, mut progress) = mpsc::channel(PROGRESS_QUEUE_MAX);
            let answer = tokio::spawn(served.answer(request, sender));
            while let Some(value) = progress.recv().await {
                write.write_all(format!("{}\n", json!({ "progress": value })).as_bytes()).await?;
            }
            answer.await?
        }
    };
    let line = match answer {
        Ok(value) => json!({ "ok": value }),
        Err(text) => json!({ "error": text }),
    };
    write.write_all(format!("{line}\n").as_bytes()).await?;
    Ok(())
}

/// The socket of the process that serves `path`.
fn socket_of(path: &Path) -> anyhow::Result<PathBuf> {
    let not_ours = || crate::usage(format!("{} is not on a mounted starling file system", path.display()));
    let c_path = CString::new(path.as_os_str().as_bytes()).map_err(|_| not_ours())?;
    let name = CString::new(XATTR).context("attribute name")?;
    let mut value = vec![0u8; 4096];
    // SAFETY: both strings end with NUL, and the buffer is as long as is said.
    let len = unsafe { libc::getxattr(c_path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
    if len <= 0 {
        return Err(not_ours());
    }
    value.truncate(len as usize);
    Ok(PathBuf::from(std::ffi::OsStr::from_bytes(&value)))
}

/// Refuses a path that is not on a mount of starling.
pub fn check(path: &Path) -> anyhow::Result<()> {
    socket_of(path).map(drop)
}

/// Asks the process that serves `path`; `progress` gets each progress line.
pub async fn ask(path: &Path, request: Request, mut progress: impl FnMut(&Value)) -> anyhow::Result<Value> {
    let socket = socket_of(path)?;
    let (_folder, address) = short(&socket)?;
    let stream = UnixStream::connect(address).await.with_context(|| format!("connect to {}", socket.display()))?;
    ask_over(stream, request, &mut progress).await
}

/// Asks the process that serves from a data folder; `None` if no process does.
pub async fn ask_from(data: &Path, request: Request) -> anyhow::Result<Option<Value>> {
    ask_folder(data, request, &mut |_| {}).await
}

async fn ask_folder(data: &Path, request: Request, progress: &mut impl FnMut(&Value)) -> anyhow::Result<Option<Value>> {
    let Ok((_folder, address)) = short(&data.join(SOCKET)) else { return Ok(None) };
    let Ok(stream) = UnixStream::connect(address).await else { return Ok(None) };
    ask_over(stream, request, progress).await.map(Some)
}

/// Asks the process that a command is about; `progress` gets each progress line.
pub async fn ask_process(
    process: &Process,
    request: Request,
    mut progress: impl FnMut(&Value),
) -> anyhow::Result<Value> {
    match (&process.mountpoint, &process.data) {
        (Some(mountpoint), _) => ask(mountpoint, request, progress).await,
        (None, Some(data)) => {
            let answer = ask_folder(data, request, &mut progress).await?;
            answer.ok_or_else(|| crate::usage(format!("no file system is served from {}", data.display())))
        }
        (None, None) => Err(crate::usage("give the mount point, or --data DIR")),
    }
}

async fn ask_over(
    mut stream: UnixStream,
    request: Request,
    progress: &mut impl FnMut(&Value),
) -> anyhow::Result<Value> {
    let line = serde_json::to_string(&request)?;
    stream.write_all(format!("{line}\n").as_bytes()).await?;
    let mut lines = BufReader::new(stream).lines();
    while let Some(line) = lines.next_line().await? {
        let value: Value = serde_json::from_str(&line).context("answer")?;
        if let Some(p) = value.get("progress") {
            progress(p);
        } else if let Some(e) = value.get("error") {
            anyhow::bail!("{}", e.as_str().unwrap_or("unknown error"));
        } else if let Some(ok) = value.get("ok") {
            return Ok(ok.clone());
        }
    }
    anyhow::bail!("the process that serves ended without an answer: what it did is unknown; look at its log")
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Echo;

    impl Served for Echo {
        fn answer(&self, request: Request, _: mpsc::Sender<Value>) -> BoxFuture<Result<Value, String>> {
            Box::pin(async move { Ok(json!(format!("{request:?}"))) })
        }
    }

    /// Once the mount appeared before its socket: after a kill -9, a command found the dead
    /// process's socket, and its connection was refused.
    #[tokio::test]
    async fn regression_a_request_waits_until_the_socket_is_served() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let path = dir.path().join(SOCKET);
        drop(UnixListener::bind(&path).expect("a dead process's socket"));
        assert!(ask_from(dir.path(), Request::Status).await.expect("no answer is no error").is_none());

        let socket = Socket::listen(&path).expect("listen");
        let (_folder, address) = short(&path).expect("address");
        let stream = UnixStream::connect(address).await.expect("connected before it is served");
        let server = socket.serve(Arc::new(Echo));
        let answer = ask_over(stream, Request::Status, &mut |_| {}).await.expect("answer");
        assert_eq!(answer, json!("Status"));
        server.finish(Ok(String::new())).await;
        assert!(!path.exists());
    }
}
