//! The server through connections on the loopback interface.

use super::model::identity;
use crate::api::{Fence, Presence, RemoteStorage, Seal, Storage, StorageError, StoreIdentity};
use crate::calls::ServedStores;
use crate::server::StoreServer;
use crate::site::Site;
use crate::tcp::{Address, ClientKeys, LinkedStore, Remote, ServerKeys, StoreService, TLS_NAME, serve};
use crate::testing::fragment;
use crate::wire::{StoreAnswer, StoreName, StoreRequest};
use host::real::RealDisk;
use host::{Host, first, join_all};
use link::wire::{answer_frame, frame};
use link::{NodeLink, Services, kinds};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use types::{FsUuid, LogId, Maps, StoreId};

/// A served site, empty at first.
struct Rig {
    host: Host,
    site: Arc<Site>,
    port: u16,
}

fn with_site<F: Future<Output = ()>>(keys: Option<ServerKeys>, test: impl FnOnce(Rig) -> F) {
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let host = host::real::host(runtime.handle().clone()).unwrap();
    runtime.block_on(async {
        let disk = RealDisk::open(folder.path()).unwrap();
        let site = Site::open(host.clone(), disk).await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        host.tasks.spawn(Box::pin(serve(host.clone(), listener, site.clone(), keys)));
        test(Rig { host, site, port }).await;
    });
}

fn with_store<F: Future<Output = ()>>(test: impl FnOnce(Rig) -> F) {
    with_site(None, |rig| async move {
        rig.site.initialise(identity()).await.unwrap();
        test(rig).await;
    });
}

impl Rig {
    fn remote_at(&self, port: u16, keys: Option<ClientKeys>) -> Arc<Remote> {
        Remote::new(self.host.clone(), Address { host: "127.0.0.1".into(), port, keys })
    }

    async fn remote(&self) -> Arc<Remote> {
        let remote = self.remote_at(self.port, None);
        remote.expect(identity().fs, identity().store).await;
        remote
    }

    fn server(&self) -> Arc<StoreServer> {
        self.site.store(StoreName { fs: identity().fs, store: identity().store }).unwrap()
    }
}

/// An authority with keys for both sides, as `starling keys` makes them.
fn keys() -> (ServerKeys, ClientKeys) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let signed = |usage| {
        let mut params = CertificateParams::new([TLS_NAME.to_string()]).unwrap();
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &ca).unwrap().pem(), key.serialize_pem())
    };
    let (store, mount) = (signed(ExtendedKeyUsagePurpose::ServerAuth), signed(ExtendedKeyUsagePurpose::ClientAuth));
    let ca = ca.pem();
    (
        ServerKeys::new(ca.as_bytes(), store.0.as_bytes(), store.1.as_bytes()).unwrap(),
        ClientKeys::new(ca.as_bytes(), mount.0.as_bytes(), mount.1.as_bytes()).unwrap(),
    )
}

#[test]
fn an_empty_site_tells_its_space_and_takes_one_store() {
    with_site(None, |rig| async move {
        let remote = rig.remote_at(rig.port, None);
        assert!(matches!(remote.presence().await.unwrap(), Presence::Empty(space) if space.free_bytes > 0));
        assert_eq!(remote.status().await, Err(StorageError::Unavailable));
        remote.initialise(identity()).await.unwrap();
        assert_eq!(remote.presence().await.unwrap(), Presence::Store(identity()));
        let refused = remote.initialise(StoreIdentity { fs: FsUuid([1; 16]), ..identity() }).await.unwrap_err();
        assert!(refused.to_string().contains("another store"), "{refused}");
        remote.expect(identity().fs, identity().store).await;
        assert_eq!(remote.put(fragment(1, 0, 0, 100)).await, Ok(()));
        assert_eq!(rig.server().verify(fragment(1, 0, 0, 100).header.id).await, Ok(()));
    });
}

#[test]
fn another_store_at_the_same_address_is_not_used() {
    with_store(|rig| async move {
        let remote = rig.remote_at(rig.port, None);
        remote.expect(FsUuid([1; 16]), identity().store).await;
        assert_eq!(remote.segments().await, Err(StorageError::Unavailable));
        assert_eq!(remote.delete(vec![fragment(1, 0, 0, 9).header.id.segment]).await, Err(StorageError::Unavailable));
        remote.expect(identity().fs, identity().store).await;
        assert_eq!(remote.segments().await, Ok(vec![]));
    });
}

