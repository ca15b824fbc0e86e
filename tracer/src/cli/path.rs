//! `viptrace path FROM TO`: the way of a packet through the node's rules, without sending it.

use std::{mem::ManuallyDrop, net::SocketAddr};

use crate::{
    cli::{Outcome, args::PathOptions, capture, check::audit},
    diagnosis::{
        path::{Journey, Outcome as End, Scene},
        triage::Facts,
    },
    net::Family,
    node::{
        Snapshot,
        capture::{Capture, Kind},
        interfaces::Dataplane,
        routes::Routes,
        snapshot::Listing,
    },
    report::{Printer, path},
    rules::iptables,
};

/// Finds the way and prints it.
pub(super) fn run(options: &PathOptions, mut printer: Printer) -> anyhow::Result<Outcome> {
    let capture = match &options.from {
        Some(dir) => audit::read_folder(dir, &options.cluster, options.node.as_deref(), &mut printer)?,
        None => capture::collect(&options.cluster, options.node.clone(), &mut printer)?,
    };
    let journey = find(options, &capture)?;
    let text = if options.json { path::record(&journey)? } else { path::text(&journey, printer.paint()) };
    if options.json {
        printer.data(&text)?;
    } else {
        printer.text(&text)?;
    }
    printer.flush()?;
    Ok(match journey.result {
        End::Reaches | End::Passes if journey.depends_on.is_empty() => Outcome::Clean,
        End::Reaches | End::Passes | End::Unknown => Outcome::Incomplete,
        End::ReplyLost | End::Refused | End::Dropped | End::NotTranslated | End::Mixed => Outcome::Faults,
    })
}

fn find(options: &PathOptions, capture: &Capture) -> anyhow::Result<Journey> {
    // The process ends with the answer. Freeing every rule and object first would take longer than printing.
    let mut facts = ManuallyDrop::new(Facts::read(capture));
    audit::require_node(&facts, options.from.as_deref(), options.node.as_deref())?;
    let knows_rules = Family::ALL.map(|family| facts.node.knows_rules(family));
    let unread = Family::ALL.map(|family| unread(&facts.node, capture, family));
    let (rules, gaps) = facts.node.take_everyones_rules(capture);
    let rules = ManuallyDrop::new(rules);
    let routes = match facts.node.routes.take() {
        Some(routes) => routes,
        None => facts.node.interfaces.as_ref().map(Routes::of_interfaces).unwrap_or_default(),
    };
    let scene = Scene {
        rules: &rules,
        routes: &routes,
        interfaces: facts.node.interfaces.as_ref(),
        sysctls: facts.node.sysctls.as_ref(),
        history: facts.history.as_ref(),
        node: facts.known_node(),
        knows_rules,
        ipvs_is_untracked: facts.node.ipvs_settings.is_some_and(|settings| settings.conntrack == Some(false)),
        dataplane: facts.node.served_elsewhere().map(Dataplane::as_str),
    };
    let found = scene.journey(&options.question);
    let mut journey = found.map_err(anyhow::Error::new)?;
    journey.kube_proxy_mode = facts.node.mode.map(|mode| mode.to_string());
    let is_v4 = journey.to.address.parse::<SocketAddr>().is_ok_and(|address| address.is_ipv4());
    let [v4, v6] = unread;
    journey.unread = if is_v4 { v4 } else { v6 };
    journey.unread.extend(gaps.iter().map(ToString::to_string));
    Ok(journey)
}

/// The lists that were not read and that can have rules for this packet.
fn unread(node: &Snapshot, capture: &Capture, family: Family) -> Vec<String> {
    let is_open = |listing| matches!(listing, Listing::Failed | Listing::NotTried);
    let iptables = match family {
        Family::Ipv4 => Kind::IPTABLES,
        Family::Ipv6 => Kind::IP6TABLES,
    };
    let lacks = |kind| capture.get(kind).is_none();
    let wanted: [(&[Kind], bool); 6] = [
        (&iptables, is_open(node.listings.iptables(family))),
        (&Kind::NFTABLES, is_open(node.listings.nftables)),
        (
            &[Kind::NftOthers],
            lacks(Kind::NftOthers) && lacks(Kind::NftRuleset) && lacks(Kind::NftRulesetJson),
        ),
        (&Kind::IPVS, is_open(node.listings.ipvs) && node.has_ipvs_device()),
        (&[Kind::Routes], node.routes.is_none()),
        (&[Kind::Addresses, Kind::Interfaces], node.rules.addresses.is_none()),
    ];
    let mut lines = Vec::new();
    // Beside kube-proxy's rules in the legacy backend. nft's own list has the table.
    let is_hidden = lacks(Kind::NftRuleset) && lacks(Kind::NftRulesetJson);
    if is_hidden
        && node.listings.iptables(family) == Listing::Read
        && Snapshot::hides(capture, family, "filter")
    {
        lines.push(iptables::unprinted(family));
    }
    for (kinds, _) in wanted.into_iter().filter(|(_, missing)| *missing) {
        let Some(first) = kinds.first() else { continue };
        let gap = node.gaps.iter().find(|gap| kinds.contains(&gap.kind));
        match gap.map(|gap| &gap.reason) {
            Some(crate::node::Reason::NotInKernel { .. }) => {}
            Some(reason) => lines.push(format!("{}: {reason}", first.about())),
            None => lines.push(first.about().to_owned()),
        }
    }
    lines
}
