//! What a crash has left of operations.

use super::Whose;
use crate::exported::{Exported, cred};
use crate::volume::{OTHERS, Print};
use roam_wire::operation::{Made, Operation, Place};
use types::{FileId, FsError, Kind};

impl Exported {
    /// Operations that were done when the home crashed, and not remembered: what came of them is known as the doing of whoever asked, before anybody
    /// sees it. They are asked for again, and done if they were not.
    pub(crate) async fn finish_operations(&self) -> Result<(), FsError> {
        let pending: Vec<_> = {
            let live = self.live.lock();
            let clients = live.state.clients.iter();
            let grants =
                clients.filter_map(|(key, client)| Some((*key, client.number, client.grants.get(&self.name)?)));
            let whose = |key, author, user, incarnation| Whose { key, author, user, incarnation };
            grants
                .map(|(key, author, grant)| {
                    (whose(key, author, grant.user.clone(), grant.incarnation), grant.applying.clone())
                })
                .collect()
        };
        for (whose, operations) in pending {
            let author = whose.author;
            for (_, mut operation) in operations {
                let is_alias = self.with(|volume| {
                    let is_alias = volume.alias(operation.file()).is_some();
                    operation.rename_files(|file| volume.real(file));
                    is_alias
                })?;
                if is_alias
                    && matches!(operation, Operation::Make { .. } | Operation::Set { .. } | Operation::SetXattr { .. })
                {
                    // It was there already: nothing was done.
                    continue;
                }
                let finished = match &operation {
                    Operation::Make { at, file, made } => self.finish_make(&whose, at, *file, made).await,
                    operation => self.finish_changes(author, operation).await,
                };
                // What cannot be, or was not allowed, was not done.
                if let Err(error @ (FsError::Io | FsError::TimedOut)) = finished {
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    async fn finish_make(
        &self,
        Whose { key, author, user, .. }: &Whose,
        at: &Place,
        file: FileId,
        made: &Made,
    ) -> Result<(), FsError> {
        let (author, cred) = (*author, &cred(user));
        // It was announced, and would perhaps have been refused.
        self.check_name(at).and(self.check_id(key, file))?;
        self.check_reach(cred, at.0).await?;
        let (entry, identity) = self.fs.identified(self.source(at.0).await?, &at.1).await?;
        let id = entry.attr.id;
        let new = self.with(|volume| volume.known(&identity).is_none() && volume.file(file).is_none())?;
        let alike = entry.attr.kind == made.kind
            && match made.kind {
                Kind::Directory => true,
                Kind::File => entry.attr.size == 0,
                Kind::Symlink => self.fs.readlink(id).await? == made.target,
                _ => entry.attr.rdev == made.rdev,
            };
        let is_theirs = cred.uid == 0 || cred.uid == entry.attr.uid;
        if !new || !alike || !is_theirs {
            return Ok(());
        }
        let entry = if entry.attr.mtime == made.when { entry } else { self.dress(cred, &entry, made).await? };
        self.learn(author, |volume| Some(volume.made(file, &identity, Print::of(&entry.attr), Some(at), author)));
        self.means(file, id);
        if made.kind == Kind::Directory && !self.fs.list(id).await?.is_empty() {
            // Others have been there already.
            self.learn(OTHERS, |volume| volume.touched(file, OTHERS));
        }
        Ok(())
    }

    /// Of other files, whatever has changed but their contents.
    async fn finish_changes(&self, author: u32, operation: &Operation) -> Result<(), FsError> {
        let source = self.source(operation.file()).await?;
        let entry = self.fs.getattr(source).await?;
        let known = self.with(|volume| volume.file(operation.file()).cloned())?.ok_or(FsError::Stale)?;
        let set = match operation {
            Operation::Set { attributes, .. } => attributes.mtime,
            _ => None,
        };
        let attr = &entry.attr;
        let same_bytes = attr.size == known.print.size && (attr.mtime == known.print.mtime || Some(attr.mtime) == set);
        if same_bytes {
            self.saw(&entry, &known.identity, None, author);
        }
        Ok(())
    }
}
