//! Another name for each name: `pod-17` for the seventeenth Pod.
//!
//! Owns which names stay because viptrace recognises something by them, and what stays of a text. A name that is not on
//! one of these lists is replaced, whatever it is.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    net::{IpAddr, SocketAddr},
};

use serde::{Deserialize as _, de::value::StrDeserializer};
use strum::{Display, EnumIter, IntoEnumIterator as _};

use super::addresses::Addresses;
use crate::{net::Cidr, rules::chains, time::Timestamp};

/// The most different names of one sort that are told apart.
const MAX_NAMES: usize = 1 << 20;
/// The longest replacement of a task's name, in bytes: 15 is the kernel's limit.
const TASK: &str = "task";

/// The sort of a name, as its replacement begins.
#[derive(Clone, Copy, Debug, Display, EnumIter, PartialEq, Eq, Hash)]
#[strum(serialize_all = "lowercase")]
pub(crate) enum Sort {
    Namespace,
    Service,
    Slice,
    Pod,
    Node,
    Zone,
    Port,
    Label,
    Value,
    Host,
    Interface,
    Chain,
    Task,
    Word,
}

/// The names of the recordings that are redacted together, and their addresses.
#[derive(Debug, Default)]
pub(super) struct Names {
    pub(super) addresses: Addresses,
    key: RandomState,
    known: HashMap<Sort, HashMap<String, usize>>,
    /// The sort under which each name was first replaced, for texts.
    sorts: HashMap<String, Sort>,
}

const NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];
const SERVICES: [&str; 2] = ["kubernetes", "kube-dns"];
const PORTS: [&str; 11] =
    ["http", "https", "dns", "dns-tcp", "grpc", "metrics", "http-metrics", "tcp", "udp", "sctp", "healthz"];
const LABELS: [&str; 10] = [
    "app",
    "k8s-app",
    "component",
    "app.kubernetes.io/name",
    "app.kubernetes.io/component",
    "app.kubernetes.io/instance",
    "pod-template-hash",
    "controller-revision-hash",
    ZONE_LABEL,
    "tier",
];
const ZONE_LABEL: &str = "topology.kubernetes.io/zone";
const VALUES: [&str; 3] = ["kube-proxy", "kube-dns", "true"];
/// Programs by which viptrace recognises a sender, and the kernel's threads.
const TASKS: [&str; 14] = [
    "kubelet",
    "kubelite",
    "k3s",
    "k3s-server",
    "k3s-agent",
    "k0s",
    "rke2",
    "microk8s",
    "kube-proxy",
    "conntrack",
    "iptables",
    "nft",
    "ipvsadm",
    "idle",
];
const THREADS: [&str; 4] = ["swapper/", "ksoftirqd/", "kworker/", "rcu_"];
/// The beginnings of interfaces' names that viptrace or its reader recognises; a number may follow.
const INTERFACES: [&str; 20] = [
    "lo",
    "eth",
    "ens",
    "eno",
    "enp",
    "cni",
    "cbr",
    "docker",
    "flannel.",
    "kube-ipvs",
    "nodelocaldns",
    "cilium_host",
    "cilium_net",
    "cilium_vxlan",
    "tunl",
    "vxlan.calico",
    "wireguard.cali",
    "antrea-gw",
    "ovn-k8s-mp",
    "kube-bridge",
];
/// Interfaces of Pods: the beginning stays.
const OF_PODS: [&str; 6] = ["cali", "veth", "lxc", "eni", "azv", "gke"];

