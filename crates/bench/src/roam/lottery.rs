//! Sharing a slow link (Huston and Honeyman, section 5.1): shares in proportion to tickets, and
//! small requests while replay saturates the link.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use host::sim::Sim;
use linkem::Rate;
use policy::lottery::TicketClass as Tickets;
use roam::schedule::{CHUNK_LEN_MAX, Direction, Schedule, TICKETS};
use roam_proto::channel::Class;
use serde_json::json;

use super::found::{Figure, Found, Table, largest};
use super::rig::{MODEM, MODEM_DELAY, Rig, Wire};
use crate::report::number;
use crate::run::{arguments, work};
use crate::scripted::Site;
use crate::work::{Outcome, Work};

/// Replay's tickets, of 100, in the rows of their Table 1.
const REPLAY_TICKETS: [u32; 7] = [0, 16, 20, 24, 31, 50, 100];
/// The time that a chunk takes on the link.
const CHUNK_TIME: Duration = Duration::from_millis(500);
/// Senders of each class.
const SENDERS: usize = 3;
/// Largest difference of a share from its tickets, in points.
const POINTS_MAX: f64 = 5.0;
/// The rate of the real link on which shares are measured.
const RATE: Rate = Rate::kbits_per_s(256);
const STORE_BYTES: u32 = 200_000;

/// Replay's share of the sent bytes, in percent, with this many tickets of 100, when both it and
/// demand always wait. In simulated time.
fn simulated_share(replay: u32, time: Duration) -> f64 {
    let sim = Sim::new(1995);
    let host = sim.machine("laptop").host();
    let schedule = Schedule::new(&host);
    let tickets = |tickets| Tickets { tickets, wait_max: None };
    schedule.set_tickets([tickets(100 - replay), tickets(0), tickets(replay)]);
    let counts = [Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0))];
    for (class, count) in [Class::Demand, Class::Replay].into_iter().zip(&counts) {
        for _ in 0..SENDERS {
            let (schedule, count, clock) = (schedule.clone(), count.clone(), host.clock.clone());
            host.tasks.spawn(Box::pin(async move {
                loop {
                    let _permit = schedule.admit(class, Direction::Up, CHUNK_LEN_MAX).await;
                    clock.sleep(CHUNK_TIME).await;
                    count.fetch_add(1, Ordering::Relaxed);
                }
            }));
        }
    }
    sim.run_for(time);
    let [demand, sent] = counts.map(|count| count.load(Ordering::Relaxed) as f64);
    100.0 * sent / (demand + sent)
}

/// Shares of tickets and of throughput, for each row of their table and for the tickets of mounts:
/// in simulated time, and over a link.
pub fn measure_shares(site: &Site, quick: bool) -> Result<Found> {
    let simulated = Duration::from_secs(if quick { 500 } else { 20_000 });
    let time = Duration::from_secs(if quick { 10 } else { 90 });
    let mut table = Table::new(
        "Replay's share",
        ["tickets of 100", "in simulated time", &format!("over {RATE}"), "Huston and Honeyman"],
    );
    let theirs = ["0.0", "16", "12", "26", "30", "43", "100"];
    let (mut off, mut off_link) = (Vec::new(), Vec::new());
    // Requests and acknowledgements, while nothing goes home.
    let alone = over_link(site, "manual", time)?;
    let asking = alone.up_bytes as f64 / alone.down_bytes as f64;
    let mut shares = Vec::new();
    for (tickets, theirs) in REPLAY_TICKETS.into_iter().zip(theirs) {
        let share = simulated_share(tickets, simulated);
        off.push((share - f64::from(tickets)).abs());
        let of = |share: f64| format!("{} %", number(share));
        let mut linked = "–".to_string();
        // A user who waits for a read has at least half of the link.
        if tickets <= roam::SHARE_MAX.into() {
            let wire = over_link(site, &format!("lottery={tickets}%"), time)?;
            let share = share_of(&wire, asking);
            eprintln!("shares: {tickets} tickets: {share}");
            off_link.push((share - f64::from(tickets)).abs());
            shares.push(json!({ "tickets": tickets, "share": share, "wire": wire }));
            linked = of(share);
        }
        table.row([tickets.to_string(), of(share), linked, format!("{theirs} %")]);
        shares.push(json!({ "tickets": tickets, "simulated": share }));
    }
    let [demand, _, replay] = TICKETS;
    let tickets = 100.0 * f64::from(replay.tickets) / f64::from(replay.tickets + demand.tickets);
    let wire = over_link(site, "lottery", time)?;
    let share = share_of(&wire, asking);
    off_link.push((share - tickets).abs());
    table.row([format!("{} (a mount's own)", number(tickets)), "–".into(), format!("{} %", number(share)), "–".into()]);
    shares.push(json!({ "tickets": tickets, "share": share, "wire": wire }));
    let figure = |title, off| Figure::at_most(title, largest(off), POINTS_MAX, " points");
    Ok(Found {
        conditions: format!(
            "In simulated time: the scheduler that mounts have, without ageing, {SENDERS} senders of each of demand \
             and replay that always wait, chunks of {} ms, {} s. Over a link: of {RATE} with {} ms each way, by \
             mounts with `--writes lottery=SHARE`, and ageing; stores of {STORE_BYTES} bytes go home while {SENDERS} \
             large files are read, {} s; the share is that of bytes in both directions, without those that go up while \
             nothing goes home ({} of each byte that comes down).",
            CHUNK_TIME.as_millis(),
            simulated.as_secs(),
            MODEM_DELAY.as_millis(),
            time.as_secs(),
            number(asking),
        ),
        figures: vec![
            figure(
                "shares of throughput and of tickets differ by, the most of all rows, in simulated time".into(),
                off,
            ),
            figure(format!("the same over {RATE}"), off_link),
        ],
        tables: vec![table],
        samples: json!(shares),
        ..Found::default()
    })
}

