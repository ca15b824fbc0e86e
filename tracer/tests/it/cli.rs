//! The real binary: exit statuses, usage errors, help, and the split between standard output and standard error.
use std::{
    fs,
    os::unix::process::CommandExt,
    process::{Command, Output, Stdio},
};

fn viptrace(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_viptrace")).args(args).env_remove("NODE_NAME").output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn wrong_usage_exits_with_2_and_a_hint() {
    for (args, expected) in [
        (&[][..], "Usage: viptrace"),
        (&["trace", "cart"], "NAMESPACE/cart"),
        (&["trace", "10.96.0"], "not a whole IPv4 address"),
        (&["trace", "shop/cart", "-o", "xml"], "table, wide, json, yaml"),
        (&["trace", "--duration", "30"], "500ms, 30s, 5m or 1h30m"),
        (&["trace", "--all", "--faults-only"], "cannot be used with"),
        (&["trace", "--cluster-from", "dump", "--kubeconfig", "k"], "cannot be used with"),
        (&["trace", "--hooks", "most"], "full, failures, lean"),
        (&["check", "--kernel", "--from", "dump"], "cannot be used with"),
        (&["check", "cart"], "NAMESPACE/cart"),
        (&["check", "pod/shop/cart-1"], "is not a Service"),
        (&["check", "-n", "shop"], "needs a Service"),
        (&["check", "-n", "shop", "svc/other/cart"], "-n names \"shop\": leave one out"),
        (&["trace", "-n", "shop", "10.96.0.10"], "-n has no effect with 10.96.0.10"),
        (&["top", "-n", "shop", "10.96.0.10"], "-n has no effect with 10.96.0.10"),
        (&["path", "-n", "shop", "node", "10.96.0.10:53"], "-n has no effect from node to 10.96.0.10:53"),
        (&["replay", "x", "-o", "story", "--all"], "--all has no effect with -o story"),
        (&["replay", "x", "-o", "html", "--each"], "--each has no effect with -o html"),
        (&["check", "--from", "dump", "--kubeconfig", "k"], "cannot be used with"),
        (&["capture"], "<DIR>"),
        (&["schema", "flow"], "verdict, check"),
        (&["tracr"], "trace"),
    ] {
        let output = viptrace(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert_eq!(text(&output.stdout), "", "{args:?}");
        assert!(text(&output.stderr).contains(expected), "{args:?}: {}", text(&output.stderr));
    }
}

#[test]
fn a_hostile_argument_does_not_reach_the_terminal() {
    let output = viptrace(&["trace", "shop/\u{1b}]0;owned\u{7}"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(!output.stderr.contains(&0x1b) && !output.stderr.contains(&7), "{}", text(&output.stderr));
}

#[test]
fn help_has_examples_and_exit_statuses() {
    let help = viptrace(&["trace", "--help"]);
    assert_eq!(help.status.code(), Some(0));
    let help = text(&help.stdout);
    for expected in ["Examples:", "viptrace trace shop/cart", "--cluster-from", "3  faults found"] {
        assert!(help.contains(expected), "{expected}: {help}");
    }
    let long = help.lines().filter(|line| line.chars().count() > 100).collect::<Vec<_>>();
    assert!(long.is_empty(), "{long:?}");
}

#[test]
fn the_version_names_the_origin_of_the_ebpf_object() {
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(text(&viptrace(&["-V"]).stdout), format!("viptrace {version}\n"));
    let long = text(&viptrace(&["--version"]).stdout);
    let (first, object) = long.split_once('\n').unwrap();
    assert_eq!(first, format!("viptrace {version}"));
    let known = ["built from source", "from the package", "none: "];
    let origin = object.strip_prefix("eBPF object: ").unwrap_or_else(|| panic!("{long}"));
    assert!(known.iter().any(|known| origin.starts_with(known)), "{long}");
}

#[test]
fn as_a_plugin_it_calls_itself_kubectl_viptrace() {
    let output = Command::new(env!("CARGO_BIN_EXE_viptrace"))
        .arg0("/usr/local/bin/kubectl-viptrace")
        .args(["trace", "--help"])
        .output()
        .unwrap();
    assert!(text(&output.stdout).contains("Usage: kubectl viptrace trace"), "{}", text(&output.stdout));
}

#[test]
fn a_closed_pipe_is_not_a_failure() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_viptrace"))
        .arg("schema")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
}

#[test]
fn a_broken_kubeconfig_is_named_but_not_quoted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kubeconfig");
    fs::write(&path, "users:\n- name: me\n  user:\n    token: s3cret-token\n   bad: [\n").unwrap();
    for kubeconfig in [["--kubeconfig", path.to_str().unwrap()].as_slice(), &[]] {
        let output = Command::new(env!("CARGO_BIN_EXE_viptrace"))
            .args(["trace", "--duration", "1s"])
            .args(kubeconfig)
            .env("KUBECONFIG", &path)
            .output()
            .unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1));
        assert!(said.contains("kubeconfig") && said.contains("line "), "{said}");
        assert!(!said.contains("s3cret"), "{said}");
    }
}