/// Tables, chains, sets and maps that kube-proxy and the kernel's tools name alike everywhere.
const RULES: &str = "raw mangle nat filter security PREROUTING INPUT FORWARD OUTPUT POSTROUTING kube-proxy \
    filter-prerouting filter-input filter-forward filter-output filter-output-post-dnat filter-prerouting-pre-dnat \
    filter-output-pre-dnat nat-prerouting nat-output nat-postrouting nodeport-endpoints-check \
    service-endpoints-check firewall-check services masquerading cluster-ips-check mark-for-masquerade reject-chain \
    cluster-ips nodeport-ips no-endpoint-services no-endpoint-nodeports firewall-ips service-ips service-nodeports \
    firewall KUBE-LOOP-BACK KUBE-CLUSTER-IP KUBE-EXTERNAL-IP KUBE-EXTERNAL-IP-LOCAL KUBE-LOAD-BALANCER \
    KUBE-LOAD-BALANCER-FW KUBE-LOAD-BALANCER-LOCAL KUBE-LOAD-BALANCER-SOURCE-CIDR KUBE-LOAD-BALANCER-SOURCE-IP \
    KUBE-NODE-PORT-TCP KUBE-NODE-PORT-LOCAL-TCP KUBE-NODE-PORT-UDP KUBE-NODE-PORT-LOCAL-UDP \
    KUBE-NODE-PORT-SCTP-HASH KUBE-NODE-PORT-LOCAL-SCTP-HASH KUBE-HEALTH-CHECK-NODE-PORT KUBE-IPVS-IPS \
    KUBE-6-LOOP-BACK KUBE-6-CLUSTER-IP KUBE-6-EXTERNAL-IP KUBE-6-EXTERNAL-IP-LOCAL KUBE-6-LOAD-BALANCER \
    KUBE-6-LOAD-BALANCER-FW KUBE-6-LOAD-BALANCER-LOCAL KUBE-6-LOAD-BALANCER-SOURCE-CID \
    KUBE-6-LOAD-BALANCER-SOURCE-IP KUBE-6-NODE-PORT-TCP KUBE-6-NODE-PORT-LOCAL-TCP KUBE-6-NODE-PORT-UDP \
    KUBE-6-NODE-PORT-LOCAL-UDP KUBE-6-NODE-PORT-SCTP-HASH KUBE-6-NODE-PORT-LOCAL-SCTP-HAS \
    KUBE-6-HEALTH-CHECK-NODE-PORT KUBE-6-IPVS-IPS KUBE-KUBELET-CANARY KUBE-IPTABLES-HINT";

/// The chains, sets and maps of one Service port or endpoint in nftables mode: the beginning of their names.
const NFTABLES: [&str; 5] = ["service", "endpoint", "external", "firewall", "affinity"];

/// The words of viptrace's own messages, of the kernel's, of the API server's, and of the rules' languages that stay in a
/// text. None of them is a name there.
const WORDS: &str = "a about above accept across after again against all an and another any are as at attached be because \
    been before began begins below between but by bytes calls can cannot chain chains change changed changes cluster complete \
    connect connection connections content could count dataplane days denied did differ do does dropped each elements \
    empty endpoint endpoints error events every expected failed fault file flight for forbidden found from gave given \
    gives go had has have health his how i if in installed interface into invalid ip ipset iptables ipv4 ipv6 ipvs is \
    it its kernel kernel's kube-ipvs0 kube-proxy kube-proxy's kubelet kubernetes lack lacks length limit line list \
    listing lists loaded log longer lost map masquerade means message metrics mode module more netlink new nft nftables \
    no node node's none not nothing number of off older on one only open or os other others out own packet packets pass \
    permission port position probe process program programs read reader reading reason reasons recorded recorder \
    refused reject reset return root rule rules said same say says seconds section see seen segment sent server set \
    sets since slot so some source started state stated status still such table tables takes tells text than that the \
    their them then there these they this those time timed timeout times to token too took trace traffic tcp tls udp \
    sctp icmp understood unit unknown unreadable until up uptime usable use used value version viptrace was watch were \
    what when where which while who whole why will with within without would write written wrong yes client connect \
    client-go dial deadline exceeded eof dns host unreachable timeout reset peer broken pipe certificate expired \
    unauthorized answers argument arguments began BTF RST RSTs CAP_NET_ADMIN CAP_NET_RAW Connection Connect Forbidden \
    fmt hook hooks IP KUBE-SERVICES kfree_skb tcp_send_reset nf_ct_l4proto_log_invalid kprobe kretprobe raw tracepoint \
    fentry fexit on demand Service Services Pod Pods Node Nodes EndpointSlice EndpointSlices API ready not-ready \
    iptables-save ip6tables-save iptables-nft-save ip6tables-nft-save iptables-legacy-save ip6tables-legacy-save \
    generic save comment match-set dport sport ctstate ctorigdst mark set-xmark to-destination jump goto drop tell told \
    daddr saddr meta l4proto ct dnat snat numgen random mod vmap iif oif iifname oifname th established related \
    portals endpoints service external IPs load balancer Reject ClusterIPs ports";

/// Further words of the changes around a failure, and the fields and units in them.
const CHANGES: &str = "joined left became serving terminating created deleted added removed restarted replaced name deletion \
    requested container condition reporting cordoned uncordoned selector type session affinity externalTrafficPolicy \
    internalTrafficPolicy ClientIP Local externalIPs loadBalancerSourceRanges healthCheckNodePort trafficDistribution \
    publishNotReadyAddresses externalName proxy field fields addresses CIDRs once twice minSyncPeriod feature gate \
    ProxyTerminatingEndpoints true false queued later now runs wrote watches MTU conntrack nf_conntrack_max full entries wall clock forward \
    net.ipv4.vs.conntrack net.ipv4.vs.expire_nodest_conn net.ipv4.vs.conn_reuse_mode hook's \
    viptrace's Pod's Service's ms s min h";

