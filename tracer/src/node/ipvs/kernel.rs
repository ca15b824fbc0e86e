//! Reads IPVS's servers over generic netlink and writes them in the format of `ipvsadm -Sn`; the
//! command need not be installed.
//!
//! Attributes and commands: `include/uapi/linux/ip_vs.h`. The family's id is requested first, because it is assigned
//! when the module is loaded. Virtual servers by firewall mark are skipped: kube-proxy creates none.

use std::{fmt::Write as _, io, net::SocketAddr, path::Path, time::Instant};

use crate::{
    net::Protocol,
    node::{
        Limits,
        loaded::Part,
        netlink::{self, Attributes, NESTED, attribute, u16_be, u16_ne, u32_ne},
    },
};

/// `GENL_ID_CTRL`, its `CTRL_CMD_GETFAMILY` and attributes.
const CONTROL: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
/// `IPVS_CMD_NEW_SERVICE` and `_NEW_DEST`: the types of a dump's answers, and the requests.
const NEW_SERVICE: u8 = 1;
const GET_SERVICE: u8 = 4;
const NEW_DEST: u8 = 5;
const GET_DEST: u8 = 8;
/// `struct genlmsghdr`.
const GENERIC_BYTES: usize = 4;
/// `IPVS_CMD_ATTR_SERVICE` and `_DEST`.
const SERVICE: u16 = 1;
const DEST: u16 = 2;
/// `IP_VS_SVC_F_PERSISTENT`
const PERSISTENT: u32 = 1;
/// `IP_VS_CONN_F_FWD_MASK` with `_MASQ`, `_LOCALNODE`, `_TUNNEL`, `_DROUTE`.
const FORWARD_MASK: u32 = 7;
const TUNNEL: u32 = 2;
const DIRECT: u32 = 3;
const NO_SCHEDULER: &str = "none";
const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;

/// One virtual server: the fields that its dump of real servers and its line need.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Service {
    protocol: Protocol,
    address: SocketAddr,
    scheduler: String,
    /// In seconds.
    persistent: Option<u32>,
}

/// The virtual and real servers of this network namespace. Blocks briefly.
///
/// # Errors
///
/// IPVS is not in this kernel (resolving its family would load the module), `CAP_NET_ADMIN` is missing, or there
/// are more servers than the limits allow: a partial list would make rules look missing.
pub(in crate::node) fn saved(root: &Path, limits: Limits) -> io::Result<String> {
    Part::Ipvs.require(root).map_err(|reason| io::Error::new(io::ErrorKind::Unsupported, reason))?;
    let begun = Instant::now();
    let family = family(limits)?;
    let mut services = Vec::new();
    whole(netlink::ask(netlink::NETLINK_GENERIC, &request(family, GET_SERVICE, &[]), limits, |datagram| {
        read_services(datagram, family, &mut services)
    })?)?;
    let mut text = String::new();
    for service in &services {
        let left = Limits {
            time: limits.time.saturating_sub(begun.elapsed()),
            bytes: limits.bytes.saturating_sub(text.len()),
        };
        let mut destinations = Vec::new();
        let of = request(family, GET_DEST, &attribute(SERVICE | NESTED, &identity(service)));
        whole(netlink::ask(netlink::NETLINK_GENERIC, &of, left, |datagram| {
            read_destinations(datagram, family, service, &mut destinations)
        })?)?;
        print(service, &destinations, &mut text);
    }
    Ok(text)
}

/// The output of `ipvsadm -Sn` for the virtual servers in a kernel's datagram, each with the real servers in another;
/// `family` is IPVS's id. Includes the servers before damage.
pub fn to_text(family: u16, services: &[u8], destinations: &[u8]) -> String {
    let mut found = Vec::new();
    let _ = read_services(services, family, &mut found);
    let mut text = String::new();
    for service in &found {
        let mut real = Vec::new();
        let _ = read_destinations(destinations, family, service, &mut real);
        print(service, &real, &mut text);
    }
    text
}

fn whole(all: bool) -> io::Result<()> {
    let too_much = || io::Error::new(io::ErrorKind::TimedOut, "IPVS has more servers than could be read");
    all.then_some(()).ok_or_else(too_much)
}

