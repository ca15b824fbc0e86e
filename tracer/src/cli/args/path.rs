//! The arguments of `path`, and the question that they ask.

use std::{net::SocketAddr, path::PathBuf};

use clap::{Args, ValueEnum};

use super::source::{ClusterSource, SourceArgs, own_name};
use crate::{
    cli::target::Target,
    cluster::Key,
    diagnosis::path::{From, Question, To},
    net::{Family, Protocol},
};

const EXAMPLES: &str = "Examples:
  viptrace path pod/shop/web-0 shop/cart:http      a Pod and a Service's port
  viptrace path node 10.96.0.10:53 --protocol udp  from this node
  viptrace path 198.51.100.7 192.0.2.11:31005      a client outside, a node port
  viptrace path --from worker-1/ 10.244.1.5 10.96.10.10:80 -o json
                                                   a folder, as a record

Nothing is sent and nothing is changed.";

const EXIT_STATUS: &str = "Exit status:
  0  nothing on this node stops the packet
  1  could not run
  2  wrong usage
  3  it is refused, dropped or not translated, or its reply is lost
  4  it depends on something that cannot be judged or was not read";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{EXIT_STATUS}"))]
pub struct PathArgs {
    /// The sender: pod/NAMESPACE/NAME, an address, or `node` for this node
    #[arg(value_name = "FROM")]
    sender: String,
    /// The destination: NAMESPACE/SERVICE[:PORT], pod/NAMESPACE/NAME:PORT, IP:PORT or [IPv6]:PORT
    #[arg(value_name = "TO")]
    destination: String,
    /// The namespace of bare names
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// The protocol [default: that of the Service's port, else tcp]
    #[arg(short, long, value_name = "PROTOCOL")]
    protocol: Option<Transport>,
    /// The address family, where a name has addresses of both [default: ipv4]
    #[arg(long, value_name = "FAMILY")]
    family: Option<Ip>,

    /// How to print the way
    #[arg(short, long, value_name = "FORMAT", default_value = "text", help_heading = "Output")]
    output: Format,

    /// Use this folder of a node's files (viptrace capture, a must-gather), not this node
    #[arg(long, value_name = "DIR", help_heading = "Source", conflicts_with_all = ["kubeconfig", "context"])]
    from: Option<PathBuf>,
    #[command(flatten)]
    source: SourceArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Transport {
    Tcp,
    Udp,
    Sctp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Ip {
    Ipv4,
    Ipv6,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Format {
    /// One line for each rule
    #[default]
    Text,
    /// One JSON object; `viptrace schema path` describes it
    Json,
}

/// The options of `viptrace path`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathOptions {
    pub question: Question,
    pub json: bool,
    /// A captured folder; without it, this node.
    pub from: Option<PathBuf>,
    pub cluster: ClusterSource,
    pub node: Option<String>,
}

impl PathArgs {
    /// Whether the rules come from a folder, on any machine.
    pub(crate) fn has_folder(&self) -> bool {
        self.from.is_some()
    }

    /// Resolves the arguments to options; the error is a usage error.
    pub fn resolve(self) -> Result<PathOptions, clap::Error> {
        let usage = |why: String| super::usage("path", why);
        let namespace = self.namespace.as_deref();
        let from = sender(&self.sender, namespace).map_err(usage)?;
        let to = destination(&self.destination, namespace).map_err(usage)?;
        if namespace.is_some() && !matches!(from, From::Pod(_)) && matches!(to, To::Address(_)) {
            let (from, to) = (&self.sender, &self.destination);
            return Err(usage(format!(
                "-n has no effect from {from} to {to}: neither is a name in a namespace"
            )));
        }
        let protocol = self.protocol.map(|protocol| match protocol {
            Transport::Tcp => Protocol::TCP,
            Transport::Udp => Protocol::UDP,
            Transport::Sctp => Protocol::SCTP,
        });
        let family = self.family.map(|family| match family {
            Ip::Ipv4 => Family::Ipv4,
            Ip::Ipv6 => Family::Ipv6,
        });
        let (cluster, node) = self.source.resolve();
        // The environment describes this node, not the folder's.
        let node = if self.from.is_some() { node } else { node.or_else(own_name) };
        Ok(PathOptions {
            question: Question { from, to, protocol, family },
            json: self.output == Format::Json,
            from: self.from,
            cluster,
            node,
        })
    }
}

fn sender(text: &str, namespace: Option<&str>) -> Result<From, String> {
    if text == "node" {
        return Ok(From::Node);
    }
    if text.starts_with("node/") {
        return Err(format!("{text:?}: the rules are those of one node: write node"));
    }
    match Target::parse(text, namespace)? {
        Target::Pod { namespace, name } => Ok(From::Pod(Key::new(&namespace, &name))),
        Target::Address { ip, port: None } => Ok(From::Address(ip)),
        Target::Address { port: Some(_), .. } => {
            Err(format!("{text:?}: a sender has no port: write the address alone"))
        }
        Target::Service { .. } => Err(format!(
            "{text:?} is a Service, which sends nothing: write pod/NAMESPACE/NAME, an address or node"
        )),
    }
}

fn destination(text: &str, namespace: Option<&str>) -> Result<To, String> {
    if text.parse::<SocketAddr>().is_ok() || text.parse::<std::net::IpAddr>().is_ok() || text.starts_with('[')
    {
        return match Target::parse(text, namespace)? {
            Target::Address { ip, port: Some(port) } => Ok(To::Address(SocketAddr::new(ip, port))),
            _ => Err(format!("{text:?} lacks the port: write IP:PORT or [IPv6]:PORT")),
        };
    }
    let (name, port) = match text.rsplit_once(':') {
        Some((name, port)) if name.contains('/') || namespace.is_some() => (name, Some(port)),
        _ => (text, None),
    };
    if port.is_some_and(str::is_empty) {
        return Err(format!("{text:?} ends without a port"));
    }
    match Target::parse(name, namespace)? {
        Target::Service { namespace, name } => {
            Ok(To::Service { key: Key::new(&namespace, &name), port: port.map(ToOwned::to_owned) })
        }
        Target::Pod { namespace, name } => match port.map(str::parse::<u16>) {
            Some(Ok(port)) if port > 0 => Ok(To::Pod { key: Key::new(&namespace, &name), port }),
            _ => Err(format!("{text:?} lacks the port's number: write pod/NAMESPACE/NAME:PORT")),
        },
        Target::Address { .. } => Err(format!("{text:?} lacks the port: write IP:PORT or [IPv6]:PORT")),
    }
}
