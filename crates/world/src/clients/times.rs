//! Times of files: no time that a program sees is older than one that was seen before.
//!
//! No call of the world sets a time, so times only grow. Access times too: only a client that may
//! change a file changes its access time, and others see that like any other change
//! (docs/semantics.md). A crash may set times back with what it loses.

use super::Made;
use super::mount::shown;
use std::collections::HashMap;
use types::{Attr, FileId, Time};

/// The access, modification and change time of a file, as far as they are known.
#[derive(Clone, Copy, Default, Debug)]
struct Seen([Option<Time>; 3]);

const NAMES: [&str; 3] = ["access", "modification", "change"];

impl Seen {
    fn new(attr: &Attr, shows_access_time: bool) -> Seen {
        Seen([Some(attr.atime).filter(|_| shows_access_time), Some(attr.mtime), Some(attr.ctime)])
    }

    /// The newest of both.
    fn and(self, other: Seen) -> Seen {
        Seen(std::array::from_fn(|i| self.0[i].max(other.0[i])))
    }

    /// Checks that nothing is older than what was seen before.
    fn follows(&self, before: &Seen) -> Result<(), String> {
        let gone_back = (0..3).find(|&i| self.0[i].is_some() && self.0[i] < before.0[i]);
        match gone_back {
            Some(i) => Err(format!("the {} time is {:?}, and was {:?} before", NAMES[i], self.0[i], before.0[i])),
            None => Ok(()),
        }
    }
}

/// The newest times that answers have shown.
#[derive(Default)]
pub(super) struct Times(HashMap<FileId, Seen>);

impl Times {
    /// Takes the calls of a round in, which all have ended. Earlier rounds ended before it began.
    pub(super) fn round(&mut self, made: &[Made]) -> Result<(), String> {
        let seen = |made: &Made| -> Vec<(FileId, Seen)> {
            let attributes = made.event.answered.iter().flat_map(shown);
            attributes.map(|attr| (attr.id, Seen::new(attr, made.shows_access_time))).collect()
        };
        let all: Vec<(&Made, Vec<(FileId, Seen)>)> = made.iter().map(|made| (made, seen(made))).collect();
        for (made, of_call) in &all {
            for (id, seen) in of_call {
                let earlier = all.iter().filter(|(other, _)| other.event.ends_before(&made.event));
                let earlier = earlier.flat_map(|(_, seen)| seen).filter(|(other, _)| other == id);
                let before = earlier.fold(self.0.get(id).copied().unwrap_or_default(), |all, (_, seen)| all.and(*seen));
                seen.follows(&before).map_err(|what| format!("{}: of {id} {what}", made.event))?;
            }
        }
        for (id, seen) in all.into_iter().flat_map(|(_, seen)| seen) {
            let known = self.0.entry(id).or_default();
            *known = known.and(seen);
        }
        Ok(())
    }

    /// Takes in that times may have gone back.
    pub(super) fn forget(&mut self) {
        self.0.clear();
    }
}
