//! How a mount behaves, as its user asks for it; all but the volume may change while it is mounted.

use crate::connection::schedule::TICKETS;
use crate::connection::silence::SILENCE_BELIEVED;
use crate::live::LinkState;
use policy::defaults::ROAMING_CACHE_BYTES;
use policy::lottery::Class as Tickets;
pub use policy::write_back::IDLE_WAIT_MAX;
use policy::write_back::{DELAY, Terms};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// When what is cached is believed (docs/semantics.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consistency {
    /// Until the home says that others have changed it.
    Callbacks,
    /// Until the home is asked what has changed: at least this often, more often while it does
    /// (Zhao and Figueiredo, section 4.2.1).
    Poll(Duration),
    /// As long as the home has promised that nobody changes it: what anybody has written, everybody
    /// sees (Zhao and Figueiredo, section 4.3). What the home has not promised is waited for, and
    /// cannot be had when it is out of reach.
    Strong,
    /// Always: what was seen once stays as it is.
    None,
}

/// When what was done here goes home, where the home is far (Huston and Honeyman, section 5; Zhao
/// and Figueiredo, section 4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writes {
    /// When the link was not used otherwise for a moment.
    Idle,
    /// At once, in a lottery with what is fetched.
    Lottery,
    /// The same, in which what goes home wins so many of a hundred draws against what somebody
    /// waits for; at most [`SHARE_MAX`].
    Share(u8),
    /// When it is so old.
    Delayed(Duration),
    /// At once, before anything is fetched ahead.
    Preemptive,
    /// Before it is answered, even where the home is far.
    Through,
    /// When somebody asks for it.
    Manual,
}

/// How much of a file is fetched when it is opened (Zhao and Figueiredo, section 4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// All of it, if that takes no more than some seconds.
    Auto,
    /// All of it.
    File,
    /// What is read.
    Block,
}

/// How the cache is found to be valid after the home was out of reach (Mummert and Satyanarayanan,
/// section 5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validation {
    /// By the volume's stamp, in one question.
    Volume,
    /// File by file, so many in one question; for comparison.
    Files(usize),
}

/// Most of a hundred draws that what goes home may win: somebody waits for the others. More it
/// would not win either, since it asks for a place only when what it sent before is home.
pub const SHARE_MAX: u8 = 50;
/// So many tickets are one in a hundred, so that parts of one can be had.
const TICKETS_MORE: u32 = 6;

/// Files whose metadata a client caches; each takes up to 1 KiB of memory.
const CACHE_FILES: usize = 500_000;
/// Files that the Batched strategy asks for together.
const BATCHED: usize = 50;

/// When what was done is durable ([`COMMIT_TIME_MAX`](crate::COMMIT_TIME_MAX)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// After about a second, and when a program waits for it.
    #[default]
    Grouped,
    /// When it is answered, and what is in a file when that is closed.
    Always,
}

/// See the module's header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The volume's name.
    pub volume: String,
    /// As whom files of the home's user are shown here, user and group; `None`: as the home has
    /// them.
    pub owner: Option<(u32, u32)>,
    /// The state that the user has chosen; `None`: what the link is like decides.
    pub pinned: Option<LinkState>,
    /// When what is cached is believed.
    pub consistency: Consistency,
    /// When what was done here goes home.
    pub writes: Writes,
    /// How much is fetched.
    pub unit: Unit,
    /// How the cache is found to be valid again.
    pub validation: Validation,
    /// Bytes of files that may be cached. Where what is not home yet takes more, whoever writes
    /// waits for the home, if it can be reached, and otherwise it is kept beyond that.
    pub cache_bytes: u64,
    /// Files whose metadata the client may cache. Files that are open, hoarded, in a conflict or
    /// not home yet stay beyond that.
    pub cache_files: usize,
    /// Under `callbacks`, the home is asked whether it is there when something cached is used after
    /// so long a silence. Worlds choose it; users do not.
    pub silence_believed: Duration,
    /// When what was done is durable.
    pub durability: Durability,
    /// The log of the cache may grow by so many bytes before it begins again with a snapshot.
    /// Worlds choose it; users do not.
    pub log_len: u64,
}

impl Settings {
    /// What a mount begins with.
    pub fn new(volume: impl Into<String>) -> Settings {
        Settings {
            volume: volume.into(),
            owner: None,
            pinned: None,
            consistency: Consistency::Callbacks,
            writes: Writes::Lottery,
            unit: Unit::Auto,
            validation: Validation::Volume,
            cache_bytes: ROAMING_CACHE_BYTES,
            cache_files: CACHE_FILES,
            silence_believed: SILENCE_BELIEVED,
            durability: Durability::Grouped,
            log_len: record_log::LOG_LEN,
        }
    }
}

