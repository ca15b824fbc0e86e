//! The hook plan for hand-made kernels: attached and missing hooks, and the consequences.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use tracer_ebpf::Attach;
use viptrace::{
    kernel::{
        btf::{Parameter, Prototype},
        layout::{FIELDS, Layout},
        plan::{FentryTarget, HookPlan, HookSet, KernelFacts, State, Tier, Tiers},
    },
    sighting::Hook,
};

/// A kernel that has everything. Tests remove parts of it.
struct Kernel {
    symbols: HashSet<&'static str>,
    functions: HashMap<&'static str, Prototype>,
    tracepoints: HashMap<&'static str, Prototype>,
    modules: HashSet<&'static str>,
    kprobes: Result<(), String>,
    /// The functions and tracepoints whose arguments' types are known.
    fentry: HashMap<&'static str, FentryTarget>,
    preempts: bool,
    counts_skipped_kprobes: bool,
    has_cookies: bool,
}

fn prototype(names: &[&str]) -> Prototype {
    let parameter = |name: &&str| Parameter { name: Some((*name).to_owned()), type_name: "long".into() };
    Prototype { parameters: names.iter().map(parameter).collect(), returns: "int".into() }
}

impl Kernel {
    fn whole() -> Self {
        let of = |wanted: fn(Attach) -> bool| {
            Hook::ALL.iter().filter(move |hook| wanted(hook.spec().attach)).map(|hook| hook.symbol())
        };
        let traced = |attach| matches!(attach, Attach::RawTracepoint(_));
        let mut tracepoints: HashMap<_, _> =
            of(traced).map(|symbol| (symbol, prototype(&["sk", "oldstate", "newstate"]))).collect();
        tracepoints.insert("kfree_skb", prototype(&["skb", "location", "reason"]));
        tracepoints.insert("tcp_send_reset", prototype(&["sk", "skb"]));
        Self {
            symbols: of(|attach| !matches!(attach, Attach::RawTracepoint(_))).collect(),
            functions: HashMap::from([(
                Hook::InvalidLog.symbol(),
                prototype(&["skb", "ct", "state", "fmt"]),
            )]),
            tracepoints,
            modules: Hook::ALL.iter().filter_map(|hook| hook.spec().module).collect(),
            kprobes: Ok(()),
            fentry: HashMap::new(),
            preempts: false,
            counts_skipped_kprobes: true,
            has_cookies: true,
        }
    }

    fn plan(&self, set: HookSet) -> HookPlan {
        HookPlan::new(set, &whole_layout(), self)
    }
}

impl KernelFacts for Kernel {
    fn has_symbol(&self, name: &str) -> bool {
        self.symbols.contains(name)
    }
    fn has_part(&self, part: &str) -> bool {
        self.has_symbol(part)
    }
    fn function(&self, name: &str) -> Option<Prototype> {
        self.functions.get(name).cloned()
    }
    fn tracepoint(&self, name: &str) -> Option<Prototype> {
        self.tracepoints.get(name).cloned()
    }
    fn has_module(&self, name: &str) -> bool {
        self.modules.contains(name)
    }
    fn kprobes(&self) -> Result<(), String> {
        self.kprobes.clone()
    }
    fn preempts_programs(&self) -> bool {
        self.preempts
    }
    fn has_event_cookies(&self) -> bool {
        self.has_cookies
    }
    fn has_tracepoint_cookies(&self) -> bool {
        self.has_cookies
    }
    fn counts_skipped_kprobes(&self) -> bool {
        self.counts_skipped_kprobes
    }
    fn typed_tracepoint(&self, name: &str) -> Result<FentryTarget, String> {
        self.fentry(name)
    }
    fn fentry(&self, name: &str) -> Result<FentryTarget, String> {
        self.fentry.get(name).copied().ok_or_else(|| "the module has no BTF here".to_owned())
    }
}

fn whole_layout() -> Layout {
    Layout::from_parts(FIELDS.iter().map(|field| (field.name, 8)), [(7, Arc::from("NETFILTER_DROP"))], [])
}

fn state(plan: &HookPlan, hook: Hook) -> State {
    plan.lines().iter().find(|line| line.spec.hook == hook).unwrap().state.clone()
}

fn missing(plan: &HookPlan, hook: Hook) -> String {
    match state(plan, hook) {
        State::Missing(reason) => reason,
        other => format!("{other:?}"),
    }
}

