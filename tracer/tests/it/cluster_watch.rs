//! The real kube client against an API server that changes, compacts its log, refuses, hangs and becomes unavailable.

use std::{collections::BTreeSet, fs, net::SocketAddr, path::Path, time::Duration};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::timeout;
use viptrace::{
    cluster::{Access, Address, Cluster, Event, Feed, Key, Kind, LOOK_BACK, Limits, Membership, Source},
    error::Hint as _,
    net::Protocol,
    time::Timestamp,
};
use viptrace_lab::apiserver::{Absence, ApiServer};

/// A condition that has not come true by then never will.
const LIMIT: Duration = Duration::from_secs(20);

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/cluster");

/// An endpoint of `shop/cart` on worker-1.
const CART_2: &str = "10.244.1.12:8080";

struct Lab {
    server: ApiServer,
    cluster: Cluster,
    feed: Feed,
    /// The latest time that an update carried.
    now: Timestamp,
    _dir: TempDir,
}

fn fixture(name: &str) -> Value {
    let path = Path::new(FIXTURES).join(name);
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

fn serve() -> ApiServer {
    let lists =
        ["services.json", "endpointslices.json", "pods.json", "nodes.json", "namespaces.json"].map(fixture);
    ApiServer::start(SocketAddr::from(([127, 0, 0, 1], 0)), lists.into()).unwrap()
}

fn limits() -> Limits {
    Limits {
        connect: Duration::from_secs(1),
        request: Duration::from_millis(500),
        silence: Duration::from_secs(5),
        sync: LIMIT,
        retry: Duration::from_millis(20),
        retry_max: Duration::from_millis(100),
    }
}

async fn open(server: &ApiServer, dir: &TempDir, limits: Limits) -> (Cluster, Feed) {
    let path = dir.path().join("kubeconfig");
    fs::write(&path, server.kubeconfig()).unwrap();
    let source = Source::Watch(Access { kubeconfig: Some(path), limits, ..Access::default() });
    let opened = source.open(LOOK_BACK).await.unwrap();
    (opened.cluster, opened.feed)
}

fn slice_changed(_: &Cluster, kind: Kind, event: &Event, _: Timestamp) -> bool {
    kind == Kind::EndpointSlice && matches!(event, Event::Changed(_))
}

fn node_heard(_: &Cluster, kind: Kind, event: &Event, _: Timestamp) -> bool {
    kind == Kind::Node && matches!(event, Event::Heard)
}

fn cart(cluster: &Cluster, at: Timestamp) -> Membership<'_> {
    let key = Key::new("shop", "cart");
    let service = cluster.history.service(&key, at).unwrap();
    cluster.history.membership_in(&key, service.ports.first().unwrap(), CART_2.parse().unwrap(), at)
}

impl Lab {
    async fn synced() -> Self {
        Self::synced_with(serve(), limits()).await
    }

    async fn synced_with(server: ApiServer, limits: Limits) -> Self {
        let dir = TempDir::new().unwrap();
        let (mut cluster, mut feed) = open(&server, &dir, limits).await;
        cluster.sync(&mut feed).await.unwrap();
        Self { server, cluster, feed, now: Timestamp::MIN, _dir: dir }
    }

    /// Absorbs updates until `wanted` returns true.
    async fn until(&mut self, what: &str, mut wanted: impl FnMut(&Cluster, Kind, &Event, Timestamp) -> bool) {
        let wait = async {
            loop {
                let update = self.feed.next().await;
                let (kind, event) = (update.kind, update.event.clone());
                self.now = self.now.max(update.received);
                self.cluster.absorb(update);
                if wanted(&self.cluster, kind, &event, self.now) {
                    return;
                }
            }
        };
        timeout(LIMIT, wait).await.unwrap_or_else(|_| panic!("timed out: {what}"));
    }

    /// A list is answered before its watch is open; this waits for the watch.
    async fn until_watching(&mut self) {
        let server = &self.server;
        let opened = || Kind::ALL.iter().all(|kind| server.watches_served(&kind.to_string()) > 0);
        let wait = async {
            while !opened() {
                let update = self.feed.next().await;
                self.cluster.absorb(update);
            }
        };
        timeout(LIMIT, wait).await.expect("every watch opened");
    }

    /// Removes cart-2 from the slice of `shop/cart`.
    fn remove_cart_2(&self) {
        let mut slice = self.server.get("EndpointSlice", "shop", "cart-kd6xk").unwrap();
        let endpoints = slice.pointer_mut("/endpoints").and_then(Value::as_array_mut).unwrap();
        endpoints.retain(|endpoint| endpoint.pointer("/addresses/0") != Some(&json!("10.244.1.12")));
        self.server.apply(slice).unwrap();
    }
}