/// `90s`, `15m`, `12h`, `7d`.
pub fn parse_time(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a time: write a number with s, m, h or d");
    let seconds: u64 = match text.chars().next_back() {
        Some('s') => 1,
        Some('m') => 60,
        Some('h') => 3600,
        Some('d') => 86400,
        _ => return Err(wrong()),
    };
    let number: u64 = text[..text.len() - 1].trim().parse().map_err(|_| wrong())?;
    number.checked_mul(seconds).map(Duration::from_secs).ok_or_else(wrong)
}

/// `30%`.
fn parse_share(text: &str) -> Result<u8, String> {
    let share = text.strip_suffix('%').and_then(|number| number.trim().parse().ok());
    share.filter(|share| *share <= SHARE_MAX).ok_or_else(|| {
        format!("{text:?} is no share of a link: write lottery=30%, at most {SHARE_MAX}%, so that reading goes on")
    })
}

struct Shown(Duration);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_secs() {
            s if s > 0 && s.is_multiple_of(86_400) => write!(f, "{}d", s / 86_400),
            s if s > 0 && s.is_multiple_of(3600) => write!(f, "{}h", s / 3600),
            s if s > 0 && s.is_multiple_of(60) => write!(f, "{}m", s / 60),
            s => write!(f, "{s}s"),
        }
    }
}

impl FromStr for Consistency {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            None if text == "callbacks" => Ok(Consistency::Callbacks),
            None if text == "strong" => Ok(Consistency::Strong),
            None if text == "none" => Ok(Consistency::None),
            None if text == "poll" => Ok(Consistency::Poll(Duration::from_secs(30))),
            Some(("poll", time)) => match parse_time(time)? {
                Duration::ZERO => Err("poll=0s would ask all the time: write at least poll=1s".into()),
                time => Ok(Consistency::Poll(time)),
            },
            _ => Err(format!("{text:?} is no consistency: write callbacks, poll=30s, strong or none")),
        }
    }
}

impl fmt::Display for Consistency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Consistency::Callbacks => f.write_str("callbacks"),
            Consistency::Poll(time) => write!(f, "poll={}", Shown(*time)),
            Consistency::Strong => f.write_str("strong"),
            Consistency::None => f.write_str("none"),
        }
    }
}

impl FromStr for Writes {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text.split_once('=') {
            None if text == "idle" => Writes::Idle,
            None if text == "lottery" => Writes::Lottery,
            Some(("lottery", share)) => Writes::Share(parse_share(share)?),
            None if text == "preemptive" => Writes::Preemptive,
            None if text == "through" => Writes::Through,
            None if text == "manual" => Writes::Manual,
            None if text == "delayed" => Writes::Delayed(DELAY),
            Some(("delayed", time)) => Writes::Delayed(parse_time(time)?),
            _ => {
                return Err(format!(
                    "{text:?} is no way to write: choose idle, lottery, lottery=30%, delayed=15m, preemptive, through or manual"
                ));
            }
        })
    }
}

impl fmt::Display for Writes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Writes::Idle => f.write_str("idle"),
            Writes::Lottery => f.write_str("lottery"),
            Writes::Share(share) => write!(f, "lottery={share}%"),
            Writes::Delayed(time) => write!(f, "delayed={}", Shown(*time)),
            Writes::Preemptive => f.write_str("preemptive"),
            Writes::Through => f.write_str("through"),
            Writes::Manual => f.write_str("manual"),
        }
    }
}

impl Writes {
    /// How long what was done may wait for its turn to begin. Nothing if that is the user's to say.
    pub fn hold_time_max(self) -> Option<Duration> {
        match self {
            Writes::Manual => None,
            Writes::Delayed(age) => Some(age),
            Writes::Idle => Some(IDLE_WAIT_MAX),
            Writes::Lottery | Writes::Share(_) | Writes::Preemptive | Writes::Through => Some(Duration::ZERO),
        }
    }

    /// For how long what was done waits, where the home is near or is not. Nothing if that is the
    /// user's to say.
    pub fn terms(self, is_near: bool) -> Option<Terms> {
        match self {
            Writes::Manual => None,
            Writes::Delayed(age) => Some(Terms::delayed(age)),
            Writes::Idle if !is_near => Some(Terms::WHEN_IDLE),
            Writes::Idle | Writes::Lottery | Writes::Share(_) | Writes::Preemptive | Writes::Through => {
                Some(Terms::AT_ONCE)
            }
        }
    }

    /// What the classes of traffic that are drawn hold of the link.
    pub fn tickets(self) -> [Tickets; 3] {
        let [demand, prefetch, replay] = TICKETS;
        match self {
            Writes::Preemptive => [demand, Tickets { tickets: 0, ..prefetch }, replay],
            Writes::Share(share) => {
                // What is fetched ahead keeps its part of what is fetched.
                let (share, all) = (u32::from(share.min(SHARE_MAX)), TICKETS_MORE * 100);
                let replay = Tickets { tickets: TICKETS_MORE * share, ..replay };
                let fetched = all - replay.tickets;
                let ahead = fetched * prefetch.tickets / demand.tickets;
                [Tickets { tickets: fetched, ..demand }, Tickets { tickets: ahead, ..prefetch }, replay]
            }
            _ => TICKETS,
        }
    }

