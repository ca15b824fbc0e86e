//! An agent's recorder in the kernel, seen from user space: its limits, the ends that belong to Services, its counts of
//! connections, and the failures that it suppressed.

use std::{
    collections::{BTreeSet, HashMap as StdMap},
    io,
    mem::offset_of,
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use aya::maps::{Array, HashMap, Map, MapData, PerCpuArray};
use tracer_ebpf::{
    Bucket, BucketKey, CountKey, DECISIONS_PER_SET, Decision, DecisionSet, End, SUPPRESSED_EVENTS, Tally,
    UNCOUNTED, map,
};

use super::{
    attach::AttachError,
    bpf,
    connections::{Counted, ServiceEnd},
    decode::{AF_INET, AF_INET6, bytes_at, ip_at, u16_at},
    encode::put,
    keys::{self, KeySet},
    object::Settings,
};
use crate::net::{Netns, Protocol};

/// An agent's requests to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecorderOptions {
    /// The only namespace whose connections are counted, and whose decisions come before those of others: that of kube-proxy's
    /// rules; `None` for all.
    pub netns: Option<Netns>,
    /// One of so many healthy connections is reported, chosen by the hash of the client's address and port; 0 for none.
    pub sample: u32,
    /// Failures of one client at one Service, with one hook and reason, that are reported at once.
    pub burst: u32,
    /// Failures that are reported each second afterwards.
    pub per_second: u32,
    /// Decisions kept, in sets of eight, whose number is rounded up to a power of two. The oldest of a set is given up for a
    /// new one. 201 bytes each.
    pub decisions: u32,
    /// Choices of IPVS kept, likewise. About 180 bytes each.
    pub choices: u32,
    /// Pairs of a Service port and an endpoint that are counted. About 100 bytes each; each of 4,096 takes 130 more, if it is
    /// counted without a search.
    pub counts: u32,
    /// Ends that may belong to Services. About 80 bytes for each that does.
    pub services: u32,
}

impl Default for RecorderOptions {
    fn default() -> Self {
        Self {
            netns: None,
            sample: 100,
            burst: 100,
            per_second: 20,
            decisions: 16_384,
            choices: 8_192,
            counts: 16_384,
            services: 32_768,
        }
    }
}

/// The most places in which pairs are counted without a search.
const TALLIES: u32 = 4_096;
/// Buckets kept. About 120 bytes each.
const BUCKETS: u32 = 4_096;
const SECOND_NS: u64 = 1_000_000_000;

impl RecorderOptions {
    /// The sets in which the decisions are kept: at most 2^20.
    fn decision_sets(self) -> u32 {
        self.decisions.div_ceil(DECISIONS_PER_SET as u32).clamp(1, 1 << 20).next_power_of_two()
    }

    /// The places in which pairs are counted without a search.
    fn tallies(self) -> u32 {
        self.counts.clamp(1, TALLIES).next_power_of_two()
    }

    /// These options as the kernel half's numbers.
    pub(super) fn numbers(self) -> Numbers {
        let event_ns = SECOND_NS / u64::from(self.per_second.max(1));
        Numbers {
            options: self,
            on: 1,
            netns: self.netns.unwrap_or_default().0,
            sample_below: u32::MAX.checked_div(self.sample).unwrap_or(0),
            event_ns,
            full_ns: event_ns * u64::from(self.burst.max(1)),
            decisions_mask: self.decision_sets() - 1,
            tallies_mask: self.tallies() - 1,
        }
    }
}

/// The globals of the kernel half's recorder, and the sizes of its maps.
#[derive(Debug)]
pub(super) struct Numbers {
    options: RecorderOptions,
    on: u32,
    netns: u32,
    sample_below: u32,
    event_ns: u64,
    full_ns: u64,
    decisions_mask: u32,
    tallies_mask: u32,
}

