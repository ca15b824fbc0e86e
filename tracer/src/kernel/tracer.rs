//! The live kernel: reads the records of attached programs and counts the lost ones.
//!
//! Owns the ring buffer and the requests to programs while they run; `attach` loads and attaches them.

use std::{
    collections::BTreeSet,
    fmt, io,
    net::IpAddr,
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
    sync::Arc,
    time::{Duration, Instant},
};

use aya::maps::{MapData, MapError, PerCpuArray, RingBuf};
use tokio::io::{Interest, unix::AsyncFd};
use tracer_ebpf::{Attach, HOOK_SLOTS, Hook, LOST_ANY, map};
use tracing::{debug, info, warn};

use super::{
    attach::{self, AttachError, AttachGap, Attached, Attachment, Options, SharedLink},
    bpf, clock,
    connections::{Counted, ServiceEnd},
    decode::{self, Decoder},
    environment::Environment,
    layout::Layout,
    messages::Messages,
    modules::{ModuleChange, Modules},
    plan::{HookPlan, State},
    recorder::{Recorder, Suppressed},
    running::RunningKernel,
};
use crate::{
    error::sentence,
    net::Netns,
    sighting::{ListedEntry, Sighting},
    time::Timestamp,
};

/// How long the reader lets records gather after the first one. The kernel wakes it once per batch, not once per
/// record.
const BATCH: Duration = Duration::from_millis(50);
/// The same of a recorder. It has few records, so that most of the work is that of the turns, and not of their records.
const BATCH_OF_RECORDER: Duration = Duration::from_millis(500);

/// How long the sum of all losses is trusted.
const LOSSES: Duration = Duration::from_secs(1);

/// An attached tracer. Dropping it detaches every hook.
pub(crate) struct Tracer {
    attached: Attached,
    ring: AsyncFd<RingBuf<MapData>>,
    lost: PerCpuArray<MapData, u64>,
    lost_before: [u64; HOOK_SLOTS],
    skipped_before: [u64; HOOK_SLOTS],
    /// The same of the programs that hooks share.
    skipped_by_shared_before: [u64; 2],
    preempts_programs: bool,
    decoder: Decoder,
    clock_offset_ns: u64,
    armed_at: Timestamp,
    /// When the counts of all hooks were last read.
    losses_read: Instant,
    /// Records since [`Self::take_undecodable`] that could not be decoded.
    undecodable: u64,
    has_warned: bool,
    layout: Arc<Layout>,
    modules: Modules,
    modules_read: Timestamp,
    recorder: Option<Recorder>,
    _messages: Option<Messages>,
}

/// A hook that was attached, or was lost, while the trace runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HookChange {
    pub hook: Hook,
    pub kind: HookChangeKind,
    /// When it was attached, or since when it may be lost.
    pub time: Timestamp,
    /// For an operator: what is not observed, and when.
    pub text: String,
}

impl HookChange {
    fn lost(hook: Hook, since: Timestamp, reason: &str) -> Self {
        let (symbol, from, absence) = (hook.symbol(), since.to_the_millisecond(), hook.spec().absence);
        let text = format!("{symbol}: since {from}, {absence} ({reason})");
        Self { hook, kind: HookChangeKind::Lost, time: since, text }
    }
}

/// The events at which the kernel skipped a program that these hooks share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SkippedByShared {
    pub hooks: Vec<Hook>,
    pub events: u64,
}

/// The kind of a [`HookChange`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HookChangeKind {
    Attached,
    /// Events since its time may be missed: the hook was lost, or its module was loaded and it is not attached yet.
    Lost,
}

