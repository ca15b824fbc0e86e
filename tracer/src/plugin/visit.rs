//! A visit to a node: a Pod of its own there, and a command in it.
//!
//! Owns the Pod's life: it is created, attached to, watched until it runs, and deleted. A Pod that cannot start is explained.

mod agent_stream;

use std::{
    fmt,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::{Stream, StreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{AttachParams, AttachedProcess, DeleteParams, ListParams, PostParams},
};
use serde::de::DeserializeOwned;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _},
    sync::{Semaphore, mpsc, oneshot},
    task::{JoinHandle, JoinSet},
    time::{Instant, sleep, timeout},
};

use super::{
    admission::Admission,
    alive::{self, Alive},
    nodes::{Choice, Unreachable},
    output::Output,
    pod::{self, CONTAINER, PROGRAM, PodOptions},
    wire::{self, Answer, Order, Request, Task, VERSION},
};
use crate::{
    cluster::request_error,
    error::Hint,
    text::{clean, length},
};

pub(crate) use agent_stream::{AgentStream, Handed, Heard};

/// The longest time for one request to the API server.
const REQUEST: Duration = Duration::from_secs(15);
/// The Pods that start at the same time.
pub(crate) const AT_ONCE: usize = 16;
/// The interval at which a starting Pod is read.
const POLL: Duration = Duration::from_millis(300);
/// A Pod whose image could not be pulled for this long is given up; the first failure may pass.
const PULLING: Duration = Duration::from_secs(10);
/// A node that sends nothing for this long is given up. A trace sends its status each second.
pub(super) const SILENCE: Duration = Duration::from_secs(30);
/// The messages that wait for one node.
const QUEUE: usize = 8192;
/// The size of the buffers of a connection, bytes.
pub(super) const BUFFER: usize = 1 << 20;
/// The kernel's message (ENOEXEC) for a program of another architecture, as container runtimes log it.
const OTHER_ARCHITECTURE: &str = "exec format error";
/// The end of a command's standard error that is kept, bytes.
const ERROR_TAIL: usize = 4096;

/// Why a node could not be visited, or a visit ended early.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum VisitError {
    #[error("{0}")]
    Request(String),
    #[error("the API server gave no answer within {} s", REQUEST.as_secs())]
    NoAnswer,
    #[error("the namespace {namespace} does not admit the Pod: {why}")]
    NotAdmitted { namespace: String, why: String, by: Admission },
    #[error("the Pod {pod} does not start: {why}")]
    NotStarted { pod: String, why: String, image: bool },
    #[error("the Pod {pod} has ended: {why}")]
    Ended { pod: String, why: String },
    #[error("viptrace in the Pod {pod} ended without a result{}", of(why))]
    Broken { pod: String, why: String },
    #[error("the connection to the Pod {pod} was lost: it has been silent for {} s", silence.as_secs())]
    Silent { pod: String, silence: Duration },
    #[error("its agent could not be read for {}: {why}", length(*patience))]
    AgentLost { patience: Duration, why: String },
    #[error("viptrace on the node is {theirs}, which does not speak this plugin's protocol ({})", env!("CARGO_PKG_VERSION"))]
    OtherVersion { theirs: String },
    #[error("{0}")]
    Unreachable(Unreachable),
    /// [`Choice::excuses`]: the result is whole without the node.
    #[error("{0}")]
    Excused(Unreachable),
    #[error("{error}")]
    Failed { error: String, hint: Option<String> },
}

impl VisitError {
    /// The errors of the nodes that are not visited.
    pub(crate) fn of_left_out(choice: &Choice) -> impl Iterator<Item = (String, Self)> {
        choice.left_out.iter().map(|(node, why)| {
            let error = if choice.excuses(*why) { Self::Excused(*why) } else { Self::Unreachable(*why) };
            (node.clone(), error)
        })
    }

    /// Whether the result is whole without the node.
    pub(crate) const fn is_excused(&self) -> bool {
        matches!(self, Self::Excused(_))
    }
}

