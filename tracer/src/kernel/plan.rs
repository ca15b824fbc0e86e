//! The hook plan: what this kernel offers for each hook, before anything is attached.
//!
//! It follows from symbols, BTF signatures and fields, never from a version. A missing hook is a named gap with its
//! cost, which `viptrace check --kernel` prints and verdicts respect.

use tracer_ebpf::{Attach, Cookie, Hook, HookSpec, IPVS, Need};

use super::{btf::Prototype, layout::Layout};

/// The facts about a kernel that the plan needs. They come from BTF and kallsyms, or from a test.
pub trait KernelFacts {
    /// Whether a function of exactly this name can be probed.
    fn has_symbol(&self, name: &str) -> bool;
    /// Whether the compiler split this part off a hook's function ([`Attach::Entry::split_part`]).
    fn has_part(&self, _part: &str) -> bool {
        false
    }
    /// A function's signature, from vmlinux or module BTF; `None` where BTF does not have it.
    fn function(&self, name: &str) -> Option<Prototype>;
    /// A tracepoint's `TP_PROTO`, from BTF.
    fn tracepoint(&self, name: &str) -> Option<Prototype>;
    /// Whether a module is loaded or built in.
    fn has_module(&self, name: &str) -> bool;
    /// Whether kprobes exist and may be used.
    fn kprobes(&self) -> Result<(), String>;
    /// Whether IPVS tracks its connections in conntrack (`net.ipv4.vs.conntrack`); `None` if that is unknown.
    fn ipvs_conntrack(&self) -> Option<bool> {
        None
    }
    /// Whether kprobe.multi links exist (`CONFIG_FPROBE`, since 5.18).
    fn has_kprobe_multi(&self) -> bool {
        false
    }
    /// Whether it makes a kprobe.multi link by name in less time than a perf event, as 7.2 does and 6.12 does not.
    fn has_quick_links(&self) -> bool {
        false
    }
    /// Whether a program learns at which of several functions a perf event's kprobe runs it (`bpf_get_attach_cookie`, since
    /// 5.15). Links of kprobe.multi always tell.
    fn has_event_cookies(&self) -> bool {
        false
    }
    /// Whether a program learns at which of several tracepoints it runs (since 6.10).
    fn has_tracepoint_cookies(&self) -> bool {
        false
    }
    /// Whether the kernel counts the runs of kprobes' programs that it skips (since 6.7).
    fn counts_skipped_kprobes(&self) -> bool {
        true
    }
    /// Whether a program that fentry or a tracepoint runs may be preempted: the kernel then skips it for other events
    /// on its CPU.
    fn preempts_programs(&self) -> bool {
        false
    }
    /// Where a program finds the types of a tracepoint's arguments, or the reason why they are not known.
    fn typed_tracepoint(&self, name: &str) -> Result<FentryTarget, String> {
        Err(format!("whether BTF describes the tracepoint {name} is unknown"))
    }
    /// How a program says of which type an address is; `None` where the kernel has no such function (before 6.2).
    fn cast(&self) -> Option<Cast> {
        None
    }
    /// Where fentry and fexit find a function, or the reason why they cannot be used for it.
    fn fentry(&self, name: &str) -> Result<FentryTarget, String> {
        Err(format!("whether fentry reaches {name} is unknown"))
    }
}

/// A function, or a tracepoint's type, as programs with typed arguments identify it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FentryTarget {
    /// The module whose BTF describes it; `None` for vmlinux.
    pub module: Option<&'static str>,
    /// Its id in that BTF.
    pub function: u32,
}

/// The kernel's function that makes typed memory of an address (`bpf_rdonly_cast`), and a type for any memory: a structure with
/// an array of bytes, where the verifier accepts loads of any size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cast {
    /// The ids of both in vmlinux's BTF.
    pub function: u32,
    pub structure: u32,
    /// Where the array begins, and its length, bytes.
    pub from: u32,
    pub bytes: u32,
}

/// How functions are reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Tiers {
    /// Each by fentry where possible, otherwise by kprobe.
    #[default]
    Auto,
    /// By fentry only.
    Fentry,
    /// By kprobe only.
    Kprobe,
}

