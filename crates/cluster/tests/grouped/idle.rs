//! What an idle file system does: it merges small segments, and then rests.

use cluster::StorePlace;
use cluster::machine::{CoreMachine, Create, INDEX_RANGE_LEN, Lengths, Run, create};
use host::Disk;
use host::sim::{Sim, SimDisk};
use std::sync::Arc;
use std::time::Duration;
use types::FileId;
use vfs::fs::{Cred, FileSystem, OpenFlags};

const STORE_BYTES: u64 = 256 << 20;
const FILES: u64 = 60;

#[test]
fn small_segments_are_merged_when_idle_and_then_left_alone() {
    let sim = Sim::new(3);
    let machine = sim.machine("one");
    let host = machine.host();
    let places: Vec<StorePlace> = (0..5).map(|_| SimDisk::new(&sim, STORE_BYTES).mount(&machine).into()).collect();
    let consensus: Arc<dyn Disk> = SimDisk::new(&sim, STORE_BYTES).mount(&machine);
    sim.block_on(async move {
        let store_capacity_bytes = Some(STORE_BYTES / 2);
        let how = Create { parity: 1, block_size: 64 * 1024, manager_count: 2, store_capacity_bytes };
        create(&host, &places, &consensus, how).await.expect("create");
        let how = Run {
            cache_bytes: 16 << 20,
            root_mode: 0o755,
            root_uid: 0,
            root_gid: 0,
            index_range_len: INDEX_RANGE_LEN,
            manager_lengths: Lengths::LARGEST,
            accepts_loss: false,
            claim: cluster::Claim::NONE,
        };
        let machine = CoreMachine::start(host.clone(), &places, &consensus, how).await.expect("start");
        let client = &machine.client;
        let write = OpenFlags { read: true, write: true, ..OpenFlags::default() };
        for i in 0..FILES {
            let name = i.to_string().into_bytes();
            let (entry, handle) =
                client.create(&Cred::ROOT, FileId::ROOT, &name, 0o644, 0, write).await.expect("create");
            client.write(&Cred::ROOT, entry.attr.id, handle, 0, &name).await.expect("write");
            client.fsync(entry.attr.id, handle, false).await.expect("fsync");
            client.release(entry.attr.id, handle, None).await.expect("release");
        }
        assert!(machine.stripe.segments().await.expect("segments").len() as u64 >= FILES);

        host.clock.sleep(Duration::from_secs(120)).await;
        let merged = machine.maintenance.done();
        assert!(merged.cleaned_count >= FILES, "{merged:?}");
        assert!(machine.stripe.segments().await.expect("segments").len() < 16, "{merged:?}");

        host.clock.sleep(Duration::from_secs(3600)).await;
        let later = machine.maintenance.done();
        assert_eq!(later.cleaned_count, merged.cleaned_count, "what is merged is not merged again");
        for i in 0..FILES {
            let name = i.to_string().into_bytes();
            let id = client.lookup(&Cred::ROOT, FileId::ROOT, &name).await.expect("lookup").attr.id;
            let handle = client.open(&Cred::ROOT, id, write).await.expect("open");
            assert_eq!(client.read(id, handle, 0, 100).await.expect("read"), name);
        }
        machine.stop().await.expect("stop");
        let machine = CoreMachine::start(machine.host(), &places, &consensus, how).await.expect("start again");
        let report = cluster::check::check(&machine, |_| {}).await.expect("check");
        assert_eq!(report.problems, Vec::<String>::new());
    });
}
