//! Judging: which settled flows have a verdict now, which wait, and which share that of another flow.
//!
//! Owns the budget of a step and the order of its flows. The rules of judgement are `diagnosis`'s.

use std::sync::Arc;

use super::{Arrival, Crossing, Detail, Fate, Judged, Pipeline, Settings, remembered::Earlier};
use crate::{
    cluster::History,
    diagnosis::{self, Context, Inquiry, Outline, Surroundings, Words},
    flow::{Flow, SharedFlow},
    node::Snapshot,
    time::Timestamp,
    verdict::VerdictKey,
};

/// The most flows that wait for a read of the node; beyond it the oldest is judged with the known facts.
const MAX_WAITING: usize = 16_384;
/// The most verdicts of one step, a few KiB each, and the most flows that one step takes: healthy flows that share a
/// verdict cost little.
const MAX_VERDICTS: usize = 256;
const MAX_TAKEN: usize = 4096;
/// The most flows that are not over whose last verdict is remembered.
const MAX_BEFORE: usize = 65_536;

/// When a settled flow is judged.
enum Turn {
    Now(Outlined),
    /// At this time: until then the cluster's metadata may explain it.
    AfterCluster(Timestamp),
    /// After the next read of the node.
    AfterNode,
}

/// A flow's verdict before it has words.
enum Outlined {
    /// Words are wanted in any case.
    No,
    /// It has no verdict.
    WithoutVerdict,
    As(Outline),
}

impl Pipeline {
    /// Whether a step has as many verdicts as it may. Those that are only counted fill it too: a replay judges each flow when
    /// the live trace did.
    fn is_full(&self, judged: &[Judged]) -> bool {
        judged.len() + self.causes.len() >= MAX_VERDICTS
    }

    pub(super) fn judge_ready(&mut self, now: Timestamp, judged: &mut Vec<Judged>) {
        while !self.is_full(judged)
            && let Some(flow) = self.ready.pop_front()
        {
            judged.extend(self.judge_flow(&flow, now));
        }
    }

    pub(super) fn judge_settled(&mut self, now: Timestamp) -> Vec<Judged> {
        let mut judged = Vec::new();
        self.judge_ready(now, &mut judged);
        let mut taken = 0;
        let mut settled = self.flows.take_settled();
        while !self.is_full(&judged)
            && taken < MAX_TAKEN
            && let Some(flow) = settled.pop_front()
        {
            taken += 1;
            // Of a flow whose earlier state had no verdict yet, this is the first one.
            let is_first = flow.revision <= 1 || self.supersede(flow.id);
            if let Some(crossings) = &mut self.crossings
                && flow.revision <= 1
            {
                crossings.extend(Crossing::of(&flow));
            }
            if self.fold(&flow) || self.leave_to_other_node(&flow, is_first) {
                continue;
            }
            self.note(&flow);
            self.judge_or_wait(flow, now, true, &mut judged);
        }
        self.flows.return_settled(settled);
        let until = if self.is_finished { Timestamp::MAX } else { now };
        while !self.is_full(&judged)
            && taken < MAX_TAKEN
            && let Some(flow) = self.undecided.pop_due(until)
        {
            taken += 1;
            self.judge_or_wait(flow, now, false, &mut judged);
        }
        judged
    }

    /// Judges the flow, or lets it wait, as [`Self::turn`] says.
    fn judge_or_wait(
        &mut self,
        flow: SharedFlow,
        now: Timestamp,
        for_cluster: bool,
        judged: &mut Vec<Judged>,
    ) {
        match self.turn(&flow, now, for_cluster) {
            Turn::Now(outlined) => judged.extend(self.judge_outlined(&flow, outlined, now)),
            Turn::AfterCluster(until) => {
                if self.undecided.len() >= self.bounded(MAX_WAITING)
                    && let Some(oldest) = self.undecided.pop()
                {
                    self.judge_or_wait(oldest, now, false, judged);
                }
                self.undecided.push(until, flow);
            }
            Turn::AfterNode => {
                if self.waiting.len() >= self.bounded(MAX_WAITING)
                    && let Some(oldest) = self.waiting.pop()
                {
                    judged.extend(self.judge_flow(&oldest, now));
                }
                self.waiting.push(flow.first_seen, flow);
            }
        }
    }