#[tokio::test]
async fn the_first_lists_give_everything() {
    let lab = Lab::synced().await;
    let at = Timestamp::from_unix_ns(u64::MAX);
    let found = lab.cluster.history.address("10.96.10.10:80".parse().unwrap(), Protocol::TCP, at);
    assert!(matches!(found, Address::Vip(found) if *found.service.key.name == *"cart"));
    assert_eq!(lab.cluster.history.counts().objects, 11 + 9 + 15 + 2);
    assert_eq!(lab.cluster.status.oddities, 0, "{:?}", lab.cluster.status.odd);
    assert!(matches!(cart(&lab.cluster, at), Membership::Member { .. }));
}

#[tokio::test]
async fn changes_have_the_time_of_their_arrival() {
    let mut lab = Lab::synced().await;
    lab.until_watching().await;
    lab.remove_cart_2();
    lab.until("the slice's change", slice_changed).await;
    let Membership::Left { at, last } = cart(&lab.cluster, lab.now) else { panic!("cart-2 has not left") };
    assert!(at <= lab.now && last.conditions.ready);
    let before = at.saturating_sub(Duration::from_nanos(1));
    assert!(matches!(cart(&lab.cluster, before), Membership::Member { .. }), "the past stays");
    assert!(lab.server.delete("Service", "shop", "cart"));
    lab.until("the Service's deletion", |cluster, _, _, now| {
        cluster.history.service(&Key::new("shop", "cart"), now).is_none()
    })
    .await;
    let gone = lab.cluster.history.address("10.96.10.10:80".parse().unwrap(), Protocol::TCP, lab.now);
    assert!(matches!(gone, Address::Gone { .. }));
}

#[tokio::test]
async fn a_recorded_watch_can_be_played() {
    let mut lab = Lab::synced().await;
    lab.until_watching().await;
    for name in ["pods", "endpointslices", "services"] {
        let path = Path::new(FIXTURES).join(format!("{name}.watch.jsonl"));
        for line in fs::read_to_string(path).unwrap().lines() {
            lab.server.play(serde_json::from_str(line).unwrap()).unwrap();
        }
    }
    let legacy = Key::new("shop", "legacy");
    let cart_2 = Key::new("shop", "cart-2");
    lab.until("the end of the streams", |cluster, _, _, now| {
        let history = &cluster.history;
        history.service(&legacy, now).is_none()
            && history.pod(&cart_2, now).is_none()
            && matches!(cart(cluster, now), Membership::Left { .. })
    })
    .await;
}

#[tokio::test]
async fn changes_of_an_outage_are_caught_up_with() {
    let mut lab = Lab::synced().await;
    lab.until_watching().await;
    lab.server.go_away(Absence::Refused);
    lab.until("the loss of the slices", |cluster, _, _, _| {
        !cluster.status.kind(Kind::EndpointSlice).connected
    })
    .await;
    let later = lab.now.saturating_add(Duration::from_secs(30));
    let age = lab.cluster.metadata_age(later).unwrap();
    assert!(age >= 30.0, "metadata is {age} s old");
    assert!(
        lab.cluster
            .status
            .gaps(later)
            .iter()
            .any(|gap| gap.contains("EndpointSlices") && gap.contains("s old"))
    );
    lab.remove_cart_2();
    lab.server.come_back().unwrap();
    lab.until("the change made meanwhile", |cluster, _, _, now| {
        cluster.status.gaps(now).is_empty() && matches!(cart(cluster, now), Membership::Left { .. })
    })
    .await;
    assert_eq!(lab.cluster.metadata_age(lab.now), Some(0.0));
    assert_eq!(lab.server.lists_served("EndpointSlice"), 1, "the watch went on where it left off");
}

#[tokio::test]
async fn after_410_gone_a_new_list_shows_what_vanished() {
    let mut lab = Lab::synced().await;
    lab.until_watching().await;
    lab.server.go_away(Absence::Refused);
    lab.until("the loss of the Pods", |cluster, _, _, _| !cluster.status.kind(Kind::Pod).connected).await;
    assert!(lab.server.delete("Pod", "shop", "cart-2"));
    lab.server.compact();
    lab.server.come_back().unwrap();
    let key = Key::new("shop", "cart-2");
    lab.until("the Pod's deletion", |cluster, _, _, now| cluster.history.pod(&key, now).is_none()).await;
    assert_eq!(lab.server.lists_served("Pod"), 2);
    let (pod, _) = lab.cluster.history.last_pod_by_ip("10.244.1.12".parse().unwrap(), lab.now).unwrap();
    assert_eq!(pod.key, key, "the former owner of the address is still known");
}

