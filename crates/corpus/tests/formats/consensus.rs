use crate::replay;
use bytes::Bytes;
use consensus::files::{VoterHead, VoterOwner};
use consensus::image::Image;
use consensus::testing::{example, replies, requests};
use consensus::wire::{Addressee, VoterReply};
use corpus::consensus as checks;
use types::FsUuid;

#[test]
fn states_of_the_corpus_and_changed_ones_are_decoded_or_refused() {
    let (kept, changed) = replay::run("consensus", checks::state);
    assert!(kept >= 4 && changed > 0, "the corpus has good states: {kept}, {changed}");
}

#[test]
fn the_corpus_has_what_this_program_writes() {
    let mut first = example();
    first.entries.clear();
    (first.vote, first.committed) = (None, None);
    let head = VoterHead {
        owner: VoterOwner(FsUuid([7; 16])),
        sequence: 41,
        generation: 0,
        body_len: 300,
        body_crc: 0x0102_0304,
    };
    let body = |image: Image| [vec![0], image.encode()].concat();
    let all = body(example());
    let named = |what: &str, kind: u8, messages: Vec<Bytes>| {
        let messages = messages.into_iter().enumerate();
        let named = messages.map(|(at, bytes)| (format!("{what}_{at}"), [&[kind], &bytes[..]].concat()));
        named.collect::<Vec<_>>()
    };
    let to = Addressee { fs: FsUuid([7; 16]), voter: 3 };
    let mut expected = named("request", 2, requests().iter().map(|request| request.encode(to)).collect());
    expected.extend(named("reply", 3, replies().iter().map(VoterReply::encode).collect()));
    let states = [
        ("empty", body(Image::default())),
        ("first", body(first)),
        ("truncated", all[..101].to_vec()),
        ("all", all),
        ("head", [&[1], &head.encode()[..]].concat()),
    ];
    expected.extend(states.map(|(name, bytes)| (name.to_string(), bytes)));
    let expected: Vec<(&str, Vec<u8>)> = expected.iter().map(|(name, bytes)| (&name[..], bytes.clone())).collect();
    replay::compare("consensus", &expected);
}
