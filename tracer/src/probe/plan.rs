//! The hook plan: what this kernel offers, hook by hook, before anything is attached.
//!
//! Decided from symbols, BTF signatures and fields; never from a version. What is missing is a named gap with
//! its cost, which `viptrace check --kernel` prints and verdicts respect.

use tracer_ebpf::Hook;

use super::{
    btf::Prototype,
    hooks::{Attach, HOOKS, HookSpec, Need, twin},
    layout::Layout,
};

/// What the plan asks of a kernel: the answers come from BTF and kallsyms, or from a test.
pub trait KernelFacts {
    /// Whether a function of exactly this name can be probed.
    fn has_symbol(&self, name: &str) -> bool;
    /// A function's signature, from vmlinux or module BTF; `None` where BTF does not have it.
    fn function(&self, name: &str) -> Option<Prototype>;
    /// A tracepoint's `TP_PROTO`, from BTF.
    fn tracepoint(&self, name: &str) -> Option<Prototype>;
    /// Whether a module is loaded or built in.
    fn has_module(&self, name: &str) -> bool;
    /// Whether kprobes exist and may be used.
    fn kprobes(&self) -> Result<(), String>;
    /// Where fentry and fexit find a function, or why they cannot be used for it.
    fn fentry(&self, name: &str) -> Result<FentryTarget, String> {
        Err(format!("nothing is known of fentry on {name}"))
    }
}

/// A function as fentry and fexit name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FentryTarget {
    /// The module whose BTF describes it; vmlinux's where there is none.
    pub module: Option<&'static str>,
    /// Its id in that BTF.
    pub function: u32,
}

/// How functions are to be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Tiers {
    /// Each by fentry where that is possible, else by kprobe.
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
    /// And why not by fentry.
    Kprobe(String),
    /// A tracepoint, which has one way only.
    Tracepoint,
}

/// Which hooks a trace asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum HookSet {
    /// Failures and `__nf_conntrack_confirm`: what an agent keeps running.
    Lean,
    /// Socket states and the end of entries besides.
    #[default]
    Full,
    /// Every decision as it is taken, for a trace of one target.
    Targeted,
}

impl HookSet {
    const fn asks_for(self, need: Need) -> bool {
        match need {
            Need::Essential | Need::Failure => true,
            Need::Full => matches!(self, Self::Full | Self::Targeted),
            Need::Targeted => matches!(self, Self::Targeted),
        }
    }
}

/// What becomes of one hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    Planned,
    /// This kernel does not need it (another hook sees the same), or this trace did not ask for it.
    NotNeeded(String),
    Missing(String),
}

/// One hook of [`HOOKS`] and what becomes of it.
#[derive(Clone, Debug)]
pub struct PlanLine {
    pub spec: &'static HookSpec,
    pub state: State,
    pub tier: Tier,
}

impl PlanLine {
    /// How the hook is attached, in a word.
    pub fn attach(&self) -> &'static str {
        match (&self.tier, twin(self.spec.hook)) {
            (Tier::Fentry(_), Some(twin)) => twin.as_str(),
            _ => self.spec.attach.as_str(),
        }
    }
}

/// The hooks of one trace on one kernel.
#[derive(Clone, Debug)]
pub struct HookPlan {
    lines: Vec<PlanLine>,
    kfree_reason: Option<usize>,
    send_reset_reason: Option<usize>,
}

impl HookPlan {
    pub fn new(set: HookSet, layout: &Layout, kernel: &impl KernelFacts) -> Self {
        Self::with_tiers(set, Tiers::Auto, layout, kernel)
    }