#[test]
fn a_part_that_the_compiler_split_off_is_out_of_fentrys_reach_alone() {
    let mut kernel = Kernel::whole();
    kernel.fentry.insert(Hook::Delete.symbol(), FentryTarget { module: None, function: 1 });
    let limits = |kernel: &Kernel, tiers| {
        let plan = HookPlan::with_tiers(HookSet::Full, tiers, &whole_layout(), kernel);
        plan.limits().iter().filter(|limit| limit.contains("nf_ct_delete.part.0")).count()
    };
    assert_eq!(limits(&kernel, Tiers::Fentry), 0);
    kernel.symbols.insert("nf_ct_delete.part.0");
    let told = [Tiers::Auto, Tiers::Fentry, Tiers::Kprobe].map(|tiers| limits(&kernel, tiers));
    assert_eq!(told, [0, 1, 0]);
}

#[test]
fn a_tracepoint_is_read_with_types_where_they_are_known() {
    let mut kernel = Kernel::whole();
    let ways = |kernel: &Kernel| {
        [Tiers::Auto, Tiers::Fentry, Tiers::Kprobe].map(|tiers| {
            let plan = HookPlan::with_tiers(HookSet::Failures, tiers, &whole_layout(), kernel);
            plan.lines().iter().find(|line| line.spec.hook == Hook::KfreeSkb).unwrap().attach()
        })
    };
    assert_eq!(ways(&kernel), ["raw tracepoint"; 3]);
    kernel.fentry.insert(Hook::KfreeSkb.symbol(), FentryTarget { module: None, function: 1 });
    assert_eq!(ways(&kernel), ["typed tracepoint", "typed tracepoint", "raw tracepoint"]);
}

#[test]
fn a_lean_trace_leaves_out_what_healthy_connections_meet() {
    let kernel = Kernel::whole();
    let planned = |set| kernel.plan(set).planned().map(|(_, spec)| spec.hook).collect::<HashSet<_>>();
    let (lean, full, targeted) = (planned(HookSet::Lean), planned(HookSet::Full), planned(HookSet::Targeted));
    assert!(
        lean.contains(&Hook::Confirm) && !lean.contains(&Hook::SockClosed) && !lean.contains(&Hook::Delete)
    );
    assert!(full.contains(&Hook::SockClosed) && !full.contains(&Hook::NatSetup));
    assert_eq!(targeted.len(), Hook::ALL.len());
    assert!(lean.is_subset(&full) && full.is_subset(&targeted));
    assert!(kernel.plan(HookSet::Full).fatal().is_none());
}

#[test]
fn a_module_that_is_not_loaded_is_named_and_costs_its_hook_only() {
    let mut kernel = Kernel::whole();
    kernel.modules.remove("nf_nat");
    kernel.symbols.remove("nf_nat_icmp_reply_translation");
    let plan = kernel.plan(HookSet::Full);
    assert!(missing(&plan, Hook::IcmpError).contains("nf_nat is not loaded"));
    assert_eq!(plan.gaps().count(), 1);
    assert!(plan.fatal().is_none());
}

/// A node without a rule that refuses packets is healthy: its kernel has no such function, and nothing is missed.
#[test]
fn without_a_rule_that_refuses_packets_its_hooks_are_no_gap() {
    for (module, symbols, hook) in [
        ("nf_reject_ipv4", ["nf_send_unreach", "nf_send_reset"], Hook::SendUnreach),
        ("nf_reject_ipv6", ["nf_send_unreach6", "nf_send_reset6"], Hook::SendUnreach6),
    ] {
        let mut kernel = Kernel::whole();
        kernel.modules.remove(module);
        for symbol in symbols {
            kernel.symbols.remove(symbol);
        }
        let plan = kernel.plan(HookSet::Failures);
        let State::NotNeeded(reason) = state(&plan, hook) else { panic!("{:?}", state(&plan, hook)) };
        assert!(reason.contains(&format!("{module} is not loaded: no rule refuses IPv")), "{reason}");
        assert_eq!(plan.gaps().count(), 0);
        // Loaded, but without the functions: that is a gap.
        kernel.modules.insert(module);
        assert_eq!(kernel.plan(HookSet::Failures).gaps().count(), 2);
    }
}

