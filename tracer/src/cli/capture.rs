//! `viptrace capture`: saves the input of a check in a folder. A check uses the same collection of node and API server.

use std::{path::Path, time::Duration};

use anyhow::Context as _;

use crate::{
    cli::{
        Outcome, ResultExt as _,
        args::{CaptureOptions, ClusterSource},
    },
    cluster::{
        Access,
        raw::{Ask, Lister},
        watch::Limits,
    },
    node::{
        self, Collector, Reason, Request,
        capture::{Capture, Kind, folder},
    },
    report::Printer,
    text::count,
};

/// The limit of one request to the API server. A person waits for the answer.
const REQUEST: Duration = Duration::from_secs(20);

/// Takes the capture and reports its gaps.
pub(super) fn run(options: &CaptureOptions, mut printer: Printer) -> anyhow::Result<Outcome> {
    // Checked before the work, so that a refusal comes at once.
    folder::prepare(&options.folder).hint(|| "name a new or an empty folder".to_owned())?;
    let capture = collect(&options.cluster, options.node.clone(), &mut printer)?;
    if capture.artifacts.is_empty() {
        return Err(anyhow::anyhow!("nothing could be read: there is nothing to save"))
            .hint(|| "run it as root on a node, with a kubeconfig".to_owned());
    }
    let manifest = folder::write(&options.folder, &capture, node::now())?;
    for gap in &manifest.gaps {
        printer.detail(&format!("without {}: {}", gap.name, gap.why));
    }
    let bytes: u64 = manifest.files.iter().map(|file| file.bytes).sum();
    printer.data(&format!(
        "{}: {}, {bytes} bytes; {} could not be collected (see viptrace-capture.json)\n",
        options.folder.display(),
        count(manifest.files.len(), "file"),
        manifest.gaps.len(),
    ))?;
    printer.flush()?;
    Ok(Outcome::Clean)
}

/// Collects the facts of this node and of the cluster at the same time.
pub(super) fn collect(
    cluster: &ClusterSource,
    node: Option<String>,
    printer: &mut Printer,
) -> anyhow::Result<Capture> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the event loop")?;
    printer.detail("reading this node and the cluster");
    let collector = Collector::default();
    let capture = runtime.block_on(async {
        match cluster {
            ClusterSource::Folder(dir) => {
                let mut capture = collector.collect(Request::Check).await;
                from_folder(dir, &mut capture)?;
                anyhow::Ok(capture)
            }
            ClusterSource::Api { kubeconfig, context } => {
                let limits = Limits { request: REQUEST, ..Limits::default() };
                let access = Access {
                    kubeconfig: kubeconfig.clone(),
                    context: context.clone(),
                    limits,
                    ..Access::default()
                };
                // An explicitly named kubeconfig must be valid.
                if kubeconfig.is_some() || context.is_some() {
                    Lister::open(&access).await?;
                }
                let (mut capture, objects) =
                    tokio::join!(collector.collect(Request::Check), from_api(&access, node.as_deref()));
                add_objects(&mut capture, objects);
                Ok(capture)
            }
        }
    });
    // A hanging read of the node is abandoned.
    runtime.shutdown_background();
    let mut capture = capture?;
    capture.node = node;
    capture.taken = Some(node::now());
    Ok(capture)
}

/// Adds what the API server returned to a node's capture. A log and a configuration that the node itself has are preferred.
pub(super) fn add_objects(capture: &mut Capture, mut objects: Capture) {
    let own_log = capture.get(Kind::ProxyLog).is_some();
    let own_config = capture.get(Kind::ProxyConfig).is_some();
    let wanted = |kind: Kind| {
        !(own_log && matches!(kind, Kind::ProxyLog | Kind::ProxyLogPrevious)
            || own_config && kind == Kind::ProxyConfig)
    };
    objects.artifacts.retain(|artifact| wanted(artifact.kind));
    objects.gaps.retain(|gap| wanted(gap.kind));
    capture.absorb(objects);
    let have: Vec<Kind> = capture.artifacts.iter().map(|artifact| artifact.kind).collect();
    capture.gaps.retain(|gap| !have.contains(&gap.kind));
}

/// As [`from_folder`], instead of the lists that the capture has.
pub(super) fn replace_lists(dir: &Path, capture: &mut Capture) -> anyhow::Result<()> {
    capture.artifacts.retain(|artifact| artifact.kind.is_of_node());
    from_folder(dir, capture)?;
    let have: Vec<Kind> = capture.artifacts.iter().map(|artifact| artifact.kind).collect();
    capture.gaps.retain(|gap| !have.contains(&gap.kind));
    Ok(())
}

