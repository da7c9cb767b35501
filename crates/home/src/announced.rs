//! Announcements: operations that are about to be done, in a log of their own.
//!
//! A home announces operations before it does them. After a crash, their results count as done by
//! the client that asked
//! ([`Exported::finish_operations`](crate::exported::Exported::finish_operations)). The home's
//! records of what it has done wait for the file systems behind ([`crate::ledger`]). Announcements
//! must not wait. They stay until the home durably knows how the operations ended.

use crate::state::{APPLYING_COUNT_MAX, APPLYING_LEN_MAX, ClientKey};
use roam_proto::codec::Wire;
use roam_proto::message::Sent;
use roam_proto::operation::Operation;
use roam_proto::wire_struct;
use std::collections::BTreeMap;
use types::codec::DecodeError;

/// A record: operations of a client that are about to be done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Announcement {
    /// The client's key.
    pub(crate) key: ClientKey,
    /// The volume.
    pub(crate) volume: String,
    /// The log of the client that gave the operations their numbers.
    pub(crate) incarnation: u64,
    /// The home durably knows how operations up to this one ended.
    pub(crate) through: u64,
    /// The operations, with their numbers.
    pub(crate) operations: Vec<(u64, Operation)>,
}
wire_struct!(Announcement { key, volume, incarnation, through, operations });

/// Announced operations of one client's log.
#[derive(Default)]
struct Of {
    incarnation: u64,
    operations: BTreeMap<u64, One>,
}

/// An announced operation.
struct One {
    /// Its encoded length, in bytes.
    len: usize,
    operation: Operation,
}

/// All announcements that may still be needed. Pure.
#[derive(Default)]
pub(crate) struct Announced(BTreeMap<(ClientKey, String), Of>);

impl Announced {
    /// Rebuilds the announcements from a snapshot and the records since.
    pub(crate) fn found(snapshot: Option<&[u8]>, records: &[impl AsRef<[u8]>]) -> Result<Announced, DecodeError> {
        let mut announced = Announced::default();
        let before = snapshot.map_or(Ok(Vec::new()), Vec::<Announcement>::from_bytes)?;
        before.into_iter().for_each(|one| announced.add(one));
        for record in records {
            announced.add(Announcement::from_bytes(record.as_ref())?);
        }
        Ok(announced)
    }

    /// True if more operations of a client can be announced without forgetting any. The home
    /// durably knows how the client's operations up to `through` ended, so these need no room.
    pub(crate) fn have_room(&self, (key, volume): (ClientKey, &str), through: u64, more: &[Sent]) -> bool {
        let of = self.0.get(&(key, volume.to_string()));
        let before = of.into_iter().flat_map(|of| of.operations.range(through.saturating_add(1)..));
        let lens = before.map(|(_, announced)| announced.len);
        let (count, len) = lens.fold((0, 0), |(count, len), one| (count + 1, len + one));
        let more_len: usize = more.iter().map(|sent| sent.operation.to_bytes().len()).sum();
        count + more.len() <= APPLYING_COUNT_MAX && len + more_len <= APPLYING_LEN_MAX
    }

    /// Takes in an announcement. Operations for which there is no [room](Self::have_room) are
    /// forgotten.
    pub(crate) fn add(&mut self, Announcement { key, volume, incarnation, through, operations }: Announcement) {
        let of = self.0.entry((key, volume)).or_default();
        if of.incarnation != incarnation {
            *of = Of { incarnation, operations: BTreeMap::new() };
        }
        of.operations = of.operations.split_off(&through.saturating_add(1));
        let measured = |(seq, operation): (u64, Operation)| (seq, One { len: operation.to_bytes().len(), operation });
        of.operations.extend(operations.into_iter().map(measured));
        let mut len = 0;
        let fits = |(_, announced): &(&u64, &One)| {
            len += announced.len;
            len <= APPLYING_LEN_MAX
        };
        let count = of.operations.iter().take(APPLYING_COUNT_MAX).take_while(fits).count();
        let first_beyond = of.operations.keys().nth(count).copied();
        if let Some(first) = first_beyond {
            of.operations.split_off(&first);
        }
    }

    /// Returns all announcements, one for each client's log.
    pub(crate) fn all(&self) -> Vec<Announcement> {
        let all = self.0.iter().filter(|(_, of)| !of.operations.is_empty());
        all.map(|((key, volume), of)| Announcement {
            key: *key,
            volume: volume.clone(),
            incarnation: of.incarnation,
            through: 0,
            operations: of.operations.iter().map(|(seq, announced)| (*seq, announced.operation.clone())).collect(),
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::FileId;

    const KEY: ClientKey = [7; 32];

    fn removals(seqs: std::ops::Range<u64>) -> Vec<(u64, Operation)> {
        let remove =
            |seq| Operation::Remove { at: (FileId::ROOT, b"name".to_vec()), file: FileId::new(seq), last: true };
        seqs.map(|seq| (seq, remove(seq))).collect()
    }

    fn announcement(through: u64, operations: Vec<(u64, Operation)>) -> Announcement {
        Announcement { key: KEY, volume: "v".into(), incarnation: 1, through, operations }
    }

    fn sent(operations: &[(u64, Operation)]) -> Vec<Sent> {
        let sent = |(seq, operation): &(u64, Operation)| Sent {
            seq: *seq,
            bases: (0, 0),
            operation: operation.clone(),
            data: bytes::Bytes::new(),
        };
        operations.iter().map(sent).collect()
    }

    #[test]
    fn whoever_has_announced_too_much_has_no_room_until_that_is_durable() {
        let max = APPLYING_COUNT_MAX as u64;
        let mut announced = Announced::default();
        announced.add(announcement(0, removals(1..max)));
        let room =
            |announced: &Announced, through, seqs| announced.have_room((KEY, "v"), through, &sent(&removals(seqs)));
        assert!(room(&announced, 0, max..max + 1));
        assert!(!room(&announced, 0, max..max + 2));
        assert!(room(&announced, 1, max..max + 2));
        announced.add(announcement(max - 10, removals(max..max + 2)));
        let left: Vec<u64> = announced.all()[0].operations.iter().map(|(seq, _)| *seq).collect();
        assert_eq!(left, (max - 9..max + 2).collect::<Vec<_>>());
        // A snapshot and the records since give the same.
        let found = Announced::found(Some(&announced.all().to_bytes()), &[announcement(max, vec![]).to_bytes()]);
        assert_eq!(found.expect("found").all()[0].operations, removals(max + 1..max + 2));
    }
}