/// The generic netlink family id of IPVS.
fn family(limits: Limits) -> io::Result<u16> {
    let mut body = vec![GET_FAMILY, 1, 0, 0];
    body.extend(attribute(FAMILY_NAME, b"IPVS\0"));
    let mut found = None;
    netlink::ask(
        netlink::NETLINK_GENERIC,
        &netlink::message(CONTROL, netlink::REQUEST, &body),
        limits,
        |datagram| {
            netlink::messages(datagram, |_, body| {
                let attributes = body.get(GENERIC_BYTES..).unwrap_or_default();
                found = Attributes(attributes)
                    .find_map(|(kind, value)| (kind == FAMILY_ID).then(|| u16_ne(value, 0))?);
            })?;
            // The answer is one message.
            Ok(true)
        },
    )?;
    found.ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            "the kernel returned no generic netlink family id for IPVS",
        )
    })
}

fn request(family: u16, command: u8, attributes: &[u8]) -> Vec<u8> {
    // `IPVS_GENL_VERSION` is 1.
    let body = [&[command, 1, 0, 0], attributes].concat();
    netlink::message(family, netlink::DUMP, &body)
}

/// The fields with which `ip_vs_genl_parse_service` finds it.
fn identity(service: &Service) -> Vec<u8> {
    let (family, mut ip) = match service.address {
        SocketAddr::V4(v4) => (AF_INET, v4.ip().octets().to_vec()),
        SocketAddr::V6(v6) => (AF_INET6, v6.ip().octets().to_vec()),
    };
    ip.resize(16, 0);
    [
        attribute(1, &family.to_ne_bytes()),
        attribute(2, &u16::from(service.protocol.0).to_ne_bytes()),
        attribute(3, &ip),
        attribute(4, &service.address.port().to_be_bytes()),
    ]
    .concat()
}

/// Reads the answers to a dump in one datagram; returns whether the dump ends with it.
fn parse<T>(
    datagram: &[u8],
    family: u16,
    command: u8,
    nest: u16,
    read: impl Fn(&[u8]) -> Option<T>,
    into: &mut Vec<T>,
) -> io::Result<bool> {
    netlink::messages(datagram, |kind, body| {
        if kind == family && body.first() == Some(&command) {
            let attributes = body.get(GENERIC_BYTES..).unwrap_or_default();
            let nested = Attributes(attributes).filter(|(kind, _)| *kind == nest);
            into.extend(nested.filter_map(|(_, value)| read(value)));
        }
    })
}

fn read_services(datagram: &[u8], family: u16, into: &mut Vec<Service>) -> io::Result<bool> {
    parse(datagram, family, NEW_SERVICE, SERVICE, service, into)
}

fn read_destinations(
    datagram: &[u8],
    family: u16,
    service: &Service,
    into: &mut Vec<String>,
) -> io::Result<bool> {
    let read = |attributes: &[u8]| destination(attributes, service.address);
    parse(datagram, family, NEW_DEST, DEST, read, into)
}

fn service(attributes: &[u8]) -> Option<Service> {
    let (mut family, mut protocol, mut address, mut port) = (None, None, None, None);
    let (mut scheduler, mut flags, mut timeout) = (NO_SCHEDULER.to_owned(), 0, 0);
    for (kind, value) in Attributes(attributes) {
        match kind {
            1 => family = u16_ne(value, 0),
            2 => protocol = u16_ne(value, 0),
            3 => address = Some(value),
            4 => port = u16_be(value),
            6 => scheduler = name(value),
            7 => flags = u32_ne(value, 0)?,
            8 => timeout = u32_ne(value, 0)?,
            _ => {}
        }
    }
    let protocol = Protocol(u8::try_from(protocol?).ok()?);
    let ip = netlink::address(address?.get(..address_bytes(family?)?)?)?;
    let persistent = (flags & PERSISTENT != 0).then_some(timeout);
    Some(Service { protocol, address: SocketAddr::new(ip, port?), scheduler, persistent })
}

