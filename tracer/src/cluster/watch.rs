//! The cluster from its API server: a list and a watch for each kind, for as long as viptrace runs.
//!
//! Owns connections, retries and the texts of their errors. Must not keep objects: everything goes, in order, through
//! one channel to the owner of the history. kube's own `watcher` is not used because it hides bookmarks and
//! reconnections, from which the age of the metadata is computed.

use std::{env, path::PathBuf, sync::Arc, time::Duration};

use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use serde::{Deserialize, Serialize};
use tokio::{sync::mpsc, task::JoinSet};

use crate::{
    called,
    cluster::{
        answer,
        model::{Change, Kind, Trimmed},
        proxy::{self, ProxyError},
        trim::Oddity,
    },
    error::Hint,
    kernel::{now, wall_ahead_ns},
    text::safe,
    time::Timestamp,
};

mod follow;

/// The maximum number of updates in the queue to the owner of the history; beyond it the watches wait.
const QUEUE: usize = 4096;

/// How to reach the API server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Access {
    /// `--kubeconfig`; without it `$KUBECONFIG`, `~/.kube/config`, then the Pod's own account.
    pub kubeconfig: Option<PathBuf>,
    /// `--context`; without it the kubeconfig's current one.
    pub context: Option<String>,
    /// `--as`: the user in whose name every request is made.
    pub user: Option<String>,
    /// `--as-group`: the groups of that user.
    pub groups: Vec<String>,
    /// The defaults, where an access is read back.
    #[serde(skip)]
    pub limits: Limits,
}

/// How long to wait for the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Opening a connection.
    pub connect: Duration,
    /// The answer to a request: a page of a list, the beginning of a watch.
    pub request: Duration,
    /// A watch that is silent for this long is reopened at its last version. API servers send a bookmark about every
    /// minute.
    pub silence: Duration,
    /// The longest time without a further object until the first lists of all kinds are complete.
    pub sync: Duration,
    /// The pause after the first failure, doubled after each further one, up to `retry_max`.
    pub retry: Duration,
    pub retry_max: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            request: Duration::from_secs(30),
            silence: Duration::from_secs(90),
            sync: Duration::from_mins(1),
            retry: Duration::from_millis(250),
            retry_max: Duration::from_secs(15),
        }
    }
}

/// Why there is no connection to the API server.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    #[error("cannot use the kubeconfig {path}: {reason}")]
    Kubeconfig { path: PathBuf, reason: String },
    #[error("cannot use the context {context:?} of the kubeconfig: {reason}")]
    Context { context: String, reason: String },
    #[error("the API server's address is not known: {reason}")]
    Nowhere {
        reason: String,
        /// sudo may hide the user's own kubeconfig.
        by_sudo: bool,
    },
    #[error("cannot create a client for {server}: {reason}")]
    Client { server: String, reason: String },
    #[error(transparent)]
    Proxy(#[from] ProxyError),
}

impl Hint for AccessError {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Kubeconfig { .. } | Self::Client { .. } => {
                "`kubectl config view` shows what kubectl reads; --kubeconfig FILE names another file"
                    .to_owned()
            }
            Self::Proxy(_) => proxy::HINT.to_owned(),
            Self::Context { .. } => "`kubectl config get-contexts` lists the contexts".to_owned(),
            Self::Nowhere { by_sudo: true, .. } => {
                "sudo drops KUBECONFIG: use `sudo --preserve-env=KUBECONFIG`, or --kubeconfig FILE".to_owned()
            }
            Self::Nowhere { by_sudo: false, .. } => {
                let lists = called::unless_by_plugin(", or --cluster-from DIR with saved lists");
                format!("give --kubeconfig FILE{lists}")
            }
        })
    }
}

/// An update of one kind.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Update {
    pub kind: Kind,
    /// When it was received, on the clock of the trace. The object's own times are of the server's clock, brought to that
    /// of the trace.
    pub received: Timestamp,
    pub event: Event,
}

impl Update {
    /// Whether it can change a Service's addresses or endpoints.
    pub(crate) fn concerns_services(&self) -> bool {
        let is_change = matches!(self.event, Event::Listed(_) | Event::Changed(_) | Event::Synced);
        is_change && matches!(self.kind, Kind::Service | Kind::EndpointSlice)
    }

    /// Brings the object's times, which are of the wall clock, to the clock of the trace.
    pub(crate) fn make_trace_time(&mut self, wall_ahead_ns: i64) {
        if let Event::Listed(trimmed) | Event::Changed(Change::Put(trimmed)) = &mut self.event {
            trimmed.make_trace_time(wall_ahead_ns);
        }
    }

    /// Prepares it for another machine, whose trace has a clock of its own: the object's times become those of the wall
    /// clock again.
    pub(crate) fn for_relay(mut self) -> Self {
        self.make_trace_time(wall_ahead_ns().saturating_neg());
        self
    }

