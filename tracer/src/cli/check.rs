//! `viptrace check --kernel`: which hooks this kernel offers, how they would be attached, and what the absence of
//! one costs.

use std::fmt::Write as _;

use anyhow::bail;

use crate::{
    cli::{Outcome, args::CheckArgs},
    report::{
        Paint, Printer,
        printer::{OutputError, Style},
        safe,
    },
};

/// One hook of the plan, as it is printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanLine {
    /// The kernel's name of the function or tracepoint.
    pub symbol: String,
    /// How it would be attached: `kprobe`, `fentry`, `tracepoint`, `raw tracepoint`; empty where it cannot be.
    pub attach: String,
    pub state: HookState,
    /// What its absence costs, in words of verdicts.
    pub cost: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HookState {
    Ready,
    /// Cannot be attached, and why.
    Missing(String),
    /// Not needed for this trace, and why.
    Unused(String),
}

/// Prints the plan. `obstacle` says why no tracing is possible here at all.
pub(super) fn run(_args: &CheckArgs, _printer: Printer) -> anyhow::Result<Outcome> {
    bail!("this build has no kernel half: there is no plan to print")
}

/// Writes the plan and its conclusion, and gives the outcome that belongs to it.
pub fn print_plan(
    printer: &mut Printer,
    kernel: &str,
    lines: &[PlanLine],
    obstacle: Option<&str>,
) -> Result<Outcome, OutputError> {
    let text = render(printer.paint(), kernel, lines, obstacle);
    printer.data(&text)?;
    printer.flush()?;
    Ok(if obstacle.is_some() { Outcome::Unable } else { Outcome::Clean })
}

fn render(paint: Paint, kernel: &str, lines: &[PlanLine], obstacle: Option<&str>) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(out, "kernel {}", safe(kernel));
    let symbol_width = lines.iter().map(|line| line.symbol.chars().count()).max().unwrap_or(0).max(6);
    let heading = format!("{:symbol_width$}  {:14}  {:8}  WITHOUT IT", "HOOK", "ATTACH", "STATE");
    let _ = writeln!(out, "{}", paint.text(Style::Heading, &heading));
    for line in lines {
        let (style, state, reason) = match &line.state {
            HookState::Ready => (Style::Good, "ready", None),
            HookState::Missing(reason) => (Style::Fault, "MISSING", Some(reason)),
            HookState::Unused(reason) => (Style::Faint, "unused", Some(reason)),
        };
        let attach = if line.attach.is_empty() { "-" } else { &line.attach };
        let state = paint.text(style, &format!("{state:8}"));
        let symbol = safe(&line.symbol);
        let _ = writeln!(out, "{symbol:symbol_width$}  {attach:14}  {state}  {}", safe(&line.cost));
        if let Some(reason) = reason {
            let _ = writeln!(out, "{:symbol_width$}  because {}", "", safe(reason));
        }
    }
    let missing = lines.iter().filter(|line| matches!(line.state, HookState::Missing(_))).count();
    let conclusion = match (obstacle, missing) {
        (Some(obstacle), _) => {
            format!("{} {}", paint.text(Style::Fault, "tracing cannot run here:"), safe(obstacle))
        }
        (None, 0) => paint.text(Style::Good, "tracing can run here, with every hook"),
        (None, 1) => paint.text(Style::Unknown, "tracing can run here, without 1 hook"),
        (None, missing) => {
            paint.text(Style::Unknown, &format!("tracing can run here, without {missing} hooks"))
        }
    };
    let _ = writeln!(out, "\n{conclusion}");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plan_names_what_is_missing_and_what_it_costs() {
        let lines = [
            PlanLine {
                symbol: "__nf_conntrack_confirm".into(),
                attach: "kprobe".into(),
                state: HookState::Ready,
                cost: "no flow is seen at all".into(),
            },
            PlanLine {
                symbol: "tcp_send_reset".into(),
                attach: String::new(),
                state: HookState::Missing("no such tracepoint in this kernel's BTF".into()),
                cost: "who sent a reset is not known".into(),
            },
        ];
        let text = render(Paint(false), "6.1.0", &lines, None);
        assert!(
            text.contains("__nf_conntrack_confirm  kprobe          ready     no flow is seen at all"),
            "{text}"
        );
        assert!(text.contains("MISSING   who sent a reset is not known"), "{text}");
        assert!(text.contains("because no such tracepoint"), "{text}");
        assert!(text.ends_with("tracing can run here, without 1 hook\n"), "{text}");
        let text = render(Paint(false), "6.1.0", &lines, Some("no BTF in /sys/kernel/btf/vmlinux"));
        assert!(text.ends_with("tracing cannot run here: no BTF in /sys/kernel/btf/vmlinux\n"), "{text}");
    }
}
