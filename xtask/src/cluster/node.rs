//! A node: a guest with containerd, kubelet and kube-proxy. The host starts them one by one through the lab's port.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::json;

use crate::cpio::Archive;
use crate::image;
use crate::kernels::Kernel;
use crate::place::Place;
use crate::printer::Printer;
use crate::vm;

use super::binaries::{Binaries, Version};
use super::disk::{Disk, IMAGES, OVERLAY};
use super::images;
use super::network::{Address, CLUSTER_CIDR, CONTROL_PLANE, DNS_SERVICE, NODES, Network, PREFIX_LENGTH};
use super::pki::Authority;
use super::process::{Process, last_words};
use super::remote::{PORT, Remote, Running};
use super::wait;

/// The longest time for QEMU to open its socket.
const SOCKET: Duration = Duration::from_secs(20);
/// The longest time for containerd to answer, and to import an image.
const RUNTIME: Duration = Duration::from_mins(3);
/// The longest time for a short command.
const COMMAND: Duration = Duration::from_secs(30);
/// The longest time for a service to stop.
const STOP: Duration = Duration::from_mins(1);
const MEMORY: &str = "2048M";
const FOLDER: &str = "etc/kubernetes";
const KUBE_PROXY: &str = "kube-proxy";
/// kube-proxy runs with this group, by which a rule recognises its packets.
const KUBE_PROXY_GROUP: &str = "4242";
/// The table of that rule, and the mark that it gives.
const MARKS: &str = "lab-marks";
const KUBE_PROXY_CONFIGURATION: &str = "etc/kubernetes/kube-proxy.json";
const IPVS_MODULES: &str = "modprobe --all ip_vs ip_vs_rr ip_vs_wrr ip_vs_sh";
/// An address of the nodes' network that no machine has, and its hardware address.
const NOWHERE: &str = "172.31.99.200";
const NOBODY: &str = "52:54:00:00:00:c8";
const CONTAINERD: &str = "unix:///run/containerd/containerd.sock";

/// The first release whose kubelet reads the runtime's address from its configuration.
const ENDPOINT_IN_CONFIGURATION: Version = Version::new(1, 27);

/// kube-proxy's mode.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Mode {
    #[default]
    Iptables,
    Ipvs,
    Nftables,
}

impl Mode {
    pub(crate) const ALL: [Self; 3] = [Self::Iptables, Self::Ipvs, Self::Nftables];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Iptables => "iptables",
            Self::Ipvs => "ipvs",
            Self::Nftables => "nftables",
        }
    }

    /// The first release whose kube-proxy has the mode without a feature gate.
    fn first_release(self) -> Version {
        match self {
            Self::Iptables | Self::Ipvs => Version::new(1, 11),
            Self::Nftables => Version::new(1, 31),
        }
    }

    /// Fails if these programs do not have the mode.
    pub(crate) fn check(self, version: Version) -> Result<()> {
        if version < self.first_release() {
            bail!(
                "kube-proxy {version} has no mode {}, which came with {}\nhint: pass a newer Kubernetes with --kubernetes DIR",
                self.name(),
                self.first_release()
            );
        }
        Ok(())
    }
}

/// The parts from which nodes are started.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parts<'a> {
    pub(crate) place: &'a Place,
    pub(crate) binaries: &'a Binaries,
    pub(crate) kernel: &'a Kernel,
    pub(crate) disk: &'a Disk,
    pub(crate) images: &'a [&'a Path],
    pub(crate) authority: &'a Authority,
    pub(crate) mode: Mode,
    /// The folder for sockets and logs.
    pub(crate) state: &'a Path,
}

/// A node, which is stopped when its value goes out of scope.
#[derive(Debug)]
pub(crate) struct Node {
    address: Address,
    remote: Remote,
    services: BTreeMap<&'static str, Running>,
    guest: Process,
}

/// A guest that is starting.
#[derive(Debug)]
pub(crate) struct Boot {
    guest: Process,
    remote: Remote,
    hello: Running,
}

impl Boot {
    /// Starts the guest of a node.
    pub(crate) fn start(network: &Network, parts: Parts<'_>, address: Address) -> Result<Self> {
        let name = address.name();
        let initramfs = parts.state.join(format!("{name}.cpio"));
        write_initramfs(parts, address, &initramfs)?;
        let socket = parts.state.join(format!("{name}.socket"));
        if socket.exists() {
            fs::remove_file(&socket).with_context(|| format!("could not remove {}", socket.display()))?;
        }
        let mut command = network.command(vm::QEMU);
        // Relative paths: a comma in the folder's would end an option.
        command.args(arguments(parts, address, &initramfs)).current_dir(parts.state);
        let mut guest = Process::start(&name, command, &parts.state.join(format!("{name}.log")))?;
        let (remote, hello) = wait::until(&format!("the port of {name}"), SOCKET, || {
            guest.check()?;
            Ok(Remote::connect(&name, &socket).ok())
        })?;
        Ok(Self { guest, remote, hello })
    }