/// `ipvsadm`'s output for a real server, after its virtual server.
fn destination(attributes: &[u8], of: SocketAddr) -> Option<String> {
    // Before 4.0 a real server had its virtual server's family and did not report it.
    let mut family = if of.is_ipv4() { AF_INET } else { AF_INET6 };
    let (mut address, mut port, mut forward, mut weight) = (None, None, 0, 0);
    for (kind, value) in Attributes(attributes) {
        match kind {
            1 => address = Some(value),
            2 => port = u16_be(value),
            3 => forward = u32_ne(value, 0)? & FORWARD_MASK,
            4 => weight = u32_ne(value, 0)?.cast_signed(),
            11 => family = u16_ne(value, 0)?,
            _ => {}
        }
    }
    let ip = netlink::address(address?.get(..address_bytes(family)?)?)?;
    let method = match forward {
        TUNNEL => "-i",
        DIRECT => "-g",
        _ => "-m",
    };
    Some(format!("-r {} {method} -w {weight}", SocketAddr::new(ip, port?)))
}

/// An address in a field of 16 bytes.
fn address_bytes(family: u16) -> Option<usize> {
    match family {
        AF_INET => Some(4),
        AF_INET6 => Some(16),
        _ => None,
    }
}

/// A scheduler's name with only safe characters; `none`, the kernel's own word, if it has none.
fn name(value: &[u8]) -> String {
    let value = value.split(|byte| *byte == 0).next().unwrap_or_default();
    let name: String =
        value.iter().filter(|byte| byte.is_ascii_graphic()).map(|byte| char::from(*byte)).collect();
    if name.is_empty() { NO_SCHEDULER.to_owned() } else { name }
}