#[tokio::test]
async fn bookmarks_move_the_watch_on_so_that_a_compaction_costs_no_list() {
    let server = serve();
    server.set_bookmark_period(Duration::from_millis(20));
    let mut lab = Lab::synced_with(server, limits()).await;
    lab.until_watching().await;
    // The versions change without changes to the nodes; only bookmarks reach their watch.
    lab.remove_cart_2();
    lab.until("the slice's change", slice_changed).await;
    for _ in 0..3 {
        lab.until("a bookmark", node_heard).await;
    }
    let opened = lab.server.watches_served("Node");
    lab.server.compact();
    lab.server.cut_watches();
    let server = &lab.server;
    let wait = async {
        while server.watches_served("Node") == opened {
            let update = lab.feed.next().await;
            lab.cluster.absorb(update);
        }
    };
    timeout(LIMIT, wait).await.expect("the watch is opened again");
    for _ in 0..3 {
        lab.until("a further bookmark", node_heard).await;
    }
    assert_eq!(lab.server.lists_served("Node"), 1);
}

#[tokio::test]
async fn a_server_that_hangs_is_reported() {
    let quick =
        Limits { silence: Duration::from_millis(200), request: Duration::from_millis(200), ..limits() };
    let mut lab = Lab::synced_with(serve(), quick).await;
    lab.until_watching().await;
    lab.server.go_away(Absence::Hung);
    lab.until("the hang", |_, _, event, _| matches!(event, Event::Lost(why) if why.contains("no answer")))
        .await;
    assert!(lab.cluster.metadata_age(lab.now).unwrap() > 0.0);
    lab.remove_cart_2();
    lab.server.come_back().unwrap();
    lab.until("recovery", |cluster, _, _, now| {
        cluster.status.gaps(now).is_empty() && matches!(cart(cluster, now), Membership::Left { .. })
    })
    .await;
}

#[tokio::test]
async fn a_forbidden_kind_is_a_named_gap_and_the_others_work() {
    let server = serve();
    server.forbid("Pod");
    let lab = Lab::synced_with(server, limits()).await;
    let gaps = lab.cluster.status.gaps(Timestamp::MIN);
    assert_eq!(gaps.len(), 1, "{gaps:?}");
    assert!(
        gaps.iter().all(|gap| gap.starts_with("Pods are not known: HTTP 403 Forbidden: pods is forbidden")),
        "{gaps:?}"
    );
    assert!(lab.cluster.history.knows(Kind::Service) && !lab.cluster.history.knows(Kind::Pod));
}

