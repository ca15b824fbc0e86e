//! A walk that notes every rule: the chains of every program, their policies, conditions that cannot be judged, and the
//! text of rules.

use std::{
    fs,
    net::IpAddr,
    time::{Duration, Instant},
};

use viptrace::{
    diagnosis::path::{From, Outcome, Question, Scene, To},
    net::{Family, Protocol},
    node::routes::Routes,
    rules::{
        Origin, Probe, Ruleset, Step,
        iptables::{self, Hint},
        nftables, text,
        walk::{Devices, End, Fate, Note, Notes, Place, Walker, Witness},
    },
};

use crate::check_support::fixtures;

/// Every packet leaves through one device.
#[derive(Debug)]
struct Through(Option<&'static str>);

impl Devices for Through {
    fn device_to(&self, _: IpAddr) -> Option<&str> {
        self.0
    }
}

fn walk(rules: &Ruleset, origin: Origin, destination: &str, out: Option<&'static str>) -> Fate<Notes> {
    let probe = Probe {
        origin,
        source: "10.244.1.90".parse().unwrap(),
        interface: Some("cali1"),
        destination: destination.parse().unwrap(),
        protocol: Protocol::TCP,
        local: false,
        hairpin: false,
    };
    let witness =
        Witness { devices: Through(out), source_port: None, is_reply: false, ipvs_is_untracked: false };
    Walker::whole(rules, Family::Ipv4).observe(&probe, &witness)
}

/// The rules of a way, as `CHAIN #NUMBER TEXT`.
fn lines(rules: &Ruleset, notes: &Notes) -> Vec<String> {
    let line = |place: Place| {
        let table = &rules.tables[place.table];
        let chain = &table.chains[place.chain];
        format!("{} #{} {}", chain.name, place.rule + 1, text::rule(&chain.rules[place.rule], table))
    };
    let notes = notes.to_vec();
    let rules_of = notes.iter().filter_map(|note| match note {
        Note::Matches { place, .. } => Some(line(*place)),
        Note::Policy { table, chain } => {
            Some(format!("policy of {}", rules.tables[*table].chains[*chain].name))
        }
        _ => None,
    });
    rules_of.collect()
}

const FIREWALL: &str = "*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:cali-FORWARD - [0:0]
:DOCKER-USER - [0:0]
-A FORWARD -j cali-FORWARD
-A FORWARD -j DOCKER-USER
-A FORWARD -i docker0 -o docker0 -j ACCEPT
-A FORWARD -o eth0 -p tcp -m multiport --dports 80,8000:8090 -j ACCEPT
-A cali-FORWARD -m comment --comment \"cali:x\" -m set --match-set cali40blocked dst -j DROP
-A cali-FORWARD -p tcp -m tcp --tcp-flags SYN NONE -j DROP
-A DOCKER-USER -m conntrack --ctstate RELATED,ESTABLISHED -j RETURN
-A DOCKER-USER -j RETURN
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
-A PREROUTING -d 10.96.0.1/32 -p tcp -m tcp --dport 80 -j DNAT --to-destination 10.244.2.5:8080
-A POSTROUTING -s 10.244.0.0/16 -o eth0 -j MASQUERADE
COMMIT
";

#[test]
fn every_programs_chains_and_policies_count() {
    let rules = iptables::parse(FIREWALL, Hint::default());
    let fate = walk(&rules, Origin::Pod, "10.96.0.1:80", Some("eth0"));
    let [assumed, plain] = fate.branches.as_slice() else { panic!("{fate:#?}") };
    assert_eq!(
        (plain.end, plain.masquerade, plain.weight),
        (End::Endpoint("10.244.2.5:8080".parse().unwrap()), true, 1.0)
    );
    assert_eq!(
        lines(&rules, &plain.seen),
        [
            "PREROUTING #1 -d 10.96.0.1 -p tcp --dport 80 -j DNAT --to-destination 10.244.2.5:8080",
            "FORWARD #1 -j cali-FORWARD",
            "FORWARD #2 -j DOCKER-USER",
            "DOCKER-USER #2 -j RETURN",
            "FORWARD #4 -o eth0 -p tcp --dports 80,8000:8090 -j ACCEPT",
            "POSTROUTING #1 -s 10.244.0.0/16 -o eth0 -j MASQUERADE",
        ]
    );
    // The set was not captured: if it has the endpoint, the packet is dropped.
    assert_eq!(assumed.end, End::Dropped);
    assert!(assumed.seen.assumed().is_some() && plain.seen.assumed().is_none());

    // Another device, or another port: the policy decides. An audit does not follow it.
    let fate = walk(&rules, Origin::Pod, "10.96.0.1:80", Some("wg0"));
    let plain = fate.branches.iter().find(|branch| branch.seen.assumed().is_none()).unwrap();
    assert_eq!(
        (plain.end, lines(&rules, &plain.seen).pop().as_deref()),
        (End::Dropped, Some("policy of FORWARD"))
    );
    // An unknown device: both ways.
    let fate = walk(&rules, Origin::Pod, "10.96.0.1:80", None);
    let ends: Vec<End> = fate.branches.iter().map(|branch| branch.end).collect();
    assert!(
        ends.contains(&End::Dropped) && ends.iter().any(|end| matches!(end, End::Endpoint(_))),
        "{ends:?}"
    );
}

#[test]
fn a_packet_without_conntrack_is_not_translated() {
    let raw = "*raw\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -d 10.96.0.1/32 -j CT --notrack\nCOMMIT\n";
    let rules = iptables::parse(
        &format!("{raw}{}", FIREWALL.replace(":FORWARD DROP", ":FORWARD ACCEPT")),
        Hint::default(),
    );
    let fate = walk(&rules, Origin::Pod, "10.96.0.1:80", Some("wg0"));
    assert!(
        fate.branches.iter().all(|branch| branch.end != End::Endpoint("10.244.2.5:8080".parse().unwrap())),
        "{fate:#?}"
    );
}

/// Every list of iptables in the fixtures, and its name.
fn lists() -> Vec<(String, String)> {
    let mut folders = vec![fixtures()];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.to_string_lossy().ends_with("tables-save.txt") {
                found.push((path.display().to_string(), fs::read_to_string(path).unwrap()));
            }
        }
    }
    found
}