    /// The same with functions reached as `tiers` says.
    pub fn with_tiers(set: HookSet, tiers: Tiers, layout: &Layout, kernel: &impl KernelFacts) -> Self {
        let kfree_reason = position(kernel.tracepoint("kfree_skb").as_ref(), "reason");
        let send_reset_reason = position(kernel.tracepoint("tcp_send_reset").as_ref(), "reason");
        let lines = HOOKS
            .iter()
            .map(|spec| {
                let tier = tier(spec, tiers, kernel);
                let state = state(spec, set, layout, kernel, send_reset_reason.is_some(), (tiers, &tier));
                PlanLine { spec, state, tier }
            })
            .collect();
        Self { lines, kfree_reason, send_reset_reason }
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

    /// How the hook with this index is reached.
    pub fn tier(&self, index: usize) -> Option<&Tier> {
        self.lines.get(index).map(|line| &line.tier)
    }

    /// A hook that was planned turned out to be refused by the kernel.
    pub fn refuse(&mut self, index: usize, reason: String) {
        if let Some(line) = self.lines.get_mut(index) {
            line.state = State::Missing(reason);
        }
    }

    /// A function that fentry was planned for could be reached by a kprobe only.
    pub fn fall_back(&mut self, index: usize, reason: String) {
        if let Some(line) = self.lines.get_mut(index) {
            line.tier = Tier::Kprobe(reason);
        }
    }

    /// Leaves a hook out because the user says so.
    pub fn leave_out(&mut self, hook: Hook) {
        for line in self.lines.iter_mut().filter(|line| line.spec.hook == hook) {
            line.state = State::Missing("left out by --without-hook".to_owned());
        }
    }

    pub fn is_essential(&self, spec: &HookSpec) -> bool {
        spec.need == Need::Essential
    }

    /// The hooks that are missing, each with its reason: what verdicts must not rely on.
    pub fn gaps(&self) -> impl Iterator<Item = (&'static HookSpec, &str)> {
        self.lines.iter().filter_map(|line| match &line.state {
            State::Missing(reason) => Some((line.spec, reason.as_str())),
            State::Planned | State::NotNeeded(_) => None,
        })
    }

    /// Why tracing cannot run at all: an essential hook that is missing.
    pub fn fatal(&self) -> Option<(&'static HookSpec, &str)> {
        self.gaps().find(|(spec, _)| spec.need == Need::Essential)
    }

    /// Positions of arguments that move between kernels, as the kernel half's globals.
    pub(super) fn arguments(&self) -> [(&'static str, u32); 2] {
        let number = |position: Option<usize>| {
            position.and_then(|position| u32::try_from(position).ok()).unwrap_or(tracer_ebpf::MISSING)
        };
        [
            ("ARG_KFREE_REASON", number(self.kfree_reason)),
            ("ARG_SEND_RESET_REASON", number(self.send_reset_reason)),
        ]
    }
}

fn position(prototype: Option<&Prototype>, name: &str) -> Option<usize> {
    prototype?.position(name)
}

fn tier(spec: &HookSpec, tiers: Tiers, kernel: &impl KernelFacts) -> Tier {
    if spec.attach == Attach::RawTracepoint {
        return Tier::Tracepoint;
    }
    if tiers == Tiers::Kprobe {
        return Tier::Kprobe("kprobes were asked for".to_owned());
    }
    if twin(spec.hook).is_none() {
        return Tier::Kprobe("viptrace has no fentry program for it".to_owned());
    }
    kernel.fentry(spec.hook.symbol()).map_or_else(Tier::Kprobe, Tier::Fentry)
}

fn state(
    spec: &HookSpec,
    set: HookSet,
    layout: &Layout,
    kernel: &impl KernelFacts,
    send_reset_tells_all: bool,
    (tiers, tier): (Tiers, &Tier),
) -> State {
    if !set.asks_for(spec.need) {
        return State::NotNeeded(
            match spec.need {
                Need::Targeted => "only where a target narrows the trace",
                _ => "left out of a lean trace",
            }
            .to_owned(),
        );
    }
    // From 6.10 the tracepoint has a reason, and with it tells of RSTs without a full socket (kernel commit
    // "tcp: rstreason: let it work finally in tcp_send_reset()").
    if spec.hook == Hook::TcpV4SendReset && send_reset_tells_all {
        return State::NotNeeded("tcp:tcp_send_reset tells of these RSTs on this kernel".to_owned());
    }
    let missing: Vec<&str> = spec.fields.iter().filter(|field| !layout.has(field)).copied().collect();
    if !missing.is_empty() {
        return State::Missing(format!("this kernel's BTF lacks the fields {}", missing.join(", ")));
    }
    let symbol = spec.hook.symbol();
    let prototype = match spec.attach {
        Attach::RawTracepoint => match kernel.tracepoint(symbol) {
            Some(prototype) => Some(prototype),
            None => return State::Missing(format!("this kernel has no tracepoint {symbol}")),
        },
        Attach::Kprobe | Attach::KprobePair => {
            if let Tier::Kprobe(why) = tier {
                if tiers == Tiers::Fentry {
                    return State::Missing(why.clone());
                }
                if let Err(reason) = kernel.kprobes() {
                    return State::Missing(reason);
                }
            }
            if !kernel.has_symbol(symbol) {
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
            // A tracepoint's parameters may have other names, or none, but never another order up to here.
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