impl Numbers {
    /// Turns the recorder on. Otherwise it is off, and its maps have room for one entry.
    pub(super) fn set(&self, settings: &mut Settings) {
        settings.set("RECORDER", self.on);
        settings.set("RECORDED_NETNS", self.netns);
        settings.set("SAMPLE_BELOW", self.sample_below);
        settings.set("BUCKET_EVENT_NS", self.event_ns);
        settings.set("BUCKET_FULL_NS", self.full_ns);
        settings.set("DECISIONS_MASK", self.decisions_mask);
        settings.set("TALLIES_MASK", self.tallies_mask);
        settings.size(map::DECISIONS, self.options.decision_sets());
        settings.size(map::CHOICES, self.options.choices.max(1));
        settings.size(map::COUNTS, self.options.counts.max(1));
        settings.size(map::TALLIES, self.options.tallies());
        settings.size(map::TALLY_OWNERS, self.options.tallies());
        settings.size(map::SERVICES, self.options.services.max(1));
        settings.size(map::BUCKETS, BUCKETS);
    }
}

/// Failures that exceeded a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Suppressed {
    /// The client, or the packet's source where it is not known; `None` if all clients together exceeded it.
    pub(crate) client: Option<IpAddr>,
    /// The Service's address, the node's for a node port, or the endpoint's; `None` for events of a whole namespace.
    pub(crate) service: Option<IpAddr>,
    pub(crate) netns: Netns,
    /// Events since they were read last.
    pub(crate) count: u64,
}

const END: usize = size_of::<End>();
const COUNT: usize = size_of::<CountKey>();
const TALLY: usize = size_of::<Tally>();
const BUCKET_KEY: usize = size_of::<BucketKey>();
const BUCKET: usize = size_of::<Bucket>();
const SET: usize = size_of::<DecisionSet>();

/// The most sets of decisions whose age is read at once.
const SAMPLED_SETS: u32 = 64;

/// Pairs that were not counted for this long make room when three quarters of the counters are taken.
const UNUSED: Duration = Duration::from_hours(1);

/// The maps of the recorder.
pub(super) struct Recorder {
    decisions: Array<MapData, [u8; SET]>,
    services: HashMap<MapData, [u8; END], u8>,
    counts: Map,
    tallies: Map,
    tallies_now: bpf::MappedArray,
    tally_owners: HashMap<MapData, u32, u8>,
    buckets: Map,
    suppressed: PerCpuArray<MapData, u64>,
    present: KeySet<END>,
    refused: usize,
    /// The most pairs that are counted.
    room: usize,
    /// The total of each pair when it was read last, and since when it is the same.
    counted_before: StdMap<[u8; COUNT], (u64, Instant)>,
    uncounted_before: u64,
    seen: Seen,
}

impl Recorder {
    pub(super) fn take(
        maps: &mut StdMap<String, Map>,
        options: RecorderOptions,
    ) -> Result<Self, AttachError> {
        fn map(maps: &mut StdMap<String, Map>, name: &'static str) -> Result<Map, AttachError> {
            maps.remove(name).ok_or(AttachError::Map { name })
        }
        let tallies = map(maps, map::TALLIES)?;
        let tallies_now = match &tallies {
            Map::Array(data) => bpf::MappedArray::map(data).map_err(AttachError::Tallies)?,
            _ => return Err(AttachError::Map { name: map::TALLIES }),
        };
        Ok(Self {
            decisions: Array::try_from(map(maps, map::DECISIONS)?)
                .map_err(|_| AttachError::Map { name: map::DECISIONS })?,
            services: HashMap::try_from(map(maps, map::SERVICES)?)
                .map_err(|_| AttachError::Map { name: map::SERVICES })?,
            counts: map(maps, map::COUNTS)?,
            tallies,
            tallies_now,
            tally_owners: HashMap::try_from(map(maps, map::TALLY_OWNERS)?)
                .map_err(|_| AttachError::Map { name: map::TALLY_OWNERS })?,
            buckets: map(maps, map::BUCKETS)?,
            suppressed: PerCpuArray::try_from(map(maps, map::SUPPRESSED)?)
                .map_err(|_| AttachError::Map { name: map::SUPPRESSED })?,
            present: KeySet::default(),
            refused: 0,
            room: options.counts as usize,
            counted_before: StdMap::new(),
            uncounted_before: 0,
            seen: Seen::default(),
        })
    }

