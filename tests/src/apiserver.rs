//! An API server for tests: it serves lists and watch streams over plain HTTP. A test may change the objects at any
//! time.
//!
//! Owns the parts of the Kubernetes API that viptrace uses, and the failures of an API server. Must not imitate
//! anything else: no admission, no controllers, no authentication. It runs on its own thread, so that blocking and
//! async tests can both use it, and it keeps its objects during an outage.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::Duration,
};

use serde_json::Value;
use tokio::sync::{oneshot, watch};

mod exec;
mod http;
mod pods;
mod population;
mod store;

use exec::Container;
pub use exec::{Command, Ran};
pub use population::Population;
use population::Writer;
use store::{Resource, Store};

/// How the API server becomes unavailable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absence {
    /// Open connections are cut and new ones are refused, as when the process is gone.
    Refused,
    /// Connections are accepted and open ones stay open, but no request is answered.
    Hung,
}

/// The default period of bookmarks on watches that request them. Real API servers send one about every minute.
const BOOKMARK_PERIOD: Duration = Duration::from_secs(10);

/// State that tests and request handlers share.
#[derive(Debug)]
struct Shared {
    store: Mutex<Store>,
    population: Mutex<Option<Arc<Writer>>>,
    /// Changes with each event and wakes the watches.
    changed: watch::Sender<u64>,
    hung: watch::Sender<bool>,
    /// A change cuts all open watches.
    cut: watch::Sender<u64>,
    bookmark_period: Mutex<Duration>,
    container: Mutex<Container>,
}

impl Shared {
    fn store(&self) -> MutexGuard<'_, Store> {
        // A test that panicked while it held the lock has failed already.
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn population(&self) -> Option<Arc<Writer>> {
        self.population.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn container(&self) -> MutexGuard<'_, Container> {
        self.container.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        self.changed.send_modify(|count| *count += 1);
    }

