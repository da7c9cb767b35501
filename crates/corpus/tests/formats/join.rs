use crate::replay;
use corpus::join as checks;
use join::authority::PUBLIC_KEY_LEN;
use join::book::InvitationBook;
use join::{Admission, JoinAnswer, JoinRefusal, JoinRequest};
use types::{FsUuid, NodeId, Time};

#[test]
fn what_is_in_the_corpus_and_changed_is_decoded_or_refused() {
    let (kept, changed) = replay::run("join", checks::any);
    assert!(kept >= 6 && changed > 0, "the corpus is good: {kept}, {changed}");
}

fn request() -> JoinRequest {
    let mut public_key = [9; PUBLIC_KEY_LEN];
    public_key[0] = 4;
    let (name, host_name, address) = ("db".into(), "db.example".into(), "10.0.0.2:7440".into());
    JoinRequest { secret: [5; 16], name, host_name, public_key, address }
}

#[test]
fn the_corpus_has_what_this_program_writes() {
    let (now, until) = (Time { sec: 1_700_000_000, nsec: 5 }, Time { sec: 1_700_003_600, nsec: 5 });
    let mut book = InvitationBook::default();
    assert!(book.add(&[5; 16], "db", now, until) && book.add(&[6; 16], "", now, until));
    book.record_use(&request(), "certificate");
    let admission = Admission {
        fs: FsUuid([1; 16]),
        node: NodeId::new(3),
        name: "db".into(),
        certificate: "certificate".into(),
        authority: "authority".into(),
    };
    let answer = |answer: JoinAnswer| [vec![1], answer.encode()].concat();
    let refused = |refusal| answer(JoinAnswer::Refused(refusal));
    let book = [vec![2], book.encode()].concat();
    replay::compare(
        "join",
        &[
            ("request", [vec![0], request().encode()].concat()),
            ("admitted", answer(JoinAnswer::Admitted(admission))),
            ("used", refused(JoinRefusal::Used)),
            ("name-taken", refused(JoinRefusal::NameTaken("db".into()))),
            ("newer", refused(JoinRefusal::Newer(1))),
            ("truncated", book[..60].to_vec()),
            ("invitations", book),
        ],
    );
}
