//! The server through a connection on the loopback interface.

use super::model::identity;
use crate::api::{Maps, Seal, Storage, StorageError};
use crate::server::Server;
use crate::tcp::{Remote, serve};
use crate::testing::fragment;
use host::real::RealDisk;
use host::{Host, first, join_all};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use types::LogId;

struct Rig {
    host: Host,
    storage: Arc<Server>,
    listener: Option<TcpListener>,
    address: SocketAddr,
}

fn with_store<F: Future<Output = ()>>(test: impl FnOnce(Rig) -> F) {
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let host = host::real::host(runtime.handle().clone()).unwrap();
    runtime.block_on(async {
        let disk = RealDisk::open(folder.path()).unwrap();
        let storage = Server::create(host.clone(), disk, identity()).await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        test(Rig { host, storage, listener: Some(listener), address }).await;
    });
}

impl Rig {
    fn serve(&mut self) {
        let listener = self.listener.take().unwrap();
        let serving = serve(self.host.clone(), listener, self.storage.clone());
        self.host.tasks.spawn(Box::pin(async move { drop(serving.await) }));
    }
}

#[test]
fn every_request_comes_through() {
    with_store(|mut rig| async move {
        rig.serve();
        let remote = Remote::connect(rig.host.clone(), rig.address).await.unwrap();
        let fragments: Vec<_> = (0..20).map(|seq| fragment(1, seq, 0, 1000 * seq as u32)).collect();
        let puts = fragments.iter().map(|f| remote.put(f.clone())).collect();
        join_all(puts).await.into_iter().collect::<Result<(), _>>().unwrap();

        let last = &fragments[19];
        let id = last.header.id;
        assert_eq!(remote.read(id, 0, 10..20).await, Ok(last.payload.slice(10..20)));
        assert_eq!(remote.read(id, 1, 10..20).await, Err(StorageError::NotFound(id)));
        assert!(matches!(remote.read(id, 0, 10..19_001).await, Err(StorageError::BadRequest(_))));
        assert_eq!(remote.describe(id.segment).await, Ok(vec![last.header.clone()]));
        assert_eq!(remote.list(LogId::new(1), 0, usize::MAX).await.unwrap().len(), 20);
        assert_eq!(remote.verify(id).await, Ok(()));
        assert_eq!(remote.segments().await, rig.storage.segments().await);
        assert_eq!(remote.status().await, rig.storage.status().await);
        assert_eq!(remote.delete(vec![id.segment]).await, Ok(()));
        assert_eq!(remote.verify(id).await, Err(StorageError::NotFound(id)));
        let seal = Seal { log: LogId::new(1), epoch: 1, through: 5 };
        assert_eq!(remote.seal(seal).await, Ok(seal));
        assert_eq!(remote.seals().await, Ok(vec![seal]));
        assert_eq!(remote.put(last.clone()).await, Err(StorageError::Sealed(LogId::new(1))));
        let maps = Maps { epoch: 3, bytes: "maps".into() };
        assert_eq!(remote.put_maps(maps.clone()).await, Ok(()));
        assert_eq!(remote.maps().await, Ok(maps));
    });
}

#[test]
fn a_connection_that_breaks_ends_its_requests_and_is_made_anew() {
    with_store(|mut rig| async move {
        // Between the two: lets one connection through, and cuts it when told.
        let between = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = between.local_addr().unwrap();
        let (store, (cut, cutting)) = (rig.address, oneshot::channel::<()>());
        rig.serve();
        rig.host.tasks.spawn(Box::pin(async move {
            let mut cutting = Some(cutting);
            loop {
                let (mut near, _) = between.accept().await.unwrap();
                let mut far = TcpStream::connect(store).await.unwrap();
                let carried = tokio::io::copy_bidirectional(&mut near, &mut far);
                match cutting.take() {
                    Some(cutting) => drop(first(carried, cutting).await),
                    None => drop(carried.await),
                }
            }
        }));
        let remote = Remote::connect(rig.host.clone(), address).await.unwrap();
        remote.put(fragment(1, 0, 0, 100)).await.unwrap();
        cut.send(()).unwrap();
        let mut unavailable = 0;
        loop {
            match remote.status().await {
                Err(StorageError::Unavailable) => unavailable += 1,
                Ok(_) if unavailable > 0 => break,
                // Sent before the cut was noticed.
                other => drop(other.unwrap()),
            }
            rig.host.clock.sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(remote.verify(fragment(1, 0, 0, 100).header.id).await, Ok(()));
    });
}

#[test]
fn a_peer_that_speaks_something_else_is_cut_off_and_harms_nobody() {
    with_store(|mut rig| async move {
        rig.serve();
        let remote = Remote::connect(rig.host.clone(), rig.address).await.unwrap();
        let greeting = crate::wire::greeting();
        for said in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[&greeting[..], &[255; 100]].concat()] {
            let mut stranger = TcpStream::connect(rig.address).await.unwrap();
            stranger.write_all(said).await.unwrap();
            let mut heard = Vec::new();
            // An end or a reset, but an end.
            let _ = stranger.read_to_end(&mut heard).await;
            assert!(heard.is_empty() || heard == greeting);
        }
        assert_eq!(remote.put(fragment(1, 0, 0, 100)).await, Ok(()));
    });
}
