//! How a cache is found valid after a gap (Mummert and Satyanarayanan, section 5): by its volume,
//! in batches, file by file.
//!
//! The caches have as many volumes, and as many files in them, counted with their directories, as
//! those of the paper's five users. Contents are small, because none of them travels.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use linkem::Rate;
use serde::Serialize;

use super::found::{Figure, Found, Table, largest, median};
use super::rig::{GAP, Rig, Wire};
use crate::command::{self, Interrupts};
use crate::daemon::DEADLINE;
use crate::report::{count, number};
use crate::scripted::Site;

/// Cached files of the five users, by volume (Table 1; its groups of volumes are divided evenly).
const USERS: [&[u32]; 5] = [
    &[38, 9, 114, 27, 27, 27, 26],
    &[127, 6, 21, 21, 234, 4],
    &[133, 560, 190, 7, 6, 2, 4, 190, 5],
    &[125, 158, 342, 13, 6, 275, 274, 110, 110, 5, 5],
    &[142, 689, 361, 21, 21, 4, 6, 24, 6, 537, 5, 5],
];
const USERS_QUICK: [&[u32]; 2] = [&[20, 10], &[40, 15, 5]];
const FILES_PER_DIR: u32 = 25;
/// Files that other clients change during a gap.
const CHANGED: u32 = 10;
/// The folder of these files.
const CHANGED_IN: &str = "v00/part-00";
/// Each way.
const DELAY: Duration = Duration::from_millis(20);
/// How often the volume's stamp is tried; the median counts.
const REPEATS: usize = 3;
/// Rates below this need so little of the processor that all users can be measured at once.
const SLOW: Rate = Rate::kbits_per_s(100);

/// How a mount returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
enum How {
    /// One request for each file.
    Single,
    /// One request for 50 files.
    Batched,
    /// One request for the volume.
    Volume,
    /// The same, after another client has changed ten files.
    Changed,
    /// The same, with nothing changed, from another address.
    Moved,
    /// Unmounted during the gap: a new connection.
    Anew,
}

impl How {
    const ALL: [How; 6] = [How::Single, How::Batched, How::Volume, How::Changed, How::Moved, How::Anew];

    fn title(self) -> &'static str {
        match self {
            How::Single => "one by one",
            How::Batched => "batches of 50",
            How::Volume => "volume",
            How::Changed => "volume, 10 files changed",
            How::Moved => "volume, changed address",
            How::Anew => "volume, new connection",
        }
    }
}

/// One return.
#[derive(Clone, Debug, Serialize)]
struct Sample {
    files: u32,
    rate: String,
    how: How,
    /// From the first packet after the gap until the home has answered what has changed.
    attached_s: f64,
    /// The walk after that, which revalidates suspect files and fetches changed ones.
    walked_s: f64,
    attached: Wire,
    walked: Wire,
}

impl Sample {
    fn seconds(&self) -> f64 {
        self.attached_s + self.walked_s
    }

    fn bytes(&self) -> u64 {
        self.attached.bytes() + self.walked.bytes()
    }
}

/// A user's home and mount.
struct User {
    files: u32,
    rig: Rig,
}

/// Runs the study.
pub fn measure(site: &Site, quick: bool) -> Result<Found> {
    let (all, rates) = match quick {
        true => (&USERS_QUICK[..], vec![Rate::mbits_per_s(10), Rate::kbits_per_s(64)]),
        false => (
            &USERS[..],
            vec![Rate::mbits_per_s(10), Rate::mbits_per_s(2), Rate::kbits_per_s(64), Rate::bits_per_s(9600)],
        ),
    };
    let mut users = all.iter().map(|volumes| User::new(site, volumes)).collect::<Result<Vec<_>>>()?;
    let files: Vec<u32> = users.iter().map(|user| user.files).collect();
    let mut found = Found { conditions: conditions(), ..Found::default() };
    let mut samples = Vec::new();
    for &rate in &rates {
        let all: Vec<Result<Vec<Sample>>> = if rate > SLOW {
            users.iter_mut().map(|user| user.measure(rate)).collect()
        } else {
            std::thread::scope(|scope| {
                let threads: Vec<_> = users.iter_mut().map(|user| scope.spawn(|| user.measure(rate))).collect();
                let end = |thread: std::thread::ScopedJoinHandle<_>| thread.join().expect("a panic was reported");
                threads.into_iter().map(end).collect()
            })
        };
        for result in all {
            match result {
                Ok(some) => samples.extend(some),
                Err(error) => {
                    command::check_interrupt()?;
                    found.failures.push(format!("at {rate}: {error:#}"));
                }
            }
        }
    }
    let slowest = rates.last().context("no rates")?.to_string();
    found.figures = figures(&samples, &slowest, &files);
    found.tables = tables(&samples, &rates, &files);
    found.samples = serde_json::to_value(&samples).context("samples as JSON")?;
    Ok(found)
}