/// Whether the word is a version of Kubernetes, such as `v1.30.5`.
fn is_version(word: &str) -> bool {
    let digits = word.strip_prefix('v').filter(|digits| digits.contains('.') && digits.len() < 16);
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    digits.is_some_and(|digits| digits.split('.').all(is_number))
}

impl Names {
    /// How many names of each sort were replaced.
    pub(super) fn counts(&self) -> impl Iterator<Item = (Sort, usize)> {
        Sort::iter().filter_map(|sort| Some((sort, self.known.get(&sort)?.len())))
    }

    fn replaced(&mut self, sort: Sort, name: &str) -> String {
        if name.is_empty() {
            return String::new();
        }
        let known = self.known.entry(sort).or_default();
        let next = known.len() + 1;
        let number = match known.get(name) {
            Some(number) => *number,
            None if known.len() >= MAX_NAMES => return format!("{sort}-other"),
            None => {
                known.insert(name.to_owned(), next);
                self.sorts.entry(name.to_owned()).or_insert(sort);
                next
            }
        };
        format!("{sort}-{number}")
    }

    fn kept_or(&mut self, kept: &[&str], sort: Sort, name: &str) -> String {
        if kept.contains(&name) { name.to_owned() } else { self.replaced(sort, name) }
    }

    pub(super) fn namespace(&mut self, name: &str) -> String {
        self.kept_or(&NAMESPACES, Sort::Namespace, name)
    }

    pub(super) fn service(&mut self, name: &str) -> String {
        self.kept_or(&SERVICES, Sort::Service, name)
    }

    /// The Pods of kube-proxy keep the beginning of their names.
    pub(super) fn pod(&mut self, name: &str) -> String {
        let other = self.replaced(Sort::Pod, name);
        if name.starts_with("kube-proxy") { format!("kube-proxy-{other}") } else { other }
    }

    pub(super) fn port(&mut self, name: &str) -> String {
        self.kept_or(&PORTS, Sort::Port, name)
    }

    pub(super) fn label(&mut self, label: &str, value: &str) -> (String, String) {
        let value = match label {
            ZONE_LABEL => self.of(Sort::Zone, value),
            _ => self.kept_or(&VALUES, Sort::Value, value),
        };
        (self.kept_or(&LABELS, Sort::Label, label), value)
    }

    pub(super) fn of(&mut self, sort: Sort, name: &str) -> String {
        match sort {
            Sort::Namespace => self.namespace(name),
            Sort::Service => self.service(name),
            Sort::Pod => self.pod(name),
            Sort::Port => self.port(name),
            Sort::Interface => self.interface(name),
            Sort::Chain => self.rule(name),
            Sort::Task => self.task(name),
            _ => self.replaced(sort, name),
        }
    }

    pub(super) fn task(&mut self, name: &str) -> String {
        let is_thread = THREADS.iter().any(|thread| name.starts_with(thread));
        if TASKS.contains(&name) {
            name.to_owned()
        } else if is_thread {
            // The rest is a number, or the work of a module.
            let end = name.find('/').map_or(name.len(), |at| at + 1);
            format!("{}0", name.get(..end).unwrap_or(TASK))
        } else {
            self.replaced(Sort::Task, name)
        }
    }

    pub(super) fn interface(&mut self, name: &str) -> String {
        // A rule may name all that begin alike.
        let (own, all) = name.strip_suffix(['+', '*']).map_or((name, ""), |own| (own, "+"));
        let is_number = |rest: &str| rest.bytes().all(|byte| byte.is_ascii_digit());
        if INTERFACES.iter().any(|begin| own.strip_prefix(begin).is_some_and(is_number)) || own.is_empty() {
            return name.to_owned();
        }
        match OF_PODS.iter().find(|begin| own.starts_with(*begin)) {
            Some(begin) if *begin == own => name.to_owned(),
            Some(begin) => format!("{begin}{}{all}", self.replaced(Sort::Interface, own)),
            None => format!("{}{all}", self.replaced(Sort::Interface, own)),
        }
    }

