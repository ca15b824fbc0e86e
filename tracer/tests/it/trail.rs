//! The ways of flows: a running trace prints what the replay of its recording prints, with bounded memory.

use std::{collections::BTreeMap, fs, io::Cursor, iter, net::SocketAddr, sync::Arc, time::Duration};

use serde_json::{Value, json};
use viptrace::{
    class::Class,
    incident::{Found, Pathfinder},
    recording::{Header, Player, Sightings, Step},
    report::{
        Paint,
        trail::{render, render_found},
    },
    session::{Detail, Judgements},
    sighting::Hook,
    verdict::Verdict,
};

use crate::{
    recording_support::{Live, Traffic, corpus, header},
    terminal_support::{Terminal, fixture},
};

/// Plays the recording as a running trace receives it: sightings up to a time, then the judgements of that time.
fn traced(bytes: &[u8], client: SocketAddr, to: Option<SocketAddr>) -> (Vec<Found>, Pathfinder) {
    let mut player = Player::open(Cursor::new(bytes), Detail::All).unwrap();
    let mut sightings = Sightings::open(Cursor::new(bytes)).unwrap();
    let mut next = iter::from_fn(|| Some(sightings.next_sighting().unwrap()?.sighting)).peekable();
    let mut pathfinder = Pathfinder::new(client, to);
    pathfinder.hooks_are(player.header().clone());
    let mut found = Vec::new();
    while let Some(step) = player.step().unwrap() {
        let Step::Judged { judgements, now } = step else { continue };
        while let Some(sighting) = next.next_if(|sighting| sighting.time <= now) {
            pathfinder.observe([&sighting]);
        }
        found.extend(pathfinder.judged(&judgements, player.pipeline(), now));
    }
    pathfinder.observe(&next.collect::<Vec<_>>());
    while let Some(judgements) = player.cut_off() {
        found.extend(pathfinder.judged(&judgements, player.pipeline(), player.now()));
    }
    found.extend(pathfinder.finish(player.pipeline()));
    (found, pathfinder)
}

/// The flows of a recording, each with its verdicts.
fn flows(bytes: &[u8]) -> BTreeMap<(SocketAddr, Option<SocketAddr>), Vec<Verdict>> {
    let mut player = Player::open(Cursor::new(bytes), Detail::All).unwrap();
    let mut flows: BTreeMap<_, Vec<Verdict>> = BTreeMap::new();
    let mut take = |judgements: Judgements| {
        for verdict in judgements.judged.into_iter().map(|judged| judged.verdict) {
            flows.entry((verdict.flow.client, verdict.flow.vip)).or_default().push(verdict);
        }
    };
    while let Some(step) = player.step().unwrap() {
        if let Step::Judged { judgements, .. } = step {
            take(judgements);
        }
    }
    iter::from_fn(|| player.cut_off()).for_each(take);
    flows
}

/// What `replay --path` prints on standard output.
fn replayed(terminal: &Terminal, addresses: &str) -> String {
    let read = terminal.run(&format!("replay it.viptrace --path {addresses} --quiet"));
    let (_, text) = read.split_once('\n').unwrap();
    let text = text.trim_end_matches('\n');
    text.rsplit_once("\n[exit status ").map_or(text, |(text, _)| text).to_owned()
}