#[tokio::test]
async fn refused_services_are_an_error_at_once() {
    for kinds in [&Kind::ALL[..], &[Kind::Service]] {
        let server = serve();
        for kind in kinds {
            server.forbid(&kind.to_string());
        }
        let dir = TempDir::new().unwrap();
        let (mut cluster, mut feed) = open(&server, &dir, limits()).await;
        let error = cluster.sync(&mut feed).await.unwrap_err().to_string();
        assert!(
            error.contains("refuses to list the Services: HTTP 403") && !error.contains("within"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a_missing_server_is_an_error_that_names_it_and_the_missing_kinds() {
    for how in [Absence::Refused, Absence::Hung] {
        let mut server = serve();
        server.go_away(how);
        let dir = TempDir::new().unwrap();
        let brief = Limits { sync: Duration::from_secs(1), request: Duration::from_millis(100), ..limits() };
        let (mut cluster, mut feed) = open(&server, &dir, brief).await;
        let error = cluster.sync(&mut feed).await.unwrap_err();
        assert!(error.hint().unwrap().contains("kubectl get"), "{error:?}");
        let error = error.to_string();
        assert!(error.contains(&server.addr().to_string()) && error.contains("Pods"), "{error}");
    }
}

#[tokio::test]
async fn an_invalid_object_is_skipped_and_named() {
    let server = serve();
    server
        .apply(json!({
            "kind": "Service", "apiVersion": "v1", "metadata": {"name": "odd", "namespace": "shop"},
            "spec": {"clusterIP": "10.96.10.99", "ports": [{"port": "eighty"}]},
        }))
        .unwrap();
    let lab = Lab::synced_with(server, limits()).await;
    assert_eq!(lab.cluster.status.oddities, 1);
    assert!(lab.cluster.status.odd.iter().all(|odd| odd.object == "Service shop/odd"));
    assert_eq!(lab.cluster.history.services().count(), 11, "the others are there");
}

/// An API server with this many Pods, `big/p00000` the first.
fn server_of_pods(count: u32) -> ApiServer {
    let pod = |n: u32| json!({"metadata": {"name": format!("p{n:05}"), "namespace": "big"}, "status": {"phase": "Running"}});
    let pods: Vec<_> = (0..count).map(pod).collect();
    let list =
        json!({"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": pods});
    ApiServer::start(SocketAddr::from(([127, 0, 0, 1], 0)), vec![list]).unwrap()
}

#[tokio::test]
async fn a_large_cluster_is_read_in_pages() {
    let server = server_of_pods(1_201);
    let lab = Lab::synced_with(server, limits()).await;
    assert_eq!(lab.cluster.history.counts().objects, 1_201);
}

/// The second page of a list fails, and an object of the first one is deleted before the next list.
#[tokio::test]
async fn an_object_of_a_list_that_was_cut_off_is_deleted() {
    let server = server_of_pods(20_000);
    let dir = TempDir::new().unwrap();
    let (cluster, feed) = open(&server, &dir, limits()).await;
    let mut lab = Lab { server, cluster, feed, now: Timestamp::MIN, _dir: dir };
    lab.until("the first Pod", |cluster, _, _, _| cluster.history.counts().objects > 0).await;
    lab.server.refuse("Pod", 500, "busy");
    lab.until("the failed page", |_, kind, event, _| kind == Kind::Pod && matches!(event, Event::Lost(_)))
        .await;
    let key = Key::new("big", "p00000");
    assert!(lab.cluster.history.pod(&key, lab.now).is_some());
    assert!(lab.server.delete("Pod", "big", "p00000"));
    lab.server.permit("Pod");
    lab.until("the whole list", |_, kind, event, _| kind == Kind::Pod && matches!(event, Event::Synced))
        .await;
    assert!(lab.cluster.history.pod(&key, lab.now).is_none());
}

/// A role that was removed, or an API server that has just started: what was known before grows old.
#[tokio::test]
async fn metadata_that_is_refused_later_grows_old() {
    let mut lab = Lab::synced().await;
    lab.until_watching().await;
    let kinds = Kind::ALL.map(|kind| kind.to_string());
    for kind in &kinds {
        lab.server.forbid(kind);
    }
    lab.server.cut_watches();
    let mut refused = BTreeSet::new();
    lab.until("every refusal", |_, kind, event, _| {
        refused.extend(matches!(event, Event::Denied(_)).then_some(kind));
        refused.len() == Kind::ALL.len()
    })
    .await;
    let later = lab.now.saturating_add(Duration::from_secs(400));
    let age = lab.cluster.status.metadata_age(later).expect("it is known and old");
    assert!(age >= Duration::from_secs(399), "{age:?}");
    let gaps = lab.cluster.status.gaps(later);
    assert!(gaps.iter().any(|gap| gap.contains(" s old: ") && gap.contains("403")), "{gaps:?}");
    // It is tried again soon: a server that starts refuses for a moment.
    for kind in &kinds {
        lab.server.permit(kind);
    }
    lab.until("the next list", |cluster, _, _, _| {
        cluster.status.metadata_age(later).is_some_and(|age| age.is_zero())
    })
    .await;
}

#[tokio::test]
async fn a_server_that_does_not_speak_tls_is_named() {
    let server = serve();
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("kubeconfig");
    fs::write(&path, server.kubeconfig().replace("http://", "https://")).unwrap();
    let limits = Limits { sync: Duration::from_secs(1), ..limits() };
    let source = Source::Watch(Access { kubeconfig: Some(path), limits, ..Access::default() });
    let opened = source.open(LOOK_BACK).await.unwrap();
    let (mut cluster, mut feed) = (opened.cluster, opened.feed);
    let error = cluster.sync(&mut feed).await.unwrap_err().to_string();
    assert!(error.contains("https://127.0.0.1"), "{error}");
}

#[tokio::test]
async fn a_missing_kubeconfig_is_an_error_that_names_it() {
    let access = Access { kubeconfig: Some("/nonexistent/config".into()), ..Access::default() };
    let error = Source::Watch(access).open(LOOK_BACK).await.unwrap_err();
    assert!(error.hint().unwrap().contains("--kubeconfig"), "{error:?}");
    assert!(error.to_string().contains("/nonexistent/config"), "{error}");
}
