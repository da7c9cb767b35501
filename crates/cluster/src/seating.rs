//! Which node serves which manager, as members hear it.

use crate::config::KnownNode;
use types::codec::{DecodeError, Put, Reader};
use types::{ManagerId, NodeId};

/// Who serves a manager.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Seated {
    /// The manager's term: another one after each move.
    pub term: u64,
    /// The node that serves it; `None`: the first node.
    pub at: Option<KnownNode>,
}

/// Which node serves which manager.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Seating {
    /// Changes with each change of it. Never 0.
    pub version: u64,
    /// By the managers' numbers.
    pub managers: Vec<Seated>,
}

/// Managers that move now. They forget what clients hold, so each client must say it again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reseating {
    /// The term that they begin.
    pub term: u64,
    /// The managers.
    pub managers: Vec<ManagerId>,
}

/// Bytes of an encoded [`Seated`], at least.
const SEATED_LEN_MIN: usize = 8 + 1;

impl Seated {
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.term);
        out.put_u8(self.at.is_some().into());
        if let Some(KnownNode { node, address, fingerprint }) = &self.at {
            out.put_u16(node.raw());
            out.put_blob(address.as_bytes());
            out.extend_from_slice(fingerprint);
        }
    }

    fn decode(r: &mut Reader<'_>) -> Result<Seated, DecodeError> {
        let term = r.u64("term")?;
        let at = match r.u8("seat")? {
            0 => None,
            1 => {
                let node = NodeId::new(r.u16("node")?);
                let address = String::from_utf8(r.blob("node address")?.to_vec());
                let address = address.map_err(|_| DecodeError::Invalid("node address"))?;
                let mut fingerprint = [0; 32];
                fingerprint.copy_from_slice(r.take(32, "fingerprint")?);
                Some(KnownNode { node, address, fingerprint })
            }
            _ => return Err(DecodeError::Invalid("seat")),
        };
        Ok(Seated { term, at })
    }
}

impl Seating {
    /// Appends the encoding.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.version);
        out.put_u32(self.managers.len() as u32);
        self.managers.iter().for_each(|seated| seated.encode(out));
    }

    /// Reads what [`encode`](Self::encode) wrote.
    pub fn decode(r: &mut Reader<'_>) -> Result<Seating, DecodeError> {
        let version = r.u64("seating version")?;
        let count = r.count(SEATED_LEN_MIN, "managers")?;
        Ok(Seating { version, managers: (0..count).map(|_| Seated::decode(r)).collect::<Result<_, _>>()? })
    }
}

impl Reseating {
    /// Appends the encoding.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.term);
        out.put_u32(self.managers.len() as u32);
        self.managers.iter().for_each(|manager| out.put_u16(manager.raw()));
    }

    /// Reads what [`encode`](Self::encode) wrote.
    pub fn decode(r: &mut Reader<'_>) -> Result<Reseating, DecodeError> {
        let term = r.u64("term")?;
        let count = r.count(2, "managers")?;
        let managers = (0..count).map(|_| Ok(ManagerId::new(r.u16("manager")?))).collect::<Result<_, DecodeError>>()?;
        Ok(Reseating { term, managers })
    }
}
