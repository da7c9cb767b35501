use crate::replay::run;
use corpus::striped_log as checks;

#[test]
fn fragment_headers_of_the_corpus_and_changed_ones_are_decoded_or_refused() {
    let (kept, changed) = run("fragment_header", checks::fragment_header);
    assert!(kept >= 5 && changed > 0, "the corpus has good headers: {kept}, {changed}");
}
