//! The configuration of the agent: one YAML file, its defaults, its bounds and its errors.
//!
//! Owns the keys. `docs/agent.md` lists them, and `docs/agent.schema.json` is the schema of these types; tests compare
//! both with them. An error names the key and the line.

mod values;

use std::{
    collections::BTreeMap,
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use schemars::{JsonSchema, Schema, generate::SchemaSettings};
use serde::{Deserialize, Serialize};

use crate::error::Hint;
pub(crate) use values::Span;
use values::{Number, Share, Size};

/// A longer file is not a configuration.
const MAX_BYTES: u64 = 1 << 20;
/// The most headers of a request to the OTLP receiver.
const MAX_HEADERS: usize = 16;
/// `sun_path` of `struct sockaddr_un` has 108 bytes with the closing zero (unix(7)).
const MAX_SOCKET_PATH: usize = 107;

const SECOND: u64 = 1000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// The configuration of `viptrace agent`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The version of this format: 1.
    pub version: Number<1, 1>,
    /// This node's name in Kubernetes. Without it `NODE_NAME` of the environment, else the host's name.
    #[serde(default)]
    pub node: Option<String>,
    /// Where the cluster's objects come from.
    #[serde(default)]
    pub cluster: ClusterConfig,
    /// How long kube-proxy may take to write a change. Without it by kube-proxy's own pace.
    #[serde(default)]
    pub grace: Option<Span<0, HOUR>>,
    /// Which kernel hooks are attached.
    #[serde(default)]
    pub hooks: HookChoice,
    /// How to reach kernel functions.
    #[serde(default)]
    pub attach: AttachChoice,
    /// The share of healthy flows that have a verdict of their own; all are counted.
    #[serde(default = "sample")]
    pub sample: Share,
    /// Flows kept in memory.
    #[serde(default = "max_flows")]
    pub max_flows: Number<16, 16_777_216>,
    /// Decisions of NAT that the kernel keeps until a failure meets their connection; 201 bytes each.
    #[serde(default = "decisions")]
    pub decisions: Number<1024, 1_048_576>,
    /// The buffer between kernel and agent.
    #[serde(default = "buffer")]
    pub buffer: Size<4096, GIB>,
    /// The records that go to standard output.
    #[serde(default)]
    pub output: OutputChoice,
    /// The time from SIGTERM to the end.
    #[serde(default = "drain")]
    pub drain: Span<SECOND, { 10 * MINUTE }>,
    /// Measures the time of the agent's programs in the kernel. Needs the capability `SYS_ADMIN`.
    #[serde(default)]
    pub kernel_stats: bool,
    /// The port with the metrics.
    #[serde(default)]
    pub metrics: MetricsConfig,
    /// The port with the probes.
    #[serde(default)]
    pub health: HealthConfig,
    /// The flight recorder.
    #[serde(default)]
    pub recorder: RecorderConfig,
    /// The socket of `viptrace agent stream`.
    #[serde(default)]
    pub stream: StreamConfig,
    /// The export by OpenTelemetry's protocol.
    #[serde(default)]
    pub otlp: OtlpConfig,
    /// The agent's own lines on standard error.
    #[serde(default)]
    pub log: LogConfig,
}

fn sample() -> Share {
    Share::one_in(100)
}

fn max_flows() -> Number<16, 16_777_216> {
    Number::of(65_536)
}

fn decisions() -> Number<1024, 1_048_576> {
    Number::of(16_384)
}

fn buffer() -> Size<4096, GIB> {
    Size::of(4 * MIB)
}

fn drain() -> Span<SECOND, { 10 * MINUTE }> {
    Span::of(Duration::from_secs(10))
}

/// Where the cluster's objects come from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ClusterConfig {
    /// The kubeconfig file. Without it `KUBECONFIG`, `~/.kube/config`, then the Pod's service account.
    pub kubeconfig: Option<PathBuf>,
    /// The context in the kubeconfig file.
    pub context: Option<String>,
    /// A folder with saved lists, instead of an API server.
    pub folder: Option<PathBuf>,
}

