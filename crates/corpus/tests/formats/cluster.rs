use crate::replay;
use cluster::FsConfig;
use cluster::config::{Member, first_manager_map};
use corpus::cluster as checks;
use manager::ManagerMap;
use std::collections::BTreeMap;
use types::{FsUuid, ManagerId, NodeId};

#[test]
fn maps_of_the_corpus_and_changed_ones_are_decoded_or_refused() {
    let (kept, changed) = replay::run("maps", checks::maps);
    assert!(kept >= 3 && changed > 0, "the corpus has good maps: {kept}, {changed}");
}

/// The corpus also keeps maps of versions 1 and 2, which are read but no longer written.
#[test]
fn the_corpus_has_what_this_program_writes() {
    let first = FsConfig {
        fs: FsUuid([7; 16]),
        store_count: 5,
        parity: 1,
        block_size: 65536,
        store_capacity_bytes: 1 << 30,
        managers: first_manager_map(2),
        members: BTreeMap::new(),
        next_node: 1,
    };
    let managers = ManagerMap { epoch: 7, owners: [0, 1, 1, 2].map(ManagerId::new).to_vec() };
    let later = FsConfig { parity: 2, block_size: 4096, managers, ..first.clone() };
    let mut joined = later.clone();
    for (name, address) in [("laptop", ""), ("gone", "x"), ("node-3.lan", "10.0.0.3:7440")] {
        let member = Member { name: name.into(), fingerprint: [name.len() as u8; 32], address: address.into() };
        joined.add_member(member).expect("add");
    }
    joined.members.remove(&NodeId::new(2));
    let truncated = first.encode()[..40].to_vec();
    replay::compare(
        "maps",
        &[
            ("first", first.encode().into()),
            ("later", later.encode().into()),
            ("joined", joined.encode().into()),
            ("truncated", truncated),
        ],
    );
}