    /// Replaces the ends that belong to Services. Returns how many found no room, if that number is another than before.
    pub(super) fn set_services(&mut self, ends: &BTreeSet<ServiceEnd>) -> Option<usize> {
        let wanted = ends.iter().copied().filter_map(service_key).collect();
        let refused = self.present.replace(&mut self.services, &wanted);
        let before = std::mem::replace(&mut self.refused, refused);
        (refused != before).then_some(refused)
    }

    /// The connections started since the last call, and those that were not counted for lack of room.
    pub(super) fn counts(&mut self) -> io::Result<(Vec<(Counted, u64)>, u64)> {
        let now = Instant::now();
        let mut started = Vec::new();
        let tallies = self.tallies();
        for (key, total) in entries::<COUNT, 8>(&self.counts)? {
            let tally = tallies.get(&key).map_or(0, |tally| tally.count);
            let total = u64::from_ne_bytes(total) + tally;
            let (before, since) = self.counted_before.entry(key).or_insert((0, now));
            if total > *before {
                started.extend(counted(&key).map(|counted| (counted, total - *before)));
                (*before, *since) = (total, now);
            }
        }
        if self.counted_before.len() > self.room / 4 * 3 {
            self.forget_unused(now, &tallies);
        }
        let uncounted = self.sum(UNCOUNTED)?;
        let before = std::mem::replace(&mut self.uncounted_before, uncounted);
        Ok((started, uncounted.saturating_sub(before)))
    }

    /// The pairs that own a place in the array of tallies. Each has an entry among the counts too.
    fn tallies(&self) -> StdMap<[u8; COUNT], Owned> {
        const WORDS: usize = COUNT / 8;
        let owned = |place: u32| {
            let mut key = [0; COUNT];
            for (at, to) in key.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                *to = self.tallies_now.word(place, at).to_ne_bytes();
            }
            (key, Owned { place, count: self.tallies_now.word(place, WORDS) })
        };
        // The last word of a key has the family; most places are free.
        self.tallies_now.places(WORDS - 1).map(owned).collect()
    }

    /// A connection that is counted between the read and the removal is lost: that is why only idle pairs are removed.
    fn forget_unused(&mut self, now: Instant, tallies: &StdMap<[u8; COUNT], Owned>) {
        let Ok(mut counts) = HashMap::<&mut MapData, [u8; COUNT], u64>::try_from(&mut self.counts) else {
            return;
        };
        let Ok(mut places) = Array::<&mut MapData, [u8; TALLY]>::try_from(&mut self.tallies) else { return };
        let owners = &mut self.tally_owners;
        self.counted_before.retain(|key, (_, since)| {
            if now.duration_since(*since) < UNUSED {
                return true;
            }
            // The place has no owner before another pair can take it.
            if let Some(Owned { place, .. }) = tallies.get(key)
                && (places.set(*place, [0; TALLY], 0).is_err() || owners.remove(place).is_err())
            {
                return true;
            }
            counts.remove(key).is_err()
        });
    }

    /// The median age of the decisions that give way next, each the oldest of a full set: how long one is kept at the
    /// present rate of connections. `now_ns` is the monotonic clock's. `None` while most sets have room.
    pub(super) fn decision_retention(&self, now_ns: u64) -> Option<Duration> {
        let sets = self.decisions.len();
        let step = (sets / SAMPLED_SETS).max(1) as usize;
        let sampled = (0..sets).step_by(step).filter_map(|place| self.decisions.get(&place, 0).ok());
        median(sampled.map(|set| oldest_kept(&set).map(|time| now_ns.saturating_sub(time))))
            .map(Duration::from_nanos)
    }

    /// The sum of a slot over all CPUs.
    fn sum(&self, slot: u32) -> io::Result<u64> {
        Ok(self.suppressed.get(&slot, 0).map_err(io::Error::other)?.iter().sum())
    }

    /// Whether there are suppressed failures that were not returned. One system call.
    pub(super) fn has_suppressed(&self) -> io::Result<bool> {
        Ok(self.sum(SUPPRESSED_EVENTS)? > self.seen.returned)
    }

    /// The failures suppressed since the last call. Reads every bucket.
    pub(super) fn suppressed(&mut self) -> io::Result<Vec<Suppressed>> {
        let sum = self.sum(SUPPRESSED_EVENTS)?;
        let buckets = entries::<BUCKET_KEY, BUCKET>(&self.buckets)?;
        let total = |bucket: &[u8; BUCKET]| {
            bytes_at(bucket, offset_of!(Bucket, suppressed)).map_or(0, u64::from_ne_bytes)
        };
        Ok(self.seen.news(sum, buckets.iter().map(|(key, bucket)| (*key, total(bucket)))))
    }
}

