//! A storage server over TCP: [`serve`] at the store, [`Remote`] wherever the store is wanted.
//!
//! One connection carries many requests at a time; answers come in any order. When the connection breaks, all requests under way end as
//! [`StorageError::Unavailable`], which for a change means *unknown*; later ones fail at once until a new connection stands,
//! so that readers turn to the rest of the stripe without waiting. There is no authentication and no encryption: this is for a trusted network.

use crate::api::{Maps, Seal, Storage, StorageError, StoreStatus};
use crate::wire::{Answer, FRAME_LEN_MAX, Frame, GREETING_LEN, LIST_COUNT_MAX, Request, check_greeting, greeting};
use bytes::Bytes;
use host::{Clock, Either, Host, first, timeout};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Duration;
use striped_log::fragment::{Fragment, FragmentHeader};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, oneshot};
use types::codec::DecodeError;
use types::{BoxFuture, FragmentId, LogId, SegmentId};

/// Requests under way on one connection; at the store, further ones are not read before one is done.
const REQUESTS_MAX: usize = 256;
/// How long connecting, with greetings, may take.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(3);
/// How long a request may take before the store counts as not answering.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(30);
/// Pause after the first failed attempt to connect; doubles with each further one.
const BACKOFF_MIN: Duration = Duration::from_millis(20);
/// Longest such pause.
const BACKOFF_MAX: Duration = Duration::from_secs(5);

