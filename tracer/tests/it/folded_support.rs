//! The finished flows of a soak, to be judged one by one without a session.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use viptrace::{
    cluster::Cluster,
    diagnosis::{Context, Translations, Words},
    flow::{Flow, FlowTable, Limits},
    node::Snapshot,
};

use crate::{
    flow_support::{NODE, at},
    soak::player::{Prepared, REST, update},
};

/// The flows of a soak as the table hands them out, with what they are judged by.
#[derive(Debug)]
pub(crate) struct Folded {
    pub(crate) flows: Vec<Flow>,
    cluster: Cluster,
    node: Arc<Snapshot>,
    translations: Translations,
}

impl Folded {
    /// Folds all flows without judging them. Each has the last of its revisions.
    pub(crate) fn of(prepared: Prepared) -> Self {
        let mut table = FlowTable::new(Limits::default());
        let mut flows: BTreeMap<u64, Flow> = BTreeMap::new();
        let mut cluster = prepared.soaked.cluster();
        for turn in prepared.turns {
            turn.changes.into_iter().for_each(|(ms, change)| cluster.absorb(update(ms, change)));
            turn.sightings.into_iter().for_each(|sighting| table.observe(sighting));
            table.advance(at(turn.ms));
            flows.extend(table.drain_settled().map(|flow| (flow.id, flow)));
        }
        table.finish(at(prepared.soaked.end + REST + 100_000));
        flows.extend(table.drain_settled().map(|flow| (flow.id, flow)));
        let node = prepared.soaked.snapshot(prepared.soaked.end);
        let mut folded =
            Self { flows: flows.into_values().collect(), cluster, node, translations: Translations::new() };
        let mut translations = Translations::new();
        for flow in &folded.flows {
            translations.note(flow, &folded.context().surroundings());
        }
        folded.translations = translations;
        folded
    }

    pub(crate) fn context(&self) -> Context<'_> {
        Context {
            cluster: &self.cluster.history,
            node: &self.node,
            node_name: Some("worker-1"),
            node_netns: Some(NODE),
            missing_hooks: &[],
            hook_gaps: &[],
            drop_reasons: true,
            translations: &self.translations,
            grace: Duration::from_secs(5),
            now: at(u64::from(u32::MAX)),
            metadata_age: Some(0.0),
            words: Words::Written,
        }
    }
}