    /// Whether the flow is judged now, or waits: for the cluster's metadata, if it may, or for a read of the node.
    fn turn(&self, flow: &Flow, now: Timestamp, for_cluster: bool) -> Turn {
        let ctx = Context { words: Words::Omitted, ..self.context(now) };
        let inquiry = Inquiry::new(flow, &ctx);
        let fresh = self.node_read_began.is_some_and(|began| began >= flow.first_seen);
        let until = inquiry.end_of_grace();
        let is_early = for_cluster && now < until;
        let is_wrong = (is_early || !fresh) && inquiry.is_choice_wrong();
        let departure = || {
            let until = for_cluster.then(|| inquiry.end_of_departure()).flatten();
            until.filter(|until| now < *until)
        };
        if let Some(until) = (is_early && is_wrong).then_some(until).or_else(departure) {
            return Turn::AfterCluster(until);
        }
        if !fresh && self.depends_on_node(flow, &inquiry, is_wrong) {
            return Turn::AfterNode;
        }
        Turn::Now(self.outlined(flow, inquiry))
    }

    /// Forgets an earlier state of this flow that waits. Returns whether there was one.
    fn supersede(&mut self, id: u64) -> bool {
        self.undecided.supersede(id) | self.waiting.supersede(id)
    }

    /// Whether the flow may not share the verdict of an earlier healthy one.
    fn has_own_verdict(&self, flow: &Flow) -> bool {
        self.settings.detail == Detail::All && flow.last_seen >= self.each_since
    }

    /// Counts the flow if it shares the verdict of an earlier healthy one.
    fn fold(&mut self, flow: &Flow) -> bool {
        if self.has_own_verdict(flow) || flow.revision > 1 {
            return false;
        }
        let Some(decision) = flow.decision(self.settings.node_netns) else { return false };
        if decision.endpoint().is_none() {
            return false;
        }
        let endpoint = decision.ct.reply.src;
        let Some(found) = self.healthy.fold(flow, endpoint, &self.cluster.history) else { return false };
        if found.is_cluster_ip {
            self.translations.translated(flow.orig.dst.socket(), decision.time);
        }
        if flow.ended.is_none() {
            let key = Arc::clone(found.verdict_key);
            self.remember(flow, key);
        }
        true
    }

    /// Counts the flow if another node on this kernel reports it, unless it has a verdict already.
    fn leave_to_other_node(&mut self, flow: &Flow, is_first: bool) -> bool {
        if self.before.contains(flow.id) {
            return false;
        }
        let around = surroundings(&self.settings, &self.cluster.history, &self.node);
        let Some(node) = diagnosis::other_node(flow, &around).map(str::to_owned) else { return false };
        if is_first {
            self.neighbours.count(node);
        }
        true
    }

    /// Whether the node's state can matter: for a flow to a Service that got no endpoint, or that found the conntrack table
    /// full; for one that kube-proxy's rules treated otherwise than the slices; or for one that another rule stopped.
    fn depends_on_node(&self, flow: &Flow, inquiry: &Inquiry<'_>, is_choice_wrong: bool) -> bool {
        if diagnosis::is_stopped_by_rule(flow) && inquiry.is_to_service() {
            return true;
        }
        let refused = flow.trouble.as_ref().is_some_and(|trouble| trouble.refusal.is_some());
        if refused || flow.endpoint(self.settings.node_netns).is_some() {
            // kube-proxy's figures show the cause of stale rules and its pace, and another writer's rules may have chosen it.
            return is_choice_wrong;
        }
        !flow.outcome().is_success() && inquiry.is_to_service()
    }

    fn note(&mut self, flow: &Flow) {
        let around = surroundings(&self.settings, &self.cluster.history, &self.node);
        self.translations.note(flow, &around);
    }

    fn judge_flow(&mut self, flow: &Flow, now: Timestamp) -> Option<Judged> {
        let ctx = Context { words: Words::Omitted, ..self.context(now) };
        let outlined = self.outlined(flow, Inquiry::new(flow, &ctx));
        self.judge_outlined(flow, outlined, now)
    }

    /// The outline of the flow's verdict if no words may be wanted: of a flow with a verdict, and of one of many with a cause.
    fn outlined(&self, flow: &Flow, inquiry: Inquiry<'_>) -> Outlined {
        if !self.before.contains(flow.id) && !self.shares(flow) {
            return Outlined::No;
        }
        inquiry.outline().map_or(Outlined::WithoutVerdict, Outlined::As)
    }

    /// Whether the flow can share the verdict of another one with its cause.
    fn shares(&self, flow: &Flow) -> bool {
        self.settings.detail == Detail::Causes && flow.revision <= 1 && !diagnosis::is_plain(flow)
    }

