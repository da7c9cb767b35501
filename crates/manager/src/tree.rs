//! A sorted table in the manager's log, in pages that are copied when they change.
//!
//! All of a manager's data that grows with the store is in such tables: the addresses of index
//! nodes, live bytes of segments, orphans. A page is a record of the log; the top page is part of
//! the root. A leaf has rows of the table. An inner page links to pages: it has the first key of
//! each, and the address of its record (its *home*). So a change of one row writes one page of each
//! level anew, in a table of any size, and the root stays small.
//!
//! A tree changes only through [`edit`](Tree::edit) and [`rewrite`](Tree::rewrite), in a
//! checkpoint, on a clone that shares all pages. The pages that they touch have no home until the
//! checkpoint has written them, level by level from the leaves up ([`unwritten`](Tree::unwritten)).
//! Pages are loaded when first needed: a caller that meets a page that is not in memory gets
//! [`Unloaded`], loads the page, installs it and tries again. Leaves leave memory in the order in
//! which they came ([`trim`](Tree::trim)). Inner pages stay, about one for eighty leaves.
//!
//! Invariants: keys ascend through all leaves; a link's key is not above any key in its page and
//! above all keys before it; a page without a home is in memory, and so are the pages above it; no
//! page below the top is empty or longer than `rows_max`.
//!
//! Memory: 48 bytes per leaf that is not in memory; a row takes its key and value (32 bytes for a
//! file, 24 for a segment).

mod edit;
mod page;

use crate::record::{RecordKey, Table};
pub use edit::Combine;
pub use page::{TreeKey, Value, page_again};
use std::collections::VecDeque;
use std::sync::Arc;
use types::BlockAddr;
use types::codec::{DecodeError, Reader};

/// Most rows of a page, by default. Longer pages make the tree lower; shorter ones make a change of
/// one row cheaper.
pub const PAGE_ROWS_MAX: usize = 128;
/// Lowest bound on the rows of a page.
pub const PAGE_ROWS_LEAST: usize = 4;
/// Most levels below the top. Even with the shortest pages, these have room for more keys than are
/// in use.
pub const LEVEL_COUNT_MAX: u8 = 16;

/// The rows or links of a page.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Page<K, V> {
    Leaf(Vec<(K, V)>),
    Inner(Vec<PageLink<K, V>>),
}

/// A link to a page below.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PageLink<K, V> {
    first: K,
    /// The page's home; `None` if it has changed and is not written yet.
    home: Option<BlockAddr>,
    /// The page; `None` if it is not in memory.
    page: Option<Arc<Page<K, V>>>,
}

/// A page that is not in memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Unloaded {
    /// Its level; 0 for a leaf.
    pub level: u8,
    /// The key of its link.
    pub first: u128,
    /// The address of its record.
    pub home: BlockAddr,
}

/// The rows of one leaf, and where to go on.
#[derive(Debug)]
pub struct Stretch<'a, K, V> {
    /// The rows in order.
    pub rows: &'a [(K, V)],
    /// The key of the next leaf; `None` if this is the last.
    pub next: Option<K>,
}

/// A sorted table in copy-on-write pages. A clone shares the pages.
#[derive(Clone, Debug)]
pub struct Tree<K, V> {
    rows_max: usize,
    /// The level of the top page, 0 if it is a leaf.
    height: u8,
    top: Arc<Page<K, V>>,
    /// First keys of leaves in memory, in the order in which the leaves came. A leaf may be listed
    /// twice, or not exist any more.
    recent: VecDeque<K>,
}

impl<K: TreeKey, V: Value> Tree<K, V> {
    /// An empty table with at most `rows_max` rows in a page.
    pub fn new(rows_max: usize) -> Self {
        let top = Arc::new(Page::Leaf(Vec::new()));
        Tree { rows_max: rows_max.max(PAGE_ROWS_LEAST), height: 0, top, recent: VecDeque::new() }
    }

