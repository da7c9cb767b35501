//! A file system grows from one node to five while programs use it, loses the node that leads for
//! good, has another one drained, and ends on three. No program sees an error, and each byte is
//! right. The nodes are in network namespaces of their own.

mod common;
#[path = "common/network.rs"]
mod network;
#[path = "common/nodes.rs"]
mod nodes;

use common::{Mounted, run, starling};
use network::Network;
use nodes::{answer, invite, joining, leader, led_by_other_than, nodes, voters, wait};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::Duration;

/// Files of each program.
const FILES: u64 = 8;

/// What version `n` of a file of a program holds: from its first line, all is known.
fn version(name: &str, n: u64) -> Vec<u8> {
    format!("{name} {n}\n").repeat(1 + (n * 7919 % 3000) as usize).into_bytes()
}

/// The version that a file holds. It must hold all of it, and be of this program.
fn version_at(path: &Path, name: &str) -> io::Result<u64> {
    let found = fs::read(path)?;
    let first = String::from_utf8_lossy(&found).lines().next().unwrap_or_default().to_string();
    let number = first.strip_prefix(name).and_then(|rest| rest.trim().parse().ok());
    let n = number.unwrap_or_else(|| panic!("{} begins with {first:?}", path.display()));
    assert!(found == version(name, n), "{}: {} bytes of version {n}", path.display(), found.len());
    Ok(n)
}

/// A program at a node: it replaces its files, syncs, and reads those of all programs.
struct Program {
    name: String,
    ends: Arc<AtomicBool>,
    /// The version of each file that is synced.
    synced: Arc<Mutex<BTreeMap<u64, u64>>>,
    thread: JoinHandle<Result<(), String>>,
}

impl Program {
    fn start(node: &Mounted, name: &str) -> Program {
        let (ends, synced) = (Arc::new(AtomicBool::new(false)), Arc::<Mutex<BTreeMap<u64, u64>>>::default());
        let (root, own, known, end) = (node.mountpoint.clone(), name.to_string(), synced.clone(), ends.clone());
        let thread = std::thread::spawn(move || {
            fs::create_dir(root.join(&own)).map_err(|e| format!("mkdir {own}: {e}"))?;
            for n in 0.. {
                if end.load(SeqCst) {
                    break;
                }
                let failed = |what: &str, e: io::Error| format!("at {}, step {n}, {what}: {e}", root.display());
                replace(&root.join(&own), &own, n).map_err(|e| failed("replace", e))?;
                known.lock().expect("no program panics").insert(n % FILES, n);
                read_all(&root).map_err(|e| failed("read", e))?;
                std::thread::sleep(Duration::from_millis(50));
            }
            Ok(())
        });
        Program { name: name.to_string(), ends, synced, thread }
    }

    /// Ends it. It must have seen no error.
    fn end(self) -> Wrote {
        self.ends.store(true, SeqCst);
        self.thread.join().expect("what the program read was right").expect("no call of the program fails");
        let versions = self.synced.lock().expect("it has ended").clone();
        Wrote { name: self.name, versions }
    }

    /// What it had synced, when its node is gone.
    fn gone(self) -> Wrote {
        let ended = self.thread.join().expect("what the program read was right");
        assert!(ended.is_err(), "its calls fail when its node is gone");
        let versions = self.synced.lock().expect("it has ended").clone();
        Wrote { name: self.name, versions }
    }
}

/// Replaces a file by its next version, durably.
fn replace(folder: &Path, name: &str, n: u64) -> io::Result<()> {
    let new = folder.join("new");
    let mut file = fs::File::create(&new)?;
    file.write_all(&version(name, n))?;
    file.sync_all()?;
    fs::rename(new, folder.join(format!("file-{}", n % FILES)))?;
    fs::File::open(folder)?.sync_all()
}

/// Reads the files of all programs.
fn read_all(root: &Path) -> io::Result<()> {
    for folder in fs::read_dir(root)? {
        let (folder, name) = folder.map(|found| (found.path(), found.file_name().display().to_string()))?;
        for n in 0..FILES {
            match version_at(&folder.join(format!("file-{n}")), &name) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
    }
    Ok(())
}

/// What a program had synced.
struct Wrote {
    name: String,
    versions: BTreeMap<u64, u64>,
}

impl Wrote {
    fn check(&self, root: &Path) {
        assert!(self.versions.len() as u64 == FILES, "{} wrote too little to tell: {:?}", self.name, self.versions);
        for (file, synced) in &self.versions {
            let path = root.join(&self.name).join(format!("file-{file}"));
            let found = version_at(&path, &self.name).expect("it is there");
            assert!(found == *synced || found == synced + FILES, "{}: {found}, not {synced}", path.display());
        }
    }
}

/// Number of stores of each node, in ascending order.
fn store_counts(of: &Mounted) -> Vec<usize> {
    let all = nodes(of)["nodes"].as_array().expect("nodes").clone();
    let mut counts: Vec<usize> = all.iter().map(|node| node["stores"].as_array().expect("stores").len()).collect();
    counts.sort_unstable();
    counts
}

/// Segments that lack fragments, as the node that leads says.
fn lacking(leader: &Mounted) -> Value {
    let said = answer(starling().arg("status").arg("--data").arg(&leader.data));
    let at = if said["leads"].is_null() { &said } else { &said["leads"] };
    at["redundancy"]["lacking_segments"].clone()
}

fn node_of<'a>(nodes: &'a BTreeMap<String, Mounted>, name: &str) -> &'a Mounted {
    nodes.get(name).unwrap_or_else(|| panic!("no node {name}"))
}

