//! kube-proxy's log: its known errors with count, first and last time (K2; catalogue C2, C4, C9, C11).
//!
//! Owns the texts that identify the errors, and the forms of a line: klog's own, klog's JSON, and either one after the
//! prefix of a container runtime (CRI, Docker) or journald. `triage` interprets errors.

use std::{collections::BTreeSet, fmt, net::IpAddr};

use crate::{
    node::Release,
    text::{times, to_the_millisecond},
};

mod age;

pub(crate) use age::{Clock, readable};

/// The most addresses of a node kept.
const MAX_NODE_IPS: usize = 16;
/// The most lines read; a longer log is read from its end.
const MAX_LINES: usize = 500_000;
/// A longer text before `] ` is no header of klog.
const MAX_HEADER_BYTES: usize = 90;
/// A longer text is no version.
const MAX_VERSION_BYTES: usize = 80;
/// The most bytes of an error's text kept.
const MAX_TEXT_BYTES: usize = 300;

/// A known error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Trouble {
    /// The API server rejects the token or certificate (401).
    ApiUnauthorized,
    /// RBAC forbids it (403).
    ApiForbidden,
    /// The API server does not have the requested API version (404).
    ApiVersion,
    /// The API server's certificate is not trusted or has expired.
    ApiCertificate,
    /// Nothing listens, or there is no route.
    ApiRefused,
    /// No answer in time.
    ApiTimeout,
    /// A watch or a list failed for another reason.
    ApiOther,
    /// A watch was interrupted. Alone this is normal: API servers end watches, load balancers cut them.
    WatchCut,
    /// Another program held the iptables lock.
    XtablesLock,
    /// The kernel lacks a table, a match or a target.
    RulesUnsupported,
    /// A batch of rules was rejected as a whole.
    SyncFailed,
    /// IPVS cannot be used here; the process exits.
    IpvsUnusable,
    /// Conntrack entries could not be listed or deleted: stale UDP entries remain (C8).
    ConntrackCleanup,
    /// The configuration was not understood; the process exits.
    ConfigRejected,
    /// The process exited with an unknown error.
    Ended,
}

impl Trouble {
    pub const ALL: [Self; 15] = [
        Self::ApiUnauthorized,
        Self::ApiForbidden,
        Self::ApiVersion,
        Self::ApiCertificate,
        Self::ApiRefused,
        Self::ApiTimeout,
        Self::ApiOther,
        Self::WatchCut,
        Self::XtablesLock,
        Self::RulesUnsupported,
        Self::SyncFailed,
        Self::IpvsUnusable,
        Self::ConntrackCleanup,
        Self::ConfigRejected,
        Self::Ended,
    ];

    /// Whether it means that the API server could not be reached or read.
    pub const fn is_api(self) -> bool {
        matches!(
            self,
            Self::ApiUnauthorized
                | Self::ApiForbidden
                | Self::ApiVersion
                | Self::ApiCertificate
                | Self::ApiRefused
                | Self::ApiTimeout
                | Self::ApiOther
        )
    }

    /// Whether it means that rules could not be written.
    pub const fn is_sync(self) -> bool {
        matches!(self, Self::XtablesLock | Self::RulesUnsupported | Self::SyncFailed)
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::ApiUnauthorized => "the API server rejects its credentials (Unauthorized)",
            Self::ApiForbidden => "RBAC forbids it to read what it needs",
            Self::ApiVersion => "the API server lacks the requested API version",
            Self::ApiCertificate => "the API server's certificate is not accepted",
            Self::ApiRefused => "the API server cannot be reached",
            Self::ApiTimeout => "the API server does not answer in time",
            Self::ApiOther => "reading from the API server fails",
            Self::WatchCut => "a watch was cut off",
            Self::XtablesLock => "another program holds the iptables lock",
            Self::RulesUnsupported => "the kernel lacks something that the rules need",
            Self::SyncFailed => "a batch of rules was rejected",
            Self::IpvsUnusable => "IPVS cannot be used on this kernel",
            Self::ConntrackCleanup => "conntrack entries could not be cleaned up",
            Self::ConfigRejected => "its configuration was rejected",
            Self::Ended => "the process ended with an error",
        })
    }
}