impl Hint for VisitError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::NotAdmitted { by, .. } => Some(by.hint().to_owned()),
            Self::NotStarted { image: true, .. } => Some(
                "--image NAME chooses an image that the nodes can pull, --image-pull-secret NAME the Secret for its registry"
                    .to_owned(),
            ),
            Self::Ended { why, .. } if why.contains(OTHER_ARCHITECTURE) => Some(
                "the image has no program for this node's architecture, which `kubectl get nodes -L kubernetes.io/arch` shows: \
                 --image NAME chooses another image, --node NAME other nodes"
                    .to_owned(),
            ),
            Self::OtherVersion { .. } => Some("--image NAME chooses the image of this plugin's version".to_owned()),
            Self::Unreachable(Unreachable::NotReady) => {
                Some("`kubectl describe node` shows its conditions".to_owned())
            }
            Self::Failed { hint, .. } => hint.clone(),
            _ => None,
        }
    }
}

/// An appended reason, if there is one.
fn of(why: &str) -> String {
    if why.is_empty() { String::new() } else { format!(": {why}") }
}

/// Visits nodes for one run of the plugin.
pub(crate) struct Visitor {
    pods: Api<Pod>,
    options: PodOptions,
    /// A number of this run, in each Pod's name and label.
    run: String,
    /// How long a Pod may take to start.
    patience: Duration,
    visits: AtomicUsize,
    /// One permit for each Pod that may start at the same time.
    starts: Semaphore,
    /// The creations that were requested. They go on when the visit is given up, so that their Pods can be removed.
    creations: Mutex<JoinSet<()>>,
}

impl fmt::Debug for Visitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Visitor")
            .field("run", &self.run)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl Visitor {
    pub(crate) fn new(client: Client, options: PodOptions, run: String, patience: Duration) -> Self {
        let pods = Api::namespaced(client, &options.namespace);
        Self {
            pods,
            options,
            run,
            patience,
            visits: AtomicUsize::new(0),
            starts: Semaphore::new(AT_ONCE),
            creations: Mutex::default(),
        }
    }

    /// Starts a Pod on the node and waits until it runs. `progress` gets what it waits for, and that the Pod runs.
    pub(crate) async fn reach(
        &self,
        node: &str,
        mut progress: impl FnMut(&str),
    ) -> Result<Visit, VisitError> {
        // It is never closed.
        let _start = self.starts.acquire().await;
        let name = pod::name(&self.run, self.visits.fetch_add(1, Ordering::Relaxed));
        let manifest = pod::manifest(&self.options, &name, node, &self.run);
        let manifest: Pod =
            serde_json::from_value(manifest).map_err(|error| VisitError::Request(error.to_string()))?;
        progress("creating a Pod");
        self.create(manifest).await.map_err(|error| self.explained(error))?;
        self.wait_until_running(&name, &mut progress).await?;
        progress("its Pod runs");
        let attach = AttachParams::default().container(CONTAINER).stdin(true).stdout(true).stderr(false);
        let mut lifeline = within(self.pods.attach(&name, &attach)).await?;
        let alive = lifeline.stdin().map(Alive::keep);
        Ok(Visit { pods: self.pods.clone(), pod: name, _alive: alive, _lifeline: lifeline })
    }

    /// Creates the Pod. The request is not withdrawn with the visit: the API server may have received it already.
    async fn create(&self, manifest: Pod) -> Result<(), VisitError> {
        let (answer, answered) = oneshot::channel();
        let pods = self.pods.clone();
        let creation = async move {
            let created = within(pods.create(&PostParams::default(), &manifest)).await;
            // Nobody waits for the answer if the visit was given up.
            let _ = answer.send(created.map(|_| ()));
        };
        self.creations.lock().unwrap_or_else(PoisonError::into_inner).spawn(creation);
        answered.await.unwrap_or(Err(VisitError::NoAnswer))
    }

    /// An admission's refusal is a status like a missing permission's.
    fn explained(&self, error: VisitError) -> VisitError {
        match error {
            VisitError::Request(why) => match Admission::of(&why) {
                Some(by) => VisitError::NotAdmitted { namespace: self.options.namespace.clone(), why, by },
                None => VisitError::Request(why),
            },
            other => other,
        }
    }

    async fn wait_until_running(
        &self,
        name: &str,
        progress: &mut impl FnMut(&str),
    ) -> Result<(), VisitError> {
        let began = Instant::now();
        loop {
            let (last, image) = match polled(&self.pods, name).await?.map(|pod| State::of(&pod)) {
                Ok(State::Running) => return Ok(()),
                Ok(State::Ended(why)) => return Err(VisitError::Ended { pod: name.to_owned(), why }),
                Ok(State::Failing { why, image }) if began.elapsed() >= PULLING => {
                    return Err(VisitError::NotStarted { pod: name.to_owned(), why, image });
                }
                Ok(State::Failing { why, image }) => (why, image),
                Ok(State::Waiting(why)) | Err(why) => (why, false),
            };
            if began.elapsed() >= self.patience {
                let why = format!("{last}, after {} s", self.patience.as_secs());
                return Err(VisitError::NotStarted { pod: name.to_owned(), why, image });
            }
            progress(&last);
            sleep(POLL).await;
        }
    }

    /// Deletes every Pod of this run, also those that are being created. Returns the names of those that the API server still
    /// had.
    pub(crate) async fn leave(&self) -> Result<Vec<String>, VisitError> {
        if self.visits.load(Ordering::Relaxed) == 0 {
            return Ok(Vec::new());
        }
        let mut creations =
            std::mem::take(&mut *self.creations.lock().unwrap_or_else(PoisonError::into_inner));
        while creations.join_next().await.is_some() {}
        delete(&self.pods, &self.run).await
    }
}

