//! Which file has which id, and under which names it was seen. Pure.
//!
//! An id belongs to one [`FileIdentity`] for ever. Names are hints, since other programs rename as
//! they like. Code that opens a file by its name compares what it finds with the identity, and
//! forgets a name that led elsewhere.

use crate::identity::FileIdentity;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use types::{FileId, FsError};

/// A directory and a name in it.
pub type NodePlace = (FileId, Vec<u8>);

struct Node {
    identity: FileIdentity,
    places: BTreeSet<NodePlace>,
}

/// The files that were seen, by id, identity and place.
pub struct Nodes {
    by_id: BTreeMap<FileId, Node>,
    by_identity: HashMap<FileIdentity, FileId>,
    by_place: BTreeMap<NodePlace, FileId>,
    next: u64,
}

/// The id of the folder beside the root, if there is one.
pub const BESIDE: FileId = FileId::new(FileId::ROOT.raw() + 1);

/// True for the directories at which paths begin. They have no names themselves.
fn is_top(id: FileId) -> bool {
    id == FileId::ROOT || id == BESIDE
}

impl Nodes {
    /// Makes a table of the root and the folder beside it.
    pub fn new(root: FileIdentity, beside: Option<FileIdentity>) -> Nodes {
        let mut nodes = Nodes {
            by_id: BTreeMap::new(),
            by_identity: HashMap::new(),
            by_place: BTreeMap::new(),
            next: BESIDE.raw() + 1,
        };
        for (id, identity) in [(FileId::ROOT, Some(root)), (BESIDE, beside)] {
            if let Some(identity) = identity {
                nodes.by_identity.insert(identity.clone(), id);
                nodes.by_id.insert(id, Node { identity, places: BTreeSet::new() });
            }
        }
        nodes
    }

    /// Returns the id of a file. Gives a new id to a file that was never seen.
    pub fn id_of(&mut self, identity: FileIdentity) -> FileId {
        if let Some(id) = self.by_identity.get(&identity) {
            return *id;
        }
        let id = FileId::new(self.next);
        self.next += 1;
        self.by_identity.insert(identity.clone(), id);
        self.by_id.insert(id, Node { identity, places: BTreeSet::new() });
        id
    }

    /// Records that a file was seen at a place, in place of any other file. Returns its id.
    pub fn seen(&mut self, identity: FileIdentity, place: NodePlace) -> FileId {
        let id = self.id_of(identity);
        self.left(&place);
        if let Some(node) = self.by_id.get_mut(&id).filter(|_| !is_top(id)) {
            node.places.insert(place.clone());
            self.by_place.insert(place, id);
        }
        id
    }

    /// Forgets what was seen at a place: it is empty now, or has another file.
    pub fn left(&mut self, place: &NodePlace) {
        if let Some(id) = self.by_place.remove(place)
            && let Some(node) = self.by_id.get_mut(&id)
        {
            node.places.remove(place);
        }
    }

    /// Forgets that a file was seen at a place, unless another one was seen there since.
    pub fn left_by(&mut self, id: FileId, place: &NodePlace) {
        if self.by_place.get(place) == Some(&id) {
            self.left(place);
        }
    }

    /// Moves what was seen at one place to another.
    pub fn moved(&mut self, from: &NodePlace, to: NodePlace) {
        let Some(id) = self.by_place.get(from).copied() else {
            self.left(&to);
            return;
        };
        self.left(from);
        self.left(&to);
        if let Some(node) = self.by_id.get_mut(&id) {
            node.places.insert(to.clone());
            self.by_place.insert(to, id);
        }
    }

    /// Exchanges what was seen at two places.
    pub fn exchanged(&mut self, a: &NodePlace, b: &NodePlace) {
        let (at_a, at_b) = (self.by_place.get(a).copied(), self.by_place.get(b).copied());
        self.left(a);
        self.left(b);
        for (place, id) in [(a, at_b), (b, at_a)] {
            if let Some(id) = id
                && let Some(node) = self.by_id.get_mut(&id)
            {
                node.places.insert(place.clone());
                self.by_place.insert(place.clone(), id);
            }
        }
    }

    /// Returns the identity of an id. ESTALE.
    pub fn identity(&self, id: FileId) -> Result<&FileIdentity, FsError> {
        self.by_id.get(&id).map(|node| &node.identity).ok_or(FsError::Stale)
    }

    /// Returns a place where a file was seen, if there is one.
    pub fn place(&self, id: FileId) -> Option<&NodePlace> {
        self.by_id.get(&id)?.places.first()
    }

    /// Returns the names that lead to a file, by the places seen last, from the root or from the
    /// folder beside it. `None` if a directory on the way has no known place.
    pub fn path(&self, id: FileId) -> Option<(FileId, Vec<Vec<u8>>)> {
        let (mut names, mut at) = (Vec::new(), id);
        while !is_top(at) {
            let (parent, name) = self.place(at)?;
            names.push(name.clone());
            at = *parent;
            // Other programs can move directories so that remembered places form a circle.
            if names.len() > self.by_id.len() {
                return None;
            }
        }
        names.reverse();
        Some((at, names))
    }
}
