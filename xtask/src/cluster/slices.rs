//! `discovery.k8s.io/v1` for an API server that has only v1beta1 (Kubernetes before 1.21): a server that reads the older
//! version and translates it. The API server passes requests on to it, as its aggregation layer does for every API that
//! another server serves, after it has authenticated and authorised them.
//!
//! It serves get, list and watch. A process of its own runs it, since it must be in the cluster's network namespace.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Deserializer, Value, json};

use super::binaries::Version;
use super::control_plane::write;
use super::network::Network;
use super::pki::Authority;
use super::process::Process;

/// The verb that serves, for the command line.
pub(crate) const VERB: &str = "serve-slices";
/// The release that brought `discovery.k8s.io/v1`.
const FIRST: Version = Version::new(1, 21);
const SERVED: &str = "/apis/discovery.k8s.io/v1";
const STORED: &str = "/apis/discovery.k8s.io/v1beta1";
const ADDRESS: &str = "127.0.0.1:6444";
const API_SERVER: &str = "127.0.0.1:6443";
/// The fields of an endpoint's `topology` that are fields of their own in v1.
const TOPOLOGY: [(&str, &str); 2] =
    [("kubernetes.io/hostname", "nodeName"), ("topology.kubernetes.io/zone", "zone")];

/// The objects with which the API server finds this server. v1beta1 stays the preferred version.
pub(crate) const REGISTRATION: &str = "apiVersion: v1
kind: Service
metadata: {name: endpointslices-v1, namespace: kube-system}
spec: {type: ExternalName, externalName: localhost}
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.discovery.k8s.io}
spec:
  group: discovery.k8s.io
  version: v1
  groupPriorityMinimum: 16200
  versionPriority: 1
  insecureSkipTLSVerify: true
  service: {namespace: kube-system, name: endpointslices-v1, port: 6444}
";

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The folder with the certificates and keys
    folder: PathBuf,
}

/// Whether this release lacks `discovery.k8s.io/v1`.
pub(crate) fn are_missing(version: Version) -> bool {
    version < FIRST
}

/// The flags with which v1beta1 has what v1 has from its first release on.
pub(crate) fn feature_gates(version: Version) -> Option<String> {
    are_missing(version).then(|| {
        "--feature-gates=EndpointSliceTerminatingCondition=true,EndpointSliceNodeName=true".to_owned()
    })
}

/// Starts the server in the cluster's network namespace.
pub(crate) fn start(network: &Network, authority: &Authority, state: &Path) -> Result<Process> {
    let folder = state.join("slices");
    fs::create_dir_all(&folder).with_context(|| format!("could not create {}", folder.display()))?;
    write(&folder.join("ca.crt"), authority.certificate())?;
    for (name, identity) in [
        ("server", authority.issue("endpointslices-v1", None, &["localhost"])?),
        ("client", authority.issue("endpointslices-v1", Some("system:masters"), &[])?),
    ] {
        write(&folder.join(format!("{name}.crt")), &identity.certificate)?;
        write(&folder.join(format!("{name}.key")), &identity.key)?;
    }
    let program = env::current_exe().context("could not find this program's own file")?;
    let mut command = network.command(program);
    command.arg(VERB).arg(&folder);
    Process::start("the server of discovery.k8s.io/v1", command, &state.join("slices.log"))
}

/// Serves until the process is killed.
pub(crate) fn serve(options: &Options) -> Result<()> {
    let tls = Arc::new(Tls::read(&options.folder)?);
    let listener = TcpListener::bind(ADDRESS).with_context(|| format!("could not listen on {ADDRESS}"))?;
    for stream in listener.incoming() {
        let stream = stream.with_context(|| format!("could not accept a connection on {ADDRESS}"))?;
        let tls = Arc::clone(&tls);
        // A client that closes its connection is no failure.
        thread::spawn(move || drop(tls.answer(stream)));
    }
    Ok(())
}

/// Both sides of the connections.
struct Tls {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

impl Tls {
    fn read(folder: &Path) -> Result<Self> {
        let certificates = |name: &str| {
            let certificates = CertificateDer::pem_file_iter(folder.join(name))?;
            certificates.collect::<Result<Vec<_>, _>>()
        };
        let key = |name: &str| PrivateKeyDer::from_pem_file(folder.join(name));
        let read = || -> Result<Self> {
            let provider = Arc::new(ring::default_provider());
            let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
                .with_safe_default_protocol_versions()?
                .with_no_client_auth()
                .with_single_cert(certificates("server.crt")?, key("server.key")?)?;
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(certificates("ca.crt")?);
            let client = ClientConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()?
                .with_root_certificates(roots)
                .with_client_auth_cert(certificates("client.crt")?, key("client.key")?)?;
            Ok(Self { server: Arc::new(server), client: Arc::new(client) })
        };
        read().with_context(|| format!("could not use the certificates in {}", folder.display()))
    }

    /// Answers one request and closes the connection.
    fn answer(&self, stream: TcpStream) -> Result<()> {
        let connection = ServerConnection::new(Arc::clone(&self.server))?;
        let mut client = BufReader::new(StreamOwned::new(connection, stream));
        let head = head(&mut client)?;
        let mut client = client.into_inner();
        let Some(request) = Request::parse(&head) else {
            client.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")?;
            return close(&mut client);
        };
        let (status, stored) = self.read_stored(&request)?;
        write!(client, "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n")?;
        // One object, or for a watch one at a time until its end.
        for object in Deserializer::from_reader(stored).into_iter::<Value>() {
            let Ok(mut object) = object else { break };
            translate(&mut object);
            writeln!(client, "{object}")?;
            client.flush()?;
        }
        close(&mut client)
    }