    /// Takes an update from another machine as received now.
    pub(crate) fn relayed(mut self) -> Self {
        self.received = now();
        self.make_trace_time(wall_ahead_ns());
        self
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Event {
    /// Found by a list: this version may be old.
    Listed(Trimmed),
    /// It happened now, as far as known. Includes deletions that a new list shows after a gap: they happened during the
    /// gap.
    Changed(Change),
    /// The list is complete.
    Synced,
    /// The server sent something: a bookmark, an answer.
    Heard,
    /// The connection is lost and is being retried.
    Lost(String),
    /// The server refuses this kind; the request is repeated from time to time.
    Denied(String),
    /// Unusable parts of objects.
    Odd(Vec<Oddity>),
}

/// The running watches, or another viptrace that relays its own. They end when the value is dropped.
#[derive(Debug)]
pub struct Watcher {
    server: String,
    limits: Limits,
    updates: mpsc::Receiver<Update>,
    _tasks: JoinSet<()>,
}

impl Access {
    /// Reads the configuration and starts the watches. The updates show whether the server answers.
    pub async fn connect(&self) -> Result<Watcher, AccessError> {
        let (client, server) = self.client().await?;
        let (sender, updates) = mpsc::channel(QUEUE);
        let mut tasks = JoinSet::new();
        let shared = Arc::default();
        for kind in Kind::ALL {
            let shared = Arc::clone(&shared);
            tasks.spawn(follow::follow(kind, client.clone(), self.limits, sender.clone(), shared));
        }
        Ok(Watcher { server, limits: self.limits, updates, _tasks: tasks })
    }

    /// A client, and the server's URL.
    pub(crate) async fn client(&self) -> Result<(Client, String), AccessError> {
        let (client, server, _) = self.client_and_namespace().await?;
        Ok((client, server))
    }

    /// The same with the namespace of the kubeconfig's context.
    pub(crate) async fn client_and_namespace(&self) -> Result<(Client, String, String), AccessError> {
        let mut config = self.config().await?;
        let namespace = config.default_namespace.clone();
        config.connect_timeout = Some(self.limits.connect);
        // `Limits::silence` detects silence and reopens the watch.
        config.read_timeout = None;
        config.write_timeout = Some(self.limits.request);
        // Without TLS no certificate is checked, so the system's store, which a bare machine may lack, is not needed.
        if config.cluster_url.scheme_str() == Some("http") && config.root_cert.is_none() {
            config.root_cert = Some(Vec::new());
        }
        let server = config.cluster_url.to_string().trim_end_matches('/').to_owned();
        let plugin = config.auth_info.exec.as_ref().and_then(|exec| exec.command.clone());
        let client = Client::try_from(config).map_err(|error| {
            let reason = answer::of_request(&error);
            let reason = match plugin.filter(|_| matches!(error, kube::Error::Auth(_))) {
                Some(plugin) => format!("the credential plugin {}: {reason}", safe(&plugin)),
                None => reason,
            };
            AccessError::Client { server: server.clone(), reason }
        })?;
        Ok((client, server, namespace))
    }

    async fn config(&self) -> Result<Config, AccessError> {
        let mut config = self.own_config().await?;
        if self.user.is_some() {
            config.auth_info.impersonate.clone_from(&self.user);
        }
        if !self.groups.is_empty() {
            config.auth_info.impersonate_groups = Some(self.groups.clone());
        }
        Ok(config)
    }

    async fn own_config(&self) -> Result<Config, AccessError> {
        let options = KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        if let Some(path) = &self.kubeconfig {
            let broken = |error: KubeconfigError| AccessError::Kubeconfig {
                path: path.clone(),
                reason: answer::of_kubeconfig(&error),
            };
            let kubeconfig = Kubeconfig::read_from(path).map_err(broken)?;
            return self.of(&kubeconfig, &options).await?.map_err(broken);
        }
        if let Some(context) = &self.context {
            let broken = |error: KubeconfigError| AccessError::Context {
                context: context.clone(),
                reason: answer::of_kubeconfig(&error),
            };
            let kubeconfig = Kubeconfig::read().map_err(broken)?;
            return self.of(&kubeconfig, &options).await?.map_err(broken);
        }
        if let Ok(kubeconfig) = Kubeconfig::read()
            && let Ok(config) = self.of(&kubeconfig, &options).await?
        {
            return Ok(config);
        }
        // That of the Pod's account, or what is wrong with both.
        Config::infer().await.map_err(|error| AccessError::Nowhere {
            reason: answer::of_inference(&error),
            by_sudo: env::var_os("SUDO_USER").is_some() && env::var_os("KUBECONFIG").is_none(),
        })
    }

    /// The configuration of a kubeconfig, with the proxy that kubectl would take.
    async fn of(
        &self,
        kubeconfig: &Kubeconfig,
        options: &KubeConfigOptions,
    ) -> Result<Result<Config, KubeconfigError>, ProxyError> {
        let context = self.context.as_deref();
        let server = proxy::server(kubeconfig, context);
        let proxy_url = proxy::proxy(kubeconfig, context, server.as_ref())?;
        let config = Config::from_custom_kubeconfig(proxy::undecided(kubeconfig), options).await;
        Ok(config.map(|mut config| {
            config.proxy_url = proxy_url;
            config
        }))
    }
}

impl Watcher {
    /// Updates from elsewhere instead of a server.
    pub(super) fn of(server: &str, limits: Limits, updates: mpsc::Receiver<Update>) -> Self {
        Self { server: server.to_owned(), limits, updates, _tasks: JoinSet::new() }
    }

    /// The server's URL.
    pub fn server(&self) -> &str {
        &self.server
    }

    pub const fn limits(&self) -> Limits {
        self.limits
    }

    /// Waits for the next update. `None` only if the watches have ended. Cancel-safe.
    pub async fn next(&mut self) -> Option<Update> {
        self.updates.recv().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sudo_is_named_if_it_hides_the_kubeconfig() {
        let hint = |by_sudo| AccessError::Nowhere { reason: "no file".to_owned(), by_sudo }.hint().unwrap();
        assert!(hint(true).contains("sudo drops KUBECONFIG"), "{}", hint(true));
        assert!(!hint(false).contains("sudo"), "{}", hint(false));
    }
}
