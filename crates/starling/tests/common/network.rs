//! Hosts in network namespaces of their own, joined by a switch. Needs root.

use crate::common::programs::bring;
use crate::common::run;
use linkem::Namespace;
use std::process::Command;

/// A network with a switch in a namespace of its own.
pub struct Network {
    switch: Namespace,
    hosts: Vec<Namespace>,
}

impl Network {
    /// A network with so many hosts.
    pub fn new(count: usize) -> Network {
        bring("ip", "iproute2");
        let namespace = || Namespace::new().expect("make a network namespace (as root?)");
        let network = Network { switch: namespace(), hosts: (0..count).map(|_| namespace()).collect() };
        network.ip(&network.switch, "link add switch type bridge");
        network.ip(&network.switch, "link set switch up");
        for (number, host) in network.hosts.iter().enumerate() {
            let path = host.path();
            let path = path.display();
            network.ip(&network.switch, &format!("link add port{number} type veth peer name wire netns {path}"));
            network.ip(&network.switch, &format!("link set port{number} master switch up"));
            network.ip(host, &format!("address add {}/24 dev wire", Network::address(number)));
            network.ip(host, "link set wire up");
        }
        network
    }

    fn ip(&self, namespace: &Namespace, arguments: &str) {
        let mut command = Command::new("ip");
        namespace.enter(command.args(arguments.split(' ')));
        run(&mut command);
    }

    /// The namespace of a host.
    pub fn host(&self, number: usize) -> &Namespace {
        &self.hosts[number]
    }

    /// The address of a host, which all others reach.
    pub fn address(number: usize) -> String {
        format!("10.74.40.{}", number + 1)
    }
}
