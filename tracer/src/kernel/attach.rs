//! Loads the eBPF object with this kernel's numbers and attaches the programs of a plan's hooks.
//!
//! The plan decides which hooks are attached and how. A hook that the kernel refuses is a gap, unless it is essential.

mod fentry;

use std::{
    collections::HashMap as StdMap,
    io,
    net::IpAddr,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
};

use aya::{
    Ebpf,
    maps::{HashMap, Map},
};
use aya_log::Level;
use tracer_ebpf::{Attach, Cookie, Copies, Hook, HookSpec, MISSING, function, map};
use tracing::debug;

use fentry::Opening;

use super::{
    bpf::{self, Place},
    keys::{self, KeySet},
    layout::{FIELDS, Layout},
    loader::{Link, LoadError, Loader, PERF_EVENTS_REFUSED},
    object::{self, ObjectError, Prepared, Settings, cast},
    plan::{HookPlan, Tier},
    recorder::RecorderOptions,
};
use crate::error::{Hint, sentence};

#[cfg(not(viptrace_without_bpf))]
pub(super) static OBJECT: &[u8] = aya::include_bytes_aligned!(env!("VIPTRACE_BPF_OBJECT"));
#[cfg(viptrace_without_bpf)]
pub(super) static OBJECT: &[u8] = &[];

/// The target of the debug lines that programs write.
pub(super) const MESSAGES: &str = "viptrace::bpf";
/// Bytes of the buffer for debug lines that are not read yet.
const MESSAGES_BYTES: u32 = 128 << 10;

/// The requests of a trace to the kernel.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of the ring buffer; rounded up to a power of two of at least a page.
    pub buffer_bytes: u32,
    /// Only events that concern these addresses are reported; `None` reports all events.
    pub targets: Option<Vec<IpAddr>>,
    /// Decisions stay in the kernel until a failure meets them; `None` reports each.
    pub recorder: Option<RecorderOptions>,
}

/// Why tracing could not start.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    #[error("this viptrace was built without its eBPF object")]
    NoObject,
    #[error("the eBPF object cannot be made ready: {0}")]
    Load(ObjectError),
    #[error("the kernel refused the program `{program}` for {symbol}: {error}")]
    Program { program: &'static str, symbol: &'static str, error: String },
    #[error("the eBPF object lacks the map {name}; it was built from other sources")]
    Map { name: &'static str },
    #[error("cannot map the counts of connections: {0}")]
    Tallies(io::Error),
    #[error("cannot watch the ring buffer: {0}")]
    Ring(io::Error),
}

impl Hint for AttachError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::NoObject => Some("run `cargo xtask setup`, then build again".to_owned()),
            Self::Map { .. } => Some("build viptrace again".to_owned()),
            // perf_event_open(2).
            Self::Program { error, .. } if error.contains(PERF_EVENTS_REFUSED) => Some(
                "`sysctl kernel.perf_event_paranoid` shows whether the kernel refuses kprobes to a process without \
                 CAP_SYS_ADMIN: from 3 on it does; set it to 2, or add SYS_ADMIN (of a DaemonSet in its manifest, with \
                 `kubectl viptrace` by --sys-admin)"
                    .to_owned(),
            ),
            Self::Load(_) | Self::Program { .. } | Self::Tallies(_) | Self::Ring(_) => None,
        }
    }
}

/// A hook that was planned but could not be attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachGap {
    pub spec_index: usize,
    pub reason: String,
}

/// The loaded object and the attached hooks of the plan. Dropping it detaches every hook.
pub(super) struct Attached {
    /// The object's maps that no reader has taken.
    pub(super) maps: StdMap<String, Map>,
    /// Where the programs' debug lines are read.
    pub(super) messages: Option<Ebpf>,
    /// The attached programs, by hook.
    pub(super) programs: Vec<(Hook, Attachment)>,
    /// The planned hooks that kprobe.multi links reach.
    pub(super) by_kprobe_multi: Vec<usize>,
    /// The planned hooks that the program for several functions reaches.
    pub(super) by_shared: Vec<usize>,
    /// The links of that program.
    pub(super) shared: Vec<SharedLink>,
    /// Loads programs, those of hooks that are attached later too.
    loader: Loader,
    is_targeted: bool,
    /// The addresses that are in the kernel's filter.
    targets: KeySet<16>,
    /// The addresses of the target that the filter has no room for.
    pub(super) left_out: usize,
    pub(super) hooks: Vec<Hook>,
    /// Planned hooks that the kernel refused.
    pub(super) gaps: Vec<AttachGap>,
    /// Functions planned for fentry that the kernel let only kprobes reach, each with the reason.
    pub(super) fallbacks: Vec<AttachGap>,
}