    /// Waits until the guest takes commands. A boot that hangs is repeated, as in `vm`.
    pub(crate) fn finish(
        self,
        printer: &Printer,
        network: &Network,
        parts: Parts<'_>,
        address: Address,
    ) -> Result<Node> {
        let console = parts.state.join(format!("{}.console", address.name()));
        let mut boot = self;
        for left in (0..vm::BOOTS).rev() {
            let Self { guest, remote, hello } = boot;
            match hello.finish(vm::BOOT) {
                Ok(_) => return Ok(Node { address, remote, services: BTreeMap::new(), guest }),
                Err(error) if left == 0 => {
                    return Err(error.context(format!(
                        "{} did not start; {}",
                        address.name(),
                        last_words(&console)
                    )));
                }
                Err(_) => {
                    printer.say(&format!("    {} did not reach its init; restarting it", address.name()));
                }
            }
            drop(guest);
            boot = Self::start(network, parts, address)?;
        }
        bail!("{} was not started", address.name())
    }
}

impl Node {
    pub(crate) fn name(&self) -> String {
        self.address.name()
    }

    pub(crate) fn ip(&self) -> String {
        self.address.ip()
    }

    /// Runs a command in the node and returns its output.
    pub(crate) fn run(&self, words: &[&str]) -> Result<String> {
        self.remote.run(words)
    }

    /// Starts a command in the node.
    pub(crate) fn start(&self, words: &[&str]) -> Result<Running> {
        self.remote.start(words, "", None)
    }

    /// Starts viptrace as root in the node, for this node and with an administrator's kubeconfig.
    pub(crate) fn start_viptrace(&self, verb: &str, flags: &[&str]) -> Result<Running> {
        let (kubeconfig, name) = (format!("--kubeconfig=/{FOLDER}/admin.kubeconfig"), self.name());
        self.start(&[&["viptrace", verb, &kubeconfig, "--node", &name], flags].concat())
    }

    /// Fails if the guest or one of the node's services has ended.
    pub(crate) fn check(&mut self) -> Result<()> {
        self.guest.check()?;
        for (name, service) in &self.services {
            service.check().with_context(|| {
                let log = self.run(&["tail", "-n", "10", &log(name)]).unwrap_or_default();
                format!("{name} failed; the last lines of its log:\n{log}")
            })?;
        }
        Ok(())
    }

    /// Makes the guest a node: kernel settings, network, containerd with the images, kubelet and kube-proxy.
    pub(crate) fn join(&mut self, version: Version, mode: Mode) -> Result<()> {
        for words in self.settings(mode) {
            self.run(&words.iter().map(String::as_str).collect::<Vec<_>>())?;
        }
        self.start_service("containerd", &["containerd"])?;
        wait::until("containerd", RUNTIME, || {
            self.check()?;
            Ok(self.run(&["ctr", "version"]).ok())
        })?;
        self.start_kube_proxy()?;
        let mut kubelet = vec![
            "kubelet".to_owned(),
            format!("--config=/{FOLDER}/kubelet.json"),
            format!("--kubeconfig=/{FOLDER}/kubelet.kubeconfig"),
            format!("--hostname-override={}", self.name()),
            format!("--node-ip={}", self.address.ip()),
        ];
        if version < ENDPOINT_IN_CONFIGURATION {
            kubelet.push("--container-runtime=remote".to_owned());
            kubelet.push(format!("--container-runtime-endpoint={CONTAINERD}"));
        }
        self.start_service("kubelet", &kubelet.iter().map(String::as_str).collect::<Vec<_>>())?;
        self.import_images()
    }

    /// Imports the container images that lie on the disk, which takes most of a node's start.
    fn import_images(&self) -> Result<()> {
        let list = self.run(&["ls", &format!("/{IMAGES}")])?;
        for image in list.split_whitespace() {
            let file = format!("/{IMAGES}/{image}");
            let import =
                ["ctr", "--namespace", "k8s.io", "images", "import", "--snapshotter", "overlayfs", &file];
            let done = self.start(&import)?.finish(RUNTIME)?;
            if done.exit != 0 {
                bail!("containerd on {} does not import {image}: {}", self.name(), done.err.trim());
            }
        }
        Ok(())
    }