fn invalid(error: DecodeError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// The next frame, without its length.
async fn read_frame(from: &mut OwnedReadHalf) -> io::Result<Bytes> {
    let len = from.read_u32_le().await?;
    if len > FRAME_LEN_MAX {
        return Err(invalid(DecodeError::Invalid("frame length")));
    }
    let mut bytes = Vec::with_capacity(len.min(2 << 20) as usize);
    if from.take(u64::from(len)).read_to_end(&mut bytes).await? < len as usize {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(bytes.into())
}

/// Writes frames until all their senders are gone or the connection breaks.
async fn write_frames(mut to: OwnedWriteHalf, mut frames: mpsc::Receiver<Frame>) {
    while let Some([head, tail]) = frames.recv().await {
        let written = async {
            to.write_all(&head).await?;
            to.write_all(&tail).await
        };
        // The reading end of the connection notices and reports it.
        if written.await.is_err() {
            return;
        }
    }
}

/// Exchanges greetings.
async fn greet(stream: TcpStream) -> io::Result<(OwnedReadHalf, OwnedWriteHalf)> {
    stream.set_nodelay(true)?;
    let (mut from, mut to) = stream.into_split();
    to.write_all(&greeting()).await?;
    let mut theirs = [0; GREETING_LEN];
    from.read_exact(&mut theirs).await?;
    check_greeting(&theirs).map_err(invalid)?;
    Ok((from, to))
}

/// Serves `storage` to all who connect, until the listener fails.
pub async fn serve(host: Host, listener: TcpListener, storage: Arc<dyn Storage>) -> io::Result<()> {
    loop {
        let (stream, peer) = listener.accept().await?;
        let (connection_host, storage) = (host.clone(), storage.clone());
        host.tasks.spawn(Box::pin(async move {
            if let Err(error) = serve_one(connection_host, stream, storage).await
                && error.kind() != io::ErrorKind::UnexpectedEof
            {
                tracing::warn!(%peer, %error, "connection ended");
            }
        }));
    }
}

async fn serve_one(host: Host, stream: TcpStream, storage: Arc<dyn Storage>) -> io::Result<()> {
    let greeted = timeout(host.clock.as_ref(), CONNECT_TIME_MAX, greet(stream)).await;
    let (mut from, to) = greeted.map_err(|_| io::ErrorKind::TimedOut)??;
    let (frames, queue) = mpsc::channel(REQUESTS_MAX);
    host.tasks.spawn(Box::pin(write_frames(to, queue)));
    let places = Arc::new(Semaphore::new(REQUESTS_MAX));
    loop {
        let (number, request) = Request::decode(&read_frame(&mut from).await?).map_err(invalid)?;
        let place = places.clone().acquire_owned().await.map_err(io::Error::other)?;
        let (storage, frames) = (storage.clone(), frames.clone());
        host.tasks.spawn(Box::pin(async move {
            let [head, tail] = answer(storage.as_ref(), request).await.encode(number);
            let frame = match head.len() + tail.len() <= FRAME_LEN_MAX as usize {
                true => [head, tail],
                false => Answer::Refused(StorageError::BadRequest("answer too long")).encode(number),
            };
            // The connection may be gone by now; the other end knows what that means.
            let _ = frames.send(frame).await;
            drop(place);
        }));
    }
}

async fn answer(storage: &dyn Storage, request: Request) -> Answer {
    let result = match request {
        Request::Put(fragment) => storage.put(fragment).await.map(|()| Answer::Done),
        Request::Read { id, attempt, range } => storage.read(id, attempt, range).await.map(Answer::Bytes),
        Request::Describe(segment) => storage.describe(segment).await.map(Answer::Headers),
        Request::List { log, from_seq, count_max } => {
            storage.list(log, from_seq, count_max.min(LIST_COUNT_MAX) as usize).await.map(Answer::Headers)
        }
        Request::Segments => storage.segments().await.map(Answer::Segments),
        Request::Delete(segments) => storage.delete(segments).await.map(|()| Answer::Done),
        Request::Seal(seal) => storage.seal(seal).await.map(Answer::Seal),
        Request::Seals => storage.seals().await.map(Answer::Seals),
        Request::PutMaps(maps) => storage.put_maps(maps).await.map(|()| Answer::Done),
        Request::Maps => storage.maps().await.map(Answer::Maps),
        Request::Verify(id) => storage.verify(id).await.map(|()| Answer::Done),
        Request::Status => storage.status().await.map(Answer::Status),
    };
    result.unwrap_or_else(Answer::Refused)
}

/// A store at the other end of a connection, which is made anew whenever it breaks, until this is dropped.
pub struct Remote {
    link: Arc<Link>,
    clock: Arc<dyn Clock>,
    /// Dropped with this; ends the connection's task.
    _alive: oneshot::Sender<()>,
}

#[derive(Default)]
struct Link(Mutex<LinkState>);

#[derive(Default)]
struct LinkState {
    /// Where requests go while the connection stands.
    frames: Option<mpsc::Sender<Frame>>,
    waiting: BTreeMap<u64, oneshot::Sender<Answer>>,
    last_number: u64,
}

/// A request under way; forgotten when its caller stops waiting.
struct Waiting {
    link: Weak<Link>,
    number: u64,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(link) = self.link.upgrade() {
            link.0.lock().waiting.remove(&self.number);
        }
    }
}

impl Remote {
    /// Connects to a store, and keeps connecting whenever that ends. Until the first connection stands, and whenever none does,
    /// requests are answered [`StorageError::Unavailable`]; [`Remote::connect`] waits for the first.
    pub fn new(host: Host, address: SocketAddr) -> Arc<Remote> {
        Self::start(host, address, None)
    }

    /// As [`new`](Self::new), with a connection that stands already.
    pub async fn connect(host: Host, address: SocketAddr) -> io::Result<Arc<Remote>> {
        let halves = connect(host.clock.as_ref(), address).await?;
        Ok(Self::start(host, address, Some(halves)))
    }

    fn start(host: Host, address: SocketAddr, halves: Option<(OwnedReadHalf, OwnedWriteHalf)>) -> Arc<Remote> {
        let link = Arc::new(Link::default());
        let (alive, ended) = oneshot::channel();
        let clock = host.clock.clone();
        let frames = halves.map(|(from, to)| (from, link.up(&host, to)));
        let connecting = keep_connected(host.clone(), address, link.clone(), frames.map(|(from, ())| from));
        host.tasks.spawn(Box::pin(async move {
            let _: Either<(), _> = first(connecting, ended).await;
        }));
        Arc::new(Remote { link, clock, _alive: alive })
    }

    fn call<T: Send + 'static>(
        &self,
        request: Request,
        expected: impl FnOnce(Answer) -> Option<T> + Send + 'static,
    ) -> BoxFuture<Result<T, StorageError>> {
        let (link, clock) = (self.link.clone(), self.clock.clone());
        Box::pin(async move {
            let calling = async move {
                let (done, answered) = oneshot::channel();
                let (frames, waiting) = link.register(done)?;
                frames.send(request.encode(waiting.number)).await.map_err(|_| StorageError::Unavailable)?;
                // The queue must not be kept open by those who wait for answers.
                drop(frames);
                answered.await.map_err(|_| StorageError::Unavailable)
            };
            let answer = timeout(clock.as_ref(), REQUEST_TIME_MAX, calling).await;
            match answer.map_err(|_| StorageError::Unavailable)?? {
                Answer::Refused(error) => Err(error),
                answer => expected(answer).ok_or(StorageError::Unavailable),
            }
        })
    }
}

impl Link {
    fn up(&self, host: &Host, to: OwnedWriteHalf) {
        let (frames, queue) = mpsc::channel(REQUESTS_MAX);
        self.0.lock().frames = Some(frames);
        host.tasks.spawn(Box::pin(write_frames(to, queue)));
    }

    /// Ends all requests under way.
    fn down(&self) {
        let ended = {
            let mut state = self.0.lock();
            (state.frames.take(), std::mem::take(&mut state.waiting))
        };
        // Dropped without the lock: whoever waits wakes up and takes it.
        drop(ended);
    }

    fn register(
        self: &Arc<Self>,
        done: oneshot::Sender<Answer>,
    ) -> Result<(mpsc::Sender<Frame>, Waiting), StorageError> {
        let state = &mut *self.0.lock();
        let frames = state.frames.clone().ok_or(StorageError::Unavailable)?;
        state.last_number += 1;
        state.waiting.insert(state.last_number, done);
        Ok((frames, Waiting { link: Arc::downgrade(self), number: state.last_number }))
    }

