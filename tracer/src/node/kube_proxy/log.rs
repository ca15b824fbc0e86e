//! kube-proxy's log: which known errors it tells, how often, first and last (K2; catalogue C2, C4, C9, C11).
//!
//! Owns the texts by which the errors are known, and the forms that a line comes in: klog's own, klog's JSON, and
//! either behind what a container runtime (CRI, Docker) or journald puts before it. What an error means is for `triage`.

use std::{fmt, net::IpAddr};

/// Addresses of a node that are kept.
const NODE_IPS_MAX: usize = 16;
/// Lines read, at most; a longer log is read from its end.
const LINES_MAX: usize = 500_000;
/// Bytes of an error's text that are kept.
const TEXT_MAX_BYTES: usize = 300;

/// A known error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Trouble {
    /// The token or certificate is not accepted (401).
    ApiUnauthorized,
    /// RBAC refuses (403).
    ApiForbidden,
    /// The API server does not have the version of the API that is asked for (404).
    ApiVersion,
    /// The API server's certificate is not trusted or has expired.
    ApiCertificate,
    /// Nothing listens, or there is no way to it.
    ApiRefused,
    /// No answer in time.
    ApiTimeout,
    /// A watch or a list failed for another reason.
    ApiOther,
    /// A watch broke off. On its own it is normal: API servers end watches, load balancers cut them.
    WatchCut,
    /// Another program held the iptables lock.
    XtablesLock,
    /// The kernel lacks a table, a match or a target.
    RulesUnsupported,
    /// A batch of rules was rejected as a whole.
    SyncFailed,
    /// IPVS cannot be used here; the process ends.
    IpvsUnusable,
    /// Conntrack entries could not be listed or deleted: stale UDP entries stay (C8).
    ConntrackCleanup,
    /// The configuration was not understood; the process ends.
    ConfigRejected,
    /// The process ended with an error that is not known here.
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

    /// Whether it says that the API server could not be reached or read.
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

    /// Whether it says that rules could not be written.
    pub const fn is_sync(self) -> bool {
        matches!(self, Self::XtablesLock | Self::RulesUnsupported | Self::SyncFailed)
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::ApiUnauthorized => "the API server rejects its credentials (Unauthorized)",
            Self::ApiForbidden => "RBAC forbids it to read what it needs",
            Self::ApiVersion => "the API server lacks the API version that it asks for",
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

/// How often an error was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    pub trouble: Trouble,
    pub count: u64,
    /// klog's own time, `MMDD HH:MM:SS.micros` (it has no year and no zone), or another time as it was written.
    pub first: String,
    pub last: String,
    /// The latest line's message, cut.
    pub text: String,
    /// Whether the process that told it last has been started anew since.
    pub before_restart: bool,
    /// For errors of the API: whether objects were read successfully after the last of them.
    pub recovered: bool,
}

/// What a log says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    /// In the order of [`Trouble::ALL`].
    pub told: Vec<Told>,
    /// Starts of the process within the log.
    pub starts: u64,
    /// Times of the first and last line that has one.
    pub first: Option<String>,
    pub last: Option<String>,
    /// The last line about the informers says that they are still waited for.
    pub waiting_for_informers: bool,
    /// `Using iptables Proxier`: the mode that the last start says it uses, as it is spelled there.
    pub proxier: Option<String>,
    /// The node's addresses, as the last start found them.
    pub node_ips: Vec<IpAddr>,
    /// `Version info`: the version that the last start says.
    pub version: Option<String>,
    pub lines: u64,
}

impl Log {
    /// Reads a log. Lines of other programs say nothing here.
    pub fn parse(text: &str) -> Self {
        let skip = text.lines().count().saturating_sub(LINES_MAX);
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
        log.told.sort_by_key(|told| told.trouble);
        log
    }

    fn take(&mut self, time: Option<&str>, message: &str) {
        if message.contains("\"Version info\"") || message.contains("msg\":\"Version info\"") {
            self.starts += 1;
            self.told.iter_mut().for_each(|told| told.before_restart = true);
            self.version = after(message, "version=\"").or_else(|| after(message, "\"version\":\""));
        }
        if message.contains("Caches populated for *v1.") || message.contains("Caches are synced for ") {
            let api = self
                .told
                .iter_mut()
                .filter(|told| told.trouble.is_api() || told.trouble == Trouble::WatchCut);
            api.for_each(|told| told.recovered = true);
        }
        if message.contains("until Services and Endpoints have been received") {
            self.waiting_for_informers = true;
        } else if message.contains("Syncing iptables rules")
            || message.contains("Syncing nftables rules")
            || message.contains("Syncing ipvs")
            || message.contains("SyncProxyRules complete")
        {
            self.waiting_for_informers = false;
        }
        if let Some((_, rest)) = message.split_once("\"Using ")
            && let Some((mode, _)) = rest.split_once(" Proxier")
            && mode.len() < 32
        {
            self.proxier = Some(mode.to_owned());
        }
        if message.contains("Successfully retrieved ")
            && let Some((_, rest)) = message.split_once("IPs=[")
            && let Some((list, _)) = rest.split_once(']')
        {
            let addresses = list.split(',').filter_map(|ip| ip.trim().trim_matches('"').parse().ok());
            self.node_ips = addresses.take(NODE_IPS_MAX).collect();
        }
        let Some(trouble) = classify(message) else { return };
        let time = time.unwrap_or_default().to_owned();
        let text = cut(message);
        match self.told.iter_mut().find(|told| told.trouble == trouble) {
            Some(told) => {
                told.count += 1;
                told.last = time;
                told.text = text;
                told.before_restart = false;
                told.recovered = false;
            }
            None => self.told.push(Told {
                trouble,
                count: 1,
                first: time.clone(),
                last: time,
                text,
                before_restart: false,
                recovered: false,
            }),
        }
    }