fn conditions() -> String {
    format!(
        "Each user's cache is of as many volumes as the paper's, {}, with a directory for every {FILES_PER_DIR} files. \
         The link has {} ms each way; bytes are those of both directions, with the headers of IP and UDP. The link is \
         turned off for {} ms; the time is from the first packet that the mount sends when it is on again until \
         everything cached is known to be valid, a hoard walk included; that of a new connection is from the start of the \
         process, the link on. *Volume* is the median of {REPEATS}, all else \
         was done once. The connection outlives the gap unless it says otherwise.",
        USERS.map(|volumes| volumes.len().to_string()).join(", "),
        DELAY.as_millis(),
        GAP.as_millis()
    )
}

impl User {
    fn new(site: &Site, volumes: &[u32]) -> Result<User> {
        let files = volumes.iter().sum();
        let names: Vec<String> = (0..volumes.len()).map(|number| format!("v{number:02}")).collect();
        let fill =
            |source: &Path| names.iter().zip(volumes).try_for_each(|(name, files)| fill(&source.join(name), *files));
        let rig = Rig::mounted_volumes(site, &format!("user-{files}"), &names, fill)?;
        rig.hoard(&names.iter().map(String::as_str).collect::<Vec<_>>())?;
        Ok(User { files, rig })
    }

    /// All ways to come back, over a link of this rate.
    fn measure(&mut self, rate: Rate) -> Result<Vec<Sample>> {
        self.rig.shape(Some(rate), DELAY)?;
        let mut samples = vec![
            self.come_back(rate, How::Single, &["--validation", "single"])?,
            self.come_back(rate, How::Batched, &["--validation", "batched"])?,
        ];
        self.rig.set(&["--validation", "volume"])?;
        self.rig.wait_attached(true)?;
        self.rig.walk()?;
        for how in std::iter::repeat_n(How::Volume, REPEATS).chain([How::Changed, How::Moved]) {
            samples.push(self.come_back(rate, how, &[])?);
            if how == How::Changed {
                self.check_changed()?;
            }
        }
        samples.push(self.come_back_anew(rate)?);
        self.rig.shape(None, Duration::ZERO)?;
        for sample in &samples {
            eprintln!(
                "revalidation: {} files at {rate}, {}: {:.3} s, {} bytes",
                self.files,
                sample.how.title(),
                sample.seconds(),
                sample.bytes()
            );
        }
        Ok(samples)
    }

    /// A gap in which the mount has lost its home, through the setting `set` or through the home's
    /// silence.
    fn come_back(&self, rate: Rate, how: How, set: &[&str]) -> Result<Sample> {
        let rig = &self.rig;
        let meanwhile = || {
            if how == How::Moved {
                rig.link().forget_clients();
            }
            if how == How::Changed { change(&rig.source()) } else { Ok(()) }
        };
        let (begun, before) = rig.gap(set, meanwhile)?;
        self.finish(rate, how, begun, before)
    }

    /// Fails if the mount shows the old state of a file that another client has changed.
    fn check_changed(&self) -> Result<()> {
        let mut diff = Command::new("diff");
        diff.arg("-r").arg(self.rig.source().join(CHANGED_IN)).arg(self.rig.path(CHANGED_IN));
        command::run(&mut diff, DEADLINE, Interrupts::Obey).map(drop).context("changes at home were not noticed")
    }

    fn come_back_anew(&mut self, rate: Rate) -> Result<Sample> {
        self.rig.down()?;
        let before = self.rig.quiet()?;
        let begun = Instant::now();
        self.rig.mount(&[])?;
        self.finish(rate, How::Anew, begun, before)
    }

    fn finish(&self, rate: Rate, how: How, begun: Instant, before: Wire) -> Result<Sample> {
        let rig = &self.rig;
        rig.wait_attached(true)?;
        // Nothing is waited for before the walk. The mount walks by itself soon after it has heard
        // of changes, and its requests and fetches then do not belong to the hearing.
        let (attached_s, attached) = (begun.elapsed().as_secs_f64(), rig.wire());
        let walking = Instant::now();
        rig.walk()?;
        let walked_s = walking.elapsed().as_secs_f64();
        let walked = rig.quiet()?.since(attached);
        let (files, attached) = (self.files, attached.since(before));
        Ok(Sample { files, rate: rate.to_string(), how, attached_s, walked_s, attached, walked })
    }
}

/// Makes this many files, with their directories.
fn fill(folder: &Path, files: u32) -> Result<()> {
    let mut dir = folder.to_owned();
    for index in 0..files {
        let is_dir = index % FILES_PER_DIR == 1;
        let made = match index {
            0 => fs::create_dir(folder),
            _ if is_dir => {
                dir = folder.join(format!("part-{:02}", index / FILES_PER_DIR));
                fs::create_dir(&dir)
            }
            _ => fs::write(dir.join(format!("file-{index:04}")), format!("{index:0>512}")),
        };
        made.with_context(|| format!("fill {}", dir.display()))?;
    }
    Ok(())
}

/// The changes of another client, at home.
fn change(source: &Path) -> Result<()> {
    for index in 2..2 + CHANGED {
        let path = source.join(CHANGED_IN).join(format!("file-{index:04}"));
        let before = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let first = if before.starts_with('0') { "1" } else { "0" };
        fs::write(&path, format!("{first}{}", &before[1..])).with_context(|| format!("write {}", path.display()))?;
    }
    // The home learns of it from the kernel.
    std::thread::sleep(GAP);
    Ok(())
}

