//! Packet captures with which fuzzing begins: a SYN before and after NAT, and its RST, in both containers.

/// `LINKTYPE_ETHERNET`, `LINKTYPE_RAW`, `LINKTYPE_LINUX_SLL`, `LINKTYPE_LINUX_SLL2`.
const LINKS: [u16; 4] = [1, 101, 113, 276];
const SYN: u8 = 2;
const RST: u8 = 4;

pub(super) fn seeds() -> Vec<Vec<u8>> {
    LINKS.iter().flat_map(|link| [pcap(*link), pcapng(*link)]).collect()
}

fn packets(link: u16) -> [Vec<u8>; 3] {
    [([10, 96, 0, 1], SYN), ([10, 1, 0, 2], SYN), ([10, 1, 0, 2], RST)].map(|(to, flags)| {
        let head: &[u8] = match link {
            1 => &[2, 2, 2, 2, 2, 2, 4, 4, 4, 4, 4, 4, 0x81, 0, 0, 7, 8, 0],
            113 => &[0, 0, 0, 1, 0, 6, 2, 2, 2, 2, 2, 2, 0, 0, 8, 0],
            276 => &[8, 0, 0, 0, 0, 0, 0, 5, 0, 1, 4, 6, 2, 2, 2, 2, 2, 2, 0, 0],
            _ => &[],
        };
        let ip = [0x45, 0, 0, 40, 0, 7, 0x40, 0, 64, 6, 0, 0, 10, 1, 0, 1];
        let tcp = [0x50, flags, 4, 0, 0, 0, 0, 0];
        [head, &ip, &to, &[0x9c, 0x40, 0, 80], &[0, 0, 0, 9, 0, 0, 0, 0], &tcp].concat()
    })
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn pcap(link: u16) -> Vec<u8> {
    let mut file = words(&[0xa1b2_3c4d, 0x0004_0002, 0, 0, 65_535, link.into()]);
    for packet in packets(link) {
        let length = packet.len() as u32;
        file.extend(words(&[1_795_000_000, 5, length, length]));
        file.extend(packet);
    }
    file
}

fn pcapng(link: u16) -> Vec<u8> {
    let mut file = block(0x0a0d_0d0a, &words(&[0x1a2b_3c4d, 1, u32::MAX, u32::MAX]));
    file.extend(block(1, &words(&[link.into(), 65_535])));
    for packet in packets(link) {
        let length = packet.len() as u32;
        let mut body = words(&[0, 0x0006_6000, 5, length, length]);
        body.extend(packet);
        body.resize(body.len().next_multiple_of(4), 0);
        file.extend(block(6, &body));
    }
    file
}

fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let length = body.len() as u32 + 12;
    [words(&[kind, length]), body.to_vec(), words(&[length])].concat()
}