/// Which kernel hooks are attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum HookChoice {
    /// Failing connections, and a sample of the others; the kernel counts all.
    #[default]
    Failures,
    /// All new connections, and failures.
    Lean,
    /// Also connect times and the ends of healthy flows.
    Full,
}

/// How to reach kernel functions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AttachChoice {
    /// Each function by fentry where this kernel allows it, else by a kprobe.
    #[default]
    Auto,
    /// By fentry only: a function without fentry is not observed.
    Fentry,
    /// By kprobes only.
    Kprobe,
}

/// The records that go to standard output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OutputChoice {
    /// Nothing.
    #[default]
    None,
    /// The verdicts of failed flows, one JSON object a line.
    Json,
}

/// The port with the metrics.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MetricsConfig {
    /// The address and port of `/metrics`; null serves none.
    #[schemars(with = "Option<String>")]
    pub listen: Option<SocketAddr>,
    /// The most series with names of Services; further ones are added up under `service="_other"`.
    pub max_series: Number<100, 1_000_000>,
    /// Whether connections are counted by endpoint, or only by Service port.
    pub endpoints: bool,
    /// How long a deleted Service, port or endpoint keeps its series.
    pub keep: Span<{ 10 * SECOND }, { 24 * HOUR }>,
    /// Serves TLS.
    pub tls: Option<TlsConfig>,
    /// The readers that are allowed.
    pub authorization: Authorization,
}

impl Default for MetricsConfig {
    fn default() -> Self {
        Self {
            listen: Some(SocketAddr::from(([127, 0, 0, 1], 9478))),
            max_series: Number::of(20_000),
            endpoints: true,
            keep: Span::of(Duration::from_mins(15)),
            tls: None,
            authorization: Authorization::None,
        }
    }
}

/// A certificate and its key. They are read again when they change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// A PEM file with the certificate and those that sign it.
    pub certificate: PathBuf,
    /// A PEM file with the private key.
    pub key: PathBuf,
}

/// The readers of the metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Authorization {
    /// Everyone who reaches the port.
    #[default]
    None,
    /// The owner of a token whom the API server allows to `get` the path `/metrics`. Needs `metrics.tls`.
    Token,
}

/// The port with the probes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct HealthConfig {
    /// The address and port of `/healthz` and `/readyz`; null serves none.
    #[schemars(with = "Option<String>")]
    pub listen: Option<SocketAddr>,
}

impl Default for HealthConfig {
    fn default() -> Self {
        Self { listen: Some(SocketAddr::from(([127, 0, 0, 1], 9479))) }
    }
}

/// The flight recorder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RecorderConfig {
    /// The folder of the segments; null records nothing.
    pub folder: Option<PathBuf>,
    /// The size of all segments; the oldest are deleted first.
    pub max_bytes: Size<{ 4 * MIB }, { 1024 * GIB }>,
    /// Older segments are deleted.
    pub max_age: Span<MINUTE, { 365 * 24 * HOUR }>,
    /// A segment of this size is closed. At most half of `max_bytes`.
    pub segment_bytes: Size<MIB, { 512 * GIB }>,
    /// A segment of this age is closed.
    pub segment_age: Span<{ 10 * SECOND }, { 24 * HOUR }>,
}

impl Default for RecorderConfig {
    fn default() -> Self {
        Self {
            folder: None,
            max_bytes: Size::of(256 * MIB),
            max_age: Span::of(Duration::from_hours(24)),
            segment_bytes: Size::of(32 * MIB),
            segment_age: Span::of(Duration::from_hours(1)),
        }
    }
}

/// The socket of `viptrace agent stream`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StreamConfig {
    /// The path of the socket, which only its owner may open; null opens none.
    pub socket: Option<PathBuf>,
    /// The most readers at a time.
    pub max_readers: Number<1, 64>,
    /// The most verdicts that wait for one reader.
    pub queue: Number<16, 65_536>,
}

impl Default for StreamConfig {
    fn default() -> Self {
        Self { socket: Some(SOCKET.into()), max_readers: Number::of(8), queue: Number::of(1024) }
    }
}

