//! The cluster's network: a network namespace with a bridge, and on it the control plane and a tap device for each node.
//!
//! The namespace lives as long as a process in it, which ends with this one. Nothing of the machine's own network is
//! used or changed.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::call::Call;

use super::process::{BOUND, Process};
use super::wait;

/// The bridge, and the control plane's address on it.
const BRIDGE: &str = "nodes";
pub(crate) const CONTROL_PLANE: &str = "172.31.99.1";
pub(crate) const PREFIX_LENGTH: u8 = 24;
pub(crate) const CLUSTER_CIDR: &str = "10.244.0.0/16";
pub(crate) const SERVICE_CIDR: &str = "10.96.0.0/16";
/// The first address of `SERVICE_CIDR`: the Service of the API server.
pub(crate) const API_SERVICE: &str = "10.96.0.1";
/// The usual address of a cluster's resolver.
pub(crate) const DNS_SERVICE: &str = "10.96.0.10";

/// The longest time until the namespace exists.
const LIMIT: Duration = Duration::from_secs(10);

/// The addresses and names of one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Address {
    /// From 1.
    number: u8,
}

/// The cluster's nodes.
pub(crate) const NODES: [Address; 2] = [Address { number: 1 }, Address { number: 2 }];

impl Address {
    /// The node's name in Kubernetes, and that of its tap device.
    pub(crate) fn name(self) -> String {
        format!("node{}", self.number)
    }

    pub(crate) fn ip(self) -> String {
        format!("172.31.99.{}", 10 + self.number)
    }

    pub(crate) fn mac(self) -> String {
        format!("52:54:00:00:00:{:02x}", self.number)
    }

    /// As in machine-id(5).
    pub(crate) fn machine_id(self) -> String {
        format!("{:032x}", self.number)
    }

    /// The addresses of the Pods on this node.
    pub(crate) fn pod_cidr(self) -> String {
        format!("10.244.{}.0/24", self.number)
    }
}

/// The namespace.
#[derive(Debug)]
pub(crate) struct Network {
    holder: Process,
}

impl Network {
    /// Creates the namespace and its devices; `logs` is the folder for the holder's output.
    pub(crate) fn create(logs: &Path) -> Result<Self> {
        let mut command = Command::new(BOUND[0]);
        command.args(&BOUND[1..]).args(["unshare", "--net", "sleep", "infinity"]);
        let mut holder = Process::start("the network namespace", command, &logs.join("namespace.log"))?;
        let own = namespace("self")?;
        // Before `unshare`, the process is in the machine's own namespace.
        wait::until("the network namespace", LIMIT, || {
            holder.check()?;
            Ok(namespace(&holder.id().to_string()).ok().filter(|theirs| *theirs != own))
        })?;
        let network = Self { holder };
        for line in devices() {
            network.call("set up the cluster's network", "ip").args(line.split(' ')).read()?;
        }
        Ok(network)
    }

    pub(crate) fn check(&mut self) -> Result<()> {
        self.holder.check()
    }

    /// The words before a program that runs in the namespace.
    pub(crate) fn entry(&self) -> Vec<String> {
        ["nsenter", "--target", &self.holder.id().to_string(), "--net", "--"].map(str::to_owned).to_vec()
    }

    /// A short-lived program in the namespace.
    pub(crate) fn call(&self, what: &str, program: impl AsRef<std::ffi::OsStr>) -> Call {
        let entry = self.entry();
        Call::new(what, &entry[0]).args(&entry[1..]).arg(program)
    }

    /// A long-lived program in the namespace.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let entry = self.entry();
        let mut command = Command::new(&entry[0]);
        command.args(&entry[1..]).args(BOUND).arg(program);
        command
    }
}

/// The identity of a process's network namespace.
fn namespace(process: &str) -> Result<String> {
    let path = format!("/proc/{process}/ns/net");
    let link = fs::read_link(&path).with_context(|| format!("could not read {path}"))?;
    let Some(name) = link.to_str() else { bail!("{path} is not text") };
    Ok(name.to_owned())
}

/// The arguments of `ip`.
fn devices() -> Vec<String> {
    let mut lines = vec![
        "link set lo up".to_owned(),
        format!("link add name {BRIDGE} type bridge"),
        format!("address add {CONTROL_PLANE}/{PREFIX_LENGTH} dev {BRIDGE}"),
        format!("link set {BRIDGE} up"),
    ];
    for node in NODES {
        let name = node.name();
        lines.push(format!("tuntap add mode tap name {name}"));
        lines.push(format!("link set {name} master {BRIDGE} up"));
        lines.push(format!("route add {} via {}", node.pod_cidr(), node.ip()));
    }
    // The API server and tests on the host reach Services through a node.
    lines.push(format!("route add {SERVICE_CIDR} via {}", NODES[0].ip()));
    lines
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn nodes_share_nothing() {
        let all: BTreeSet<String> =
            NODES.iter().flat_map(|node| [node.name(), node.ip(), node.mac(), node.pod_cidr()]).collect();
        assert_eq!(all.len(), 4 * NODES.len());
    }

    #[test]
    fn every_process_has_a_namespace() {
        assert!(namespace("self").unwrap().starts_with("net:["));
        assert!(namespace("0").is_err());
    }
}