/// The occurrences of an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedError {
    pub trouble: Trouble,
    pub count: u64,
    /// klog's own time, `MMDD HH:MM:SS.mmm` (it has no year and no zone), or another time in its written form; empty if
    /// the line has none.
    pub first: String,
    pub last: String,
    /// The latest line's message, cut.
    pub text: String,
    /// Whether the process that logged it last has been restarted since.
    pub before_restart: bool,
    /// For errors of the API: whether everything that failed was read successfully afterwards.
    pub recovered: bool,
    /// For errors of the API: the kinds (`*v1.Service`) that failed and were not read since.
    failing: BTreeSet<String>,
}

/// The kinds that kube-proxy makes its rules of, without their version.
const KINDS_OF_RULES: [&str; 3] = ["Service", "EndpointSlice", "Endpoints"];

impl LoggedError {
    /// The kinds that the API server does not let it read, if no rule is made of them: each kind is read on its own
    /// (`NewSharedInformerFactoryWithOptions` in cmd/kube-proxy/app/server.go), so that the rules go on to follow the API.
    pub(crate) fn kinds_beside_rules(&self) -> Option<&BTreeSet<String>> {
        let is_of_kind = matches!(self.trouble, Trouble::ApiForbidden | Trouble::ApiVersion);
        let is_of_rules =
            |kind: &String| KINDS_OF_RULES.iter().any(|name| kind.ends_with(&format!(".{name}")));
        let is_beside = is_of_kind && !self.failing.is_empty() && !self.failing.iter().any(is_of_rules);
        is_beside.then_some(&self.failing)
    }

    /// `once, at 2026-11-20T23:29:18.128Z`, `31 times, first at …, last at …`.
    pub(crate) fn when(&self, clock: Option<Clock>) -> String {
        let times = times(self.count);
        match (self.count, self.first.as_str(), self.last.as_str()) {
            (_, "", _) | (_, _, "") => times.into_owned(),
            (1, _, last) => format!("{times}, at {}", readable(last, clock)),
            (_, first, last) => {
                let (first, last) = (readable(first, clock), readable(last, clock));
                format!("{times}, first at {first}, last at {last}")
            }
        }
    }
}

/// The content of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    /// In the order of [`Trouble::ALL`].
    pub errors: Vec<LoggedError>,
    /// Starts of the process within the log.
    pub starts: u64,
    /// Times of the first and last line that has one.
    pub first: Option<String>,
    pub last: Option<String>,
    /// Whether this process logs that it has read a list, which it does from `-v=2` on.
    pub shows_lists: bool,
    /// The last line about the informers reports that they are still waiting.
    pub waiting_for_informers: bool,
    /// `Using iptables Proxier`: the mode of the last start, in the log's spelling.
    pub proxier: Option<String>,
    /// The node's addresses from the last start.
    pub node_ips: Vec<IpAddr>,
    /// `Version info`: the version of the last start.
    pub version: Option<String>,
    pub lines: u64,
}

impl Log {
    /// Parses a log. Lines of other programs are ignored.
    pub fn parse(text: &str) -> Self {
        let skip = text.lines().count().saturating_sub(MAX_LINES);
        let mut log = Self::default();
        for line in text.lines().skip(skip) {
            let (time, message) = split(line);
            log.lines += 1;
            if let Some(time) = time {
                log.first.get_or_insert_with(|| time.to_owned());
                log.last = Some(time.to_owned());
            }
            log.take(time, message);
        }
        log.errors.sort_by_key(|error| error.trouble);
        log
    }

