//! Runs the system's tools (`ip`, `iptables-restore`, `conntrack`) and formats their failures.

use std::{
    io::Write,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

/// Runs a tool to its end and returns its output.
pub fn run(program: &str, arguments: &[&str]) -> Result<String> {
    run_with_input(program, arguments, "")
}

/// Runs a tool with `input` on its standard input.
pub fn run_with_input(program: &str, arguments: &[&str], input: &str) -> Result<String> {
    let line = || format!("{program} {}", arguments.join(" "));
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting `{}`; is the tool in the guest image?", line()))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A tool that stops reading reports why on standard error.
        let _stopped_reading = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().with_context(|| format!("waiting for `{}`", line()))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("`{}` failed with {}: {}", line(), output.status, errors.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
