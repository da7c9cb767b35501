//! Names as users see them, which are the home's with the waiting operations on top, and the paths
//! that they make.

use super::{Child, Replica};
use roam_proto::operation::{Operation, Place};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use types::FileId;

/// Finds paths of many files at one moment. It remembers the paths of directories, so many files in
/// one directory cost little more than one.
#[derive(Debug)]
pub struct Paths<'a> {
    replica: &'a Replica,
    dirs: RefCell<HashMap<FileId, Option<Vec<u8>>>>,
}

impl<'a> Paths<'a> {
    /// Finds paths in this replica.
    pub fn of(replica: &'a Replica) -> Paths<'a> {
        Paths { replica, dirs: RefCell::default() }
    }

    /// As [`Replica::path_of`].
    pub fn path_of(&self, file: FileId) -> Option<Vec<u8>> {
        match self.replica.place_of(file) {
            Some(place) => self.path_at(&place),
            None => self.replica.path_of(file),
        }
    }

    /// As [`Replica::path_at`].
    pub fn path_at(&self, (dir, name): &Place) -> Option<Vec<u8>> {
        let mut dirs = self.dirs.borrow_mut();
        let dir = dirs.entry(*dir).or_insert_with(|| self.replica.path_to(*dir));
        Some(below(dir.as_ref()?, name))
    }
}

/// The path of a name in the directory at `dir`.
fn below(dir: &[u8], name: &[u8]) -> Vec<u8> {
    if dir.is_empty() { name.to_vec() } else { [dir, b"/", name].concat() }
}

impl Replica {
    /// True if the cached names of a directory are as the home has them, apart from operations done
    /// here.
    pub fn has_names(&self, dir: FileId) -> bool {
        let known = self.node(dir);
        known.is_ok_and(|node| node.names.is_some() && node.names_of == Some(node.facts.contents) && !node.is_stale)
    }

    /// True if others have changed a directory's names since they were listed here. Then only the
    /// names in the list are of use; a missing name means nothing.
    pub(crate) fn names_have_changed(&self, dir: FileId) -> bool {
        self.node(dir).is_ok_and(|node| node.names.is_some() && node.names_of != Some(node.facts.contents))
    }

    /// What a name leads to.
    pub fn child(&self, place: &Place) -> Child {
        if let Some(here) = self.log.at(place) {
            return here.map_or(Child::Nothing, Child::Is);
        }
        let names = self.nodes.get(&place.0).and_then(|dir| dir.names.as_ref());
        match names.map(|names| names.get(&place.1)) {
            Some(Some(id)) => Child::Is(*id),
            Some(None) => Child::Nothing,
            None => Child::Unknown,
        }
    }

    /// The names in a directory; `None` if only the home knows.
    pub fn list(&self, dir: FileId) -> Option<BTreeMap<Vec<u8>, FileId>> {
        let dir = self.real(dir);
        let mut names = self.nodes.get(&dir)?.names.clone()?;
        for (name, here) in self.log.changed_in(dir) {
            match here {
                Some(id) => names.insert(name.to_vec(), id),
                None => names.remove(name),
            };
        }
        Some(names)
    }

    /// What is at a path from the root, as far as the client knows.
    pub fn at_path(&self, path: &[u8]) -> Child {
        let Some(membership) = &self.membership else { return Child::Unknown };
        let mut at = membership.root;
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            match self.child(&(at, name.to_vec())) {
                Child::Is(id) => at = id,
                other => return other,
            }
        }
        Child::Is(at)
    }

    /// A place that leads to a file, if the client knows one.
    pub fn place_of(&self, file: FileId) -> Option<Place> {
        let file = self.real(file);
        let leads_there = |place: &Place| self.child(place) == Child::Is(file);
        let given = |operation| match operation {
            &Operation::Make { file: made, ref at, .. } | &Operation::Link { file: made, ref at, .. } => {
                (made == file).then_some(at)
            }
            &Operation::Rename { file: moved, ref to, .. } => (moved == file).then_some(to),
            &Operation::Exchange { file: moved, ref to, .. } if moved == file => Some(to),
            &Operation::Exchange { other, ref from, .. } => (other == file).then_some(from),
            _ => None,
        };
        let mut here = self.log.naming(file).filter_map(|(_, operation)| given(operation));
        if let Some(place) = here.find(|place| leads_there(place)) {
            return Some(place.clone());
        }
        let likely = self.nodes.get(&file).and_then(|node| self.known_in(node.parent, file));
        likely.or_else(|| self.nodes.keys().find_map(|dir| self.known_in(*dir, file)))
    }

    /// A place in a directory that leads to a file, and that the home has too.
    fn known_in(&self, dir: FileId, file: FileId) -> Option<Place> {
        let names = self.nodes.get(&dir)?.names.as_ref()?;
        let mut places = names.iter().filter(|(_, id)| **id == file).map(|(name, _)| (dir, name.clone()));
        places.find(|place| self.child(place) == Child::Is(file))
    }

    /// A place that leads to a file; one that the home has too, if there is one.
    pub(crate) fn old_place_of(&self, file: FileId) -> Option<Place> {
        let file = self.real(file);
        let parent = self.nodes.get(&file)?.parent;
        self.known_in(parent, file).or_else(|| self.place_of(file))
    }

    /// A path from the root to a file, without a leading slash.
    pub fn path_of(&self, file: FileId) -> Option<Vec<u8>> {
        self.path_by(file, |file| self.place_of(file))
    }

    /// The path of a file, by a function that finds each file's place.
    fn path_by(&self, file: FileId, place_of: impl Fn(FileId) -> Option<Place>) -> Option<Vec<u8>> {
        let root = self.membership.as_ref()?.root;
        let (mut names, mut at) = (Vec::new(), file);
        while at != root {
            let (parent, name) = place_of(at)?;
            names.push(name);
            at = parent;
            if names.len() > self.nodes.len() {
                return None;
            }
        }
        names.reverse();
        Some(names.join(&b'/'))
    }

    /// The path of a directory. For a directory that was removed here, its last path.
    fn path_to(&self, dir: FileId) -> Option<Vec<u8>> {
        let removed_from = |file| match self.log.naming(file).last()? {
            (_, Operation::Remove { at, file: gone, .. }) if *gone == file => Some(at.clone()),
            _ => None,
        };
        self.path_by(dir, |dir| self.place_of(dir).or_else(|| removed_from(dir)))
    }

    /// The path of a place, whether or not the name exists. In a directory that was removed here,
    /// the path that it had.
    pub fn path_at(&self, (dir, name): &Place) -> Option<Vec<u8>> {
        Some(below(&self.path_to(*dir)?, name))
    }
}
