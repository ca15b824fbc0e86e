//! Faults of the node itself: the conntrack table, settings, and rules that another program wrote or removed.

use anyhow::{Result, ensure};

use super::{check, expect};
use crate::{
    command, console,
    dataplane::{Mode, OF_ONE_TIME},
    matrix::Skip,
    traffic::{
        client::{self, Script},
        server,
    },
    world::{CONNTRACK_MAX, Stage},
};

/// Only the faults by design exist.
pub(in crate::scenarios) fn healthy(stage: &mut Stage) -> Result<()> {
    stage.needs_viptrace()?;
    let checked = expect(stage, &[])?;
    console::file("check-healthy.json", &format!("{:#}", checked.report));
    let mode = if stage.mode() == Mode::Nftables { "nftables" } else { "iptables" };
    let reported = &checked.report["kube_proxy_mode"];
    ensure!(reported == mode, "the mode is {reported}");
    let first = check(stage, &["shop/cart"])?;
    ensure!(first.ended.status == 0, "shop/cart is not healthy: {:#?}", first.findings);
    ensure!(first.report["state"] == "healthy", "its state is {}", first.report["state"]);
    Ok(())
}

/// C5e: another program flushed the rules.
pub(in crate::scenarios) fn flushed(stage: &mut Stage) -> Result<()> {
    stage.needs_viptrace()?;
    let flushed = stage.rules()?.without_kube_proxy();
    stage.break_rules(&flushed)?;
    // IPVS's servers differ from the objects, which were captured at another time.
    let whole = OF_ONE_TIME.contains(&stage.variant);
    let checked = if whole { expect(stage, &["C5e"])? } else { check(stage, &[])? };
    let first = checked.findings.first().map(|finding| finding.name.as_str());
    ensure!(first == Some("C5e"), "the first finding is {first:?}: {:#?}", checked.findings);
    Ok(())
}

/// The established connections, and the free entries of the table: more than nine tenths are in use.
const STANDING: usize = 300;
const ROOM: usize = 24;

/// C16: connections nearly fill the table, and nothing is lost. The check's own connections to the API server still fit: a
/// full table would drop them, and the check could judge only the node.
pub(in crate::scenarios) fn table_full(stage: &mut Stage) -> Result<()> {
    stage.needs_viptrace()?;
    let keeps = server::Script::Chat { request: client::REQUEST, response: client::RESPONSE };
    let _serving = stage.serve("shop/frontend-1", 8080, keeps)?;
    let from = stage.place("shop/client-1")?;
    let frontend = stage.vip("shop/frontend", "http")?;
    let mut standing = Vec::new();
    for _ in 0..STANDING {
        standing.push(client::hold(from, frontend, Script::exchange())?);
    }
    set(stage, "net.netfilter.nf_conntrack_max", &(STANDING + ROOM).to_string(), CONNTRACK_MAX)?;
    let full = expect(stage, &["C16"])?;
    ensure!(
        full.find("C16")?.level == "warning",
        "a table that loses nothing is not reported as a warning: {:#?}",
        full.findings
    );
    Ok(())
}

/// C31, C32: settings on the path of packets.
pub(in crate::scenarios) fn settings(stage: &mut Stage) -> Result<()> {
    stage.needs_viptrace()?;
    for (name, broken, whole, expected) in
        [("net.ipv4.ip_forward", "0", "1", "C32"), ("net.bridge.bridge-nf-call-iptables", "0", "1", "C31")]
    {
        set(stage, name, broken, whole)?;
        let found = expect(stage, &[expected])?;
        ensure!(
            found.find(expected)?.root_cause.contains(name),
            "{name} is not named: {:#?}",
            found.findings
        );
        stage.repair()?;
    }
    // A strict reverse path filter matters only with a second uplink.
    stage.break_with(
        |world| {
            world.topology.host.ip_batch(&[
                "link add up9 type veth peer name up9-far".to_owned(),
                "address add 198.51.100.9/24 dev up9".to_owned(),
                "link set up9-far up".to_owned(),
                "link set up9 up".to_owned(),
            ])
        },
        |world| world.topology.host.ip_batch(&["link delete up9".to_owned()]),
    )?;
    set(stage, "net.ipv4.conf.all.rp_filter", "1", "0")?;
    let strict = expect(stage, &["C32"])?;
    ensure!(strict.find("C32")?.level == "warning", "{:#?}", strict.findings);
    Ok(())
}

/// C10: rules of another mode next to kube-proxy's own.
pub(in crate::scenarios) fn leftovers(stage: &mut Stage) -> Result<()> {
    stage.needs_viptrace()?;
    stage.break_with(
        |world| {
            let table = "add table ip kube-proxy; add chain ip kube-proxy services; \
                add rule ip kube-proxy services ip daddr 10.96.10.10 counter";
            world.topology.host.command("nft", &[table]).map(drop)
        },
        |world| world.topology.host.command("nft", &["delete", "table", "ip", "kube-proxy"]).map(drop),
    )?;
    let left = expect(stage, &["C10"])?;
    ensure!(left.find("C10")?.root_cause.contains("nftables"), "{:#?}", left.findings);
    Ok(())
}

/// C3: rules of the legacy backend next to those of the nft backend.
pub(in crate::scenarios) fn other_backend(stage: &mut Stage) -> Result<()> {
    stage.needs_viptrace()?;
    if let Err(error) = command::run("modprobe", &["iptable_nat"]) {
        return Err(Skip(format!("this kernel has no legacy iptables: {error:#}")).into());
    }
    let rules = "*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-SVC-AAAAAAAAAAAAAAAA - [0:0]\n-A PREROUTING -j KUBE-SERVICES\n\
        -A KUBE-SERVICES -j KUBE-SVC-AAAAAAAAAAAAAAAA\nCOMMIT\n";
    let empty = "*nat\nCOMMIT\n";
    let restore = |text: &'static str| move || command::run_with_input("iptables-legacy-restore", &[], text);
    stage.break_with(
        move |world| world.topology.host.run(restore(rules))?.map(drop),
        move |world| world.topology.host.run(restore(empty))?.map(drop),
    )?;
    expect(stage, &["C3"])?;
    Ok(())
}

/// Sets a sysctl of the node for this scenario.
fn set(stage: &mut Stage, name: &'static str, broken: &str, whole: &'static str) -> Result<()> {
    let broken = broken.to_owned();
    stage.break_with(
        move |world| world.topology.host.sysctl(name, &broken),
        move |world| world.topology.host.sysctl(name, whole),
    )
}
