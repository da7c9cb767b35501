use crate::replay;
use corpus::record_log as checks;
use record_log::format::{LogHead, LogOwner, put_frame};

#[test]
fn logs_of_the_corpus_and_changed_ones_are_decoded_or_refused() {
    let (kept, changed) = replay::run("record_log", checks::log);
    assert!(kept >= 4 && changed > 0, "the corpus has good logs: {kept}, {changed}");
}

#[test]
fn the_corpus_has_what_this_program_writes() {
    let log = |groups: &[&[&[u8]]]| {
        let mut log = Vec::new();
        for group in groups {
            let durable = log.len() as u64;
            for record in *group {
                let offset = log.len() as u64;
                put_frame(&mut log, 9, offset, durable, record);
            }
        }
        [vec![0], log].concat()
    };
    let head = LogHead { owner: LogOwner(*b"test"), sequence: 41, generation: 9, body_len: 300, body_crc: 0x0102_0304 };
    let some = log(&[&[b"one", b"two and three"], &[b"", b"12345678"], &[&[7; 100]]]);
    replay::compare(
        "record_log",
        &[
            ("one", log(&[&[b"a record"]])),
            ("groups", some.clone()),
            ("torn", some[..some.len() - 30].to_vec()),
            ("reserved", [&some[..], &[0; 64]].concat()),
            ("head", [&[1], &head.encode()[..]].concat()),
        ],
    );
}