    /// The same while somebody waits until something is home: that is as urgent as what he waits to
    /// fetch, and nothing is fetched ahead.
    pub fn urgent_tickets() -> [Tickets; 3] {
        let [demand, prefetch, replay] = TICKETS;
        [demand, Tickets { tickets: 0, ..prefetch }, Tickets { tickets: demand.tickets, ..replay }]
    }
}

impl FromStr for Unit {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Unit::Auto),
            "file" => Ok(Unit::File),
            "block" => Ok(Unit::Block),
            _ => Err(format!("{text:?} is no unit: choose auto, file or block")),
        }
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unit::Auto => "auto",
            Unit::File => "file",
            Unit::Block => "block",
        })
    }
}

impl FromStr for Durability {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "grouped" => Ok(Durability::Grouped),
            "always" => Ok(Durability::Always),
            _ => Err(format!("{text:?} is no durability: choose grouped or always")),
        }
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Durability::Grouped => "grouped",
            Durability::Always => "always",
        })
    }
}

impl FromStr for Validation {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "volume" => Ok(Validation::Volume),
            "batched" => Ok(Validation::Files(BATCHED)),
            "single" => Ok(Validation::Files(1)),
            _ => Err(format!("{text:?} is no way to validate: choose volume, batched or single")),
        }
    }
}

impl fmt::Display for Validation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Validation::Volume => "volume",
            Validation::Files(1) => "single",
            Validation::Files(_) => "batched",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_done_waits_as_the_user_has_it() {
        let age = |writes: Writes, is_near, idle_ms| {
            writes.terms(is_near).and_then(|terms| terms.age_now(Duration::from_millis(idle_ms)))
        };
        for writes in [Writes::Lottery, Writes::Preemptive, Writes::Through, Writes::Idle] {
            assert_eq!(age(writes, true, 0), Some(Duration::ZERO), "{writes}");
        }
        assert_eq!(age(Writes::Lottery, false, 0), Some(Duration::ZERO));
        assert_eq!([999, 1000].map(|ms| age(Writes::Idle, false, ms)), [Some(IDLE_WAIT_MAX), Some(Duration::ZERO)]);
        for (is_near, idle_ms) in [(false, 0), (true, 10_000)] {
            assert_eq!(age(Writes::Delayed(DELAY), is_near, idle_ms), Some(DELAY));
            assert_eq!(age(Writes::Manual, is_near, idle_ms), None);
        }
    }

    #[test]
    fn settings_are_read_as_they_are_shown() {
        for text in ["callbacks", "poll=30s", "poll=2h", "strong", "none"] {
            assert_eq!(text.parse::<Consistency>().map(|value| value.to_string()), Ok(text.to_string()));
        }
        for text in [
            "idle",
            "lottery",
            "lottery=0%",
            "lottery=50%",
            "delayed=15m",
            "delayed=0s",
            "preemptive",
            "through",
            "manual",
        ] {
            assert_eq!(text.parse::<Writes>().map(|value| value.to_string()), Ok(text.to_string()));
        }
        let prefetch = |writes: Writes| writes.tickets()[1].tickets;
        assert_eq!((prefetch(Writes::Preemptive), prefetch(Writes::Lottery) > 0), (0, true));
        for share in [0, 16, 50] {
            let [demand, ahead, replay] = Writes::Share(share).tickets().map(|class| class.tickets);
            assert_eq!(u32::from(share) * (demand + replay), replay * 100, "{share}");
            assert!(ahead * TICKETS[0].tickets <= demand * TICKETS[1].tickets);
        }
        let [demand, ahead, replay] = Writes::urgent_tickets();
        assert!(demand.tickets == replay.tickets && ahead.tickets == 0);
        for text in ["volume", "batched", "single"] {
            assert_eq!(text.parse::<Validation>().map(|value| value.to_string()), Ok(text.to_string()));
        }
        for text in ["auto", "file", "block"] {
            assert_eq!(text.parse::<Unit>().map(|value| value.to_string()), Ok(text.to_string()));
        }
        for wrong in ["", "poll=", "poll=0s", "poll=5", "none=1s", "poll=1ü"] {
            assert!(wrong.parse::<Consistency>().is_err(), "{wrong}");
        }
        for wrong in ["delayed=x", "lottery=", "lottery=30", "lottery=51%", "lottery=-1%"] {
            assert!(wrong.parse::<Writes>().is_err(), "{wrong}");
        }
        assert!("all".parse::<Unit>().is_err());
    }
}
