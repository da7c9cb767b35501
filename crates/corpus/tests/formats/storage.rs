use crate::replay;
use corpus::connection;
use corpus::storage as checks;
use link::kinds;
use link::wire::{Frame, frame, greeting};
use storage::api::StoreIdentity;
use storage::checkpoint::StoreHead;
use storage::testing::{FS, STORE, body, fragment};
use storage::wire::{StoreName, StoreRequest};

#[test]
fn messages_of_the_corpus_and_changed_ones_are_decoded_or_refused() {
    let (kept, changed) = replay::run("wire", checks::message);
    assert!(kept >= 34 && changed > 0, "the corpus has good messages: {kept}, {changed}");
}

#[test]
fn checkpoints_of_the_corpus_and_changed_ones_are_decoded_or_refused() {
    let (kept, changed) = replay::run("checkpoint", checks::checkpoint);
    assert!(kept >= 5 && changed > 0, "the corpus has good checkpoints: {kept}, {changed}");
}

#[test]
fn the_corpus_has_the_checkpoints_that_this_program_writes() {
    let encoded = |kind: u8, bytes: &[u8]| [&[kind], bytes].concat();
    let encode = |body: storage::checkpoint::Body| body.encode();
    let all = encode(body());
    let identity = StoreIdentity { fs: FS, store: STORE, capacity_bytes: 1 << 30 };
    replay::compare(
        "checkpoint",
        &[
            ("empty", encoded(0, &encode(Default::default()))),
            ("all", encoded(0, &all)),
            ("truncated", encoded(0, &all[..200])),
            ("head", encoded(1, &StoreHead::of(identity, 42, 43, &all).encode())),
        ],
    );
}

#[test]
fn fragments_in_extents_of_the_corpus_and_changed_ones_are_found_or_left_out() {
    let (kept, changed) = replay::run("extent", checks::extent);
    assert!(kept >= 4 && changed > 0, "the corpus has good extents: {kept}, {changed}");
}

#[test]
fn the_corpus_has_the_extents_that_this_program_writes() {
    let extent = |payload_lens: &[u32]| {
        let mut bytes: Vec<u8> = Vec::new();
        for (&len, seq) in payload_lens.iter().zip(1..) {
            bytes.resize(bytes.len().next_multiple_of(4096), 0);
            let fragment = fragment(1, seq, 0, len);
            bytes.extend_from_slice(&fragment.header.encode_with_generation(5));
            bytes.extend_from_slice(&fragment.payload);
        }
        bytes
    };
    let two = extent(&[3_000, 20]);
    let mut torn = two.clone();
    torn[600] ^= 1;
    let cut = extent(&[0, 70_000])[..6_000].to_vec();
    replay::compare("extent", &[("one", extent(&[100])), ("two", two), ("torn", torn), ("cut", cut)]);
}

#[test]
fn streams_of_the_corpus_and_changed_ones_are_cut_into_frames_or_refused() {
    let (kept, changed) = replay::run("connection", connection::stream);
    assert!(kept >= 3 && changed > 0, "the corpus has good streams: {kept}, {changed}");
}

#[test]
fn the_corpus_has_the_streams_that_this_program_sends() {
    let stream = |piece_len: u16, frames: &[Frame]| {
        [&piece_len.to_le_bytes(), &greeting()[..], &frames.concat().concat()].concat()
    };
    let name = StoreName { fs: FS, store: STORE };
    let sent = |number, request: StoreRequest| frame(number, kinds::STORAGE, request.encode(name));
    let status = sent(7, StoreRequest::Status);
    let put = sent(8, StoreRequest::Put(fragment(1, 2, 0, 300)));
    let (behind, id) = (fragment(1, 4, 0, 300), fragment(1, 2, 0, 300).header.id);
    let behind = sent(10, StoreRequest::PutBehind(behind));
    let rest = [sent(11, StoreRequest::ReadBehind { id, attempt: 0, range: 5..9 }), sent(12, StoreRequest::Rest)];
    let cut = &stream(100, &[status.clone(), put.clone()])[..400];
    let large = sent(9, StoreRequest::Put(fragment(1, 3, 0, 17_000)));
    replay::compare(
        "connection",
        &[
            ("one", stream(9, std::slice::from_ref(&status))),
            ("some", stream(u16::MAX, &[status.clone(), put.clone(), status.clone()])),
            ("pieces", stream(5, &[put, status.clone()])),
            ("large", stream(10_000, &[large, status])),
            ("cut", cut.to_vec()),
            ("behind", stream(50, &[&[behind][..], &rest].concat())),
        ],
    );
}