impl Tracer {
    /// Loads the object with this kernel's layout and attaches every hook of the plan.
    ///
    /// A hook that the kernel refuses becomes a gap ([`Self::report`]), unless it is essential.
    pub(crate) fn attach(
        plan: &HookPlan,
        layout: Arc<Layout>,
        options: &Options,
    ) -> Result<Self, AttachError> {
        let mut attached = attach::attach(plan, &layout, options)?;
        let mut map = |name| attached.maps.remove(name).ok_or(AttachError::Map { name });
        let ring =
            RingBuf::try_from(map(map::EVENTS)?).map_err(|_| AttachError::Map { name: map::EVENTS })?;
        let lost =
            PerCpuArray::try_from(map(map::LOST)?).map_err(|_| AttachError::Map { name: map::LOST })?;
        #[expect(unsafe_code, reason = "tokio requires a promise about the file descriptor")]
        // SAFETY: the ring buffer owns its descriptor, returns the same one as long as it lives, and the AsyncFd
        // owns the ring buffer.
        let ring = unsafe { AsyncFd::register_with_interest(ring, Interest::READABLE) }
            .map_err(|error| AttachError::Ring(error.into()))?;
        let recorder =
            options.recorder.map(|options| Recorder::take(&mut attached.maps, options)).transpose()?;
        let messages = attached.messages.as_mut().map(Messages::read).transpose()?;
        // Hooks attach one after the other; observations from before the last of them are incomplete.
        let armed_at = clock::now();
        let clock_offset_ns = clock::offset_ns();
        Ok(Self {
            modules: Modules::read("/", |name| plan.planned().any(|(_, spec)| spec.module == Some(name))),
            modules_read: armed_at,
            attached,
            ring,
            lost,
            lost_before: [0; HOOK_SLOTS],
            skipped_before: [0; HOOK_SLOTS],
            skipped_by_shared_before: [0; 2],
            preempts_programs: plan.preempts_programs(),
            decoder: Decoder::new(Arc::clone(&layout), clock_offset_ns),
            layout,
            clock_offset_ns,
            armed_at,
            losses_read: Instant::now(),
            undecodable: 0,
            has_warned: false,
            recorder,
            _messages: messages,
        })
    }

    /// Writes into the plan how each hook was attached, or why it was not.
    pub(crate) fn report(&self, plan: &mut HookPlan) {
        for AttachGap { spec_index, reason } in &self.attached.fallbacks {
            info!("another program stands in for one with typed arguments: {reason}");
            plan.fall_back(*spec_index, reason.clone());
        }
        for spec_index in &self.attached.by_kprobe_multi {
            plan.reached_by_kprobe_multi(*spec_index);
        }
        for spec_index in &self.attached.by_shared {
            plan.reached_by_shared(*spec_index);
        }
        for AttachGap { spec_index, reason } in &self.attached.gaps {
            plan.refuse(*spec_index, reason.clone());
        }
    }

    pub(crate) fn attached(&self) -> &[Hook] {
        &self.attached.hooks
    }

    /// When the last hook was attached.
    pub(crate) fn armed_at(&self) -> Timestamp {
        self.armed_at
    }

    /// Nanoseconds added to the kernel's monotonic times to get the time of the trace.
    pub(crate) fn clock_offset_ns(&self) -> u64 {
        self.clock_offset_ns
    }

    /// The number of records since the last call that could not be decoded.
    pub(crate) fn take_undecodable(&mut self) -> u64 {
        std::mem::take(&mut self.undecodable)
    }

    /// Waits until there is something to read, and for [`Self::batch`], so that a busy node is read in batches and an idle one
    /// not at all. A buffer that is half full ends the wait. Read everything afterwards, also if the wait was cancelled.
    pub(crate) async fn readable(&mut self) -> io::Result<()> {
        let batch = self.batch();
        self.ring.readable_mut().await?.clear_ready();
        // The programs wake the reader a second time when the buffer is half full (`output.rs` in the kernel half).
        if let Ok(half_full) = tokio::time::timeout(batch, self.ring.readable_mut()).await {
            half_full?.retain_ready();
        }
        Ok(())
    }

    /// How long records gather before they are read.
    pub(crate) fn batch(&self) -> Duration {
        if self.is_recorder() { BATCH_OF_RECORDER } else { BATCH }
    }

