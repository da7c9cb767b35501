//! Which metadata a full cache forgets (Froese and Bunt bound only the bytes of contents).
//!
//! The client forgets all names of a directory together, and each file that no other cached name
//! leads to. So a cached name always leads to a cached file, and a directory's names are cached
//! whole or not at all. Files with pending operations, and files in `needed`, stay. So do all
//! directories that lead to them.

use super::{Node, Replica};
use std::collections::{HashMap, HashSet};
use types::FileId;

/// What the client forgets in one step.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Forgotten {
    /// The directory whose names it forgets; `None`: no cached name led to these files.
    pub dir: Option<FileId>,
    /// Files, and directories without cached names, that it forgets.
    pub files: Vec<FileId>,
}

/// The state of one run of `Replica::least_used`.
struct Forgetter<'a> {
    replica: &'a Replica,
    needed: &'a HashSet<FileId>,
    /// How many cached names each file has.
    named: HashMap<FileId, u32>,
    gone: HashSet<FileId>,
    /// Directories that were forgotten.
    unlisted: HashSet<FileId>,
}

impl Replica {
    /// Chooses what to forget so that at most `count` files stay cached, the least lately used
    /// first.
    ///
    /// `used` has the number of each file's last use. Files in `needed`, and files used after
    /// `recent`, stay. Looks at each cached file a constant number of times for each level of
    /// directories.
    pub(crate) fn least_used(
        &self,
        count: usize,
        (used, recent): (&HashMap<FileId, u64>, u64),
        needed: &HashSet<FileId>,
    ) -> Vec<Forgotten> {
        let mut named: HashMap<FileId, u32> = HashMap::new();
        for id in self.nodes.values().flat_map(|node| node.names.iter().flat_map(|names| names.values())) {
            *named.entry(*id).or_default() += 1;
        }
        let (gone, unlisted) = Default::default();
        let mut forgetter = Forgetter { replica: self, needed, named, gone, unlisted };
        let mut forgotten = Vec::new();
        let is_loose = |(id, node): &(&FileId, &Node)| node.names.is_none() && !forgetter.named.contains_key(id);
        let loose = self.nodes.iter().filter(is_loose).map(|(id, _)| *id);
        let files: Vec<FileId> = loose.filter(|id| !forgetter.stays(*id) && lately(used, *id) <= recent).collect();
        if self.nodes.len() > count && !files.is_empty() {
            forgetter.gone.extend(&files);
            forgotten.push(Forgotten { dir: None, files });
        }
        let last_used = self.directories_used(used);
        let mut waiting: Vec<(u64, FileId)> =
            last_used.into_iter().filter(|(_, when)| *when <= recent).map(|(dir, when)| (when, dir)).collect();
        // At equal times children come first: they usually have the greater ids.
        waiting.sort_unstable_by_key(|(when, dir)| (*when, std::cmp::Reverse(*dir)));
        loop {
            let before = waiting.len();
            waiting.retain(|(_, dir)| {
                let is_enough = self.nodes.len() - forgetter.gone.len() <= count;
                match if is_enough { None } else { forgetter.forget(*dir) } {
                    Some(files) => {
                        forgotten.push(Forgotten { dir: Some(*dir), files });
                        false
                    }
                    None => !is_enough,
                }
            });
            // A directory goes in the pass after its subdirectories.
            if waiting.len() == before || waiting.is_empty() {
                return forgotten;
            }
        }
    }

    /// The last use of each directory with cached names, or of anything below it.
    fn directories_used(&self, used: &HashMap<FileId, u64>) -> HashMap<FileId, u64> {
        let mut all: HashMap<FileId, u64> = HashMap::new();
        for (dir, node) in self.nodes.iter() {
            let Some(names) = &node.names else { continue };
            let latest = names.values().chain([dir]).map(|id| lately(used, *id)).max().unwrap_or(0);
            let (mut at, mut parent) = (*dir, node.parent);
            all.entry(at).and_modify(|known| *known = latest.max(*known)).or_insert(latest);
            while parent != at && all.get(&parent).is_none_or(|known| *known < latest) {
                all.insert(parent, latest);
                at = parent;
                parent = self.nodes.get(&at).map_or(at, |node| node.parent);
            }
        }
        all.retain(|dir, _| self.nodes.get(dir).is_some_and(|node| node.names.is_some()));
        all
    }

    pub(super) fn forget(&mut self, dir: Option<FileId>, files: Vec<FileId>) {
        // A damaged log may name any files.
        let is_needed = |replica: &Replica, file: FileId| replica.is_own(file) || replica.log.names(file);
        if let Some(dir) = dir.filter(|dir| !is_needed(self, *dir))
            && let Some(node) = self.nodes.get_mut(&dir)
        {
            (node.names, node.names_of) = (None, None);
        }
        for file in files {
            if is_needed(self, file) {
                continue;
            }
            if let Some(node) = self.nodes.remove(&file) {
                self.unused.extend([node.data, node.base]);
            }
        }
    }
}

fn lately(used: &HashMap<FileId, u64>, id: FileId) -> u64 {
    used.get(&id).copied().unwrap_or(0)
}