/// Makes stores wait, more of them than go home during the measurement.
fn fill_log(rig: &Rig, stores: u32) -> Result<()> {
    rig.set(&["--writes", "manual"])?;
    let numbers = [("files", stores.into()), ("bytes", STORE_BYTES.into())];
    work(&arguments("make-files", &rig.path("stores"), &numbers)).map(drop)
}

/// Replay's share of what a mount sends and fetches, in percent. Each fetched byte takes `asking`
/// bytes upwards, which are not replay's.
fn share_of(wire: &Wire, asking: f64) -> f64 {
    let sent = wire.up_bytes as f64 - asking * wire.down_bytes as f64;
    100.0 * sent / (sent + wire.down_bytes as f64)
}

/// The bytes that cross a real link while large files are read and stores go home.
fn over_link(site: &Site, writes: &str, time: Duration) -> Result<Wire> {
    let name = |reader| format!("large-{reader}");
    let fill = |source: &Path| {
        (0..SENDERS)
            .try_for_each(|reader| Work::WriteStream { file: source.join(name(reader)), mib: 8 }.run().map(drop))
    };
    let mut rig = Rig::mounted(site, "shares", &["--unit", "block"], fill)?;
    rig.connect("weak")?;
    fill_log(&rig, 60)?;
    rig.shape(Some(RATE), MODEM_DELAY)?;
    rig.set(&["--writes", writes])?;
    let files: Vec<PathBuf> = (0..SENDERS).map(|reader| rig.path(&name(reader))).collect();
    std::thread::scope(|scope| {
        // The reads do not complete: the mount ends under them.
        let read = |file: PathBuf| scope.spawn(move || work(&arguments("read-stream", &file, &[])));
        let readers: Vec<_> = files.into_iter().map(read).collect();
        // Both ends first learn the speed of the link.
        std::thread::sleep(time / 3);
        let before = rig.wire();
        std::thread::sleep(time);
        let wire = rig.wire().since(before);
        let early = readers.iter().any(|reader| reader.is_finished());
        rig.kill()?;
        for reader in readers {
            let end = reader.join().map_err(|_| anyhow::anyhow!("a reader failed"))?;
            ensure!(!early, "a large file was read too early: {end:?}");
        }
        Ok(wire)
    })
}

/// Requests over a slow link, alone and beside replay.
struct Asked {
    title: &'static str,
    idle: Outcome,
    busy: Outcome,
    /// The used part of the link's upwards capacity, in percent, beside replay.
    used: f64,
}

