//! The addresses of objects over the time of a recording.

use crate::{
    cluster::model::{Key, Object},
    recording::{Tape, UnusableFile, Wanted},
};

/// The addresses and node ports that the Service has in any version; `None` without one, or if the index cannot find
/// one of its ports.
pub(super) fn of_service(tape: &Tape, namespace: &str, name: &str) -> Result<Option<Wanted>, UnusableFile> {
    let key = Key::new(namespace, name);
    let (mut wanted, mut is_complete) = (Wanted::of_service(), true);
    tape.objects(|object| {
        let Object::Service(service) = object else { return };
        if service.key != key {
            return;
        }
        for ip in service.own_ips() {
            wanted.add_ip(ip);
        }
        for port in service.ports.iter().filter_map(|port| port.node_port) {
            is_complete &= wanted.add_port(port);
        }
    })?;
    Ok(Some(wanted).filter(|wanted| is_complete && wanted.addresses() > 0))
}

/// The addresses that the Pod has in any version, and as an endpoint; `None` without one.
pub(super) fn of_pod(tape: &Tape, namespace: &str, name: &str) -> Result<Option<Wanted>, UnusableFile> {
    let key = Key::new(namespace, name);
    let mut wanted = Wanted::default();
    tape.objects(|object| match object {
        Object::Pod(pod) if pod.key == key => {
            for ip in &pod.ips {
                wanted.add_ip(*ip);
            }
        }
        Object::EndpointSlice(slice) => {
            let is_pod = |pod: &crate::cluster::model::PodRef| pod.key == key;
            for endpoint in slice.endpoints.iter().filter(|it| it.pod.as_ref().is_some_and(is_pod)) {
                for ip in &endpoint.addresses {
                    wanted.add_ip(*ip);
                }
            }
        }
        _ => {}
    })?;
    Ok(Some(wanted).filter(|wanted| wanted.addresses() > 0))
}
