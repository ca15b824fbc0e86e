//! The cluster's objects of now, for a node that is visited later than the watch began.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    cluster::{
        Event, Key, Kind, Update,
        model::{Change, Trimmed},
    },
    time::Timestamp,
};

/// Keeps the newest version of each object, and the state of each kind's watch.
#[derive(Debug, Default)]
pub(crate) struct Relay {
    objects: BTreeMap<(Kind, Key), Trimmed>,
    synced: BTreeSet<Kind>,
    /// Lost or refused.
    troubles: BTreeMap<Kind, Event>,
}

impl Relay {
    pub(crate) fn absorb(&mut self, update: &Update) {
        match &update.event {
            Event::Listed(trimmed) | Event::Changed(Change::Put(trimmed)) => {
                self.objects.insert((update.kind, trimmed.object.key().clone()), trimmed.clone());
                self.troubles.remove(&update.kind);
            }
            Event::Changed(Change::Delete(kind, key)) => {
                self.objects.remove(&(*kind, key.clone()));
                self.troubles.remove(&update.kind);
            }
            Event::Synced => {
                self.synced.insert(update.kind);
                self.troubles.remove(&update.kind);
            }
            Event::Heard => {
                self.troubles.remove(&update.kind);
            }
            Event::Lost(_) | Event::Denied(_) => {
                self.troubles.insert(update.kind, update.event.clone());
            }
            Event::Odd(_) => {}
        }
    }

    /// What a node has to know at `now`.
    pub(crate) fn updates(&self, now: Timestamp) -> impl Iterator<Item = Update> + '_ {
        let update = move |kind, event| Update { kind, received: now, event };
        let listed = self
            .objects
            .iter()
            .map(move |((kind, _), trimmed)| update(*kind, Event::Listed(trimmed.clone())));
        let synced = self.synced.iter().map(move |kind| update(*kind, Event::Synced));
        let troubles = self.troubles.iter().map(move |(kind, event)| update(*kind, event.clone()));
        listed.chain(synced).chain(troubles)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{History, trim::trim};

    fn pod(name: &str, ip: &str) -> Trimmed {
        let json = serde_json::json!({
            "metadata": {"namespace": "shop", "name": name, "uid": "00000000-0000-0000-0000-000000000001"},
            "spec": {"nodeName": "worker-1", "containers": []},
            "status": {"podIP": ip, "podIPs": [{"ip": ip}], "phase": "Running"},
        });
        trim(Kind::Pod, &json, &mut Vec::new()).unwrap()
    }

    fn update(event: Event) -> Update {
        Update { kind: Kind::Pod, received: Timestamp::from_unix_secs(5), event }
    }

    #[test]
    fn a_later_node_gets_the_objects_of_now() {
        let mut relay = Relay::default();
        for event in [
            Event::Lost("no route".into()),
            Event::Listed(pod("cart-1", "10.244.1.5")),
            Event::Listed(pod("cart-2", "10.244.1.6")),
            Event::Synced,
            Event::Changed(Change::Put(pod("cart-1", "10.244.1.7"))),
            Event::Changed(Change::Delete(Kind::Pod, Key::new("shop", "cart-2"))),
        ] {
            relay.absorb(&update(event));
        }
        let now = Timestamp::from_unix_secs(9);
        let sent: Vec<Update> = relay.updates(now).collect();
        assert!(matches!(
            sent.as_slice(),
            [Update { event: Event::Listed(_), .. }, Update { event: Event::Synced, .. }]
        ));
        let mut history = History::new(crate::cluster::LOOK_BACK);
        for Update { received, event, .. } in sent {
            if let Event::Listed(trimmed) = event {
                history.apply_listed(received, trimmed);
            }
        }
        assert!(history.pod_by_ip("10.244.1.7".parse().unwrap(), now).is_some());
        assert!(history.pod_by_ip("10.244.1.6".parse().unwrap(), now).is_none());
        relay.absorb(&update(Event::Denied("forbidden".into())));
        assert!(matches!(relay.updates(now).last(), Some(Update { event: Event::Denied(_), .. })));
    }
}
