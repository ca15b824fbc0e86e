//! The network probes of a container: the kubelet's connections (N1).

use k8s_openapi::{api::core::v1 as core, apimachinery::pkg::util::intstr::IntOrString};

use super::{Notes, seconds};
use crate::cluster::model::{Probe, ProbeHandler, ProbeKind};

/// Kubernetes' default of `periodSeconds`.
const PERIOD_DEFAULT_SECONDS: i32 = 10;

/// Kubernetes' default of `timeoutSeconds`.
const TIMEOUT_DEFAULT_SECONDS: i32 = 1;

/// The container's probes that reach the Pod's own address over the network.
pub(super) fn of(container: &core::Container, notes: &mut Notes<'_>) -> Vec<Probe> {
    let kinds = [
        (ProbeKind::Liveness, &container.liveness_probe),
        (ProbeKind::Readiness, &container.readiness_probe),
        (ProbeKind::Startup, &container.startup_probe),
    ];
    let probes = kinds.into_iter().filter_map(|(kind, probe)| {
        let probe = probe.as_ref()?;
        let (handler, port) = target(probe, container, notes)?;
        Some(Probe {
            kind,
            handler,
            port,
            period: seconds(probe.period_seconds.filter(|s| *s > 0).unwrap_or(PERIOD_DEFAULT_SECONDS).into()),
            timeout: seconds(
                probe.timeout_seconds.filter(|s| *s > 0).unwrap_or(TIMEOUT_DEFAULT_SECONDS).into(),
            ),
            initial_delay: seconds(probe.initial_delay_seconds.unwrap_or(0).into()),
        })
    });
    probes.collect()
}

fn target(
    probe: &core::Probe,
    container: &core::Container,
    notes: &mut Notes<'_>,
) -> Option<(ProbeHandler, u16)> {
    let own = |host: Option<&String>| host.is_none_or(String::is_empty);
    if let Some(http) = probe.http_get.as_ref().filter(|http| own(http.host.as_ref())) {
        return Some((ProbeHandler::HttpGet, resolve(&http.port, container, notes)?));
    }
    if let Some(tcp) = probe.tcp_socket.as_ref().filter(|tcp| own(tcp.host.as_ref())) {
        return Some((ProbeHandler::TcpSocket, resolve(&tcp.port, container, notes)?));
    }
    let grpc = probe.grpc.as_ref()?;
    Some((ProbeHandler::Grpc, notes.port(grpc.port, "probe port")?))
}

fn resolve(port: &IntOrString, container: &core::Container, notes: &mut Notes<'_>) -> Option<u16> {
    let number = match port {
        IntOrString::Int(number) => Some(*number),
        IntOrString::String(name) => {
            let named = container.ports.iter().flatten().find(|p| p.name.as_ref() == Some(name));
            // The kubelet also accepts a number written as a string.
            named.map(|p| p.container_port).or_else(|| name.parse().ok())
        }
    };
    if number.is_none() {
        notes.note("a probe's port name is not among the container's ports, probe skipped".to_owned());
    }
    notes.port(number?, "probe port")
}
