//! Changes a tree: all changes of a checkpoint at once, in order, so that each page is copied once.

use super::page::{TreeKey, Value};
use super::{Page, PageLink, Tree, Unloaded, position};
use std::sync::Arc;
use types::BlockAddr;

/// Gives a key's new value, from its old one and a change. `None` means no row.
pub type Combine<K, V, C> = fn(K, Option<V>, &C) -> Option<V>;

/// A page during an edit, before it is cut to length.
enum Child<K, V> {
    /// An unchanged page.
    Kept(PageLink<K, V>),
    /// A page with new rows, at least one.
    New(Page<K, V>),
}

/// One pass over a tree.
struct Edit<K, V, C> {
    rows_max: usize,
    combine: Combine<K, V, C>,
    /// Records that are not part of the tree any more.
    freed: Vec<BlockAddr>,
    /// Pages that the edit needs and that are not in memory.
    missing: Vec<Unloaded>,
    /// First keys of new leaves.
    leaves: Vec<K>,
}

impl<K: TreeKey, V: Value> Tree<K, V> {
    /// Changes rows. `combine` gives a key's new value. `changes` ascend by key. Returns the
    /// records that are not part of the tree any more.
    ///
    /// # Errors
    /// The pages that must be in memory first. Nothing has changed then. The next try may need
    /// other pages: pages that become short are joined with their neighbours.
    pub fn edit<C>(&mut self, changes: &[(K, C)], combine: Combine<K, V, C>) -> Result<Vec<BlockAddr>, Vec<Unloaded>> {
        let (freed, missing, leaves) = (Vec::new(), Vec::new(), Vec::new());
        let mut edit = Edit { rows_max: self.rows_max, combine, freed, missing, leaves };
        let changed = edit.page(&self.top, self.height, changes);
        let fitting = changed.map(|top| edit.fit(top, self.height));
        if !edit.missing.is_empty() {
            return Err(edit.missing);
        }
        if let Some((top, height)) = fitting {
            (self.top, self.height) = (Arc::new(top), height);
            self.recent.extend(edit.leaves);
        }
        Ok(edit.freed)
    }

    /// Has a page written anew, and those above it, if it is still at the home that `page` names.
    /// Returns the records that are not part of the tree any more.
    ///
    /// # Errors
    /// A page that must be in memory first.
    pub fn rewrite(&mut self, page: &Unloaded) -> Result<Vec<BlockAddr>, Unloaded> {
        let mut freed = Vec::new();
        let Some(key) = K::narrow(page.first).filter(|_| page.level < self.height) else { return Ok(freed) };
        let (mut at, mut level) = (&*self.top, self.height);
        while let Page::Inner(links) = at {
            level -= 1;
            let link = &links[position(links, key)];
            if level == page.level && link.home != Some(page.home) {
                return Ok(freed);
            }
            at = link.loaded(level)?;
            if level == page.level {
                break;
            }
        }
        let (mut at, mut level) = (&mut self.top, self.height);
        while level > page.level
            && let Page::Inner(links) = Arc::make_mut(at)
        {
            level -= 1;
            let position = position(links, key);
            let link = &mut links[position];
            freed.extend(link.home.take());
            let Some(below) = &mut link.page else { break };
            at = below;
        }
        Ok(freed)
    }
}

impl<K: TreeKey, V: Value, C> Edit<K, V, C> {
    /// The new page; `None` if it stays as it is.
    fn page(&mut self, page: &Page<K, V>, level: u8, changes: &[(K, C)]) -> Option<Page<K, V>> {
        match page {
            Page::Leaf(rows) => self.leaf(rows, changes),
            Page::Inner(links) => self.inner(links, level - 1, changes),
        }
    }

    fn leaf(&mut self, rows: &[(K, V)], changes: &[(K, C)]) -> Option<Page<K, V>> {
        let (mut out, mut rest, mut is_changed) = (Vec::with_capacity(rows.len() + changes.len()), rows, false);
        for (key, change) in changes {
            let (before, after) = rest.split_at(rest.partition_point(|row| row.0 < *key));
            out.extend_from_slice(before);
            let old = after.first().filter(|row| row.0 == *key).map(|row| row.1);
            rest = &after[usize::from(old.is_some())..];
            let new = (self.combine)(*key, old, change);
            is_changed |= new != old;
            out.extend(new.map(|value| (*key, value)));
        }
        out.extend_from_slice(rest);
        is_changed.then_some(Page::Leaf(out))
    }