/// An attached program.
#[derive(Debug)]
pub(super) struct Attachment {
    pub(super) program: OwnedFd,
    /// `None` for a program that user space runs, or that follows another one.
    pub(super) link: Option<OwnedFd>,
}

/// A link of the program that functions share.
#[derive(Debug)]
pub(super) struct SharedLink {
    pub(super) hooks: Vec<Hook>,
    pub(super) link: OwnedFd,
}

/// Loads the object with this kernel's layout and attaches every hook of the plan.
pub(super) fn attach(plan: &HookPlan, layout: &Layout, options: &Options) -> Result<Attached, AttachError> {
    if OBJECT.is_empty() {
        return Err(AttachError::NoObject);
    }
    let Prepared { programs, btf, mut maps, messages } =
        object::prepare(OBJECT, &settings(plan, layout, options)).map_err(AttachError::Load)?;
    let loader = Loader::new(programs, btf);
    let (mut targets, mut left_out) = (KeySet::default(), 0);
    if let Some(wanted) = &options.targets {
        left_out = set_targets(&mut targets, &mut maps, wanted)?;
    }
    let mut attached = Attached {
        maps,
        messages,
        programs: Vec::new(),
        by_kprobe_multi: Vec::new(),
        by_shared: Vec::new(),
        shared: Vec::new(),
        loader,
        is_targeted: options.targets.is_some(),
        targets,
        left_out,
        hooks: Vec::new(),
        gaps: Vec::new(),
        fallbacks: Vec::new(),
    };
    let mut shared = attached.shared_functions(plan);
    let mut openings = Vec::new();
    for (spec_index, spec) in plan.planned() {
        // All of them with the first: by then the essential hooks are attached.
        if shared.iter().any(|(index, ..)| *index == spec_index) {
            attached.attach_shared(plan, &std::mem::take(&mut shared));
        }
        if attached.by_shared.contains(&spec_index) {
            attached.hooks.push(spec.hook);
            continue;
        }
        match attached.begin(plan, spec_index, spec) {
            Ok(Some(opening)) => openings.push(opening),
            result => attached.note(plan, spec_index, spec, result.map(drop))?,
        }
    }
    for opening in openings {
        let (spec_index, spec) = (opening.spec_index, opening.spec);
        let result = attached.end(plan, opening);
        attached.note(plan, spec_index, spec, result)?;
    }
    let position = |hook: &Hook| plan.planned().position(|(_, spec)| spec.hook == *hook);
    attached.hooks.sort_by_key(position);
    Ok(attached)
}

impl Attached {
    /// Replaces the addresses of a targeted trace.
    pub(super) fn retarget(&mut self, targets: &[IpAddr]) -> Result<(), AttachError> {
        self.left_out = set_targets(&mut self.targets, &mut self.maps, targets)?;
        Ok(())
    }

    /// Attaches a hook of the plan that could not be attached before.
    pub(super) fn attach_late(&mut self, plan: &HookPlan, spec_index: usize) -> Result<(), AttachError> {
        let planned = plan.planned().find(|(index, _)| *index == spec_index);
        let Some((_, spec)) = planned else { return Ok(()) };
        let mut shared = self.shared_functions(plan);
        shared.retain(|(index, ..)| *index == spec_index);
        self.attach_shared(plan, &shared);
        if !self.by_shared.contains(&spec_index) {
            self.attach(plan, spec_index, spec)?;
        }
        self.hooks.push(spec.hook);
        self.gaps.retain(|gap| gap.spec_index != spec_index);
        Ok(())
    }

