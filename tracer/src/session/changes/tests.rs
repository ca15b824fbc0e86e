use super::*;
use crate::node::{Observed, Presence, ProxyMode, ipvs::IpvsSettings, snapshot::ConntrackUse};

fn at(secs: u64) -> Timestamp {
    Timestamp::from_unix_secs(10_000 + secs)
}

/// A kube-proxy that works.
fn healthy() -> Snapshot {
    let mut node = Snapshot {
        running: Some(true),
        mode: Some(ProxyMode::Iptables),
        version: Some("v1.30.5".to_owned().into()),
        conntrack_use: Some(Observed { time: at(0), value: ConntrackUse { count: 10, max: 100 } }),
        ipvs_settings: Some(IpvsSettings {
            conntrack: Some(true),
            expire_nodest_conn: None,
            conn_reuse_mode: Some(1),
        }),
        mtus: BTreeMap::from([("eth0".to_owned(), 1500)]),
        ..Snapshot::default()
    };
    node.proxy_rules.v4 = Presence::Present;
    let report = &mut node.report;
    (report.started, report.pid) = (Some(Timestamp::from_unix_secs(1)), Some(812));
    (report.last_queued, report.last_synced) = (Some(at(0)), Some(at(1)));
    (report.min_sync_period, report.uses_terminating) = (Some(Duration::from_secs(1)), Some(true));
    node
}

/// A change as its kind, its times in seconds, its subject and its text.
fn in_words(change: &Change) -> String {
    let secs = |time: Timestamp| time.since(at(0)).as_secs();
    let after = change.after.map(|after| format!("{}–", secs(after))).unwrap_or_default();
    format!("{:?} {after}{} {}: {}", change.kind, secs(change.time), change.subject, change.text)
}

fn noted(changes: &Changes) -> Vec<String> {
    changes.save().changes.iter().map(in_words).collect()
}

/// The changes between a healthy node, read at 100 s, and this one, read at 200 s.
fn difference(change: impl FnOnce(&mut Snapshot)) -> Vec<String> {
    let mut changes = Changes::default();
    changes.node_read(&healthy(), at(100));
    assert_eq!(noted(&changes), [""; 0], "a first reading has no differences");
    let mut node = healthy();
    change(&mut node);
    changes.node_read(&node, at(200));
    // What a recording keeps of the node shows the same.
    let mut replayed = Changes::default();
    for (node, began) in [(&healthy(), at(100)), (&node, at(200))] {
        let kept: Snapshot = serde_json::from_str(&serde_json::to_string(node).unwrap()).unwrap();
        replayed.node_read(&kept, began);
    }
    assert_eq!(noted(&replayed), noted(&changes));
    // A third reading that equals the second has none.
    let before = changes.noted;
    changes.node_read(&node, at(300));
    assert_eq!(changes.noted, before);
    noted(&changes)
}

#[test]
fn an_equal_reading_has_no_differences() {
    assert_eq!(difference(|_| {}), [""; 0]);
    assert_eq!(difference(|node| *node = Snapshot::default()), [""; 0], "what was not read has not changed");
    // The start of a process is computed from the time of boot in whole seconds.
    assert_eq!(difference(|node| node.report.started = Some(Timestamp::from_unix_secs(2))), [""; 0]);
}

#[test]
fn a_restart_of_kube_proxy_has_its_own_time() {
    let restarted = difference(|node| {
        (node.report.started, node.report.pid) = (Some(at(150)), Some(999));
        node.report.failed_syncs = 2;
    });
    assert_eq!(
        restarted,
        [
            "KubeProxyStarted 150 kube-proxy: kube-proxy was started",
            "KubeProxySync 100–200 kube-proxy: kube-proxy failed 2 times to write its rules",
        ]
    );
    assert_eq!(
        difference(|node| (node.report.started, node.report.pid) = (None, Some(999))),
        ["KubeProxyStarted 100–200 kube-proxy: kube-proxy was started again: its process 812 is now 999"]
    );
    // Without an earlier reading.
    let mut changes = Changes::default();
    let mut node = healthy();
    node.report.started = Some(at(90));
    changes.node_read(&node, at(100));
    assert_eq!(noted(&changes), ["KubeProxyStarted 90 kube-proxy: kube-proxy was started"]);
}