fn print(service: &Service, destinations: &[String], into: &mut String) {
    let option = match service.protocol {
        Protocol::TCP => "-t",
        Protocol::UDP => "-u",
        Protocol::SCTP => "--sctp-service",
        _ => return,
    };
    let Service { address, scheduler, persistent, .. } = service;
    // Writing to a String cannot fail.
    let _ = write!(into, "-A {option} {address} -s {scheduler}");
    if let Some(seconds) = persistent {
        let _ = write!(into, " -p {seconds}");
    }
    into.push('\n');
    for destination in destinations {
        let _ = writeln!(into, "-a {option} {address} {destination}");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        node::netlink::NLMSG_DONE,
        rules::{self, VirtualServer},
    };

    const FAMILY: u16 = 0x1f;

    fn answer(command: u8, nest: u16, attributes: &[u8]) -> Vec<u8> {
        let body = [&[command, 1, 0, 0], attribute(nest | NESTED, attributes).as_slice()].concat();
        netlink::message(FAMILY, 2, &body)
    }

    fn service_bytes(server: &VirtualServer) -> Vec<u8> {
        let service = Service {
            protocol: server.protocol,
            address: server.address,
            scheduler: String::new(),
            persistent: None,
        };
        let flags = 2 | u32::from(server.persistent.is_some());
        let scheduler = format!("{}\0", server.scheduler);
        [
            identity(&service),
            attribute(6, scheduler.as_bytes()),
            attribute(7, &[flags.to_ne_bytes(), u32::MAX.to_ne_bytes()].concat()),
            attribute(8, &server.persistent.unwrap_or(0).to_ne_bytes()),
        ]
        .concat()
    }

    fn destination_bytes(address: SocketAddr, weight: u32, masquerade: bool) -> Vec<u8> {
        let (family, mut ip) = match address {
            SocketAddr::V4(v4) => (AF_INET, v4.ip().octets().to_vec()),
            SocketAddr::V6(v6) => (AF_INET6, v6.ip().octets().to_vec()),
        };
        ip.resize(16, 0);
        let forward = if masquerade { 0x100 } else { 0x100 | DIRECT };
        [
            attribute(1, &ip),
            attribute(2, &address.port().to_be_bytes()),
            attribute(3, &forward.to_ne_bytes()),
            attribute(4, &weight.to_ne_bytes()),
            attribute(11, &family.to_ne_bytes()),
        ]
        .concat()
    }

    fn services_dump(servers: &[VirtualServer]) -> Vec<u8> {
        servers.iter().flat_map(|server| answer(NEW_SERVICE, SERVICE, &service_bytes(server))).collect()
    }

    fn destinations_dump(server: &VirtualServer) -> Vec<u8> {
        let real = server.destinations.iter();
        real.flat_map(|real| {
            answer(NEW_DEST, DEST, &destination_bytes(real.address, real.weight, real.masquerade))
        })
        .collect()
    }

    /// The result for dumps that contain these servers.
    fn read(servers: &[VirtualServer]) -> Vec<VirtualServer> {
        let dump = services_dump(servers);
        let ended = [dump.clone(), netlink::message(NLMSG_DONE, 2, &[0; 4])].concat();
        assert!(!read_services(&dump, FAMILY, &mut Vec::new()).unwrap());
        assert!(read_services(&ended, FAMILY, &mut Vec::new()).unwrap());
        let one = |server: &VirtualServer| {
            let dump = services_dump(std::slice::from_ref(server));
            to_text(FAMILY, &dump, &destinations_dump(server))
        };
        rules::ipvs::parse(&servers.iter().map(one).collect::<String>())
    }

    #[test]
    fn no_module_is_loaded() {
        let root = tempfile::tempdir().unwrap();
        let limits = Limits { time: std::time::Duration::from_secs(1), bytes: 1024 };
        let error = saved(root.path(), limits).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
    }

    #[test]
    fn a_server_without_a_scheduler_is_still_one() {
        let server = VirtualServer {
            protocol: Protocol::TCP,
            address: "10.96.0.1:443".parse().unwrap(),
            scheduler: "".into(),
            persistent: Some(10_800),
            destinations: Vec::new(),
        };
        let text = to_text(FAMILY, &services_dump(&[server]), &[]);
        assert_eq!(text, "-A -t 10.96.0.1:443 -s none -p 10800\n");
    }

    #[test]
    fn real_captures_are_told_alike() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../tests/fixtures/kube-proxy/worker-1/ipvs/ipvsadm-save.txt");
        let servers = rules::ipvs::parse(&std::fs::read_to_string(path).unwrap());
        assert!(servers.len() > 5);
        assert_eq!(read(&servers), servers);
    }

    fn servers() -> impl Strategy<Value = Vec<VirtualServer>> {
        let address =
            || any::<SocketAddr>().prop_map(|address| SocketAddr::new(address.ip(), address.port()));
        let protocol = prop_oneof![Just(Protocol::TCP), Just(Protocol::UDP), Just(Protocol::SCTP)];
        let destination = (address(), 0..65536_u32, any::<bool>())
            .prop_map(|(address, weight, masquerade)| (address, weight, masquerade));
        let server = (
            protocol,
            address(),
            "[a-z]{2,8}",
            proptest::option::of(1..100_000_u32),
            proptest::collection::vec(destination, 0..4),
        );
        proptest::collection::vec(server, 0..5).prop_map(|servers| {
            let mut seen = std::collections::HashSet::new();
            servers
                .into_iter()
                .filter(|(protocol, address, ..)| seen.insert((*protocol, *address)))
                .map(|(protocol, address, scheduler, persistent, destinations)| VirtualServer {
                    protocol,
                    address,
                    scheduler: scheduler.into(),
                    persistent,
                    destinations: destinations
                        .into_iter()
                        .map(|(address, weight, masquerade)| rules::Destination {
                            address,
                            weight,
                            masquerade,
                        })
                        .collect(),
                })
                .collect()
        })
    }

    proptest! {
        #[test]
        fn what_the_kernel_tells_is_what_ipvsadm_prints(servers in servers()) {
            prop_assert_eq!(read(&servers), servers);
        }

        #[test]
        fn a_damaged_dump_is_read_to_an_end(servers in servers(), at in any::<prop::sample::Index>(), byte: u8) {
            let (mut dump, whole) = (services_dump(&servers), services_dump(&servers));
            if !dump.is_empty() {
                let at = at.index(dump.len());
                dump[at] = byte;
            }
            let real: Vec<u8> = servers.iter().flat_map(destinations_dump).collect();
            let (damaged, sound) = (to_text(FAMILY, &dump, &real), to_text(FAMILY, &whole, &real));
            prop_assert!(rules::ipvs::parse(&damaged).len() <= servers.len());
            prop_assert_eq!(rules::ipvs::parse(&sound).len(), servers.len());
        }
    }
}