    fn bookmark_period(&self) -> Duration {
        *self.bookmark_period.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running server. It stops when the value is dropped.
#[derive(Debug)]
pub struct ApiServer {
    addr: SocketAddr,
    shared: Arc<Shared>,
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

/// The text of a kubeconfig that points to `addr`.
pub fn kubeconfig(addr: SocketAddr) -> String {
    format!(
        "apiVersion: v1\nkind: Config\nclusters:\n- name: lab\n  cluster:\n    server: http://{addr}\ncontexts:\n\
                 - name: lab\n  context:\n    cluster: lab\n    user: lab\nusers:\n- name: lab\n  user: {{}}\n\
                 current-context: lab\n"
    )
}

impl ApiServer {
    /// Serves `lists` (`ServiceList`, `PodList`… or a `List` of several kinds) on `addr`; port 0 takes any free port.
    pub fn start(addr: SocketAddr, lists: Vec<Value>) -> io::Result<Self> {
        let mut store = Store::default();
        for list in lists {
            store.load(list).map_err(|why| io::Error::new(io::ErrorKind::InvalidInput, why))?;
        }
        let shared = Arc::new(Shared {
            store: Mutex::new(store),
            population: Mutex::default(),
            changed: watch::Sender::new(0),
            hung: watch::Sender::new(false),
            cut: watch::Sender::new(0),
            bookmark_period: Mutex::new(BOOKMARK_PERIOD),
            container: Mutex::default(),
        });
        let listener = TcpListener::bind(addr)?;
        let addr = listener.local_addr()?;
        let running = Some(run(listener, Arc::clone(&shared))?);
        Ok(Self { addr, shared, running })
    }

    pub const fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The text of a kubeconfig that points to this server.
    pub fn kubeconfig(&self) -> String {
        kubeconfig(self.addr)
    }

    /// The number of requests that are being answered, or that wait because the server hangs.
    pub fn waiting(&self) -> usize {
        self.shared.hung.receiver_count()
    }

    /// Adds the object, or replaces the one with its name, and sends the change to the watches. Sets what a real server
    /// sets: resourceVersion, uid, creationTimestamp, and the time of the change in managedFields.
    pub fn apply(&self, object: Value) -> io::Result<()> {
        let applied = self.shared.store().apply(object);
        applied.map_err(|why| io::Error::new(io::ErrorKind::InvalidInput, why))?;
        self.shared.wake();
        Ok(())
    }

    /// Adds a large cluster to the lists from now on, in place of an earlier one. Open watches do not report it.
    pub fn populate(&self, population: Population) -> io::Result<()> {
        let invalid = |why| io::Error::new(io::ErrorKind::InvalidData, why);
        let writer = Writer::new(population).map_err(invalid)?;
        *self.shared.population.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(writer));
        Ok(())
    }

    /// Plays one event of a recorded watch: `{"type": "ADDED" | "MODIFIED" | "DELETED", "object": …}`. Ignores other
    /// types.
    pub fn play(&self, mut event: Value) -> io::Result<()> {
        let object = event.get_mut("object").map(Value::take).unwrap_or_default();
        match event.get("type").and_then(Value::as_str) {
            Some("ADDED" | "MODIFIED") => self.apply(object),
            Some("DELETED") => {
                let text = |field| object.pointer(field).and_then(Value::as_str).unwrap_or_default();
                self.delete(text("/kind"), text("/metadata/namespace"), text("/metadata/name"));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The object in its present version.
    pub fn get(&self, kind: &str, namespace: &str, name: &str) -> Option<Value> {
        self.shared.store().get(Resource::of_kind(kind)?, namespace, name)
    }

    /// Deletes the object and sends the change to the watches. Returns whether the object existed.
    pub fn delete(&self, kind: &str, namespace: &str, name: &str) -> bool {
        let Some(resource) = Resource::of_kind(kind) else { return false };
        let deleted = self.shared.store().delete(resource, namespace, name);
        self.shared.wake();
        deleted
    }

    /// Becomes unavailable. Objects can still be changed meanwhile.
    pub fn go_away(&mut self, how: Absence) {
        match how {
            Absence::Refused => self.stop(),
            Absence::Hung => {
                self.shared.hung.send_replace(true);
            }
        }
    }

    /// Serves again, on the same address.
    pub fn come_back(&mut self) -> io::Result<()> {
        self.shared.hung.send_replace(false);
        if self.running.is_none() {
            let listener = TcpListener::bind(self.addr)?;
            self.running = Some(run(listener, Arc::clone(&self.shared))?);
        }
        Ok(())
    }

    /// Ends all open watches, as a server does when it restarts or rebalances its clients.
    pub fn cut_watches(&self) {
        self.shared.cut.send_modify(|count| *count += 1);
    }

    /// Deletes the log of changes: a watch from any earlier version gets 410 Gone.
    pub fn compact(&self) {
        self.shared.store().compact();
    }

    /// Answers lists and watches of this kind with 403 Forbidden and ends its open watches.
    pub fn forbid(&self, kind: &str) {
        let plural = Resource::of_kind(kind).map_or(kind, |resource| resource.plural());
        let message = format!(
            "{plural} is forbidden: User \"lab\" cannot list resource \"{plural}\" at the cluster scope"
        );
        self.refuse(kind, 403, &message);
    }

    /// Answers lists and watches of this kind with this HTTP status and ends its open watches.
    pub fn refuse(&self, kind: &str, code: u16, message: &str) {
        self.shared.store().refuse(kind, code, message.to_owned());
        self.cut_watches();
    }

    /// Ends the effect of [`ApiServer::refuse`].
    pub fn permit(&self, kind: &str) {
        self.shared.store().permit(kind);
    }

    /// Sets the period of bookmarks for watches that are opened from now on.
    pub fn set_bookmark_period(&self, period: Duration) {
        *self.shared.bookmark_period.lock().unwrap_or_else(PoisonError::into_inner) = period;
    }

    /// Answers every command in a container from now on with what `run` returns.
    pub fn run_commands(&self, run: impl Fn(&Command) -> Ran + Send + Sync + 'static) {
        self.shared.container().run = Some(Arc::new(run));
    }

    /// Answers that nobody may use this resource: `pods/exec`.
    pub fn deny(&self, resource: &str) {
        self.shared.container().denied.insert(resource.to_owned());
    }

    /// Gives each Pod that is created from now on this status, after a delay.
    pub fn start_pods(&self, status: Value, delay: Duration) {
        self.shared.container().creation = pods::Creation { status, delay };
    }

    /// Answers the deletion of this Pod with this HTTP status from now on.
    pub fn keep_pod(&self, name: &str, code: u16, message: &str) {
        self.shared.container().kept.insert(name.to_owned(), (code, message.to_owned()));
    }

    /// The number of Pods whose creation was requested so far.
    pub fn creations(&self) -> u64 {
        self.shared.container().creations
    }

    /// The Pods of a namespace, by their names.
    pub fn pods(&self, namespace: &str) -> Vec<String> {
        let (pods, _) = self.shared.store().list(Resource::Pods, Some(namespace), None, 0);
        pods.iter().filter_map(|pod| Some(pod.pointer("/metadata/name")?.as_str()?.to_owned())).collect()
    }

    /// The number of lists of this kind answered so far, without continued pages.
    pub fn lists_served(&self, kind: &str) -> u64 {
        self.shared.store().served(kind).0
    }

    /// The number of watches of this kind opened so far.
    pub fn watches_served(&self, kind: &str) -> u64 {
        self.shared.store().served(kind).1
    }

    fn stop(&mut self) {
        if let Some(Running { stop, thread }) = self.running.take() {
            // Either fails only if the thread has ended already.
            let _ = stop.send(());
            let _ = thread.join();
        }
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Serves until it is stopped, then closes all sockets before the thread ends.
fn run(listener: TcpListener, shared: Arc<Shared>) -> io::Result<Running> {
    listener.set_nonblocking(true)?;
    let (stop, stopped) = oneshot::channel::<()>();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let thread = std::thread::Builder::new().name("apiserver".to_owned()).spawn(move || {
        runtime.block_on(async move {
            let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
            tokio::select! {
                _ = axum::serve(listener, http::router(shared)) => {}
                _ = stopped => {}
            }
        });
        // Dropping the runtime drops the task of every connection and with it the socket.
        drop(runtime);
    })?;
    Ok(Running { stop, thread })
}
