//! The fuzz target's check over its kept corpus and random changes of it, for toolchains without a fuzzer.

use consensus::files::Head;
use consensus::image::Image;
use consensus::testing::example;
use std::path::Path;
use types::FsUuid;

#[path = "../../../fuzz/src/consensus.rs"]
mod checks;
#[path = "../../../fuzz/src/replay.rs"]
mod replay;

#[test]
fn states_of_the_corpus_and_changed_ones_are_decoded_or_refused() {
    let (kept, changed) = replay::run("consensus", checks::state);
    assert!(kept >= 4 && changed > 0, "the corpus has good states: {kept}, {changed}");
}

/// The corpus follows the format: a change of it shows here, and `STARLING_BLESS=1` writes the new bytes.
#[test]
fn the_corpus_has_what_this_program_writes() {
    let mut first = example();
    first.entries.clear();
    (first.vote, first.committed) = (None, None);
    let head = Head { fs: FsUuid([7; 16]), sequence: 41, body_len: 300, body_crc: 0x0102_0304 };
    let truncated = example().encode()[..100].to_vec();
    for (name, kind, bytes) in [
        ("empty", 0, Image::default().encode()),
        ("first", 0, first.encode()),
        ("all", 0, example().encode()),
        ("truncated", 0, truncated),
        ("head", 1, head.encode().to_vec()),
    ] {
        let bytes = [vec![kind], bytes].concat();
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/consensus").join(name);
        if std::env::var_os("STARLING_BLESS").is_some() {
            std::fs::write(&path, &bytes).expect("write");
        }
        assert!(std::fs::read(&path).is_ok_and(|kept| kept == bytes), "{} is not what is written", path.display());
    }
}
