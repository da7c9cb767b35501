//! The token table: which client may cache or change which part of a file (docs/core.md#manager).
//!
//! Pure: a request is granted and recorded, or it names the tokens that other clients must give
//! back first and changes nothing. The caller then recalls those tokens, reports each with
//! [`TokenTable::give_back`], and asks again. So a token is never recorded before it is free, and
//! the invariant holds at every instant: **if two clients hold tokens on the same inode or block,
//! both only read.**
//!
//! A grant is the largest range that takes nothing from other clients, as in GPFS: a lone writer
//! asks once for the whole file. When a second client comes, only the blocks that it needs are
//! split off.
//!
//! Tokens are only in memory. Nothing brings them back yet after a crash of a manager alone
//! (docs/core.md#tokens).

use crate::api::TokenGrant;
use crate::token::{Mode, Scope};
use std::collections::HashMap;
use types::{ClientId, FileId};

/// The decision on a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Decision {
    /// The grant. If `revoke` is not empty, nothing is recorded yet, and this is the grant that
    /// would be made after the recall.
    pub grant: TokenGrant,
    /// Which clients must give back which tokens first. The mode is the requested one: with
    /// [`Mode::Read`] the holder may keep reading, with [`Mode::Write`] it keeps nothing.
    pub revoke: Vec<(ClientId, FileId, Scope, Mode)>,
}

/// A token of a client. The block tokens that one client has on a file do not overlap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Holding {
    client: ClientId,
    scope: Scope,
    mode: Mode,
}

/// All tokens that a manager has granted.
#[derive(Debug, Default)]
pub struct TokenTable {
    files: HashMap<FileId, Vec<Holding>>,
    count: u64,
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

    /// Asks for a token that covers at least `scope`. An empty block range counts as its first
    /// block.
    pub fn request(&mut self, client: ClientId, file: FileId, scope: Scope, mode: Mode) -> Decision {
        let scope = not_empty(scope);
        let held = self.files.get(&file).map(Vec::as_slice).unwrap_or_default();
        let rivals = || held.iter().filter(|h| h.client != client && conflicts(h.mode, mode));
        let mut revoke: Vec<_> =
            rivals().filter_map(|h| Some((h.client, file, intersection(h.scope, scope)?, mode))).collect();
        revoke.sort_unstable();
        let granted = rivals().fold(everything_like(scope), |grown, h| trim(grown, h.scope, scope));
        let decision = Decision { grant: TokenGrant { scope: granted, mode }, revoke };
        if decision.revoke.is_empty() {
            self.edit(file, |holdings| record(holdings, Holding { client, scope: granted, mode }));
        }
        decision
    }

    /// Notes that a client gives back `scope`, or keeps only the right `keep` on it.
    pub fn give_back(&mut self, client: ClientId, file: FileId, scope: Scope, keep: Option<Mode>) {
        let scope = not_empty(scope);
        self.edit(file, |holdings| {
            let taken = cut_out(holdings, client, scope);
            if keep == Some(Mode::Read) {
                for part in taken {
                    record(holdings, Holding { mode: Mode::Read, ..part });
                }
            } else if keep == Some(Mode::Write) {
                holdings.extend(taken);
            }
        });
    }

    /// Notes that a client gives back all its tokens on a file.
    pub fn release(&mut self, client: ClientId, file: FileId) {
        self.edit(file, |holdings| holdings.retain(|h| h.client != client));
    }

    /// Frees all tokens of a client that is gone, or was declared dead and fenced.
    pub fn release_client(&mut self, client: ClientId) {
        self.files.retain(|_, holdings| {
            let before = holdings.len();
            holdings.retain(|h| h.client != client);
            self.count -= (before - holdings.len()) as u64;
            !holdings.is_empty()
        });
    }

    /// Frees all tokens on a file that is gone for good.
    pub fn forget(&mut self, file: FileId) {
        self.count -= self.files.remove(&file).map_or(0, |holdings| holdings.len() as u64);
    }