    /// The status and the body of the API server's answer.
    fn read_stored(&self, request: &Request) -> Result<(String, impl Read + use<>)> {
        let stream = TcpStream::connect(API_SERVER).context("could not connect to the API server")?;
        let name = ServerName::try_from("localhost").context("not a name")?;
        let connection = ClientConnection::new(Arc::clone(&self.client), name)?;
        let mut server = StreamOwned::new(connection, stream);
        // With HTTP 1.0, the body ends with the connection and has no chunks.
        write!(
            server,
            "GET {} HTTP/1.0\r\nHost: localhost\r\nAccept: {}\r\n\r\n",
            request.path, request.accept
        )?;
        server.flush()?;
        let mut server = BufReader::new(server);
        let head = head(&mut server)?;
        let status = head.split_once(' ').and_then(|(_, rest)| rest.lines().next());
        Ok((status.context("the API server's answer has no status")?.to_owned(), server))
    }
}

fn close(client: &mut StreamOwned<ServerConnection, TcpStream>) -> Result<()> {
    client.conn.send_close_notify();
    client.flush().context("could not end the answer")
}

/// The lines before the body.
fn head(stream: &mut impl BufRead) -> Result<String> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head)? == 0 {
            bail!("the connection ended within the headers");
        }
    }
    Ok(head)
}

/// A request for the stored version.
#[derive(Debug, PartialEq, Eq)]
struct Request {
    path: String,
    accept: &'static str,
}

impl Request {
    /// `None` if this server does not serve it.
    fn parse(head: &str) -> Option<Self> {
        let mut words = head.lines().next()?.split(' ');
        let (method, path) = (words.next()?, words.next()?);
        let rest =
            path.strip_prefix(SERVED).filter(|rest| rest.is_empty() || rest.starts_with(['/', '?']))?;
        let is_table = head.lines().any(|line| {
            let line = line.to_ascii_lowercase();
            line.starts_with("accept:") && line.contains("as=table")
        });
        let accept = if is_table {
            "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
        } else {
            "application/json"
        };
        (method == "GET").then(|| Self { path: format!("{STORED}{rest}"), accept })
    }
}

/// Makes an object of v1beta1, a list, a watch's event or the list of resources one of v1. Other objects stay.
fn translate(object: &mut Value) {
    if let Some(event) = object.get_mut("object") {
        return translate(event);
    }
    match object["kind"].as_str() {
        Some("APIResourceList") => object["groupVersion"] = json!("discovery.k8s.io/v1"),
        Some("EndpointSliceList") => {
            object["apiVersion"] = json!("discovery.k8s.io/v1");
            object["items"].as_array_mut().into_iter().flatten().for_each(translate_slice);
        }
        Some("EndpointSlice") => {
            object["apiVersion"] = json!("discovery.k8s.io/v1");
            translate_slice(object);
        }
        _ => {}
    }
}

/// As Kubernetes converts between the versions (`pkg/apis/discovery/v1beta1/conversion.go`).
fn translate_slice(slice: &mut Value) {
    for endpoint in slice["endpoints"].as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
        let Some(Value::Object(mut topology)) = endpoint.remove("topology") else { continue };
        for (label, field) in TOPOLOGY {
            if let Some(value) = topology.remove(label) {
                endpoint.entry(field).or_insert(value);
            }
        }
        if !topology.is_empty() {
            endpoint.insert("deprecatedTopology".to_owned(), Value::Object(topology));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_becomes_one_of_v1() {
        let endpoint = json!({
            "addresses": ["10.244.1.2"],
            "conditions": {"ready": true},
            "topology": {"kubernetes.io/hostname": "node1", "topology.kubernetes.io/region": "r"},
        });
        let translated = json!({
            "addresses": ["10.244.1.2"],
            "conditions": {"ready": true},
            "nodeName": "node1",
            "deprecatedTopology": {"topology.kubernetes.io/region": "r"},
        });
        let mut list = json!({
            "kind": "EndpointSliceList", "apiVersion": "discovery.k8s.io/v1beta1",
            "items": [{"addressType": "IPv4", "endpoints": [endpoint]}, {"addressType": "IPv6", "endpoints": null}],
        });
        translate(&mut list);
        assert_eq!(list["apiVersion"], "discovery.k8s.io/v1");
        assert_eq!(list["items"][0]["endpoints"][0], translated);
        let mut event = json!({"type": "ADDED", "object": {
            "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1beta1", "endpoints": [endpoint],
        }});
        translate(&mut event);
        assert_eq!(event["object"]["endpoints"][0], translated);
        assert_eq!(event["object"]["apiVersion"], "discovery.k8s.io/v1");
        let error = json!({"kind": "Status", "apiVersion": "v1", "code": 410});
        let mut same = error.clone();
        translate(&mut same);
        assert_eq!(same, error);
    }

    #[test]
    fn only_reads_of_the_missing_version_are_served() {
        let parse =
            |line: &str| Request::parse(&format!("{line} HTTP/1.1\r\nAccept: application/json\r\n\r\n"));
        let request = parse("GET /apis/discovery.k8s.io/v1/endpointslices?watch=true").unwrap();
        assert_eq!(request.path, "/apis/discovery.k8s.io/v1beta1/endpointslices?watch=true");
        assert_eq!(parse("GET /apis/discovery.k8s.io/v1").unwrap().path, STORED);
        for line in
            ["POST /apis/discovery.k8s.io/v1/x", "GET /openapi/v2", "GET /apis/discovery.k8s.io/v1x", "GET"]
        {
            assert_eq!(parse(line), None, "{line}");
        }
        let table =
            "GET /apis/discovery.k8s.io/v1/x HTTP/1.1\r\naccept: application/json;as=Table;v=v1\r\n\r\n";
        assert!(Request::parse(table).unwrap().accept.contains("as=Table"));
    }
}
