//! The limits of a live trace's flow table: from its options, and from conntrack's timeouts on this node.

use std::time::Duration;

use crate::{
    cli::args::{Hooks, TraceOptions},
    flow::{Limits, Reread},
    kernel::environment::Environment,
    sighting::Hook,
};

/// A timeout that cannot be read has the kernel's default.
pub(super) fn limits(options: &TraceOptions, environment: &Environment) -> Limits {
    let timeout = |name: &str| {
        let seconds =
            environment.sysctl(&format!("net/netfilter/nf_conntrack_{name}"))?.trim().parse().ok()?;
        Some(Duration::from_secs(seconds))
    };
    let default = Limits::default();
    Limits {
        max_flows: options.max_flows,
        reread: reread(options),
        sees_closes: options.hooks == Hooks::Full && !options.without_hooks.contains(&Hook::SockClosed),
        idle_connection: timeout("tcp_timeout_established").unwrap_or(default.idle_connection),
        idle_datagrams: timeout("udp_timeout_stream").unwrap_or(default.idle_datagrams),
        ..default
    }
}

/// In a lean trace no socket event shows that a connection was answered. Rereading every connection's entry would cost
/// more than such events: only those of connections whose SYN was repeated are read.
fn reread(options: &TraceOptions) -> Reread {
    if options.hooks != Hooks::Full || options.without_hooks.contains(&Hook::SockEstablished) {
        Reread::Datagrams
    } else {
        Reread::All
    }
}
