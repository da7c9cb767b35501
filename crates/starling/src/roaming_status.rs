//! What `starling status` prints of a mount that roams.

use crate::size::show;
use serde_json::{Value, json};
use std::time::Duration;

/// A time in words, in the largest unit that fits.
pub fn age(seconds: &Value) -> String {
    match seconds.as_i64().unwrap_or(0) {
        s if s < 120 => format!("{s} s"),
        s if s < 7200 => format!("{} min", s / 60),
        s if s < 172_800 => format!("{} h", s / 3600),
        s => format!("{} days", s / 86_400),
    }
}

/// The seconds that work still takes: `0` only when there is none.
pub fn seconds_left(time: Duration) -> u64 {
    time.as_secs_f64().ceil() as u64
}

/// What `status` says of a full cache.
fn fullness(cache: &Value) -> Vec<String> {
    let is = |field: &str| cache[field] == json!(true);
    let beyond = cache["beyond"].as_u64().filter(|beyond| *beyond > 0 && !is("writers_wait"));
    let all = [
        is("writers_wait").then(|| "full, writers wait for the home".to_string()),
        beyond.map(|beyond| format!("{} beyond its maximum: changes that are not home yet", show(beyond))),
        is("disk_is_full").then(|| "its disk is full: make room there".to_string()),
        is("log_has_failed")
            .then(|| "cannot be written any more: check its disk, then unmount and mount again".to_string()),
    ];
    all.into_iter().flatten().collect()
}

/// `starling status` of a mount that roams.
pub fn show_status(s: &Value) {
    let bytes = |v: &Value| v.as_u64().map_or("?".to_string(), show);
    let addresses: Vec<&str> = s["home"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    println!("home          {}", addresses.join(", "));
    for one in s["volumes"].as_array().into_iter().flatten() {
        println!(
            "volume        {}: {}, {} pending, {} conflicts",
            one["volume"].as_str().unwrap_or("?"),
            one["state"].as_str().unwrap_or("?"),
            one["pending"]["operations"],
            one["conflicts"]
        );
    }
    println!("link          {}", s["state"].as_str().unwrap_or("?"));
    if let Some(why) = s["turned_away"].as_str() {
        println!("turned away   {why}");
    }
    let pending = &s["pending"];
    println!("pending       {} operations, about {}", pending["operations"], bytes(&pending["bytes"]));
    if let Some(why) = pending["held_up"].as_str() {
        println!("held up       {why}: the first operation, and so all others; it is tried again");
    }
    if let Some(time) = pending["held_back_s"].as_u64() {
        println!("held back     programs read over the slow link: some goes home in {}", age(&time.into()));
    }
    let saved = &s["saved"];
    println!(
        "saved         {} of {} operations need not go home, about {}; the home had {} of the rest already",
        saved["operations"],
        saved["logged"],
        bytes(&saved["bytes"]),
        bytes(&saved["found_at_home"])
    );
    println!("conflicts     {}", s["conflicts"]);
    let cache = &s["cache"];
    println!(
        "cache         {} files known, of at most {}; {} of their bytes, of at most {}",
        cache["files"],
        cache["files_max"],
        bytes(&cache["bytes"]),
        bytes(&cache["bytes_max"])
    );
    fullness(cache).into_iter().for_each(|text| println!("cache         {text}"));
    println!("hoarded       {} paths", s["hoarded"]);
    let text = |field: &str| s[field].as_str().unwrap_or("?").to_string();
    println!("reads         {}", text("reads"));
    let [consistency, writes, unit, durability] = ["consistency", "writes", "unit", "durability"].map(text);
    println!("behaviour     consistency {consistency}, writes {writes}, unit {unit}, durability {durability}");
    println!(
        "rate          {}/s up, {}/s down, as measured so far",
        bytes(&s["rate"]["up"]),
        bytes(&s["rate"]["down"])
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_work_that_is_done_takes_no_time() {
        let left = [0, 1, 999, 1000, 1001, 2000].map(|millis| seconds_left(Duration::from_millis(millis)));
        assert_eq!(left, [0, 1, 1, 1, 2, 2]);
    }

    #[test]
    fn what_is_said_of_a_full_cache_tells_what_to_do() {
        let cache = |beyond: u64, waits: bool, full: bool, failed: bool| {
            fullness(&json!({
                "beyond": beyond,
                "writers_wait": waits,
                "disk_is_full": full,
                "log_has_failed": failed,
            }))
        };
        assert_eq!(cache(0, false, false, false), Vec::<String>::new());
        assert_eq!(cache(7, true, false, false), ["full, writers wait for the home"]);
        assert_eq!(cache(1 << 20, false, false, false), ["1.0 MiB beyond its maximum: changes that are not home yet"]);
        assert!(cache(0, false, true, true).iter().zip(["make room", "mount"]).all(|(text, told)| text.contains(told)));
    }
}
