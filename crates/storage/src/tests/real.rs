//! The server on real files.

use super::model::{Model, below, check, check_opened, identity, live, step};
use crate::api::{Storage, StorageError};
use crate::server::{StoreOpenError, StoreServer};
use crate::testing::fragment;
use host::Disk;
use host::SplitMix64;
use host::real::RealDisk;
use parking_lot::Mutex;
use record_log::checkpoint_pair::{HEAD_LEN, crc32c};
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

/// Writes the version in all heads of a store that is not open.
async fn set_version(disk: &RealDisk, version: u16) {
    for (name, offset) in ["checkpoint-a", "checkpoint-b"].into_iter().flat_map(|name| [(name, 0), (name, 4096)]) {
        let file = disk.open(name, false).await.unwrap();
        if file.len().await.unwrap() < offset + HEAD_LEN as u64 {
            continue;
        }
        let mut head = file.read_at(offset, HEAD_LEN).await.unwrap().to_vec();
        if head.iter().any(|byte| *byte != 0) {
            head[8..10].copy_from_slice(&version.to_le_bytes());
            let crc = crc32c(&head[..HEAD_LEN - 4]);
            head[HEAD_LEN - 4..].copy_from_slice(&crc.to_le_bytes());
            file.write_and_sync(vec![(offset, vec![head.into()])]).await.unwrap();
        }
    }
}

#[test]
fn a_store_of_version_7_keeps_its_fragments_and_takes_ones_with_an_order() {
    on_disk(|host, disk| async move {
        let server = StoreServer::create(host.clone(), disk.clone(), identity()).await.unwrap();
        let mut old = fragment(1, 1, 0, 5000);
        old.header.order = 0;
        server.put(old.clone()).await.unwrap();
        server.close().await.unwrap();
        drop(server);
        set_version(&disk, 6).await;
        let refused = StoreServer::open(host.clone(), disk.clone()).await;
        assert!(matches!(refused, Err(StoreOpenError::Version { found: 6, known: 8 })));
        set_version(&disk, 7).await;

        let new = fragment(1, 2, 0, 5000);
        for round in 0..2 {
            let server = StoreServer::open(host.clone(), disk.clone()).await.unwrap();
            if round == 0 {
                server.put(new.clone()).await.unwrap();
            }
            let listed = server.list(old.header.id.segment.log, 0, 10).await.unwrap();
            assert_eq!(listed, [old.header.clone(), new.header.clone()]);
            assert_eq!(server.read(old.header.id, 0, 0..5000).await, Ok(old.payload.clone()));
            server.close().await.unwrap();
        }
        let head = disk.open("checkpoint-a", false).await.unwrap().read_at(0, HEAD_LEN).await.unwrap();
        assert_eq!(head[8], 8, "older programs refuse the store from now on");
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