    /// The level of the top page, 0 if it has the whole table.
    pub fn height(&self) -> u8 {
        self.height
    }

    /// The value of a key.
    pub fn get(&self, key: K) -> Result<Option<V>, Unloaded> {
        let rows = self.leaf(key)?;
        Ok(rows.binary_search_by_key(&key, |row| row.0).ok().map(|at| rows[at].1))
    }

    /// The rows of the leaf that has a key, or would have it.
    pub fn leaf(&self, key: K) -> Result<&[(K, V)], Unloaded> {
        Ok(self.stretch(Some(key))?.rows)
    }

    /// The leaf that has `key`, or would have it; without a key, the first leaf.
    pub fn stretch(&self, key: Option<K>) -> Result<Stretch<'_, K, V>, Unloaded> {
        let (mut page, mut level, mut next) = (&*self.top, self.height, None);
        loop {
            match page {
                Page::Leaf(rows) => return Ok(Stretch { rows, next }),
                Page::Inner(links) => {
                    let at = key.map_or(0, |key| position(links, key));
                    level -= 1;
                    next = links.get(at + 1).map(|link| link.first).or(next);
                    page = links[at].loaded(level)?;
                }
            }
        }
    }

    /// The first page on the way to `key` (without a key: to the first leaf) that is not in memory,
    /// and later pages below the same page that are not: at most `count_max` in all.
    pub fn unloaded_from(&self, key: Option<K>, count_max: usize) -> Vec<Unloaded> {
        let (mut page, mut level) = (&*self.top, self.height);
        while let Page::Inner(links) = page {
            level -= 1;
            let at = key.map_or(0, |key| position(links, key));
            match links[at].loaded(level) {
                Ok(below) => page = below,
                Err(_) => {
                    return links[at..].iter().filter_map(|link| link.loaded(level).err()).take(count_max).collect();
                }
            }
        }
        Vec::new()
    }

    /// The homes of all pages of a level, and its pages that are not in memory. Only pages below
    /// pages in memory are found.
    pub fn homes(&self, level: u8) -> (Vec<BlockAddr>, Vec<Unloaded>) {
        let (mut homes, mut unloaded) = (Vec::new(), Vec::new());
        let mut pages = vec![(&*self.top, self.height)];
        while let Some((page, page_level)) = pages.pop() {
            let Page::Inner(links) = page else { continue };
            for link in links {
                if page_level - 1 == level {
                    homes.extend(link.home);
                }
                match link.loaded(page_level - 1) {
                    Ok(below) if page_level - 1 > level => pages.push((below, page_level - 1)),
                    Err(missing) if page_level > level => unloaded.push(missing),
                    _ => {}
                }
            }
        }
        (homes, unloaded)
    }

    /// True if a page is still not in memory, and still at its home.
    pub fn lacks(&self, missing: &Unloaded) -> bool {
        let Some(key) = K::narrow(missing.first) else { return false };
        let (mut page, mut level) = (&*self.top, self.height);
        while let Page::Inner(links) = page {
            level -= 1;
            let link = &links[position(links, key)];
            match &link.page {
                Some(below) if level > missing.level => page = below,
                below => return level == missing.level && link.home == Some(missing.home) && below.is_none(),
            }
        }
        false
    }

    /// Installs a page that was read from its home. Has no effect if the page is not missing any
    /// more.
    pub fn install(&mut self, table: Table, missing: &Unloaded, record: &[u8]) -> Result<(), DecodeError> {
        let page = Page::decode(record, table, missing.level)?;
        let Some(key) = K::narrow(missing.first).filter(|&key| page.first() == Some(key)) else {
            return Err(DecodeError::Invalid("page key"));
        };
        if !self.lacks(missing) {
            return Ok(());
        }
        let (mut at, mut level) = (&mut self.top, self.height);
        while let Page::Inner(links) = Arc::make_mut(at) {
            level -= 1;
            let position = position(links, key);
            let link = &mut links[position];
            if level == missing.level {
                link.page = Some(Arc::new(page));
                if level == 0 {
                    self.recent.push_back(key);
                }
                break;
            }
            let Some(below) = &mut link.page else { break };
            at = below;
        }
        Ok(())
    }

    /// Drops leaves from memory in the order in which they came, until `leaves_max` are left, but
    /// at most `steps_max`. Leaves without a home stay.
    pub fn trim(&mut self, leaves_max: usize, steps_max: usize) {
        for _ in 0..steps_max {
            if self.recent.len() <= leaves_max {
                break;
            }
            let Some(key) = self.recent.pop_front() else { break };
            self.unload(key);
        }
    }

    fn unload(&mut self, key: K) {
        let (mut at, mut level) = (&mut self.top, self.height);
        while let Page::Inner(links) = Arc::make_mut(at) {
            level -= 1;
            let position = position(links, key);
            let link = &mut links[position];
            if level == 0 {
                if link.home.is_some() {
                    link.page = None;
                }
                break;
            }
            let Some(below) = &mut link.page else { break };
            at = below;
        }
    }

    /// The pages of a level that must be written. Pages of lower levels must have been written.
    pub fn unwritten(&mut self, level: u8) -> Vec<&mut PageLink<K, V>> {
        let mut out = Vec::new();
        collect_unwritten(&mut self.top, self.height, level, &mut out);
        out
    }

    /// Appends the top page: the tree as a root has it. All pages below must have a home.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.height);
        self.top.encode_rows(out);
    }

    /// Reads a tree from a root. Only its top is in memory.
    pub fn decode(r: &mut Reader<'_>, rows_max: usize) -> Result<Self, DecodeError> {
        let height = r.u8("tree height")?;
        if height > LEVEL_COUNT_MAX {
            return Err(DecodeError::Invalid("tree height"));
        }
        let top = Page::decode_rows(r, height)?;
        if height > 0 && top.len() == 0 {
            return Err(DecodeError::Invalid("tree top"));
        }
        Ok(Tree { height, top: Arc::new(top), ..Tree::new(rows_max) })
    }
}