#[test]
fn large_and_small_fragments_come_through_tls_and_strangers_do_not() {
    let (server_keys, client_keys) = keys();
    with_site(Some(server_keys), |rig| async move {
        rig.site.initialise(identity()).await.unwrap();
        let remote = rig.remote_at(rig.port, Some(client_keys));
        remote.expect(identity().fs, identity().store).await;
        let fragments: Vec<_> = (0..8).map(|seq| fragment(1, seq, 0, 140_000 * seq as u32)).collect();
        let puts = fragments.iter().map(|f| remote.put(f.clone())).collect();
        join_all(puts).await.into_iter().collect::<Result<(), _>>().unwrap();
        for f in &fragments {
            assert_eq!(remote.read(f.header.id, 0, 0..f.header.len).await.as_ref(), Ok(&f.payload));
        }
        for stranger in [Some(keys().1), None] {
            let stranger = rig.remote_at(rig.port, stranger);
            stranger.presence().await.unwrap_err();
        }
        assert_eq!(remote.segments().await.unwrap().len(), 8);
    });
}

/// Stores that are open.
struct OpenStores(Vec<Arc<StoreServer>>);

impl ServedStores for OpenStores {
    fn store(&self, name: StoreName) -> Option<Arc<dyn Storage>> {
        let has_name = |server: &&Arc<StoreServer>| server.identity().store == name.store;
        self.0.iter().find(has_name).map(|server| server.clone() as Arc<dyn Storage>)
    }
}

#[test]
fn one_connection_serves_several_stores_of_a_node_by_name() {
    let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let host = host::real::host(runtime.handle().clone()).unwrap();
    runtime.block_on(async {
        let mut stores = Vec::new();
        let (first, second, none) = (StoreId::new(77), identity().store, StoreId::new(78));
        for (folder, store) in folders.iter().zip([first, second]) {
            let disk = RealDisk::open(folder.path()).unwrap();
            let identity = StoreIdentity { store, ..identity() };
            stores.push(StoreServer::create(host.clone(), disk, identity).await.unwrap());
        }
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let service = StoreService::new(Arc::new(OpenStores(stores.clone())));
        let services = Services::new().with(kinds::STORAGE, service);
        host.tasks.spawn(Box::pin(link::serve(host.clone(), listener, services, None)));
        let address = Address { host: "127.0.0.1".into(), port, keys: None };
        let (link, tried) = NodeLink::keep(&host, address.clone(), "node-0".into(), None);
        tried.await;
        let at = |store| LinkedStore::new(link.clone(), StoreName { fs: identity().fs, store });
        let fragment = fragment(1, 0, 0, 100);
        at(second).put(fragment.clone()).await.unwrap();
        assert_eq!(stores[1].verify(fragment.header.id).await, Ok(()));
        assert_eq!(at(first).verify(fragment.header.id).await, Err(StorageError::NotFound(fragment.header.id)));
        for store in [first, second] {
            assert_eq!(at(store).status().await.unwrap().id, store);
        }
        assert_eq!(at(none).status().await, Err(StorageError::Unavailable));
        let refused = Remote::new(host.clone(), address).initialise(identity()).await.unwrap_err().to_string();
        assert!(refused.contains("makes its stores itself"), "{refused}");
    });
}

#[test]
fn every_request_comes_through() {
    with_store(|rig| async move {
        let remote = rig.remote().await;
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
        assert_eq!(remote.segments().await, rig.server().segments().await);
        loop {
            // Other programs use the disk, too.
            let (before, there) = (rig.server().status().await, remote.status().await);
            if before == rig.server().status().await {
                assert_eq!(there, before);
                break;
            }
        }
        assert_eq!(remote.delete(vec![id.segment]).await, Ok(()));
        assert_eq!(remote.verify(id).await, Err(StorageError::NotFound(id)));
        let seal = Seal::new(LogId::new(1), Fence { epoch: 1, through: 5 }, 0);
        assert_eq!(remote.seal(seal.clone()).await, Ok(seal.clone()));
        assert_eq!(remote.seals().await, Ok(vec![seal]));
        assert_eq!(remote.put(last.clone()).await, Err(StorageError::Sealed(LogId::new(1))));
        let maps = Maps { epoch: 3, bytes: "maps".into() };
        assert_eq!(remote.put_maps(maps.clone()).await, Ok(()));
        assert_eq!(remote.maps().await, Ok(maps));
    });
}