#[test]
fn a_running_trace_prints_the_ways_of_its_replay() {
    const NAMES: [&str; 14] = [
        "recordings/debian-5.10-c20-no-endpoints_ipvs",
        "recordings/debian-5.10-c31-past-nat",
        "recordings/debian-6.1-c16-conntrack-table-full",
        "recordings/debian-6.1-c29-silent-other-node",
        "recordings/debian-6.12-api-server-away",
        "recordings/debian-6.12-c20-no-endpoints",
        "recordings/debian-6.12-c28-refused-other-node",
        "recordings/debian-6.12-c5-one-service-without-rules",
        "recordings/debian-6.12-recording-losses",
        "recordings/debian-6.12-targeted-service",
        "recordings/debian-7.2-c20-no-endpoints_iptables-ipv6",
        "recordings/debian-7.2-c29-udp-unanswered",
        "recordings/debian-7.2-n3-one-record-per-connection",
        // Its wall clock was stepped.
        "two-nodes/node1",
    ];
    let (mut compared, mut steps, mut twice, mut translated) = (0, 0, 0, 0);
    for name in NAMES {
        let terminal = Terminal::new();
        terminal.bring(&format!("{name}.viptrace"), "it.viptrace");
        let bytes = fs::read(fixture(&format!("{name}.viptrace"))).unwrap();
        let flows = flows(&bytes);
        let is_fault = |verdicts: &[Verdict]| verdicts.iter().any(Verdict::is_fault);
        // Judged once: a replay has the last verdict, and a running trace prints the way with the first.
        let mut once: Vec<_> = flows.iter().filter(|(_, verdicts)| verdicts.len() == 1).collect();
        once.sort_by_key(|(_, verdicts)| !is_fault(verdicts));
        let chosen = once.iter().step_by(once.len().div_ceil(2).max(1)).take(2);
        for ((client, vip), _) in chosen {
            let (found, _) = traced(&bytes, *client, *vip);
            let texts: Vec<String> = found.iter().map(|found| render_found(found, Paint(false))).collect();
            let addresses =
                iter::once(client).chain(vip).map(ToString::to_string).collect::<Vec<_>>().join(",");
            let (live, again) = (texts.join("\n"), replayed(&terminal, &addresses));
            if name == "two-nodes/node1" {
                // The times of a running trace follow the wall clock.
                let hooks = |text: &str| -> Vec<String> {
                    text.lines().filter(|line| line.starts_with("        ")).map(str::to_owned).collect()
                };
                assert_eq!(hooks(&live), hooks(&again), "{name} {addresses}");
            } else {
                assert_eq!(live.trim_end(), again, "{name} {addresses}");
            }
            let [Found::Way(trail)] = &found[..] else { panic!("{name} {addresses}: {found:?}") };
            assert_eq!(render(trail, Paint(false)), texts[0]);
            steps += trail.steps.len();
            twice += trail.steps.iter().filter(|step| step.same_as.is_some()).count();
            translated += trail.steps.iter().filter(|step| step.after.is_some()).count();
            compared += 1;
        }
    }
    assert!(compared >= 20, "{compared} flows");
    assert!(
        steps > 100 && twice > 0 && translated > 10,
        "{steps} steps, {twice} seen twice, {translated} NAT"
    );
}

/// A verdict that comes before the way is complete replaces the earlier one.
#[test]
fn a_way_has_the_last_verdict() {
    let bytes = fs::read(fixture("recordings/debian-6.12-c20-no-endpoints.viptrace")).unwrap();
    let mut player = Player::open(Cursor::new(&bytes), Detail::All).unwrap();
    let (mut found, mut pathfinder) = (Vec::new(), None);
    while let Some(step) = player.step().unwrap() {
        let Step::Judged { mut judgements, now } = step else { continue };
        let Some(first) = judgements.judged.first() else { continue };
        let pathfinder = pathfinder.get_or_insert_with(|| Pathfinder::new(first.verdict.flow.client, None));
        let mut again = first.clone();
        again.before = Some(Arc::new(first.verdict.key()));
        again.verdict.class = Class::C6;
        judgements.judged.push(again);
        found.extend(pathfinder.judged(&judgements, player.pipeline(), now));
    }
    let mut pathfinder = pathfinder.unwrap();
    found.extend(pathfinder.finish(player.pipeline()));
    assert!(!found.is_empty());
    assert!(found.iter().all(|found| matches!(found, Found::Way(trail) if trail.verdict.class == Class::C6)));
}

