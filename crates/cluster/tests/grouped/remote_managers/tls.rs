//! Two nodes over TLS on the loopback interface, with connections that are cut.

use super::*;
use host::first;
use host::real::RealDisk;
use link::{Address, NodeKeys, NodeLink, Services, TLS_NAME, kinds, serve};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

fn keys(authority: &CertifiedIssuer<'static, KeyPair>) -> NodeKeys {
    let mut params = CertificateParams::new([TLS_NAME.to_string()]).unwrap();
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, authority).unwrap().pem();
    NodeKeys::new(authority.pem().as_bytes(), certificate.as_bytes(), key.serialize_pem().as_bytes()).unwrap()
}

/// Carries connections to `port`, and cuts all of them whenever the number changes.
async fn relay(host: &Host, port: u16, epoch: watch::Receiver<usize>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let own = listener.local_addr().unwrap().port();
    let tasks = host.tasks.clone();
    host.tasks.spawn(Box::pin(async move {
        loop {
            let (mut near, _) = listener.accept().await.unwrap();
            let mut far = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            let mut epoch = epoch.clone();
            epoch.mark_unchanged();
            tasks.spawn(Box::pin(async move {
                drop(first(tokio::io::copy_bidirectional(&mut near, &mut far), epoch.changed()).await);
            }));
        }
    }));
    own
}

#[test]
fn a_recall_reaches_the_holder_and_lets_the_other_client_in_whatever_breaks() {
    let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let host = host::real::host(runtime.handle().clone()).unwrap();
    runtime.block_on(async {
        let disks = [0, 1].map(|at| RealDisk::open(folders[at].path()).unwrap() as Arc<dyn Disk>);
        let server = Server::new(host.clone(), disks).await;
        let authority = authority();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let services = Services::new().with(kinds::MANAGER, server.service.clone());
        host.tasks.spawn(Box::pin(serve(host.clone(), listener, services, Some(keys(&authority).server))));
        let (cut, epoch) = watch::channel(0);
        let port = relay(&host, port, epoch).await;

        let beliefs = Beliefs::default();
        let mut links = Vec::new();
        let mut clients = Vec::new();
        for session in [1, 2] {
            server.admit(session);
            let address = Address { host: "127.0.0.1".into(), port, keys: Some(keys(&authority).client) };
            let (link, tried) = NodeLink::keep(&host, address, "node-0".into(), None);
            tried.await;
            clients.push(TestClient::new(&host, link.ordered(), session, &beliefs));
            links.push(link);
        }
        let [one, other] = [&clients[0], &clients[1]];
        for round in 0..20 {
            one.state.lock().is_stubborn = true;
            one.open(file(0), Mode::Write).await.unwrap();
            let waiting = other.manager.open(other.id(), file(0), Mode::Write).into_future();
            while one.state.lock().recalls.len() <= round {
                host::yield_now().await;
            }
            if round % 2 == 0 {
                cut.send(round + 1).unwrap();
            }
            one.release(file(0));
            let granted = waiting.await.unwrap().grant;
            other.manager.release(other.id(), file(0), granted.number);
        }
        let count = one.state.lock().recalls.len();
        assert_eq!(count, 20, "each recall came once");
        one.state.lock().is_stubborn = false;
        one.open(file(1), Mode::Write).await.unwrap();
        other.open(file(1), Mode::Write).await.unwrap();
        server.expel(2).await;
        assert_eq!(other.open(file(1), Mode::Write).await.map(drop), Err(ManagerError::Expelled));
        drop(links);
    });
}
