//! A home, an emulated link, and a mount beyond it: what every study of roaming needs. Several
//! mounts of one home have a link each.
//!
//! The home and the mount are processes of the shipped program; the link is a UDP relay on a thread
//! of this program. Invariant: when a rig is dropped, its processes, mount and files are gone;
//! those of the home with the last of its mounts. Only child processes with a deadline touch files
//! of the mount.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use linkem::{Direction, Rate, Relay, Settings, Shape};
use serde::Serialize;
use serde_json::Value;

use crate::command::{self, Interrupts, check_interrupt};
use crate::daemon::{DEADLINE, Daemon};
use crate::mounts;
use crate::scripted::Site;
use crate::work::Work;

/// A home prints this when it serves; the address follows.
const HOME_READY: &str = "home listening at ";
/// A mount prints this when it is ready.
const MOUNT_READY: &str = "mounted at";
/// A link is quiet when nothing has crossed it for this long.
const QUIET_TIME: Duration = Duration::from_millis(1200);
/// How long a link stays off after the mount has lost its home.
pub const GAP: Duration = Duration::from_millis(500);
/// The longest validity of a mount's knowledge when it is asked to make sure of it.
const SURE_TIME: Duration = Duration::from_secs(6);
/// How often a state is polled that is waited for.
const LOOK_PERIOD: Duration = Duration::from_millis(5);

/// A modem.
pub const MODEM: Rate = Rate::bits_per_s(38_400);
/// Each way.
pub const MODEM_DELAY: Duration = Duration::from_millis(50);

/// A home, a link and a mount.
pub struct Rig {
    home: Arc<Home>,
    /// The mount's own folder, apart from the home's.
    root: PathBuf,
    mount_point: PathBuf,
    relay: Relay,
    mount: Option<Daemon>,
}

/// A folder that is exported, or folders in it, each as a volume.
struct Home {
    program: PathBuf,
    root: PathBuf,
    address: SocketAddr,
    /// Always there, until it is dropped.
    process: Option<Daemon>,
}

/// What has crossed a link, in both directions, with the headers of IP and UDP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Wire {
    pub up_packets: u64,
    pub up_bytes: u64,
    pub down_packets: u64,
    pub down_bytes: u64,
}

impl Wire {
    /// In both directions.
    pub fn bytes(self) -> u64 {
        self.up_bytes + self.down_bytes
    }

    /// In both directions.
    pub fn packets(self) -> u64 {
        self.up_packets + self.down_packets
    }

    /// What was added since `before`.
    pub fn since(self, before: Wire) -> Wire {
        Wire {
            up_packets: self.up_packets - before.up_packets,
            up_bytes: self.up_bytes - before.up_bytes,
            down_packets: self.down_packets - before.down_packets,
            down_bytes: self.down_bytes - before.down_bytes,
        }
    }
}

/// Fills an exported folder with a project in C of this many sources, headers, and compiled units.
pub fn project(folder: &str, [sources, headers, units]: [u32; 3]) -> impl FnOnce(&Path) -> Result<()> {
    move |source| Work::MakeProject { dir: source.join(folder), sources, headers, units }.run().map(drop)
}

impl Home {
    fn start(site: &Site, name: &str, volumes: &[String], fill: impl FnOnce(&Path) -> Result<()>) -> Result<Home> {
        let root = site.root.join(name);
        let source = root.join("source");
        fs::create_dir_all(&source).with_context(|| format!("create {}", source.display()))?;
        fill(&source)?;
        let program = site.starling.clone().context("no program: give --starling PATH")?;
        let mut serve = Command::new(&program);
        serve.args(["home", "serve"]);
        match volumes {
            [] => serve.arg(format!("dir:{}", source.display())),
            volumes => serve.args(volumes.iter().map(|volume| format!("dir:{}", source.join(volume).display()))),
        };
        serve.arg("--data").arg(root.join("home")).args(["--listen", "127.0.0.1:0"]);
        let process = Daemon::start(&mut serve, &root.join("home.log"), HOME_READY).context("start a home")?;
        let address = process.ready()[HOME_READY.len()..].trim().parse().context("the home's address")?;
        Ok(Home { program, root, address, process: Some(process) })
    }

