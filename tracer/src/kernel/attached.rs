//! The live kernel: loads the object, attaches the plan's hooks, reads records and counts the lost ones.

use std::{
    fmt, io,
    net::IpAddr,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
    slice,
    sync::Arc,
    time::Duration,
};

use aya::{
    Ebpf, EbpfError, EbpfLoader,
    maps::{HashMap, MapData, MapError, PerCpuArray, RingBuf},
    programs::{KProbe, Program, ProgramError, RawTracePoint, RawTracePointRunOptions, TestRun as _},
};
use tokio::io::unix::AsyncFd;
use tracer_ebpf::{HOOK_SLOTS, Hook, LOST_ANY, MISSING, map};
use tracing::{debug, warn};

use super::{
    clock,
    decode::Decoder,
    fentry::{self, Link, Loader, Place},
    hooks::{Attach, HookSpec, Twin, split_part, twin},
    layout::{FIELDS, Layout},
    plan::{FentryTarget, HookPlan, Tier},
};
use crate::{
    error::{Hint, sentence},
    net::Netns,
    sighting::{ListedEntry, Sighting},
    time::Timestamp,
};

#[cfg(not(viptrace_without_bpf))]
static OBJECT: &[u8] = aya::include_bytes_aligned!(env!("VIPTRACE_BPF_OBJECT"));
#[cfg(viptrace_without_bpf)]
static OBJECT: &[u8] = &[];

/// How long the reader lets records gather after the first one. The kernel wakes it once a batch, not once a record.
const BATCH: Duration = Duration::from_millis(50);

/// What a trace wants of the kernel.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of the ring buffer; rounded up to a power of two of at least a page.
    pub buffer_bytes: u32,
    /// Addresses that narrow the trace; `None` lets everything through.
    pub targets: Option<Vec<IpAddr>>,
    /// Report one healthy flow in 2^n and count all of them in the kernel.
    pub sample_shift: u32,
}

/// Why tracing could not begin.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    #[error("this viptrace was built without its eBPF object")]
    NoObject,
    #[error("the kernel refused the eBPF object: {}", sentence(.0))]
    Load(Box<EbpfError>),
    #[error("the kernel refused the program `{program}` for {symbol}: {error}")]
    Program { program: &'static str, symbol: &'static str, error: String },
    #[error("the eBPF object lacks the map {name}; it was built from other sources")]
    Map { name: &'static str },
    #[error("cannot watch the ring buffer: {0}")]
    Ring(io::Error),
}

impl Hint for AttachError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::NoObject => Some("run `cargo xtask setup`, then build again".to_owned()),
            Self::Map { .. } => Some("build viptrace again".to_owned()),
            Self::Load(_) | Self::Program { .. } | Self::Ring(_) => None,
        }
    }
}

/// A hook that was planned and then could not be attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachGap {
    pub spec_index: usize,
    pub reason: String,
}

/// An attached tracer. Dropping it detaches every hook.
pub struct Probe {
    // Owns the programs and their links, but for those of fentry.
    ebpf: Ebpf,
    _fentry: Vec<Link>,
    programs: Vec<(Hook, OwnedFd)>,
    ring: AsyncFd<RingBuf<MapData>>,
    lost: PerCpuArray<MapData, u64>,
    lost_before: [u64; HOOK_SLOTS],
    attached: Vec<Hook>,
    gaps: Vec<AttachGap>,
    fallbacks: Vec<AttachGap>,
    decoder: Decoder,
    clock_offset_ns: u64,
    armed_at: Timestamp,
    counters: Counters,
}

/// What the reader did, since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub records: u64,
    /// Records from before the last hook was attached: half a picture, so left out.
    pub before_armed: u64,
    /// Records that could not be decoded; counted as lost.
    pub undecodable: u64,
}

