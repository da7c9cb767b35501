//! Comparing trees of files.

use crate::rig::Rig;
use crate::rig::session::{How, Op, perform};
use std::collections::BTreeSet;
use vfs::tree::TreeEntry;

pub fn below<'a>(tree: &'a [TreeEntry], top: &str) -> Vec<&'a TreeEntry> {
    let top = format!("{top}/");
    tree.iter().filter(|entry| entry.path.starts_with(top.as_bytes())).collect()
}

/// The first difference between two trees. The contents of files in `blind` do not count.
pub fn differ(left: &[&TreeEntry], right: &[&TreeEntry], blind: &BTreeSet<Vec<u8>>) -> Option<String> {
    let only = |entries: &[&TreeEntry]| {
        let blinded = entries.iter().map(|entry| {
            let mut entry = (*entry).clone();
            if blind.contains(&entry.path) {
                (entry.attr.size, entry.content) = (0, 0);
            }
            entry
        });
        blinded.collect::<Vec<_>>()
    };
    vfs::tree::difference(&only(left), &only(right))
}

/// Makes files that no client touches.
pub fn make_quiet_files(rig: &Rig) {
    let fs = &rig.fs;
    let ops = [
        Op::MakeDir("/quiet".into()),
        Op::Write("/quiet/file".into(), How::Replace, b"nobody touches this".to_vec()),
        Op::SetXattr("/quiet/file".into(), b"nor this".to_vec()),
        Op::Link("/quiet/file".into(), "/quiet/name".into()),
        Op::MakeSymlink("/quiet/link".into(), "file".into()),
    ];
    for op in ops {
        rig.sim.block_on(perform(fs, &op)).expect("quiet files");
    }
}

pub fn quiet_files(rig: &Rig) -> Vec<TreeEntry> {
    let all = rig.fs.dump();
    let mut quiet: Vec<TreeEntry> = below(&all, "/quiet").into_iter().cloned().collect();
    // Reading may move access times.
    quiet.iter_mut().for_each(|entry| entry.attr.atime = entry.attr.mtime);
    quiet
}
