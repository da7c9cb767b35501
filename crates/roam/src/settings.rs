//! How a mount behaves. Its user can change everything but the volume while it is mounted.

use crate::connection::state::LinkState;
use policy::defaults::ROAMING_CACHE_BYTES;
use policy::lottery::TicketClass as Tickets;
pub use policy::write_back::IDLE_WAIT_MAX;
use policy::write_back::{DELAY, TICKETS, Terms};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The home is asked when something cached is used this long after all pushes were last known to
/// have arrived.
pub const SILENCE_BELIEVED: Duration = Duration::from_secs(30);

/// When cached data is believed (docs/semantics.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consistency {
    /// Until the home tells of a change by others.
    Callbacks,
    /// Until the home is asked what has changed: at least this often, and more often while files
    /// change (Zhao and Figueiredo, section 4.2.1).
    Poll(Duration),
    /// While the home has promised that no other client changes it: all clients see one copy (Zhao
    /// and Figueiredo, section 4.3). Calls wait for promises that are missing, and fail while the
    /// home is out of reach.
    Strong,
    /// Always: a file stays as it was when first seen.
    None,
}

/// When operations go home where the home is far (Huston and Honeyman, section 5; Zhao and
/// Figueiredo, section 4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writes {
    /// When the link was idle for a moment.
    Idle,
    /// At once, in a lottery with fetches.
    Lottery,
    /// As `Lottery`, but replay wins this many of a hundred draws against what programs wait for;
    /// at most [`SHARE_MAX`].
    Share(u8),
    /// When they have waited this long.
    Delayed(Duration),
    /// At once, before anything is fetched ahead.
    Preemptive,
    /// Before the call is answered, even where the home is far.
    Through,
    /// When the user asks for it.
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

/// How the cache is validated after the home was out of reach (Mummert and Satyanarayanan, section
/// 5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validation {
    /// By the volume's stamp, with one question.
    Volume,
    /// File by file, with this many files in one question. For comparison with the paper.
    Files(usize),
}

/// Largest share for replay, in draws of a hundred: programs wait for the rest of the link. A
/// larger share would bring nothing, since replay asks for a place only when its last chunk is
/// home.
pub const SHARE_MAX: u8 = 50;
/// Tickets for each percent of the link, so that fractions of a percent can be dealt too.
const TICKETS_MORE: u32 = 6;

/// Files whose metadata a client caches, by default. Each takes up to 1 KiB of memory.
const CACHE_FILES: usize = 500_000;
/// Files in one question under `--validation batched`.
const BATCHED: usize = 50;

/// When operations are durable at the client ([`COMMIT_TIME_MAX`](crate::COMMIT_TIME_MAX)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// After about a second, or when a program waits for it.
    #[default]
    Grouped,
    /// Before a call is answered; a file's contents when it is closed.
    Always,
}

/// The settings of one mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The volume's name.
    pub volume: String,
    /// The local user and group that files of the home's user appear to belong to; `None`: they
    /// keep the home's owner.
    pub owner: Option<(u32, u32)>,
    /// The link state that the user has chosen; `None`: the link decides.
    pub pinned: Option<LinkState>,
    /// When cached data is believed.
    pub consistency: Consistency,
    /// When operations go home.
    pub writes: Writes,
    /// How much of a file is fetched at once.
    pub unit: Unit,
    /// How the cache is validated after the home was out of reach.
    pub validation: Validation,
    /// Bytes of files that may be cached. If files that are not home yet exceed this, writers wait
    /// for the home while it can be reached; otherwise the cache grows beyond it.
    pub cache_bytes: u64,
    /// Files whose metadata the client may cache. Files that are open, hoarded, in a conflict or
    /// not home yet stay beyond that.
    pub cache_files: usize,
    /// Under `callbacks`, the client asks whether the home is there when a program uses something
    /// cached after a silence of this length. The simulator sets it; users cannot.
    pub silence_believed: Duration,
    /// When operations are durable at the client.
    pub durability: Durability,
    /// Bytes by which the cache's log may grow before it begins again with a snapshot. The
    /// simulator sets it; users cannot.
    pub log_len: u64,
}

impl Settings {
    /// The default settings.
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

/// Why a text is no setting, and what can be written instead.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SettingError {
    /// The text is not a time.
    #[error("{0:?} is not a time; write a number with s, m, h or d")]
    Time(String),
    /// The text is not a share of the link, or the share is too great.
    #[error("{0:?} is not a share of the link; write lottery=30%, at most {SHARE_MAX}%, so that reads go on")]
    Share(String),
    /// Polling would never pause.
    #[error("poll=0s would ask the home without a pause; write at least poll=1s")]
    NoPause,
    /// There is no such choice.
    #[error("unknown {setting} {text:?}; choose one of: {choices}")]
    Choice {
        /// What is set.
        setting: &'static str,
        /// What was written.
        text: String,
        /// What there is.
        choices: &'static str,
    },
}