impl Probe {
    /// Loads the object with this kernel's layout and attaches every hook of the plan.
    ///
    /// A hook that the kernel refuses becomes a gap ([`Self::gaps`]), unless it is essential.
    pub fn attach(plan: &HookPlan, layout: Arc<Layout>, options: &Options) -> Result<Self, AttachError> {
        if OBJECT.is_empty() {
            return Err(AttachError::NoObject);
        }
        let partners = Partners::on(plan.preempts_programs());
        let mut ebpf =
            load(plan, &layout, options, partners).map_err(|error| AttachError::Load(Box::new(error)))?;
        if let Some(targets) = &options.targets {
            set_targets(&mut ebpf, targets)?;
        }
        let mut attached = Vec::new();
        let (mut gaps, mut fallbacks) = (Vec::new(), Vec::new());
        let (mut fentry, mut programs) = (Fentry::default(), Vec::new());
        for (spec_index, spec) in plan.planned() {
            let mut note = |fds: Vec<OwnedFd>| {
                programs.extend(fds.into_iter().map(|fd| (spec.hook, fd)));
                attached.push(spec.hook);
            };
            // Where there is such a part, the function itself leads to it.
            if let Some(part) = split_part(spec.hook)
                && plan.may_use_kprobes()
                && let Ok(fds) = attach_hook(&mut ebpf, spec, spec.programs, part)
            {
                note(fds);
                continue;
            }
            if let Some(Tier::Fentry(target)) = plan.tier(spec_index) {
                match fentry.attach(&ebpf, spec, target, partners) {
                    Ok(fds) => {
                        note(fds);
                        continue;
                    }
                    Err(reason) => fallbacks.push(AttachGap { spec_index, reason }),
                }
            }
            let names = match spec.hook {
                Hook::SockState => &SOCK_STATE[..partners.sock_state],
                _ => spec.programs,
            };
            match attach_hook(&mut ebpf, spec, names, spec.hook.symbol()) {
                Ok(fds) => note(fds),
                Err(error) if plan.is_essential(spec) => return Err(error),
                Err(error) => gaps.push(AttachGap { spec_index, reason: error.to_string() }),
            }
        }
        let map = |ebpf: &mut Ebpf, name| ebpf.take_map(name).ok_or(AttachError::Map { name });
        let ring = RingBuf::try_from(map(&mut ebpf, map::EVENTS)?)
            .map_err(|_| AttachError::Map { name: map::EVENTS })?;
        let lost = PerCpuArray::try_from(map(&mut ebpf, map::LOST)?)
            .map_err(|_| AttachError::Map { name: map::LOST })?;
        #[expect(unsafe_code, reason = "tokio asks for a promise about the file descriptor")]
        // SAFETY: the ring buffer owns its descriptor, returns the same one as long as it lives, and the AsyncFd
        // owns the ring buffer.
        let ring = unsafe { AsyncFd::register_with_interest(ring, tokio::io::Interest::READABLE) }
            .map_err(|error| AttachError::Ring(error.into()))?;
        // Hooks attach one after the other; what was seen before the last of them is half a picture.
        let armed_at = Timestamp::from_unix_ns(clock::unix_ns());
        let clock_offset_ns = clock::monotonic_to_unix_ns();
        Ok(Self {
            ebpf,
            ring,
            lost,
            lost_before: [0; HOOK_SLOTS],
            attached,
            gaps,
            fallbacks,
            _fentry: fentry.links,
            programs,
            decoder: Decoder::new(layout, clock_offset_ns),
            clock_offset_ns,
            armed_at,
            counters: Counters::default(),
        })
    }

    /// Hooks that were planned and that the kernel then refused.
    pub fn gaps(&self) -> &[AttachGap] {
        &self.gaps
    }

    /// Functions that fentry was planned for and that the kernel let only kprobes reach, with its reason.
    pub fn fallbacks(&self) -> &[AttachGap] {
        &self.fallbacks
    }

    pub fn attached(&self) -> &[Hook] {
        &self.attached
    }

    /// When the last hook was attached.
    pub fn armed_at(&self) -> Timestamp {
        self.armed_at
    }

    /// Nanoseconds added to the kernel's monotonic times to get Unix time.
    pub fn clock_offset_ns(&self) -> u64 {
        self.clock_offset_ns
    }

    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Waits until there is something to read, and a little longer, so that a busy node is read in batches and an
    /// idle one not at all.
    pub async fn readable(&mut self) -> io::Result<()> {
        self.ring.readable_mut().await?.retain_ready();
        tokio::time::sleep(BATCH).await;
        Ok(())
    }