/// Deletes the Pods of a run, a few at a time. One that cannot be deleted does not keep the others. Returns the names of the
/// deleted ones.
async fn delete(pods: &Api<Pod>, run: &str) -> Result<Vec<String>, VisitError> {
    let found = within(pods.list(&ListParams::default().labels(&pod::selector(Some(run))))).await?;
    delete_all(pods, found.items.into_iter().filter_map(|pod| pod.metadata.name).collect()).await
}

/// Deletes these Pods, as [`delete`].
async fn delete_all(pods: &Api<Pod>, names: Vec<String>) -> Result<Vec<String>, VisitError> {
    let each = names.into_iter().map(|name| async move {
        let deleted = within(async {
            match pods.delete(&name, &DeleteParams::default().grace_period(0)).await {
                // Somebody else was faster.
                Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
                deleted => deleted.map(|_| true),
            }
        });
        (deleted.await, name)
    });
    let answers = stream::iter(each).buffered(AT_ONCE).collect::<Vec<_>>().await;
    let mut deleted = Vec::new();
    let mut failed = None;
    for (answer, name) in answers {
        match answer {
            Ok(true) => deleted.push(name),
            Ok(false) => {}
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    failed.map_or(Ok(deleted), Err)
}

/// Deletes the Pods that a run left when it ended. Returns whether none is left.
pub(crate) async fn delete_run(pods: &Api<Pod>, run: &str) -> bool {
    delete(pods, run).await.is_ok()
}

/// What [`clean_up`] found.
#[derive(Debug, Default)]
pub(crate) struct CleanedUp {
    /// The names of the removed Pods.
    pub(crate) removed: Vec<String>,
    /// Those that have not ended: somebody's plugin may use them now.
    pub(crate) in_use: Vec<String>,
}

/// Removes the ended Pods of every run, and with `all` those that have not ended.
pub(crate) async fn clean_up(pods: &Api<Pod>, all: bool) -> Result<CleanedUp, VisitError> {
    let found = within(pods.list(&ListParams::default().labels(&pod::selector(None)))).await?;
    let has_ended = |pod: &Pod| {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        matches!(phase, Some("Succeeded" | "Failed"))
    };
    let (removable, others): (Vec<_>, Vec<_>) =
        found.items.into_iter().partition(|pod| all || has_ended(pod));
    let names = |pods: Vec<Pod>| pods.into_iter().filter_map(|pod| pod.metadata.name).collect::<Vec<_>>();
    Ok(CleanedUp { removed: delete_all(pods, names(removable)).await?, in_use: names(others) })
}

/// Bounds a request, and puts its error in words.
pub(super) async fn within<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, VisitError> {
    match timeout(REQUEST, request).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(VisitError::Request(request_error(&error))),
        Err(_) => Err(VisitError::NoAnswer),
    }
}

/// The Pod, for a reader that asks again: the inner error is one that may pass, such as that of an overloaded API server or of
/// one that a load balancer has just lost.
pub(super) async fn polled(pods: &Api<Pod>, name: &str) -> Result<Result<Pod, String>, VisitError> {
    match timeout(REQUEST, pods.get(name)).await {
        Ok(Ok(pod)) => Ok(Ok(pod)),
        Ok(Err(error)) if is_final(&error) => Err(VisitError::Request(request_error(&error))),
        Ok(Err(error)) => Ok(Err(request_error(&error))),
        Err(_) => Ok(Err(VisitError::NoAnswer.to_string())),
    }
}

/// Whether the same request gets the same answer: the API server understood and refused it.
fn is_final(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if (400..500).contains(&status.code) && status.code != 429)
}

