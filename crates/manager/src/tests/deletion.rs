//! Rounds of checkpoints and deletion, with segments so small that one checkpoint takes many.

use crate::api::{Manager, ManagerAdmin};
use crate::testing::{Setup, inode};
use crate::tests::requests::{create, delete_free, file};
use crate::token::Mode;
use host::SplitMix64;
use types::ClientId;

const CLIENT: ClientId = ClientId::new(1);
/// Far enough apart that no two of these files share a page.
const APART: u64 = 4096;

/// A round that wrote no checkpoint deleted segments that the newest root needs, and the next start
/// could not read it.
#[test]
fn regression_a_round_without_a_checkpoint_deletes_nothing_that_the_root_needs() {
    for seed in 0..20 {
        let random = SplitMix64::new(seed);
        let mut setup = Setup::new(seed);
        setup.lengths.segment_len_max = 4096 + random.below(8192) as u32;
        setup.sim.block_on(async {
            let mut run = setup.start().await.unwrap();
            let mut made = 0;
            for _ in 0..4 {
                let next = made + 50 + random.below(200);
                create(&mut run, (made..next).map(|n| n * APART)).await;
                made = next;
                run.server.checkpoint().await.unwrap();
                for _ in 0..random.below(3) {
                    delete_free(&run).await;
                }
                if random.below(2) == 0 {
                    run.machine.crash();
                    run = setup.start().await.unwrap_or_else(|e| panic!("seed {seed}: start after a round: {e}"));
                }
            }
            for n in 0..made {
                let opened = run.server.open(CLIENT, file(n * APART), Mode::Read).await.unwrap();
                assert_eq!(opened.inode, inode(file(n * APART), 1, n * APART));
            }
            assert!(run.server.audit().await.unwrap().is_clean());
        });
    }
}