impl Asked {
    /// Lists folders that are not cached, and again while stores go home. The log must be full, and
    /// the link slow.
    fn measure(rig: &Rig, case: usize, title: &'static str, settle: Duration) -> Result<Asked> {
        let ask = |when: &str| work(&arguments("list-each", &rig.path(&format!("{when}-{case}")), &[]));
        let idle = ask("idle")?;
        rig.set(&["--writes", "lottery"])?;
        // Until chunks have the length that suits the link.
        std::thread::sleep(settle);
        let (before, asking) = (rig.wire(), Instant::now());
        let busy = ask("busy")?;
        let up = rig.wire().since(before).up_bytes as f64;
        ensure!(rig.number("/pending/operations")? > 0, "{title}: all was home before the questions were answered");
        let used = 100.0 * up / (asking.elapsed().as_secs_f64() * MODEM.get() as f64 / 8.0);
        eprintln!("interactive: {title}: {idle:?} {busy:?}");
        Ok(Asked { title, idle, busy, used })
    }

    /// The additional time beside replay.
    fn more(&self, name: &str) -> f64 {
        let value = |outcome: &Outcome| outcome.get(name).copied().unwrap_or(f64::NAN);
        value(&self.busy) - value(&self.idle)
    }
}

/// Small requests while replay saturates a slow link.
pub fn measure_interactive(site: &Site, quick: bool) -> Result<Found> {
    let (questions, settle) = if quick { (5, Duration::from_secs(5)) } else { (60, Duration::from_secs(45)) };
    let fill = |source: &Path| {
        for when in ["idle-0", "busy-0", "idle-1", "busy-1"] {
            for folder in 0..questions {
                let dir = source.join(when).join(format!("folder-{folder:03}"));
                fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
                fs::write(dir.join("file"), "x").with_context(|| format!("fill {}", dir.display()))?;
            }
        }
        Ok(())
    };
    let mut rig = Rig::mounted(site, "interactive", &[], fill)?;
    rig.connect("weak")?;
    fill_log(&rig, 20)?;
    rig.down()?;
    rig.shape(Some(MODEM), MODEM_DELAY)?;
    // The mount must not fetch ahead what is asked for.
    rig.mount(&["--writes", "manual", "--unit", "block"])?;
    rig.wait_attached(true)?;
    let slow = Asked::measure(&rig, 0, "a connection made over the slow link", settle)?;
    // The waiting changes, and more, go home over a fast link.
    rig.shape_now(None, Duration::ZERO);
    rig.send_all()?;
    rig.remove(&rig.path("stores"))?;
    rig.send_all()?;
    rig.connect("weak")?;
    fill_log(&rig, 20)?;
    rig.shape(Some(MODEM), MODEM_DELAY)?;
    let slowed = Asked::measure(&rig, 1, "a connection that was fast before", settle)?;
    let chunk_ms = CHUNK_TIME.as_secs_f64() * 1e3;
    let header = ["", "beside", "mean", "median", "99th percentile", "longest", "link used upwards"];
    let mut table = Table::new("Milliseconds", header);
    let mut figures = Vec::new();
    for asked in [&slow, &slowed] {
        let Asked { title, idle, busy, used } = asked;
        for (beside, outcome, used) in
            [("nothing", idle, "–".to_owned()), ("replay", busy, format!("{} %", number(*used)))]
        {
            let value = |name: &str| number(outcome.get(name).copied().unwrap_or(f64::NAN));
            let cells = ["mean_ms", "p50_ms", "p99_ms", "max_ms"].map(value);
            table.row([(*title).to_owned(), beside.to_owned()].into_iter().chain(cells).chain([used]));
        }
        let what = format!("{title}: a question waits longer by");
        figures.push(Figure::at_most(format!("{what}, in the mean"), asked.more("mean_ms"), chunk_ms, " ms"));
        figures.push(Figure::at_most(format!("{what}, the longest"), asked.more("max_ms"), chunk_ms, " ms"));
    }
    let samples = [&slow, &slowed]
        .map(|asked| json!({ "what": asked.title, "idle": asked.idle, "busy": asked.busy, "used": asked.used }));
    Ok(Found {
        conditions: format!(
            "{questions} folders that are not cached are listed one after the other, over {MODEM} with {} ms each way, \
             first with nothing else under way, then, {} s after that began, while stores of {STORE_BYTES} bytes go \
             home. A chunk is what takes {} ms.",
            MODEM_DELAY.as_millis(),
            settle.as_secs(),
            CHUNK_TIME.as_millis()
        ),
        figures,
        tables: vec![table],
        samples: json!(samples),
        ..Found::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simulated_shares_are_those_of_tickets() {
        assert_eq!(simulated_share(100, Duration::from_secs(100)), 100.0);
        assert!((simulated_share(50, Duration::from_secs(2000)) - 50.0).abs() < 5.0);
    }
}
