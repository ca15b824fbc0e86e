//! An API server for tests: lists and watch streams over plain HTTP, from objects that a test may change as it runs.
//!
//! Owns the parts of the Kubernetes API that viptrace uses, and the ways in which an API server goes wrong. Must not
//! imitate anything else: no admission, no controllers, no authentication. It runs on a thread of its own, so that it
//! serves blocking and async tests alike, and keeps its objects while it is away.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::Duration,
};

use serde_json::Value;
use tokio::sync::{oneshot, watch};

mod http;
mod store;

use store::{Resource, Store};

/// How an API server goes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absence {
    /// Connections are cut, new ones refused: the process is gone.
    Refused,
    /// Connections are accepted and open ones stay open, but nothing is ever answered.
    Hung,
}

/// Bookmarks go out so often on watches that ask for them, unless set otherwise. Real API servers: about a minute.
const BOOKMARK_PERIOD: Duration = Duration::from_secs(10);

/// What tests and request handlers share.
#[derive(Debug)]
struct Shared {
    store: Mutex<Store>,
    /// Changes with each event, so that watches look again.
    changed: watch::Sender<u64>,
    hung: watch::Sender<bool>,
    /// Changes to cut all open watches.
    cut: watch::Sender<u64>,
    bookmark_period: Mutex<Duration>,
}

impl Shared {
    fn store(&self) -> MutexGuard<'_, Store> {
        // A test that panicked while it held the lock has failed already.
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn bookmark_period(&self) -> Duration {
        *self.bookmark_period.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running server. It stops when this is dropped.
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

/// The text of a kubeconfig that leads to `addr`, whoever is there.
pub fn kubeconfig(addr: SocketAddr) -> String {
    format!(
        "apiVersion: v1\nkind: Config\nclusters:\n- name: lab\n  cluster:\n    server: http://{addr}\ncontexts:\n- name: \
         lab\n  context:\n    cluster: lab\n    user: lab\nusers:\n- name: lab\n  user: {{}}\ncurrent-context: lab\n"
    )
}

impl ApiServer {
    /// Serves `lists` (`ServiceList`, `PodList`… or a `List` of several kinds) on `addr`; port 0 takes a free one.
    pub fn start(addr: SocketAddr, lists: Vec<Value>) -> io::Result<Self> {
        let mut store = Store::default();
        for list in lists {
            store.load(list).map_err(|why| io::Error::new(io::ErrorKind::InvalidInput, why))?;
        }
        let shared = Arc::new(Shared {
            store: Mutex::new(store),
            changed: watch::Sender::new(0),
            hung: watch::Sender::new(false),
            cut: watch::Sender::new(0),
            bookmark_period: Mutex::new(BOOKMARK_PERIOD),
        });
        let listener = TcpListener::bind(addr)?;
        let addr = listener.local_addr()?;
        let running = Some(run(listener, Arc::clone(&shared))?);
        Ok(Self { addr, shared, running })
    }

    pub const fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The text of a kubeconfig that leads here.
    pub fn kubeconfig(&self) -> String {
        kubeconfig(self.addr)
    }

    /// How many requests are being answered, or wait for it while the server hangs.
    pub fn waiting(&self) -> usize {
        self.shared.hung.receiver_count()
    }

    /// Adds the object, or replaces the one of its name, and tells the watches. Sets what a real server sets:
    /// resourceVersion, uid, creationTimestamp, and the time of the change in managedFields.
    pub fn apply(&self, object: Value) -> io::Result<()> {
        let applied = self.shared.store().apply(object);
        applied.map_err(|why| io::Error::new(io::ErrorKind::InvalidInput, why))?;
        self.wake();
        Ok(())
    }

    /// Plays one event of a recorded watch: `{"type": "ADDED" | "MODIFIED" | "DELETED", "object": …}`. Other types are
    /// passed over.
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

    /// The object as it is now, to be changed and applied.
    pub fn get(&self, kind: &str, namespace: &str, name: &str) -> Option<Value> {
        self.shared.store().get(Resource::of_kind(kind)?, namespace, name)
    }

    /// Deletes the object and tells the watches; says whether it was there.
    pub fn delete(&self, kind: &str, namespace: &str, name: &str) -> bool {
        let Some(resource) = Resource::of_kind(kind) else { return false };
        let deleted = self.shared.store().delete(resource, namespace, name);
        self.wake();
        deleted
    }

    /// Goes away. Objects can still be changed meanwhile.
    pub fn go_away(&mut self, how: Absence) {
        match how {
            Absence::Refused => self.stop(),
            Absence::Hung => {
                self.shared.hung.send_replace(true);
            }
        }
    }

    /// Is there again, on the same address.
    pub fn come_back(&mut self) -> io::Result<()> {
        self.shared.hung.send_replace(false);
        if self.running.is_none() {
            let listener = TcpListener::bind(self.addr)?;
            self.running = Some(run(listener, Arc::clone(&self.shared))?);
        }
        Ok(())
    }

    /// Ends all open watches, as a server does that is restarted or rebalances its clients.
    pub fn cut_watches(&self) {
        self.shared.cut.send_modify(|count| *count += 1);
    }

    /// Forgets the past: a watch from any version before the present one gets 410 Gone.
    pub fn compact(&self) {
        self.shared.store().compact();
    }

    /// Answers lists and watches of this kind with 403 Forbidden; its open watches end.
    pub fn forbid(&self, kind: &str) {
        let plural = Resource::of_kind(kind).map_or(kind, |resource| resource.plural());
        let message = format!(
            "{plural} is forbidden: User \"lab\" cannot list resource \"{plural}\" at the cluster scope"
        );
        self.refuse(kind, 403, &message);
    }

    /// Answers lists and watches of this kind with this HTTP status; its open watches end.
    pub fn refuse(&self, kind: &str, code: u16, message: &str) {
        self.shared.store().refuse(kind, code, message.to_owned());
        self.cut_watches();
    }

    /// Takes [`ApiServer::refuse`] back.
    pub fn permit(&self, kind: &str) {
        self.shared.store().permit(kind);
    }

    /// Sends bookmarks so often. Counts for watches opened from now on.
    pub fn set_bookmark_period(&self, period: Duration) {
        *self.shared.bookmark_period.lock().unwrap_or_else(PoisonError::into_inner) = period;
    }

    /// Lists answered of this kind so far, continued pages not counted.
    pub fn lists_served(&self, kind: &str) -> u64 {
        self.shared.store().served(kind).0
    }

    /// Watches opened of this kind so far.
    pub fn watches_served(&self, kind: &str) -> u64 {
        self.shared.store().served(kind).1
    }

    fn wake(&self) {
        self.shared.changed.send_modify(|count| *count += 1);
    }

    fn stop(&mut self) {
        if let Some(Running { stop, thread }) = self.running.take() {
            // Either may fail only if the thread has ended already.
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

/// Serves until told to stop; then all sockets are closed before the thread ends.
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
        // Dropping the runtime drops every connection's task and with it its socket.
        drop(runtime);
    })?;
    Ok(Running { stop, thread })
}