    /// Reads what is there, at most `limit` records. The order is that of the ring buffer: CPUs may differ by the
    /// time between taking the time and reserving the room. `keep` is shown each record that becomes a sighting.
    pub fn drain(&mut self, limit: usize, into: &mut Vec<Sighting>, mut keep: impl FnMut(&[u8])) -> usize {
        let mut read = 0;
        let ring = self.ring.get_mut();
        while read < limit {
            let Some(record) = ring.next() else { break };
            read += 1;
            self.counters.records += 1;
            match self.decoder.decode(&record) {
                Ok(sighting) if sighting.time >= self.armed_at => {
                    keep(&record);
                    into.push(sighting);
                }
                Ok(_) => self.counters.before_armed += 1,
                Err(error) => {
                    self.counters.undecodable += 1;
                    // Once is enough to know; the count goes on.
                    if self.counters.undecodable == 1 {
                        warn!("a record from the kernel could not be read, and is counted as lost: {error}");
                    }
                }
            }
        }
        read
    }

    /// Whether the buffer holds records that [`Self::drain`] did not give: newer ones, or one that is still being
    /// written and holds up those behind it (`ringbuf_map_poll`, kernel/bpf/ringbuf.c, counts both).
    pub fn has_more(&self) -> bool {
        let mut asked = libc::pollfd { fd: self.ring.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        #[expect(unsafe_code, reason = "poll(2) has no safe wrapper in std")]
        // SAFETY: one entry, which outlives the call; the descriptor is open as long as the ring buffer.
        let ready = unsafe { libc::poll(&raw mut asked, 1, 0) };
        ready > 0
    }

    /// Old entries as if the kernel had told of them: sightings, and the records to keep.
    pub fn listed(
        &mut self,
        entries: &[ListedEntry],
        netns: Netns,
        into: &mut Vec<Sighting>,
        mut keep: impl FnMut(&[u8]),
    ) {
        for entry in entries {
            if let Some((sighting, record)) = self.decoder.listed(entry, netns) {
                keep(record.as_ref());
                into.push(sighting);
            }
        }
    }

    /// To be called once [`Self::drain`] returned less than its limit: the next [`Self::readable`] then waits for
    /// new records.
    pub fn caught_up(&mut self) {
        // The kernel notifies again for the next record, because the reader has reached the producer.
        if let Some(Ok(mut guard)) = futures::FutureExt::now_or_never(self.ring.readable_mut()) {
            guard.clear_ready();
        }
    }

    /// Records lost in the kernel since the last call, by hook.
    pub fn losses(&mut self) -> Result<Vec<(Hook, u64)>, MapError> {
        let mut losses = Vec::new();
        // Asked after every batch, and hardly ever another number than before.
        let any: u64 = self.lost.get(&(LOST_ANY as u32), 0)?.iter().sum();
        if any == self.lost_before[LOST_ANY] {
            return Ok(losses);
        }
        self.lost_before[LOST_ANY] = any;
        for hook in &self.attached {
            let slot = *hook as usize;
            let total: u64 = self.lost.get(&(slot as u32), 0)?.iter().sum();
            let before = &mut self.lost_before[slot];
            if total > *before {
                losses.push((*hook, total - *before));
                *before = total;
            }
        }
        Ok(losses)
    }

    /// Has these conntrack entries read again, by their kernel addresses: what they are by now comes as sightings of
    /// [`Hook::Look`]. An address where another entry lies by now tells of that one. Returns how many were asked for
    /// in vain.
    pub fn look(&mut self, entries: &[u64]) -> usize {
        if entries.is_empty() || !self.attached.contains(&Hook::Look) {
            return entries.len();
        }
        let Some(Program::RawTracePoint(program)) = self.ebpf.program_mut("look") else {
            return entries.len();
        };
        let mut failed = 0;
        for entry in entries {
            let mut options = RawTracePointRunOptions::new();
            options.args[0] = *entry;
            if let Err(error) = program.test_run(options) {
                failed += 1;
                debug!(entry, "an entry could not be looked at: {}", sentence(&error));
            }
        }
        failed
    }

    /// How often at most the kernel left all of a hook's programs out for one event, because they ran on that CPU
    /// already. Counted since 5.12 for fentry and later for the others.
    pub fn missed_runs(&self, hook: Hook) -> u64 {
        let missed = |program: &OwnedFd| fentry::missed_runs(program.as_fd()).unwrap_or_default();
        let programs = self.programs.iter().filter(|(of, _)| *of == hook);
        programs.map(|(_, program)| missed(program)).min().unwrap_or_default()
    }

    /// Replaces the addresses of a targeted trace.
    pub fn retarget(&mut self, targets: &[IpAddr]) -> Result<(), AttachError> {
        set_targets(&mut self.ebpf, targets)
    }
}

impl fmt::Debug for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Probe")
            .field("attached", &self.attached)
            .field("gaps", &self.gaps)
            .finish_non_exhaustive()
    }
}

