//! The fuzz target's check over its kept corpus and random changes of it, for toolchains without a fuzzer.

#[path = "../../../fuzz/src/replay.rs"]
mod replay;
#[path = "../../../fuzz/src/wire.rs"]
mod wire;

#[test]
fn frames_of_the_corpus_and_changed_ones_are_decoded_or_refused() {
    let (kept, changed) = replay::run("wire", wire::frame);
    assert!(kept >= 34 && changed > 0, "the corpus has good frames: {kept}, {changed}");
}
