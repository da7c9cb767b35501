//! The lock benchmark (Zhao and Figueiredo, section 5.1.2): six clients far from home compete for a
//! lock that is a file, each until it had the lock a given number of times.
//!
//! The machine's clock tells when each client had the lock, so it shows when two clients had it at
//! once. With `strong` and with sshfs, that is a failure. **Polling gives no mutual exclusion**,
//! not even with `--writes through`. A client makes a link locally and then at home, where another
//! client may already have the name. The second link is kept as a conflict, after its client was
//! told that it has the lock. There, this study counts and shows such cases.
//!
//! Attribute polling is what NFS without an attribute cache did in the paper. Here it is sshfs
//! without caches, where each look at a file is a call. `--consistency poll=1s` asks for all files
//! together, and is shown for comparison.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use linkem::Shape;
use serde::Serialize;

use super::found::{Figure, Found, Table};
use super::rig::Rig;
use super::sshfs::{Polling, Sshfs};
use super::wan::{DELAY, RATE};
use crate::report::{count, number};
use crate::run::{arguments, work};
use crate::scripted::Site;
use crate::work::Outcome;

const CLIENTS: usize = 6;
/// How often each client has the lock, for how long, and how long it pauses, in milliseconds.
const USE: [u64; 3] = [10, 10_000, 1_000];
const USE_QUICK: [u64; 3] = [3, 500, 50];
/// When the first client is done, the client that had the lock least often had it at least this
/// part as often.
const SHARE_MIN: f64 = 0.5;
/// The client that had the lock last gets it again at most as often as by chance.
const AGAIN_MAX: f64 = 1.0 / CLIENTS as f64;

/// How the clients share the folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
enum Who {
    Strong,
    Poll,
    Sshfs,
}

impl Who {
    const ALL: [Who; 3] = [Who::Strong, Who::Poll, Who::Sshfs];

    fn title(self) -> &'static str {
        match self {
            Who::Strong => "`--consistency strong`",
            Who::Poll => "`--consistency poll=1s --writes through`",
            Who::Sshfs => "sshfs without caches",
        }
    }
}

/// Six clients of one folder. The clients of sshfs share a link.
enum Clients {
    Starling(Vec<Rig>),
    Sshfs(Vec<Polling>),
}

impl Clients {
    fn new(site: &Site, who: Who) -> Result<Clients> {
        let fill = |_: &Path| Ok(());
        let arguments: &[&str] = match who {
            Who::Strong => &["--consistency", "strong"],
            Who::Poll => &["--consistency", "poll=1s", "--writes", "through"],
            Who::Sshfs => {
                let shape = Shape { rate: Some(RATE), delay: DELAY, ..Shape::default() };
                let server = Arc::new(Sshfs::serve(site, "locks-sshfs", shape, fill)?);
                return (0..CLIENTS).map(|client| server.polling(client)).collect::<Result<_>>().map(Clients::Sshfs);
            }
        };
        let first = Rig::mounted(site, &format!("locks-{}", who as usize), arguments, fill)?;
        let mut rigs = vec![first];
        for client in 1..CLIENTS {
            rigs.push(rigs[0].beside(&format!("client-{client}"), arguments)?);
        }
        rigs.iter().for_each(|rig| rig.shape_now(Some(RATE), DELAY));
        Ok(Clients::Starling(rigs))
    }

    /// The path of the folder at each client.
    fn paths(&self) -> Vec<PathBuf> {
        match self {
            Clients::Starling(rigs) => rigs.iter().map(|rig| rig.path("")).collect(),
            Clients::Sshfs(clients) => clients.iter().map(|client| client.path("")).collect(),
        }
    }

    /// Calls about validity: questions that the clients asked, and notices that they got.
    fn calls(&self) -> Result<u64> {
        match self {
            Clients::Starling(rigs) => rigs.iter().map(|rig| rig.number("/consistency_calls")).sum(),
            Clients::Sshfs(clients) => clients.iter().map(Polling::attribute_calls).sum(),
        }
    }
}

/// The time in which a client had the lock.
#[derive(Clone, Copy, Debug, Serialize)]
struct Hold {
    entered_s: f64,
    left_s: f64,
}

/// One competition.
#[derive(Debug, Serialize)]
struct Sample {
    who: Who,
    /// By client.
    holds: Vec<Vec<Hold>>,
    tries: f64,
    /// How often the lock was gone when it was given back.
    lost: f64,
    calls: u64,
}