#[test]
fn a_hook_whose_module_was_unloaded_is_a_gap_only_if_rules_may_still_need_it() {
    let mut plan = Kernel::whole().plan(HookSet::Failures);
    let index = |hook: Hook| Hook::ALL.iter().position(|it| *it == hook).unwrap();
    plan.unload(index(Hook::NfSendReset));
    assert_eq!(
        state(&plan, Hook::NfSendReset),
        State::NotNeeded("the module nf_reject_ipv4 was unloaded".to_owned())
    );
    plan.unload(index(Hook::IcmpError));
    assert_eq!(missing(&plan, Hook::IcmpError), "the module nf_nat was unloaded");
}

#[test]
fn without_the_essential_hook_nothing_can_be_traced() {
    let mut kernel = Kernel::whole();
    kernel.symbols.remove("__nf_conntrack_confirm");
    let plan = kernel.plan(HookSet::Lean);
    let (spec, reason) = plan.fatal().unwrap();
    assert_eq!(spec.hook, Hook::Confirm);
    assert!(reason.contains("no function __nf_conntrack_confirm"), "{reason}");
    kernel.kprobes = Err("kprobes are off".to_owned());
    assert_eq!(kernel.plan(HookSet::Lean).fatal().unwrap().1, "kprobes are off");
}

#[test]
fn an_argument_in_another_place_is_not_read() {
    let mut kernel = Kernel::whole();
    kernel.functions.insert("nf_send_reset", prototype(&["net", "oldskb", "hook"]));
    let reason = missing(&kernel.plan(HookSet::Full), Hook::NfSendReset);
    assert!(reason.contains("takes `oldskb` as argument 1 here, where 2 was expected"), "{reason}");
}

#[test]
fn a_field_that_the_kernel_lacks_is_named() {
    let layout = Layout::from_parts(
        FIELDS.iter().filter(|field| field.name != "OFF_SKB_NFCT").map(|field| (field.name, 8)),
        [],
        [],
    );
    let plan = HookPlan::new(HookSet::Full, &layout, &Kernel::whole());
    assert!(missing(&plan, Hook::Confirm).contains("OFF_SKB_NFCT"));
    assert_eq!(state(&plan, Hook::SockClosed), State::Planned);
}

/// `tcp_send_reset` has a reason from 6.10 on, and then tells of every RST.
#[test]
fn where_the_tracepoint_tells_all_the_function_is_not_needed() {
    let mut kernel = Kernel::whole();
    assert_eq!(state(&kernel.plan(HookSet::Full), Hook::TcpV4SendReset), State::Planned);
    kernel.tracepoints.insert("tcp_send_reset", prototype(&["sk", "skb__nullable", "reason"]));
    let plan = kernel.plan(HookSet::Full);
    assert!(matches!(state(&plan, Hook::TcpV4SendReset), State::NotNeeded(_)));
    assert_eq!(plan.gaps().count(), 0);
}

#[test]
fn a_hook_that_the_user_or_the_kernel_refuses_is_a_gap() {
    let mut plan = Kernel::whole().plan(HookSet::Full);
    plan.leave_out(Hook::KfreeSkb);
    let (index, _) = plan.planned().find(|(_, spec)| spec.hook == Hook::EarlyDrop).unwrap();
    plan.refuse(index, "EPERM".to_owned());
    assert!(plan.planned().all(|(_, spec)| !matches!(spec.hook, Hook::KfreeSkb | Hook::EarlyDrop)));
    let gaps: HashSet<_> = plan.gaps().map(|(spec, _)| spec.hook).collect();
    assert_eq!(gaps, HashSet::from([Hook::KfreeSkb, Hook::EarlyDrop]));
    assert!(plan.fatal().is_none());
}

const CONFIRM: FentryTarget = FentryTarget { module: Some("nf_conntrack"), function: 7 };

fn tier(plan: &HookPlan, hook: Hook) -> Tier {
    plan.lines().iter().find(|line| line.spec.hook == hook).unwrap().tier.clone()
}

/// A program without copies is better off where it is not preempted.
#[test]
fn programs_at_an_entry_have_copies_or_a_kprobe_where_fentry_preempts_them() {
    let mut kernel = Kernel::whole();
    let target = |function| FentryTarget { module: Some("nf_conntrack"), function };
    let functions = [("__nf_conntrack_confirm", 7), ("nf_ct_delete", 8), ("early_drop", 9)];
    kernel.fentry = functions.map(|(name, function)| (name, target(function))).into();
    kernel.preempts = true;
    let plan = kernel.plan(HookSet::Full);
    assert_eq!(tier(&plan, Hook::Confirm), Tier::Fentry(target(7)));
    assert_eq!(tier(&plan, Hook::EarlyDrop), Tier::Fentry(target(9)));
    assert!(matches!(tier(&plan, Hook::Delete), Tier::Kprobe(why) if why.contains("preempts")));
    let forced = HookPlan::with_tiers(HookSet::Full, Tiers::Fentry, &whole_layout(), &kernel);
    assert_eq!(tier(&forced, Hook::Delete), Tier::Fentry(target(8)));
    kernel.kprobes = Err("no kprobes here".to_owned());
    assert_eq!(tier(&kernel.plan(HookSet::Full), Hook::Delete), Tier::Fentry(target(8)));
}

