//! The server on real files.

use super::model::{Model, below, check, check_opened, identity, live, step};
use crate::api::{Storage, StorageError};
use crate::server::{StoreOpenError, StoreServer};
use crate::testing::fragment;
use host::SplitMix64;
use host::real::RealDisk;
use parking_lot::Mutex;
use std::future::Future;
use std::sync::Arc;

/// Runs `test` with a host and a folder of its own.
fn on_disk<F: Future<Output = ()>>(test: impl FnOnce(host::Host, Arc<RealDisk>) -> F) {
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let host = host::real::host(runtime.handle().clone()).unwrap();
    runtime.block_on(test(host, RealDisk::open(folder.path()).unwrap()));
}

#[test]
fn model_real_disk_through_restarts() {
    on_disk(|host, disk| async move {
        let model: Arc<Mutex<Model>> = Arc::default();
        let random = Arc::new(SplitMix64::new(1));
        drop(StoreServer::create(host.clone(), disk.clone(), identity()).await.unwrap());
        for _ in 0..6 {
            let server = StoreServer::open(host.clone(), disk.clone()).await.unwrap();
            check_opened(&server, &model).await;
            let steps = 20 + below(&random, 40);
            for _ in 0..steps {
                step(&server, &model, &random).await.unwrap();
            }
            check(&server, &model).await;
            live(server.clone(), model.clone(), random.clone(), 5).await;
            server.close().await.ok();
            model.lock().crash();
        }
        assert!(model.lock().acknowledged > 200, "{} puts got through", model.lock().acknowledged);
        assert!(model.lock().full > 0, "the store never was full");
    });
}

#[test]
fn a_folder_without_a_store_is_told_apart_from_one_with() {
    on_disk(|host, disk| async move {
        assert!(matches!(StoreServer::open(host.clone(), disk.clone()).await, Err(StoreOpenError::NotAStore)));
        let server = StoreServer::create(host.clone(), disk.clone(), identity()).await.unwrap();
        server.close().await.unwrap();
        assert!(matches!(
            StoreServer::create(host.clone(), disk.clone(), identity()).await,
            Err(StoreOpenError::Foreign)
        ));
        assert_eq!(StoreServer::open(host, disk).await.unwrap().identity(), identity());
    });
}

#[test]
fn a_closed_store_reads_but_takes_no_changes() {
    on_disk(|host, disk| async move {
        let server = StoreServer::create(host, disk, identity()).await.unwrap();
        let one = fragment(1, 1, 0, 5000);
        server.put(one.clone()).await.unwrap();
        server.close().await.unwrap();
        assert_eq!(server.put(fragment(1, 2, 0, 10)).await, Err(StorageError::Unavailable));
        assert_eq!(server.close().await, Err(StorageError::Unavailable));
        assert_eq!(server.read(one.header.id, 0, 0..5000).await, Ok(one.payload));
    });
}

#[test]
fn fragments_that_do_not_belong_here_are_refused() {
    on_disk(|host, disk| async move {
        let server = StoreServer::create(host, disk, identity()).await.unwrap();
        let refused = |result| matches!(result, Err(StorageError::BadRequest(_)));
        let good = fragment(1, 1, 0, 100);

        let mut foreign = good.clone();
        foreign.header.fs.0[0] ^= 1;
        assert!(refused(server.put(foreign).await));

        let mut other_store = good.clone();
        other_store.header.geometry.members.swap(0, 1);
        assert!(refused(server.put(other_store).await));

        let mut short = good.clone();
        short.payload.truncate(99);
        assert!(refused(server.put(short).await));

        let mut odd = good.clone();
        odd.header.chunk_crcs.push(0);
        assert!(refused(server.put(odd).await));

        assert_eq!(server.put(good.clone()).await, Ok(()));
        assert_eq!(server.put(good.clone()).await, Ok(()));
        let mut other_contents = good;
        other_contents.header.delta_offset += 1;
        assert!(refused(server.put(other_contents).await));
    });
}