#[test]
fn kube_proxy_stops_and_runs_again() {
    let mut changes = Changes::default();
    let stopped = Snapshot { running: Some(false), ..Snapshot::default() };
    let runs = Snapshot { running: Some(true), ..Snapshot::default() };
    for (node, secs) in [(&runs, 100), (&Snapshot::default(), 150), (&stopped, 200), (&runs, 300)] {
        changes.node_read(node, at(secs));
    }
    assert_eq!(
        noted(&changes),
        [
            "KubeProxyStopped 100–200 kube-proxy: kube-proxy does not run on this node any more",
            "KubeProxyStarted 200–300 kube-proxy: kube-proxy runs again on this node",
        ]
    );
}

#[test]
fn syncs_that_fail_or_are_late_are_noted_once() {
    let failed = difference(|node| node.report.failed_syncs = 1);
    assert_eq!(failed, ["KubeProxySync 100–200 kube-proxy: kube-proxy failed once to write its rules"]);
    let mut changes = Changes::default();
    let reads = [(100, 100, 200), (100, 195, 210), (100, 205, 240), (100, 239, 241), (242, 239, 250)];
    for (synced, queued, began) in reads {
        let mut node = healthy();
        (node.report.last_queued, node.report.last_synced) = (Some(at(queued)), Some(at(synced)));
        changes.node_read(&node, at(began));
    }
    assert_eq!(
        noted(&changes),
        [
            "KubeProxySync 195 kube-proxy: a change was queued for kube-proxy's rules, which it had not written 15.0 s \
             later",
            "KubeProxySync 242 kube-proxy: kube-proxy wrote its rules again",
        ]
    );
}

#[test]
fn settings_and_the_kernels_state_are_compared() {
    type Edit = fn(&mut Snapshot);
    let cases: [(Edit, &str); 11] = [
        (
            |node| node.mode = Some(ProxyMode::Ipvs),
            "KubeProxyConfig 100–200 kube-proxy: kube-proxy's mode changed from iptables to ipvs",
        ),
        (
            |node| node.version = Some("v1.31.0".to_owned().into()),
            "Upgraded 100–200 kube-proxy: kube-proxy's version changed from v1.30.5 to v1.31.0",
        ),
        (
            |node| node.report.min_sync_period = Some(Duration::from_secs(10)),
            "KubeProxyConfig 100–200 kube-proxy: kube-proxy's minSyncPeriod changed from 1.0 s to 10.0 s",
        ),
        (
            |node| node.report.uses_terminating = Some(false),
            "KubeProxyConfig 100–200 kube-proxy: kube-proxy's feature gate ProxyTerminatingEndpoints changed to false",
        ),
        (
            |node| node.proxy_rules.v4 = Presence::Absent,
            "RulesRemoved 100–200 this node: kube-proxy's rules are no longer in the kernel",
        ),
        (
            |node| node.conntrack_use.as_mut().unwrap().value.max = 50,
            "Sysctl 100–200 this node: nf_conntrack_max changed from 100 to 50",
        ),
        (
            |node| node.conntrack_use.as_mut().unwrap().value.count = 93,
            "Conntrack 100–200 this node: the conntrack table is 93 % full (93 of 100 entries)",
        ),
        (
            |node| node.ipvs_settings.as_mut().unwrap().conntrack = Some(false),
            "Sysctl 100–200 this node: net.ipv4.vs.conntrack changed from 1 to 0",
        ),
        (
            |node| node.ipvs_settings.as_mut().unwrap().conn_reuse_mode = Some(0),
            "Sysctl 100–200 this node: net.ipv4.vs.conn_reuse_mode changed from 1 to 0",
        ),
        (
            |node| node.mtus = BTreeMap::from([("eth0".to_owned(), 1450)]),
            "Sysctl 100–200 this node: the MTU of eth0 changed from 1500 to 1450",
        ),
        (
            |node| node.running = Some(false),
            "KubeProxyStopped 100–200 kube-proxy: kube-proxy does not run on this node any more",
        ),
    ];
    for (change, expected) in cases {
        assert_eq!(difference(change), [expected]);
    }
    // Rules of another mode do not change the mode of a kube-proxy that does not run.
    let stopped = difference(|node| (node.mode, node.running) = (Some(ProxyMode::Ipvs), Some(false)));
    assert_eq!(stopped.len(), 1, "{stopped:?}");
}