/// How one function is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tier {
    Fentry(FentryTarget),
    /// With the reason why not by fentry.
    Kprobe(String),
    /// A tracepoint or a program on demand has only one way.
    Fixed,
}

/// The hooks that a trace requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum HookSet {
    /// Failures, and ends without an answer: for a recorder, which keeps the decisions in the kernel until then.
    Failures,
    /// Failures and `__nf_conntrack_confirm`.
    Lean,
    /// Also socket states and the end of entries.
    #[default]
    Full,
    /// Also every decision as it is taken, for a trace of one target.
    Targeted,
}

impl HookSet {
    /// Its name in recordings.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Failures => "failures",
            Self::Lean => "lean",
            Self::Full => "full",
            Self::Targeted => "targeted",
        }
    }

    /// The set with this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        [Self::Failures, Self::Lean, Self::Full, Self::Targeted].into_iter().find(|set| set.name() == name)
    }

    const fn asks_for(self, hook: Hook, need: Need) -> bool {
        match need {
            Need::Full if matches!(hook, Hook::Delete) => !matches!(self, Self::Lean),
            Need::Essential | Need::Failure => true,
            Need::Full => matches!(self, Self::Full | Self::Targeted),
            Need::Targeted => matches!(self, Self::Targeted),
        }
    }
}

/// The state of one hook in the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    Planned,
    /// This kernel does not need it (another hook observes the same), or this trace did not request it.
    NotNeeded(String),
    Missing(String),
}

/// One hook and its state.
#[derive(Clone, Debug)]
pub struct PlanLine {
    pub spec: &'static HookSpec,
    pub state: State,
    pub tier: Tier,
    /// A kprobe.multi link reaches it, not a perf event.
    by_kprobe_multi: bool,
    /// The program that functions share reaches it.
    by_shared: bool,
    is_left_out: bool,
}

impl PlanLine {
    /// How the hook is attached, in a word.
    pub fn attach(&self) -> &'static str {
        if self.by_kprobe_multi {
            "kprobe.multi"
        } else if self.by_shared {
            "kprobe"
        } else {
            self.spec.attach.as_str(matches!(self.tier, Tier::Fentry(_)))
        }
    }
}

/// The links that this kernel has for kprobes.
#[derive(Clone, Copy, Debug)]
struct KprobeLinks {
    /// As [`KernelFacts::has_kprobe_multi`].
    are_multi: bool,
    /// As [`KernelFacts::has_quick_links`].
    are_quick: bool,
    /// As [`KernelFacts::counts_skipped_kprobes`].
    count_skipped: bool,
}

/// Which hooks may have one program together: those of an agent's failures.
#[derive(Clone, Copy, Debug)]
struct Shared {
    /// Kprobes may be used, and [`KernelFacts::has_event_cookies`].
    functions: bool,
    /// As [`KernelFacts::has_tracepoint_cookies`].
    tracepoints: bool,
}

/// The hooks of one trace on one kernel.
#[derive(Clone, Debug)]
pub struct HookPlan {
    set: HookSet,
    lines: Vec<PlanLine>,
    tiers: Tiers,
    preempts_programs: bool,
    kprobes: KprobeLinks,
    shared: Shared,
    /// The module without which an essential hook does not exist.
    awaited: Option<&'static str>,
    /// Parts of hooks' functions that only a kprobe could reach, where kprobes may not be used.
    out_of_reach: Vec<(Hook, &'static str)>,
    kfree_reason: Option<usize>,
    /// The functions that drop packets are known by their addresses.
    knows_sites: bool,
    send_reset_reason: Option<usize>,
    retransmit_error: Option<usize>,
    cast: Option<Cast>,
}

impl HookPlan {
    pub fn new(set: HookSet, layout: &Layout, kernel: &impl KernelFacts) -> Self {
        Self::with_tiers(set, Tiers::Auto, layout, kernel)
    }

