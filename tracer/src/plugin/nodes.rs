//! The choice of nodes. Pure: it knows the cluster's history only.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use super::pod::{MANAGED_BY, NAME};
use crate::{
    cluster::{
        History, Key,
        model::{Phase, Pod, Unfit},
    },
    text::shortened,
    time::Timestamp,
};

/// The most nodes that are visited without an explicit choice.
pub(crate) const MAX_NODES: usize = 10;

/// What the user said about the nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wish {
    pub(crate) nodes: Vec<String>,
    pub(crate) all: bool,
    /// The client whose node matters.
    pub(crate) client: Option<Key>,
}

/// The nodes to visit, and why these.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) nodes: Vec<String>,
    pub(crate) why: String,
    /// Nodes that would be visited, but no Pod can start there.
    pub(crate) left_out: Vec<(String, Unreachable)>,
    /// The user named each of the nodes.
    pub(crate) is_named: bool,
    /// Nodes whose Pods are seen talking to the Service join later.
    pub(crate) may_grow: bool,
}

impl Choice {
    /// Whether it would be wrong to call a result without this node a partial one: the node has nothing that viptrace could
    /// observe, and the user did not name it.
    pub(crate) fn excuses(&self, why: Unreachable) -> bool {
        !self.is_named && matches!(why, Unreachable::Windows | Unreachable::Virtual)
    }
}

/// Why a node is not visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreachable {
    NotReady,
    Windows,
    Virtual,
}

impl fmt::Display for Unreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotReady => "the node is not Ready: no Pod can start there",
            Self::Windows => "the node runs Windows: viptrace observes Linux nodes only",
            Self::Virtual => {
                "the node is virtual: its Pods have no kernel that viptrace can observe from there"
            }
        })
    }
}

/// Chooses the nodes for this Service, or for the whole cluster. The error is for the user.
pub(crate) fn choose(
    history: &History,
    wish: &Wish,
    service: Option<&Key>,
    now: Timestamp,
) -> Result<Choice, String> {
    let known: BTreeSet<&str> = history.nodes().map(|node| &*node.key.name).collect();
    let fixed =
        |nodes: Vec<String>, why: String| reachable(history, Choice { nodes, why, ..Choice::default() });
    if !wish.nodes.is_empty() {
        if let Some(unknown) = wish.nodes.iter().find(|name| !known.contains(name.as_str())) {
            return Err(format!("the cluster has no Node {unknown}; it has {}", shortened(&known)));
        }
        let nodes: BTreeSet<&String> = wish.nodes.iter().collect();
        let choice = fixed(nodes.into_iter().cloned().collect(), "chosen by --node".to_owned());
        return Ok(Choice { is_named: true, ..choice });
    }
    let all = || known.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    if known.is_empty() {
        return Err("the cluster has no Node".to_owned());
    }
    if wish.all {
        return Ok(fixed(all(), "all".to_owned()));
    }
    if let Some(client) = &wish.client {
        let pod = history.pod(client, now).ok_or_else(|| format!("there is no Pod {client}"))?;
        let node = pod.node.as_deref().ok_or_else(|| format!("the Pod {client} is on no node yet"))?;
        return Ok(fixed(vec![node.to_owned()], format!("that of the client {client}")));
    }
    if known.len() <= MAX_NODES {
        return Ok(fixed(all(), "all of this cluster".to_owned()));
    }
    let Some(service) = service else {
        return Err(format!(
            "the cluster has {} nodes: name a Service, choose with --node NAME or --client pod/NAMESPACE/NAME, or visit \
             every node with --all-nodes",
            known.len()
        ));
    };
    let mut of_endpoints = endpoint_nodes(history, service, now);
    of_endpoints.retain(|name| known.contains(name.as_str()));
    if of_endpoints.is_empty() {
        return Err(format!(
            "{service} has no endpoint on a node, and the cluster has {} nodes: choose that of a client with --node NAME or \
             --client pod/NAMESPACE/NAME",
            known.len()
        ));
    }
    let nodes: Vec<String> = of_endpoints.into_iter().collect();
    let (all, why) = (nodes.len(), format!("those with endpoints of {service}"));
    let mut choice = reachable(history, Choice { nodes, why, may_grow: true, ..Choice::default() });
    // Those that cannot be visited take no place of the others, and all of them are named.
    if choice.nodes.len() > MAX_NODES {
        choice.nodes.truncate(MAX_NODES);
        choice.why = format!("{MAX_NODES} of the {all} with endpoints of {service}");
    }
    Ok(choice)
}

/// Separates the nodes on which no Pod can start.
fn reachable(history: &History, choice: Choice) -> Choice {
    let known: BTreeMap<&str, _> = history.nodes().map(|node| (&*node.key.name, node)).collect();
    let obstacle = |name: &str| match known.get(name).map(|node| (node.unfit, node.ready)) {
        Some((Some(Unfit::Windows), _)) => Some(Unreachable::Windows),
        Some((Some(Unfit::Virtual), _)) => Some(Unreachable::Virtual),
        Some((None, Some(true))) => None,
        _ => Some(Unreachable::NotReady),
    };
    let (mut nodes, mut left_out) = (Vec::new(), Vec::new());
    for name in choice.nodes {
        match obstacle(&name) {
            None => nodes.push(name),
            Some(why) => left_out.push((name, why)),
        }
    }
    Choice { nodes, left_out, ..choice }
}