/// The median over a user's returns at a rate. NaN if none was measured.
fn value(samples: &[Sample], files: u32, rate: &str, how: How, of: impl Fn(&Sample) -> f64) -> f64 {
    let wanted = |sample: &&Sample| sample.files == files && sample.rate == rate && sample.how == how;
    median(&samples.iter().filter(wanted).map(of).collect::<Vec<_>>())
}

fn figures(samples: &[Sample], slowest: &str, files: &[u32]) -> Vec<Figure> {
    let seconds = |files, how| value(samples, files, slowest, how, Sample::seconds);
    let worst = |how| largest(files.iter().map(|&files| 100.0 * seconds(files, How::Volume) / seconds(files, how)));
    let times: Vec<f64> = files.iter().map(|&files| seconds(files, How::Volume)).collect();
    let (first, last) = (times[0], times[times.len() - 1]);
    let most = |how: How, of: fn(&Sample) -> u64| {
        largest(samples.iter().filter(|sample| sample.how == how).map(|sample| of(sample) as f64))
    };
    vec![
        Figure::at_most(format!("volume : one by one at {slowest}, the worst user"), worst(How::Single), 1.0, " %"),
        Figure::at_most(format!("volume : batches at {slowest}, the worst user"), worst(How::Batched), 5.0, " %"),
        Figure::at_most(
            format!("volume at {slowest}: {} and {} files differ by", files[0], files[files.len() - 1]),
            100.0 * (last / first - 1.0).abs(),
            20.0,
            " %",
        ),
        Figure::at_most("bytes when nothing has changed, the most", most(How::Volume, Sample::bytes), 1023.0, " B"),
        Figure::at_most(
            "bytes until it is known which 10 files have changed, the most",
            most(How::Changed, |sample| sample.attached.bytes()),
            2048.0,
            " B",
        ),
    ]
}

fn tables(samples: &[Sample], rates: &[Rate], files: &[u32]) -> Vec<Table> {
    let header = |first: [&str; 2]| {
        let users = files.iter().map(|&files| format!("{} files", count(files.into())));
        first.map(str::to_owned).into_iter().chain(users).collect::<Vec<_>>()
    };
    let mut seconds = Table::new("Seconds", header(["link", "returns"]));
    let mut bytes = Table::new(
        "Bytes on the wire, and those of them until the home has said what has changed",
        header(["link", "returns"]),
    );
    for rate in rates.iter().map(Rate::to_string) {
        for how in How::ALL {
            let of = |files: u32, of: fn(&Sample) -> f64| value(samples, files, &rate, how, of);
            let cells = |cell: &dyn Fn(u32) -> String| {
                [rate.clone(), how.title().to_owned()]
                    .into_iter()
                    .chain(files.iter().map(|&files| cell(files)))
                    .collect()
            };
            let row: Vec<String> = cells(&|files| number(of(files, Sample::seconds)));
            seconds.row(row);
            let row: Vec<String> = cells(&|files| {
                let attached = of(files, |sample| sample.attached.bytes() as f64);
                format!("{} ({})", number(of(files, |sample| sample.bytes() as f64)), number(attached))
            });
            bytes.row(row);
        }
    }
    vec![seconds, bytes]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_has_as_many_files_as_it_should() {
        fn all(dir: &Path) -> u32 {
            let below = |entry: fs::DirEntry| if entry.path().is_dir() { all(&entry.path()) } else { 1 };
            1 + fs::read_dir(dir).unwrap().map(|entry| below(entry.unwrap())).sum::<u32>()
        }
        let dir = tempfile::tempdir().unwrap();
        for files in [30, 268] {
            let source = dir.path().join(files.to_string());
            let volume = source.join("v00");
            std::fs::create_dir(&source).unwrap();
            fill(&volume, files).unwrap();
            assert_eq!(all(&volume), files);
            change(&source).unwrap();
            assert_eq!(all(&volume), files);
        }
    }

    #[test]
    fn the_worst_user_counts() {
        let sample = |files, how, seconds| Sample {
            files,
            rate: "9.6kb/s".into(),
            how,
            attached_s: seconds,
            walked_s: 0.0,
            attached: Wire { up_bytes: 100, down_bytes: 200, ..Wire::default() },
            walked: Wire::default(),
        };
        let samples = [
            sample(10, How::Single, 100.0),
            sample(10, How::Volume, 2.0),
            sample(20, How::Single, 400.0),
            sample(20, How::Volume, 2.1),
        ];
        let found = Found { figures: figures(&samples, "9.6kb/s", &[10, 20]), ..Found::default() };
        let text = found.markdown();
        assert!(text.contains("| ≤ 1.00 % | 2.00 % | **not reached** |"), "{text}");
        assert!(text.contains("differ by | ≤ 20.0 % | 5.00 % | reached |"), "{text}");
        assert!(text.contains("| 300 B | reached |"), "{text}");
    }
}