    /// The same, with functions reached as `tiers` allows.
    pub fn with_tiers(set: HookSet, tiers: Tiers, layout: &Layout, kernel: &impl KernelFacts) -> Self {
        let kfree_reason = position(kernel.tracepoint("kfree_skb").as_ref(), "reason");
        let send_reset_reason = position(kernel.tracepoint("tcp_send_reset").as_ref(), "reason");
        let retransmit_error = position(kernel.tracepoint("tcp_retransmit_skb").as_ref(), "err");
        // Variadic: only BTF shows the position of the format, which was argument 2 before 5.14.
        let format_is_third = position(kernel.function(Hook::InvalidLog.symbol()).as_ref(), "fmt") == Some(3);
        let mut lines: Vec<PlanLine> = Hook::ALL
            .iter()
            .map(|hook| {
                let spec = hook.spec();
                let tier = tier(spec, tiers, kernel);
                let state = state(spec, set, layout, kernel, send_reset_reason.is_some(), (tiers, &tier));
                PlanLine { spec, state, tier, by_kprobe_multi: false, by_shared: false, is_left_out: false }
            })
            .collect();
        if !format_is_third
            && let Some(line) = lines.iter_mut().find(|line| line.spec.hook == Hook::InvalidLog)
            && line.state == State::Planned
        {
            line.state = State::Missing(
                "this kernel's BTF does not show that `fmt` is argument 3; before 5.14 it was another one"
                    .to_owned(),
            );
        }
        let parts = Hook::ALL.iter().filter_map(|hook| Some((*hook, hook.spec().attach.split_part()?)));
        let out_of_reach = match tiers {
            Tiers::Fentry => parts.filter(|(_, part)| kernel.has_part(part)).collect(),
            Tiers::Auto | Tiers::Kprobe => Vec::new(),
        };
        let preempts_programs = kernel.preempts_programs();
        let is_awaited =
            |line: &&PlanLine| line.spec.need == Need::Essential && matches!(line.state, State::Missing(_));
        let mut awaited = lines.iter().filter(is_awaited).filter_map(|line| line.spec.module);
        let awaited = awaited.find(|module| !kernel.has_module(module));
        let knows_sites = !layout.drop_sites().is_empty();
        Self {
            set,
            lines,
            tiers,
            preempts_programs,
            kprobes: KprobeLinks {
                are_multi: kernel.has_kprobe_multi(),
                are_quick: kernel.has_quick_links(),
                count_skipped: kernel.counts_skipped_kprobes(),
            },
            shared: Shared {
                functions: tiers != Tiers::Fentry && kernel.kprobes().is_ok() && kernel.has_event_cookies(),
                tracepoints: kernel.has_tracepoint_cookies(),
            },
            awaited,
            out_of_reach,
            kfree_reason,
            knows_sites,
            send_reset_reason,
            retransmit_error,
            cast: kernel.cast(),
        }
    }

    pub(crate) const fn set(&self) -> HookSet {
        self.set
    }

    pub fn lines(&self) -> &[PlanLine] {
        &self.lines
    }

    /// The hooks to attach, with their index in [`Self::lines`].
    pub fn planned(&self) -> impl Iterator<Item = (usize, &'static HookSpec)> {
        self.lines
            .iter()
            .enumerate()
            .filter(|(_, line)| line.state == State::Planned)
            .map(|(index, line)| (index, line.spec))
    }

    /// Whether functions may be reached by a kprobe.
    pub fn may_use_kprobes(&self) -> bool {
        self.tiers != Tiers::Fentry
    }

    /// As [`KernelFacts::preempts_programs`].
    pub fn preempts_programs(&self) -> bool {
        self.preempts_programs
    }

    /// As [`KernelFacts::cast`].
    pub fn cast(&self) -> Option<Cast> {
        self.cast
    }

    /// As [`KernelFacts::has_kprobe_multi`].
    pub fn has_kprobe_multi(&self) -> bool {
        self.kprobes.are_multi
    }

    /// As [`KernelFacts::has_quick_links`].
    pub fn has_quick_links(&self) -> bool {
        self.kprobes.are_quick
    }

    /// The functions that one program is to reach, with their index in [`Self::lines`]: those of an agent that only kprobes
    /// are to reach. Each program of their own would have the recorder's decision, and the verifier walks through it each time.
    /// Those that fentry reaches keep their own: the kernel skips a kprobe also while a process reads or writes a map on that
    /// CPU (`bpf_disable_instrumentation`), as an agent does in a storm.
    pub fn shared(&self) -> impl Iterator<Item = (usize, &'static HookSpec, Cookie)> {
        let is_wanted = self.set == HookSet::Failures && self.shared.functions;
        let planned = self
            .planned()
            .filter(move |(index, _)| is_wanted && matches!(self.tier(*index), Some(Tier::Kprobe(_))));
        let shared: Vec<_> =
            planned.filter_map(|(index, spec)| Some((index, spec, spec.attach.cookie()?))).collect();
        // One alone gains nothing, and keeps its own program, whose skipped runs are known to be its own.
        let shared = if shared.len() > 1 { shared } else { Vec::new() };
        shared.into_iter()
    }