/// The state of a container of which the kubelet has reported none.
pub(super) const NOT_STARTED: &str = "the kubelet has not started it";

/// A reason and its message, as a status has them.
pub(super) fn words(reason: Option<String>, message: Option<String>) -> String {
    clean([reason, message].into_iter().flatten().collect::<Vec<_>>().join(": "))
}

/// The state of a starting Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Running,
    Waiting(String),
    /// The kubelet tries again, which seldom helps.
    Failing {
        why: String,
        image: bool,
    },
    Ended(String),
}

impl State {
    fn of(pod: &Pod) -> Self {
        let status = pod.status.clone().unwrap_or_default();
        // An admission webhook may have added containers, and statuses are in the order of their names.
        let mut containers = status.container_statuses.unwrap_or_default().into_iter();
        let container = containers.find(|container| container.name == CONTAINER);
        let state = container.and_then(|container| container.state).unwrap_or_default();
        if let Some(ended) = state.terminated {
            let exit = format!("viptrace exited with status {}", ended.exit_code);
            return Self::Ended(words(Some(ended.reason.unwrap_or(exit)), ended.message));
        }
        match status.phase.as_deref() {
            Some("Failed" | "Succeeded") => return Self::Ended(words(status.reason, status.message)),
            Some("Running") if state.running.is_some() => return Self::Running,
            _ => {}
        }
        let Some(waiting) = state.waiting else {
            return Self::Waiting(NOT_STARTED.to_owned());
        };
        let reason = waiting.reason.unwrap_or_default();
        let image = reason.contains("Image");
        let why = words(Some(reason.clone()), waiting.message);
        let is_failure = image || reason.ends_with("Error") || reason.ends_with("BackOff");
        if is_failure { Self::Failing { why, image } } else { Self::Waiting(why) }
    }
}

/// A Pod that runs on a node. It ends soon after this value is dropped.
pub(crate) struct Visit {
    pods: Api<Pod>,
    pod: String,
    _alive: Option<Alive>,
    _lifeline: AttachedProcess,
}

impl fmt::Debug for Visit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Visit").field("pod", &self.pod).finish_non_exhaustive()
    }
}

impl Visit {
    /// Starts a task in the Pod.
    pub(crate) async fn start(&self, task: Task) -> Result<Talk, VisitError> {
        let is_quiet = task == Task::Capture;
        let request =
            wire::line(&Request::new(task)).map_err(|error| VisitError::Request(error.to_string()))?;
        let mut command = Command::start(&self.pods, &self.pod, CONTAINER, &[PROGRAM, "node"], true).await?;
        let (orders, mut lines) = mpsc::channel::<String>(QUEUE);
        let mut input = command.process.stdin().ok_or_else(|| command.lines.broken(String::new()))?;
        let writer = tokio::spawn(async move {
            if input.write_all(request.as_bytes()).await.is_err() {
                return;
            }
            loop {
                let written = match timeout(alive::PERIOD, lines.recv()).await {
                    Ok(Some(line)) => input.write_all(line.as_bytes()).await,
                    Ok(None) => return,
                    Err(_) => input.write_all(alive::NOTHING).await,
                };
                if written.is_err() {
                    return;
                }
            }
            // The receiver is gone: standard input ends with the connection.
        });
        let mut started = Talk { command, orders, is_quiet, writer };
        match started.next().await? {
            Answer::Hello { viptrace: VERSION, .. } => Ok(started),
            Answer::Hello { version, .. } => Err(VisitError::OtherVersion { theirs: version }),
            _ => Err(started.command.lines.broken("its first line is no greeting".to_owned())),
        }
    }
}