    /// From now on the next record wakes [`Self::readable`]. Call it before the records are read: one that comes between the
    /// last reading and this call would wake nothing, nor would those behind it.
    pub(crate) fn rearm(&mut self) {
        if let Some(Ok(mut guard)) = futures::FutureExt::now_or_never(self.ring.readable_mut()) {
            guard.clear_ready();
        }
    }

    /// Reads the available records, at most `limit`, in the order of the ring buffer. Records of different CPUs may be
    /// out of order by the time between reading the clock and reserving the room. `keep` receives each record that
    /// becomes a sighting.
    pub(crate) fn drain(
        &mut self,
        limit: usize,
        into: &mut Vec<Sighting>,
        mut keep: impl FnMut(&[u8]),
    ) -> usize {
        let mut read = 0;
        let is_recorder = self.recorder.is_some();
        let ring = self.ring.get_mut();
        while read < limit {
            let Some(record) = ring.next() else { break };
            read += 1;
            match self.decoder.decode(&record) {
                // A recorder hands over a decision late, with its time. It was attached before all other hooks.
                Ok(sighting)
                    if sighting.time >= self.armed_at || is_recorder && sighting.hook == Hook::Confirm =>
                {
                    keep(&record);
                    into.push(sighting);
                }
                // From before the last hook was attached: an incomplete picture.
                Ok(_) => {}
                // The entry was freed before it was read again: its memory holds something else, and no event was lost.
                Err(error) if decode::is_reread(&record) => debug!("an entry was gone: {error}"),
                Err(error) => {
                    self.undecodable += 1;
                    if !self.has_warned {
                        self.has_warned = true;
                        warn!("a record from the kernel could not be read, and is counted as lost: {error}");
                    }
                }
            }
        }
        read
    }