    /// Whether the tracepoints that only failures meet have one program, as [`Self::shared`] has. The kernel skips it for one of
    /// them while it runs for another one on that CPU: only where a skipped run is no loss of the flows of its moment anyway.
    pub fn shares_tracepoints(&self) -> bool {
        self.set == HookSet::Failures && self.shared.tracepoints && self.preempts_programs
    }

    /// How the hook with this index is reached.
    pub fn tier(&self, index: usize) -> Option<&Tier> {
        self.lines.get(index).map(|line| &line.tier)
    }

    /// The module of a hook was unloaded. As at the start, no rule refuses packets without the modules that do so: their hooks
    /// are no gap.
    pub fn unload(&mut self, index: usize) {
        if let Some(line) = self.lines.get_mut(index)
            && let Some(module) = line.spec.module
        {
            let reason = format!("the module {module} was unloaded");
            line.state = match refusing(line.spec) {
                Some(_) => State::NotNeeded(reason),
                None => State::Missing(reason),
            };
        }
    }

    /// The kernel refused a planned hook.
    pub fn refuse(&mut self, index: usize, reason: String) {
        if let Some(line) = self.lines.get_mut(index) {
            line.state = State::Missing(reason);
        }
    }

    /// Only a kprobe could reach a function that was planned for fentry.
    pub fn fall_back(&mut self, index: usize, reason: String) {
        if let Some(line) = self.lines.get_mut(index) {
            line.tier = Tier::Kprobe(reason);
        }
    }

    /// A kprobe.multi link reached a function.
    pub(crate) fn reached_by_kprobe_multi(&mut self, index: usize) {
        if let Some(line) = self.lines.get_mut(index) {
            line.by_kprobe_multi = true;
        }
    }

    /// The program that functions share reached one.
    pub(crate) fn reached_by_shared(&mut self, index: usize) {
        if let Some(line) = self.lines.get_mut(index) {
            line.by_shared = true;
        }
    }

    /// The same trace's plan on the kernel as it is now, after a module was loaded.
    pub(super) fn again(&self, layout: &Layout, kernel: &impl KernelFacts) -> Self {
        Self::with_tiers(self.set, self.tiers, layout, kernel)
    }

    /// The hooks of this module that `later` plans and this plan does not, with their index in [`Self::lines`]: those that
    /// can be attached now. Not those that the user left out.
    pub(super) fn come_with(&self, module: &str, later: &Self) -> Vec<usize> {
        let lines = self.lines.iter().zip(&later.lines).enumerate();
        let come = lines.filter(|(_, (line, later))| {
            line.spec.module == Some(module)
                && line.state != State::Planned
                && later.state == State::Planned
                && !line.is_left_out
        });
        come.map(|(index, _)| index).collect()
    }

    /// Takes over the line of a later plan.
    pub(super) fn replace(&mut self, index: usize, later: &Self) {
        if let (Some(line), Some(later)) = (self.lines.get_mut(index), later.lines.get(index)) {
            *line = later.clone();
        }
    }

    /// Leaves a hook out at the user's request.
    pub fn leave_out(&mut self, hook: Hook) {
        for line in self.lines.iter_mut().filter(|line| line.spec.hook == hook) {
            line.state = State::Missing("left out by --without-hook".to_owned());
            line.is_left_out = true;
        }
    }

    pub fn is_essential(&self, spec: &HookSpec) -> bool {
        spec.need == Need::Essential
    }

    /// The missing hooks, each with its reason: verdicts must not rely on them.
    pub fn gaps(&self) -> impl Iterator<Item = (&'static HookSpec, &str)> {
        self.lines.iter().filter_map(|line| match &line.state {
            State::Missing(reason) => Some((line.spec, reason.as_str())),
            State::Planned | State::NotNeeded(_) => None,
        })
    }

