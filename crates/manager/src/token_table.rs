//! The token table: which client may cache or change which file, and which clients have files open
//! that they have no token on (docs/core.md#manager).
//!
//! Pure: a request is granted and recorded, or it names the tokens that other clients must give
//! back first. The caller then recalls those tokens, reports each with
//! [`TokenTable::give_back`], and asks again. So a token is never recorded before it is free, and
//! the invariant holds at every instant: **if two clients hold tokens on the same file, both only
//! read.**
//!
//! Each grant has a number, which grows. A message about a token names the number of the newest
//! grant that its sender knows. So a release that arrives late never takes a later grant.
//!
//! Tokens are only in memory. After a crash of a manager, each client says what it holds, before
//! the manager grants anything (docs/core.md#tokens).

use crate::api::{FileUse, TokenGrant, TokenUse};
use crate::planted::{self, Bug};
use crate::token::Mode;
use std::collections::{BTreeSet, HashMap};
use types::{ClientId, FileId};

/// A client must give a token back, or weaken it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub struct TokenRecall {
    /// The file.
    pub file: FileId,
    /// The number of the grant that is recalled. Earlier grants of the file to the same client are
    /// recalled with it.
    pub number: u64,
    /// What another client wants. With [`Mode::Read`] the holder may keep reading, with
    /// [`Mode::Write`] it keeps nothing.
    pub wanted: Mode,
}

/// A client's answer to a recall.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GiveBack {
    /// The file.
    pub file: FileId,
    /// The number of the newest grant of the file that the client knows.
    pub number: u64,
    /// What the client keeps: nothing, or [`Mode::Read`].
    pub keep: Option<Mode>,
    /// A program at the client has the file open.
    pub is_open: bool,
}

/// What a client says that it holds, to a manager that has forgotten it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeldToken {
    /// The file.
    pub file: FileId,
    /// The client's right; `None` if it only has the file open.
    pub mode: Option<Mode>,
    /// The number of the newest grant that the client knows.
    pub number: u64,
}

impl HeldToken {
    /// True if two clients cannot hold these tokens on one file at the same time.
    pub fn excludes(&self, other: &HeldToken) -> bool {
        let both = self.mode.zip(other.mode);
        both.is_some_and(|(one, two)| one == Mode::Write || two == Mode::Write)
    }
}

/// The decision on a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Decision {
    /// The token is granted and recorded.
    Granted(TokenGrant),
    /// Other clients hold tokens in conflict. Nothing was granted. These recalls must be sent: they
    /// were not returned before.
    Blocked(Vec<(ClientId, TokenRecall)>),
}

/// A token of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Holding {
    client: ClientId,
    mode: Mode,
    number: u64,
    /// What the newest recall asked for.
    recalled: Option<Mode>,
}

/// What the table knows of one file.
#[derive(Debug, Default)]
struct FileTokens {
    holdings: Vec<Holding>,
    /// Clients that gave back their token while a program had the file open.
    open_at: Vec<ClientId>,
}

/// All tokens that a manager has granted.
#[derive(Debug, Default)]
pub struct TokenTable {
    files: HashMap<FileId, FileTokens>,
    count: u64,
    last_number: u64,
    term: u64,
}

impl TokenTable {
    /// A table without tokens.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of tokens granted and not returned.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Asks for a token. A client that has a stronger one keeps that, under the new number. A
    /// recall of the old number is then void, so a client that still wants the token recalls the
    /// new one.
    pub fn request(&mut self, client: ClientId, file: FileId, mode: Mode) -> Decision {
        let held = self.files.entry(file).or_default();
        let in_conflict = |h: &&mut Holding| {
            let is_seen = h.number > 0 || !planted::is(Bug::CreatedIsNotRecalled);
            h.client != client && (h.mode == Mode::Write || mode == Mode::Write) && is_seen
        };
        let mut is_blocked = false;
        let mut recalls = Vec::new();
        for h in held.holdings.iter_mut().filter(in_conflict) {
            is_blocked = true;
            if h.recalled < Some(mode) {
                h.recalled = Some(mode);
                recalls.push((h.client, TokenRecall { file, number: h.number, wanted: mode }));
            }
        }
        if is_blocked && !planted::is(Bug::GrantsBeforeGivenBack) {
            return Decision::Blocked(recalls);
        }
        self.last_number += 1;
        let number = self.last_number;
        held.open_at.retain(|other| *other != client);
        let open_elsewhere = !held.open_at.is_empty();
        let mode = match held.holdings.iter_mut().find(|h| h.client == client) {
            Some(h) => {
                (h.mode, h.number, h.recalled) = (h.mode.max(mode), number, None);
                h.mode
            }
            None => {
                held.holdings.push(Holding { client, mode, number, recalled: None });
                self.count += 1;
                mode
            }
        };
        Decision::Granted(TokenGrant { mode, number, term: self.term, open_elsewhere })
    }

