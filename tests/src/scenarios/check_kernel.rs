//! `viptrace check --kernel` on a node that allows everything, on one that withholds a capability, and on one whose
//! kernel lacks a module.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};

use crate::{command, console, invocation::Invocation, matrix::Skip, tool::Ended, world::Stage};

const LIMIT: Duration = Duration::from_secs(90);
/// All hooks.
const HOOKS: [&str; 20] = [
    "__nf_conntrack_confirm",
    "kfree_skb",
    "nf_send_unreach",
    "nf_send_reset",
    "early_drop",
    "nf_ct_resolve_clash",
    "nf_ct_kill_acct",
    "tcp_receive_reset",
    "tcp_send_reset",
    "tcp_v4_send_reset",
    "tcp_retransmit_skb",
    "tcp_init_transfer",
    "inet_unhash",
    "nf_ct_delete",
    "nf_nat_setup_info",
    "nf_ct_l4proto_log_invalid",
    "nf_nat_icmp_reply_translation",
    "nf_nat_icmpv6_reply_translation",
    "bpf_prog_test_run",
    "nf_conntrack_tcp_packet",
];

/// Variadic: only BTF has the location of its arguments.
const NEEDS_BTF: &str = "nf_ct_l4proto_log_invalid";

/// Whether the kernel has BTF of its modules' functions (since 5.11). Without it the hook is a named gap.
pub(super) fn modules_have_btf() -> bool {
    Path::new("/sys/kernel/btf/nf_conntrack").exists()
}

/// Whether the kernel has kprobe.multi links (`CONFIG_FPROBE`, since 5.18): then its BTF names their structure
/// (`struct bpf_kprobe_multi_link`, `kernel/trace/bpf_trace.c`, Linux 6.12).
pub(super) fn has_kprobe_multi() -> Result<bool> {
    has_structure("bpf_kprobe_multi_link")
}

/// Whether viptrace prefers kprobe.multi links to perf events: since 6.14 they are made on the function-graph tracer
/// (`struct fprobe_hlist`, `kernel/trace/fprobe.c`).
pub(super) fn has_quick_links() -> Result<bool> {
    Ok(has_kprobe_multi()? && has_structure("fprobe_hlist")?)
}

/// Whether the kernel's BTF names this structure.
fn has_structure(name: &str) -> Result<bool> {
    let btf = fs::read("/sys/kernel/btf/vmlinux").context("reading the kernel's BTF")?;
    let name = [b"\0", name.as_bytes(), b"\0"].concat();
    Ok(btf.windows(name.len()).any(|bytes| bytes == name))
}

/// Flushes kube-proxy's rules and unloads the module that their REJECT loaded.
pub(super) fn unload_reject(stage: &mut Stage) -> Result<()> {
    let flushed = stage.rules()?.without_kube_proxy();
    stage.break_rules(&flushed)?;
    match command::run("modprobe", &["-r", "ipt_REJECT"]) {
        Ok(_) => Ok(()),
        Err(error) => Err(Skip(format!("nf_reject_ipv4 stays loaded: {error:#}")).into()),
    }
}

/// Numbers of `include/uapi/linux/capability.h`.
pub(super) const CAP_NET_ADMIN: u32 = 12;
const CAP_SYS_ADMIN: u32 = 21;
pub(super) const CAP_PERFMON: u32 = 38;
pub(super) const CAP_BPF: u32 = 39;

pub(super) fn story(stage: &mut Stage) -> Result<()> {
    stage.needs_viptrace()?;
    let check = ["check", "--kernel"];
    let whole = Invocation::start(&check)?.end(LIMIT)?;
    console::file("check-kernel.txt", &whole.stdout.join("\n"));
    expect_status(&whole, 0)?;
    // Before 5.11 modules have no BTF, and one hook needs it.
    let with_module_btf = modules_have_btf();
    for hook in HOOKS.into_iter().filter(|hook| with_module_btf || *hook != NEEDS_BTF) {
        let line = line_of(&whole, hook)?;
        ensure!(line.contains(" ready ") || line.contains(" unused "), "{hook} is not ready: {line}");
    }
    let conclusion = if with_module_btf { "with every hook" } else { "without 1 hook" };
    let conclusion = format!("tracing can run here, {conclusion}");
    ensure!(reports(&whole, &conclusion), "the conclusion is missing: {whole:?}");

    let withheld: [(&[u32], &str); 3] = [
        (&[], "CAP_BPF"),
        (&[CAP_SYS_ADMIN, CAP_BPF], "CAP_BPF"),
        (&[CAP_SYS_ADMIN, CAP_PERFMON], "CAP_PERFMON"),
    ];
    for (capabilities, named) in withheld {
        let refused = Invocation::start_without(capabilities, &check)?.end(LIMIT)?;
        expect_status(&refused, 1)?;
        let reported =
            refused.stdout.iter().any(|line| line.contains("cannot run here") && line.contains(named));
        ensure!(reported, "without {capabilities:?}, {named} is not reported as missing: {refused:?}");
    }
    // A trace refuses to start for the same reason.
    let kubeconfig = stage.kubeconfig()?.display().to_string();
    let trace = ["trace", "--duration", "1s", "--kubeconfig", &kubeconfig];
    let refused = Invocation::start_without(&[CAP_SYS_ADMIN, CAP_BPF], &trace)?.end(LIMIT)?;
    expect_status(&refused, 1)?;
    ensure!(refused.stderr.contains("CAP_BPF"), "a trace does not say why it cannot run: {refused:?}");
    Ok(())
}

/// On a node without a rule that rejects, the rejecting module need not be loaded.
pub(super) fn without_reject_module(stage: &mut Stage) -> Result<()> {
    stage.needs_viptrace()?;
    unload_reject(stage)?;
    let less = Invocation::start(&["check", "--kernel"])?.end(LIMIT)?;
    expect_status(&less, 0)?;
    for hook in ["nf_send_unreach", "nf_send_reset"] {
        let line = line_of(&less, hook)?;
        ensure!(line.contains(" unused "), "{hook} is not reported as unused: {line}");
    }
    ensure!(reports(&less, "nf_reject_ipv4"), "the module is not named: {less:?}");
    let hooks = if modules_have_btf() { "with every hook" } else { "without 1 hook" };
    ensure!(reports(&less, hooks), "the conclusion counts hooks that no rule needs: {less:?}");
    Ok(())
}

fn expect_status(ended: &Ended, status: i32) -> Result<()> {
    if ended.status != status {
        bail!("the exit status is {}, expected {status}: {ended:?}", ended.status);
    }
    Ok(())
}

fn reports(ended: &Ended, words: &str) -> bool {
    ended.stdout.iter().any(|line| line.contains(words))
}

/// The line of the plan that begins with the hook's name.
fn line_of<'e>(ended: &'e Ended, hook: &str) -> Result<&'e str> {
    let is_its = |line: &&String| line.split_whitespace().next() == Some(hook);
    match ended.stdout.iter().find(is_its) {
        Some(line) => Ok(line),
        None => bail!("the plan has no line for {hook}: {ended:?}"),
    }
}