/// A command in a Pod that writes lines of JSON. It ends soon after this value is dropped.
struct Command {
    lines: Lines,
    process: AttachedProcess,
}

impl Command {
    async fn start(
        pods: &Api<Pod>,
        pod: &str,
        container: &str,
        words: &[&str],
        takes_input: bool,
    ) -> Result<Self, VisitError> {
        let params = AttachParams::default()
            .container(container)
            .stdin(takes_input)
            .stdout(true)
            .stderr(true)
            .max_stdin_buf_size(BUFFER)
            .max_stdout_buf_size(BUFFER);
        let mut process = within(pods.exec(pod, words.iter().copied(), &params)).await?;
        let (Some(output), Some(error)) = (Output::take(&mut process), process.stderr()) else {
            return Err(VisitError::Broken { pod: pod.to_owned(), why: String::new() });
        };
        Ok(Self { lines: Lines::new(pod, output, error), process })
    }
}

/// The output of a command in a Pod.
struct Lines {
    pod: String,
    output: Box<dyn Stream<Item = Result<String, wire::WireError>> + Send + Unpin>,
    error: JoinHandle<String>,
}

impl Drop for Lines {
    fn drop(&mut self) {
        self.error.abort();
    }
}

impl Lines {
    fn new(
        pod: &str,
        output: impl AsyncRead + Send + Unpin + 'static,
        error: impl AsyncRead + Send + Unpin + 'static,
    ) -> Self {
        Self { pod: pod.to_owned(), output: Box::new(wire::lines(output)), error: tokio::spawn(tail(error)) }
    }

    /// The next line.
    async fn line(&mut self) -> Result<String, VisitError> {
        let Some(line) = self.output.next().await else {
            let said = timeout(Duration::from_secs(1), &mut self.error).await;
            return Err(self.broken(said.ok().and_then(Result::ok).unwrap_or_default()));
        };
        line.map_err(|error| self.broken(error.to_string()))
    }

    /// The next line, unless there is none for so long.
    async fn line_within(&mut self, silence: Duration) -> Result<String, VisitError> {
        match timeout(silence, self.line()).await {
            Ok(line) => line,
            Err(_) => Err(VisitError::Silent { pod: self.pod.clone(), silence }),
        }
    }

    /// The message in the next line, likewise.
    async fn within<T: DeserializeOwned>(&mut self, silence: Duration) -> Result<T, VisitError> {
        let line = self.line_within(silence).await?;
        self.message(&line)
    }

    fn message<T: DeserializeOwned>(&self, line: &str) -> Result<T, VisitError> {
        wire::message(line).map_err(|error| self.broken(error.to_string()))
    }

    fn broken(&self, why: String) -> VisitError {
        VisitError::Broken { pod: self.pod.clone(), why }
    }
}

/// The end of what a command wrote to standard error.
pub(super) async fn tail(mut from: impl AsyncRead + Unpin) -> String {
    let mut kept = Vec::new();
    let mut chunk = [0; 1024];
    while let Ok(read @ 1..) = from.read(&mut chunk).await {
        kept.extend_from_slice(chunk.get(..read).unwrap_or_default());
        let beyond = kept.len().saturating_sub(ERROR_TAIL);
        kept.drain(..beyond);
    }
    clean(String::from_utf8_lossy(&kept).trim().to_owned())
}

/// The talk with a task. The task ends soon after this value is dropped.
pub(crate) struct Talk {
    command: Command,
    orders: mpsc::Sender<String>,
    /// The task may be silent for longer than [`SILENCE`].
    is_quiet: bool,
    writer: JoinHandle<()>,
}

impl fmt::Debug for Talk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Talk").field("pod", &self.command.lines.pod).finish_non_exhaustive()
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        self.writer.abort();
    }
}

impl Talk {
    /// Takes orders for the task while it runs.
    pub(crate) fn orders(&self) -> Orders {
        Orders(self.orders.clone())
    }

