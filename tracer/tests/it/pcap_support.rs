//! Captures made by a test, in each container and link type.

use etherparse::PacketBuilder;

/// A container and link type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// pcap: byte order, nanoseconds, link type.
    Pcap { big: bool, nano: bool, link: u32 },
    /// pcapng: byte order, link type; interfaces have names.
    Pcapng { big: bool, link: u16 },
}

/// A capture that is being written.
#[derive(Debug)]
pub(crate) struct Writer {
    form: Form,
    pub(crate) bytes: Vec<u8>,
}

/// Ethernet, one VLAN tag, Linux cooked in two versions, raw.
pub(crate) const ETHERNET: u16 = 1;
pub(crate) const VLAN: u16 = u16::MAX;
pub(crate) const RAW: u16 = 101;
pub(crate) const SLL: u16 = 113;
pub(crate) const SLL2: u16 = 276;

impl Writer {
    pub(crate) fn new(form: Form) -> Self {
        let mut writer = Self { form, bytes: Vec::new() };
        match form {
            Form::Pcap { big, nano, link } => {
                let magic = if nano { 0xa1b2_3c4d } else { 0xa1b2_c3d4 };
                writer.u32(big, magic);
                writer.u16(big, 2);
                writer.u16(big, 4);
                for word in [0, 0, 65_535, if link == u32::from(VLAN) { 1 } else { link }] {
                    writer.u32(big, word);
                }
            }
            Form::Pcapng { big, link } => {
                let mut body = Writer { form, bytes: Vec::new() };
                body.u32(big, 0x1a2b_3c4d);
                body.u16(big, 1);
                body.u16(big, 0);
                body.bytes.extend([0xff; 8]);
                writer.block(big, 0x0a0d_0d0a, &body.bytes);
                for name in ["veth1", "eth0"] {
                    let mut body = Writer { form, bytes: Vec::new() };
                    body.u16(big, if link == VLAN { 1 } else { link });
                    body.u16(big, 0);
                    body.u32(big, 65_535);
                    body.option(big, 2, name.as_bytes());
                    body.option(big, 9, &[9]);
                    body.u32(big, 0);
                    writer.block(big, 1, &body.bytes);
                }
            }
        }
        writer
    }

    fn u16(&mut self, big: bool, word: u16) {
        self.bytes.extend(if big { word.to_be_bytes() } else { word.to_le_bytes() });
    }

    fn u32(&mut self, big: bool, word: u32) {
        self.bytes.extend(if big { word.to_be_bytes() } else { word.to_le_bytes() });
    }

    fn option(&mut self, big: bool, code: u16, value: &[u8]) {
        self.u16(big, code);
        self.u16(big, value.len() as u16);
        self.padded(value);
    }

    fn padded(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn block(&mut self, big: bool, kind: u32, body: &[u8]) {
        let length = (body.len() + 12) as u32;
        self.u32(big, kind);
        self.u32(big, length);
        self.bytes.extend(body);
        self.u32(big, length);
    }

    /// Adds an IP packet, captured at an interface on its way in or out.
    pub(crate) fn packet(&mut self, ns: u64, interface: u32, sent: bool, ip: &[u8]) {
        let link = match self.form {
            Form::Pcap { link, .. } => link as u16,
            Form::Pcapng { link, .. } => link,
        };
        let ether_type: u16 = if ip[0] >> 4 == 4 { 0x0800 } else { 0x86dd };
        let kind: u8 = if sent { 4 } else { 0 };
        let mut data = Vec::new();
        match link {
            ETHERNET => {
                data.extend([2; 12]);
                data.extend(ether_type.to_be_bytes());
            }
            VLAN => {
                data.extend([2; 12]);
                data.extend([0x81, 0, 0, 7]);
                data.extend(ether_type.to_be_bytes());
            }
            SLL => {
                data.extend([0, kind, 0, 1, 0, 6]);
                data.extend([0; 8]);
                data.extend(ether_type.to_be_bytes());
            }
            SLL2 => {
                data.extend(ether_type.to_be_bytes());
                data.extend([0, 0]);
                data.extend((interface + 5).to_be_bytes());
                data.extend([0, 1, kind, 6]);
                data.extend([0; 8]);
            }
            _ => {}
        }
        data.extend(ip);
        let length = data.len() as u32;
        match self.form {
            Form::Pcap { big, nano, .. } => {
                let fraction = if nano { ns % 1_000_000_000 } else { ns % 1_000_000_000 / 1000 };
                for word in [(ns / 1_000_000_000) as u32, fraction as u32, length, length] {
                    self.u32(big, word);
                }
                self.bytes.extend(&data);
            }
            Form::Pcapng { big, .. } => {
                let mut body = Writer { form: self.form, bytes: Vec::new() };
                for word in [interface, (ns >> 32) as u32, ns as u32, length, length] {
                    body.u32(big, word);
                }
                body.padded(&data);
                self.block(big, 6, &body.bytes);
            }
        }
    }
}

/// A TCP segment from one `ip:port` to another. The flags are letters: `S`, `A`, `R`, `F`, `P`.
pub(crate) fn tcp(from: &str, to: &str, flags: &str, id: u16, seq: u32, ack: u32, data: &[u8]) -> Vec<u8> {
    let (from, to): (std::net::SocketAddr, std::net::SocketAddr) =
        (from.parse().unwrap(), to.parse().unwrap());
    let mut out = Vec::new();
    let builder = match (from.ip(), to.ip()) {
        (std::net::IpAddr::V4(from), std::net::IpAddr::V4(to)) => {
            PacketBuilder::ip(etherparse::IpHeaders::Ipv4(
                etherparse::Ipv4Header {
                    identification: id,
                    ..etherparse::Ipv4Header::new(
                        0,
                        64,
                        etherparse::IpNumber::TCP,
                        from.octets(),
                        to.octets(),
                    )
                    .unwrap()
                },
                etherparse::Ipv4Extensions::default(),
            ))
        }
        (std::net::IpAddr::V6(from), std::net::IpAddr::V6(to)) => {
            PacketBuilder::ipv6(from.octets(), to.octets(), 64)
        }
        _ => panic!("two families"),
    };
    let mut builder = builder.tcp(from.port(), to.port(), seq, 1000);
    for flag in flags.chars() {
        builder = match flag {
            'S' => builder.syn(),
            'A' => builder.ack(ack),
            'R' => builder.rst(),
            'F' => builder.fin(),
            'P' => builder.psh(),
            _ => panic!("{flag}"),
        };
    }
    builder.write(&mut out, data).unwrap();
    out
}
