//! The reading of one agent, over as many connections as it takes.
//!
//! Owns when a lost connection is opened again, what was not read meanwhile, and which verdicts were read before. Pure: the
//! caller connects and knows the time.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    time::{Duration, Instant},
};

use crate::{
    agent::MAX_RECENT,
    class::Class,
    plugin::visit::{Handed, VisitError},
    text::{count, length},
    time::Timestamp,
    verdict::Verdict,
};

/// The pause before the first attempt, doubled after each further one, up to [`MAX_PAUSE`].
const PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(15);
/// How long an agent may be unreadable: an API server restarts, or a rollout pulls the image of the agent's next Pod.
pub(super) const PATIENCE: Duration = Duration::from_mins(5);
/// A connection without a verdict is one after this time: a program that finds no agent in its container ends before.
const SETTLED: Duration = Duration::from_secs(2);
/// One that lasted this long makes pause and patience new.
const STEADY: Duration = Duration::from_mins(1);
/// The interruptions that the summary lists.
const MAX_LISTED: usize = 4;

/// Distinguishes a verdict from the others of its node.
type Id = (Timestamp, Timestamp, SocketAddr, Class);

#[derive(Clone, Copy, Debug)]
enum Link {
    Opening,
    /// Since then.
    Open(Instant),
    /// Closed until then.
    Waiting(Instant),
}

/// A time in which an agent was not read.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Unread {
    from: Timestamp,
    /// `None` while it lasts.
    to: Option<Timestamp>,
    /// Failed flows that the agent handed out afterwards.
    recovered: u64,
}

/// An agent that is read.
#[derive(Debug)]
pub(super) struct Reading {
    link: Link,
    /// The times in which it was not read. The last one lasts until a connection holds.
    unread: Vec<Unread>,
    /// Whether the last one lasts.
    is_cut: bool,
    /// Attempts since a connection was steady, and when there are no more.
    attempts: u32,
    until: Option<Instant>,
    /// The last error.
    why: Option<VisitError>,
    /// The last failed flows that were read, as many as an agent hands out to a new reader.
    seen: VecDeque<Id>,
    /// Failed flows from before the first connection, which are left out.
    earlier: u64,
    /// The last line of the open connection, and within which time the next one comes; `None` without a heartbeat.
    heartbeat: Option<(Timestamp, Duration)>,
}

/// The next step.
#[derive(Debug)]
pub(super) enum Turn {
    Nothing,
    /// A connection holds: a line for the user.
    ReadAgain(String),
    /// It is time for a connection.
    Connect,
    GiveUp(VisitError),
}

impl Reading {
    /// Of an agent to which a connection is being opened.
    pub(super) fn new() -> Self {
        Self {
            link: Link::Opening,
            unread: Vec::new(),
            is_cut: false,
            attempts: 0,
            until: None,
            why: None,
            seen: VecDeque::new(),
            earlier: 0,
            heartbeat: None,
        }
    }

    /// The connection is open.
    pub(super) fn opened(&mut self, now: Timestamp, at: Instant) {
        self.link = Link::Open(at);
        if self.is_cut
            && let Some(unread) = self.unread.last_mut()
        {
            unread.to = Some(now);
        }
    }

    /// The agent sent a heartbeat at `now`, and the next one comes within this time.
    pub(super) fn alive(&mut self, now: Timestamp, within: Duration) {
        self.heartbeat = Some((now, within));
    }

    /// The trace ended. A connection whose next line is overdue may have died since the last one: too lately to be lost, but
    /// nothing shows that the agent was read.
    pub(super) fn ended(&mut self, now: Timestamp) {
        if let Some((last, within)) = self.heartbeat
            && !self.is_cut
            && now.since(last) > within.saturating_add(within / 2)
        {
            self.is_cut = true;
            self.unread.push(Unread { from: last, to: None, recovered: 0 });
        }
    }

    /// The connection ended, or none could be opened. Returns a line for the user if it is news.
    pub(super) fn lost(&mut self, why: VisitError, now: Timestamp, at: Instant) -> Option<String> {
        self.heartbeat = None;
        let said =
            (!self.is_cut).then(|| format!("{why}; its agent is tried again for up to {}", length(PATIENCE)));
        if let Link::Open(since) = self.link
            && at.saturating_duration_since(since) >= STEADY
        {
            (self.attempts, self.until) = (0, None);
        }
        if self.is_cut {
            // The last connection brought nothing.
            if let Some(unread) = self.unread.last_mut() {
                unread.to = None;
            }
        } else {
            self.is_cut = true;
            // Of a silent connection nothing was read since its last line.
            let silence = if let VisitError::Silent { silence, .. } = why { silence } else { Duration::ZERO };
            let last = self.unread.last().and_then(|unread| unread.to);
            let from = now.saturating_sub(silence).max(last.unwrap_or_default());
            self.unread.push(Unread { from, to: None, recovered: 0 });
        }
        self.until.get_or_insert(at + PATIENCE);
        self.why = Some(why);
        self.wait(at);
        said
    }

