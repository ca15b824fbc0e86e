//! `viptrace check --kernel`: the hooks that this kernel offers, how they would be attached, and the cost of a missing
//! one.

use std::{fmt::Write as _, sync::Arc};

use crate::{
    cli::Outcome,
    error::{Hint, sentence},
    kernel::{
        attach::Options,
        environment::{Environment, Severity},
        layout::Layout,
        plan::{HookPlan, HookSet, PlanLine, State, Tier, Tiers},
        running::RunningKernel,
        tracer::Tracer,
    },
    report::{Paint, Printer, printer::Style},
    text::{count, safe},
};

/// Why tracing is impossible here, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("tracing cannot run here: {what}")]
pub(in crate::cli) struct Obstacle {
    what: String,
    hint: Option<String>,
}

impl Obstacle {
    fn new(error: &(impl Hint + 'static)) -> Self {
        Self { what: sentence(error), hint: error.hint() }
    }
}

impl Hint for Obstacle {
    fn hint(&self) -> Option<String> {
        self.hint.clone()
    }
}

/// The running kernel, inspected once: its features, and the hooks of one trace.
#[derive(Debug)]
pub(in crate::cli) struct Kernel {
    environment: Environment,
    /// The plan with this kernel's layout, or why there is none.
    plan: Result<(HookPlan, Layout), Obstacle>,
}

impl Kernel {
    /// Decides how the hooks of `set` attach on this host.
    pub(in crate::cli) fn inspect(environment: Environment, set: HookSet, tiers: Tiers) -> Self {
        let plan = match RunningKernel::open(environment.clone()) {
            Ok(running) => {
                let layout = running.layout();
                Ok((HookPlan::with_tiers(set, tiers, &layout, &running), layout))
            }
            Err(error) => Err(Obstacle::new(&error)),
        };
        Self { environment, plan }
    }

    /// Why tracing is impossible here.
    pub(in crate::cli) fn obstacle(&self) -> Option<Obstacle> {
        let gaps = self.environment.gaps();
        if let Some(fatal) = gaps.iter().find(|gap| gap.severity == Severity::Fatal) {
            return Some(Obstacle {
                what: format!("{}: {}", fatal.what, fatal.why),
                hint: Some(fatal.remedy.to_owned()),
            });
        }
        match &self.plan {
            Err(obstacle) => Some(obstacle.clone()),
            Ok((plan, _)) => plan.fatal().map(|(spec, reason)| Obstacle {
                what: format!("{} cannot be attached: {reason}", spec.symbol),
                hint: None,
            }),
        }
    }

    /// The module that kube-proxy's first rule loads, and without which tracing is impossible until then.
    /// `None` also where another obstacle remains with it.
    pub(in crate::cli) fn awaited_module(&self) -> Option<&'static str> {
        let is_hopeless = self.environment.gaps().iter().any(|gap| gap.severity == Severity::Fatal);
        let (plan, _) = self.plan.as_ref().ok().filter(|_| !is_hopeless)?;
        plan.awaited_module()
    }

    /// Missing features without which tracing is still possible.
    pub(in crate::cli) fn degradations(&self) -> Vec<String> {
        let gaps = self.environment.gaps();
        gaps.iter().filter(|gap| gap.severity == Severity::Degraded).map(ToString::to_string).collect()
    }

    /// Whether viptrace runs in the network namespace of process 1.
    pub(in crate::cli) fn in_init_netns(&self) -> Option<bool> {
        self.environment.in_init_netns
    }

    /// As `uname -r` prints it.
    pub(in crate::cli) fn release(&self) -> &str {
        &self.environment.kernel_release
    }

    /// The plan and the layout, once [`Self::obstacle`] is none.
    pub(in crate::cli) fn into_plan(self) -> anyhow::Result<(HookPlan, Layout)> {
        Ok(self.plan?)
    }
}

/// One hook of the plan, as printed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    symbol: String,
    attach: &'static str,
    state: State,
    /// Why it is not attached in the cheaper way.
    slower: Option<String>,
    absence: &'static str,
}

impl From<&PlanLine> for Line {
    fn from(line: &PlanLine) -> Self {
        let spec = line.spec;
        Self {
            symbol: spec.symbol.to_owned(),
            attach: line.attach(),
            state: line.state.clone(),
            slower: match &line.tier {
                Tier::Kprobe(reason) if line.state == State::Planned => Some(reason.clone()),
                _ => None,
            },
            absence: spec.absence,
        }
    }
}