    /// Notes that a client's log has made a file, which nobody else can know yet: the client has a
    /// write token, with number 0.
    pub fn created(&mut self, client: ClientId, file: FileId) {
        let held = self.files.entry(file).or_default();
        if held.holdings.is_empty() && !planted::is(Bug::CreatedIsNotRecorded) {
            held.holdings.push(Holding { client, mode: Mode::Write, number: 0, recalled: None });
            self.count += 1;
        }
    }

    /// Begins a term. No token was granted yet. Numbers are higher than `after`: what clients give
    /// back of earlier terms may come late, and is not about a token of this one.
    pub fn begin(&mut self, term: u64, after: u64) {
        self.term = term;
        self.last_number = self.last_number.max(after);
    }

    /// Notes what a client held before this table was made. The caller has checked that no other
    /// client holds what this [excludes](HeldToken::excludes), and asks before any
    /// [`request`](Self::request).
    pub fn restore(&mut self, client: ClientId, token: HeldToken) {
        let HeldToken { file, mode, number } = token;
        self.last_number = self.last_number.max(number);
        let held = self.files.entry(file).or_default();
        match mode {
            Some(mode) => {
                let mode = if planted::is(Bug::RestoredAreRead) { Mode::Read } else { mode };
                held.holdings.push(Holding { client, mode, number, recalled: None });
                self.count += 1;
            }
            None => held.open_at.push(client),
        }
    }

    /// Notes what a client gives back, unless it was granted the file again since then. Returns
    /// false if nothing changed.
    pub fn give_back(&mut self, client: ClientId, back: GiveBack) -> bool {
        let Some(held) = self.files.get_mut(&back.file) else { return false };
        let Some(at) = held.holdings.iter().position(|h| h.client == client) else { return false };
        if held.holdings[at].number > back.number && !planted::is(Bug::IgnoresNumbers) {
            return false;
        }
        match back.keep.filter(|_| !planted::is(Bug::DowngradeFreesAll)) {
            Some(keep) => {
                let h = &mut held.holdings[at];
                (h.mode, h.recalled) = (h.mode.min(keep), None);
            }
            None => {
                held.holdings.swap_remove(at);
                self.count -= 1;
                if back.is_open && !held.open_at.contains(&client) {
                    held.open_at.push(client);
                }
                self.drop_if_empty(back.file);
            }
        }
        true
    }

    /// Notes that a client has dropped a file from its cache, unless it was granted the file again
    /// since then. Returns false if nothing changed.
    pub fn release(&mut self, client: ClientId, file: FileId, number: u64) -> bool {
        self.give_back(client, GiveBack { file, number, keep: None, is_open: false })
    }

    /// Notes that no program at the client has the file open any more.
    pub fn closed(&mut self, client: ClientId, file: FileId) {
        if let Some(held) = self.files.get_mut(&file) {
            held.open_at.retain(|other| *other != client);
            self.drop_if_empty(file);
        }
    }

    /// True if no client has a token on the file, and none has it open.
    pub fn is_unused(&self, file: FileId) -> bool {
        !self.files.contains_key(&file)
    }

    /// True if a client has the file open without a token on it.
    pub fn is_open(&self, file: FileId) -> bool {
        self.files.get(&file).is_some_and(|held| !held.open_at.is_empty())
    }

    /// The tokens on a file, and who has it open without one. The table does not know what waits.
    pub fn file_use(&self, file: FileId) -> FileUse {
        let Some(held) = self.files.get(&file) else { return FileUse::default() };
        let token = |h: &Holding| TokenUse { client: h.client, mode: h.mode, recalled: h.recalled };
        let holders = held.holdings.iter().map(token).collect();
        FileUse { holders, open_at: held.open_at.clone(), waiting: Vec::new() }
    }

    /// The recalls that a client has not answered.
    pub fn unanswered(&self, client: ClientId) -> Vec<TokenRecall> {
        let recall = |(file, held): (&FileId, &FileTokens)| {
            let h = held.holdings.iter().find(|h| h.client == client)?;
            Some(TokenRecall { file: *file, number: h.number, wanted: h.recalled? })
        };
        self.files.iter().filter_map(recall).collect()
    }