/// `sock_state` and its partners, each of which costs a full trace another hundredth of a connection.
const SOCK_STATE: &[&str] = &["sock_state", "sock_state_again", "sock_state_thrice"];

/// How many programs each of the two hooks has that a busy connection meets: one may run while others are busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Partners {
    /// Of its fentry programs.
    confirm: usize,
    sock_state: usize,
}

impl Partners {
    /// What this kernel needs. Where programs are preempted, of 5,000 connections in an emulated guest of 7.2 a single
    /// program was left out for 28, two at once for one in some runs. A partner too many does no harm.
    fn on(preempts_programs: bool) -> Self {
        if preempts_programs {
            Self { confirm: 3, sock_state: 3 }
        } else {
            Self { confirm: 2, sock_state: 1 }
        }
    }
}

fn load(plan: &HookPlan, layout: &Layout, options: &Options, partners: Partners) -> Result<Ebpf, EbpfError> {
    let offsets: Vec<(&str, u32)> = FIELDS
        .iter()
        .filter(|field| field.global)
        .map(|field| (field.name, layout.offset(field.name).unwrap_or(MISSING)))
        .chain(plan.arguments())
        .chain([
            ("REASON_NETFILTER_DROP", layout.drop_reason_number("NETFILTER_DROP").unwrap_or(MISSING)),
            ("TARGETED", u32::from(options.targets.is_some())),
            ("SAMPLE_SHIFT", options.sample_shift),
            ("CONFIRM_PROGRAMS", partners.confirm as u32),
            ("SOCK_STATE_PROGRAMS", partners.sock_state as u32),
        ])
        .collect();
    let wanted = layout.wanted_reasons();
    let log_level = 0_u8;
    let mut loader = EbpfLoader::new();
    // No CO-RE relocations to apply: spare the seconds that parsing all of vmlinux BTF takes on a slow machine.
    loader.btf(None);
    for (name, value) in &offsets {
        loader.override_global(name, value, true);
    }
    loader.override_global("WANTED_REASONS", &wanted, true);
    loader.override_global(aya_log::LEVEL, &log_level, false);
    loader.map_max_entries(map::EVENTS, options.buffer_bytes.max(4096).next_power_of_two());
    loader.load(OBJECT)
}

/// The programs attached by fentry and fexit.
#[derive(Default)]
struct Fentry {
    /// Made for the first of them; the text is why it could not be.
    loader: Option<Result<Loader, String>>,
    links: Vec<Link>,
}

impl Fentry {
    fn attach(
        &mut self,
        ebpf: &Ebpf,
        spec: &HookSpec,
        target: &FentryTarget,
        partners: Partners,
    ) -> Result<Vec<OwnedFd>, String> {
        let twin = twin(spec.hook);
        let (names, place) = match &twin {
            Some(Twin::Entry(name)) => (slice::from_ref(name), Place::Entry),
            Some(Twin::Partners(names)) => (&names[..partners.confirm], Place::Entry),
            Some(Twin::Exit(name)) => (slice::from_ref(name), Place::Exit),
            None => return Err(format!("{} has no fentry program", spec.hook.symbol())),
        };
        let loader = self
            .loader
            .get_or_insert_with(|| Loader::new(OBJECT, ebpf).map_err(|error| error.to_string()))
            .as_mut()
            .map_err(|error| error.clone())?;
        // All or none: they count on each other.
        let links: Vec<Link> = names
            .iter()
            .map(|name| loader.attach(name, place, target))
            .collect::<Result<_, _>>()
            .map_err(|error| error.to_string())?;
        for (link, program) in links.iter().zip(names) {
            report_attached(spec.hook.symbol(), program, link.program.as_fd());
        }
        let programs = links.iter().filter_map(|link| link.program.try_clone().ok()).collect();
        self.links.extend(links);
        Ok(programs)
    }
}