#[test]
fn the_text_of_a_rule_is_read_as_the_same_rule() {
    let lists = lists();
    assert!(lists.len() > 5, "{}", lists.len());
    for (name, list) in lists {
        let rules = iptables::parse(&list, Hint::default());
        for table in &rules.tables {
            let of_table = table.chains.iter().flat_map(|chain| &chain.rules);
            for rule in of_table {
                let written = text::rule(rule, table);
                let read = iptables::parse(&format!("*nat\n-A X {written}\nCOMMIT\n"), Hint::default());
                let read = &read.tables[0].chains[0].rules[0];
                assert_eq!(read.steps, rule.steps, "{name}: {written}");
            }
        }
    }
}

#[test]
fn the_text_of_an_nft_rule_is_read_as_the_same_rule() {
    for mode in ["kube-proxy", "kube-proxy-v1.36"] {
        let list = fixtures().join(mode).join("worker-1/nftables/nft-ruleset.json");
        let rules = nftables::parse(&fs::read_to_string(list).unwrap()).unwrap();
        let table = rules.tables.iter().find(|table| table.family == Family::Ipv4).unwrap();
        let choice = |step: &Step| matches!(step, Step::Spread { .. } | Step::Sticky(_) | Step::Remember(_));
        let anonymous = |step: &Step| matches!(step, Step::Look(of) if of.map.starts_with("__"));
        let of_table = table.chains.iter().flat_map(|chain| &chain.rules);
        let whole = of_table.filter(|rule| !rule.steps.iter().any(|step| choice(step) || anonymous(step)));
        let mut count = 0;
        for rule in whole {
            let written = text::rule(rule, table);
            let listing = format!("table ip kube-proxy {{\n\tchain x {{\n\t\t{written}\n\t}}\n}}\n");
            let read = nftables::parse(&listing).unwrap();
            assert_eq!(read.tables[0].chains[0].rules[0].steps, rule.steps, "{written}");
            count += 1;
        }
        assert!(count > 20, "{count}");
    }
}

#[test]
fn chains_in_a_loop_end_with_a_note() {
    let text = "*nat\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -j A\n-A A -m limit --limit 1/s -j A\n-A A -g A\nCOMMIT\n";
    let rules = iptables::parse(text, Hint::default());
    let fate = walk(&rules, Origin::Pod, "10.96.0.1:80", None);
    let sum: f64 = fate
        .branches
        .iter()
        .filter(|branch| branch.seen.assumed().is_none())
        .map(|branch| branch.weight)
        .sum();
    assert!((sum - 1.0).abs() < 1e-9, "{fate:#?}");
    let is_lost = |note: &Note| matches!(note, Note::Lost { .. });
    assert!(fate.branches.iter().all(|branch| branch.seen.to_vec().iter().any(is_lost)), "{fate:#?}");
}

/// Rules that double the ways in each chain are given up in time, and the answer states it.
#[test]
fn ways_without_end_are_left_out() {
    let mut text = String::from("*nat\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -j C0\n");
    for chain in 0..15 {
        let next = chain + 1;
        let rule = format!(
            "-A C{chain} -m statistic --mode random --probability 0.5 -j C{next}\n-A C{chain} -j C{next}\n"
        );
        text.push_str(&rule);
    }
    text.push_str("-A C15 -d 10.96.0.1/32 -j DNAT --to-destination 10.244.1.5:80\nCOMMIT\n");
    let rules = iptables::parse(&text, Hint::default());
    let routes = Routes::default();
    let scene = Scene::new(&rules, &routes);
    let from = From::Address("10.244.1.90".parse().unwrap());
    let to = To::Address("10.96.0.1:80".parse().unwrap());
    let begun = Instant::now();
    let journey = scene.journey(&Question { from, to, protocol: None, family: None }).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    assert_eq!(journey.result, Outcome::Unknown, "{}", journey.verdict);
    assert!(journey.ways.len() <= 4096 && !journey.unjudged.is_empty(), "{}", journey.ways.len());
}