    /// True if the client has tokens on all of `scope` that allow `mode`.
    pub fn holds(&self, client: ClientId, file: FileId, scope: Scope, mode: Mode) -> bool {
        let held = self.files.get(&file).map(Vec::as_slice).unwrap_or_default();
        let mut own: Vec<Scope> =
            held.iter().filter(|h| h.client == client && h.mode >= mode).map(|h| h.scope).collect();
        own.sort_unstable();
        match not_empty(scope) {
            Scope::Inode => own.contains(&Scope::Inode),
            Scope::Blocks { first, end } => {
                let reached = own.iter().fold(first, |reached, s| match *s {
                    Scope::Blocks { first, end } if first <= reached => reached.max(end),
                    _ => reached,
                });
                reached >= end
            }
        }
    }

    /// Changes the tokens on a file, and updates the count.
    fn edit(&mut self, file: FileId, change: impl FnOnce(&mut Vec<Holding>)) {
        let holdings = self.files.entry(file).or_default();
        let before = holdings.len() as u64;
        change(holdings);
        self.count = self.count - before + holdings.len() as u64;
        if holdings.is_empty() {
            self.files.remove(&file);
        }
    }
}

fn conflicts(a: Mode, b: Mode) -> bool {
    a == Mode::Write || b == Mode::Write
}

fn not_empty(scope: Scope) -> Scope {
    match scope {
        Scope::Blocks { first, end } if end <= first => {
            Scope::Blocks { first: first.min(u64::MAX - 1), end: first.saturating_add(1) }
        }
        scope => scope,
    }
}

/// The largest scope of the same kind.
fn everything_like(scope: Scope) -> Scope {
    match scope {
        Scope::Inode => Scope::Inode,
        Scope::Blocks { .. } => Scope::Blocks { first: 0, end: u64::MAX },
    }
}

fn intersection(a: Scope, b: Scope) -> Option<Scope> {
    match (a, b) {
        (Scope::Inode, Scope::Inode) => Some(Scope::Inode),
        (Scope::Blocks { first: a, end: b }, Scope::Blocks { first: c, end: d }) => {
            let (first, end) = (a.max(c), b.min(d));
            (first < end).then_some(Scope::Blocks { first, end })
        }
        _ => None,
    }
}

/// The part of `grown` that remains if a rival keeps all of `theirs` that is outside `wanted`.
/// `wanted` is within `grown` before and after.
fn trim(grown: Scope, theirs: Scope, wanted: Scope) -> Scope {
    match (grown, theirs, wanted) {
        (
            Scope::Blocks { first, end },
            Scope::Blocks { first: t_first, end: t_end },
            Scope::Blocks { first: w_first, end: w_end },
        ) => Scope::Blocks {
            first: if t_first < w_first { first.max(t_end.min(w_first)) } else { first },
            end: if t_end > w_end { end.min(t_first.max(w_end)) } else { end },
        },
        _ => grown,
    }
}

/// Takes `scope` out of a client's tokens. Returns the parts that were taken out.
fn cut_out(holdings: &mut Vec<Holding>, client: ClientId, scope: Scope) -> Vec<Holding> {
    let (mut kept, mut taken) = (Vec::with_capacity(holdings.len()), Vec::new());
    for h in holdings.drain(..) {
        let Some(part) = (h.client == client).then(|| intersection(h.scope, scope)).flatten() else {
            kept.push(h);
            continue;
        };
        taken.push(Holding { scope: part, ..h });
        if let (Scope::Blocks { first, end }, Scope::Blocks { first: p_first, end: p_end }) = (h.scope, part) {
            for (first, end) in [(first, p_first), (p_end, end)] {
                if first < end {
                    kept.push(Holding { scope: Scope::Blocks { first, end }, ..h });
                }
            }
        }
    }
    *holdings = kept;
    taken
}