/// The default path of the socket.
pub const SOCKET: &str = "/run/viptrace/agent.sock";

/// The export by OpenTelemetry's protocol.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OtlpConfig {
    /// The base URL of an OTLP/HTTP receiver; null exports nothing.
    pub endpoint: Option<String>,
    /// A PEM file with the certificates that sign the receiver's. Without it the system's.
    pub ca: Option<PathBuf>,
    /// Headers of each request.
    pub headers: BTreeMap<String, String>,
    /// Whether verdicts are sent as logs.
    pub logs: bool,
    /// Whether counts are sent as metrics.
    pub metrics: bool,
    /// The time between two exports of metrics.
    pub interval: Span<SECOND, HOUR>,
    /// The limit of one request.
    pub timeout: Span<SECOND, { 5 * MINUTE }>,
    /// The most verdicts that wait for the receiver.
    pub queue: Number<16, 65_536>,
}

impl Default for OtlpConfig {
    fn default() -> Self {
        Self {
            endpoint: None,
            ca: None,
            headers: BTreeMap::new(),
            logs: true,
            metrics: true,
            interval: Span::of(Duration::from_secs(30)),
            timeout: Span::of(Duration::from_secs(10)),
            queue: Number::of(2048),
        }
    }
}

/// The agent's own lines on standard error.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LogConfig {
    /// The least important lines that are written.
    pub level: Level,
    /// The most lines of one kind in a minute.
    pub per_minute: Number<1, 6000>,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { level: Level::Info, per_minute: Number::of(60) }
    }
}

/// The importance of a line, from the highest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Error,
    Warn,
    Info,
}

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read the configuration {path}: {error}")]
    Read { path: PathBuf, error: io::Error },
    #[error("the configuration {path} has an error in line {line}: {why}")]
    Invalid { path: PathBuf, line: u64, why: String },
}

impl Hint for ConfigError {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Read { .. } => "--config FILE names another file".to_owned(),
            Self::Invalid { .. } => "`viptrace schema agent` describes every key".to_owned(),
        })
    }
}

impl Config {
    /// Reads a file of at most 1 MiB.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let failed = |error| ConfigError::Read { path: path.to_owned(), error };
        let size = fs::metadata(path).map_err(failed)?.len();
        if size > MAX_BYTES {
            return Err(failed(io::Error::other(format!("it has {size} bytes, more than {MAX_BYTES}"))));
        }
        let text = fs::read_to_string(path).map_err(failed)?;
        Self::parse(&text).map_err(|(line, why)| ConfigError::Invalid { path: path.to_owned(), line, why })
    }

    /// Parses the text. The error is a line, counted from 1, and the reason.
    pub fn parse(text: &str) -> Result<Self, (u64, String)> {
        if text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
            return Err((1, "the file is empty; it needs at least `version: 1`".to_owned()));
        }
        let config: Self = serde_saphyr::from_str(text).map_err(|error: serde_saphyr::Error| {
            let line = error.location().map_or(1, |location| location.line().max(1));
            (line, reason(text, line, &error))
        })?;
        match config.contradiction() {
            None => Ok(config),
            Some((section, key, why)) => Err((line_of(text, section, key), why)),
        }
    }

    /// The first rule that concerns several keys and does not hold: section, key and reason.
    fn contradiction(&self) -> Option<(&'static str, &'static str, String)> {
        let found = |section, key, why: &str| Some((section, key, format!("{section}.{key}: {why}")));
        let cluster = &self.cluster;
        if cluster.folder.is_some() && (cluster.kubeconfig.is_some() || cluster.context.is_some()) {
            return found("cluster", "folder", "it replaces the API server; remove kubeconfig and context");
        }
        if self.metrics.authorization == Authorization::Token && self.metrics.tls.is_none() {
            return found(
                "metrics",
                "authorization",
                "a token needs metrics.tls: it must not cross the network in the clear",
            );
        }
        let recorder = &self.recorder;
        if recorder.segment_bytes.get() > recorder.max_bytes.get() / 2 {
            return found("recorder", "segment_bytes", "it is more than half of recorder.max_bytes");
        }
        let socket = self.stream.socket.as_ref();
        if socket.is_some_and(|path| path.as_os_str().len() > MAX_SOCKET_PATH) {
            return found("stream", "socket", "a path of a Unix socket has at most 107 bytes");
        }
        let otlp = &self.otlp;
        if let Some(why) = otlp.endpoint.as_deref().and_then(|url| endpoint(url).err()) {
            return found("otlp", "endpoint", &why);
        }
        if otlp.headers.len() > MAX_HEADERS {
            return found("otlp", "headers", "there are more than 16");
        }
        let is_header = |(name, value): (&String, &String)| {
            http::HeaderName::try_from(name).is_ok() && http::HeaderValue::try_from(value).is_ok()
        };
        if !otlp.headers.iter().all(is_header) {
            return found("otlp", "headers", "a name or a value has characters that HTTP does not allow");
        }
        None
    }

    /// The keys that differ in `other` and take effect only when the agent starts again.
    pub fn needs_restart(&self, other: &Self) -> Vec<&'static str> {
        let differ = [
            ("node", self.node != other.node),
            ("cluster", self.cluster != other.cluster),
            ("grace", self.grace != other.grace),
            ("hooks", self.hooks != other.hooks),
            ("attach", self.attach != other.attach),
            ("sample", self.sample != other.sample),
            ("max_flows", self.max_flows != other.max_flows),
            ("decisions", self.decisions != other.decisions),
            ("buffer", self.buffer != other.buffer),
            ("kernel_stats", self.kernel_stats != other.kernel_stats),
            ("metrics.listen", self.metrics.listen != other.metrics.listen),
            ("health.listen", self.health.listen != other.health.listen),
            ("stream.socket", self.stream.socket != other.stream.socket),
        ];
        differ.into_iter().filter(|(_, differs)| *differs).map(|(key, _)| key).collect()
    }
}