    /// Forgets the hooks of a module that is gone, with the kernel's ends of their links. Returns them.
    pub(super) fn detach(&mut self, module: &str) -> Vec<Hook> {
        let is_gone = |hook: &Hook| hook.spec().module == Some(module);
        let gone = self.hooks.extract_if(.., |hook| is_gone(hook)).collect();
        self.programs.retain(|(hook, _)| !is_gone(hook));
        for reached in [&mut self.by_kprobe_multi, &mut self.by_shared] {
            reached.retain(|index| Hook::ALL.get(*index).is_none_or(|hook| !is_gone(hook)));
        }
        for link in &mut self.shared {
            link.hooks.retain(|hook| !is_gone(hook));
        }
        self.shared.retain(|link| !link.hooks.is_empty());
        self.loader.forget(module);
        gone
    }

    /// The functions that one program is to reach. It has no filter for a target.
    fn shared_functions(&self, plan: &HookPlan) -> Vec<(usize, &'static HookSpec, Cookie)> {
        if self.is_targeted { Vec::new() } else { plan.shared().collect() }
    }

    /// Attaches the program that functions share to these, in the order of [`Self::attach_kprobes`]. Those that it does not reach
    /// have programs of their own.
    fn attach_shared(&mut self, plan: &HookPlan, functions: &[(usize, &HookSpec, Cookie)]) {
        let mut left = functions.to_vec();
        let ways = if plan.has_quick_links() { [true, false] } else { [false, true] };
        for by_link in ways {
            if left.is_empty() {
                return;
            }
            let refused = if by_link {
                self.attach_shared_by_link(plan, &mut left)
            } else {
                self.attach_shared_by_events(&mut left)
            };
            if let Err(error) = refused {
                debug!(%error, by_link, "the program that functions share does not reach all of them");
            }
        }
    }

    /// By a perf event for each function. Takes those that are reached out of `left`.
    fn attach_shared_by_events(
        &mut self,
        left: &mut Vec<(usize, &HookSpec, Cookie)>,
    ) -> Result<(), LoadError> {
        let mut refused = Ok(());
        let mut others = Vec::new();
        for (index, spec, cookie) in std::mem::take(left) {
            if refused.is_err() {
                others.push((index, spec, cookie));
                continue;
            }
            let mut last = Err(LoadError::NoProgram(function::SHARED));
            for name in names(spec) {
                last = self.loader.attach_shared_kprobe(name, cookie.at(spec.hook));
                // The next name only for a part that does not exist.
                if !matches!(&last, Err(LoadError::Event { error, .. }) if error.kind() == io::ErrorKind::NotFound)
                {
                    break;
                }
            }
            match last {
                Ok(link) => {
                    debug!(symbol = spec.symbol, program = function::SHARED, "attached");
                    self.shared.push(SharedLink { hooks: vec![spec.hook], link });
                    self.by_shared.push(index);
                }
                Err(error) => {
                    others.push((index, spec, cookie));
                    // Another function may exist, and be reached.
                    if !matches!(error, LoadError::Event { .. }) {
                        refused = Err(error);
                    }
                }
            }
        }
        *left = others;
        refused
    }

    /// By one kprobe.multi link, which the kernel refuses if one of the functions does not exist.
    fn attach_shared_by_link(
        &mut self,
        plan: &HookPlan,
        left: &mut Vec<(usize, &HookSpec, Cookie)>,
    ) -> Result<(), LoadError> {
        if !plan.has_kprobe_multi() {
            return Err(LoadError::NoKprobeMulti);
        }
        let link = self.link_by_addresses(left).or_else(|error| {
            debug!(%error, "the functions that share a program are found by their names");
            self.link_by_names(left)
        })?;
        let hooks: Vec<Hook> = left.iter().map(|(_, spec, _)| spec.hook).collect();
        debug!(functions = ?hooks, program = function::SHARED, "attached");
        let reached = std::mem::take(left).into_iter().map(|(index, ..)| index);
        for index in reached {
            self.by_shared.push(index);
            self.by_kprobe_multi.push(index);
        }
        self.shared.push(SharedLink { hooks, link });
        Ok(())
    }

    fn link_by_addresses(&mut self, hooks: &[(usize, &HookSpec, Cookie)]) -> Result<OwnedFd, LoadError> {
        let addresses = self.loader.addresses(hooks.iter().map(|(_, spec, _)| names(spec)))?;
        let functions = hooks.iter().zip(addresses).map(|((_, spec, cookie), address)| {
            let address = address.ok_or(LoadError::NoSymbol(spec.symbol))?;
            Ok((address, cookie.at(spec.hook)))
        });
        self.loader.attach_shared_kprobe_multi_at(&functions.collect::<Result<Vec<_>, _>>()?)
    }