/// Adds a token to those that its client has. A read token does not replace a write token, and
/// adjacent tokens of the same mode become one.
fn record(holdings: &mut Vec<Holding>, new: Holding) {
    let taken = cut_out(holdings, new.client, new.scope);
    holdings.push(new);
    if new.mode == Mode::Read {
        for stronger in taken.into_iter().filter(|h| h.mode == Mode::Write) {
            cut_out(holdings, new.client, stronger.scope);
            holdings.push(stronger);
        }
    }
    holdings.sort_unstable_by_key(|h| (h.client, h.scope));
    holdings.dedup_by(|next, h| match (h.scope, next.scope) {
        (Scope::Blocks { first, end: joint }, Scope::Blocks { first: other, end })
            if joint == other && h.client == next.client && h.mode == next.mode =>
        {
            h.scope = Scope::Blocks { first, end };
            true
        }
        _ => false,
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FILE: FileId = FileId::new(77);
    const ALL: Scope = Scope::Blocks { first: 0, end: u64::MAX };

    fn client(n: u32) -> ClientId {
        ClientId::new(n)
    }
    fn blocks(first: u64, end: u64) -> Scope {
        Scope::Blocks { first, end }
    }

    #[test]
    fn lone_writer_asks_once_for_the_whole_file() {
        let mut t = TokenTable::new();
        let d = t.request(client(1), FILE, blocks(5, 6), Mode::Write);
        assert_eq!(d, Decision { grant: TokenGrant { scope: ALL, mode: Mode::Write }, revoke: vec![] });
        assert!(t.holds(client(1), FILE, blocks(1000, 2000), Mode::Write));
        assert!(!t.holds(client(1), FILE, Scope::Inode, Mode::Read));
    }

    #[test]
    fn second_writer_splits_off_only_what_it_needs() {
        let mut t = TokenTable::new();
        t.request(client(1), FILE, ALL, Mode::Write);
        let d = t.request(client(2), FILE, blocks(10, 20), Mode::Write);
        assert_eq!(d.grant.scope, blocks(10, 20));
        assert_eq!(d.revoke, [(client(1), FILE, blocks(10, 20), Mode::Write)]);
        assert!(!t.holds(client(2), FILE, blocks(10, 20), Mode::Read), "granted before the recall was answered");
        t.give_back(client(1), FILE, blocks(10, 20), None);
        assert_eq!(t.request(client(2), FILE, blocks(10, 20), Mode::Write).revoke, []);
        assert!(t.holds(client(1), FILE, blocks(0, 10), Mode::Write));
        assert!(t.holds(client(1), FILE, blocks(20, u64::MAX), Mode::Write));
        assert!(t.holds(client(2), FILE, blocks(10, 20), Mode::Write));
        assert_eq!(t.count(), 3);
    }

    #[test]
    fn reader_lets_the_writer_keep_reading() {
        let mut t = TokenTable::new();
        t.request(client(1), FILE, Scope::Inode, Mode::Write);
        let d = t.request(client(2), FILE, Scope::Inode, Mode::Read);
        assert_eq!(d.revoke, [(client(1), FILE, Scope::Inode, Mode::Read)]);
        t.give_back(client(1), FILE, Scope::Inode, Some(Mode::Read));
        assert_eq!(t.request(client(2), FILE, Scope::Inode, Mode::Read).revoke, []);
        assert!(
            t.holds(client(1), FILE, Scope::Inode, Mode::Read) && t.holds(client(2), FILE, Scope::Inode, Mode::Read)
        );
    }

    #[test]
    fn asking_to_read_does_not_weaken_ones_own_write_token() {
        let mut t = TokenTable::new();
        t.request(client(1), FILE, ALL, Mode::Write);
        t.request(client(1), FILE, blocks(3, 4), Mode::Read);
        assert!(t.holds(client(1), FILE, ALL, Mode::Write));
        assert_eq!(t.count(), 1);
    }

    #[test]
    fn a_dead_clients_tokens_are_free() {
        let mut t = TokenTable::new();
        for f in 1..10 {
            t.request(client(1), FileId::new(f), ALL, Mode::Write);
        }
        t.release_client(client(1));
        assert_eq!(t.count(), 0);
        assert_eq!(t.request(client(2), FileId::new(3), ALL, Mode::Write).revoke, []);
        t.forget(FileId::new(3));
        assert_eq!(t.count(), 0);
    }

    #[derive(Debug, Clone)]
    enum Op {
        Request(u32, Scope, Mode),
        /// A request. All recalls are answered, and the request is repeated.
        Insist(u32, Scope, Mode),
        GiveBack(u32, Scope, Option<Mode>),
        Release(u32),
        ReleaseClient(u32),
    }

    fn op() -> impl Strategy<Value = Op> {
        let scope = || {
            prop_oneof![
                1 => Just(Scope::Inode),
                5 => (0u64..20, 0u64..8).prop_map(|(a, n)| blocks(a, a + n)),
                1 => (0u64..20).prop_map(|a| blocks(a, u64::MAX)),
            ]
        };
        let mode = || prop_oneof![Just(Mode::Read), Just(Mode::Write)];
        prop_oneof![
            3 => (0u32..3, scope(), mode()).prop_map(|(c, s, m)| Op::Request(c, s, m)),
            4 => (0u32..3, scope(), mode()).prop_map(|(c, s, m)| Op::Insist(c, s, m)),
            2 => (0u32..3, scope(), prop::option::of(mode())).prop_map(|(c, s, k)| Op::GiveBack(c, s, k)),
            1 => (0u32..3).prop_map(Op::Release),
            1 => (0u32..3).prop_map(Op::ReleaseClient),
        ]
    }

    /// The places that are checked: blocks 0 to 29, block `u64::MAX - 1` for the end of a file, and
    /// the inode.
    fn places() -> impl Iterator<Item = Scope> {
        (0u64..30).chain([u64::MAX - 1]).map(|b| blocks(b, b + 1)).chain([Scope::Inode])
    }

    fn rights(t: &TokenTable) -> Vec<Vec<Option<Mode>>> {
        (0..3)
            .map(|c| {
                places()
                    .map(|p| [Mode::Write, Mode::Read].into_iter().find(|&m| t.holds(client(c), FILE, p, m)))
                    .collect()
            })
            .collect()
    }

    proptest! {
        #[test]
        fn prop_never_two_writers_never_a_writer_beside_a_reader(ops in prop::collection::vec(op(), 1..60)) {
            let mut t = TokenTable::new();
            for op in ops {
                let before = rights(&t);
                match op {
                    Op::Request(c, s, m) => {
                        let d = t.request(client(c), FILE, s, m);
                        prop_assert_eq!(d.revoke.is_empty(), t.holds(client(c), FILE, d.grant.scope, m));
                        if !d.revoke.is_empty() {
                            prop_assert_eq!(&before, &rights(&t));
                        }
                    }
                    Op::Insist(c, s, m) => {
                        for (holder, file, scope, asked) in t.request(client(c), FILE, s, m).revoke {
                            prop_assert_ne!(holder, client(c));
                            t.give_back(holder, file, scope, (asked == Mode::Read).then_some(Mode::Read));
                        }
                        let d = t.request(client(c), FILE, s, m);
                        prop_assert_eq!(&d.revoke, &vec![]);
                        prop_assert_eq!(intersection(d.grant.scope, not_empty(s)), Some(not_empty(s)));
                        prop_assert!(t.holds(client(c), FILE, d.grant.scope, m));
                        // No client lost more than was recalled from it.
                        let after = rights(&t);
                        for (i, place) in places().enumerate() {
                            for other in (0..3).filter(|&o| o != c) {
                                let (was, is) = (before[other as usize][i], after[other as usize][i]);
                                let asked = intersection(place, not_empty(s)).is_some();
                                prop_assert!(is == was || (asked && is < was));
                            }
                        }
                    }
                    Op::GiveBack(c, s, keep) => t.give_back(client(c), FILE, s, keep),
                    Op::Release(c) => t.release(client(c), FILE),
                    Op::ReleaseClient(c) => t.release_client(client(c)),
                }
                let now = rights(&t);
                for i in 0..now[0].len() {
                    let writers = now.iter().filter(|r| r[i] == Some(Mode::Write)).count();
                    let holders = now.iter().filter(|r| r[i].is_some()).count();
                    prop_assert!(writers == 0 || holders == 1, "place {}: {:?}", i, now);
                }
                prop_assert_eq!(t.count(), t.files.values().map(|h| h.len() as u64).sum::<u64>());
                prop_assert!(t.files.values().all(|h| !h.is_empty()));
            }
        }
    }
}