/// The URL of an OTLP receiver.
pub(crate) fn endpoint(url: &str) -> Result<http::Uri, String> {
    let uri: http::Uri = url.parse().map_err(|_| format!("{url:?} is not a URL"))?;
    let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
    if is_http && uri.host().is_some_and(|host| !host.is_empty()) && uri.query().is_none() {
        Ok(uri)
    } else {
        Err(format!("{url:?} is not a base URL such as http://collector:4318"))
    }
}

/// The reason of a parser's error, with the key of its line.
fn reason(text: &str, line: u64, error: &serde_saphyr::Error) -> String {
    let text_of_error = error.without_snippet().to_string();
    let why = text_of_error.lines().next().unwrap_or_default();
    let at = usize::try_from(line).unwrap_or(usize::MAX).saturating_sub(1);
    let key = text.lines().nth(at).and_then(|line| line.split_once(':')).map(|(key, _)| key.trim());
    match key.filter(|key| !key.is_empty() && !why.contains(*key)) {
        Some(key) => format!("{key}: {why}"),
        None => why.to_owned(),
    }
}

/// The line of `key` below `section`; the section's, or the first, if there is none.
fn line_of(text: &str, section: &str, key: &str) -> u64 {
    let begins = |line: &str, key: &str| {
        line.trim_start().strip_prefix(key).is_some_and(|rest| rest.trim_start().starts_with(':'))
    };
    let mut lines =
        text.lines().enumerate().skip_while(|(_, line)| line.starts_with(' ') || !begins(line, section));
    let Some((first, _)) = lines.next() else { return 1 };
    let mut inside = lines.take_while(|(_, line)| line.is_empty() || line.starts_with([' ', '#']));
    let found = inside.find(|(_, line)| begins(line, key)).map_or(first, |(at, _)| at);
    found as u64 + 1
}

/// The JSON Schema (draft 2020-12) of the configuration.
pub(crate) fn schema() -> Schema {
    let settings = SchemaSettings::draft2020_12();
    let mut schema = settings.into_generator().into_root_schema_for::<Config>();
    schema.insert("title".into(), "viptrace agent".into());
    schema
}

#[cfg(test)]
mod tests;
