//! What the first node says of all nodes, and of who uses a file.

use super::Members;
use crate::config::{FIRST_NODE, MemberEntry};
use crate::control::{ControlError, NodeReport, NodeState, NodesReport, PROGRAM_VERSION, Redundancy, WhoReport};
use crate::restore::Restored;
use manager::api::ManagerAdmin;
use std::collections::BTreeSet;
use types::{FileId, NodeId};

impl Members {
    /// All nodes, the first node too.
    ///
    /// # Errors
    /// [`ControlError::Unavailable`] if the maps cannot be read.
    pub fn nodes(&self) -> Result<NodesReport, ControlError> {
        let (config, now) = (self.maps_config()?, self.host.clock.now());
        let seats = self.seats.places();
        let leader = self.config.member.unwrap_or(FIRST_NODE);
        let at = |seat: NodeId| if seat == FIRST_NODE { leader } else { seat };
        let count = |node: NodeId| seats.values().filter(|seat| at(**seat) == node).count() as u16;
        // The maps name a voter before it is one.
        let group = self.keeper().voter().map(|voter| voter.voters());
        let is_in_group = |voter: &u64| group.as_ref().is_none_or(|group| group.contains_key(voter));
        let voters = config.voters.iter().filter(|(voter, _)| is_in_group(voter));
        let voters: BTreeSet<NodeId> = voters.map(|(_, node)| *node).collect();
        let first = NodeReport {
            id: FIRST_NODE,
            name: self.config.name.clone(),
            address: self.config.address.clone(),
            state: NodeState::Up { lease_left: self.config.lease },
            is_mounted: self.config.is_mounted,
            manager_count: count(FIRST_NODE),
            takes_managers: true,
            is_voter: voters.contains(&FIRST_NODE),
            is_draining: config.draining.contains_key(&FIRST_NODE),
            program: PROGRAM_VERSION.into(),
        };
        let places = config.stores().map(|store| (store, config.place(store))).collect();
        let sessions = self.sessions.lock();
        let report = |(node, member): (NodeId, MemberEntry)| {
            let session = sessions.of(node).and_then(|number| Some((number, sessions.live(number, now)?)));
            let since = || sessions.ended_at.get(&node).map(|at| now.saturating_sub(*at));
            let state = match session.and_then(|(number, _)| sessions.leases.left(number, now)) {
                Some(lease_left) => NodeState::Up { lease_left },
                // The lease of a session that is still listed has just run out.
                None => NodeState::Down { since: since().filter(|_| sessions.of(node).is_none()) },
            };
            let session = session.map(|(_, session)| session);
            NodeReport {
                id: node,
                name: member.name,
                address: member.address,
                state,
                is_mounted: session.is_some_and(|session| session.is_mounted),
                manager_count: count(node),
                takes_managers: session.is_some_and(|session| session.takes_managers),
                is_voter: voters.contains(&node),
                is_draining: config.draining.contains_key(&node),
                program: session.map(|session| session.program.clone()).unwrap_or_default(),
            }
        };
        let first = Some(first).filter(|_| self.config.member.is_none());
        let nodes = first.into_iter().chain(config.members.into_iter().map(report)).collect();
        let (away, redundancy) = (self.stripe.out_of_service().iter().collect(), self.redundancy());
        Ok(NodesReport { nodes, leader, places, away, spread: self.spread.lock().clone(), redundancy })
    }

    fn redundancy(&self) -> Redundancy {
        let Some(restored) = self.maintenance.done().redundancy.current(&self.stripe) else {
            return Redundancy::Unknown;
        };
        let Restored { lacking_count, lacking_bytes: bytes, time_left, .. } = restored;
        match lacking_count {
            None => Redundancy::Unknown,
            Some(0) if self.maintenance.will_compare() => Redundancy::Unknown,
            Some(0) => Redundancy::Whole,
            Some(_) => Redundancy::Lacks { bytes, time_left },
        }
    }

    /// Who uses a file: tokens, locks, and what waits for them. Changes nothing.
    ///
    /// # Errors
    /// [`ControlError::Unavailable`] if the file's manager cannot be asked now.
    pub async fn who(&self, file: FileId) -> Result<WhoReport, ControlError> {
        let config = self.maps_config()?;
        let manager = config.managers.owner_of(file);
        let unavailable = |why: String| ControlError::Unavailable(format!("{manager}: {why}: try again"));
        let seat = self.seats.all().get(usize::from(manager.raw()));
        let seat = seat.ok_or_else(|| unavailable("there is no such manager".into()))?;
        let tokens = seat.file_use(file).await.map_err(|e| unavailable(e.to_string()))?;
        let place = self.seats.places().get(&manager).copied().unwrap_or(FIRST_NODE);
        let members = config.members.into_iter().map(|(node, member)| (node, member.name));
        let names = members.chain([(FIRST_NODE, self.config.name.clone())]).collect();
        Ok(WhoReport { manager, place, tokens, locks: self.locks.on_file(file), names })
    }
}