/// A place in the array of tallies, and the connections counted there.
#[derive(Clone, Copy, Debug)]
struct Owned {
    place: u32,
    count: u64,
}

/// The suppressed failures that were returned.
#[derive(Debug, Default)]
struct Seen {
    buckets: StdMap<[u8; BUCKET_KEY], u64>,
    returned: u64,
}

impl Seen {
    /// The new ones, by the sum of all and the buckets' totals, which were read after it and may be ahead of it.
    fn news(&mut self, sum: u64, buckets: impl Iterator<Item = ([u8; BUCKET_KEY], u64)>) -> Vec<Suppressed> {
        let (mut found, mut kept) = (Vec::new(), StdMap::new());
        for (key, total) in buckets.filter(|(_, total)| *total > 0) {
            // A bucket that was given up and made again starts at 0.
            let before = self.buckets.get(&key).copied().filter(|before| *before <= total);
            let new = total - before.unwrap_or_default();
            if new > 0 {
                found.push(suppressed(&key, new));
                self.returned += new;
            }
            kept.insert(key, total);
        }
        self.buckets = kept;
        // The buckets of the rest were given up for others before they were read.
        let rest = sum.saturating_sub(self.returned);
        if rest > 0 {
            found.push(Suppressed { client: None, service: None, netns: Netns::default(), count: rest });
            self.returned = sum;
        }
        found
    }
}

/// When the oldest decision of a full set was taken, nanoseconds of the monotonic clock; `None` while it has room.
fn oldest_kept(set: &[u8; SET]) -> Option<u64> {
    let kept = u64::from_ne_bytes(bytes_at(set, offset_of!(DecisionSet, kept))?);
    let place = usize::try_from(kept % DECISIONS_PER_SET as u64).ok()?;
    let at = offset_of!(DecisionSet, decisions) + place * size_of::<Decision>();
    let time = u64::from_ne_bytes(bytes_at(set, at + offset_of!(Decision, time_ns))?);
    (kept >= DECISIONS_PER_SET as u64).then_some(time)
}

/// The median, where a missing number is larger than all others.
fn median(numbers: impl Iterator<Item = Option<u64>>) -> Option<u64> {
    let mut numbers: Vec<u64> = numbers.map(|number| number.unwrap_or(u64::MAX)).collect();
    numbers.sort_unstable();
    numbers.get(numbers.len() / 2).copied().filter(|number| *number != u64::MAX)
}

/// All entries of a hash map.
fn entries<const KEY: usize, const VALUE: usize>(map: &Map) -> io::Result<Vec<([u8; KEY], [u8; VALUE])>> {
    match map {
        Map::HashMap(data) | Map::LruHashMap(data) => bpf::entries(data),
        _ => Ok(Vec::new()),
    }
}

fn service_key(end: ServiceEnd) -> Option<[u8; END]> {
    let (address, port, protocol) = match end {
        ServiceEnd::Address(ip) => (keys::address(ip), 0, 0),
        ServiceEnd::Port(addr, protocol) => (keys::address(addr.ip()), addr.port(), protocol.0),
        ServiceEnd::NodePort(port, protocol) => ([0; 16], port, protocol.0),
    };
    let mut key = [0; END];
    put(&mut key, offset_of!(End, address), &address)?;
    put(&mut key, offset_of!(End, port), &port.to_be_bytes())?;
    put(&mut key, offset_of!(End, protocol), &u16::from(protocol).to_ne_bytes())?;
    Some(key)
}