    /// Changes an inner page. `level` is the level of the pages that the links lead to.
    fn inner(&mut self, links: &[PageLink<K, V>], level: u8, changes: &[(K, C)]) -> Option<Page<K, V>> {
        let (mut children, mut rest, mut is_changed) = (Vec::with_capacity(links.len()), changes, false);
        for (at, link) in links.iter().enumerate() {
            let end = links.get(at + 1).map_or(rest.len(), |next| rest.partition_point(|(key, _)| *key < next.first));
            let (own, after) = rest.split_at(end);
            rest = after;
            let changed = match &link.page {
                _ if own.is_empty() => None,
                Some(page) => self.page(page, level, own),
                None => {
                    self.missing.extend(link.loaded(level).err());
                    None
                }
            };
            is_changed |= changed.is_some();
            match changed {
                None => children.push(Child::Kept(link.clone())),
                Some(page) => {
                    self.freed.extend(link.home);
                    if page.len() > 0 {
                        children.push(Child::New(page));
                    }
                }
            }
        }
        if !is_changed {
            return None;
        }
        let mut out = Vec::with_capacity(children.len() + 1);
        for child in self.join(children, level) {
            match child {
                Child::Kept(link) => out.push(link),
                Child::New(page) => out.extend(self.cut(page)),
            }
        }
        Some(Page::Inner(out))
    }

    /// Joins pages that have become short with their neighbours.
    fn join(&mut self, children: Vec<Child<K, V>>, level: u8) -> Vec<Child<K, V>> {
        let least = self.rows_max / 4;
        let is_short = |child: &Child<K, V>| matches!(child, Child::New(page) if page.len() < least);
        let mut out: Vec<Child<K, V>> = Vec::with_capacity(children.len());
        for child in children {
            match out.pop() {
                None => out.push(child),
                Some(last) if !is_short(&last) && !is_short(&child) => out.extend([last, child]),
                Some(last) => match (self.contents(last, level), self.contents(child, level)) {
                    (Ok(a), Ok(b)) => out.push(Child::New(a.with(b))),
                    (a, b) => out.extend([a, b].map(|child| child.map_or_else(Child::Kept, Child::New))),
                },
            }
        }
        out
    }

    /// The page of a child. Returns the link if the page is not in memory.
    fn contents(&mut self, child: Child<K, V>, level: u8) -> Result<Page<K, V>, PageLink<K, V>> {
        match child {
            Child::New(page) => Ok(page),
            Child::Kept(link) => self.take(link, level),
        }
    }

    /// Takes the page of a link, and frees its record. Returns the link if the page is not in
    /// memory.
    fn take(&mut self, mut link: PageLink<K, V>, level: u8) -> Result<Page<K, V>, PageLink<K, V>> {
        match link.page.take() {
            Some(page) => {
                self.freed.extend(link.home);
                Ok(Arc::unwrap_or_clone(page))
            }
            None => {
                self.missing.extend(link.loaded(level).err());
                Err(link)
            }
        }
    }

    /// Cuts a page to length, three quarters full so that it can grow.
    fn cut(&mut self, page: Page<K, V>) -> Vec<PageLink<K, V>> {
        let mut pages = Vec::new();
        match page {
            Page::Leaf(rows) => {
                let parts = cut_rows(rows, self.rows_max);
                self.leaves.extend(parts.iter().map(|rows| rows[0].0));
                pages.extend(parts.into_iter().map(Page::Leaf));
            }
            Page::Inner(links) => pages.extend(cut_rows(links, self.rows_max).into_iter().map(Page::Inner)),
        }
        let link = |page: Page<K, V>| Some(PageLink { first: page.first()?, home: None, page: Some(Arc::new(page)) });
        pages.into_iter().filter_map(link).collect()
    }

    /// Adds levels while the top page is too long, and removes top pages that have only one link.
    fn fit(&mut self, mut top: Page<K, V>, mut height: u8) -> (Page<K, V>, u8) {
        while top.len() > self.rows_max {
            top = Page::Inner(self.cut(top));
            height += 1;
        }
        loop {
            match top {
                Page::Inner(links) if links.is_empty() => return (Page::Leaf(Vec::new()), 0),
                Page::Inner(mut links) if links.len() == 1 => match self.take(links.remove(0), height - 1) {
                    Ok(below) => (top, height) = (below, height - 1),
                    Err(link) => return (Page::Inner(vec![link]), height),
                },
                top => return (top, height),
            }
        }
    }
}

impl<K, V> Page<K, V> {
    /// Appends the rows of another page of the same level.
    fn with(mut self, other: Self) -> Self {
        match (&mut self, other) {
            (Page::Leaf(rows), Page::Leaf(more)) => rows.extend(more),
            (Page::Inner(links), Page::Inner(more)) => links.extend(more),
            _ => unreachable!("pages of one level are of one kind"),
        }
        self
    }
}

/// Cuts rows into parts of at most `rows_max`. No part is empty, and none is short unless all rows
/// together are.
fn cut_rows<T>(rows: Vec<T>, rows_max: usize) -> Vec<Vec<T>> {
    let usual = rows_max * 3 / 4;
    let (mut rows, mut parts) = (rows.into_iter(), Vec::new());
    while rows.len() > rows_max {
        parts.push(rows.by_ref().take(usual).collect());
    }
    if rows.len() > 0 {
        parts.push(rows.collect());
    }
    parts
}
