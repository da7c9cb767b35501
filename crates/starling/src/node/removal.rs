//! `starling node drain` and `starling node remove`, and the answers to them in the first node's
//! process.

use crate::args::{NodeDrain, NodeRemove};
use crate::control::Request;
use crate::node::ask_first;
use crate::{say, size, usage};
use cluster::config::DrainRate;
use cluster::removal::{Removal, RemovalError};
use cluster::spread::Spread;
use serde_json::{Value, json};
use std::process::ExitCode;
use std::time::Duration;

/// How long the command says nothing.
const QUIET_TIME_MAX: Duration = Duration::from_secs(2);

/// Removes a node. The answer for the command.
pub async fn remove(spread: &Spread, name: &str, how: Removal) -> Result<Value, RemovalError> {
    let stores = spread.remove_node(name, how).await?;
    let stores: Vec<u16> = stores.iter().map(|store| store.raw()).collect();
    Ok(json!({ "removed": name, "made_anew": stores }))
}

/// Has a node drain, or not. The answer for the command.
pub async fn drain(spread: &Spread, name: &str, rate: Option<u64>, accepts_risk: bool) -> Result<Value, RemovalError> {
    spread.drain_node(name, rate.map(DrainRate), accepts_risk).await?;
    let rate_bytes = rate.filter(|rate| *rate > 0);
    Ok(json!({ "node": name, "drains": rate.is_some(), "rate_bytes_per_second": rate_bytes }))
}

/// `starling node drain`.
pub async fn run_drain(args: NodeDrain) -> anyhow::Result<ExitCode> {
    let NodeDrain { name, data, rate, stop, accept_risk, json } = args;
    let rate = rate.as_deref().map(size::parse).transpose().map_err(|e| usage(format!("--rate: {e}")))?;
    let rate = (!stop).then_some(rate.unwrap_or(0));
    let answer = ask_first(&data, Request::DrainNode { name: name.clone(), rate, accepts_risk: accept_risk }).await?;
    let data = data.display();
    say(&match (json, stop) {
        (true, _) => serde_json::to_string_pretty(&answer)?,
        (false, true) => format!("node {name} drains no more"),
        (false, false) => {
            format!(
                "node {name} drains: its stores and managers move to the others; `starling nodes --data {data}` says how far"
            )
        }
    });
    Ok(ExitCode::SUCCESS)
}

/// `starling node remove`.
pub async fn run(args: NodeRemove) -> anyhow::Result<ExitCode> {
    let NodeRemove { name, data, dead, accept_loss, json } = args;
    let request = Request::RemoveNode { name: name.clone(), is_dead: dead, accepts_loss: accept_loss };
    let mut answer = std::pin::pin!(ask_first(&data, request));
    let answer = match tokio::time::timeout(QUIET_TIME_MAX, &mut answer).await {
        Ok(answer) => answer?,
        Err(_) => {
            eprintln!(
                "waiting for other changes of the places of stores, and until all nodes know of this one: some fifteen seconds"
            );
            answer.await?
        }
    };
    if json {
        say(&serde_json::to_string_pretty(&answer)?);
        return Ok(ExitCode::SUCCESS);
    }
    let stores = answer["made_anew"].as_array().into_iter().flatten().filter_map(Value::as_u64);
    let stores: Vec<String> = stores.map(|store| format!("store-{store}")).collect();
    say(&match stores.is_empty() {
        true => format!("node {name} is removed"),
        false => {
            let data = data.display();
            format!(
                "node {name} is removed. {} is made anew, and filled from the others: `starling nodes --data {data}` says how far",
                stores.join(", ")
            )
        }
    });
    Ok(ExitCode::SUCCESS)
}