    /// An invitation for one client, once, which finds the home at this address.
    fn invitation(&self, address: SocketAddr) -> Result<String> {
        let mut invite = Command::new(&self.program);
        invite.arg("invite").arg("--data").arg(self.root.join("home")).arg("--address").arg(address.to_string());
        let printed = command::run(&mut invite, DEADLINE, Interrupts::Obey)?;
        Ok(printed.lines().last().context("no invitation was printed")?.to_owned())
    }

    fn clear(&mut self) -> Result<()> {
        self.process.take().map_or(Ok(()), Daemon::kill)?;
        let remove = |name: &str| {
            let dir = self.root.join(name);
            fs::remove_dir_all(&dir).with_context(|| format!("remove {}", dir.display()))
        };
        ["source", "home"].into_iter().try_for_each(remove)?;
        fs::remove_file(self.root.join("home.log")).context("remove the home's log")?;
        // This fails if anything of a mount still exists.
        fs::remove_dir(&self.root).with_context(|| format!("remove {}", self.root.display()))
    }
}

impl Rig {
    /// Fills a folder, and starts a home that serves it over a link that is still perfect. Mounts
    /// nothing.
    pub fn new(site: &Site, name: &str, fill: impl FnOnce(&Path) -> Result<()>) -> Result<Rig> {
        Rig::of(Arc::new(Home::start(site, name, &[], fill)?), "client")
    }

    /// The same, mounted and attached to its home.
    pub fn mounted(site: &Site, name: &str, arguments: &[&str], fill: impl FnOnce(&Path) -> Result<()>) -> Result<Rig> {
        let mut rig = Rig::new(site, name, fill)?;
        rig.attach(arguments)?;
        Ok(rig)
    }

    /// Mounted, and attached to a home whose volumes are folders in the filled one, and directories
    /// of the mount.
    pub fn mounted_volumes(
        site: &Site,
        name: &str,
        volumes: &[String],
        fill: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<Rig> {
        let mut rig = Rig::of(Arc::new(Home::start(site, name, volumes, fill)?), "client")?;
        rig.attach(&[])?;
        Ok(rig)
    }

    /// Another mount of the same home, attached over its own link.
    pub fn beside(&self, name: &str, arguments: &[&str]) -> Result<Rig> {
        let mut rig = Rig::of(self.home.clone(), name)?;
        rig.attach(arguments)?;
        Ok(rig)
    }

    fn of(home: Arc<Home>, name: &str) -> Result<Rig> {
        let root = home.root.join(name);
        let mount_point = root.join("mount");
        fs::create_dir_all(&mount_point).with_context(|| format!("create {}", mount_point.display()))?;
        let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let relay = Relay::start(anywhere, home.address, Settings::default()).context("start a relay")?;
        Ok(Rig { home, root, mount_point, relay, mount: None })
    }

    fn attach(&mut self, arguments: &[&str]) -> Result<()> {
        self.mount(arguments)?;
        self.wait_attached(true)
    }

    /// The folder that the home exports.
    pub fn source(&self) -> PathBuf {
        self.home.root.join("source")
    }

    /// A path in the mount.
    pub fn path(&self, name: &str) -> PathBuf {
        self.mount_point.join(name)
    }

    /// The processes of the mount and of the home.
    pub fn processes(&self) -> Result<[u32; 2]> {
        let [mount, home] = [&self.mount, &self.home.process].map(|daemon| daemon.as_ref().map(Daemon::id));
        Ok([mount.context("nothing is mounted")?, home.context("there is no home")?])
    }

    /// Mounts what the home exports: the first time by an invitation, later with what is cached.
    /// Returns how long it took.
    pub fn mount(&mut self, arguments: &[&str]) -> Result<Duration> {
        ensure!(self.mount.is_none(), "it is mounted");
        let cache = self.root.join("cache");
        let mut command = Command::new(&self.home.program);
        command.arg("mount");
        if !cache.exists() {
            command.arg(self.home.invitation(self.relay.address())?);
        }
        command.arg(&self.mount_point).arg("--cache").arg(cache).args(arguments);
        let mount = Daemon::start(&mut command, &self.root.join("mount.log"), MOUNT_READY).context("mount")?;
        Ok(self.mount.insert(mount).started_in())
    }

    /// Unmounts; the cache stays.
    pub fn down(&mut self) -> Result<()> {
        self.starling(&["down"], &[])?;
        self.mount.take().context("nothing is mounted")?.ended().context("the mount, after `down`")
    }

    /// A command about the mount, whose mount point comes after `action` and before `options`.
    pub fn starling(&self, action: &[&str], options: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.home.program);
        command.args(action).arg(&self.mount_point).args(options);
        command::run(&mut command, LONG, Interrupts::Obey)
    }