    /// Frees all tokens and opens of a client that is gone, or was declared dead and fenced.
    /// Returns the files concerned.
    pub fn release_client(&mut self, client: ClientId) -> BTreeSet<FileId> {
        let mut freed = BTreeSet::new();
        self.files.retain(|file, held| {
            let before = (held.holdings.len(), held.open_at.len());
            held.holdings.retain(|h| h.client != client);
            held.open_at.retain(|other| *other != client || planted::is(Bug::ExpelKeepsOpens));
            self.count -= (before.0 - held.holdings.len()) as u64;
            if before != (held.holdings.len(), held.open_at.len()) {
                freed.insert(*file);
            }
            !held.holdings.is_empty() || !held.open_at.is_empty()
        });
        freed
    }

    /// Frees all tokens on a file that is gone for good.
    pub fn forget(&mut self, file: FileId) {
        self.count -= self.files.remove(&file).map_or(0, |held| held.holdings.len() as u64);
    }

    /// Another client that may change the file.
    pub fn writer_beside(&self, client: ClientId, file: FileId) -> Option<ClientId> {
        let held = self.files.get(&file)?;
        held.holdings.iter().find(|h| h.client != client && h.mode == Mode::Write).map(|h| h.client)
    }

    /// The term that has begun.
    pub fn term(&self) -> u64 {
        self.term
    }

    /// True if the client has a token on the file that allows `mode`.
    pub fn holds(&self, client: ClientId, file: FileId, mode: Mode) -> bool {
        self.files.get(&file).is_some_and(|held| held.holdings.iter().any(|h| h.client == client && h.mode >= mode))
    }