#[test]
fn a_table_that_is_nearly_full_is_noted_at_its_bounds() {
    let mut changes = Changes::default();
    for (percent, secs) in [(50, 100), (89, 200), (95, 300), (80, 400), (99, 500), (74, 600)] {
        let mut node = healthy();
        node.conntrack_use.as_mut().unwrap().value.count = percent;
        changes.node_read(&node, at(secs));
    }
    assert_eq!(
        noted(&changes),
        [
            "Conntrack 100–300 this node: the conntrack table is 95 % full (95 of 100 entries)",
            "Conntrack 500–600 this node: the conntrack table is only 74 % full (74 of 100 entries)",
        ]
    );
}

fn service(name: &str) -> Subject {
    Subject::Service(Key::new("shop", name))
}

fn note(changes: &mut Changes, secs: u64, subject: Subject) {
    changes.push(Change::at(at(secs), ChangeKind::ServiceChanged, subject, secs.to_string()));
}

#[test]
fn what_changes_all_the_time_displaces_only_itself() {
    let mut changes = Changes::default();
    note(&mut changes, 0, service("quiet"));
    changes.node_read(&Snapshot { running: Some(true), ..Snapshot::default() }, at(0));
    changes.node_read(&Snapshot { running: Some(false), ..Snapshot::default() }, at(1));
    for n in 0..20_000 {
        note(&mut changes, n / 100, service("noisy"));
        note(&mut changes, n / 100, Subject::Pod(Key::new("shop", &format!("job-{n}"))));
    }
    let kept = changes.save().changes;
    let count = |subject: &Subject| kept.iter().filter(|change| change.subject == *subject).count();
    assert_eq!((count(&service("quiet")), count(&service("noisy"))), (1, MAX_OF_SUBJECT));
    assert_eq!((count(&Subject::KubeProxy), kept.len()), (1, 1 + 256 + 1 + 1024));
    assert_eq!(changes.forgotten, 20_000 - 256 + 20_000 - 1024);
    assert!(changes.loss().unwrap().starts_with("38720 changes forgotten early"));
    assert!(changes.shelves.iter().all(|shelf| shelf.order.len() <= shelf.limit));
    for n in 0..5000 {
        note(&mut changes, 300, service(&format!("service-{n}")));
    }
    assert_eq!(changes.shelves[0].order.len(), 2048);
    assert_eq!(changes.shelves[0].of.len(), 2048, "no empty line stays");
}

#[test]
fn changes_older_than_two_hours_are_forgotten() {
    let mut changes = Changes::default();
    for secs in [0, 1, 2, 7_300] {
        note(&mut changes, secs, service("cart"));
    }
    changes.prune(at(7_202));
    assert_eq!(noted(&changes).len(), 2);
    assert_eq!(changes.loss(), None, "no verdict lacks them");
    changes.prune(at(15_000));
    assert!(changes.shelves.iter().all(|shelf| shelf.order.is_empty() && shelf.of.is_empty()));
}

#[test]
fn a_recording_goes_on_from_the_changes_before_it() {
    let mut live = Changes::default();
    live.node_read(&healthy(), at(100));
    note(&mut live, 110, service("cart"));
    live.wall_clock(WallStep { at: at(120), ahead_ns: 3_600_000_000_000 });
    let json = serde_json::to_string(&live.save()).unwrap();
    let mut replayed = Changes::default();
    replayed.restore(serde_json::from_str(&json).unwrap());
    assert_eq!(noted(&replayed), noted(&live));
    // The recording begins with the last reading and the last step, which are no news.
    replayed.node_read(&healthy(), at(100));
    replayed.wall_clock(WallStep { at: at(130), ahead_ns: 3_600_000_000_000 });
    assert_eq!(noted(&replayed), noted(&live));
    let mut stopped = healthy();
    stopped.running = Some(false);
    for changes in [&mut live, &mut replayed] {
        changes.node_read(&stopped, at(200));
    }
    assert_eq!(noted(&replayed), noted(&live));
    assert!(noted(&live).iter().any(|line| line.starts_with("KubeProxyStopped 100–200")));
}