    /// Starts a service of the node, with its output in `/var/log`.
    fn start_service(&mut self, name: &'static str, words: &[&str]) -> Result<()> {
        let running = self.remote.start(words, "", Some(&log(name)))?;
        self.services.insert(name, running);
        Ok(())
    }

    pub(crate) fn start_kube_proxy(&mut self) -> Result<()> {
        self.mark_kube_proxy()?;
        let configuration = format!("--config=/{KUBE_PROXY_CONFIGURATION}");
        let group = format!("--regid={KUBE_PROXY_GROUP}");
        self.start_service(KUBE_PROXY, &["setpriv", &group, "--clear-groups", KUBE_PROXY, &configuration])
    }

    /// Writes kube-proxy's configuration for its next start: the mode, and the least time between two syncs, in seconds.
    pub(crate) fn configure_kube_proxy(&self, mode: Mode, min_sync_seconds: Option<u32>) -> Result<()> {
        if mode == Mode::Ipvs {
            self.run(&words(IPVS_MODULES).iter().map(String::as_str).collect::<Vec<_>>())?;
        }
        let text = kube_proxy_configuration(&self.name(), mode, min_sync_seconds);
        let write = format!("cat >/{KUBE_PROXY_CONFIGURATION}");
        let done = self.remote.start(&["sh", "-c", &write], &text, None)?.finish(COMMAND)?;
        if done.exit != 0 {
            bail!("kube-proxy's configuration on {} could not be written: {}", self.name(), done.err.trim());
        }
        Ok(())
    }

    /// Removes the rules of every mode, as before a change of the mode. kube-proxy must not run.
    pub(crate) fn remove_rules(&self) -> Result<()> {
        // That of 1.20 leaves the virtual servers.
        let command = format!(
            "{KUBE_PROXY} --cleanup && if [ -e /proc/net/ip_vs ]; then ipvsadm --clear; fi && \
             if [ -e /sys/class/net/kube-ipvs0 ]; then ip link delete kube-ipvs0; fi"
        );
        self.run(&["sh", "-c", &command]).map(drop)
    }

    /// Sends what goes to the other nodes' Pods to an address that no machine has, so that it is lost between the nodes;
    /// or to those nodes again.
    pub(crate) fn lose_packets(&self, lose: bool) -> Result<()> {
        if lose {
            let neighbour = format!("ip neigh replace {NOWHERE} lladdr {NOBODY} nud permanent dev eth0");
            self.run(&neighbour.split(' ').collect::<Vec<_>>())?;
        }
        for other in NODES.iter().filter(|other| **other != self.address) {
            let ip = other.ip();
            let route =
                format!("ip route replace {} via {}", other.pod_cidr(), if lose { NOWHERE } else { &ip });
            self.run(&route.split(' ').collect::<Vec<_>>())?;
        }
        Ok(())
    }

    /// Drops every packet between kube-proxy and the API server, and nothing else of the node.
    pub(crate) fn cut_off_kube_proxy(&self) -> Result<()> {
        for chain in ["input", "output"] {
            self.nft(&format!("add rule inet {MARKS} {chain} ct mark {KUBE_PROXY_GROUP} drop"))?;
        }
        Ok(())
    }

    pub(crate) fn reconnect_kube_proxy(&self) -> Result<()> {
        self.mark_kube_proxy()
    }

    /// Marks kube-proxy's connections to the API server from their beginning.
    fn mark_kube_proxy(&self) -> Result<()> {
        self.nft(&format!("add table inet {MARKS}"))?;
        self.nft(&format!("flush table inet {MARKS}"))?;
        for chain in ["input", "output"] {
            self.nft(&format!(
                "add chain inet {MARKS} {chain} {{ type filter hook {chain} priority -1 ; }}"
            ))?;
        }
        self.nft(&format!(
            "add rule inet {MARKS} output meta skgid {KUBE_PROXY_GROUP} tcp dport 6443 ct mark set {KUBE_PROXY_GROUP}"
        ))
    }

    fn nft(&self, command: &str) -> Result<()> {
        let words: Vec<&str> = ["nft"].into_iter().chain(command.split(' ')).collect();
        self.run(&words).map(drop)
    }

    pub(crate) fn stop_kube_proxy(&mut self) -> Result<()> {
        self.stop_service(KUBE_PROXY)
    }

    fn stop_service(&mut self, name: &'static str) -> Result<()> {
        let Some(service) = self.services.remove(name) else {
            bail!("{name} does not run on {}", self.name())
        };
        service.terminate()?;
        service.finish(STOP).map(drop)
    }