    fn take(&mut self, time: Option<&str>, message: &str) {
        let old = old_version(message);
        if old.is_some() || message.contains("\"Version info\"") {
            self.starts += 1;
            self.errors.iter_mut().for_each(|error| error.before_restart = true);
            self.shows_lists = false;
            let version = || after(message, "version=\"").or_else(|| after(message, "\"version\":\""));
            self.version = old.or_else(version);
        }
        self.take_list(message);
        if message.contains("until Services and Endpoints have been received") {
            self.waiting_for_informers = true;
        } else if message.contains("Syncing iptables rules")
            || message.contains("Syncing nftables rules")
            || message.contains("Syncing ipvs")
            || message.contains("SyncProxyRules complete")
        {
            self.waiting_for_informers = false;
        }
        if let Some(mode) = proxier(message) {
            self.proxier = Some(mode.to_owned());
        }
        if message.contains("Successfully retrieved ")
            && let Some((_, rest)) = message.split_once("IPs=[")
            && let Some((list, _)) = rest.split_once(']')
        {
            let addresses = list.split(',').filter_map(|ip| ip.trim().trim_matches('"').parse().ok());
            self.node_ips = addresses.take(MAX_NODE_IPS).collect();
        }
        let Some(trouble) = classify(message) else { return };
        let time = to_the_millisecond(time.unwrap_or_default());
        let (text, kind) = (cut(message), kind_of(message).map(str::to_owned));
        match self.errors.iter_mut().find(|error| error.trouble == trouble) {
            Some(error) => {
                error.count += 1;
                // An outage begins with its first error, not with one of an outage that is over.
                if error.recovered {
                    error.first.clone_from(&time);
                    error.count = 1;
                    error.failing.clear();
                }
                error.last = time;
                error.text = text;
                error.before_restart = false;
                error.recovered = false;
                error.failing.extend(kind);
            }
            None => self.errors.push(LoggedError {
                trouble,
                count: 1,
                first: time.clone(),
                last: time,
                text,
                before_restart: false,
                recovered: false,
                failing: kind.into_iter().collect(),
            }),
        }
    }

    /// A successful read: `Caches populated for *v1.Service from …` (to 1.32), `"Caches populated" type="*v1.Service"`
    /// (from 1.33; client-go, `tools/cache/reflector.go`), and the node's addresses, which need the Node.
    fn take_list(&mut self, message: &str) {
        let listed = message.contains("Caches populated");
        let synced = message.contains("Caches are synced");
        let retrieved = message.contains("Successfully retrieved ");
        self.shows_lists |= listed;
        if !listed && !synced && !retrieved {
            return;
        }
        let kind = if listed { kind_of(message) } else { None };
        let ends = |error: &&mut LoggedError| error.trouble.is_api() || error.trouble == Trouble::WatchCut;
        for error in self.errors.iter_mut().filter(ends) {
            match kind {
                Some(kind) => {
                    error.failing.remove(kind);
                }
                // The cache of one informer is named by its purpose; the list that fills it has its own line.
                None if synced && self.shows_lists => continue,
                None if synced => error.failing.clear(),
                None => {}
            }
            error.recovered |= error.failing.is_empty();
        }
    }

    pub fn of(&self, trouble: Trouble) -> Option<&LoggedError> {
        self.errors.iter().find(|error| error.trouble == trouble)
    }
}

/// The version in `Version: v1.22.8`, the line with which a run began before `"Version info" version="v1.23.1"` (`Run` of
/// cmd/kube-proxy/app/server.go). API servers of every release write it too, and a program that contains one may write to
/// this log.
fn old_version(message: &str) -> Option<String> {
    // In Docker's JSON the escape of the line's end follows.
    let version = klog_text(message)?.strip_prefix("Version: ")?.split([' ', '"', '\\']).next()?;
    let is_old = Release::parse(version).is_some_and(|release| release < STRUCTURED);
    (is_old && version.len() <= MAX_VERSION_BYTES).then(|| version.to_owned())
}

