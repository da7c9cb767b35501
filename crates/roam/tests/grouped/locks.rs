//! The cost of a lock file under delegations. Six clients take the lock in turns by linking to its
//! name, as in the lock benchmark of Zhao and Figueiredo (section 5.1.2). The test counts all their
//! requests, and all pushes that they get.

use crate::rig::Rig;
use crate::rig::session::{Op, find, perform};
use host::Clock;
use parking_lot::Mutex;
use roam::{Client, Consistency};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use types::FsError;
use vfs::fs::FileSystem;

const CLIENT_COUNT: usize = 6;
const DELAY: Duration = Duration::from_millis(20);
const HOLD: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_secs(1);
/// Number of times that each client takes the lock.
const TIMES: usize = 10;

#[derive(Default)]
struct Seen {
    /// The client that has the lock.
    inside: Option<usize>,
    /// The clients that had it, in order.
    taken: Vec<usize>,
}

/// Takes the lock by its name as a kernel does for an application: it looks each name up before it
/// does anything with it.
async fn compete(client: Client, clock: Arc<dyn Clock>, number: usize, seen: Arc<Mutex<Seen>>) {
    let own = format!("/client-{number}");
    perform(&client, &Op::Make(own.clone(), 0o644)).await.expect("made");
    let mut taken = 0;
    while taken < TIMES {
        find(&client, &own).await.expect("its own");
        let tried = match find(&client, "/lock").await {
            Ok(_) => Err(FsError::Exists),
            Err(FsError::NotFound) => perform(&client, &Op::Link(own.clone(), "/lock".into())).await,
            Err(error) => Err(error),
        };
        if tried.is_ok() {
            let other = seen.lock().inside.replace(number);
            assert_eq!(other, None, "another client has the lock");
            seen.lock().taken.push(number);
            clock.sleep(HOLD).await;
            seen.lock().inside = None;
            perform(&client, &Op::Unlink("/lock".into())).await.expect("it is there");
            taken += 1;
        } else {
            assert_eq!(tried.err(), Some(FsError::Exists));
            let id = find(&client, &own).await.expect("its own file");
            client.getattr(id).await.expect("its own file");
        }
        clock.sleep(PAUSE).await;
    }
}

/// With attribute polling, each time that a client has the lock takes 170 calls
/// (docs/performance.md). This takes a tenth of them.
#[test]
fn a_lock_that_goes_from_client_to_client_takes_a_tenth_of_the_calls_of_polling() {
    let rig = Rig::new(1);
    let seen: Arc<Mutex<Seen>> = Arc::default();
    let mut clients = Vec::new();
    for key in 0..CLIENT_COUNT {
        let (client, network, disk, machine) = rig.new_client(key as u8 + 1, DELAY);
        client.set(|settings| settings.consistency = Consistency::Strong);
        clients.push((client, network, disk, machine));
    }
    rig.sim.run_for(Duration::from_secs(5));
    let calls = || clients.iter().map(|(client, ..)| client.consistency_calls()).sum::<u64>();
    let before = calls();
    clients.iter().for_each(|(_, network, ..)| network.kinds.lock().clear());
    for (number, (client, _, _, machine)) in clients.iter().enumerate() {
        drop(machine.run(compete(client.clone(), machine.host().clock, number, seen.clone())));
    }
    let all = CLIENT_COUNT * TIMES;
    while seen.lock().taken.len() < all {
        rig.sim.run_for(Duration::from_secs(10));
        assert!(rig.sim.now() < Duration::from_secs(3600), "the lock is not handed over: {:?}", seen.lock().taken);
    }
    let calls = (calls() - before) as f64 / all as f64;
    let mut kinds: BTreeMap<String, f64> = BTreeMap::new();
    for (_, network, ..) in &clients {
        for (kind, count) in &*network.kinds.lock() {
            *kinds.entry(kind.clone()).or_default() += *count as f64 / all as f64;
        }
    }
    println!("{calls:.1} calls each time, of {kinds:.1?}");
    let taken = seen.lock().taken.clone();
    let first_done = (0..CLIENT_COUNT).filter_map(|number| {
        taken.iter().enumerate().filter(|(_, by)| **by == number).nth(TIMES - 1).map(|(at, _)| at)
    });
    let until = &taken[..=first_done.min().expect("a client that is done")];
    let least = (0..CLIENT_COUNT).map(|number| until.iter().filter(|by| **by == number).count()).min();
    println!("{taken:?}");
    assert!(least >= Some(TIMES / 2), "{least:?} of {TIMES}: {taken:?}");
    assert!(calls <= 17.0, "{calls} calls each time");
}