#[test]
fn a_function_is_reached_by_fentry_where_the_kernel_describes_it() {
    let mut kernel = Kernel::whole();
    kernel.fentry.insert("__nf_conntrack_confirm", CONFIRM);
    let plan = kernel.plan(HookSet::Full);
    assert_eq!(tier(&plan, Hook::Confirm), Tier::Fentry(CONFIRM));
    assert_eq!(tier(&plan, Hook::Delete), Tier::Kprobe("the module has no BTF here".to_owned()));
    assert_eq!([Hook::KfreeSkb, Hook::EntryReread].map(|hook| tier(&plan, hook)), [Tier::Fixed, Tier::Fixed]);
    let why = "fentry refuses functions with a variable number of arguments";
    assert_eq!(tier(&plan, Hook::InvalidLog), Tier::Kprobe(why.to_owned()));
    assert_eq!(plan.gaps().count(), 0);
    let attach = |hook| plan.lines().iter().find(|line| line.spec.hook == hook).unwrap().attach();
    assert_eq!([attach(Hook::Confirm), attach(Hook::Delete)], ["fentry", "kprobe"]);
}

#[test]
fn one_tier_can_be_forced() {
    let mut kernel = Kernel::whole();
    kernel.fentry.insert("__nf_conntrack_confirm", CONFIRM);
    let plan = |tiers| HookPlan::with_tiers(HookSet::Full, tiers, &whole_layout(), &kernel);
    let by_kprobe = plan(Tiers::Kprobe);
    assert!(matches!(tier(&by_kprobe, Hook::Confirm), Tier::Kprobe(_)));
    assert_eq!(by_kprobe.gaps().count(), 0);
    let by_fentry = plan(Tiers::Fentry);
    assert_eq!(state(&by_fentry, Hook::Confirm), State::Planned);
    assert_eq!(missing(&by_fentry, Hook::Delete), "the module has no BTF here");
    assert_eq!(state(&by_fentry, Hook::TcpRetransmit), State::Planned, "a tracepoint has one way only");
}

#[test]
fn fentry_needs_no_kprobes() {
    let mut kernel = Kernel::whole();
    kernel.kprobes = Err("kprobes are off".to_owned());
    kernel.fentry.insert("__nf_conntrack_confirm", CONFIRM);
    let plan = kernel.plan(HookSet::Full);
    assert!(plan.fatal().is_none());
    assert_eq!(missing(&plan, Hook::Delete), "kprobes are off");
}

#[test]
fn what_fentry_was_refused_a_kprobe_does() {
    let mut kernel = Kernel::whole();
    kernel.fentry.insert("__nf_conntrack_confirm", CONFIRM);
    let mut plan = kernel.plan(HookSet::Full);
    let (index, _) = plan.planned().find(|(_, spec)| spec.hook == Hook::Confirm).unwrap();
    plan.fall_back(index, "EPERM".to_owned());
    assert_eq!(tier(&plan, Hook::Confirm), Tier::Kprobe("EPERM".to_owned()));
    assert_eq!(state(&plan, Hook::Confirm), State::Planned);
}

/// A fact that the kernel does not provide is a gap, and only where a hook needs it.
#[test]
fn a_kernel_without_drop_reasons_says_so() {
    let mut kernel = Kernel::whole();
    kernel.tracepoints.insert("kfree_skb", prototype(&["skb", "location"]));
    kernel.tracepoints.insert("tcp_send_reset", prototype(&["sk", "skb", "reason"]));
    let mut plan = kernel.plan(HookSet::Full);
    let limits = plan.limits();
    assert!(limits.len() == 1 && limits[0].contains("kfree_skb gives no reason"), "{limits:?}");
    plan.leave_out(Hook::KfreeSkb);
    assert!(plan.limits().is_empty());
}