    /// Hands answers out until the connection breaks.
    async fn receive(&self, mut from: OwnedReadHalf) -> io::Error {
        loop {
            let decoded = match read_frame(&mut from).await {
                Ok(frame) => Answer::decode(&frame).map_err(invalid),
                Err(error) => Err(error),
            };
            match decoded {
                Ok((number, answer)) => {
                    let waiting = self.0.lock().waiting.remove(&number);
                    // Nobody waits for it any more: it came too late.
                    let _ = waiting.map(|done| done.send(answer));
                }
                Err(error) => return error,
            }
        }
    }
}

async fn connect(clock: &dyn Clock, address: SocketAddr) -> io::Result<(OwnedReadHalf, OwnedWriteHalf)> {
    let connecting = async { greet(TcpStream::connect(address).await?).await };
    timeout(clock, CONNECT_TIME_MAX, connecting).await.map_err(|_| io::ErrorKind::TimedOut)?
}

async fn keep_connected(host: Host, address: SocketAddr, link: Arc<Link>, mut standing: Option<OwnedReadHalf>) {
    let mut backoff = BACKOFF_MIN;
    loop {
        if let Some(from) = standing.take() {
            backoff = BACKOFF_MIN;
            let error = link.receive(from).await;
            link.down();
            tracing::warn!(%address, %error, "connection to store lost");
        }
        match connect(host.clock.as_ref(), address).await {
            Ok((from, to)) => {
                link.up(&host, to);
                standing = Some(from);
            }
            Err(error) => {
                tracing::debug!(%address, %error, "store cannot be reached");
                host.clock.sleep(backoff).await;
                backoff = (2 * backoff).min(BACKOFF_MAX);
            }
        }
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.link.down();
    }
}

/// The one kind of answer that a request may have.
macro_rules! answer {
    ($pattern:pat => $value:expr) => {
        |answer| match answer {
            $pattern => Some($value),
            _ => None,
        }
    };
}

impl Storage for Remote {
    fn put(&self, fragment: Fragment) -> BoxFuture<Result<(), StorageError>> {
        if fragment.header.check().is_err() {
            return Box::pin(std::future::ready(Err(StorageError::BadRequest("fragment header"))));
        }
        self.call(Request::Put(fragment), answer!(Answer::Done => ()))
    }

    fn read(&self, id: FragmentId, attempt: u16, range: Range<u32>) -> BoxFuture<Result<Bytes, StorageError>> {
        let len = range.len();
        self.call(Request::Read { id, attempt, range }, move |answer| match answer {
            Answer::Bytes(bytes) if bytes.len() == len => Some(bytes),
            _ => None,
        })
    }

    fn describe(&self, segment: SegmentId) -> BoxFuture<Result<Vec<FragmentHeader>, StorageError>> {
        self.call(Request::Describe(segment), answer!(Answer::Headers(headers) => headers))
    }

    fn list(
        &self,
        log: LogId,
        from_seq: u64,
        count_max: usize,
    ) -> BoxFuture<Result<Vec<FragmentHeader>, StorageError>> {
        let count_max = u32::try_from(count_max).unwrap_or(u32::MAX);
        self.call(Request::List { log, from_seq, count_max }, answer!(Answer::Headers(headers) => headers))
    }

    fn segments(&self) -> BoxFuture<Result<Vec<(SegmentId, u64)>, StorageError>> {
        self.call(Request::Segments, answer!(Answer::Segments(segments) => segments))
    }

    fn delete(&self, segments: Vec<SegmentId>) -> BoxFuture<Result<(), StorageError>> {
        self.call(Request::Delete(segments), answer!(Answer::Done => ()))
    }

    fn seal(&self, seal: Seal) -> BoxFuture<Result<Seal, StorageError>> {
        self.call(Request::Seal(seal), answer!(Answer::Seal(seal) => seal))
    }

    fn seals(&self) -> BoxFuture<Result<Vec<Seal>, StorageError>> {
        self.call(Request::Seals, answer!(Answer::Seals(seals) => seals))
    }

    fn put_maps(&self, maps: Maps) -> BoxFuture<Result<(), StorageError>> {
        self.call(Request::PutMaps(maps), answer!(Answer::Done => ()))
    }

    fn maps(&self) -> BoxFuture<Result<Maps, StorageError>> {
        self.call(Request::Maps, answer!(Answer::Maps(maps) => maps))
    }

    fn verify(&self, id: FragmentId) -> BoxFuture<Result<(), StorageError>> {
        self.call(Request::Verify(id), answer!(Answer::Done => ()))
    }

    fn status(&self) -> BoxFuture<Result<StoreStatus, StorageError>> {
        self.call(Request::Status, answer!(Answer::Status(status) => status))
    }
}