/// Of a client that never ends, and of many flows that end together, the oldest sightings and the last flows are left out.
#[test]
fn what_is_kept_is_bounded() {
    let bytes = fs::read(fixture("recordings/debian-6.12-c20-no-endpoints.viptrace")).unwrap();
    let ((client, vip), _) = flows(&bytes).into_iter().find(|(_, verdicts)| verdicts[0].is_fault()).unwrap();
    let mut player = Player::open(Cursor::new(&bytes), Detail::All).unwrap();
    let mut sightings = Sightings::open(Cursor::new(&bytes)).unwrap();
    let mut of_client = Vec::new();
    while let Some(observed) = sightings.next_sighting().unwrap() {
        of_client.push(observed.sighting);
    }
    let mut pathfinder = Pathfinder::new(client, vip);
    for _ in 0..5000 {
        pathfinder.observe(&of_client);
    }
    let mut found = Vec::new();
    while let Some(step) = player.step().unwrap() {
        let Step::Judged { judgements, now } = step else { continue };
        let wanted = judgements.judged.iter().filter(|judged| judged.verdict.flow.client == client);
        let many = wanted.flat_map(|judged| iter::repeat_n(judged, 20)).cloned().collect();
        found.extend(pathfinder.judged(
            &Judgements { judged: many, ..Judgements::default() },
            player.pipeline(),
            now,
        ));
    }
    found.extend(pathfinder.finish(player.pipeline()));
    assert_eq!((found.len(), pathfinder.left_out()), (8, 12));
    let Found::Way(trail) = &found[0] else { panic!("{found:?}") };
    assert_eq!((trail.steps.len(), trail.more), (512, 4096 - 512));
    let gap = trail.gaps.last().unwrap();
    assert!(
        gap.contains("earlier sightings of this client") && gap.ends_with("only the last 4096 are kept"),
        "{gap}"
    );
}

/// The header of a trace on this node, with the hooks as they are in `states`; every other one is attached.
fn header_of(node: &str, hook_set: Option<&str>, states: &[(&str, &str)]) -> Header {
    let lines = Hook::ALL.iter().map(|hook| {
        let state = states.iter().find(|(symbol, _)| hook.has_name(symbol));
        let (name, state) = *state.unwrap_or(&(hook.symbol(), "attached"));
        json!({"hook": name, "attach": "fentry", "state": state})
    });
    let mut header = serde_json::to_value(header(&corpus("debian-6.12"))).unwrap();
    header["hooks"] = lines.collect();
    header["node_name"] = node.into();
    header["hook_set"] = hook_set.into();
    // One clock.
    header["boot"] = "b".into();
    serde_json::from_value(header).unwrap()
}

/// What the way of a flow names as not seen, if a flow of worker-1 went to an endpoint on worker-2 and this was the trace
/// there. `meanwhile` happens there one second after the beginning.
fn not_seen(here: &Header, there: Option<&Header>, meanwhile: impl Fn(&mut Live)) -> Vec<String> {
    let terminal = Terminal::new();
    let mut live = Live::new(here, Detail::All, &terminal.path().join("here.viptrace"));
    let traffic: Vec<Vec<u8>> = Traffic::new(&corpus("debian-6.12"), 5, 50.0).take(300).collect();
    for batch in traffic.chunks(20) {
        live.turn(batch.iter().map(Vec::as_slice));
    }
    let flow = live.lines.iter().find_map(|line| {
        let verdict = serde_json::Deserializer::from_str(line).into_iter::<Value>().next()?.ok()?;
        (verdict["class"] == "ok" && verdict["flow"]["endpoint"] == "10.244.2.13:8080").then_some(verdict)
    });
    let client = flow.unwrap()["flow"]["client"].as_str().unwrap().to_owned();
    live.pass(Duration::from_secs(30));
    let end = live.now;
    live.end();
    if let Some(there) = there {
        let mut live = Live::new(there, Detail::All, &terminal.path().join("there.viptrace"));
        live.pass(Duration::from_secs(1));
        meanwhile(&mut live);
        live.pass(end.since(live.now));
        live.end();
    }
    let text = terminal.run(&format!("replay . --path {client} --quiet"));
    let (_, gaps) = text.split_once("\nNot seen\n").unwrap_or_else(|| panic!("{text}"));
    gaps.lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .map(|line| line.replace(&client, "CLIENT"))
        .collect()
}