    /// Whether the buffer holds records that [`Self::drain`] did not return: newer ones, or one that is still being
    /// written and holds up those behind it (`ringbuf_map_poll`, kernel/bpf/ringbuf.c, counts both).
    pub(crate) fn has_more(&self) -> bool {
        let mut poll = libc::pollfd { fd: self.ring.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        #[expect(unsafe_code, reason = "poll(2) has no safe wrapper in std")]
        // SAFETY: one entry, which outlives the call; the descriptor is open as long as the ring buffer.
        let ready = unsafe { libc::poll(&raw mut poll, 1, 0) };
        ready > 0
    }

    /// Adds listed entries as if the kernel had reported them: the sightings to `into`, the records to `keep`.
    pub(crate) fn listed(
        &self,
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

    /// Events lost in the kernel since the last call, by hook where that is known: records without room, and events for which the
    /// kernel skipped every program. Where programs are preempted, that number is only an upper bound, because each copy misses other
    /// events: it is left to the summary. As a loss, it would make the healthy flows of a busy node uncertain.
    pub(crate) fn losses(&mut self) -> Result<Vec<(Option<Hook>, u64)>, MapError> {
        let mut losses = Vec::new();
        if !self.preempts_programs {
            let [functions, tracepoints] = self.skipped_by_shared();
            // The tracepoints are of TCP: the loss of one concerns the flows that the loss of another one does.
            let of_tracepoints = tracepoints.hooks.first().copied();
            let before = self.skipped_by_shared_before;
            for ((hook, skipped), before) in
                [(None, functions.events), (of_tracepoints, tracepoints.events)].into_iter().zip(before)
            {
                if skipped > before {
                    losses.push((hook, skipped - before));
                }
            }
            self.skipped_by_shared_before = [functions.events, tracepoints.events];
        }
        for hook in &self.attached.hooks {
            let is_charged = hook.spec().skipped.is_some() && !self.preempts_programs;
            let skipped = if is_charged { self.skipped_events(*hook) } else { 0 };
            let before = &mut self.skipped_before[*hook as usize];
            if skipped > *before {
                losses.push((Some(*hook), skipped - *before));
                *before = skipped;
            }
        }
        // Read after every batch, and rarely changed. Two programs of one CPU can count at the same time and leave it as it
        // was (`output.rs` in the kernel half), so that it decides for a second at most.
        let any: u64 = self.lost.get(&(LOST_ANY as u32), 0)?.iter().sum();
        if any == self.lost_before[LOST_ANY] && self.losses_read.elapsed() < LOSSES {
            return Ok(losses);
        }
        self.losses_read = Instant::now();
        self.lost_before[LOST_ANY] = any;
        for hook in &self.attached.hooks {
            let slot = *hook as usize;
            let total: u64 = self.lost.get(&(slot as u32), 0)?.iter().sum();
            let before = &mut self.lost_before[slot];
            if total > *before {
                losses.push((Some(*hook), total - *before));
                *before = total;
            }
        }
        Ok(losses)
    }

    /// Reads these conntrack entries again, by their kernel addresses: their current state arrives as sightings of
    /// [`Hook::EntryReread`]. If an address now holds another entry, that one is reported. Returns how many could not
    /// be read.
    pub(crate) fn reread(&mut self, entries: &[u64]) -> usize {
        if entries.is_empty() || !self.attached.hooks.contains(&Hook::EntryReread) {
            return entries.len();
        }
        let mut failed = 0;
        for entry in entries {
            if let Err(error) = self.attached.run(Hook::EntryReread, *entry) {
                failed += 1;
                debug!(entry, "a conntrack entry could not be read again: {}", sentence(&error));
            }
        }
        failed
    }

    /// The most events for which the kernel skipped all of a hook's programs, because that CPU was already running them, or
    /// another program. Counted since 5.12 for fentry, and since 6.7 for all.
    pub(crate) fn skipped_events(&self, hook: Hook) -> u64 {
        let skipped = |(_, Attachment { program, link }): &(Hook, Attachment)| {
            let runs = bpf::missed_runs(program.as_fd()).unwrap_or_default();
            let by_link = link.as_ref().and_then(|link| bpf::missed_by_link(link.as_fd()).ok().flatten());
            runs + by_link.unwrap_or_default()
        };
        let counts = self.attached.programs.iter().filter(|(of, _)| *of == hook).map(skipped);
        // A function that a shared program reaches has no other.
        if let Some(link) = self.attached.shared.iter().find(|link| link.hooks == [hook]) {
            return missed_by(link);
        }
        // An event is lost if every copy misses it, and a pair of kprobes needs both.
        match hook.spec().attach {
            Attach::Return { .. } => counts.sum(),
            _ => counts.min().unwrap_or_default(),
        }
    }

    /// The events at which the kernel skipped a program that hooks share, where it does not tell at which of them: of functions,
    /// and of tracepoints.
    pub(crate) fn skipped_by_shared(&self) -> [SkippedByShared; 2] {
        let runs = |program: &OwnedFd| bpf::missed_runs(program.as_fd()).unwrap_or_default();
        let loader = self.attached.loader();
        let hooks = |of_tracepoints: bool| {
            let hooks = self.attached.shared.iter().flat_map(|link| link.hooks.iter().copied());
            hooks.filter(move |hook| matches!(hook.spec().attach, Attach::RawTracepoint(_)) == of_tracepoints)
        };
        let by_links = self.attached.shared.iter().filter(|link| link.hooks.len() > 1).map(missed_by);
        [
            SkippedByShared {
                hooks: hooks(false).collect(),
                events: loader.shared_by_functions().map(runs).chain(by_links).sum(),
            },
            SkippedByShared {
                hooks: hooks(true).collect(),
                events: loader.shared_by_tracepoints().map_or(0, runs),
            },
        ]
    }

    /// The time that these programs ran, and the number of runs; `None` unless the kernel measures them.
    pub(crate) fn measured_runs_of_shared(&self) -> Option<(Duration, u64)> {
        let loader = self.attached.loader();
        let programs = loader.shared_by_functions().chain(loader.shared_by_tracepoints());
        sum(programs.filter_map(|program| bpf::measured_runs(program.as_fd()).ok()))
    }

    /// Attaches the hooks of modules that were loaded since the last call, and gives up those of unloaded ones: with the first
    /// REJECT of a node comes `nf_reject_ipv4`, often long after the trace began. Call it every second or so; it costs
    /// microseconds as long as nothing changes.
    pub(crate) fn follow_modules(&mut self, plan: &mut HookPlan) -> Vec<HookChange> {
        let before = std::mem::replace(&mut self.modules_read, clock::now());
        let modules = self.modules.changes();
        let is_loaded = |change: &ModuleChange| matches!(change, ModuleChange::Loaded(_));
        let later = modules.iter().any(is_loaded).then(|| later_plan(plan)).flatten();
        let mut changes = Vec::new();
        for change in modules {
            match (change, &later) {
                (ModuleChange::Loaded(module), Some(later)) => {
                    self.attach_module(module, later, before, plan, &mut changes);
                }
                (ModuleChange::Loaded(module), None) => {
                    warn!("the hooks of the module {module} cannot be attached");
                }
                (ModuleChange::Unloaded(module), _) => {
                    self.detach_module(module, before, plan, &mut changes);
                }
            }
        }
        changes
    }

    fn attach_module(
        &mut self,
        module: &str,
        later: &HookPlan,
        before: Timestamp,
        plan: &mut HookPlan,
        changes: &mut Vec<HookChange>,
    ) {
        for index in plan.come_with(module, later) {
            let Some(line) = plan.lines().get(index) else { continue };
            let (spec, was_missing) = (line.spec, matches!(line.state, State::Missing(_)));
            let lost = |reason: &str| HookChange::lost(spec.hook, before, reason);
            // The programs' offsets are those of the beginning.
            let fields = spec.fields.iter().copied().flatten();
            let unknown: Vec<&str> = fields.copied().filter(|field| !self.layout.has(field)).collect();
            let attached = if unknown.is_empty() {
                self.attached.attach_late(later, index).map_err(|error| error.to_string())
            } else {
                Err(format!(
                    "the module {module} was loaded after the trace had begun: only a new trace knows its fields"
                ))
            };
            match attached {
                Ok(()) => {
                    plan.replace(index, later);
                    if self.attached.by_kprobe_multi.contains(&index) {
                        plan.reached_by_kprobe_multi(index);
                    }
                    if self.attached.by_shared.contains(&index) {
                        plan.reached_by_shared(index);
                    }
                    let time = clock::now();
                    if !was_missing {
                        changes.push(lost("its module was just loaded"));
                    }
                    changes.push(HookChange {
                        hook: spec.hook,
                        kind: HookChangeKind::Attached,
                        time,
                        text: format!(
                            "{}: until {}, {} (the module {module} was loaded after the trace had begun)",
                            spec.symbol,
                            time.to_the_millisecond(),
                            spec.absence
                        ),
                    });
                }
                Err(reason) => {
                    if !was_missing {
                        changes.push(lost(&reason));
                    }
                    plan.refuse(index, reason);
                }
            }
        }
    }

    fn detach_module(
        &mut self,
        module: &str,
        before: Timestamp,
        plan: &mut HookPlan,
        changes: &mut Vec<HookChange>,
    ) {
        let reason = format!("the module {module} was unloaded");
        for hook in self.attached.detach(module) {
            // The programs of a later attachment count from 0.
            self.skipped_before[hook as usize] = 0;
            if let Some(index) = plan.lines().iter().position(|line| line.spec.hook == hook) {
                plan.unload(index);
            }
            changes.push(HookChange::lost(hook, before, &reason));
        }
    }

    /// How many of the target's addresses do not fit into the kernel's filter.
    pub(crate) fn targets_left_out(&self) -> usize {
        self.attached.left_out
    }

    /// The time that a hook's programs ran, and the number of runs; `None` unless the kernel measures them.
    pub(crate) fn measured_runs(&self, hook: Hook) -> Option<(Duration, u64)> {
        let programs = self.attached.programs.iter().filter(|(of, _)| *of == hook);
        sum(programs.filter_map(|(_, attached)| bpf::measured_runs(attached.program.as_fd()).ok()))
    }

    /// Whether the kernel keeps the decisions of healthy connections.
    pub(crate) fn is_recorder(&self) -> bool {
        self.recorder.is_some()
    }

    /// Replaces the ends that belong to Services. Returns how many of them found no room, if that number changed. Without
    /// a recorder nothing asks for them.
    pub(crate) fn set_services(&mut self, ends: &BTreeSet<ServiceEnd>) -> Option<usize> {
        self.recorder.as_mut().and_then(|recorder| recorder.set_services(ends))
    }

    /// The connections started since the last call, and those that found no counter.
    pub(crate) fn counts(&mut self) -> io::Result<(Vec<(Counted, u64)>, u64)> {
        self.recorder.as_mut().map_or_else(|| Ok((Vec::new(), 0)), Recorder::counts)
    }

    /// How long the kernel keeps a decision at the present rate of connections, as
    /// [`Recorder::decision_retention`].
    pub(crate) fn decision_retention(&self) -> Option<Duration> {
        self.recorder.as_ref()?.decision_retention(clock::monotonic_ns())
    }

    /// Whether a limit suppressed failures that [`Self::suppressed`] has not returned.
    pub(crate) fn has_suppressed(&self) -> io::Result<bool> {
        self.recorder.as_ref().map_or(Ok(false), Recorder::has_suppressed)
    }

    /// The failures that a limit suppressed since the last call.
    pub(crate) fn suppressed(&mut self) -> io::Result<Vec<Suppressed>> {
        self.recorder.as_mut().map_or_else(|| Ok(Vec::new()), Recorder::suppressed)
    }

    /// Replaces the addresses of a targeted trace.
    pub(crate) fn retarget(&mut self, targets: &[IpAddr]) -> Result<(), AttachError> {
        self.attached.retarget(targets)
    }
}

/// The runs that the kernel did not even begin at a link.
fn missed_by(link: &SharedLink) -> u64 {
    bpf::missed_by_link(link.link.as_fd()).ok().flatten().unwrap_or_default()
}

/// Times, nanoseconds, and numbers of runs, together; `None` if there were none.
fn sum(measured: impl Iterator<Item = (u64, u64)>) -> Option<(Duration, u64)> {
    let (time, runs) = measured.fold((0, 0), |(time, runs), (ns, count)| (time + ns, runs + count));
    (runs > 0).then_some((Duration::from_nanos(time), runs))
}

/// The same plan for the kernel as it is now; `None` if that cannot be described.
fn later_plan(plan: &HookPlan) -> Option<HookPlan> {
    let running = RunningKernel::open(Environment::inspect())
        .inspect_err(|error| warn!("the kernel cannot be described again: {error}"))
        .ok()?;
    Some(plan.again(&running.layout(), &running))
}

/// Makes the kernel measure the run times of all programs while the result lives (`BPF_ENABLE_STATS`, since 5.8; it
/// requires `CAP_SYS_ADMIN`: `bpf_enable_stats`, kernel/bpf/syscall.c, 6.12). Returns the reason if it refuses.
pub(crate) fn measure_runs() -> Result<OwnedFd, String> {
    aya::sys::enable_stats(aya::sys::Stats::RunTime).map_err(|error| sentence(&error))
}

impl fmt::Debug for Tracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tracer")
            .field("attached", &self.attached.hooks)
            .field("gaps", &self.attached.gaps)
            .finish_non_exhaustive()
    }
}
