//! The ways of flows: a running trace prints what the replay of its recording prints, with bounded memory.

use std::{collections::BTreeMap, fs, io::Cursor, iter, net::SocketAddr, sync::Arc};

use viptrace::{
    class::Class,
    incident::{Found, Pathfinder},
    recording::{Player, Sightings, Step},
    report::{
        Paint,
        trail::{render, render_found},
    },
    session::{Detail, Judgements},
    verdict::Verdict,
};

use crate::terminal_support::{Terminal, fixture};

/// Plays the recording as a running trace receives it: sightings up to a time, then the judgements of that time.
fn traced(bytes: &[u8], client: SocketAddr, to: Option<SocketAddr>) -> (Vec<Found>, Pathfinder) {
    let mut player = Player::open(Cursor::new(bytes), Detail::All).unwrap();
    let mut sightings = Sightings::open(Cursor::new(bytes)).unwrap();
    let mut next = iter::from_fn(|| Some(sightings.next_sighting().unwrap()?.sighting)).peekable();
    let mut pathfinder = Pathfinder::new(client, to);
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
            assert_eq!(texts.join("\n").trim_end(), replayed(&terminal, &addresses), "{name} {addresses}");
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