/// The first release with structured lines at its start.
const STRUCTURED: Release = Release(1, 23);

/// The mode in `"Using iptables Proxier"`; before 1.23 `Using iptables Proxier.`
/// (cmd/kube-proxy/app/server_others.go).
fn proxier(message: &str) -> Option<&str> {
    let quoted = || Some(message.split_once("\"Using ")?.1);
    let rest = klog_text(message).and_then(|text| text.strip_prefix("Using ")).or_else(quoted)?;
    let (mode, _) = rest.split_once(" Proxier")?;
    (mode.len() < 32).then_some(mode)
}

/// The text of a line in klog's own form.
fn klog_text(message: &str) -> Option<&str> {
    message.get(1..21).filter(|time| is_klog_time(time)).and_then(|_| without_header(message))
}

/// The text after klog's header.
fn without_header(message: &str) -> Option<&str> {
    let (header, text) = message.split_once("] ")?;
    (header.len() < MAX_HEADER_BYTES).then_some(text)
}

/// Events that cannot be written are not among the errors: kube-proxy needs to read objects, not to write Events.
/// The texts come from the sources of kube-proxy 1.2x to 1.36 and client-go, and from the releases' issues that the
/// catalogue names.
fn classify(message: &str) -> Option<Trouble> {
    let has = |text: &str| message.contains(text);
    let any = |texts: &[&str]| texts.iter().any(|text| message.contains(text));
    if any(&[
        "can't use the IPVS proxier",
        "can't use ipvs proxier",
        "Could not create dummy VS",
        "Can't use the IPVS proxier",
    ]) || (has("ipvs") && has("not supported by the kernel"))
    {
        return Some(Trouble::IpvsUnusable);
    }
    if has("command failed") || has("Error running ProxyServer") {
        let config =
            any(&["unknown field", "failed to decode", "failed complete", "error unmarshaling", "no kind "]);
        return Some(if config { Trouble::ConfigRejected } else { Trouble::Ended });
    }
    if any(&["xtables lock", "Resource temporarily unavailable", "Another app is currently holding"]) {
        return Some(Trouble::XtablesLock);
    }
    let sync = any(&[
        "Failed to execute iptables-restore",
        "Sync failed",
        "nftables sync failed",
        "Failed to ensure chain",
        "Failed to ensure that",
        "iptables-restore failed",
        "Failed to sync IPVS",
        "Failed to sync endpoint for service",
        "Failed to add destination",
        "Failed to add IPVS service",
    ]);
    if any(&[
        "unable to initialize table",
        "can't initialize iptables table",
        "Could not fetch rule set generation id",
    ]) {
        return Some(Trouble::RulesUnsupported);
    }
    if sync {
        let unsupported = any(&["No such file or directory", "Extension", "Couldn't load", "not supported"]);
        return Some(if unsupported && !has("list table") {
            Trouble::RulesUnsupported
        } else {
            Trouble::SyncFailed
        });
    }
    if any(&[
        "Failed to list conntrack entries",
        "Failed to delete stale service connections",
        "Failed to delete endpoint connections",
        "Failed to delete stale endpoint connections",
    ]) {
        return Some(Trouble::ConntrackCleanup);
    }
    if any(&["Unexpected EOF during watch stream", "very short watch"]) {
        return Some(Trouble::WatchCut);
    }
    let api = any(&[
        "failed to list *",
        "Failed to watch",
        "Failed to retrieve node info",
        "Error getting node",
        "Unable to retrieve node",
        "watch of *",
        "Failed to get node",
    ]);
    api.then(|| api_trouble(message)).flatten()
}

