//! The open descriptors of strace's processes, and the names of files.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

/// Folders whose contents are not files.
const NO_FILES: [&[u8]; 4] = [b"/dev", b"/proc", b"/sys", b"/run"];
/// The kernel's prefix for memory that has a descriptor.
const MEMORY: &[u8] = b"/memfd:";

/// An open file, which several descriptors may share.
#[derive(Debug)]
pub struct Open {
    pub file: u64,
    pub path: Vec<u8>,
    pub offset: u64,
    pub is_append: bool,
}

/// An open file that descriptors of one or several processes share.
pub type Shared = Rc<RefCell<Open>>;

/// The meaning of a descriptor number in a process: an open file, and whether it is closed when a
/// new program starts.
#[derive(Clone, Debug)]
pub struct Descriptor {
    pub open: Shared,
    pub is_private: bool,
}

/// A process, or the threads of one.
#[derive(Clone, Debug, Default)]
pub struct Process {
    pub descriptors: BTreeMap<i64, Descriptor>,
    /// The working folder; empty if it was not seen.
    pub folder: Vec<u8>,
    /// By file, the ranges that the running program has mapped: first bytes with their ends,
    /// disjoint.
    pub mapped: HashMap<u64, BTreeMap<u64, u64>>,
}

impl Process {
    /// Notes that a range of a file is mapped; returns the parts that were not mapped before.
    pub fn map(&mut self, file: u64, mut start: u64, mut end: u64) -> Vec<(u64, u64)> {
        let parts = self.mapped.entry(file).or_default();
        let (mut fresh, mut from) = (Vec::new(), end);
        // The ranges that touch it, from the last one on.
        while let Some((first, last)) =
            parts.range(..=end).next_back().map(|(first, last)| (*first, *last)).filter(|(_, last)| *last >= start)
        {
            if last < from {
                fresh.push((last.max(start), from));
            }
            from = from.min(first);
            parts.remove(&first);
            (start, end) = (start.min(first), end.max(last));
        }
        parts.insert(start, end);
        if start < from {
            fresh.push((start, from));
        }
        fresh.reverse();
        fresh
    }

    /// A name from the root, if it can be known. A relative name is in `folder`, or in the
    /// process's own folder.
    pub fn resolve(&self, folder: Option<&[u8]>, name: &[u8]) -> Vec<u8> {
        if name.starts_with(b"/") {
            return clean(name);
        }
        clean(&[folder.unwrap_or(&self.folder), b"/".as_slice(), name].concat())
    }
}

/// Removes `.`, `..` and doubled slashes. A name relative to an unknown folder also begins with a
/// slash.
fn clean(path: &[u8]) -> Vec<u8> {
    let mut parts: Vec<&[u8]> = Vec::new();
    for part in path.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => drop(parts.pop()),
            _ => parts.push(part),
        }
    }
    parts.into_iter().fold(Vec::new(), |mut path, part| {
        path.push(b'/');
        path.extend(part);
        path
    })
}

/// True if a name can be the name of a file.
pub fn is_file(path: &[u8]) -> bool {
    path.starts_with(b"/")
        && !path.starts_with(MEMORY)
        && !NO_FILES
            .iter()
            .any(|folder| path.strip_prefix(*folder).is_some_and(|rest| rest.is_empty() || rest[0] == b'/'))
}

/// The known files, by their names.
#[derive(Debug, Default)]
pub struct Names {
    numbers: BTreeMap<Vec<u8>, u64>,
    /// By file, its number of names, and its known length.
    facts: HashMap<u64, (u32, u64)>,
    next: u64,
}

impl Names {
    /// The file with a name; a new one if there is none.
    pub fn number(&mut self, path: &[u8]) -> u64 {
        if let Some(number) = self.numbers.get(path) {
            return *number;
        }
        let number = self.next;
        self.next += 1;
        self.numbers.insert(path.to_vec(), number);
        self.facts.insert(number, (1, 0));
        number
    }