fn command(what: &str, name: &str, leader: &Mounted) -> std::process::Command {
    let mut command = starling();
    command.args(["node", what, name, "--data"]).arg(&leader.data);
    command
}

/// Address and port at which the node on a host of the network listens.
fn listen(host: usize) -> String {
    format!("{}:7440", Network::address(host))
}

/// The first node, on the first host.
fn first_node(below: &Path, network: &Network) -> Mounted {
    let node = Mounted { mountpoint: below.join("one.mnt"), data: below.join("one.data") };
    fs::create_dir(&node.mountpoint).expect("mount point");
    let mut command = starling();
    command.arg("up").arg(&node.mountpoint).arg("--data").arg(&node.data).args(["--background", "--listen"]);
    command.args([&listen(0), "--stores", "5", "--parity", "2", "--store-size", "256MiB"]);
    network.host(0).enter(&mut command);
    run(&mut command);
    node
}

/// A node on another host, which takes a store, and votes.
fn join_at(below: &Path, network: &Network, host: usize, leader: &Mounted, name: &str) -> Mounted {
    let (store, listen) = (below.join(format!("{name}.stores")).display().to_string(), listen(host));
    let flags = ["--name", name, "--background", "--listen", &listen, "--store", &store];
    let (node, mut command) = joining(below, name, &invite(leader, &[]), &flags);
    network.host(host).enter(&mut command);
    run(&mut command);
    node
}

#[test]
fn a_file_system_grows_to_five_nodes_loses_one_drains_one_and_ends_on_three() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let network = Network::new(5);
    let one = first_node(dir.path(), &network);
    let mut programs = BTreeMap::from([("one".to_string(), Program::start(&one, "one"))]);
    let mut all = BTreeMap::from([("one".to_string(), one)]);

    // It grows.
    for (host, name) in (1..).zip(["two", "three", "four", "five"]) {
        let node = join_at(dir.path(), &network, host, &all["one"], name);
        programs.insert(name.to_string(), Program::start(&node, name));
        all.insert(name.to_string(), node);
    }
    wait("the stores do not spread", || store_counts(&all["five"]) == [1, 1, 1, 1, 1]);
    wait("five nodes do not vote", || voters(&all["five"]) == 5);
    wait("the stores are not compared", || lacking(&all["one"]) == json!(0));

    // The node that leads is lost for good, with its disks.
    let lost = leader(&all["two"]);
    let one = all.remove("one").expect("the first node");
    one.kill();
    fs::remove_dir_all(&one.data).expect("its disks are lost");
    let mut wrote = vec![programs.remove("one").expect("its program").gone()];
    let leads = led_by_other_than(&all["two"], &lost);
    let said = answer(command("remove", &lost, node_of(&all, &leads)).arg("--dead"));
    assert_eq!((&said["removed"], said["made_anew"].as_array().map(Vec::len)), (&json!(lost), Some(1)), "{said}");
    wait("the lost store is not restored", || lacking(node_of(&all, &leads)) == json!(0));
    wait("three of four nodes do not vote", || voters(node_of(&all, &leads)) == 3);

    // Another one is to leave.
    let leaves = all.keys().find(|name| **name != leads).expect("one that does not lead").clone();
    run(&mut command("drain", &leaves, node_of(&all, &leads)));
    let drained =
        |node: &Value| node["name"] == json!(leaves) && node["stores"] == json!([]) && node["managers"] == json!(0);
    wait("the node does not drain", || {
        nodes(node_of(&all, &leads))["nodes"].as_array().expect("nodes").iter().any(drained)
    });
    wrote.push(programs.remove(&leaves).expect("its program").end());
    all.remove(&leaves).expect("the node").down();
    run(&mut command("remove", &leaves, node_of(&all, &leads)));

    // It ends on three, whole.
    let leader = node_of(&all, &leads);
    wait("the stores do not spread", || store_counts(leader) == [1, 2, 2]);
    wait("three nodes do not vote", || voters(leader) == 3);
    wait("redundancy is not whole", || lacking(leader) == json!(0));
    let said = nodes(leader)["survives"].to_string();
    assert!(said.contains("the end of any node"), "{said}");
    wrote.extend(programs.into_values().map(Program::end));
    let mounts: Vec<PathBuf> = all.values().map(|node| node.mountpoint.clone()).collect();
    assert_eq!((wrote.len(), mounts.len()), (5, 3));
    for mount in &mounts {
        wrote.iter().for_each(|wrote| wrote.check(mount));
    }
    let report = run(starling().arg("scrub").arg("--data").arg(&leader.data));
    assert!(report.contains("0 missing, 0 damaged"), "{report}");
    for node in all.values() {
        node.down();
    }
}