    pub fn of(&self, trouble: Trouble) -> Option<&Told> {
        self.told.iter().find(|told| told.trouble == trouble)
    }
}

/// Texts of the sources of kube-proxy 1.2x to 1.36 and client-go, and the releases' issues that the catalogue names.
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
        "Server rejected event",
        "Unable to write event",
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
        // The Node that it is told to run on does not exist (yet): an affair of its name, not of the connection.
        return None;
    } else {
        Trouble::ApiOther
    })
}

/// The time and the rest of a line. Continuation lines have no time.
fn split(line: &str) -> (Option<&str>, &str) {
    let line = line.trim_end();
    // klog: `E1120 23:29:18.128799   28197 server.go:1051] message`, at the start or behind what a runtime puts there.
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

fn after(message: &str, before: &str) -> Option<String> {
    let (_, rest) = message.split_once(before)?;
    let (value, _) = rest.split_once('"')?;
    (!value.is_empty() && value.len() <= 80).then(|| value.to_owned())
}

fn cut(message: &str) -> String {
    // Behind klog's header, which tells a person nothing.
    let message =
        message.split_once("] ").filter(|(header, _)| header.len() < 90).map_or(message, |(_, rest)| rest);
    if message.len() <= TEXT_MAX_BYTES {
        return message.to_owned();
    }
    let end = (0..=TEXT_MAX_BYTES).rev().find(|at| message.is_char_boundary(*at)).unwrap_or(0);
    format!("{}…", message.get(..end).unwrap_or_default())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use proptest::{collection::vec, prelude::*, sample::select};

    use super::*;

    #[test]
    fn an_error_is_counted_with_its_times() {
        let log = Log::parse(
            "I1120 23:29:17.0 not a header\n\
             I1120 23:29:17.100000   28197 server.go:872] \"Version info\" version=\"v1.30.5\"\n\
             E1120 23:29:18.128799   28197 server.go:1051] \"Failed to retrieve node info\" err=\"Unauthorized\"\n\
             W1120 23:29:53.208601   28197 reflector.go:547] x: failed to list *v1.EndpointSlice: Unauthorized\n",
        );
        let told = log.of(Trouble::ApiUnauthorized).unwrap();
        assert_eq!(
            (told.count, told.first.as_str(), told.last.as_str()),
            (2, "1120 23:29:18.128799", "1120 23:29:53.208601")
        );
        assert_eq!(told.text, "x: failed to list *v1.EndpointSlice: Unauthorized");
        assert_eq!((log.starts, log.version.as_deref(), told.before_restart), (1, Some("v1.30.5"), false));
    }

    #[test]
    fn what_runtimes_put_before_a_line_does_not_hide_it() {
        for line in [
            "2026-11-20T23:29:18.1Z stderr F E1120 23:29:18.128799       1 proxier.go:9] \"Failed to execute iptables-restore\" err=\"exit status 4: Another app is currently holding the xtables lock\"",
            "Nov 20 23:29:18 worker-1 kube-proxy[812]: E1120 23:29:18.128799     812 proxier.go:9] \"Sync failed\" err=\"xtables lock\"",
            "{\"log\":\"E1120 23:29:18.128799       1 proxier.go:9] xtables lock\\n\",\"stream\":\"stderr\"}",
        ] {
            let log = Log::parse(line);
            assert_eq!(log.of(Trouble::XtablesLock).unwrap().first, "1120 23:29:18.128799", "{line}");
        }
        let json = "{\"ts\":1795217358128.7,\"caller\":\"r.go:1\",\"msg\":\"Failed to watch\",\"err\":\"dial tcp 192.0.2.1:6443: connect: connection refused\"}";
        assert_eq!(Log::parse(json).of(Trouble::ApiRefused).unwrap().first, "1795217358128.7");
    }

    #[test]
    fn each_error_has_its_name() {
        for (message, trouble) in [
            (
                "Failed to watch *v1.Service: failed to list *v1.Service: Get \"https://x\": dial tcp 1.2.3.4:6443: i/o timeout",
                Trouble::ApiTimeout,
            ),
            (
                "failed to list *v1.EndpointSlice: endpointslices.discovery.k8s.io is forbidden: User \"x\"",
                Trouble::ApiForbidden,
            ),
            (
                "failed to list *v1beta1.EndpointSlice: the server could not find the requested resource",
                Trouble::ApiVersion,
            ),
            (
                "failed to list *v1.Service: Get \"https://x\": x509: certificate has expired or is not yet valid",
                Trouble::ApiCertificate,
            ),
            (
                "\"Error running ProxyServer\" err=\"can't use the IPVS proxier: Ipvs not supported\"",
                Trouble::IpvsUnusable,
            ),
            (
                "\"command failed\" err=\"failed complete: strict decoding error: unknown field \\\"modee\\\"\"",
                Trouble::ConfigRejected,
            ),
            (
                "\"Failed to execute iptables-restore\" err=\"exit status 1\" rules=\"*nat\"",
                Trouble::SyncFailed,
            ),
            ("\"nftables sync failed\" retryingTime=\"30s\"", Trouble::SyncFailed),
            ("iptables v1.8.7: unable to initialize table 'nat'", Trouble::RulesUnsupported),
            ("\"Failed to list conntrack entries\" err=\"x\"", Trouble::ConntrackCleanup),
            ("Unexpected EOF during watch stream event decoding: unexpected EOF", Trouble::WatchCut),
        ] {
            assert_eq!(classify(message), Some(trouble), "{message}");
        }
        for harmless in [
            "\"Failed to list existing nftables objects\" err=<failed to run nft: Error: No such file or directory",
            "\"Kube-proxy configuration may be incomplete or incorrect\" err=\"nodePortAddresses is unset\"",
            "\"SyncProxyRules complete\" elapsed=\"79ms\"",
        ] {
            assert_eq!(classify(harmless), None, "{harmless}");
        }
    }

    #[test]
    fn the_nodes_addresses_in_both_forms() {
        for (line, expected) in [
            (
                "I1120 23:24:57.911600   27071 server.go:1062] \"Successfully retrieved node IP(s)\" IPs=[\"192.0.2.11\"]",
                1,
            ),
            (
                "I1120 23:24:57.911600   27071 server.go:1062] \"Successfully retrieved NodeIPs\" NodeIPs=[\"192.0.2.11\",\"2001:db8::11\"]",
                2,
            ),
        ] {
            assert_eq!(Log::parse(line).node_ips.len(), expected, "{line}");
        }
    }

    #[test]
    fn a_restart_and_a_recovery_are_seen() {
        let log = Log::parse(
            "E1120 23:29:18.128799   1 reflector.go:1] Failed to watch *v1.Service: failed to list: connection refused\n\
             I1120 23:29:20.128799   1 reflector.go:359] Caches populated for *v1.Service from x\n",
        );
        assert!(log.of(Trouble::ApiRefused).unwrap().recovered);
        let log = Log::parse(
            "\"command failed\" err=\"x\"\nI1120 23:29:20.128799   1 server.go:1] \"Version info\" version=\"v1.33.1\"\n",
        );
        assert!(log.of(Trouble::Ended).unwrap().before_restart);
    }

    proptest! {
        #[test]
        fn every_line_that_is_written_is_counted(lines in vec(select(vec![
            (Trouble::ApiUnauthorized, "failed to list *v1.Service: Unauthorized"),
            (Trouble::SyncFailed, "\"Sync failed\""),
            (Trouble::WatchCut, "Unexpected EOF during watch stream event decoding"),
        ]), 0..40)) {
            let text: String = lines.iter().enumerate().map(|(at, (_, message))|
                format!("E1120 23:29:{:02}.000000   1 x.go:1] {message}\n", at % 60)).collect();
            let log = Log::parse(&text);
            for trouble in Trouble::ALL {
                let expected = lines.iter().filter(|(written, _)| *written == trouble).count() as u64;
                prop_assert_eq!(log.of(trouble).map_or(0, |told| told.count), expected);
            }
        }

        #[test]
        fn any_text_is_read(text in any::<String>()) {
            let _ = Log::parse(&text);
        }

        #[test]
        fn mutilated_lines_are_read(at in 0_usize..200, byte in any::<char>()) {
            let mut line: Vec<char> = "2026-11-20T23:29:18Z stderr F E1120 23:29:18.128799   28197 server.go:1051] \"Failed to retrieve node info\" err=\"Unauthorized\"".chars().collect();
            let at = at % line.len();
            line[at] = byte;
            let _ = Log::parse(&line.into_iter().collect::<String>());
        }
    }
}
