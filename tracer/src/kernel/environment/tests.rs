//! Hosts made up of files, and the running one.
use std::os::unix::fs::symlink;

use tempfile::TempDir;

use super::*;

/// A host on which everything is in order.
fn host() -> TempDir {
    let root = TempDir::new().unwrap();
    for (path, content) in [
        ("proc/sys/kernel/osrelease", "6.12.0-cloud-amd64\n"),
        ("proc/sys/kernel/version", "#1 SMP PREEMPT_DYNAMIC Debian 6.12.117-1 (2026-11-14)\n"),
        ("sys/kernel/debug/sched/preempt", "none (voluntary) full \n"),
        ("sys/kernel/btf/vmlinux", "btf"),
        ("sys/kernel/btf/nf_conntrack", "btf"),
        ("sys/kernel/security/lockdown", "[none] integrity confidentiality\n"),
        ("proc/self/status", "Name:\tviptrace\nCapInh:\t0\nCapEff:\t000001ffffffffff\n"),
        ("sys/bus/event_source/devices/kprobe/type", "8\n"),
        ("proc/sys/kernel/perf_event_paranoid", "3\n"),
        ("proc/sys/kernel/unprivileged_bpf_disabled", "2\n"),
        ("proc/modules", "nf_conntrack 200704 3 nf_nat,ip_vs, Live 0x0000000000000000\n"),
        ("sys/module/nf_nat/initstate", "live\n"),
        ("sys/module/ipv6/parameters/disable", "0\n"),
        (
            "proc/kallsyms",
            "0000000000000000 T nf_hook_slow\n0000000000000000 t early_drop.isra.0\t[nf_conntrack]\n\
             0000000000000000 T nf_conntrack_in\t[nf_conntrack]\nodd\n0000000000000000 t tcp_reset.cold\n",
        ),
    ] {
        put(&root, path, content);
    }
    for process in ["self", "1"] {
        fs::create_dir_all(root.path().join("proc").join(process).join("ns")).unwrap();
        symlink("net:[4026531840]", root.path().join("proc").join(process).join("ns/net")).unwrap();
    }
    root
}