/// Attaches programs of a hook at `symbol`: the hook's own, or a part of it.
fn attach_hook(
    ebpf: &mut Ebpf,
    spec: &HookSpec,
    names: &[&'static str],
    symbol: &'static str,
) -> Result<Vec<OwnedFd>, AttachError> {
    for &program in names {
        let refused = |error: &ProgramError| AttachError::Program { program, symbol, error: sentence(error) };
        let loaded = ebpf.program_mut(program).ok_or(AttachError::Map { name: program })?;
        match (loaded, spec.attach) {
            (Program::KProbe(kprobe), Attach::Kprobe | Attach::KprobePair) => {
                let kprobe: &mut KProbe = kprobe;
                // It may be that it was loaded to be attached elsewhere, in vain.
                if kprobe.fd().is_err() {
                    kprobe.load().map_err(|error| refused(&error))?;
                }
                kprobe.attach(symbol, 0).map_err(|error| refused(&error))?;
            }
            (Program::RawTracePoint(tracepoint), Attach::RawTracepoint) => {
                let tracepoint: &mut RawTracePoint = tracepoint;
                tracepoint.load().map_err(|error| refused(&error))?;
                tracepoint.attach(symbol).map_err(|error| refused(&error))?;
            }
            (Program::RawTracePoint(on_demand), Attach::OnDemand) => {
                let on_demand: &mut RawTracePoint = on_demand;
                on_demand.load().map_err(|error| refused(&error))?;
                // No entry lies at this address: nothing is reported, and a kernel that cannot do it says so.
                on_demand.test_run(RawTracePointRunOptions::new()).map_err(|error| refused(&error))?;
            }
            _ => return Err(AttachError::Map { name: program }),
        }
    }
    let programs = names.iter().filter_map(|name| Some((name, program_fd(ebpf, name)?)));
    Ok(programs.inspect(|(program, fd)| report_attached(symbol, program, fd.as_fd())).map(|(_, fd)| fd).collect())
}

/// Logs how long an attached program is, as the kernel runs it, and how much of it the verifier walked through.
fn report_attached(symbol: &str, program: &str, fd: BorrowedFd<'_>) {
    let size = fentry::size(fd).unwrap_or_default();
    debug!(symbol, program, instructions = size.instructions, verified = size.verified, "attached");
}

/// A loaded program's descriptor, for questions about it.
fn program_fd(ebpf: &Ebpf, name: &str) -> Option<OwnedFd> {
    let fd = match ebpf.program(name)? {
        Program::KProbe(program) => program.fd().ok()?,
        Program::RawTracePoint(program) => program.fd().ok()?,
        _ => return None,
    };
    fd.as_fd().try_clone_to_owned().ok()
}

fn set_targets(ebpf: &mut Ebpf, targets: &[IpAddr]) -> Result<(), AttachError> {
    let missing = AttachError::Map { name: map::TARGETS };
    let Some(targets_map) = ebpf.map_mut(map::TARGETS) else { return Err(missing) };
    let Ok(mut set) = HashMap::<_, [u8; 16], u8>::try_from(targets_map) else { return Err(missing) };
    let wanted: std::collections::HashSet<[u8; 16]> = targets.iter().map(key).collect();
    let present: Vec<[u8; 16]> = set.keys().filter_map(Result::ok).collect();
    for address in wanted.iter().filter(|address| !present.contains(address)) {
        // A set that is full leaves the rest out; `check` and the summary name what was not seen.
        let _ = set.insert(address, 1, 0);
    }
    for address in present.iter().filter(|address| !wanted.contains(*address)) {
        let _ = set.remove(address);
    }
    Ok(())
}

/// An address as the kernel half's key: IPv4 in the first four bytes.
fn key(address: &IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, c, d] = v4.octets();
            [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        }
        IpAddr::V6(v6) => v6.octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_may_be_preempted_has_all_its_partners() {
        assert_eq!(Partners::on(false), Partners { confirm: 2, sock_state: 1 });
        assert_eq!(Partners::on(true), Partners { confirm: 3, sock_state: 3 });
    }
}