fn api_trouble(message: &str) -> Option<Trouble> {
    let any = |texts: &[&str]| texts.iter().any(|text| message.contains(text));
    Some(if any(&["Unauthorized", "the server has asked for the client to provide credentials"]) {
        Trouble::ApiUnauthorized
    } else if any(&["forbidden"]) {
        Trouble::ApiForbidden
    } else if any(&["could not find the requested resource", "no matches for kind"]) {
        Trouble::ApiVersion
    } else if any(&["x509:", "certificate has expired", "tls: "]) {
        Trouble::ApiCertificate
    } else if any(&[
        "connection refused",
        "no route to host",
        "network is unreachable",
        "no such host",
        "connection reset",
        "EOF",
    ]) {
        Trouble::ApiRefused
    } else if any(&[
        "i/o timeout",
        "TLS handshake timeout",
        "deadline exceeded",
        "Client.Timeout",
        "request canceled",
    ]) {
        Trouble::ApiTimeout
    } else if any(&["watch of *"]) {
        // `watch of *v1.Service ended with: an error on the server…`, or an old resource version: both normal.
        Trouble::WatchCut
    } else if any(&["not found"]) {
        // The Node in its configuration does not exist (yet): this concerns its name, not the connection.
        return None;
    } else {
        Trouble::ApiOther
    })
}

/// The time and the rest of a line. Continuation lines have no time.
fn split(line: &str) -> (Option<&str>, &str) {
    let line = line.trim_end();
    // klog: `E1120 23:29:18.128799   28197 server.go:1051] message`, at the start or after a runtime's prefix.
    for (at, letter) in line.char_indices().take(120) {
        if matches!(letter, 'I' | 'W' | 'E' | 'F')
            && (at == 0 || line.as_bytes().get(at - 1).is_some_and(|byte| b" \t\"".contains(byte)))
            && let Some(header) = line.get(at + 1..at + 21)
            && is_klog_time(header)
        {
            return (Some(header), line.get(at..).unwrap_or(line));
        }
    }
    // CRI: `2026-11-20T23:29:18.128Z stderr F message`; klog's JSON: `{"ts":1795217358128.7,…}`.
    let first = line.split_ascii_whitespace().next().unwrap_or_default();
    if first.len() >= 19 && first.as_bytes().get(10) == Some(&b'T') {
        return (Some(first), line);
    }
    match line.split_once("{\"ts\":").and_then(|(_, rest)| rest.split_once(',')) {
        Some((time, _)) if time.len() < 32 => (Some(time), line),
        _ => (None, line),
    }
}

/// `1120 23:29:18.128799`.
fn is_klog_time(text: &str) -> bool {
    text.len() == 20
        && text.bytes().enumerate().all(|(at, byte)| match at {
            4 => byte == b' ',
            7 | 10 => byte == b':',
            13 => byte == b'.',
            _ => byte.is_ascii_digit(),
        })
}

/// The kind of object that a reflector reads: `*v1.EndpointSlice`.
fn kind_of(message: &str) -> Option<&str> {
    let (at, _) = message.match_indices("*v").find(|(at, _)| {
        at.checked_sub(1).is_none_or(|before| {
            message.as_bytes().get(before).is_some_and(|byte| b" \t\"\\=".contains(byte))
        })
    })?;
    let rest = message.get(at..)?;
    let end = rest.find(|letter: char| !(letter.is_ascii_alphanumeric() || "*.".contains(letter)));
    rest.get(..end.unwrap_or(rest.len()))
}

fn after(message: &str, before: &str) -> Option<String> {
    let (_, rest) = message.split_once(before)?;
    let (value, _) = rest.split_once('"')?;
    (!value.is_empty() && value.len() <= MAX_VERSION_BYTES).then(|| value.to_owned())
}

fn cut(message: &str) -> String {
    // Keeps the text after klog's header.
    let message = without_header(message).unwrap_or(message);
    if message.len() <= MAX_TEXT_BYTES {
        return message.to_owned();
    }
    let end = (0..=MAX_TEXT_BYTES).rev().find(|at| message.is_char_boundary(*at)).unwrap_or(0);
    format!("{}…", message.get(..end).unwrap_or_default())
}

#[cfg(test)]
mod tests;
