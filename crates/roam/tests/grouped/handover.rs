//! The cost of handing a delegation over, in messages and in simulated time: two clients append to
//! one file, one record after the other.

use crate::rig::Rig;
use crate::rig::session::{How, Op, find, perform, read_all};
use host::Clock;
use parking_lot::Mutex;
use roam::{Client, Consistency};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const DELAY: Duration = Duration::from_millis(1);
const RECORD_COUNT: usize = 40;

async fn append(client: Client, clock: Arc<dyn Clock>, number: usize, ended: Arc<Mutex<Vec<Duration>>>) {
    for record in 0..RECORD_COUNT {
        let bytes = format!("{number} {record}\n").into_bytes();
        perform(&client, &Op::Write("/log".into(), How::Append, bytes)).await.expect("appended");
    }
    ended.lock().push(clock.now());
}

#[test]
fn regression_handing_a_delegation_over_takes_no_time_but_that_of_its_messages() {
    let rig = Rig::new(1);
    let ended = Arc::<Mutex<Vec<Duration>>>::default();
    let clients: Vec<_> = (0..2).map(|key| rig.new_client(key as u8 + 1, DELAY)).collect();
    for (client, ..) in &clients {
        client.set(|settings| settings.consistency = Consistency::Strong);
    }
    rig.sim.run_for(Duration::from_secs(5));
    rig.sim.block_on(perform(&clients[0].0, &Op::Make("/log".into(), 0o644))).expect("made");
    rig.sim.run_for(Duration::from_secs(5));
    clients.iter().for_each(|(_, network, ..)| network.kinds.lock().clear());
    let begun = rig.sim.now();
    for (number, (client, _, _, machine)) in clients.iter().enumerate() {
        drop(machine.run(append(client.clone(), machine.host().clock, number, ended.clone())));
    }
    rig.sim.run_for(Duration::from_secs(120));
    let took = ended.lock().iter().max().map(|last| *last - begun);
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    for (_, network, ..) in &clients {
        for (kind, count) in &*network.kinds.lock() {
            *kinds.entry(kind.clone()).or_default() += *count as usize;
        }
    }
    let bytes = rig.sim.block_on(async { read_all(&clients[0].0, find(&clients[0].0, "/log").await?).await });
    let text = String::from_utf8(bytes.expect("read")).expect("text");
    let who: String = text.lines().map(|line| &line[..1]).collect();
    let turns = who.as_bytes().windows(2).filter(|pair| pair[0] != pair[1]).count();
    println!("{took:?}, {turns} turns {who}, {kinds:?}");
    assert_eq!(ended.lock().len(), 2);
    assert_eq!(text.lines().count(), 2 * RECORD_COUNT);
    assert!(turns >= RECORD_COUNT / 2, "one client waited for most of the other's work: {who}");
    assert_eq!(kinds["Recall"], kinds["Returned"], "a turn takes two messages");
    // A wait for a timer in each turn would take ten times as long.
    assert!(took < Some(Duration::from_secs(2)), "{took:?}");
}
