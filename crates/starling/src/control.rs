//! The control socket: how other commands reach the process that serves a mount.
//!
//! Homes have one, too. One request per connection, a line of JSON; answered by any number of
//! `{"progress": ...}` lines and one `{"ok": ...}` or `{"error": "..."}`. The socket's path is an
//! extended attribute of every file of the mount, so a path below the mount point is all a command
//! needs. Only the owner of the data folder can connect.

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
/// The extended attribute that leads to it.
pub const XATTR: &[u8] = b"starling.control";
const REQUEST_LEN_MAX: u64 = 64 * 1024;
const PROGRESS_QUEUE_MAX: usize = 64;

/// What may be asked.
#[derive(Serialize, Deserialize, Debug, Clone)]
#[serde(tag = "command", rename_all = "kebab-case")]
pub enum Request {
    /// Commit everything.
    Sync {
        /// And send it home.
        home: bool,
    },
    /// Commit, unmount, end.
    Down,
    /// See [`crate::ask::status`].
    Status,
    /// See [`crate::ask::scrub`].
    Scrub {
        /// Rebuild what is missing or damaged.
        repair: bool,
    },
    /// See [`crate::roaming::pending`].
    Pending {
        /// From the mount's root: of the volume that it leads to, or of all.
        path: String,
    },
    /// See [`crate::roaming::connect`].
    Connect {
        /// The state; `auto` leaves it to the link.
        state: String,
        /// Without what is done before the link goes.
        now: bool,
    },
    /// See [`crate::roaming::set`].
    Set {
        /// When the cache is believed.
        consistency: Option<String>,
        /// When changes go home.
        writes: Option<String>,
        /// What is fetched.
        unit: Option<String>,
        /// How the cache is found to be valid.
        validation: Option<String>,
        /// When what was done is durable.
        durability: Option<String>,
        /// Bound of the cache in bytes.
        cache_bytes: Option<u64>,
        /// How many files the mount caches metadata for.
        cache_files: Option<u64>,
    },
    /// See [`crate::hoarding`].
    Hoard {
        /// From the mount's root.
        path: String,
        /// How dear; `None`: not at all any more.
        priority: Option<u8>,
    },
    /// What is hoarded.
    Hoarded,
    /// Walks what is hoarded.
    Walk {
        /// From the mount's root: of the volume that it leads to, or of all.
        path: String,
    },
    /// See [`crate::conflicts`].
    Conflicts {
        /// From the mount's root: of the volume that it leads to, or of all.
        path: String,
    },
    /// Says that a conflict has been seen to.
    Settle {
        /// From the mount's root, to a volume if there are several.
        path: String,
        /// Its number.
        number: u64,
    },
    /// Says that what was done about a conflict was taken back.
    Reopen {
        /// From the mount's root, to a volume if there are several.
        path: String,
        /// Its number.
        number: u64,
        /// The name beside the home's of this mount's version, if that had no place of its own
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
    /// See [`crate::clients`].
    Clients,
    /// Does nothing more for a client of a home.
    TurnAway {
        /// Its number.
        number: u32,
    },
}

/// What a serving process can be asked, beyond to end.
pub trait Served: Send + Sync + 'static {
    /// Answers; what there is to say meanwhile goes to `progress`, as far as there is room.
    fn answer(&self, request: Request, progress: mpsc::Sender<Value>) -> BoxFuture<Result<Value, String>>;
}

/// What to say to requests that make no sense for what is mounted.
pub fn not_here() -> Result<Value, String> {
    Err("there is no such thing for what is mounted here".into())
}

type Outcome = Option<Result<String, String>>;

/// The serving side.
pub struct Server {
    path: PathBuf,
    down: Arc<Notify>,
    outcome: watch::Sender<Outcome>,
    /// Closed when the last connection is.
    connections: Mutex<Option<mpsc::Receiver<()>>>,
    accepting: tokio::task::JoinHandle<()>,
}

/// A path to a socket that fits into a socket address, however long the folder's path is. Valid
/// while the file is open.
fn short(path: &Path) -> anyhow::Result<(std::fs::File, PathBuf)> {
    let folder = path.parent().context("socket path")?;
    let open = std::fs::File::open(folder).with_context(|| format!("open {}", folder.display()))?;
    let short = PathBuf::from(format!("/proc/self/fd/{}/{SOCKET}", open.as_raw_fd()));
    Ok((open, short))
}

/// A socket that takes connections. They wait until it is [served](Self::serve), so it is made
/// before the mount that leads to it.
pub struct Socket {
    path: PathBuf,
    listener: UnixListener,
}

impl Socket {
    /// Starts to listen. The data folder is locked, so a socket that is there already is a dead
    /// process's.
    pub fn listen(path: &Path) -> anyhow::Result<Socket> {
        let _ = std::fs::remove_file(path);
        let (_folder, address) = short(path)?;
        let listener = UnixListener::bind(address).context("control socket")?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).context("control socket")?;
        Ok(Socket { path: path.to_owned(), listener })
    }

    /// Answers requests from now on, and those that wait.
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

    /// Takes the socket away: there is no mount that leads to it.
    pub fn remove(self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Server {
    /// Waits until somebody asks for the end.
    pub async fn down(&self) {
        self.down.notified().await;
    }

    /// Tells those who asked for the end how it went, and stops listening.
    pub async fn finish(&self, outcome: Result<String, String>) {
        self.accepting.abort();
        let _ = std::fs::remove_file(&self.path);
        self.outcome.send_replace(Some(outcome));
        let connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut connections) = connections {
            let told = tokio::time::timeout(std::time::Duration::from_secs(2), connections.recv());
            // Nothing is ever sent: this ends when the last connection has, or when one lingers too
            // long.
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
            // A full queue only means that a progress line is left out.
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

/// Where the process that serves `path` listens.
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

/// Refuses a path that is on no mount of ours.
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

/// Asks the process that serves from a data folder; `None` if there is none.
pub async fn ask_from(data: &Path, request: Request) -> anyhow::Result<Option<Value>> {
    let Ok((_folder, address)) = short(&data.join(SOCKET)) else { return Ok(None) };
    let Ok(stream) = UnixStream::connect(address).await else { return Ok(None) };
    ask_over(stream, request, &mut |_| {}).await.map(Some)
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

    /// The mount was there before its socket: after a kill -9, a command met the dead process's,
    /// and its connection was refused.
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