impl Forgetter<'_> {
    fn stays(&self, id: FileId) -> bool {
        let membership = self.replica.membership.as_ref();
        membership.is_some_and(|membership| membership.root == id) || self.needs(id)
    }

    fn needs(&self, id: FileId) -> bool {
        self.needed.contains(&id) || self.replica.is_own(id) || self.replica.log.names(id)
    }

    /// Forgets a directory's names, and returns the files forgotten with them. `None` if the
    /// directory, or something in it, has to stay.
    fn forget(&mut self, dir: FileId) -> Option<Vec<FileId>> {
        let names = self.replica.nodes.get(&dir)?.names.as_ref()?;
        let is_listed = |id: &FileId| {
            let node = self.replica.nodes.get(id);
            node.is_some_and(|node| node.names.is_some()) && !self.unlisted.contains(id)
        };
        // The home cannot list a directory that it has not heard of.
        let is_used = self.needs(dir) || self.replica.log.changed_in(dir).next().is_some();
        if is_used || names.values().any(|id| self.stays(*id) || is_listed(id)) {
            return None;
        }
        let mut files = Vec::new();
        for id in names.values() {
            let Some(count) = self.named.get_mut(id) else { continue };
            *count -= 1;
            if *count == 0 && self.replica.nodes.contains_key(id) {
                files.push(*id);
            }
        }
        self.unlisted.insert(dir);
        // No cached name leads to the directory, either.
        if self.named.get(&dir).is_none_or(|count| *count == 0) && !self.stays(dir) {
            files.push(dir);
        }
        self.gone.extend(&files);
        Some(files)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replica::{Membership, Record};
    use crate::testing::facts;
    use proptest::prelude::*;
    use roam_proto::message::{NamedFacts, User};
    use roam_proto::operation::{Attributes, Operation};
    use types::{Kind, Time};

    const ROOT: FileId = FileId::ROOT;

    /// Files and directories, each below an earlier one: its parent's number, whether it is a
    /// directory, and whether it has a second name in the root.
    type Shape = Vec<(usize, bool, bool)>;

    fn id(number: usize) -> FileId {
        FileId::new(ROOT.raw() + number as u64)
    }

    fn replica(shape: &Shape) -> Replica {
        let kind = |number: usize| if number == 0 || shape[number - 1].1 { Kind::Directory } else { Kind::File };
        let parent = |number: usize| {
            let wanted = shape[number - 1].0 % number;
            (0..=wanted).rev().find(|parent| kind(*parent) == Kind::Directory).unwrap_or(0)
        };
        let user = User { uid: 0, gid: 0, groups: Vec::new() };
        let mut replica = Replica::default();
        let done =
            replica.apply(Record::Joined(Membership { root: ROOT, user, incarnation: 1, file_len_max: u64::MAX }));
        assert!(done.is_some());
        for dir in (0..=shape.len()).filter(|dir| kind(*dir) == Kind::Directory) {
            let named = |number: usize| {
                let is_linked = dir == 0 && shape[number - 1].2 && kind(number) == Kind::File;
                parent(number) == dir || is_linked
            };
            let entry = |number| {
                let name = format!("{number:04}").into_bytes();
                NamedFacts { name, facts: facts(id(number), kind(number)) }
            };
            let entries = (1..=shape.len()).filter(|number| named(*number)).map(entry).collect();
            let dir = Box::new(facts(id(dir), Kind::Directory));
            assert!(replica.apply(Record::Listed { dir, entries }).is_some());
        }
        replica
    }

    proptest! {
        #[test]
        fn prop_what_has_a_known_name_is_known_and_what_is_needed_stays(
            shape in prop::collection::vec((0usize..40, any::<bool>(), any::<bool>()), 1..40),
            used in prop::collection::vec(0u64..20, 40),
            (recent, count) in (0u64..25, 0usize..40),
            (open, changed) in (prop::collection::vec(0usize..40, 0..3), prop::collection::vec(0usize..40, 0..3)),
        ) {
            let mut replica = replica(&shape);
            let is_there = |number: &&usize| **number <= shape.len();
            for number in changed.iter().filter(is_there) {
                let attributes = Attributes { mode: Some(0o700), ..Attributes::default() };
                let operation = Operation::Set { file: id(*number), attributes };
                let did = replica.apply(Record::Did { operation, when: Time { sec: 1, nsec: 0 } });
                prop_assert!(did.is_some());
            }
            let used: HashMap<FileId, u64> = used.iter().enumerate().map(|(number, when)| (id(number), *when)).collect();
            let needed: HashSet<FileId> = open.iter().filter(is_there).map(|number| id(*number)).collect();
            let before = replica.clone();
            let all = replica.least_used(count, (&used, recent), &needed);
            let mut left = before.file_count();
            for Forgotten { dir, files } in &all {
                prop_assert!(left > count, "no more than is wanted is forgotten");
                left -= files.len();
                let record = Record::Forgotten { dir: *dir, files: files.clone() };
                prop_assert!(replica.apply(record).is_some());
            }
            prop_assert_eq!(replica.file_count(), left, "each is forgotten once");
            for (dir, node) in replica.nodes() {
                for child in node.names.iter().flat_map(|names| names.values()) {
                    prop_assert!(replica.node(*child).is_ok(), "{:?} in {:?}", child, dir);
                }
            }
            for number in open.iter().chain(&changed).filter(is_there) {
                prop_assert!(replica.node(id(*number)).is_ok());
                prop_assert_eq!(replica.path_of(id(*number)), before.path_of(id(*number)));
            }
            for (id, when) in &used {
                let is_kept = *when <= recent || before.node(*id).is_err() || replica.path_of(*id) == before.path_of(*id);
                prop_assert!(is_kept, "{:?} was used of late", id);
            }
            let nothing_stays = needed.is_empty() && changed.is_empty() && used.values().all(|when| *when <= recent);
            prop_assert!(!nothing_stays || left <= count.max(1), "{} are known, of {}", left, count);
        }
    }
}