    fn link_by_names(&mut self, hooks: &[(usize, &HookSpec, Cookie)]) -> Result<OwnedFd, LoadError> {
        self.loader.attach_shared_kprobe_multi(&functions(hooks, true)).or_else(|error| {
            let have_parts = hooks.iter().any(|(_, spec, _)| spec.attach.split_part().is_some());
            if !have_parts || matches!(error, LoadError::Load { .. }) {
                return Err(error);
            }
            self.loader.attach_shared_kprobe_multi(&functions(hooks, false))
        })
    }

    /// Notes whether a planned hook is attached.
    fn note(
        &mut self,
        plan: &HookPlan,
        spec_index: usize,
        spec: &HookSpec,
        result: Result<(), AttachError>,
    ) -> Result<(), AttachError> {
        match result {
            Ok(()) => self.hooks.push(spec.hook),
            Err(error) if plan.is_essential(spec) => return Err(error),
            Err(error) => self.gaps.push(AttachGap { spec_index, reason: error.to_string() }),
        }
        Ok(())
    }

    fn attach(
        &mut self,
        plan: &HookPlan,
        spec_index: usize,
        spec: &'static HookSpec,
    ) -> Result<(), AttachError> {
        match self.begin(plan, spec_index, spec)? {
            Some(opening) => self.end(plan, opening),
            None => Ok(()),
        }
    }

    /// Attaches a hook; by fentry it only begins to: [`Self::end`] waits for the kernel.
    fn begin(
        &mut self,
        plan: &HookPlan,
        spec_index: usize,
        spec: &'static HookSpec,
    ) -> Result<Option<Opening>, AttachError> {
        // Where the part exists, calls of the function itself reach it too.
        if let Attach::Entry { kprobe, split_part: Some(part), .. } = spec.attach
            && plan.may_use_kprobes()
            && self.attach_part(plan, (spec_index, spec.hook), kprobe, part)
        {
            return Ok(None);
        }
        let Some(Tier::Fentry(target)) = plan.tier(spec_index) else {
            return self.attach_untyped(plan, spec_index, spec).map(|()| None);
        };
        match self.load_fentry(spec, target, plan.preempts_programs()) {
            Ok(programs) => Ok(Some(Opening::begin(spec_index, spec, programs))),
            Err(reason) => self.fall_back(plan, spec_index, spec, &reason).map(|()| None),
        }
    }

    fn end(&mut self, plan: &HookPlan, opening: Opening) -> Result<(), AttachError> {
        let (spec_index, spec) = (opening.spec_index, opening.spec);
        match opening.links() {
            Ok(links) => {
                for (program, link) in links {
                    self.keep(spec.hook, spec.symbol, program, link);
                }
                Ok(())
            }
            Err(error) => self.fall_back(plan, spec_index, spec, &error.to_string()),
        }
    }

    /// Attaches by a kprobe, or to a tracepoint without types, what could not be attached with types.
    fn fall_back(
        &mut self,
        plan: &HookPlan,
        spec_index: usize,
        spec: &HookSpec,
        reason: &str,
    ) -> Result<(), AttachError> {
        self.fallbacks.push(AttachGap { spec_index, reason: reason.to_owned() });
        self.attach_untyped(plan, spec_index, spec).map_err(|error| match error {
            AttachError::Program { program, symbol, error } => {
                AttachError::Program { program, symbol, error: format!("{error}; with types: {reason}") }
            }
            other => other,
        })
    }

    /// By programs that do not know their arguments' types.
    fn attach_untyped(
        &mut self,
        plan: &HookPlan,
        spec_index: usize,
        spec: &HookSpec,
    ) -> Result<(), AttachError> {
        match spec.attach {
            Attach::Entry { kprobe, .. } => {
                self.attach_kprobes(plan, (spec_index, spec.hook), &[(kprobe, Place::Entry)], spec.symbol)
            }
            Attach::Return { kprobe, kretprobe, .. } => {
                let programs = [(kprobe, Place::Entry), (kretprobe, Place::Exit)];
                self.attach_kprobes(plan, (spec_index, spec.hook), &programs, spec.symbol)
            }
            Attach::RawTracepoint(_)
                if plan.shares_tracepoints() && !self.is_targeted && self.attach_shared_tracepoint(spec) =>
            {
                Ok(())
            }
            Attach::TypedTracepoint { raw: program, .. } | Attach::RawTracepoint(program) => {
                self.attach_raw_tracepoint(spec, program)
            }
            Attach::OnDemand(program) => self.try_on_demand(spec, program),
        }
    }