/// Before 6.7 nobody knows how many events a kprobe missed.
#[test]
fn skipped_kprobes_that_are_not_counted_are_a_limit() {
    let mut kernel = Kernel::whole();
    kernel.fentry.insert("__nf_conntrack_confirm", CONFIRM);
    let told = |kernel: &Kernel| {
        let limits = kernel.plan(HookSet::Full).limits();
        limits.into_iter().find(|limit| limit.contains("does not count it"))
    };
    assert_eq!(told(&kernel), None);
    kernel.counts_skipped_kprobes = false;
    let limit = told(&kernel).unwrap();
    assert!(limit.contains("nf_ct_delete") && !limit.contains("__nf_conntrack_confirm"), "{limit}");
}

#[test]
fn a_plan_names_the_module_that_the_first_rule_loads() {
    let awaited = |kernel: &Kernel| kernel.plan(HookSet::Failures).awaited_module();
    let mut kernel = Kernel::whole();
    assert_eq!(awaited(&kernel), None);
    // As on a node that has just started.
    for module in ["nf_conntrack", "nf_nat"] {
        kernel.modules.remove(module);
    }
    kernel.symbols.retain(|symbol| *symbol != Hook::Confirm.symbol());
    assert_eq!(awaited(&kernel), Some("nf_conntrack"));
    // With it loaded, a function that is missing does not come.
    kernel.modules.insert("nf_conntrack");
    assert_eq!(awaited(&kernel), None);
    assert!(kernel.plan(HookSet::Failures).fatal().is_some());
}

/// Its program has the recorder's decision, which the verifier walks through for each program that has it.
#[test]
fn failing_functions_share_a_program_where_it_can_tell_them_apart() {
    let shared = |kernel: &Kernel, set, tiers| -> Vec<Hook> {
        let plan = HookPlan::with_tiers(set, tiers, &whole_layout(), kernel);
        plan.shared().map(|(_, spec, _)| spec.hook).collect()
    };
    let mut kernel = Kernel::whole();
    let all = shared(&kernel, HookSet::Failures, Tiers::Auto);
    for hook in [Hook::SendUnreach, Hook::KillAcct, Hook::InvalidLog, Hook::TcpV4SendReset] {
        assert!(all.contains(&hook), "{hook:?}");
    }
    // Healthy connections meet these.
    for hook in [Hook::Confirm, Hook::KfreeSkb] {
        assert!(!all.contains(&hook), "{hook:?}");
    }
    assert_eq!(shared(&kernel, HookSet::Failures, Tiers::Kprobe), all);
    // What fentry reaches has a program of its own, unless the kernel preempts it.
    kernel.fentry.insert("nf_send_unreach", FentryTarget { module: Some("nf_reject_ipv4"), function: 7 });
    assert!(!shared(&kernel, HookSet::Failures, Tiers::Auto).contains(&Hook::SendUnreach));
    assert_eq!(shared(&kernel, HookSet::Failures, Tiers::Kprobe), all);
    kernel.preempts = true;
    assert_eq!(shared(&kernel, HookSet::Failures, Tiers::Auto), all);
    kernel.preempts = false;
    assert_eq!(shared(&kernel, HookSet::Failures, Tiers::Fentry), []);
    assert_eq!(shared(&kernel, HookSet::Full, Tiers::Auto), []);
    // A tracepoint's program is skipped for another tracepoint that interrupts it, which loses an event.
    assert!(!kernel.plan(HookSet::Failures).shares_tracepoints());
    kernel.preempts = true;
    let plan = kernel.plan(HookSet::Failures);
    assert!(plan.shares_tracepoints() && !kernel.plan(HookSet::Full).shares_tracepoints());
    kernel.preempts = false;
    kernel.symbols.remove("nf_ct_kill_acct");
    assert!(!shared(&kernel, HookSet::Failures, Tiers::Auto).contains(&Hook::KillAcct));
    // One that is left alone, as the variadic function is where fentry reaches all others, has its own program too.
    let fentry = kernel.fentry.clone();
    for hook in all.iter().filter(|hook| **hook != Hook::InvalidLog) {
        kernel.fentry.insert(hook.symbol(), FentryTarget { module: None, function: 7 });
    }
    assert_eq!(shared(&kernel, HookSet::Failures, Tiers::Auto), []);
    kernel.fentry = fentry;
    (kernel.has_cookies, kernel.preempts) = (false, true);
    assert_eq!(shared(&kernel, HookSet::Failures, Tiers::Auto), []);
    assert!(!kernel.plan(HookSet::Failures).shares_tracepoints());
}