    /// The next answer. A task's failure is an error.
    pub(crate) async fn next(&mut self) -> Result<Answer, VisitError> {
        let limit = if self.is_quiet { SILENCE * 4 } else { SILENCE };
        match self.command.lines.within(limit).await? {
            Answer::Failed { error, hint } => Err(VisitError::Failed { error, hint }),
            answer => Ok(answer),
        }
    }
}

/// Sends orders to a task.
#[derive(Clone, Debug)]
pub(crate) struct Orders(mpsc::Sender<String>);

impl Orders {
    /// Waits while the node takes no lines. An ended task takes no orders.
    pub(crate) async fn send(&self, order: &Order) {
        if let Ok(line) = wire::line(order) {
            self.send_line(line).await;
        }
    }

    /// The same with the order's line, for one that goes to several nodes.
    pub(crate) async fn send_line(&self, line: String) {
        let _ = self.0.send(line).await;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn state(status: &Value) -> State {
        State::of(&serde_json::from_value(json!({"status": status})).unwrap())
    }

    fn container(state: &Value) -> Value {
        json!({"phase": "Pending", "containerStatuses": [{
            "name": "viptrace", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": state,
        }]})
    }

    #[test]
    fn only_an_answer_that_stays_the_same_ends_the_wait_for_a_pod() {
        let api =
            |code| kube::Error::Api(kube::core::Status::failure("no", "Reason").with_code(code).boxed());
        for (code, expected) in [(403, true), (404, true), (429, false), (500, false), (503, false)] {
            assert_eq!(is_final(&api(code)), expected, "{code}");
        }
        let cut = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        assert!(!is_final(&kube::Error::Service(Box::new(cut))));
    }

    #[test]
    fn a_pod_of_another_architecture_is_explained() {
        let ended = container(&json!({"terminated": {
            "exitCode": 255, "reason": "Error", "message": "exec /usr/bin/viptrace: exec format error\n",
        }}));
        let State::Ended(why) = state(&ended) else { panic!("it has ended") };
        let error = VisitError::Ended { pod: "p".to_owned(), why };
        assert!(error.hint().unwrap().contains("no program for this node's architecture"), "{error}");
        // Without a message of its own, the kubelet takes the end of the log.
        let options = PodOptions {
            image: "i".to_owned(),
            pull_secrets: Vec::new(),
            namespace: "n".to_owned(),
            tolerations: Vec::new(),
            sys_admin: false,
            deadline: Duration::from_secs(1),
        };
        let policy =
            &pod::manifest(&options, "p", "n", "r")["spec"]["containers"][0]["terminationMessagePolicy"];
        assert_eq!(policy, "FallbackToLogsOnError");
    }

    #[test]
    fn a_starting_pod_is_read() {
        assert_eq!(state(&json!({})), State::Waiting("the kubelet has not started it".into()));
        let creating = container(&json!({"waiting": {"reason": "ContainerCreating"}}));
        assert_eq!(state(&creating), State::Waiting("ContainerCreating".into()));
        let pulling =
            container(&json!({"waiting": {"reason": "ErrImagePull", "message": "no\u{1b}[2J such image"}}));
        let State::Failing { why, image: true } = state(&pulling) else { panic!() };
        assert!(why.starts_with("ErrImagePull: no") && !why.contains('\u{1b}'), "{why}");
        let config = container(&json!({"waiting": {"reason": "CreateContainerConfigError", "message": "m"}}));
        assert!(matches!(state(&config), State::Failing { image: false, .. }));
        let mut running = container(&json!({"running": {}}));
        running["phase"] = json!("Running");
        assert_eq!(state(&running), State::Running);
        let mut injected = running.clone();
        let sidecar = json!({
            "name": "istio-proxy", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"waiting": {"reason": "ImagePullBackOff"}},
        });
        injected["containerStatuses"].as_array_mut().unwrap().insert(0, sidecar);
        assert_eq!(state(&injected), State::Running, "another container is not viptrace's");
        let failed = json!({"phase": "Failed", "reason": "OutOfpods", "message": "Pod was rejected"});
        assert_eq!(state(&failed), State::Ended("OutOfpods: Pod was rejected".into()));
        let ended = container(&json!({"terminated": {"exitCode": 137, "reason": "OOMKilled"}}));
        assert_eq!(state(&ended), State::Ended("OOMKilled".into()));
    }
}