    fn drop_if_empty(&mut self, file: FileId) {
        if self.files.get(&file).is_some_and(|held| held.holdings.is_empty() && held.open_at.is_empty()) {
            self.files.remove(&file);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FILE: FileId = FileId::new(77);

    fn client(n: u32) -> ClientId {
        ClientId::new(n)
    }

    fn granted(decision: Decision) -> TokenGrant {
        match decision {
            Decision::Granted(grant) => grant,
            Decision::Blocked(recalls) => panic!("blocked by {recalls:?}"),
        }
    }

    fn back(number: u64, keep: Option<Mode>) -> GiveBack {
        GiveBack { file: FILE, number, keep, is_open: false }
    }

    #[test]
    fn a_second_writer_gets_the_file_only_after_the_first_gave_it_back() {
        let mut t = TokenTable::new();
        let first = granted(t.request(client(1), FILE, Mode::Write));
        let recall = TokenRecall { file: FILE, number: first.number, wanted: Mode::Write };
        assert_eq!(t.request(client(2), FILE, Mode::Write), Decision::Blocked(vec![(client(1), recall)]));
        assert!(!t.holds(client(2), FILE, Mode::Read), "granted before the recall was answered");
        assert_eq!(t.request(client(2), FILE, Mode::Write), Decision::Blocked(vec![]), "recalled twice");
        assert_eq!(t.unanswered(client(1)), [recall]);
        assert!(t.give_back(client(1), back(first.number, None)));
        assert!(granted(t.request(client(2), FILE, Mode::Write)).number > first.number);
        assert!(!t.holds(client(1), FILE, Mode::Read) && t.unanswered(client(1)).is_empty());
        assert_eq!(t.count(), 1);
    }

    #[test]
    fn a_reader_lets_the_writer_keep_reading() {
        let mut t = TokenTable::new();
        let first = granted(t.request(client(1), FILE, Mode::Write));
        assert!(matches!(t.request(client(2), FILE, Mode::Read), Decision::Blocked(recalls) if recalls.len() == 1));
        t.give_back(client(1), back(first.number, Some(Mode::Read)));
        granted(t.request(client(2), FILE, Mode::Read));
        assert!(t.holds(client(1), FILE, Mode::Read) && t.holds(client(2), FILE, Mode::Read));
        let again = t.request(client(1), FILE, Mode::Write);
        assert!(matches!(again, Decision::Blocked(recalls) if recalls[0].0 == client(2) && recalls.len() == 1));
    }

    #[test]
    fn who_uses_a_file_is_told_with_what_was_asked_of_whom() {
        let mut t = TokenTable::new();
        let token = |n, mode, recalled| TokenUse { client: client(n), mode, recalled };
        assert_eq!(t.file_use(FILE), FileUse::default());
        let first = granted(t.request(client(1), FILE, Mode::Write));
        assert_eq!(t.file_use(FILE).holders, [token(1, Mode::Write, None)]);
        assert!(matches!(t.request(client(2), FILE, Mode::Read), Decision::Blocked(_)));
        assert_eq!(t.file_use(FILE).holders, [token(1, Mode::Write, Some(Mode::Read))]);
        t.give_back(client(1), back(first.number, Some(Mode::Read)));
        granted(t.request(client(2), FILE, Mode::Read));
        assert_eq!(t.file_use(FILE).holders, [token(1, Mode::Read, None), token(2, Mode::Read, None)]);
        t.give_back(client(1), GiveBack { is_open: true, ..back(first.number, None) });
        let held = t.file_use(FILE);
        assert_eq!((held.holders, held.open_at), (vec![token(2, Mode::Read, None)], vec![client(1)]));
    }

    #[test]
    fn a_stronger_wish_is_recalled_again() {
        let mut t = TokenTable::new();
        granted(t.request(client(1), FILE, Mode::Write));
        assert!(matches!(t.request(client(2), FILE, Mode::Read), Decision::Blocked(r) if r[0].1.wanted == Mode::Read));
        assert!(
            matches!(t.request(client(3), FILE, Mode::Write), Decision::Blocked(r) if r[0].1.wanted == Mode::Write)
        );
    }

    #[test]
    fn regression_a_token_that_was_granted_anew_after_its_recall_is_recalled_again() {
        let mut t = TokenTable::new();
        granted(t.request(client(1), FILE, Mode::Read));
        assert!(matches!(t.request(client(2), FILE, Mode::Write), Decision::Blocked(recalls) if recalls.len() == 1));
        // The first client opens the file again before the recall arrives. It takes the recall to
        // be about a token that it has given back.
        let again = granted(t.request(client(1), FILE, Mode::Write));
        let recall = TokenRecall { file: FILE, number: again.number, wanted: Mode::Write };
        assert_eq!(t.request(client(2), FILE, Mode::Write), Decision::Blocked(vec![(client(1), recall)]));
    }

    #[test]
    fn asking_to_read_does_not_weaken_ones_own_write_token() {
        let mut t = TokenTable::new();
        granted(t.request(client(1), FILE, Mode::Write));
        assert_eq!(granted(t.request(client(1), FILE, Mode::Read)).mode, Mode::Write);
        assert!(t.holds(client(1), FILE, Mode::Write));
        assert_eq!(t.count(), 1);
    }

    #[test]
    fn a_late_release_does_not_take_a_later_grant() {
        let mut t = TokenTable::new();
        let first = granted(t.request(client(1), FILE, Mode::Read));
        let second = granted(t.request(client(1), FILE, Mode::Read));
        assert!(!t.release(client(1), FILE, first.number));
        assert!(t.holds(client(1), FILE, Mode::Read));
        assert!(t.release(client(1), FILE, second.number));
        assert!(t.is_unused(FILE) && t.count() == 0);
    }

    #[test]
    fn who_removes_the_last_name_learns_of_open_files_elsewhere() {
        let mut t = TokenTable::new();
        let reader = granted(t.request(client(1), FILE, Mode::Read));
        t.request(client(2), FILE, Mode::Write);
        t.give_back(client(1), GiveBack { file: FILE, number: reader.number, keep: None, is_open: true });
        assert!(granted(t.request(client(2), FILE, Mode::Write)).open_elsewhere);
        assert!(t.is_open(FILE));
        t.closed(client(1), FILE);
        assert!(!granted(t.request(client(2), FILE, Mode::Write)).open_elsewhere && !t.is_open(FILE));
    }

    #[test]
    fn a_dead_clients_tokens_and_opens_are_free() {
        let mut t = TokenTable::new();
        for f in 1..10 {
            t.request(client(1), FileId::new(f), Mode::Write);
        }
        t.created(client(1), FileId::new(10));
        t.give_back(client(1), GiveBack { file: FileId::new(3), number: 100, keep: None, is_open: true });
        assert_eq!(t.count(), 9);
        assert_eq!(t.release_client(client(1)).len(), 10);
        assert_eq!(t.count(), 0);
        assert!(!granted(t.request(client(2), FileId::new(3), Mode::Write)).open_elsewhere);
        t.forget(FileId::new(3));
        assert_eq!(t.count(), 0);
    }

    #[test]
    fn what_clients_held_before_is_recalled_and_numbered_like_what_was_granted() {
        let mut t = TokenTable::new();
        let held = |mode, number| HeldToken { file: FILE, mode, number };
        t.restore(client(1), held(Some(Mode::Read), 7));
        t.restore(client(2), held(Some(Mode::Read), 9));
        t.restore(client(3), held(None, 0));
        assert_eq!(t.count(), 2);
        let recall = |number| TokenRecall { file: FILE, number, wanted: Mode::Write };
        let recalls = vec![(client(2), recall(9))];
        assert_eq!(t.request(client(1), FILE, Mode::Write), Decision::Blocked(recalls));
        t.give_back(client(2), back(9, None));
        let grant = granted(t.request(client(1), FILE, Mode::Write));
        assert!(grant.number > 9 && grant.open_elsewhere && t.is_open(FILE));
        let (read, write) = (held(Some(Mode::Read), 0), held(Some(Mode::Write), 0));
        assert!(!read.excludes(&read) && read.excludes(&write) && !write.excludes(&held(None, 0)));
    }

    #[derive(Debug, Clone)]
    enum Op {
        Request(u32, Mode),
        /// A request. All recalls are answered, and the request is repeated.
        Insist(u32, Mode, bool),
        GiveBack(u32, Option<Mode>, u64),
        Release(u32, u64),
        ReleaseClient(u32),
        Closed(u32),
    }

    fn op() -> impl Strategy<Value = Op> {
        let mode = || prop_oneof![Just(Mode::Read), Just(Mode::Write)];
        prop_oneof![
            3 => (0u32..3, mode()).prop_map(|(c, m)| Op::Request(c, m)),
            4 => (0u32..3, mode(), any::<bool>()).prop_map(|(c, m, o)| Op::Insist(c, m, o)),
            2 => (0u32..3, prop::option::of(mode()), 0u64..3).prop_map(|(c, k, n)| Op::GiveBack(c, k, n)),
            1 => (0u32..3, 0u64..3).prop_map(|(c, n)| Op::Release(c, n)),
            1 => (0u32..3).prop_map(Op::ReleaseClient),
            1 => (0u32..3).prop_map(Op::Closed),
        ]
    }

    fn rights(t: &TokenTable) -> Vec<Option<Mode>> {
        (0..3).map(|c| [Mode::Write, Mode::Read].into_iter().find(|&m| t.holds(client(c), FILE, m))).collect()
    }

    proptest! {
        #[test]
        fn prop_never_two_writers_never_a_writer_beside_a_reader(ops in prop::collection::vec(op(), 1..60)) {
            let mut t = TokenTable::new();
            let mut newest = [0u64; 3];
            for op in ops {
                let before = rights(&t);
                match op {
                    Op::Request(c, m) => match t.request(client(c), FILE, m) {
                        Decision::Granted(grant) => {
                            newest[c as usize] = grant.number;
                            prop_assert!(t.holds(client(c), FILE, m) && grant.mode >= m);
                        }
                        Decision::Blocked(_) => prop_assert_eq!(&before, &rights(&t)),
                    },
                    Op::Insist(c, m, is_open) => {
                        t.request(client(c), FILE, m);
                        for other in (0..3).filter(|other| *other != c) {
                            for recall in t.unanswered(client(other)) {
                                prop_assert_eq!(recall.number, newest[other as usize]);
                                let keep = (recall.wanted == Mode::Read).then_some(Mode::Read);
                                t.give_back(client(other), GiveBack { file: FILE, number: recall.number, keep, is_open });
                            }
                        }
                        newest[c as usize] = granted(t.request(client(c), FILE, m)).number;
                        prop_assert!(t.holds(client(c), FILE, m));
                    }
                    Op::GiveBack(c, k, behind) => {
                        let number = newest[c as usize].saturating_sub(behind);
                        t.give_back(client(c), back(number, k));
                        if number < newest[c as usize] {
                            prop_assert_eq!(&before, &rights(&t), "an old answer took a later grant");
                        } else {
                            prop_assert!(!t.holds(client(c), FILE, Mode::Read) || k.is_some());
                        }
                    }
                    Op::Release(c, behind) => {
                        t.release(client(c), FILE, newest[c as usize].saturating_sub(behind));
                    }
                    Op::ReleaseClient(c) => {
                        t.release_client(client(c));
                        prop_assert!(!t.holds(client(c), FILE, Mode::Read));
                    }
                    Op::Closed(c) => t.closed(client(c), FILE),
                }
                let held: Vec<Mode> = rights(&t).into_iter().flatten().collect();
                prop_assert!(held.len() <= 1 || held.iter().all(|m| *m == Mode::Read), "{:?}", held);
                prop_assert_eq!(t.count(), held.len() as u64);
            }
        }
    }
}
