//! What it means that a hook has no sighting of a flow: nothing happened there, or the hook was not attached.
//!
//! Owns the hooks whose silence shows something, and the words. Judges nothing.

use super::trail::TrailStep;
use crate::{
    recording::{Header, HookLine, HookState},
    session::Pipeline,
    sighting::Hook,
    text::list,
    verdict::Verdict,
};

/// The trace of one node.
pub(super) struct Post<'a> {
    pub(super) node: &'a str,
    pub(super) header: &'a Header,
    pub(super) pipeline: &'a Pipeline,
}

/// Whether a hook was attached while a flow lasted.
enum State {
    /// The whole time.
    Attached,
    /// A part of it, in words.
    Partly(String),
    /// With the reason, if it is known.
    Missing(Option<String>),
    /// The trace did not request it.
    LeftOut,
    /// Another hook observes the same.
    NotNeeded,
    /// An older recording does not show it.
    Unknown,
}

impl Post<'_> {
    /// The hooks without a sighting of the flow here, by why there is none. `own` has the times of this trace. `doubt`:
    /// why sightings may be missing, apart from the losses that the verdict counts.
    pub(super) fn gaps(&self, own: &Verdict, steps: &[TrailStep], doubt: Option<&str>) -> Vec<String> {
        let node = self.node;
        if self.header.hooks.is_empty() {
            return vec![format!("on {node}: its recording does not show which hooks were attached")];
        }
        let seen = |hook: &Hook| steps.iter().any(|step| step.node == node && step.hook == hook.symbol());
        let (mut attached, mut left_out, mut gaps) = (Vec::new(), Vec::new(), Vec::new());
        let mut unknown = Vec::new();
        for hook in Hook::ALL.iter().filter(|hook| concerns(**hook, own) && !seen(hook)) {
            let symbol = hook.symbol().to_owned();
            match self.state(*hook, own) {
                // A sample has a few of the healthy connections.
                State::Attached
                    if *hook == Hook::Confirm && self.header.has_every_connection() != Some(true) => {}
                State::Attached if shows_failures(*hook) => attached.push(symbol),
                State::Attached | State::NotNeeded => {}
                State::LeftOut => left_out.push(symbol),
                State::Partly(when) => {
                    gaps.push(format!("not observed: on {node} the hook {symbol} was attached {when}"));
                }
                State::Missing(why) => {
                    let why = why.map_or_else(String::new, |why| format!(": {why}"));
                    gaps.push(format!("not observed: the hook {symbol} was not attached on {node}{why}"));
                }
                State::Unknown => unknown.push(symbol),
            }
        }
        if !left_out.is_empty() {
            gaps.push(format!("not observed: this trace did not attach {} on {node}", list(&left_out)));
        }
        if !unknown.is_empty() {
            let hooks = list(&unknown);
            gaps.push(format!(
                "unknown: the recording does not show whether these were attached on {node}: {hooks}"
            ));
        }
        if attached.is_empty() {
            return gaps;
        }
        let doubt = if self.header.started > own.flow.started {
            Some("the trace began after the flow")
        } else {
            doubt.or((own.lost_events > 0).then_some("lost events may hide a sighting"))
        };
        let hooks = list(&attached);
        gaps.push(match doubt {
            Some(why) => format!("not seen on {node}, but {why}: {hooks}"),
            None => format!("not seen, though attached on {node} the whole time: {hooks}"),
        });
        gaps
    }

    /// Why the flow could be here without a sighting; `None` if each arrival is observed. `own` has the times of this trace.
    pub(super) fn doubt_about_arrivals(&self, own: &Verdict) -> Option<String> {
        let confirm = Hook::Confirm.symbol();
        match self.state(Hook::Confirm, own) {
            State::Attached => {}
            State::Partly(when) => return Some(format!("the hook {confirm} was attached {when}")),
            State::Unknown => return Some("it does not show which hooks were attached".to_owned()),
            State::Missing(_) | State::LeftOut | State::NotNeeded => {
                return Some(format!("the hook {confirm} was not attached"));
            }
        }
        match self.header.has_every_connection() {
            Some(true) => None,
            Some(false) => {
                Some("an agent records arrivals that fail, and the others up to a limit".to_owned())
            }
            None => Some(
                "it does not show whether it has every connection: an agent records arrivals that fail, and the others up \
                 to a limit"
                    .to_owned(),
            ),
        }
    }

    fn state(&self, hook: Hook, own: &Verdict) -> State {
        let Header { hooks, .. } = self.header;
        if hooks.is_empty() {
            return State::Unknown;
        }
        let (begin, end) = (own.flow.started, own.time);
        let mut gaps = self.pipeline.hook_gaps().iter().filter(|gap| gap.hook == hook);
        if let Some(gap) = gaps.find(|gap| gap.concerns(begin, end)) {
            return State::Partly(match (gap.from, gap.until) {
                (None, Some(until)) => format!("only from {} on", until.beside(begin)),
                (Some(from), None) => format!("only until {}", from.beside(begin)),
                (Some(from), Some(until)) => {
                    format!("except from {} to {}", from.beside(begin), until.beside(begin))
                }
                (None, None) => return State::Missing(None),
            });
        }
        let Some(line) = hooks.iter().find(|line| hook.has_name(&line.hook)) else { return State::Unknown };
        let HookLine { state, reason, .. } = line;
        if self.pipeline.settings().missing_hooks.contains(&hook) {
            return State::Missing(reason.clone());
        }
        match state {
            // It came later, before the flow.
            HookState::Attached | HookState::Missing => State::Attached,
            HookState::NotNeeded if hook.spec().need == tracer_ebpf::Need::Full => State::LeftOut,
            HookState::NotNeeded => State::NotNeeded,
        }
    }
}

/// Whether the hook can have a sighting of a flow like this one.
fn concerns(hook: Hook, verdict: &Verdict) -> bool {
    let flow = &verdict.flow;
    let (is_tcp, is_v6) = (&*flow.protocol == "TCP", flow.client.is_ipv6());
    match hook {
        Hook::Confirm | Hook::KfreeSkb | Hook::ResolveClash | Hook::Delete | Hook::InvalidLog => true,
        Hook::SendUnreach | Hook::IcmpError => !is_v6,
        Hook::SendUnreach6 | Hook::IcmpError6 => is_v6,
        Hook::NfSendReset | Hook::TcpV4SendReset => is_tcp && !is_v6,
        Hook::NfSendReset6 | Hook::TcpV6SendReset => is_tcp && is_v6,
        Hook::KillAcct
        | Hook::TcpReceiveReset
        | Hook::TcpSendReset
        | Hook::TcpRetransmit
        | Hook::SockEstablished
        | Hook::SockClosed => is_tcp,
        // IPVS, a full table, and what only some traces attach.
        _ => false,
    }
}

/// Whether its silence shows that something did not happen: entries end, and sockets change, after the way, too.
fn shows_failures(hook: Hook) -> bool {
    !matches!(hook, Hook::Delete | Hook::SockEstablished | Hook::SockClosed)
}