    /// The next attempt is later.
    fn wait(&mut self, at: Instant) {
        let pause = PAUSE.saturating_mul(1 << self.attempts.min(4)).min(MAX_PAUSE);
        self.attempts = self.attempts.saturating_add(1);
        self.link = Link::Waiting(at + pause);
    }

    /// When [`Self::turn`] has something.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.link {
            Link::Opening => None,
            Link::Open(since) => self.is_cut.then(|| since + SETTLED),
            Link::Waiting(next) => Some(next),
        }
    }

    /// The step that is due. `has_pod`: whether the node has an agent's Pod now.
    pub(super) fn turn(&mut self, has_pod: bool, at: Instant) -> Turn {
        match self.link {
            Link::Open(since) if self.is_cut && at >= since + SETTLED => self.holds(),
            Link::Waiting(next) if at >= next => {
                let is_over = self.until.is_some_and(|until| at >= until);
                if is_over {
                    let why = if has_pod {
                        self.why.as_ref().map_or_else(String::new, ToString::to_string)
                    } else {
                        "its Pod is gone, and no other came to the node".to_owned()
                    };
                    return Turn::GiveUp(VisitError::AgentLost { patience: PATIENCE, why });
                }
                if !has_pod {
                    self.wait(at);
                    return Turn::Nothing;
                }
                self.link = Link::Opening;
                Turn::Connect
            }
            _ => Turn::Nothing,
        }
    }

    /// The interruption is over.
    fn holds(&mut self) -> Turn {
        self.is_cut = false;
        match self.unread.last() {
            Some(unread) => Turn::ReadAgain(format!("its agent is read again; it was not {}", unread.span())),
            None => Turn::Nothing,
        }
    }

    /// Takes a verdict that arrived at `now`. Returns whether it is new, and a line for the user that comes before it.
    pub(super) fn take(&mut self, handed: &Handed, now: Timestamp) -> (bool, Option<String>) {
        // An agent sends a heartbeat only where it had nothing else to send.
        if let Some((last, _)) = &mut self.heartbeat {
            *last = now;
        }
        let said = match self.is_cut.then(|| self.holds()) {
            Some(Turn::ReadAgain(text)) => Some(text),
            _ => None,
        };
        let verdict = &handed.verdict;
        let is_seen = handed.earlier && self.seen.contains(&id(verdict));
        if verdict.has_failed() && !is_seen {
            self.seen.push_back(id(verdict));
            if self.seen.len() > MAX_RECENT {
                self.seen.pop_front();
            }
        }
        let is_new = match (handed.earlier, self.unread.last_mut()) {
            (false, _) => true,
            (true, None) => {
                self.earlier += 1;
                false
            }
            (true, Some(unread)) => {
                unread.recovered += u64::from(!is_seen);
                !is_seen
            }
        };
        (is_new, said)
    }

    pub(super) fn earlier(&self) -> u64 {
        self.earlier
    }

    /// Whether it was read all the time.
    pub(super) fn is_whole(&self) -> bool {
        self.unread.is_empty()
    }

    /// The times in which it was not read, a line each.
    pub(super) fn gaps(&self) -> Vec<String> {
        let mut lines: Vec<String> = self
            .unread
            .iter()
            .take(MAX_LISTED)
            .map(|unread| {
                let handed = match unread.recovered {
                    0 => String::new(),
                    flows => format!("{} of that time came later; ", count(flows, "failed flow")),
                };
                format!("its agent was not read {}: {handed}other flows may be missing", unread.span())
            })
            .collect();
        let rest = self.unread.get(MAX_LISTED..).unwrap_or_default();
        if !rest.is_empty() {
            let time = rest.iter().filter_map(|unread| Some(unread.to?.since(unread.from))).sum();
            let more = count(rest.len(), "more interruption");
            lines.push(format!("its agent was not read in {more}, {} together", length(time)));
        }
        lines
    }
}

impl Unread {
    /// `from … to …`
    fn span(&self) -> String {
        let from = self.from.to_the_millisecond();
        match self.to {
            Some(to) => {
                format!("from {from} to {} ({})", to.to_the_millisecond(), length(to.since(self.from)))
            }
            None => format!("from {from} to the end"),
        }
    }
}

fn id(verdict: &Verdict) -> Id {
    (verdict.time, verdict.flow.started, verdict.flow.client, verdict.class)
}

#[cfg(test)]
mod tests;