    /// The events that planned hooks cannot report on this kernel, and the cost.
    pub fn limits(&self) -> Vec<String> {
        let planned = |hook| self.planned().any(|(_, spec)| spec.hook == hook);
        let mut limits = Vec::new();
        if self.kfree_reason.is_none() && planned(Hook::KfreeSkb) {
            let cost = if self.knows_sites {
                "the function that dropped a packet stands for one, and drops of established connections are observed in \
                 a few functions only"
            } else {
                "/proc/kallsyms shows no addresses (kernel.kptr_restrict), so which rule or fault dropped a packet is \
                 unknown, and drops of established connections are not observed"
            };
            limits.push(format!("kfree_skb gives no reason on this kernel (it does since 5.17): {cost}"));
        }
        if self.send_reset_reason.is_none() && planned(Hook::TcpSendReset) {
            limits.push(
                "tcp_send_reset gives no reason on this kernel (it does since 6.10): the sender of a RST is known, its \
                 reason is not"
                    .to_owned(),
            );
        }
        let by_kprobe = |line: &&PlanLine| {
            line.state == State::Planned && (line.by_shared || matches!(line.tier, Tier::Kprobe(_)))
        };
        let uncounted: Vec<&str> = self.lines.iter().filter(by_kprobe).map(|line| line.spec.symbol).collect();
        if !self.kprobes.count_skipped && !uncounted.is_empty() {
            limits.push(format!(
                "the kernel may skip a kprobe while another one runs on that CPU, and does not count it (it does since \
                 6.7): an event may be missing silently at {}",
                uncounted.join(", ")
            ));
        }
        for (hook, part) in self.out_of_reach.iter().filter(|(hook, _)| planned(*hook)) {
            limits.push(format!(
                "{}: on this kernel, callers in its own module enter {part} instead, which only a kprobe reaches: \
                 their calls are not observed",
                hook.symbol()
            ));
        }
        limits
    }

    /// The missing essential hook without which tracing cannot run at all.
    pub fn fatal(&self) -> Option<(&'static HookSpec, &str)> {
        self.gaps().find(|(spec, _)| spec.need == Need::Essential)
    }

    /// The module that is not loaded and without which tracing cannot run: the first rule that needs it loads it.
    pub fn awaited_module(&self) -> Option<&'static str> {
        self.awaited
    }

