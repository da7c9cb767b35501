//! The fuzz targets' checks over their kept corpus and random changes of it, for toolchains without a fuzzer.

#[path = "../../../fuzz/src/striped_log.rs"]
mod checks;
#[path = "../../../fuzz/src/replay.rs"]
mod replay;

use replay::run;

#[test]
fn fragment_headers_of_the_corpus_and_changed_ones_are_decoded_or_refused() {
    let (kept, changed) = run("fragment_header", checks::fragment_header);
    assert!(kept >= 3 && changed > 0, "the corpus has good headers: {kept}, {changed}");
}

#[test]
fn deltas_of_the_corpus_and_changed_ones_are_decoded_or_refused() {
    let (kept, changed) = run("deltas", checks::deltas);
    assert!(kept >= 8 && changed > 0, "the corpus has good sections: {kept}, {changed}");
}