/// The index of the link that leads to a key. There must be at least one link.
fn position<K: TreeKey, V>(links: &[PageLink<K, V>], key: K) -> usize {
    links.partition_point(|link| link.first <= key).saturating_sub(1)
}

fn collect_unwritten<'a, K: TreeKey, V: Value>(
    page: &'a mut Arc<Page<K, V>>,
    page_level: u8,
    level: u8,
    out: &mut Vec<&'a mut PageLink<K, V>>,
) {
    if page_level <= level {
        return;
    }
    if let Page::Inner(links) = Arc::make_mut(page) {
        for link in links.iter_mut().filter(|link| link.home.is_none()) {
            if page_level - 1 == level {
                out.push(link);
            } else if let Some(below) = &mut link.page {
                collect_unwritten(below, page_level - 1, level, out);
            }
        }
    }
}

impl<K: TreeKey, V: Value> PageLink<K, V> {
    fn loaded(&self, level: u8) -> Result<&Page<K, V>, Unloaded> {
        match (&self.page, self.home) {
            (Some(page), _) => Ok(page),
            (None, Some(home)) => Err(Unloaded { level, first: self.first.wide(), home }),
            (None, None) => unreachable!("a page without a home is in memory"),
        }
    }

    /// Encodes the page's record. Returns it with its key.
    pub fn encode(&self, table: Table, level: u8) -> (RecordKey, Vec<u8>) {
        let key = RecordKey::Page { table, level, first: self.first.wide() };
        let mut out = Vec::new();
        key.begin(&mut out);
        if let Some(page) = &self.page {
            page.encode_rows(&mut out);
        }
        (key, out)
    }

    /// Notes that the page was written.
    pub fn set_home(&mut self, home: BlockAddr) {
        self.home = Some(home);
    }
}

#[cfg(test)]
mod tests;