    /// `starling set`.
    pub fn set(&self, options: &[&str]) -> Result<()> {
        self.starling(&["set"], options).map(drop)
    }

    /// `starling connect`: auto, weak, fetch-only, off.
    pub fn connect(&self, state: &str) -> Result<()> {
        self.starling(&["connect", state], &[]).map(drop)
    }

    /// `starling status`, or another command that answers in JSON.
    pub fn ask(&self, action: &str) -> Result<Value> {
        serde_json::from_str(&self.starling(&[action], &["--json"])?).with_context(|| format!("read {action}"))
    }

    /// A number of the status, such as `/pending/operations`.
    pub fn number(&self, pointer: &str) -> Result<u64> {
        let status = self.ask("status")?;
        status.pointer(pointer).and_then(Value::as_u64).with_context(|| format!("the status has no number {pointer}"))
    }

    /// Hoards folders of the mount, and fetches them.
    pub fn hoard(&self, names: &[&str]) -> Result<()> {
        self.of_the_hoard("add", names)?;
        self.walk()
    }

    /// Fetches folders of the mount, without hoarding them. So the mount does not walk by itself
    /// soon after others have changed them.
    pub fn fetch(&self, names: &[&str]) -> Result<()> {
        self.hoard(names)?;
        self.of_the_hoard("remove", names)
    }

    fn of_the_hoard(&self, action: &str, names: &[&str]) -> Result<()> {
        names.iter().try_for_each(|name| {
            let mut command = Command::new(&self.home.program);
            command.args(["hoard", action]).arg(self.path(name));
            command::run(&mut command, DEADLINE, Interrupts::Obey).map(drop)
        })
    }

    /// Revalidates the whole cache, and fetches what is hoarded.
    pub fn walk(&self) -> Result<()> {
        self.starling(&["hoard", "walk"], &[]).map(drop)
    }

    /// Waits until the mount has found the home, or has lost it.
    pub fn wait_attached(&self, wanted: bool) -> Result<()> {
        self.wait(|rig| Ok((rig.ask("status")?["state"] != "disconnected") == wanted))
    }

    /// Sends all waiting changes home, and waits until they are there.
    pub fn send_all(&self) -> Result<()> {
        self.starling(&["sync", "--home"], &[]).map(drop)
    }

    /// Removes a tree of the mount.
    pub fn remove(&self, path: &Path) -> Result<()> {
        command::run(Command::new("rm").arg("-r").arg(path), LONG, Interrupts::Obey).map(drop)
    }

    fn wait(&self, mut what: impl FnMut(&Rig) -> Result<bool>) -> Result<()> {
        let until = Instant::now() + DEADLINE;
        while !what(self)? {
            check_interrupt()?;
            ensure!(Instant::now() < until, "the expected state was not reached in {} s", DEADLINE.as_secs());
            std::thread::sleep(LOOK_PERIOD);
        }
        Ok(())
    }

    /// The link, which can be turned off and on.
    pub fn link(&self) -> &Relay {
        &self.relay
    }

