//! What a worker did, which of it must have survived a crash, and which part of it did.
//!
//! Workers share a file system but have a directory each, so what each sees follows from its own operations alone, while a crash
//! cuts all of them at one point of the order in which they were done. That point is only known as an interval per operation.

use crate::operation::Operation;
use crate::session::Session;
use std::collections::BTreeSet;
use std::sync::Arc;
use types::Time;
use vfs::mem::MemFs;
use vfs::tree::{TreeEntry, difference};

/// One operation, and when it began and ended, in a count of all beginnings and ends.
#[derive(Clone, Debug)]
pub struct Done {
    /// As far as it went.
    pub operation: Operation,
    /// When it began.
    pub began: u64,
    /// When it ended; `None` if a crash came before.
    pub ended: Option<u64>,
}

/// What one worker did since the state `base`.
pub struct History {
    /// Name of its directory.
    pub top: Vec<u8>,
    /// The model at the start.
    pub base: MemFs,
    /// What it did since.
    pub done: Vec<Done>,
    /// How many of them are durable.
    pub durable: usize,
}

/// A model that shows no times.
pub fn new_model(block_size: u32) -> MemFs {
    MemFs::with_block_size(Arc::new(|| Time { sec: 0, nsec: 0 }), block_size)
}

/// The part of a tree that belongs to the worker with this directory.
pub fn part_of<'t>(tree: &'t [TreeEntry], top: &[u8]) -> Vec<TreeEntry> {
    let root = [b"/", top].concat();
    let inside = [&root[..], b"/"].concat();
    let belongs = |e: &&'t TreeEntry| e.path == root || e.path.starts_with(&inside);
    tree.iter().filter(belongs).cloned().collect()
}

impl History {
    /// The model after each number of operations from `durable` on whose tree is `found`.
    async fn matches(&self, found: &[TreeEntry]) -> (BTreeSet<usize>, String) {
        let model = self.base.snapshot();
        let mut session = Session::new(Arc::new(model.clone()), self.top.clone());
        let mut matching = BTreeSet::new();
        let mut closest = String::from("nothing");
        for count in 0..=self.done.len() {
            if count > 0 {
                session.apply(&self.done[count - 1].operation).await;
            }
            if count >= self.durable {
                match difference(&part_of(&model.snapshot().dump(), &self.top), found) {
                    None => drop(matching.insert(count)),
                    Some(text) => closest = format!("after {count} operations: {text}"),
                }
            }
        }
        (matching, closest)
    }

    /// Forgets all but the first `count` operations, which from now on are the base.
    pub async fn keep(&mut self, count: usize) {
        let model = self.base.snapshot();
        let mut session = Session::new(Arc::new(model.clone()), self.top.clone());
        for done in &self.done[..count] {
            session.apply(&done.operation).await;
        }
        self.base = model.snapshot();
        self.done.clear();
        self.durable = 0;
    }
}

/// Finds the point at which a crash cut all histories, given the tree that was recovered: a number of operations for each. The
/// text says what is wrong if there is none.
pub async fn cut_of(histories: &[&History], tree: &[TreeEntry]) -> Result<Vec<usize>, String> {
    let mut matching = Vec::new();
    for history in histories {
        let (counts, closest) = history.matches(&part_of(tree, &history.top)).await;
        if counts.is_empty() {
            return Err(format!(
                "{}: the recovered tree is that after no number of operations from {} (the last durable) to {}; {closest} (left: model)",
                String::from_utf8_lossy(&history.top),
                history.durable,
                history.done.len(),
            ));
        }
        matching.push(counts);
    }
    let mut cut: Vec<usize> = matching.iter().filter_map(|counts| counts.first().copied()).collect();
    // Raise the numbers until no operation is lost that had ended before one began that is kept.
    loop {
        let kept_began =
            histories.iter().zip(&cut).filter_map(|(h, &count)| h.done[..count].last()).map(|d| d.began).max();
        let lost =
            |h: &History, count: usize| h.done[count..].iter().rposition(|d| d.ended < kept_began && d.ended.is_some());
        let next =
            histories.iter().zip(&cut).enumerate().find_map(|(i, (h, &count))| Some((i, count + lost(h, count)? + 1)));
        let Some((i, least)) = next else { return Ok(cut) };
        let Some(&count) = matching[i].range(least..).next() else {
            return Err(format!(
                "{}: operation {} is lost although it had ended before one began that was kept",
                String::from_utf8_lossy(&histories[i].top),
                least - 1
            ));
        };
        cut[i] = count;
    }
}
