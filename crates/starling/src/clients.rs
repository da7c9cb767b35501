//! `starling home clients` and `starling home turn-away`, and the answers to them in the serving
//! process.

use crate::control::{self, Request, ask_from, not_here};
use crate::usage;
use home::Home;
use serde_json::{Value, json};
use std::path::Path;
use std::process::ExitCode;
use tokio::sync::mpsc;
use types::BoxFuture;

/// Answers commands about a home's clients.
pub struct Clients(pub Home);

impl control::Served for Clients {
    fn answer(&self, request: Request, _: mpsc::Sender<Value>) -> BoxFuture<Result<Value, String>> {
        let home = self.0.clone();
        Box::pin(async move {
            match request {
                Request::Clients => Ok(home.clients().iter().map(about).collect()),
                Request::TurnAway { number } => match home.turn_away(number).await {
                    Ok(true) => Ok(json!({})),
                    Ok(false) => Err(format!("there is no client {number}: `starling home clients` lists them")),
                    Err(e) => Err(format!("client {number} is turned away, but not yet for good: {e}")),
                },
                _ => not_here(),
            }
        })
    }
}

fn about(client: &home::clients::Served) -> Value {
    let key: String = client.key.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let volumes = client.volumes.iter().map(|(name, user)| json!({ "volume": name, "user": user.uid }));
    json!({
        "client": client.number,
        "name": client.name,
        "key": key,
        "volumes": volumes.collect::<Vec<_>>(),
        "connected": client.is_attached,
        "turned_away": client.is_turned_away,
    })
}

async fn ask(data: &Path, request: Request) -> anyhow::Result<Value> {
    let answer = ask_from(data, request).await?;
    answer.ok_or_else(|| usage(format!("no home serves from {}: start it with `starling home serve`", data.display())))
}

/// `starling home clients`.
pub async fn list(data: &Path, as_json: bool) -> anyhow::Result<ExitCode> {
    let all = ask(data, Request::Clients).await?;
    if as_json {
        println!("{}", serde_json::to_string_pretty(&all)?);
        return Ok(ExitCode::SUCCESS);
    }
    let all = all.as_array().cloned().unwrap_or_default();
    if all.is_empty() {
        println!("no clients: `starling invite` lets one in");
    }
    all.iter().for_each(|one| println!("{}", line(one)));
    Ok(ExitCode::SUCCESS)
}

fn line(one: &Value) -> String {
    let volumes = one["volumes"].as_array().into_iter().flatten();
    let volumes = volumes.map(|v| format!("{} as user {}", v["volume"].as_str().unwrap_or("?"), v["user"]));
    let state = match (one["turned_away"] == json!(true), one["connected"] == json!(true)) {
        (true, _) => "turned away",
        (false, true) => "connected",
        (false, false) => "away",
    };
    let name = one["name"].as_str().filter(|name| !name.is_empty()).unwrap_or("-");
    let key = one["key"].as_str().unwrap_or("?");
    let number = one["client"].as_u64().unwrap_or(0);
    format!("{number:>4}  {state:<11}  {name}  key {key}  {}", volumes.collect::<Vec<_>>().join(", "))
}

/// `starling home turn-away`.
pub async fn turn_away(data: &Path, number: u32) -> anyhow::Result<ExitCode> {
    ask(data, Request::TurnAway { number }).await?;
    println!("client {number} is turned away until it accepts another invitation");
    Ok(ExitCode::SUCCESS)
}