#[test]
fn a_change_that_the_next_segment_repeats_is_listed_once() {
    let mut lister = ChangeLister::default();
    let mut found = |changes: &Changes| lister.new_in(changes).len();
    let mut live = Changes::default();
    for secs in [100, 110] {
        note(&mut live, secs, service("cart"));
    }
    assert_eq!((found(&live), found(&live)), (2, 0));
    let mut segment = Changes::default();
    segment.restore(live.save());
    assert_eq!(found(&segment), 0, "the segment before had them");
    note(&mut segment, 120, service("cart"));
    assert_eq!(found(&segment), 1);
    // The timeline of the third segment has one that no segment before it had.
    note(&mut live, 115, service("shop"));
    note(&mut live, 120, service("cart"));
    segment.restore(live.save());
    assert_eq!(found(&segment), 1);
}

#[test]
fn the_bounds_hold_for_any_recording() {
    let change =
        Change::at(at(1), ChangeKind::ServiceChanged, service("a\u{1b}[2J"), "x\u{202e}".repeat(9_000));
    let saved = SavedChanges { changes: vec![change; 10_000], ..SavedChanges::default() };
    let mut restored = Changes::default();
    restored.restore(saved);
    assert_eq!(restored.save().changes.len(), MAX_OF_SUBJECT);
    let near = restored.save().changes[0].beside(at(2));
    assert!(!near.subject.contains('\u{1b}') && !near.text.contains('\u{202e}'));
    assert!(near.text.len() < 4 * MAX_TEXT_BYTES, "{}", near.text.len());
}

#[test]
fn windows_follow_the_kind() {
    let change = |kind, secs| Change::at(at(secs), kind, Subject::ThisNode, String::new());
    let listed = |kind, secs: u64| change(kind, 0).distance(at(secs), at(secs + 10), 1).is_some();
    for (kind, secs) in [
        (ChangeKind::EndpointRemoved, 300),
        (ChangeKind::ApiLost, 300),
        (ChangeKind::Sysctl, 1800),
        (ChangeKind::ServiceChanged, 1800),
        (ChangeKind::Upgraded, 3600),
    ] {
        assert!(listed(kind, secs) && !listed(kind, secs + 1), "{kind:?}");
        assert!(window(kind) * WIDENED <= MAX_AGE);
    }
    let later = |secs| change(ChangeKind::ApiLost, secs).distance(at(100), at(110), 1);
    assert_eq!((later(102), later(108)), (Some(Duration::from_secs(2)), Some(Duration::from_secs(2))));
    assert_eq!((later(110), later(111)), (Some(Duration::ZERO), None), "the flow's end is the limit");
    // Of a connection that broke after two hours, only its beginning and its end.
    let of_long = |secs| change(ChangeKind::ApiLost, secs).distance(at(1_000), at(8_200), 1).is_some();
    let inside = [699, 700, 1_300, 1_301, 7_899, 7_900, 8_200].map(of_long);
    assert_eq!(inside, [false, true, true, false, false, true, true]);
    // An interval is as far as its farther end, and counts if it can lie in the window.
    let between = |from, to| {
        let interval = (at(from), at(to));
        Change::between(interval, ChangeKind::ApiLost, Subject::ThisNode, String::new()).distance(
            at(400),
            at(410),
            1,
        )
    };
    assert_eq!(between(350, 420), Some(Duration::from_secs(50)));
    assert_eq!(between(0, 405), Some(Duration::from_secs(400)));
    assert_eq!((between(411, 420), between(0, 99)), (None, None));
}