    fn judge_outlined(&mut self, flow: &Flow, outlined: Outlined, now: Timestamp) -> Option<Judged> {
        let outline = match outlined {
            Outlined::No => None,
            Outlined::WithoutVerdict => {
                self.arrive(flow);
                return None;
            }
            Outlined::As(outline) => Some(outline),
        };
        let earlier = self.before.get(flow.id).cloned();
        let before = earlier.as_ref().map(|earlier| Arc::clone(&earlier.key));
        if let Some(found) = &outline
            && let Some(key) = self.known_key(flow, before.as_ref(), found)
        {
            self.suppressed.attribute(flow, found.key.service.as_ref());
            self.before.remove(flow.id);
            if flow.may_follow() {
                // It stays counted at the time of its first verdict.
                let failed = earlier.map_or_else(|| flow.failed_at(), |earlier| earlier.failed);
                self.before.set(flow.id, Earlier { key, failed }, self.bounded(MAX_BEFORE));
            }
            return None;
        }
        let Some(judgement) = diagnosis::judge_lasting(flow, &self.context(now)) else {
            self.arrive(flow);
            return None;
        };
        self.before.remove(flow.id);
        let mut verdict = judgement.verdict;
        self.suppressed.attribute(flow, verdict.service.as_ref());
        // A later flow may lack gaps that this one has, or have further ones.
        let since_then = |time: Option<Timestamp>| time.is_some_and(|time| time > flow.first_seen);
        let has_changed = self.hook_gaps.iter().any(|gap| since_then(gap.from) || since_then(gap.until));
        let lasting =
            judgement.lasting.filter(|_| !self.has_own_verdict(flow) && flow.revision <= 1 && !has_changed);
        if lasting.is_some() || flow.may_follow() {
            let key = Arc::new(verdict.key());
            if flow.may_follow() {
                self.remember(flow, Arc::clone(&key));
            }
            if let Some(lasting) = lasting {
                self.healthy.keep(flow, lasting, Arc::new(verdict.clone()), key, &self.cluster.history);
            }
        }
        self.changes.list_in(&mut verdict, &self.cluster.history, self.settings.node_name.as_deref());
        if let Some(outline) = outline.filter(|_| self.shares(flow)) {
            debug_assert_eq!(outline, Outline::of(&verdict), "without words it is another verdict");
            self.causes.keep(outline, &verdict);
        }
        Some(Judged {
            verdict,
            before,
            connect_time: flow.connect_time(),
            last_seen: flow.last_seen,
            failed: flow.failed_at(),
            failed_before: earlier.map(|earlier| earlier.failed),
            was_answered: flow.was_answered(),
        })
    }

    /// The key under which the flow stays counted, if its verdict is equal to its earlier one, or is counted now, if it has
    /// none and shares that of another flow.
    fn known_key(
        &mut self,
        flow: &Flow,
        before: Option<&Arc<VerdictKey>>,
        found: &Outline,
    ) -> Option<Arc<VerdictKey>> {
        // An equal verdict is not reported again, so that the flow stays counted under the earlier one.
        let is_equal = |before: &&Arc<VerdictKey>| {
            before.class == found.key.class && before.has_failed == found.key.has_failed
        };
        match before {
            Some(_) => before.filter(is_equal).map(Arc::clone),
            None => self.causes.fold(flow, found, &self.cluster.history).map(Arc::clone),
        }
    }

    /// Notes a flow that concerns no Service, where each flow is wanted.
    fn arrive(&mut self, flow: &Flow) {
        if self.settings.detail != Detail::All || self.arrivals.len() >= MAX_VERDICTS {
            return;
        }
        let fate = if flow.was_answered() {
            Fate::Answered
        } else if diagnosis::is_stopped_by_rule(flow) {
            Fate::Stopped
        } else {
            Fate::Other
        };
        self.arrivals.push(Arrival { client: flow.orig.src.socket(), to: flow.orig.dst.socket(), fate });
    }

    /// The limit for state of flows outside the table: no more than the table holds, so that one limit bounds the
    /// memory.
    fn bounded(&self, limit: usize) -> usize {
        limit.min(self.settings.limits.max_flows)
    }

    /// Remembers the verdict of a flow that may be handed out again.
    fn remember(&mut self, flow: &Flow, key: Arc<VerdictKey>) {
        let earlier = Earlier { key, failed: flow.failed_at() };
        self.before.set(flow.id, earlier, self.bounded(MAX_BEFORE));
    }

    fn context(&self, now: Timestamp) -> Context<'_> {
        Context {
            cluster: &self.cluster.history,
            node: &self.node,
            node_name: self.settings.node_name.as_deref(),
            node_netns: self.settings.node_netns,
            missing_hooks: &self.settings.missing_hooks,
            hook_gaps: &self.hook_gaps,
            drop_reasons: self.settings.drop_reasons,
            translations: &self.translations,
            grace: self.grace,
            now,
            metadata_age: self.cluster.metadata_age(now),
            words: Words::Written,
        }
    }
}

/// Of its parts, so that the rest of the pipeline can change meanwhile.
fn surroundings<'a>(settings: &'a Settings, cluster: &'a History, node: &'a Snapshot) -> Surroundings<'a> {
    Surroundings { cluster, node, node_name: settings.node_name.as_deref(), node_netns: settings.node_netns }
}
