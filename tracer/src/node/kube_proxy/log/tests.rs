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
    let error = log.of(Trouble::ApiUnauthorized).unwrap();
    assert_eq!(
        (error.count, error.first.as_str(), error.last.as_str()),
        (2, "1120 23:29:18.128", "1120 23:29:53.208")
    );
    assert_eq!(error.text, "x: failed to list *v1.EndpointSlice: Unauthorized");
    assert_eq!((log.starts, log.version.as_deref(), error.before_restart), (1, Some("v1.30.5"), false));
}

#[test]
fn what_runtimes_put_before_a_line_does_not_hide_it() {
    for line in [
        "2026-11-20T23:29:18.1Z stderr F E1120 23:29:18.128799       1 proxier.go:9] \"Failed to execute iptables-restore\" err=\"exit status 4: Another app is currently holding the xtables lock\"",
        "Nov 20 23:29:18 worker-1 kube-proxy[812]: E1120 23:29:18.128799     812 proxier.go:9] \"Sync failed\" err=\"xtables lock\"",
        "{\"log\":\"E1120 23:29:18.128799       1 proxier.go:9] xtables lock\\n\",\"stream\":\"stderr\"}",
    ] {
        let log = Log::parse(line);
        assert_eq!(log.of(Trouble::XtablesLock).unwrap().first, "1120 23:29:18.128", "{line}");
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
        ("\"Failed to execute iptables-restore\" err=\"exit status 1\" rules=\"*nat\"", Trouble::SyncFailed),
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

/// The lines of a start before 1.23.
#[test]
fn a_start_of_an_old_release_has_a_mode_and_a_version() {
    let start = |mode: &str, version: &str| {
        format!(
            "E1120 23:25:04.950000       1 server_others.go:127] Can't use the IPVS proxier: IPVS proxier will not be used\n\
             I1120 23:25:04.974321       1 server_others.go:185] Using {mode} Proxier.\n\
             I1120 23:25:05.001234       1 server.go:650] Version: {version}\n"
        )
    };
    let log = Log::parse(&(start("ipvs", "v1.20.14") + &start("iptables", "v1.20.15")));
    assert_eq!((log.starts, log.version.as_deref()), (2, Some("v1.20.15")));
    assert_eq!(log.proxier.as_deref(), Some("iptables"));
    // It went on in another mode.
    assert!(log.of(Trouble::IpvsUnusable).unwrap().before_restart);
    let docker = "{\"log\":\"I0901 19:31:44.631799       1 server.go:643] Version: v1.21.2\\n\",\"stream\":\"stderr\"}";
    assert_eq!(Log::parse(docker).version.as_deref(), Some("v1.21.2"));
    // An API server's line beside those of a newer kube-proxy, and other programs'.
    for line in [
        "I0225 13:33:07.699937       1 server.go:158] Version: v1.28.3+k3s1",
        "I0225 13:33:07.699937       1 server.go:158] Version: unknown",
        "[INFO] Version: v1.20.5",
    ] {
        let log = Log::parse(line);
        assert_eq!((log.starts, log.version), (0, None), "{line}");
    }
}

proptest! {
    #[test]
    fn every_line_that_is_written_is_counted(lines in vec(select(vec![
        (Trouble::ApiUnauthorized, "failed to list *v1.Service: Unauthorized"),
        (Trouble::SyncFailed, "\"Sync failed\""),
        (Trouble::WatchCut, "Unexpected EOF during watch stream event decoding"),
    ]), 0..40)) {
        let line = |(at, (_, message)): (usize, &(Trouble, &str))| {
            format!("E1120 23:29:{:02}.000000   1 x.go:1] {message}", at % 60)
        };
        let text = lines.iter().enumerate().map(line).collect::<Vec<_>>().join("\n");
        let log = Log::parse(&text);
        for trouble in Trouble::ALL {
            let expected = lines.iter().filter(|(written, _)| *written == trouble).count() as u64;
            prop_assert_eq!(log.of(trouble).map_or(0, |error| error.count), expected);
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