impl Sample {
    fn take(site: &Site, who: Who, [times, hold, pause]: [u64; 3]) -> Result<Sample> {
        let clients = Clients::new(site, who)?;
        let before = clients.calls()?;
        let outcomes = std::thread::scope(|scope| {
            let compete = |(client, path): (usize, PathBuf)| {
                let numbers = [("client", client as u64), ("times", times), ("hold", hold), ("pause", pause)];
                scope.spawn(move || work(&arguments("lock", &path, &numbers)))
            };
            let threads: Vec<_> = clients.paths().into_iter().enumerate().map(compete).collect();
            let end = |thread: std::thread::ScopedJoinHandle<Result<Outcome>>| {
                thread.join().map_err(|_| anyhow!("a client failed"))?
            };
            threads.into_iter().map(end).collect::<Result<Vec<_>>>()
        })?;
        let calls = clients.calls()? - before;
        let sum = |name: &str| outcomes.iter().filter_map(|outcome| outcome.get(name)).sum();
        let (tries, lost) = (sum("tries"), sum("lost"));
        let holds = outcomes.iter().map(holds).collect::<Result<Vec<_>>>()?;
        let sample = Sample { who, holds, tries, lost, calls };
        eprintln!("locks: {}: {:.1} s, {calls} calls, {tries} tries", who.title(), sample.seconds());
        Ok(sample)
    }

    /// The holds of all clients, in order.
    fn in_order(&self) -> Vec<(usize, Hold)> {
        let of =
            |(client, holds): (usize, &Vec<Hold>)| holds.iter().map(move |hold| (client, *hold)).collect::<Vec<_>>();
        let mut all: Vec<_> = self.holds.iter().enumerate().flat_map(of).collect();
        all.sort_by(|(_, one), (_, other)| one.entered_s.total_cmp(&other.entered_s));
        all
    }

    /// How often a client got the lock while another had it.
    fn overlaps(&self) -> usize {
        let mut last_left = f64::NEG_INFINITY;
        let mut overlaps = 0;
        for (_, hold) in self.in_order() {
            overlaps += usize::from(hold.entered_s < last_left);
            last_left = last_left.max(hold.left_s);
        }
        overlaps
    }

    /// How often each client had had the lock when the first client got it for the last time.
    fn when_the_first_is_done(&self, times: u64) -> Vec<usize> {
        let last = |holds: &Vec<Hold>| holds.get(times as usize - 1).map(|hold| hold.entered_s);
        let first = self.holds.iter().filter_map(last).fold(f64::INFINITY, f64::min);
        self.holds.iter().map(|holds| holds.iter().filter(|hold| hold.entered_s <= first).count()).collect()
    }

    fn least_share(&self, times: u64) -> f64 {
        let shares = self.when_the_first_is_done(times);
        let [least, most] =
            [shares.iter().min(), shares.iter().max()].map(|share| share.map_or(f64::NAN, |n| *n as f64));
        least / most
    }

    /// How often the lock went to the client that had just had it.
    fn again(&self) -> usize {
        self.in_order().windows(2).filter(|pair| pair[0].0 == pair[1].0).count()
    }

    fn seconds(&self) -> f64 {
        let all = self.in_order();
        let end = all.iter().map(|(_, hold)| hold.left_s).fold(f64::NAN, f64::max);
        end - all.first().map_or(f64::NAN, |(_, hold)| hold.entered_s)
    }

    fn acquisitions(&self) -> usize {
        self.holds.iter().map(Vec::len).sum()
    }

    /// The failures of mutual exclusion and of the lock itself.
    fn failures(&self, times: u64) -> Vec<String> {
        let mut failures = Vec::new();
        let title = self.who.title();
        if self.who != Who::Poll && (self.overlaps() > 0 || self.lost > 0.0) {
            failures.push(format!("{title}: {} had the lock at once, {} lost it", self.overlaps(), self.lost));
        }
        for (client, holds) in self.holds.iter().enumerate().filter(|(_, holds)| holds.len() < times as usize) {
            failures.push(format!("{title}: client {client} had the lock {} times of {times}", holds.len()));
        }
        failures
    }
}

fn holds(outcome: &Outcome) -> Result<Vec<Hold>> {
    let at = |what: &str, number: usize| outcome.get(&format!("{what}_{number}_s")).copied();
    let entered = (0..).map_while(|number| at("entered", number).map(|entered_s| (number, entered_s)));
    let hold = |(number, entered_s)| Ok(Hold { entered_s, left_s: at("left", number).context("a lock was kept")? });
    entered.map(hold).collect()
}