fn put(root: &TempDir, path: &str, content: &str) {
    let path = root.path().join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

fn gaps(root: &TempDir) -> Vec<(Severity, String)> {
    let gaps = Environment::inspect_at(root.path()).gaps();
    gaps.into_iter().map(|gap| (gap.severity, gap.what)).collect()
}

#[test]
fn a_host_that_has_everything_has_no_gap() {
    let root = host();
    assert_eq!(gaps(&root), []);
    let found = Environment::inspect_at(root.path());
    assert_eq!(found.kernel_release, "6.12.0-cloud-amd64");
    assert_eq!(found.kprobe_type, Some(8));
    assert_eq!((found.lockdown, found.in_init_netns), (Lockdown::None, Some(true)));
}

#[test]
fn each_lack_is_named_with_its_weight() {
    for (path, content, severity, word) in [
        (
            "sys/kernel/security/lockdown",
            "none integrity [confidentiality]",
            Severity::Fatal,
            "confidentiality",
        ),
        // Everything but CAP_BPF, CAP_PERFMON and CAP_SYS_ADMIN.
        ("proc/self/status", "CapEff:\t0000013fffdfffff\n", Severity::Fatal, "CAP_PERFMON"),
        ("proc/self/status", "CapEff:\t0000013fffdfffff\n", Severity::Fatal, "CAP_BPF"),
        // CAP_BPF and CAP_PERFMON alone are enough, except where a distribution demands more.
        ("proc/self/status", "CapEff:\t000000c000000000\n", Severity::Degraded, "perf_event_paranoid"),
        // Everything but CAP_NET_ADMIN.
        ("proc/self/status", "CapEff:\t000001ffffffefff\n", Severity::Degraded, "CAP_NET_ADMIN"),
        ("proc/self/status", "garbage", Severity::Degraded, "capabilities cannot be read"),
        ("sys/bus/event_source/devices/kprobe/type", "", Severity::Degraded, "kprobes"),
    ] {
        let root = host();
        put(&root, path, content);
        let found = gaps(&root);
        assert!(
            found.iter().any(|(found, what)| *found == severity && what.contains(word)),
            "{word}: {found:?}"
        );
    }
}

#[test]
fn an_empty_tree_is_a_host_without_btf() {
    let root = TempDir::new().unwrap();
    let found = gaps(&root);
    assert!(
        matches!(found.first(), Some((Severity::Fatal, what)) if what.contains("type information")),
        "{found:?}"
    );
    assert!(Environment::inspect_at(root.path()).symbols(&["nf_conntrack_in"]).is_err());
}

#[test]
fn another_network_namespace_is_noticed() {
    let root = host();
    let link = root.path().join("proc/1/ns/net");
    fs::remove_file(&link).unwrap();
    symlink("net:[1]", link).unwrap();
    assert!(matches!(&gaps(&root)[..], [(Severity::Degraded, what)] if what.contains("network namespace")));
}

#[test]
fn a_module_is_loaded_or_built_in_under_either_spelling() {
    let root = host();
    let found = Environment::inspect_at(root.path());
    assert_eq!(found.module("nf-conntrack"), Module::Loaded);
    assert_eq!(found.module("nf_nat"), Module::Loaded);
    assert_eq!(found.module("ipv6"), Module::BuiltIn);
    assert_eq!(found.module("nf_conn"), Module::Absent);
}

#[test]
fn a_symbol_with_a_suffix_is_another_function() {
    let root = host();
    let found = Environment::inspect_at(root.path());
    let wanted = ["early_drop", "nf_conntrack_in", "nf_hook_slow", "tcp_reset"];
    assert_eq!(found.symbols(&wanted).unwrap(), BTreeSet::from(["nf_conntrack_in", "nf_hook_slow"]));
}

#[test]
fn programs_are_preempted_unless_the_kernel_says_that_they_are_not() {
    let preempts = |root: &TempDir| Environment::inspect_at(root.path()).preempts_programs;
    let root = host();
    assert!(!preempts(&root));
    // Since 6.13 there is one more, and since 7.0 two fewer.
    for (in_force, expected) in
        [("(none) voluntary full", false), ("none voluntary (full)", true), ("full (lazy)", true)]
    {
        put(&root, "sys/kernel/debug/sched/preempt", in_force);
        assert_eq!(preempts(&root), expected, "{in_force}");
    }
    // Without debugfs the parameter counts, then the build, then caution.
    fs::remove_file(root.path().join("sys/kernel/debug/sched/preempt")).unwrap();
    assert!(preempts(&root));
    let config = "boot/config-6.12.0-cloud-amd64";
    put(&root, config, "CONFIG_PREEMPT_BUILD=y\nCONFIG_PREEMPT_LAZY=y\n# CONFIG_PREEMPT_NONE is not set\n");
    assert!(preempts(&root));
    put(&root, config, "CONFIG_PREEMPT_VOLUNTARY=y\nCONFIG_PREEMPT_DYNAMIC=y\n");
    assert!(!preempts(&root));
    put(&root, "proc/cmdline", "quiet preempt=none preempt=full\n");
    assert!(preempts(&root));
    put(&root, "proc/cmdline", "preempt=none quiet\n");
    assert!(!preempts(&root));
    // Only a kernel that was built with the choice has it.
    for (version, expected) in [
        ("#1 SMP Debian 5.10.223-1", false),
        ("#1 SMP PREEMPT Debian 7.2", true),
        ("#1 SMP PREEMPT_RT x", true),
    ] {
        put(&root, "proc/sys/kernel/version", version);
        assert_eq!(preempts(&root), expected, "{version}");
    }
    fs::remove_file(root.path().join("proc/sys/kernel/version")).unwrap();
    assert!(preempts(&root));
}

#[test]
fn the_running_host_is_looked_at_without_complaint() {
    let found = Environment::inspect();
    assert!(!found.kernel_release.is_empty());
    assert!(found.capabilities.is_some());
    for gap in found.gaps() {
        assert!(!gap.to_string().is_empty());
    }
}

#[test]
fn functions_have_the_addresses_that_the_kernel_shows() {
    let root = host();
    let wanted = [('a', "nf_hook_slow"), ('b', "ip_forward"), ('c', "ip_error"), ('d', "early_drop")];
    let found = || Environment::inspect_at(root.path()).functions(&wanted).unwrap();
    // kptr_restrict.
    assert_eq!(found(), []);
    put(
        &root,
        "proc/kallsyms",
        "0000000000000000 A fixed_percpu_data\n\
         ffffffff81000000 t ip_error.cold\nffffffff81000020 t ip_forward.isra.0.cold\n\
         ffffffff81000040 T nf_hook_slow\nffffffff81000040 T alias\n\
         ffffffff81000100 t ip_forward.isra.0\nffffffff81000200 t ip_forward_finish\n\
         ffffffff81000300 t ip_error\nffffffff81000380 T last\n\
         ffffffffc0000000 t early_drop\t[nf_conntrack]\nffffffffc0000100 t next\t[nf_conntrack]\n",
    );
    assert_eq!(
        found(),
        [
            ('a', 0xffff_ffff_8100_0040..0xffff_ffff_8100_0100),
            ('b', 0xffff_ffff_8100_0100..0xffff_ffff_8100_0200),
            ('c', 0xffff_ffff_8100_0300..0xffff_ffff_8100_0380),
        ]
    );
}