    /// Sets the link's rate, and its delay in each direction. Waits first until it is quiet.
    pub fn shape(&self, rate: Option<Rate>, delay: Duration) -> Result<()> {
        self.quiet()?;
        self.shape_now(rate, delay);
        Ok(())
    }

    /// Sets the link's rate, and its delay in each direction, while it is in use.
    pub fn shape_now(&self, rate: Option<Rate>, delay: Duration) {
        for direction in Direction::BOTH {
            self.relay.set(direction, Shape { rate, delay, ..Shape::default() });
        }
    }

    /// What has crossed the link so far.
    pub fn wire(&self) -> Wire {
        let [up, down] = Direction::BOTH.map(|direction| self.relay.counters(direction));
        Wire { up_packets: up.packets, up_bytes: up.bytes, down_packets: down.packets, down_bytes: down.bytes }
    }

    /// Waits until the link is quiet, and returns what has crossed it so far.
    pub fn quiet(&self) -> Result<Wire> {
        let until = Instant::now() + DEADLINE;
        let mut since = Instant::now();
        let mut last = self.wire();
        while since.elapsed() < QUIET_TIME {
            check_interrupt()?;
            ensure!(Instant::now() < until, "the link is not quiet after {} s", DEADLINE.as_secs());
            std::thread::sleep(Duration::from_millis(20));
            let held: u64 = Direction::BOTH.iter().map(|direction| self.relay.counters(*direction).held()).sum();
            let now = self.wire();
            if now != last || held > 0 {
                (last, since) = (now, Instant::now());
            }
        }
        Ok(last)
    }

    /// Waits until the mount sends something, and returns when that was.
    fn wait_for_a_packet(&self) -> Result<Instant> {
        let sent = || self.relay.counters(Direction::Up).offered;
        let (before, until) = (sent(), Instant::now() + DEADLINE);
        while sent() == before {
            check_interrupt()?;
            ensure!(Instant::now() < until, "the mount sends nothing for {} s", DEADLINE.as_secs());
            std::thread::sleep(Duration::from_micros(500));
        }
        Ok(Instant::now())
    }

    /// Turns the link off and makes the mount lose its home: by a change of settings, or, if there
    /// is none, by a request that is not answered within its timeout. Then turns the link on.
    /// Returns when the mount first sent something after that, and what had crossed the link
    /// before.
    pub fn gap(&self, set: &[&str], meanwhile: impl FnOnce() -> Result<()>) -> Result<(Instant, Wire)> {
        self.quiet()?;
        if set.is_empty() {
            std::thread::sleep(SURE_TIME);
        }
        self.relay.off();
        meanwhile()?;
        match set {
            [] => ensure!(self.walk().is_err(), "the mount found its home beyond a link that is off"),
            set => self.set(set)?,
        }
        self.wait_attached(false)?;
        std::thread::sleep(GAP);
        let before = self.wire();
        self.relay.on();
        Ok((self.wait_for_a_packet()?, before))
    }

    /// Kills the mount as a crash would, also while programs use it.
    pub fn kill(&mut self) -> Result<()> {
        self.mount.take().map_or(Ok(()), Daemon::kill)?;
        mounts::force_unmount(&self.mount_point)
    }

    fn clear(&mut self) -> Result<()> {
        // Aborting the mount frees the programs that wait for it, so this comes before the process.
        mounts::force_unmount(&self.mount_point)?;
        self.kill()?;
        ensure!(!mounts::is_mounted(&self.mount_point)?, "{} is still mounted", self.mount_point.display());
        fs::remove_dir_all(&self.root).with_context(|| format!("remove {}", self.root.display()))
    }
}

/// Longest time for a command that uses a slow link.
const LONG: Duration = Duration::from_secs(3600);

impl Drop for Rig {
    fn drop(&mut self) {
        if let Err(error) = self.clear() {
            eprintln!("bench: take down {}: {error:#}", self.root.display());
        }
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if let Err(error) = self.clear() {
            eprintln!("bench: take down {}: {error:#}", self.root.display());
        }
    }
}