    /// A uid stays a UUID.
    pub(super) fn uid(&self, uid: &str) -> String {
        if uid.is_empty() {
            return String::new();
        }
        let (high, low) = (self.key.hash_one(("uid", 0, uid)), self.key.hash_one(("uid", 1, uid)));
        let hex = format!("{high:016x}{low:016x}");
        let part = |range: std::ops::Range<usize>| hex.get(range).unwrap_or_default();
        [part(0..8), part(8..12), part(12..16), part(16..20), part(20..32)].join("-")
    }

    fn base32(&self, text: &str, digits: u32) -> String {
        let hash =
            (u128::from(self.key.hash_one((text, 0))) << 64) | u128::from(self.key.hash_one((text, 1)));
        (0..digits)
            .filter_map(|digit| b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567".get((hash >> (5 * digit) & 31) as usize))
            .map(|byte| char::from(*byte))
            .collect()
    }

    /// A table, chain, set or map of the rules. Kube-proxy's keep their form: their names have a hash of the Service's, from
    /// which it could be guessed, and in nftables mode the name itself.
    pub(super) fn rule(&mut self, name: &str) -> String {
        if RULES.split_ascii_whitespace().any(|rule| rule == name)
            || chains::is_kube_proxys(name) && !chains::is_of_service(name)
        {
            return name.to_owned();
        }
        if chains::is_of_service(name)
            && let Some((prefix, hash)) = name.rsplit_once('-')
        {
            return format!("{prefix}-{}", self.base32(hash, 16));
        }
        if let Some(anonymous) = name.strip_prefix("__map").or_else(|| name.strip_prefix("__set"))
            && anonymous.bytes().all(|byte| byte.is_ascii_digit())
        {
            return name.to_owned();
        }
        let mut parts = name.splitn(3, '-');
        if let (Some(kind), Some(hash), Some(rest)) = (parts.next(), parts.next(), parts.next())
            && NFTABLES.contains(&kind)
            && hash.len() == 8
            && let Some(rest) = self.nftables(rest)
        {
            return format!("{kind}-{}-{rest}", self.base32(name, 8));
        }
        let start = if name.starts_with("KUBE-") { "KUBE-" } else { "" };
        format!("{start}{}", self.replaced(Sort::Chain, name))
    }

    /// `NAMESPACE/SERVICE/PROTOCOL/PORT`, and of an endpoint also `__ADDRESS/PORT`.
    fn nftables(&mut self, rest: &str) -> Option<String> {
        let (port, endpoint) = rest.split_once("__").map_or((rest, None), |(port, end)| (port, Some(end)));
        let parts: Vec<&str> = port.split('/').collect();
        let [namespace, service, protocol @ ("tcp" | "udp" | "sctp"), port] = parts.as_slice() else {
            return None;
        };
        let mut other =
            format!("{}/{}/{protocol}/{}", self.namespace(namespace), self.service(service), self.port(port));
        if let Some(endpoint) = endpoint {
            let (ip, port) = endpoint.split_once('/')?;
            // An address of IPv6 has dots in the place of its colons.
            let ip = ip.parse().or_else(|_| ip.replace('.', ":").parse::<IpAddr>()).ok()?;
            let ip = self.addresses.of(ip).to_string().replace(':', ".");
            other = format!("{other}__{ip}/{}", port.parse::<u16>().ok()?);
        }
        Some(other)
    }

    /// The target of a trace, as typed.
    pub(super) fn target(&mut self, target: &str) -> String {
        if let Some(address) = self.address(target) {
            return address;
        }
        let parts: Vec<&str> = target.split('/').collect();
        match parts.as_slice() {
            [sort @ ("pod" | "pods" | "po"), namespace, name] => {
                format!("{sort}/{}/{}", self.namespace(namespace), self.pod(name))
            }
            [sort @ ("service" | "services" | "svc"), namespace, name] => {
                format!("{sort}/{}/{}", self.namespace(namespace), self.service(name))
            }
            [namespace, name] => format!("{}/{}", self.namespace(namespace), self.service(name)),
            _ => self.text(target),
        }
    }

    /// `v1.30.5` of a version: what follows may be anybody's.
    pub(super) fn version(version: &str) -> String {
        version.chars().take_while(|c| c.is_ascii_digit() || matches!(c, 'v' | '.')).take(16).collect()
    }

    /// An address, also with its port or the length of its prefix; `None` if it is another text.
    pub(super) fn address(&mut self, text: &str) -> Option<String> {
        if let Ok(ip) = text.parse::<IpAddr>() {
            return Some(self.addresses.of(ip).to_string());
        }
        if let Ok(end) = text.parse::<SocketAddr>() {
            return Some(SocketAddr::new(self.addresses.of(end.ip()), end.port()).to_string());
        }
        let Cidr { base, prefix } = Cidr::parse(text)?;
        Some(format!("{}/{prefix}", self.addresses.range(base, prefix)))
    }

    /// A text for people: addresses and names are replaced, words of messages stay.
    pub(super) fn text(&mut self, text: &str) -> String {
        let is_part = |c: char| {
            c.is_alphanumeric() || matches!(c, '.' | ':' | '/' | '-' | '_' | '[' | ']' | '@' | '\'')
        };
        let (mut other, mut rest) = (String::new(), text);
        while let Some(first) = rest.chars().next() {
            let end = rest.find(|c| is_part(c) != is_part(first)).unwrap_or(rest.len());
            let (piece, after) = rest.split_at_checked(end).unwrap_or((rest, ""));
            if is_part(first) {
                other.push_str(&self.piece(piece));
            } else {
                other.push_str(piece);
            }
            rest = after;
        }
        other
    }

    fn piece(&mut self, piece: &str) -> String {
        let own = piece.trim_end_matches(['.', ':', '\'']);
        if Timestamp::deserialize(StrDeserializer::<serde::de::value::Error>::new(own)).is_ok() {
            return piece.to_owned();
        }
        if let Some(address) = self.address(own) {
            return address + piece.get(own.len()..).unwrap_or_default();
        }
        let (mut other, mut rest) = (String::new(), piece);
        while let Some((start, end)) = colons(rest) {
            let (before, run, after) = (rest.get(..start), rest.get(start..end), rest.get(end..));
            let (Some(before), Some(run), Some(after)) = (before, run, after) else { break };
            other.push_str(&self.words(before));
            other.push_str(&self.address(run).unwrap_or_else(|| self.replaced(Sort::Word, run)));
            rest = after;
        }
        other + &self.words(rest)
    }

    fn words(&mut self, piece: &str) -> String {
        let mut other = String::new();
        for part in piece.split_inclusive(['/', ':', '[', ']', '@', '=']) {
            let word = part.trim_end_matches(['/', ':', '[', ']', '@', '=', '.']);
            let end = part.get(word.len()..).unwrap_or_default();
            other.push_str(&self.word(word));
            other.push_str(end);
        }
        other
    }

    fn word(&mut self, word: &str) -> String {
        let is_flag = |flag: &str| flag.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-');
        let whole = match word.as_bytes() {
            // 12.5 seconds.
            [whole @ .., b'.', b'0'..=b'9'] if !whole.is_empty() => whole,
            whole => whole,
        };
        let is_number = whole.iter().all(u8::is_ascii_digit) && word.len() <= 10;
        if word.is_empty() || is_number || word.starts_with('-') && is_flag(word) {
            return word.to_owned();
        }
        if let Some(address) = self.address(word) {
            return address;
        }
        if let Some(sort) = self.sorts.get(word).copied() {
            return self.of(sort, word);
        }
        let words = || WORDS.split_ascii_whitespace().chain(CHANGES.split_ascii_whitespace());
        if words().any(|known| known.eq_ignore_ascii_case(word))
            || is_version(word)
            || NAMESPACES.contains(&word)
            || RULES.split_ascii_whitespace().any(|rule| rule == word)
        {
            return word.to_owned();
        }
        if chains::is_of_service(word) {
            return self.rule(word);
        }
        self.replaced(Sort::Word, word)
    }
}

/// The first part that can be an address of IPv6 or of Ethernet, as a part of a longer word: hexadecimal digits with at least two
/// colons, and no time of day.
fn colons(text: &str) -> Option<(usize, usize)> {
    let is_digit = |c: char| c.is_ascii_hexdigit() || matches!(c, ':' | '.');
    let mut from = 0;
    loop {
        let start = from + text.get(from..)?.find(is_digit)?;
        let rest = text.get(start..)?;
        let run = rest.get(..rest.find(|c| !is_digit(c)).unwrap_or(rest.len()))?;
        from = start + run.len();
        let run = run.trim_end_matches('.');
        let run = if run.ends_with("::") { run } else { run.trim_end_matches(':') };
        if run.matches(':').count() >= 2 && !is_time(run) {
            return Some((start, start + run.len()));
        }
    }
}

/// Whether it is like 12:34:56.789.
fn is_time(text: &str) -> bool {
    let is_short =
        |part: &str| (1..=2).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit());
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    fraction.bytes().all(|byte| byte.is_ascii_digit())
        && whole.split(':').count() == 3
        && whole.split(':').all(is_short)
}
