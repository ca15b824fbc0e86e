//! Any bytes as a node's rules, in each format; every frontend that the result names is queried, in an audit and for the
//! way of a packet.
#![no_main]

use libfuzzer_sys::fuzz_target;
use viptrace::{
    diagnosis::path::{From, Question, Scene, To},
    net::Family,
    node::routes::Routes,
    rules::{Origin, Probe, Ruleset, ipset, iptables, ipvs, nftables, walk::Walker},
};

fuzz_target!(|input: &[u8]| {
    let Some((kind, bytes)) = input.split_first() else { return };
    let text = String::from_utf8_lossy(bytes);
    let mut rules = Ruleset::default();
    match kind % 5 {
        0 => rules = iptables::parse(&text, iptables::Hint::default()),
        1 => rules = nftables::parse(&text).unwrap_or_default(),
        2 => rules = nftables::parse_others(&text).unwrap_or_default(),
        3 => rules.servers = Some(ipvs::parse(&text)),
        _ => rules = ipset::parse(&text),
    }
    let routes = Routes::default();
    let scene = Scene::new(&rules, &routes);
    for family in Family::ALL {
        let walker = Walker::new(&rules, family);
        let traffic = rules.local_traffic(family);
        let (source, interface) = traffic.example(family);
        for (frontend, origin) in
            rules.frontends(family).into_keys().take(8).zip(Origin::ALL.into_iter().cycle())
        {
            let destination = (frontend.address.unwrap_or(source), frontend.port).into();
            let (protocol, local) = (frontend.protocol, frontend.address.is_none());
            let _ = walker.walk(&Probe {
                origin,
                source,
                interface,
                destination,
                protocol,
                local,
                hairpin: true,
            });
            let to = To::Address(destination);
            let question =
                Question { from: From::Address(source), to, protocol: Some(protocol), family: None };
            let _ = scene.journey(&question);
        }
    }
});