impl SettingError {
    fn choice(setting: &'static str, text: &str, choices: &'static str) -> SettingError {
        SettingError::Choice { setting, text: text.to_owned(), choices }
    }
}

/// `90s`, `15m`, `12h`, `7d`.
pub fn parse_time(text: &str) -> Result<Duration, SettingError> {
    let wrong = || SettingError::Time(text.to_owned());
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
fn parse_share(text: &str) -> Result<u8, SettingError> {
    let share = text.strip_suffix('%').and_then(|number| number.trim().parse().ok());
    share.filter(|share| *share <= SHARE_MAX).ok_or_else(|| SettingError::Share(text.to_owned()))
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
    type Err = SettingError;
    fn from_str(text: &str) -> Result<Self, SettingError> {
        match text.split_once('=') {
            None if text == "callbacks" => Ok(Consistency::Callbacks),
            None if text == "strong" => Ok(Consistency::Strong),
            None if text == "none" => Ok(Consistency::None),
            None if text == "poll" => Ok(Consistency::Poll(Duration::from_secs(30))),
            Some(("poll", time)) => match parse_time(time)? {
                Duration::ZERO => Err(SettingError::NoPause),
                time => Ok(Consistency::Poll(time)),
            },
            _ => Err(SettingError::choice("consistency", text, "callbacks, poll=30s, strong, none")),
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
    type Err = SettingError;
    fn from_str(text: &str) -> Result<Self, SettingError> {
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
                let choices = "idle, lottery, lottery=30%, delayed=15m, preemptive, through, manual";
                return Err(SettingError::choice("way to write", text, choices));
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
    /// How long operations may wait for their turn to begin. `None`: until the user sends them.
    pub fn hold_time_max(self) -> Option<Duration> {
        match self {
            Writes::Manual => None,
            Writes::Delayed(age) => Some(age),
            Writes::Idle => Some(IDLE_WAIT_MAX),
            Writes::Lottery | Writes::Share(_) | Writes::Preemptive | Writes::Through => Some(Duration::ZERO),
        }
    }

    /// How long operations wait, depending on whether the home is near. `None`: until the user
    /// sends them.
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

    /// The tickets of demand, prefetch and replay.
    pub fn tickets(self) -> [Tickets; 3] {
        let [demand, prefetch, replay] = TICKETS;
        match self {
            Writes::Preemptive => [demand, Tickets { tickets: 0, ..prefetch }, replay],
            Writes::Share(share) => {
                // Prefetch keeps its proportion to demand.
                let (share, all) = (u32::from(share.min(SHARE_MAX)), TICKETS_MORE * 100);
                let replay = Tickets { tickets: TICKETS_MORE * share, ..replay };
                let fetched = all - replay.tickets;
                let ahead = fetched * prefetch.tickets / demand.tickets;
                [Tickets { tickets: fetched, ..demand }, Tickets { tickets: ahead, ..prefetch }, replay]
            }
            _ => TICKETS,
        }
    }

    /// The tickets while a program waits until something is home: replay is as urgent as demand,
    /// and nothing is fetched ahead.
    pub fn urgent_tickets() -> [Tickets; 3] {
        let [demand, prefetch, replay] = TICKETS;
        [demand, Tickets { tickets: 0, ..prefetch }, Tickets { tickets: demand.tickets, ..replay }]
    }
}

impl FromStr for Unit {
    type Err = SettingError;
    fn from_str(text: &str) -> Result<Self, SettingError> {
        match text {
            "auto" => Ok(Unit::Auto),
            "file" => Ok(Unit::File),
            "block" => Ok(Unit::Block),
            _ => Err(SettingError::choice("unit", text, "auto, file, block")),
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
    type Err = SettingError;
    fn from_str(text: &str) -> Result<Self, SettingError> {
        match text {
            "grouped" => Ok(Durability::Grouped),
            "always" => Ok(Durability::Always),
            _ => Err(SettingError::choice("durability", text, "grouped, always")),
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
    type Err = SettingError;
    fn from_str(text: &str) -> Result<Self, SettingError> {
        match text {
            "volume" => Ok(Validation::Volume),
            "batched" => Ok(Validation::Files(BATCHED)),
            "single" => Ok(Validation::Files(1)),
            _ => Err(SettingError::choice("validation", text, "volume, batched, single")),
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