/// The ready agent on each node that has one.
pub(crate) fn agents(history: &History) -> BTreeMap<String, Key> {
    by_node(agent_pods(history).filter(|pod| pod.ready))
}

/// The agent on each node that has one, whether it is ready or not: it keeps its recordings all the same.
pub(crate) fn running_agents(history: &History) -> BTreeMap<String, Key> {
    let mut agents = by_node(agent_pods(history).filter(|pod| pod.phase == Phase::Running));
    agents.extend(self::agents(history));
    agents
}

fn agent_pods(history: &History) -> impl Iterator<Item = &Arc<Pod>> {
    let is_agent = |pod: &&Arc<Pod>| {
        pod.deletion.is_none()
            && pod.labels.get(NAME.0) == Some(NAME.1)
            && pod.labels.get(MANAGED_BY.0) != Some(MANAGED_BY.1)
    };
    history.pods().filter(is_agent)
}

fn by_node<'a>(pods: impl Iterator<Item = &'a Arc<Pod>>) -> BTreeMap<String, Key> {
    pods.filter_map(|pod| Some((pod.node.as_deref()?.to_owned(), pod.key.clone()))).collect()
}

/// The nodes of a Service's endpoints.
pub(crate) fn endpoint_nodes(history: &History, service: &Key, now: Timestamp) -> BTreeSet<String> {
    let Some(found) = history.service(service, now) else { return BTreeSet::new() };
    let states = found.ports.iter().flat_map(|port| history.endpoints(service, port, now));
    states.filter_map(|state| state.node.map(str::to_owned)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::{Kind, trim::trim};

    fn put(history: &mut History, kind: Kind, object: &Value) {
        let trimmed = trim(kind, object, &mut Vec::new()).unwrap();
        history.apply_listed(Timestamp::from_unix_secs(5), trimmed);
        history.mark_known(kind);
    }

    /// A cluster of so many nodes, of which the last is not ready, with an endpoint and a client.
    fn cluster(nodes: usize) -> History {
        let mut history = History::new(crate::cluster::LOOK_BACK);
        for number in 1..=nodes {
            let status = if number == nodes && number > 1 { "Unknown" } else { "True" };
            put(
                &mut history,
                Kind::Node,
                &json!({
                    "metadata": {"name": format!("n{number:02}"), "uid": format!("n{number}")},
                    "status": {"conditions": [{"type": "Ready", "status": status}]},
                }),
            );
        }
        put(
            &mut history,
            Kind::Service,
            &json!({
                "metadata": {"namespace": "shop", "name": "cart", "uid": "s"},
                "spec": {"clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"], "ports": [{"port": 80}]},
            }),
        );
        put(
            &mut history,
            Kind::EndpointSlice,
            &json!({
                "metadata": {"namespace": "shop", "name": "cart-1", "uid": "e", "labels": {"kubernetes.io/service-name": "cart"}},
                "addressType": "IPv4",
                "ports": [{"port": 8080, "protocol": "TCP"}],
                "endpoints": [{"addresses": ["10.244.2.5"], "nodeName": "n02", "conditions": {"ready": true}}],
            }),
        );
        put(
            &mut history,
            Kind::Pod,
            &json!({
                "metadata": {"namespace": "shop", "name": "web-0", "uid": "p"},
                "spec": {"nodeName": "n03", "containers": []},
                "status": {"phase": "Running", "podIPs": [{"ip": "10.244.3.5"}]},
            }),
        );
        history
    }

    fn chosen(nodes: usize, wish: &Wish) -> Result<Choice, String> {
        choose(&cluster(nodes), wish, Some(&Key::new("shop", "cart")), Timestamp::from_unix_secs(9))
    }

    #[test]
    fn a_small_cluster_is_visited_whole_but_for_what_is_not_ready() {
        let choice = chosen(3, &Wish::default()).unwrap();
        assert_eq!(
            (choice.nodes, choice.left_out),
            (vec!["n01".into(), "n02".into()], vec![("n03".to_owned(), Unreachable::NotReady)])
        );
    }

    #[test]
    fn a_node_that_is_no_linux_machine_is_not_visited() {
        let mut history = cluster(1);
        let mut add = |name: &str, labels: Value, system: &str| {
            let node = json!({
                "metadata": {"name": name, "uid": name, "labels": labels},
                "status": {
                    "conditions": [{"type": "Ready", "status": "True"}],
                    "nodeInfo": {
                        "operatingSystem": system, "architecture": "", "bootID": "", "containerRuntimeVersion": "",
                        "kernelVersion": "", "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "", "osImage": "",
                        "systemUUID": "",
                    },
                },
            });
            put(&mut history, Kind::Node, &node);
        };
        add("aci", json!({"type": "virtual-kubelet"}), "Linux");
        add("fargate", json!({"eks.amazonaws.com/compute-type": "fargate"}), "linux");
        add("linux", json!({"kubernetes.io/os": "linux", "type": "spot"}), "linux");
        add("win", json!({}), "windows");
        let choice = choose(&history, &Wish::default(), None, Timestamp::from_unix_secs(9)).unwrap();
        assert_eq!(choice.nodes, ["linux", "n01"]);
        let left_out = [
            ("aci".to_owned(), Unreachable::Virtual),
            ("fargate".to_owned(), Unreachable::Virtual),
            ("win".to_owned(), Unreachable::Windows),
        ];
        assert_eq!(choice.left_out, left_out);
        assert!(choice.left_out.iter().all(|(_, why)| choice.excuses(*why)));
        assert!(
            !choice.excuses(Unreachable::NotReady),
            "a Linux node that is down may be the one with the fault"
        );
        let named = Wish { nodes: vec!["win".into(), "linux".into()], ..Wish::default() };
        let choice = choose(&history, &named, None, Timestamp::from_unix_secs(9)).unwrap();
        assert!(!choice.excuses(Unreachable::Windows), "the user asked for it");
    }

    #[test]
    fn nodes_that_cannot_be_visited_take_no_place_of_others() {
        let mut history = cluster(40);
        let endpoint = |number: usize| {
            json!({
                "addresses": [format!("10.244.{number}.5")], "nodeName": format!("n{number:02}"),
                "conditions": {"ready": true},
            })
        };
        for number in 1..=5 {
            let node = json!({
                "metadata": {"name": format!("n{number:02}"), "uid": format!("n{number}")},
                "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]},
            });
            put(&mut history, Kind::Node, &node);
        }
        let slice = json!({
            "metadata": {"namespace": "shop", "name": "cart-1", "uid": "e", "labels": {"kubernetes.io/service-name": "cart"}},
            "addressType": "IPv4",
            "ports": [{"port": 8080, "protocol": "TCP"}],
            "endpoints": (1..=12).map(endpoint).collect::<Vec<_>>(),
        });
        put(&mut history, Kind::EndpointSlice, &slice);
        let choice =
            choose(&history, &Wish::default(), Some(&Key::new("shop", "cart")), Timestamp::from_unix_secs(9))
                .unwrap();
        assert_eq!((choice.nodes.len(), choice.left_out.len()), (7, 5), "{choice:?}");
        assert!(choice.nodes.contains(&"n12".to_owned()), "{choice:?}");
    }

    #[test]
    fn in_a_large_one_the_endpoints_decide_and_clients_join() {
        let choice = chosen(40, &Wish::default()).unwrap();
        assert_eq!((choice.nodes.as_slice(), choice.may_grow), (&["n02".to_owned()][..], true));
        let client = Wish { client: Some(Key::new("shop", "web-0")), ..Wish::default() };
        assert_eq!(chosen(40, &client).unwrap().nodes, ["n03"]);
        let all = Wish { all: true, ..Wish::default() };
        assert_eq!(chosen(40, &all).unwrap().nodes.len(), 39);
        let no_service = choose(&cluster(40), &Wish::default(), None, Timestamp::from_unix_secs(9));
        assert!(no_service.unwrap_err().contains("has 40 nodes: name a Service"));
    }

    #[test]
    fn an_agent_is_found_by_its_label_and_the_plugins_own_pods_are_none() {
        let mut history = cluster(3);
        let pod = |name: &str, node: &str, extra: &str, ready: &str| {
            let mut labels = json!({"app.kubernetes.io/name": "viptrace"});
            if !extra.is_empty() {
                labels[MANAGED_BY.0] = json!(extra);
            }
            json!({
                "metadata": {"namespace": "viptrace", "name": name, "uid": name, "labels": labels},
                "spec": {"nodeName": node, "containers": []},
                "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]},
            })
        };
        put(&mut history, Kind::Pod, &pod("viptrace-x1", "n01", "Helm", "True"));
        put(&mut history, Kind::Pod, &pod("viptrace-x2", "n02", "", "False"));
        put(&mut history, Kind::Pod, &pod("viptrace-1-0", "n03", MANAGED_BY.1, "True"));
        assert_eq!(agents(&history), [("n01".to_owned(), Key::new("viptrace", "viptrace-x1"))].into());
        let running: Vec<String> = running_agents(&history).into_keys().collect();
        assert_eq!(running, ["n01", "n02"], "one that is not ready has its recordings");
    }

    #[test]
    fn a_wrong_name_is_an_error_with_the_right_ones() {
        let wish = Wish { nodes: vec!["n9".into()], ..Wish::default() };
        assert_eq!(chosen(2, &wish).unwrap_err(), "the cluster has no Node n9; it has n01 and n02");
        let ghost = Wish { client: Some(Key::new("shop", "ghost")), ..Wish::default() };
        assert_eq!(chosen(2, &ghost).unwrap_err(), "there is no Pod shop/ghost");
    }
}