    /// A new file without a name.
    pub fn nameless(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// True if the file has this name.
    pub fn is(&self, path: &[u8], file: u64) -> bool {
        self.numbers.get(path) == Some(&file)
    }

    /// True if the file has no name, or no longer has one.
    pub fn is_nameless(&self, file: u64) -> bool {
        self.facts.get(&file).is_none_or(|(names, _)| *names == 0)
    }

    /// Removes a name; returns the file if that was its last name.
    pub fn remove(&mut self, path: &[u8]) -> Option<u64> {
        let number = self.numbers.remove(path)?;
        let (names, _) = self.facts.get_mut(&number)?;
        *names = names.saturating_sub(1);
        (*names == 0).then_some(number)
    }

    /// Gives a file one more name.
    pub fn link(&mut self, from: &[u8], to: &[u8]) {
        let number = self.number(from);
        if self.numbers.insert(to.to_vec(), number).is_none()
            && let Some((names, _)) = self.facts.get_mut(&number)
        {
            *names += 1;
        }
    }

    /// Renames a file, or all files in a folder; returns the file that had the new name before.
    pub fn rename(&mut self, from: &[u8], to: &[u8]) -> Option<u64> {
        if from == to {
            return None;
        }
        let below = [from, b"/"].concat();
        let after = self.numbers.range(below.clone()..).take_while(|(path, _)| path.starts_with(&below));
        let inside: Vec<(Vec<u8>, u64)> = after.map(|(path, number)| (path.clone(), *number)).collect();
        for (path, number) in inside {
            self.numbers.remove(&path);
            self.numbers.insert([to, &path[from.len()..]].concat(), number);
        }
        // A folder that was moved has a number of its own only if it was opened.
        let number = self.number(from);
        let replaced = self.remove(to);
        self.numbers.remove(from);
        self.numbers.insert(to.to_vec(), number);
        replaced
    }

    /// The known length of a file.
    pub fn len(&self, file: u64) -> u64 {
        self.facts.get(&file).map_or(0, |(_, len)| *len)
    }

    /// Raises the known length to at least `end`.
    pub fn reach(&mut self, file: u64, end: u64) {
        let (_, len) = self.facts.entry(file).or_default();
        *len = end.max(*len);
    }

    /// Sets the known length to `end`.
    pub fn cut(&mut self, file: u64, end: u64) {
        self.facts.entry(file).or_default().1 = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_followed_through_renames_and_links() {
        let mut names = Names::default();
        let (a, b, deep) = (names.number(b"/a"), names.number(b"/b"), names.number(b"/d/e/f"));
        assert_eq!((names.number(b"/a"), names.rename(b"/a", b"/b")), (a, Some(b)));
        assert_eq!((names.number(b"/b"), names.rename(b"/b", b"/b")), (a, None));
        assert_ne!(names.number(b"/a"), a);
        names.rename(b"/d", b"/g");
        assert_eq!(names.number(b"/g/e/f"), deep);
        names.link(b"/b", b"/c");
        assert_eq!((names.remove(b"/b"), names.remove(b"/c"), names.remove(b"/c")), (None, Some(a), None));
    }

    #[test]
    fn what_is_mapped_again_is_not_fresh() {
        let mut process = Process::default();
        let mut map = |start, end| process.map(7, start, end);
        assert_eq!(map(10, 20), [(10, 20)]);
        assert_eq!((map(10, 20), map(12, 15)), (vec![], vec![]));
        assert_eq!((map(5, 10), map(30, 40)), (vec![(5, 10)], vec![(30, 40)]));
        assert_eq!((map(0, 50), map(0, 50)), (vec![(0, 5), (20, 30), (40, 50)], vec![]));
        assert_eq!(process.map(8, 0, 50), [(0, 50)]);
    }

    #[test]
    fn paths_are_from_the_root() {
        let process = Process { folder: b"/home/ann".to_vec(), ..Process::default() };
        let resolved = |folder, name: &str| String::from_utf8(process.resolve(folder, name.as_bytes())).expect("text");
        assert_eq!(resolved(None, "x/./../y"), "/home/ann/y");
        assert_eq!(resolved(Some(b"/tmp"), "z"), "/tmp/z");
        assert_eq!(resolved(Some(b"/tmp"), "//z/../../q/"), "/q");
        assert!(
            is_file(b"/home/x")
                && !is_file(b"/memfd:x")
                && !is_file(b"/dev/null")
                && !is_file(b"/proc")
                && is_file(b"/devel")
                && !is_file(b"")
        );
    }
}