    /// The commands that set up the kernel and the network.
    fn settings(&self, mode: Mode) -> Vec<Vec<String>> {
        let mut commands = vec![
            words(&format!("hostname {}", self.name())),
            words("mount --make-rshared /"),
            words("modprobe --all virtio_net overlay br_netfilter veth nf_conntrack nf_tables ip_tables"),
        ];
        if mode == Mode::Ipvs {
            commands.push(words(IPVS_MODULES));
        }
        for setting in [
            "net.ipv4.ip_forward=1",
            "net.ipv6.conf.all.forwarding=1",
            "net.bridge.bridge-nf-call-iptables=1",
            "kernel.panic_on_oops=1",
            "vm.overcommit_memory=1",
        ] {
            commands.push(words(&format!("sysctl -q -w {setting}")));
        }
        commands.push(words("ip link set lo up"));
        commands.push(words("ip link set eth0 up"));
        commands.push(words(&format!("ip address add {}/{PREFIX_LENGTH} dev eth0", self.address.ip())));
        commands.push(words(&format!("ip route add default via {CONTROL_PLANE}")));
        for other in NODES.iter().filter(|other| **other != self.address) {
            commands.push(words(&format!("ip route add {} via {}", other.pod_cidr(), other.ip())));
        }
        commands
    }
}

fn words(command: &str) -> Vec<String> {
    command.split(' ').map(str::to_owned).collect()
}

fn log(service: &str) -> String {
    format!("/var/log/{service}.log")
}

/// QEMU's arguments for the guest of a node.
fn arguments(parts: Parts<'_>, address: Address, initramfs: &Path) -> Vec<OsString> {
    let name = address.name();
    let mut arguments: Vec<OsString> = Vec::new();
    let mut add = |words: &[&str]| arguments.extend(words.iter().map(OsString::from));
    add(vm::MACHINE);
    add(&["-name", &name, "-smp", "2", "-m", MEMORY]);
    add(&["-netdev", &format!("tap,id=net,ifname={name},script=no,downscript=no")]);
    add(&["-device", &format!("virtio-net-pci,netdev=net,mac={}", address.mac())]);
    add(&["-chardev", &format!("socket,id=lab,path={name}.socket,server=on,wait=on")]);
    add(&["-device", "virtio-serial-pci", "-device", &format!("virtserialport,chardev=lab,name={PORT}")]);
    add(&["-device", "virtio-rng-pci", "-serial", &format!("file:{name}.console")]);
    let disk = parts.disk.image.to_string_lossy().replace(',', ",,");
    add(&["-drive", &format!("file={disk},format=raw,if=none,id=disk,cache=unsafe,snapshot=on")]);
    add(&["-device", "virtio-blk-pci,drive=disk"]);
    let parameters = [vm::PARAMETERS, &[vm::NO_MITIGATIONS, "lab.mode=node"]].concat().join(" ");
    arguments.extend([OsString::from("-kernel"), parts.kernel.image.clone().into_os_string()]);
    arguments.extend([OsString::from("-initrd"), initramfs.into(), "-append".into(), parameters.into()]);
    arguments
}

/// Writes the initramfs of a node: the common part, then the node's own files.
fn write_initramfs(parts: Parts<'_>, address: Address, file: &Path) -> Result<()> {
    let mut own = Archive::new();
    let mut add = |path: &str, text: String| own.text(&format!("{OVERLAY}/{path}"), text, 0o644);
    let name = address.name();
    add("etc/hostname", format!("{name}\n"));
    add("etc/hosts", format!("127.0.0.1 localhost\n::1 localhost\n{} {name}\n", address.ip()));
    add("etc/machine-id", format!("{}\n", address.machine_id()));
    add("etc/containerd/config.toml", CONTAINERD_CONFIGURATION.replace("SANDBOX", images::BUSYBOX));
    add("etc/cni/net.d/10-lab.conflist", network_configuration(address));
    let authority = parts.authority;
    let serving = authority.issue(&name, None, &[&name, &address.ip()])?;
    add(&format!("{FOLDER}/ca.crt"), authority.certificate().to_owned());
    add(&format!("{FOLDER}/kubelet.crt"), serving.certificate);
    add(&format!("{FOLDER}/kubelet.key"), serving.key);
    for (file, user, group) in [
        ("kubelet", format!("system:node:{name}"), Some("system:nodes")),
        ("kube-proxy", "system:kube-proxy".to_owned(), None),
        ("admin", "admin".to_owned(), Some("system:masters")),
    ] {
        let identity = authority.issue(&user, group, &[])?;
        add(&format!("{FOLDER}/{file}.kubeconfig"), authority.kubeconfig(&identity, CONTROL_PLANE));
    }
    add(&format!("{FOLDER}/kubelet.json"), kubelet_configuration(parts.binaries.version));
    add(KUBE_PROXY_CONFIGURATION, kube_proxy_configuration(&name, parts.mode, None));
    for binary in ["viptrace", "viptrace-lab"] {
        own.file(&format!("{OVERLAY}/usr/bin/{binary}"), &parts.place.release(binary), 0o755);
    }
    for image in parts.images {
        let name = image.file_name().unwrap_or_default().to_string_lossy();
        own.file(&format!("{OVERLAY}/{IMAGES}/{name}"), image, 0o644);
    }
    let boot = fs::read(&parts.disk.boot)
        .with_context(|| format!("could not read {}", parts.disk.boot.display()))?;
    image::write_whole(file, |output| {
        output.write_all(&boot)?;
        own.write(output)
    })
    .map(drop)
}