fn counted(key: &[u8; COUNT]) -> Option<Counted> {
    let family = u16_at(key, offset_of!(CountKey, family))?;
    let end = |address: usize, port: usize| {
        let port = u16::from_be_bytes(bytes_at(key, port)?);
        Some(SocketAddr::new(ip_at(key, address, family)?, port))
    };
    let service = offset_of!(CountKey, service);
    Some(Counted {
        service: end(service + offset_of!(End, address), service + offset_of!(End, port))?,
        endpoint: end(offset_of!(CountKey, endpoint), offset_of!(CountKey, endpoint_port))?,
        protocol: Protocol(u16_at(key, service + offset_of!(End, protocol))?.try_into().ok()?),
    })
}

fn suppressed(key: &[u8; BUCKET_KEY], count: u64) -> Suppressed {
    // A bucket has no family: an IPv4 address is followed by zeros, which an IPv6 host's is not.
    let address = |at: usize| {
        let is_v4 = bytes_at::<12>(key, at + 4) == Some([0; 12]);
        let ip = ip_at(key, at, if is_v4 { AF_INET } else { AF_INET6 });
        ip.filter(|ip| !ip.is_unspecified())
    };
    Suppressed {
        client: address(offset_of!(BucketKey, client)),
        service: address(offset_of!(BucketKey, service)),
        netns: Netns(bytes_at(key, offset_of!(BucketKey, netns)).map_or(0, u32::from_ne_bytes)),
        count,
    }
}

#[cfg(test)]
mod tests {
    use tracer_ebpf::{Choice, DecisionSet};

    use super::*;

    /// The bytes of a full hash map: of each entry `struct htab_elem` (48), key and value, rounded up to 8, and of each
    /// bucket 16; there are as many buckets as entries, rounded up to a power of two (kernel/bpf/hashtab.c, 6.12).
    fn full(entries: u32, key: usize, value: usize) -> usize {
        let entry = 48 + key.next_multiple_of(8) + value.next_multiple_of(8);
        entries as usize * entry + entries.next_power_of_two() as usize * 16
    }

    #[test]
    fn an_agents_maps_fit_into_16_mib_on_256_cpus() {
        const RECORDS: usize = 4 << 20;
        // LOST, SUPPRESSED, MET, CALL and the open calls of two functions.
        const PER_CPU: usize = 2 << 10;
        let options = RecorderOptions::default();
        let bytes = options.decision_sets() as usize * size_of::<DecisionSet>()
            + full(options.choices, END, size_of::<Choice>())
            + full(options.counts, COUNT, size_of::<u64>())
            // Allocated one by one, from the kernel's caches of 96 bytes.
            + full(options.services, END, 24)
            + options.tallies() as usize * size_of::<Tally>()
            + full(options.tallies(), size_of::<u32>(), size_of::<u64>())
            + full(BUCKETS, BUCKET_KEY, BUCKET)
            + RECORDS
            + 256 * PER_CPU;
        assert!((13 << 20..16 << 20).contains(&bytes), "{bytes}");
    }

    #[test]
    fn the_sets_have_room_for_all_decisions() {
        let sets = |decisions| RecorderOptions { decisions, ..RecorderOptions::default() }.decision_sets();
        assert_eq!([0, 1, 8, 9, 16, 4_103, 16_384].map(sets), [1, 1, 1, 2, 2, 1_024, 2_048]);
        assert_eq!(sets(u32::MAX), 1 << 20);
    }