/// Runs the study.
pub fn measure(site: &Site, quick: bool) -> Result<Found> {
    let how = if quick { USE_QUICK } else { USE };
    let [times, hold, pause] = how;
    let samples = Who::ALL.into_iter().map(|who| Sample::take(site, who, how)).collect::<Result<Vec<_>>>()?;
    let [strong, poll, sshfs] = samples.as_slice() else { return Err(anyhow!("three are compared")) };
    let calls = |sample: &Sample| sample.calls as f64;
    Ok(Found {
        conditions: format!(
            "{CLIENTS} clients compete for a lock until each had it {times} times: each links a file of its own to the \
             name of the lock (and looks at that file if this fails), keeps the lock for {hold} ms and removes it; it tries again {pause} ms after a try that \
             failed or a lock that it gave back. Each client has a link of {RATE} with {} ms each way, those of sshfs \
             share one. Calls are questions whether what is cached is so, and what the home says of that unasked \
             (Starling: changes, lists of directories, delegations and their renewal, recalls; sshfs: attributes).",
            DELAY.as_millis()
        ),
        figures: vec![
            Figure::at_most("had the lock at once, strong", strong.overlaps() as f64, 0.0, ""),
            Figure::at_least(
                "had it when the first client was done: the fewest times : the most, strong",
                strong.least_share(times),
                SHARE_MIN,
                "",
            )
            .ours(),
            Figure::at_most(
                "went to the client that had just had it, of all times, strong",
                strong.again() as f64 / strong.acquisitions() as f64,
                AGAIN_MAX,
                "",
            )
            .ours(),
            Figure::at_most(
                "calls, strong : attribute polling (sshfs without caches)",
                calls(strong) / calls(sshfs),
                0.1,
                "",
            ),
            Figure::beside("calls, strong : `poll=1s`", number(calls(strong) / calls(poll))),
        ],
        tables: vec![table(&samples, times)],
        failures: samples.iter().flat_map(|sample| sample.failures(times)).collect(),
        samples: serde_json::to_value(&samples).context("samples as JSON")?,
    })
}

fn table(samples: &[Sample], times: u64) -> Table {
    let mut table = Table::new(
        "The competition",
        [
            "",
            "seconds",
            "each had it when the first was done",
            "again the one before",
            "had it at once",
            "gone when given back",
            "tries",
            "calls",
            "calls per time that it was had",
        ],
    );
    for sample in samples {
        let mut shares = sample.when_the_first_is_done(times);
        shares.sort_unstable();
        table.row([
            sample.who.title().to_owned(),
            number(sample.seconds()),
            shares.iter().map(usize::to_string).collect::<Vec<_>>().join(", "),
            format!("{} of {}", sample.again(), sample.acquisitions()),
            sample.overlaps().to_string(),
            number(sample.lost),
            count(sample.tries as u64),
            count(sample.calls),
            number(sample.calls as f64 / sample.acquisitions() as f64),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(holds: &[&[(f64, f64)]]) -> Sample {
        let hold = |&(entered_s, left_s): &(f64, f64)| Hold { entered_s, left_s };
        let holds = holds.iter().map(|holds| holds.iter().map(hold).collect()).collect();
        Sample { who: Who::Strong, holds, tries: 0.0, lost: 0.0, calls: 0 }
    }

    #[test]
    fn two_who_have_the_lock_at_once_are_seen() {
        let apart = sample(&[&[(0.0, 1.0), (3.0, 4.0)], &[(1.5, 2.5)]]);
        assert_eq!((apart.overlaps(), apart.again()), (0, 0));
        assert!(apart.failures(1).is_empty());
        // A hold within another one must not hide a third.
        let together = sample(&[&[(0.0, 9.0)], &[(1.0, 2.0)], &[(3.0, 4.0)]]);
        assert_eq!(together.overlaps(), 2);
        assert_eq!(together.failures(1).len(), 1);
    }

    #[test]
    fn shares_are_those_when_the_first_is_done() {
        let unfair = sample(&[&[(0.0, 1.0), (2.0, 3.0)], &[(4.0, 5.0), (6.0, 7.0)]]);
        assert_eq!((unfair.when_the_first_is_done(2), unfair.least_share(2)), (vec![2, 0], 0.0));
        assert_eq!((unfair.again(), unfair.seconds()), (2, 7.0));
        let starved = sample(&[&[(0.0, 1.0), (2.0, 3.0)], &[(4.0, 5.0)]]);
        assert_eq!(starved.failures(2).len(), 1);
    }

    #[test]
    fn what_a_client_measured_is_read() {
        let outcome = [("entered_0_s", 1.0), ("left_0_s", 2.0), ("tries", 5.0)];
        let outcome: Outcome = outcome.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        assert_eq!(holds(&outcome).unwrap().len(), 1);
    }
}
