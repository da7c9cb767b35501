//! The cost of a new connection until its first answer: with and without a ticket, and with 0-RTT,
//! which mounts do not use; beside revalidation over it.

use anyhow::{Context, Result, anyhow};
use linkem::{Direction, Rate, Relay, Settings, Shape};
use quic::Identity;
use quic::early::Early;
use serde_json::json;
use std::time::Duration;

use super::found::{Found, Table};
use crate::report::number;
use crate::scripted::Site;

/// Each way, as in the study of revalidation.
const DELAY: Duration = Duration::from_millis(20);

/// The ways to reconnect, in an order in which each leaves what the next one needs.
const WAYS: [(&str, bool); 3] = [("certificates", false), ("a ticket", false), ("a ticket, and 0-RTT", true)];

/// Measures each way over each link.
pub fn measure(site: &Site, quick: bool) -> Result<Found> {
    let rates = [Rate::mbits_per_s(10), Rate::mbits_per_s(2), Rate::kbits_per_s(64), Rate::bits_per_s(9600)];
    let rates = if quick { &rates[..2] } else { &rates[..] };
    let titles = ["link", "with", "seconds", "bytes", "of them up"];
    let mut table = Table::new("Until the first answer", titles);
    let mut samples = Vec::new();
    for rate in rates {
        let folder = tempfile::tempdir_in(&site.root).context("a folder for keys")?;
        let identity = |name| Identity::load_or_make(folder.path(), name).context("a key");
        let early = Early::new(&identity("home")?, &identity("client")?).map_err(|error| anyhow!("{error}"))?;
        let shape = Shape { rate: Some(*rate), delay: DELAY, ..Shape::default() };
        let relay = Relay::start(([127, 0, 0, 1], 0).into(), early.address(), Settings::both(shape))?;
        let sent = || Direction::BOTH.map(|direction| relay.counters(direction).bytes);
        for (way, is_early) in WAYS {
            let before = sent();
            let took = early.come_back(relay.address(), is_early).map_err(|error| anyhow!("{rate}, {way}: {error}"))?;
            let [up, down] = [0, 1].map(|direction| sent()[direction] - before[direction]);
            eprintln!("handshakes: {rate}, {way}: {took:?}, {up} up, {down} down");
            let cells = [number(took.as_secs_f64()), (up + down).to_string(), up.to_string()];
            table.row([rate.to_string(), way.to_string()].into_iter().chain(cells));
            samples.push(
                json!({ "link": rate.to_string(), "with": way, "s": took.as_secs_f64(), "up": up, "down": down }),
            );
        }
    }
    Ok(Found {
        conditions: format!(
            "One connection each, with {} ms each way: a question of 64 bytes and its answer, by the same \
             configuration that homes and mounts have, but for 0-RTT. Bytes are those until the connection was \
             closed, with the headers of IP and UDP.",
            DELAY.as_millis()
        ),
        tables: vec![table],
        samples: json!(samples),
        ..Found::default()
    })
}