    #[test]
    fn the_oldest_decision_of_a_full_set_shows_how_long_decisions_are_kept() {
        let set = |kept: u64, times: [u64; DECISIONS_PER_SET]| {
            let mut set = [0; SET];
            put(&mut set, offset_of!(DecisionSet, kept), &kept.to_ne_bytes()).unwrap();
            for (place, time) in times.into_iter().enumerate() {
                let at = offset_of!(DecisionSet, decisions) + place * size_of::<Decision>();
                put(&mut set, at + offset_of!(Decision, time_ns), &time.to_ne_bytes()).unwrap();
            }
            set
        };
        assert_eq!(oldest_kept(&set(7, [1, 2, 3, 4, 5, 6, 7, 0])), None);
        assert_eq!(oldest_kept(&set(8, [1, 2, 3, 4, 5, 6, 7, 8])), Some(1));
        assert_eq!(oldest_kept(&set(11, [9, 10, 11, 4, 5, 6, 7, 8])), Some(4));
        assert_eq!(median([Some(3), None, Some(1), Some(2)].into_iter()), Some(3));
        assert_eq!(median([Some(3), None, None, Some(2)].into_iter()), None, "half of the sets have room");
        assert_eq!(median(std::iter::empty()), None);
    }

    #[test]
    fn suppressed_failures_are_returned_once_and_by_their_bucket() {
        let bucket = |client: u8| {
            let mut key = [0; BUCKET_KEY];
            put(&mut key, offset_of!(BucketKey, client), &[10, 244, 1, client]).unwrap();
            key
        };
        let mut seen = Seen::default();
        let mut news = |sum: u64, buckets: &[(u8, u64)]| -> Vec<(Option<IpAddr>, u64)> {
            let buckets = buckets.iter().map(|(client, total)| (bucket(*client), *total));
            seen.news(sum, buckets).iter().map(|of| (of.client, of.count)).collect()
        };
        let client = |last: u8| Some(IpAddr::from([10, 244, 1, last]));
        // Two more came between the sum and the bucket.
        assert_eq!(news(5, &[(1, 7)]), [(client(1), 7)]);
        assert_eq!(news(9, &[(1, 9)]), [(client(1), 2)]);
        assert_eq!(news(12, &[(1, 9), (2, 3)]), [(client(2), 3)]);
        // The first bucket was given up with six more, and made again.
        assert_eq!(news(20, &[(1, 2), (2, 3)]), [(client(1), 2), (None, 6)]);
        assert_eq!(news(20, &[(1, 2), (2, 3)]), []);
    }

    #[test]
    fn keys_are_those_of_the_kernel_half() {
        let addr: SocketAddr = "10.96.0.10:8080".parse().unwrap();
        let key = service_key(ServiceEnd::Port(addr, Protocol::TCP)).unwrap();
        assert_eq!(key[..4], [10, 96, 0, 10]);
        assert_eq!((&key[4..16], &key[16..20]), (&[0; 12][..], &[0x1f, 0x90, 6, 0][..]));
        assert_eq!(service_key(ServiceEnd::Address(addr.ip())).unwrap()[16..], [0; 4]);
        assert_eq!(service_key(ServiceEnd::NodePort(8080, Protocol::UDP)).unwrap()[..16], [0; 16]);

        let mut count = [0; COUNT];
        put(&mut count, offset_of!(CountKey, service), &key).unwrap();
        put(&mut count, offset_of!(CountKey, endpoint), &[10, 244, 1, 7]).unwrap();
        put(&mut count, offset_of!(CountKey, endpoint_port), &9090_u16.to_be_bytes()).unwrap();
        put(&mut count, offset_of!(CountKey, family), &2_u16.to_ne_bytes()).unwrap();
        let counted = counted(&count).unwrap();
        assert_eq!((counted.service, counted.protocol), (addr, Protocol::TCP));
        assert_eq!(counted.endpoint, "10.244.1.7:9090".parse().unwrap());

        let mut bucket = [0; BUCKET_KEY];
        put(
            &mut bucket,
            offset_of!(BucketKey, service),
            &"2001:db8::7".parse::<std::net::Ipv6Addr>().unwrap().octets(),
        )
        .unwrap();
        put(&mut bucket, offset_of!(BucketKey, netns), &7_u32.to_ne_bytes()).unwrap();
        let of_all = suppressed(&bucket, 3);
        let expected = Suppressed {
            client: None,
            service: Some("2001:db8::7".parse().unwrap()),
            netns: Netns(7),
            count: 3,
        };
        assert_eq!(of_all, expected);
    }
}