    /// Positions of arguments that move between kernels, as the kernel half's globals.
    pub(super) fn arguments(&self) -> [(&'static str, u32); 3] {
        let number = |position: Option<usize>| {
            position.and_then(|position| u32::try_from(position).ok()).unwrap_or(tracer_ebpf::MISSING)
        };
        [
            ("ARG_KFREE_REASON", number(self.kfree_reason)),
            ("ARG_SEND_RESET_REASON", number(self.send_reset_reason)),
            ("ARG_RETRANSMIT_ERROR", number(self.retransmit_error)),
        ]
    }
}

fn position(prototype: Option<&Prototype>, name: &str) -> Option<usize> {
    prototype?.position(name)
}

/// The module of a hook that is loaded with the first rule that refuses packets of a family, and this family. Most nodes
/// have such rules of one family at the most.
fn refusing(spec: &HookSpec) -> Option<(&'static str, &'static str)> {
    match spec.module {
        Some(module @ "nf_reject_ipv4") => Some((module, "IPv4")),
        Some(module @ "nf_reject_ipv6") => Some((module, "IPv6")),
        _ => None,
    }
}

fn tier(spec: &HookSpec, tiers: Tiers, kernel: &impl KernelFacts) -> Tier {
    let is_alone = match spec.attach {
        Attach::Entry { fentry: None, .. } => {
            return Tier::Kprobe("fentry refuses functions with a variable number of arguments".to_owned());
        }
        Attach::Entry { fentry: Some(copies), .. } => copies.programs.len() == 1,
        // Only fexit gives an exit its function's arguments: a kprobe and a kretprobe lose each other when a task
        // moves.
        Attach::Return { .. } => false,
        Attach::TypedTracepoint { .. } if tiers != Tiers::Kprobe => {
            return kernel.typed_tracepoint(spec.symbol).map_or(Tier::Fixed, Tier::Fentry);
        }
        Attach::TypedTracepoint { .. } | Attach::RawTracepoint(_) | Attach::OnDemand(_) => {
            return Tier::Fixed;
        }
    };
    if tiers == Tiers::Kprobe {
        return Tier::Kprobe("kprobes were requested".to_owned());
    }
    if tiers == Tiers::Auto && is_alone && kernel.preempts_programs() && kernel.kprobes().is_ok() {
        return Tier::Kprobe(
            "this kernel preempts the programs of fentry, but not those of kprobes".to_owned(),
        );
    }
    kernel.fentry(spec.symbol).map_or_else(Tier::Kprobe, Tier::Fentry)
}

fn state(
    spec: &HookSpec,
    set: HookSet,
    layout: &Layout,
    kernel: &impl KernelFacts,
    send_reset_reports_all: bool,
    (tiers, tier): (Tiers, &Tier),
) -> State {
    let only_source = spec.hook == Hook::IpVsConnNew && kernel.ipvs_conntrack() == Some(false);
    if !set.asks_for(spec.hook, spec.need) && !only_source {
        return State::NotNeeded(
            match spec.need {
                Need::Targeted => "only where a target narrows the trace",
                _ => "left out of a lean trace",
            }
            .to_owned(),
        );
    }
    if spec.module == Some(IPVS) && !kernel.has_module(IPVS) && !kernel.has_symbol(spec.symbol) {
        return State::NotNeeded("the module ip_vs is not loaded: there is no virtual server".to_owned());
    }
    // The confirmed entry's reply tuple has the same information, and masquerading as well.
    if spec.hook == Hook::IpVsConnNew && set != HookSet::Targeted && kernel.ipvs_conntrack() == Some(true) {
        return State::NotNeeded(
            "IPVS tracks its connections in conntrack: the confirmed entry names the endpoint".to_owned(),
        );
    }
    // From 6.10 the tracepoint has a reason, and with it reports RSTs without a full socket (kernel commit
    // "tcp: rstreason: let it work finally in tcp_send_reset()").
    if matches!(spec.hook, Hook::TcpV4SendReset | Hook::TcpV6SendReset) && send_reset_reports_all {
        return State::NotNeeded("tcp:tcp_send_reset reports these RSTs on this kernel".to_owned());
    }
    let fields = spec.fields.iter().copied().flatten();
    let missing: Vec<&str> = fields.filter(|field| !layout.has(field)).copied().collect();
    if !missing.is_empty() {
        return State::Missing(format!("this kernel's BTF lacks the fields {}", missing.join(", ")));
    }
    let symbol = spec.symbol;
    let prototype = match spec.attach {
        Attach::RawTracepoint(_) | Attach::TypedTracepoint { .. } => match kernel.tracepoint(symbol) {
            Some(prototype) => Some(prototype),
            None => return State::Missing(format!("this kernel has no tracepoint {symbol}")),
        },
        // Only an attempt shows whether the kernel can run a program on demand.
        Attach::OnDemand(_) => None,
        Attach::Entry { .. } | Attach::Return { .. } => {
            if let Tier::Kprobe(why) = tier {
                if tiers == Tiers::Fentry {
                    return State::Missing(why.clone());
                }
                if let Err(reason) = kernel.kprobes() {
                    return State::Missing(reason);
                }
            }
            if !kernel.has_symbol(symbol) {
                if let Some((module, family)) = refusing(spec)
                    && !kernel.has_module(module)
                {
                    let reason =
                        format!("the module {module} is not loaded: no rule refuses {family} on this node");
                    return State::NotNeeded(reason);
                }
                return State::Missing(match spec.module {
                    Some(module) if !kernel.has_module(module) => {
                        format!("the module {module} is not loaded: no rule that would use it exists yet")
                    }
                    _ => format!("this kernel has no function {symbol} (renamed, inlined or left out)"),
                });
            }
            kernel.function(symbol)
        }
    };
    if let Some(prototype) = prototype {
        for (name, expected) in spec.arguments {
            // A tracepoint's parameters may have other names, or none, but the order up to here never changes.
            if let Some(found) = prototype.position(name)
                && found != *expected
            {
                return State::Missing(format!(
                    "{symbol} takes `{name}` as argument {found} here, where {expected} was expected"
                ));
            }
        }
    }
    State::Planned
}