/// Version 2, which containerd 1 reads and containerd 2 converts.
const CONTAINERD_CONFIGURATION: &str = r#"version = 2
disabled_plugins = [
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs",
]
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "SANDBOX"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "crun"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.crun]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.crun.options]
        BinaryName = "/usr/bin/crun"
        SystemdCgroup = false
"#;

fn network_configuration(address: Address) -> String {
    let configuration = json!({
        "cniVersion": "0.4.0",
        "name": "lab",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "cni0",
                "isGateway": true,
                "hairpinMode": true,
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{"subnet": address.pod_cidr()}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    });
    format!("{configuration:#}\n")
}

fn kubelet_configuration(version: Version) -> String {
    let mut configuration = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": format!("/{FOLDER}/ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": format!("/{FOLDER}/kubelet.crt"),
        "tlsPrivateKeyFile": format!("/{FOLDER}/kubelet.key"),
        // A node has no systemd.
        "cgroupDriver": "cgroupfs",
        "failSwapOn": false,
        // Pods get this address of a resolver; there is none.
        "clusterDomain": "cluster.local",
        "clusterDNS": [DNS_SERVICE],
        "runtimeRequestTimeout": "10m",
        // Nothing could pull an image again.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {
            "imagefs.available": "1%",
            "memory.available": "50Mi",
            "nodefs.available": "1%",
            "nodefs.inodesFree": "1%",
        },
    });
    if version >= ENDPOINT_IN_CONFIGURATION {
        configuration["containerRuntimeEndpoint"] = json!(CONTAINERD);
    }
    format!("{configuration:#}\n")
}

fn kube_proxy_configuration(node: &str, mode: Mode, min_sync_seconds: Option<u32>) -> String {
    let mut configuration = json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": mode.name(),
        "clusterCIDR": CLUSTER_CIDR,
        "hostnameOverride": node,
        "clientConnection": {"kubeconfig": format!("/{FOLDER}/kube-proxy.kubeconfig")},
        // The kernel's own limit stays.
        "conntrack": {"maxPerCore": 0},
    });
    if let Some(seconds) = min_sync_seconds {
        // kube-proxy refuses a syncPeriod that is shorter.
        configuration[mode.name()] =
            json!({"minSyncPeriod": format!("{seconds}s"), "syncPeriod": format!("{}s", seconds * 2)});
    }
    format!("{configuration:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_needs_its_release() {
        assert!(Mode::Iptables.check(Version::new(1, 20)).is_ok());
        assert!(Mode::Nftables.check(Version::new(1, 36)).is_ok());
        let error = Mode::Nftables.check(Version::new(1, 20)).unwrap_err().to_string();
        assert!(error.contains("1.31") && error.contains("hint: "), "{error}");
    }

    #[test]
    fn the_period_between_syncs_is_that_of_the_mode() {
        let plain = kube_proxy_configuration("node1", Mode::Ipvs, None);
        assert!(!plain.contains("minSyncPeriod"));
        let slow = kube_proxy_configuration("node1", Mode::Ipvs, Some(60));
        let slow: serde_json::Value = serde_json::from_str(&slow).unwrap();
        assert_eq!(slow["ipvs"], json!({"minSyncPeriod": "60s", "syncPeriod": "120s"}));
    }

    #[test]
    fn the_kubelet_finds_its_runtime_in_every_release() {
        assert!(!kubelet_configuration(Version::new(1, 20)).contains("containerRuntimeEndpoint"));
        assert!(kubelet_configuration(Version::new(1, 36)).contains("containerRuntimeEndpoint"));
    }
}