    /// By perf events, which some kernels refuse to a process without `CAP_SYS_ADMIN` (`kernel.perf_event_paranoid` above 2, a
    /// patch of Debian and Ubuntu), or else by kprobe.multi links. A kernel that makes links quickly gets the links first.
    fn attach_kprobes(
        &mut self,
        plan: &HookPlan,
        hook: (usize, Hook),
        programs: &[(&'static str, Place)],
        symbol: &'static str,
    ) -> Result<(), AttachError> {
        let by_event = |attached: &mut Self| {
            let refused = attached.attach_by(hook.1, programs, symbol, Loader::attach_kprobe);
            refused.map_err(|refused| refused.to_string())
        };
        let by_link = |attached: &mut Self| {
            let refused = attached.attach_kprobe_multi(plan, hook, programs, symbol);
            refused.map_err(|refused| format!("by a kprobe.multi link: {refused}"))
        };
        let attached = if plan.has_quick_links() {
            by_link(self).or_else(|why| by_event(self).map_err(|last| format!("{last}; {why}")))
        } else {
            by_event(self).or_else(|why| by_link(self).map_err(|last| format!("{why}; {last}")))
        };
        let program = programs.first().map_or("", |(name, _)| name);
        attached.map_err(|error| AttachError::Program { program, symbol, error })
    }

    /// Attaches to the part of a function that callers in its own module enter, if the compiler split one off.
    fn attach_part(
        &mut self,
        plan: &HookPlan,
        hook: (usize, Hook),
        kprobe: &'static str,
        part: &'static str,
    ) -> bool {
        let programs = [(kprobe, Place::Entry)];
        match self.attach_by(hook.1, &programs, part, Loader::attach_kprobe) {
            Ok(()) => true,
            Err(LoadError::Event { error, .. }) if error.kind() == io::ErrorKind::NotFound => false,
            Err(_) => self.attach_kprobe_multi(plan, hook, &programs, part).is_ok(),
        }
    }

    fn attach_kprobe_multi(
        &mut self,
        plan: &HookPlan,
        (spec_index, hook): (usize, Hook),
        programs: &[(&'static str, Place)],
        symbol: &'static str,
    ) -> Result<(), String> {
        if !plan.has_kprobe_multi() {
            return Err(LoadError::NoKprobeMulti.to_string());
        }
        self.attach_by(hook, programs, symbol, Loader::attach_kprobe_multi)
            .map_err(|refused| refused.to_string())?;
        self.by_kprobe_multi.push(spec_index);
        Ok(())
    }

    /// Attaches all programs in this way, or none: an exit needs its entry.
    fn attach_by(
        &mut self,
        hook: Hook,
        programs: &[(&'static str, Place)],
        symbol: &'static str,
        attach: impl Fn(&mut Loader, &'static str, Place, &str) -> Result<Link, LoadError>,
    ) -> Result<(), LoadError> {
        let links: Vec<Link> = programs
            .iter()
            .map(|(name, place)| attach(&mut self.loader, name, *place, symbol))
            .collect::<Result<_, _>>()?;
        for (link, (program, _)) in links.into_iter().zip(programs) {
            self.keep(hook, symbol, program, link);
        }
        Ok(())
    }

    fn keep(&mut self, hook: Hook, symbol: &str, name: &str, link: Link) {
        report_attached(symbol, name, link.program.as_fd());
        self.programs.push((hook, Attachment { program: link.program, link: Some(link.link) }));
    }

    fn attach_raw_tracepoint(&mut self, spec: &HookSpec, program: &'static str) -> Result<(), AttachError> {
        let symbol = spec.symbol;
        let refused = |error| AttachError::Program { program, symbol, error };
        let attached = self.loader.attach_raw_tracepoint(program, symbol);
        let link = attached.map_err(|error| refused(error.to_string()))?;
        self.keep(spec.hook, symbol, program, link);
        Ok(())
    }

    /// Whether the program that tracepoints share was attached.
    fn attach_shared_tracepoint(&mut self, spec: &HookSpec) -> bool {
        match self.loader.attach_shared_tracepoint(spec.symbol, spec.hook as u64) {
            Ok(link) => {
                debug!(symbol = spec.symbol, program = function::SHARED_TRACEPOINT, "attached");
                self.shared.push(SharedLink { hooks: vec![spec.hook], link });
                true
            }
            Err(error) => {
                debug!(%error, symbol = spec.symbol, "the program that tracepoints share does not reach it");
                false
            }
        }
    }

    /// Loads a program that user space runs, and runs it once.
    fn try_on_demand(&mut self, spec: &HookSpec, program: &'static str) -> Result<(), AttachError> {
        let symbol = spec.symbol;
        let refused = |error: String| AttachError::Program { program, symbol, error };
        let fd = self.loader.load_on_demand(program).map_err(|error| refused(error.to_string()))?;
        // No entry lies at this address, so the run reports nothing; a kernel that cannot run it returns an error.
        bpf::run_once(fd.as_fd(), 0).map_err(|error| refused(sentence(&error)))?;
        report_attached(symbol, program, fd.as_fd());
        self.programs.push((spec.hook, Attachment { program: fd, link: None }));
        Ok(())
    }

    /// The loader, which keeps the programs that hooks share.
    pub(super) fn loader(&self) -> &Loader {
        &self.loader
    }

    /// Runs the program of this hook, which user space runs, with an argument.
    pub(super) fn run(&self, hook: Hook, argument: u64) -> io::Result<()> {
        let attached = self.programs.iter().find(|(of, _)| *of == hook);
        let (_, attached) = attached.ok_or_else(|| io::Error::other("it is not loaded"))?;
        bpf::run_once(attached.program.as_fd(), argument)
    }
}

/// The names at which a function is reached, the best one first: where a part was split off, calls of the function itself enter it
/// too.
fn names(spec: &HookSpec) -> impl Iterator<Item = &'static str> {
    spec.attach.split_part().into_iter().chain([spec.symbol])
}

/// The functions by name with their cookies; `with_parts`: by the parts that the compiler split off.
fn functions(hooks: &[(usize, &HookSpec, Cookie)], with_parts: bool) -> Vec<(&'static str, u64)> {
    let name = |spec: &HookSpec| spec.attach.split_part().filter(|_| with_parts).unwrap_or(spec.symbol);
    hooks.iter().map(|(_, spec, cookie)| (name(spec), cookie.at(spec.hook))).collect()
}

/// The numbers of this kernel and this trace, and the sizes of its maps.
fn settings(plan: &HookPlan, layout: &Layout, options: &Options) -> Settings {
    let events_bytes = options.buffer_bytes.max(4096).next_power_of_two();
    let mut settings = Settings::new(reads_messages(), uncalled(options));
    for field in FIELDS.iter().filter(|field| field.global) {
        settings.set(field.name, layout.offset(field.name).unwrap_or(MISSING));
    }
    for (name, position) in plan.arguments() {
        settings.set(name, position);
    }
    for (site, range) in layout.drop_sites() {
        for (name, address) in site.globals().into_iter().zip([range.start, range.end]) {
            settings.set(name, address);
        }
    }
    let netfilter = layout.drop_reason_number("NETFILTER_DROP").unwrap_or(MISSING);
    settings.set("OFF_CT_BASE", layout.entry_base());
    let kept = layout.kept_of_entry();
    settings.set("KEPT_FROM", kept.from);
    settings.set("KEPT_BYTES", kept.bytes);
    settings.set("KEPT_WORDS", kept.words);
    settings.set("REASON_NETFILTER_DROP", netfilter);
    if let Some(cast) = plan.cast().filter(cast::is_accepted) {
        settings.set_cast(cast);
    }
    settings.set("TARGETED", u32::from(options.targets.is_some()));
    settings.set("EVENTS_BYTES", events_bytes);
    settings.set("CONFIRM_COPIES", copies(Hook::Confirm, plan.preempts_programs()));
    settings.set("WANTED_REASONS", layout.wanted_reasons());
    settings.set("WANTED_SUBSYSTEMS", layout.wanted_subsystems());
    // Where the programs' debug lines are not read, they are left out, and their buffer is one page.
    let (level, messages_bytes) =
        if reads_messages() { (Level::Debug as u8, MESSAGES_BYTES) } else { (0, 1) };
    settings.set(aya_log::LEVEL, level);
    settings.size(map::MESSAGES, messages_bytes);
    settings.size(map::EVENTS, events_bytes);
    if options.targets.is_none() {
        settings.size(map::TARGETS, 1);
    }
    if let Some(recorder) = options.recorder {
        recorder.numbers().set(&mut settings);
    }
    settings
}

/// Whether the programs' debug lines are read (`-vv`).
pub(super) fn reads_messages() -> bool {
    tracing::enabled!(target: MESSAGES, tracing::Level::DEBUG)
}

/// The functions of the programs that a trace with these options does not call.
fn uncalled(options: &Options) -> Vec<&'static str> {
    let messages = (!reads_messages()).then_some(&function::MESSAGES[..]);
    let of_recorder = options.recorder.is_none().then_some(&function::OF_RECORDER[..]);
    let of_filter = options.targets.is_none().then_some(&function::OF_FILTER[..]);
    [messages, of_recorder, of_filter].into_iter().flatten().flatten().copied().collect()
}

/// How many copies of its program a hook has.
fn copies(hook: Hook, preempts_programs: bool) -> u32 {
    let Attach::Entry { fentry: Some(copies), .. } = hook.spec().attach else { return 1 };
    Copies::attached(copies, preempts_programs).len() as u32
}

/// Logs the length of an attached program, as the kernel runs it, and of the part that the verifier walked through.
fn report_attached(symbol: &str, program: &str, fd: BorrowedFd<'_>) {
    let size = bpf::size(fd).unwrap_or_default();
    debug!(symbol, program, instructions = size.instructions, verified = size.verified, "attached");
}

/// Makes these the addresses of the filter. Returns how many of them do not fit: their flows are not observed.
fn set_targets(
    known: &mut KeySet<16>,
    maps: &mut StdMap<String, Map>,
    targets: &[IpAddr],
) -> Result<usize, AttachError> {
    let missing = AttachError::Map { name: map::TARGETS };
    let Some(targets_map) = maps.get_mut(map::TARGETS) else { return Err(missing) };
    let Ok(mut filter) = HashMap::try_from(targets_map) else { return Err(missing) };
    Ok(known.replace(&mut filter, &targets.iter().copied().map(keys::address).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(not(viptrace_without_bpf))]
    #[test]
    fn the_object_has_the_programs_of_the_table_and_no_others() {
        let object = aya_obj::Object::parse(OBJECT).unwrap();
        let mut built: Vec<&str> = object.programs.keys().map(String::as_str).collect();
        let mut named = vec![function::SHARED, function::SHARED_TRACEPOINT, function::FIND_SYMBOL];
        for hook in Hook::ALL {
            match hook.spec().attach {
                Attach::Entry { kprobe, fentry, .. } => {
                    named.push(kprobe);
                    named.extend(fentry.iter().flat_map(|copies| copies.programs));
                    named.extend(fentry.and_then(|copies| copies.chosen));
                }
                Attach::Return { kprobe, kretprobe, fexit } => named.extend([kprobe, kretprobe, fexit]),
                Attach::RawTracepoint(program) | Attach::OnDemand(program) => named.push(program),
                Attach::TypedTracepoint { typed, raw } => named.extend([typed, raw]),
            }
        }
        for name in [&function::MESSAGES[..], &function::OF_RECORDER, &function::OF_FILTER].concat() {
            let is_there = object.functions.values().any(|function| object::is_named(&function.name, name));
            assert!(is_there, "no function {name}");
        }
        built.sort_unstable();
        named.sort_unstable();
        assert_eq!(built, named);
    }

    #[test]
    fn a_program_that_may_be_preempted_has_all_its_copies() {
        let of =
            |preempts| [Hook::Confirm, Hook::SockClosed, Hook::Delete].map(|hook| copies(hook, preempts));
        assert_eq!(of(false), [2, 1, 1]);
        assert_eq!(of(true), [3, 1, 1]);
    }
}
