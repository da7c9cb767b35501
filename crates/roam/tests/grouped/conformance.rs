//! The behaviour that docs/semantics.md promises, of a client that roams over a home.

use crate::rig::Rig;
use roam::Consistency;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

/// What a client that roams answers otherwise: all of a file counts as data, and reading moves no
/// access time.
const OTHERWISE: [&str; 3] = ["seek_finds_data_and_holes", "holes_take_no_space", "reads_move_atime_now_and_then"];

fn failing(delay: Duration, consistency: Consistency) -> Vec<&'static str> {
    let checks = vfs::suite::all().into_iter().filter(|(name, _)| !OTHERWISE.contains(name));
    let failed = checks.filter(|(_, check)| {
        let passed = catch_unwind(AssertUnwindSafe(|| {
            let rig = Rig::new(1);
            let (client, ..) = rig.new_client(1, delay);
            client.set(|settings| settings.consistency = consistency);
            rig.sim.run_for(Duration::from_secs(1));
            rig.sim.block_on(check(Arc::new(client)));
        }));
        passed.is_err()
    });
    failed.map(|(name, _)| name).collect()
}

#[test]
fn model_a_near_home_behaves_as_documented() {
    assert_eq!(failing(Duration::from_millis(1), Consistency::Callbacks), Vec::<&str>::new());
}

#[test]
fn model_a_far_home_behaves_as_documented() {
    assert_eq!(failing(Duration::from_millis(100), Consistency::Callbacks), Vec::<&str>::new());
}

#[test]
fn model_work_under_delegations_behaves_as_documented() {
    assert_eq!(failing(Duration::from_millis(100), Consistency::Strong), Vec::<&str>::new());
}