#[test]
fn what_was_not_seen_has_its_reason() {
    let here =
        header_of("worker-1", Some("full"), &[("kfree_skb", "missing"), ("nf_send_unreach", "not_needed")]);
    let there = header_of("worker-2", Some("full"), &[]);
    let nothing = |_: &mut Live| {};
    let gaps = not_seen(&here, Some(&there), nothing);
    assert_eq!(
        gaps,
        [
            "worker-2, the endpoint's node, never saw the connection from CLIENT to 10.244.2.13:8080",
            "not observed: the hook kfree_skb was not attached on worker-1",
            "not seen, though attached on worker-1 the whole time: nf_send_reset, nf_ct_resolve_clash, nf_ct_kill_acct, \
             tcp_receive_reset, tcp_send_reset, tcp_v4_send_reset, tcp_retransmit_skb, nf_ct_l4proto_log_invalid and \
             nf_nat_icmp_reply_translation",
        ]
    );
    let about =
        |there: &Header, meanwhile: &dyn Fn(&mut Live)| not_seen(&here, Some(there), meanwhile)[0].clone();
    let says = |text: &str| {
        format!("on worker-2, the endpoint's node: its recording has no sighting of this flow; {text}")
    };
    let agent = "an agent records arrivals that fail, and the others up to a limit";
    assert_eq!(about(&header_of("worker-2", Some("failures"), &[]), &nothing), says(agent));
    // Older recordings: with the socket states, it is no agent's; without hooks, nothing is known.
    assert_eq!(about(&header_of("worker-2", None, &[]), &nothing), gaps[0]);
    let older = header_of("worker-2", None, &[("inet_sock_set_state", "not_needed")]);
    assert_eq!(
        about(&older, &nothing),
        says(&format!("it does not show whether it has every connection: {agent}"))
    );
    let unnamed = Header { hooks: Vec::new(), ..there.clone() };
    assert_eq!(about(&unnamed, &nothing), says("it does not show which hooks were attached"));
    let without = header_of("worker-2", Some("full"), &[("__nf_conntrack_confirm", "missing")]);
    assert_eq!(about(&without, &nothing), says("the hook __nf_conntrack_confirm was not attached"));
    let targeted = Header { target: Some("service/shop/other".to_owned()), ..there.clone() };
    assert_eq!(about(&targeted, &nothing), says("it is of service/shop/other only"));
    // What happened in the middle.
    let lost = |live: &mut Live| live.lose(3, Duration::from_millis(1));
    assert_eq!(about(&there, &lost), says("events were lost or suppressed there"));
    let came = |live: &mut Live| {
        let later = live.now.saturating_add(Duration::from_secs(20));
        live.recorded.hook_changed(Hook::Confirm, true, later);
    };
    let partly = about(&without, &came);
    assert!(partly.contains("the hook __nf_conntrack_confirm was attached only from "), "{partly}");
    let went = |live: &mut Live| live.recorded.hook_changed(Hook::Confirm, false, live.now);
    let partly = about(&there, &went);
    assert!(partly.contains("the hook __nf_conntrack_confirm was attached only until "), "{partly}");
    let late = Header { started: there.started.saturating_add(Duration::from_secs(20)), ..there };
    assert_eq!(about(&late, &nothing), says("it does not cover all of the flow's time"));
    // Without a recording of that node, and with an older one of this.
    let alone = not_seen(&Header { hooks: Vec::new(), ..here }, None, nothing);
    assert!(alone[0].contains("it was not observed here"), "{alone:?}");
    assert_eq!(alone[1], "on worker-1: its recording does not show which hooks were attached");
}