/// Prints the plan of the fullest trace and tries it: the plan follows the kernel's own description, and only an
/// attempt shows what its policy refuses.
pub(in crate::cli) fn run(attach: Tiers, mut printer: Printer) -> anyhow::Result<Outcome> {
    let kernel = Kernel::inspect(Environment::inspect(), HookSet::Targeted, attach);
    let mut obstacle = kernel.obstacle();
    let mut lines = Vec::new();
    let release = kernel.environment.kernel_release.clone();
    let mut remarks = kernel.degradations();
    let mut missing_fields = Vec::new();
    if let Ok((mut plan, layout)) = kernel.into_plan() {
        missing_fields.extend(
            layout
                .gaps()
                .iter()
                .map(|gap| format!("{}.{}: {}", gap.field.structure, gap.field.path, gap.reason)),
        );
        if obstacle.is_none() {
            obstacle = attempt(&mut plan, layout);
        }
        remarks.extend(plan.limits());
        lines.extend(plan.lines().iter().map(Line::from));
    }
    let text = render(printer.paint(), &release, &lines, &missing_fields, &remarks, obstacle.as_ref());
    printer.data(&text)?;
    printer.flush()?;
    Ok(if obstacle.is_some() { Outcome::Unable } else { Outcome::Clean })
}

/// Attaches the plan for a moment. Hooks that the kernel refuses become gaps of the plan. Returns the reason if nothing
/// could be attached.
fn attempt(plan: &mut HookPlan, layout: Layout) -> Option<Obstacle> {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            return Some(Obstacle { what: format!("cannot start the event loop: {error}"), hint: None });
        }
    };
    let _entered = runtime.enter();
    let options = Options { buffer_bytes: 4096, targets: None, recorder: None };
    match Tracer::attach(plan, Arc::new(layout), &options) {
        Ok(tracer) => {
            tracer.report(plan);
            None
        }
        Err(error) => Some(Obstacle::new(&error)),
    }
}

fn render(
    paint: Paint,
    kernel: &str,
    lines: &[Line],
    missing_fields: &[String],
    remarks: &[String],
    obstacle: Option<&Obstacle>,
) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(out, "kernel {}", safe(kernel));
    let symbol_width = lines.iter().map(|line| line.symbol.chars().count()).max().unwrap_or(0).max(6);
    let heading = format!("{:symbol_width$}  {:16}  {:8}  WITHOUT IT", "HOOK", "ATTACH", "STATE");
    let _ = writeln!(out, "{}", paint.text(Style::Heading, &heading));
    for line in lines {
        let (style, state, reason) = match &line.state {
            State::Planned => (Style::Good, "ready", None),
            State::Missing(reason) => (Style::Fault, "MISSING", Some(reason)),
            State::NotNeeded(reason) => (Style::Faint, "unused", Some(reason)),
        };
        let state = paint.text(style, &format!("{state:8}"));
        let symbol = safe(&line.symbol);
        let _ = writeln!(out, "{symbol:symbol_width$}  {:16}  {state}  {}", line.attach, line.absence);
        if let Some(reason) = reason {
            let _ = writeln!(out, "{:symbol_width$}  because {}", "", safe(reason));
        }
        if let Some(reason) = &line.slower {
            let _ = writeln!(out, "{:symbol_width$}  not by fentry: {}", "", safe(reason));
        }
    }
    if !missing_fields.is_empty() || !remarks.is_empty() {
        out.push('\n');
    }
    for field in missing_fields {
        let _ = writeln!(out, "field {}", safe(field));
    }
    for remark in remarks {
        let _ = writeln!(out, "note: {}", safe(remark));
    }
    let missing = lines.iter().filter(|line| matches!(line.state, State::Missing(_))).count();
    let conclusion = match (obstacle, missing) {
        (Some(Obstacle { what, hint }), _) => {
            let hint = hint.as_ref().map(|hint| format!("\nhint: {}", safe(hint))).unwrap_or_default();
            format!("{} {}{hint}", paint.text(Style::Fault, "tracing cannot run here:"), safe(what))
        }
        (None, 0) => paint.text(Style::Good, "tracing can run here, with every hook"),
        (None, missing) => {
            paint.text(Style::Unknown, &format!("tracing can run here, without {}", count(missing, "hook")))
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
            Line {
                symbol: "__nf_conntrack_confirm".into(),
                attach: "kprobe",
                state: State::Planned,
                slower: Some("the module nf_conntrack has no BTF here".into()),
                absence: "no flow is observed",
            },
            Line {
                symbol: "tcp_send_reset".into(),
                attach: "raw tracepoint",
                state: State::Missing("no such tracepoint in this kernel's BTF".into()),
                slower: None,
                absence: "the sender of a reset is unknown",
            },
        ];
        let text = render(Paint(false), "6.1.0", &lines, &[], &["kprobes are off".into()], None);
        assert!(
            text.contains("__nf_conntrack_confirm  kprobe            ready     no flow is observed"),
            "{text}"
        );
        assert!(text.contains("not by fentry: the module nf_conntrack has no BTF here"), "{text}");
        assert!(text.contains("note: kprobes are off"), "{text}");
        assert!(text.contains("MISSING   the sender of a reset is unknown"), "{text}");
        assert!(text.contains("because no such tracepoint"), "{text}");
        assert!(text.ends_with("tracing can run here, without 1 hook\n"), "{text}");
        let obstacle = Obstacle { what: "no BTF in /sys".into(), hint: Some("mount /sys".into()) };
        let text = render(Paint(false), "6.1.0", &lines, &[], &[], Some(&obstacle));
        assert!(text.ends_with("tracing cannot run here: no BTF in /sys\nhint: mount /sys\n"), "{text}");
    }
}