#[test]
fn a_connection_that_breaks_ends_its_requests_and_is_made_anew() {
    with_store(|rig| async move {
        // A relay between both ends lets connections through, and cuts the first two when told.
        let between = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = between.local_addr().unwrap().port();
        let (store, host) = (rig.port, rig.host.clone());
        let ends: [_; 2] = std::array::from_fn(|_| oneshot::channel::<()>());
        let (cut, cutting): (Vec<_>, Vec<_>) = ends.into_iter().unzip();
        rig.host.tasks.spawn(Box::pin(async move {
            let mut cutting = cutting.into_iter();
            loop {
                let (mut near, _) = between.accept().await.unwrap();
                let mut far = TcpStream::connect(("127.0.0.1", store)).await.unwrap();
                let cutting = cutting.next();
                host.tasks.spawn(Box::pin(async move {
                    let carried = tokio::io::copy_bidirectional(&mut near, &mut far);
                    match cutting {
                        Some(cutting) => drop(first(carried, cutting).await),
                        None => drop(carried.await),
                    }
                }));
            }
        }));
        let remote = rig.remote_at(port, None);
        remote.expect(identity().fs, identity().store).await;
        remote.put(fragment(1, 0, 0, 100)).await.unwrap();
        cut.into_iter().for_each(|cut| cut.send(()).unwrap());
        let mut unavailable = 0;
        loop {
            match remote.status().await {
                Err(StorageError::Unavailable) => unavailable += 1,
                Ok(_) if unavailable > 0 => break,
                // This request was sent before the cut was noticed.
                other => drop(other.unwrap()),
            }
            rig.host.clock.sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(remote.verify(fragment(1, 0, 0, 100).header.id).await, Ok(()));
    });
}

#[test]
fn a_peer_that_speaks_something_else_is_cut_off_and_harms_nobody() {
    with_store(|rig| async move {
        let remote = rig.remote().await;
        let greeting = link::wire::greeting();
        let absurd = [&greeting[..], &[255; 100]].concat();
        let for_no_store = frame(1, kinds::STORAGE, StoreRequest::Segments.encode(StoreName::NONE));
        let for_no_store = [&greeting[..], &for_no_store.concat()].concat();
        for said in [&b"GET / HTTP/1.1\r\n\r\n"[..], &absurd, &for_no_store] {
            let mut stranger = TcpStream::connect(("127.0.0.1", rig.port)).await.unwrap();
            stranger.write_all(said).await.unwrap();
            stranger.shutdown().await.unwrap();
            let mut heard = Vec::new();
            // The connection may end orderly or by a reset, but it must end.
            let _ = stranger.read_to_end(&mut heard).await;
            let refused = answer_frame(1, StoreAnswer::Refused(StorageError::Unavailable).encode()).concat();
            let told = heard.strip_prefix(&greeting[..]).unwrap_or(&heard);
            assert!(told.is_empty() || told == refused, "{heard:?}");
        }
        assert_eq!(remote.put(fragment(1, 0, 0, 100)).await, Ok(()));
    });
}

#[test]
fn a_server_of_another_version_is_refused_by_name() {
    with_site(None, |rig| async move {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        rig.host.tasks.spawn(Box::pin(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut newer = link::wire::greeting();
            newer[8] = 0xff;
            stream.write_all(&newer).await.unwrap();
            let _ = stream.read_to_end(&mut Vec::new()).await;
        }));
        let error = rig.remote_at(port, None).presence().await.unwrap_err().to_string();
        assert!(
            error.starts_with("tcp://127.0.0.1:") && error.contains("version 255") && error.contains("one starling"),
            "{error}"
        );
    });
}
