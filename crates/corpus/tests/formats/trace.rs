use crate::replay;
use corpus::trace as checks;
use trace::format::Writer;
use trace::worst_case::WorstCase;
use trace::{Deed, Record};

#[test]
fn traces_of_the_corpus_and_changed_ones_are_read_or_refused() {
    let (kept, changed) = replay::run("trace", checks::trace);
    assert!(kept >= 3 && changed > 0, "the corpus has good traces: {kept}, {changed}");
}

#[test]
fn the_corpus_has_what_this_program_writes() {
    let written = |records: &[Record]| {
        let mut writer = Writer::new(Vec::new(), "a trace").expect("begun");
        records.iter().for_each(|record| writer.add(record).expect("added"));
        writer.finish().expect("ended")
    };
    let frame = |records: &[Record]| {
        let bytes = written(records);
        assert_eq!(&bytes[..checks::HEADER.len()], checks::HEADER);
        bytes[checks::HEADER.len()..bytes.len() - checks::CHECKSUM_LEN].to_vec()
    };
    let compressed = |records: &[Record]| zstd::bulk::decompress(&frame(records), 1 << 20).expect("decompressed");
    let record = |time_us, client, file, deed| Record { time_us, client, file, deed };
    let all = [
        record(0, 0, 1, Deed::Write { offset: 0, len: 300 }),
        record(5_000_000_000, u32::MAX, u64::MAX, Deed::Read { offset: 1 << 40, len: 1 }),
        record(5_000_000_000, 1, 1, Deed::Delete),
    ];
    let worst: Vec<Record> = WorstCase { requests: 20, ..WorstCase::default() }.records().collect();
    let torn = compressed(&all);
    replay::compare(
        "trace",
        &[
            ("empty", compressed(&[])),
            ("all", torn.clone()),
            ("worst", compressed(&worst)),
            ("frame", frame(&all)),
            ("whole", written(&all)),
            ("torn", torn[..torn.len() - 3].to_vec()),
        ],
    );
}
