//! What `starling status` shows of a node that has joined.

use crate::node::lead::Elected;
use crate::node::run::ServedNode;
use crate::size;
use crate::{ask, core_report, kept};
use serde_json::{Value, json};
use std::sync::PoisonError;

/// What the first node shows, if it is in this process.
async fn of_elected(served: &ServedNode) -> Option<Value> {
    let elected = served.leader.as_ref()?.elected()?;
    let machine = elected.clone();
    let shown = elected.run(async move { show(&machine).await.ok_or_else(String::new) }).await;
    shown.ok()
}

async fn show(elected: &Elected) -> Option<Value> {
    let config = elected.machine.maps.config().ok()?;
    let place = |store| {
        let member = config.members.get(&config.place(store));
        member.map_or_else(|| "?".into(), |member| format!("at {}, {}", member.name, member.address))
    };
    let places: Vec<String> = config.stores().map(place).collect();
    Some(core_report::of_machine(&elected.machine, &places).await)
}

/// Everything that `status` shows.
pub async fn collect(served: &ServedNode) -> Value {
    let leads = of_elected(served).await;
    let config = served.first.config();
    let own = served.about.node();
    // What a store that has moved away left here is of no use.
    let is_here = |store| config.as_ref().is_none_or(|config| config.place(store) == own);
    let stores = served.rack.folders().await;
    let client = served.member.client().map(|client| client.status());
    let requests = match &*served.mount.lock().unwrap_or_else(PoisonError::into_inner) {
        Some(mount) => mount.requests(),
        None => Vec::new(),
    };
    let requests: serde_json::Map<String, Value> =
        requests.into_iter().map(|(name, count)| (name.to_string(), json!(count))).collect();
    json!({
        "file_system": served.about.file_system,
        "node": {
            "name": served.about.name,
            "first_node": served.first.addresses(),
            "in_session": served.member.trouble().is_none(),
            "trouble": served.member.trouble().map(|trouble| trouble.to_string()),
        },
        "stores": stores.into_iter().filter(|(store, ..)| is_here(*store)).map(|(store, folder, trouble)| json!({
            "store": store.raw(),
            "folder": folder,
            "trouble": trouble,
        })).collect::<Value>(),
        "space": client.as_ref().map(|c| json!({ "admitted_bytes": c.limit_bytes, "used_bytes": c.used_bytes })),
        "kept": kept::summary(&served.data),
        "read_only": client.as_ref().and_then(|c| c.read_only.map(|why| why.to_string())),
        "uncommitted_bytes": client.as_ref().map_or(0, |c| c.dirty_bytes + c.in_flight_bytes),
        "cache": client.as_ref().map(|c| json!({
            "hits": c.cache.hits,
            "misses": c.cache.misses,
            "inode_misses": c.inode_fetch_count,
            "clean_bytes": c.cache.clean_bytes,
            "pinned_bytes": c.cache.pinned_bytes,
            "inodes": c.inode_count,
        })),
        // While voters have elected this node: the file system, as the one that leads sees it.
        "leads": leads,
        "fuse_requests": requests,
        "messages": client.as_ref().map_or(0, |c| c.message_count),
        "frames_sent": link::frames::sent_count(),
    })
}

/// Shows it as lines.
pub fn show_status(s: &Value) {
    let text = |v: &Value| v.as_str().unwrap_or("?").to_string();
    let bytes = |v: &Value| v.as_u64().map_or("?".to_string(), size::show);
    let node = &s["node"];
    let first: Vec<_> = node["first_node"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    println!("file system   {}", text(&s["file_system"]));
    println!("node          {}, joined by way of {}", text(&node["name"]), first.join(", "));
    match node["trouble"].as_str() {
        Some(why) => {
            println!("NO SESSION    {why}; operations wait for one, two minutes at most, and then fail with EIO")
        }
        None => println!("session       up"),
    }
    if let Some(why) = s["read_only"].as_str() {
        println!("READ-ONLY     {why}; changes that were not synced cannot be: restart the mount");
    }
    kept::show_summary(&s["kept"]);
    println!("space         {} of {} used", bytes(&s["space"]["used_bytes"]), bytes(&s["space"]["admitted_bytes"]));
    println!("uncommitted   {}", bytes(&s["uncommitted_bytes"]));
    let cache = &s["cache"];
    println!(
        "cache         {} of data: {} hits, {} from stores; {} inodes, {} from managers",
        bytes(&cache["clean_bytes"]),
        cache["hits"],
        cache["misses"],
        cache["inodes"],
        cache["inode_misses"]
    );
    for store in s["stores"].as_array().into_iter().flatten() {
        let trouble = store["trouble"].as_str().map(|why| format!(": {why}")).unwrap_or_default();
        println!("store-{}       {}{trouble}", store["store"], text(&store["folder"]));
    }
    if !s["leads"].is_null() {
        println!("\nThis node leads the file system:");
        ask::show_core(&s["leads"]);
    }
}
