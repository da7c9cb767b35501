//! How fast segments are striped and rebuilt on one core, in GB of payload per second and time per
//! call (best of several rounds): `cargo run --release -p striped-log --example parity_speed`.

use bytes::Bytes;
use std::hint::black_box;
use std::time::Instant;
use striped_log::fragment::{CHUNK_LEN, FRAGMENT_LEN_MAX, Geometry, chunk_crcs};
use striped_log::parity;
use striped_log::segment::{Segment, rebuild, rebuild_range};
use types::{FsUuid, LogId, SegmentId, StoreId};

const ROUNDS: usize = 40;

#[expect(clippy::disallowed_methods, reason = "the example measures time")]
fn report(what: &str, bytes: u32, mut work: impl FnMut()) {
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        work();
        best = best.min(start.elapsed().as_secs_f64());
    }
    println!("{what:<44} {:6.1} GB/s {:8.1} us", f64::from(bytes) / best / 1e9, best * 1e6);
}

fn main() {
    for (k, m) in [(4, 1), (4, 2), (8, 2), (16, 2)] {
        let len = u32::from(k) * FRAGMENT_LEN_MAX;
        let payload: Vec<u8> = (0..len).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let id = SegmentId { log: LogId::new(1), epoch: 1, seq: 1 };
        let segment = Segment { id, previous: None, order: 1, payload: Bytes::from(payload), delta_offset: len };
        let members = (0..u16::from(k + m)).map(StoreId::new).collect();
        let geometry = Geometry::new(len, k, m, members);
        let stripe = || segment.stripe(FsUuid([0; 16]), 0, geometry.clone());

        let slices: Vec<&[u8]> = segment.payload.chunks(FRAGMENT_LEN_MAX as usize).collect();
        let (mut first, mut second) = (vec![0; CHUNK_LEN as usize], vec![0; CHUNK_LEN as usize]);
        report(&format!("{k}+{m} parity alone, in strips"), len, || {
            for begin in (0..FRAGMENT_LEN_MAX as usize).step_by(CHUNK_LEN as usize) {
                let strips: Vec<&[u8]> = slices.iter().map(|s| &s[begin..begin + CHUNK_LEN as usize]).collect();
                match m {
                    1 => parity::encode_one(&strips, &mut first),
                    _ => parity::encode_two(&strips, &mut first, &mut second).expect("lengths fit"),
                }
                black_box((&first, &second));
            }
        });
        report(&format!("{k}+{m} stripe: parity, checksums, new memory"), len, || {
            black_box(stripe());
        });
        let have: Vec<(u8, Bytes)> = stripe().into_iter().map(|f| (f.header.id.index, f.payload)).collect();
        let lost: Vec<u8> = (0..m).collect();
        report(&format!("{k}+{m} rebuild of {m} data fragments"), len, || {
            let _ = black_box(rebuild(&geometry, &lost, &have[usize::from(m)..]));
        });
        if m == 2 {
            report(&format!("{k}+{m} rebuild of one data fragment"), len, || {
                let _ = black_box(rebuild(&geometry, &[0], &have[1..]));
            });
        }
        // A degraded read of a small file does this.
        let pieces: Vec<(u8, Bytes)> = have[1..].iter().map(|(index, piece)| (*index, piece.slice(..4096))).collect();
        report(&format!("{k}+{m} rebuild of 4 KiB of one data fragment"), u32::from(k) * 4096, || {
            let _ = black_box(rebuild_range(&geometry, 0, 0..4096, &pieces));
        });
        if k == 4 && m == 1 {
            report("checksums alone", len, || {
                black_box(chunk_crcs(&segment.payload));
            });
        }
    }
}