/// Reads the cluster's lists from a folder and ignores its other files.
fn from_folder(dir: &Path, capture: &mut Capture) -> anyhow::Result<()> {
    let read = folder::read(dir, None).hint(|| {
        "--cluster-from takes a folder with lists, as `kubectl get services -A -o json` writes them"
            .to_owned()
    })?;
    capture
        .artifacts
        .extend(read.capture.artifacts.into_iter().filter(|artifact| !artifact.kind.is_of_node()));
    Ok(())
}

/// The API server's objects.
async fn from_api(access: &Access, node: Option<&str>) -> Capture {
    let objects = Objects::read(access).await;
    match node {
        Some(node) => objects.for_node(node).await,
        None => objects.capture,
    }
}

/// The API server's objects, for the checks of several nodes.
pub(super) struct Objects {
    capture: Capture,
    pods: Option<serde_json::Value>,
    lister: Option<Lister>,
}

impl Objects {
    /// Reads everything that the checks of all nodes share.
    pub(super) async fn read(access: &Access) -> Self {
        let mut capture = Capture::default();
        match Lister::open(access).await {
            Ok(lister) => {
                let pods = lists(&lister, &mut capture).await;
                Self { capture, pods, lister: Some(lister) }
            }
            Err(error) => {
                for ask in Ask::ALL {
                    capture.miss(kind_of(ask), Reason::Quoted { text: error.to_string() });
                }
                Self { capture, pods: None, lister: None }
            }
        }
    }

    /// With the logs of kube-proxy on this node.
    pub(super) async fn for_node(&self, node: &str) -> Capture {
        let mut capture = self.capture.clone();
        if let (Some(lister), Some(pods)) = (&self.lister, &self.pods) {
            logs(lister, pods, node, &mut capture).await;
        }
        capture
    }
}

/// Reads the lists into the capture, and returns that of the Pods.
async fn lists(lister: &Lister, capture: &mut Capture) -> Option<serde_json::Value> {
    let begun = node::now();
    let answers = futures::future::join_all(Ask::ALL.map(|ask| lister.ask(ask))).await;
    let mut pods = None;
    for (ask, answer) in Ask::ALL.into_iter().zip(answers) {
        match answer {
            Ok(value) => {
                let source = format!("GET {}", ask.path());
                capture.put_read(kind_of(ask), source, value.to_string(), Some(begun));
                if ask == Ask::Pods {
                    pods = Some(value);
                }
            }
            Err(text) => capture.miss(kind_of(ask), Reason::Quoted { text }),
        }
    }
    pods
}

/// The log of kube-proxy's Pod on this node.
async fn logs(lister: &Lister, pods: &serde_json::Value, node: &str, capture: &mut Capture) {
    let text = |pod: &serde_json::Value, pointer: &str| {
        pod.pointer(pointer).and_then(|value| value.as_str()).unwrap_or_default().to_owned()
    };
    let items = pods.get("items").and_then(serde_json::Value::as_array);
    let is_it = |pod: &&serde_json::Value| {
        text(pod, "/spec/nodeName") == node
            && (text(pod, "/metadata/labels/k8s-app") == "kube-proxy"
                || text(pod, "/metadata/labels/component") == "kube-proxy")
    };
    let Some(pod) = items.into_iter().flatten().find(is_it) else { return };
    let (namespace, name) = (text(pod, "/metadata/namespace"), text(pod, "/metadata/name"));
    let statuses = pod.pointer("/status/containerStatuses").and_then(serde_json::Value::as_array);
    let restarts = statuses.into_iter().flatten().any(|status| {
        status.get("restartCount").and_then(serde_json::Value::as_u64).is_some_and(|count| count > 0)
    });
    for (kind, previous, wanted) in [(Kind::ProxyLog, false, true), (Kind::ProxyLogPrevious, true, restarts)]
    {
        if !wanted {
            continue;
        }
        match lister.log(&namespace, &name, previous).await {
            Ok(log) => capture.put(kind, format!("log of Pod {namespace}/{name}"), log),
            Err(text) => capture.miss(kind, Reason::Quoted { text }),
        }
    }
}

const fn kind_of(ask: Ask) -> Kind {
    match ask {
        Ask::Services => Kind::Services,
        Ask::EndpointSlices => Kind::EndpointSlices,
        Ask::Pods => Kind::Pods,
        Ask::Nodes => Kind::Nodes,
        Ask::DaemonSets => Kind::DaemonSets,
        Ask::Events => Kind::Events,
        Ask::ProxyConfig => Kind::ProxyConfig,
        Ask::Version => Kind::ApiVersion,
    }
}
