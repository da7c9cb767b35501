//! Nodes in network namespaces of their own build one source tree together, in one directory. One
//! more joins meanwhile, and one is killed and joins in again. Every mount then has, byte for byte,
//! what a build on a local disk gives.

mod common;
#[path = "common/lua.rs"]
mod lua;
#[path = "common/network.rs"]
mod network;

use common::{Mounted, run, starling, tree};
use linkem::Namespace;
use network::Network;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest wait for what is to happen.
const LONG: Duration = Duration::from_secs(120);

/// An object gets its name when it is whole, so that one that a killed node left behind counts only
/// if all of it is there.
const MAKEFILE: &str = "\
OBJECTS := $(patsubst %.c,%.o,$(filter-out luac.c onelua.c ltests.c,$(wildcard *.c)))
lua: $(OBJECTS)
\t$(CC) -o $@ $^ -lm
%.o: %.c $(wildcard *.h)
\t$(CC) -O1 -c -o $@.part $< && mv $@.part $@
";

/// A node on a host of the network.
struct Node {
    host: Namespace,
    listen: String,
    mounted: Mounted,
}

impl Node {
    fn new(below: &Path, network: &Network, number: usize) -> Node {
        let path = |end: &str| below.join(format!("node{number}.{end}"));
        let listen = format!("{}:7440", Network::address(number));
        let mounted = Mounted { mountpoint: path("mnt"), data: path("data") };
        Node { host: network.host(number).clone(), listen, mounted }
    }

    /// A command of this node.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = starling();
        self.host.enter(command.args(words).arg(&self.mounted.mountpoint).arg("--data").arg(&self.mounted.data));
        command
    }

    /// Serves the file system as its first node.
    fn serve(&self) {
        fs::create_dir(&self.mounted.mountpoint).expect("mount point");
        run(self.command(&["up"]).args(["--store-size", "512MiB", "--background", "--listen", &self.listen]));
    }

    fn join(&self, first: &Node) {
        let said = run(starling().args(["node", "invite", "--data"]).arg(&first.mounted.data));
        let invitation = said.lines().last().expect("an invitation");
        run(self.command(&["node", "join", invitation]).arg("--background"));
    }

    fn start_again(&self) {
        run(self.command(&["up"]).arg("--background"));
    }

    fn sources(&self) -> PathBuf {
        self.mounted.mountpoint.join("lua")
    }

    /// Makes these objects at this node.
    fn make(&self, objects: &[String]) -> Child {
        let mut make = Command::new("make");
        make.arg("-j2").arg("-C").arg(self.sources()).args(objects).stdout(Stdio::null()).stderr(Stdio::piped());
        self.host.enter(&mut make);
        make.spawn().expect("make")
    }

    fn count(&self, end: &str) -> usize {
        let names = fs::read_dir(self.sources()).expect("list").flatten().map(|entry| entry.file_name());
        names.filter(|name| name.to_string_lossy().ends_with(end)).count()
    }
}

fn finish(make: Child) {
    let output = make.wait_with_output().expect("wait");
    assert!(output.status.success(), "make: {}", common::text(&output));
}

fn wait(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The contents of all files below a folder, by their paths in it.
fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let name = |path: PathBuf| path.strip_prefix(folder).expect("below it").to_owned();
    tree(folder).into_iter().map(|(path, bytes)| (name(path), bytes)).collect()
}

/// Fails with the names of files that differ.
fn assert_same(found: &BTreeMap<PathBuf, Vec<u8>>, right: &BTreeMap<PathBuf, Vec<u8>>, at: usize) {
    let names: std::collections::BTreeSet<_> = found.keys().chain(right.keys()).collect();
    let differing: Vec<_> = names.into_iter().filter(|name| found.get(*name) != right.get(*name)).collect();
    assert!(differing.is_empty(), "at node {at}: {differing:?}");
}

#[test]
fn nodes_build_one_tree_together_while_one_joins_and_one_is_killed() {
    lua::bring_tools();
    let dir = tempfile::tempdir().expect("temporary folder");
    let local = dir.path().join("local");
    lua::put_sources(&local);
    fs::write(local.join("Makefile"), MAKEFILE).expect("Makefile");
    let network = Network::new(4);
    let nodes: Vec<Node> = (0..4).map(|number| Node::new(dir.path(), &network, number)).collect();
    nodes[0].serve();
    nodes[1].join(&nodes[0]);
    nodes[2].join(&nodes[0]);
    run(Command::new("cp").arg("-r").arg(&local).arg(nodes[1].sources()));
    let sources = contents(&local);
    assert_eq!(contents(&nodes[2].sources()).len(), sources.len());

    let is_source = |name: &str| name.ends_with(".c") && !["luac.c", "onelua.c", "ltests.c"].contains(&name);
    let names = sources.keys().map(|path| path.display().to_string()).filter(|name| is_source(name));
    let objects: Vec<String> = names.map(|name| format!("{}o", name.trim_end_matches('c'))).collect();
    assert!(objects.len() > 25, "{objects:?}");
    let share = |at: usize| objects.iter().skip(at).step_by(4).cloned().collect::<Vec<_>>();
    let (first, second, mut victim) = (nodes[0].make(&share(0)), nodes[1].make(&share(1)), nodes[2].make(&share(2)));

    wait("nothing is built", || nodes[0].count(".o") >= 2);
    nodes[3].join(&nodes[0]);
    let fourth = nodes[3].make(&share(3));
    wait("the node to be killed builds nothing", || {
        share(2).iter().any(|object| nodes[0].sources().join(object).exists())
    });
    assert!(victim.try_wait().expect("make").is_none(), "the node is killed when its share is built");
    nodes[2].mounted.kill();
    assert!(!victim.wait_with_output().expect("wait").status.success(), "make goes on without its file system");
    nodes[2].start_again();
    finish(nodes[2].make(&share(2)));
    [first, second, fourth].into_iter().for_each(finish);
    finish(nodes[2].make(&["lua".to_string()]));
    assert_eq!(run(Command::new(nodes[3].sources().join("lua")).arg("print(6 * 7)")).trim(), "42");

    // What the killed node had begun.
    run(Command::new("sh").args(["-c", "rm -f *.part"]).current_dir(nodes[1].sources()));
    run(Command::new("make").arg("-j2").arg("-C").arg(&local).stdout(Stdio::null()));
    let right = contents(&local);
    assert!(right.len() > sources.len() + objects.len());
    for (at, node) in nodes.iter().enumerate() {
        assert_same(&contents(&node.sources()), &right, at);
    }
    nodes.iter().rev().for_each(|node| node.mounted.down());
    let checked = run(starling().arg("fsck").arg("--data").arg(&nodes[0].mounted.data));
    assert!(checked.contains("no problems"), "{checked}");
}
