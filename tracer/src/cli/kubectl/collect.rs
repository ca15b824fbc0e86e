//! `kubectl viptrace collect`: the recordings of the nodes' agents, in a folder for each node.
//!
//! Owns which nodes and segments are fetched, the files, and the messages. `plugin::segments` reads the agents. A file has
//! another name until it is whole, and one that is whole is not fetched again.

mod files;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use anyhow::{anyhow, bail};
use futures::{StreamExt as _, stream};

use super::{
    AT_ONCE, Follows, Progress, Session,
    args::{CollectArgs, PodArgs, ServerArgs, name},
    check::service,
    trace::usage,
    traces::Objects,
    unless_stopped,
};
use crate::{
    agent::recorder::Segment,
    cli::{Outcome, ResultExt as _, selection::Span, stop::Stop},
    cluster::Key,
    error::sentence,
    kernel::now,
    platform,
    plugin::{
        nodes::{Wish, choose, endpoint_nodes, running_agents},
        permissions,
        segments::{AgentSegments, FetchError},
    },
    report::Printer,
    text::{count, list, safe, word},
    time::{Timestamp, when::When},
};
use files::{Folder, size};

/// The nodes whose segments are fetched at the same time: their bytes pass through the API server.
const FETCHED_AT_ONCE: usize = 4;
/// By how much the clocks of nodes and of this machine may differ: segments this near to the wanted time are fetched, too.
const CLOCKS_APART: Duration = Duration::from_mins(2);

/// The segments of one node.
struct Node {
    name: String,
    agent: AgentSegments,
    folder: Folder,
    /// Those that are not here yet.
    missing: Vec<Segment>,
    /// The number and the bytes of those that are here.
    files: u64,
    bytes: u64,
}

impl Node {
    fn missing_bytes(&self) -> u64 {
        self.missing.iter().map(|segment| segment.bytes).sum()
    }
}

/// Fetches the segments and says what to type next.
pub(super) async fn run(
    args: &CollectArgs,
    server: &ServerArgs,
    mut printer: Printer,
    progress: &Arc<Progress>,
) -> anyhow::Result<Outcome> {
    let times = span(args.since, args.until, now()).map_err(usage)?;
    if args.service.is_none() {
        server
            .without_namespace("without --service, the recordings of every agent are fetched")
            .map_err(usage)?;
    }
    let (session, objects) =
        Session::begin(server, &PodArgs::default(), Follows::Agents, &mut printer, progress).await?;
    let service = match &args.service {
        None => None,
        Some(text) => {
            let named = name(text, &session.namespace).map_err(usage)?;
            Some(service(named, text, &session, &objects).await?)
        }
    };
    let agents = running_agents(&objects.cluster.history);
    if agents.is_empty() {
        return Err(anyhow!("no agent runs in the cluster, and so nothing is recorded"))
            .hint(|| "`kubectl viptrace capture DIR` saves the state of the nodes as it is now".to_owned());
    }
    let namespaces: BTreeSet<&str> = agents.values().map(|agent| &*agent.namespace).collect();
    let needed = namespaces.into_iter().flat_map(permissions::to_exec).collect();
    session.require(needed, &mut printer).await?;
    let mut stop = Stop::listen()?;
    unless_stopped(
        &mut stop,
        collect(args, &session, &objects, agents, Wanted { service, times }, printer, progress),
    )
    .await
}

/// The wanted segments.
struct Wanted {
    /// With clients or endpoints of this Service on their node; `None` for every node's.
    service: Option<Key>,
    times: Span,
}

/// Everything after the permissions.
async fn collect(
    args: &CollectArgs,
    session: &Session,
    objects: &Objects,
    agents: BTreeMap<String, Key>,
    Wanted { service, times }: Wanted,
    mut printer: Printer,
    progress: &Progress,
) -> anyhow::Result<Outcome> {
    let mut failed = 0_u64;
    let mut fail = |printer: &mut Printer, node: &str, why: &str| {
        failed += 1;
        printer.warn(&safe(&format!("{node}: {why}")));
    };
    let chosen = chosen(args, session, objects, &agents, service.as_ref(), progress).await?;
    for node in &chosen.without {
        fail(&mut printer, node, "no agent runs there");
    }
    let (mut nodes, unread) = list_all(args, times, session, &chosen.agents, progress).await;
    for (node, why) in unread.iter().chain(&chosen.unread) {
        fail(&mut printer, node, why);
    }
    state_sizes(args, &nodes, progress)?;
    let each = nodes.iter_mut().map(|node| fetch(node, progress));
    let fetched = stream::iter(each).buffered(FETCHED_AT_ONCE).collect::<Vec<_>>().await;
    for (node, whys) in nodes.iter().zip(fetched) {
        for why in &whys {
            fail(&mut printer, &node.name, why);
        }
    }
    for node in nodes.iter().filter(|node| node.files > 0) {
        let place = safe(&node.folder.path().display().to_string()).into_owned();
        printer.data(&format!("{place}: {}, {}\n", count(node.files, "segment"), size(node.bytes)))?;
    }
    if nodes.iter().all(|node| node.files == 0) {
        bail!("no segment was fetched");
    }
    let folder = word(&args.folder.to_string_lossy());
    let of_service = service.map(|key| format!(" --service {key}")).unwrap_or_default();
    printer.data(&format!("next: kubectl viptrace replay {folder}{of_service} -o story\n"))?;
    printer.flush()?;
    Ok(if failed > 0 { Outcome::Incomplete } else { Outcome::Clean })
}

/// The agents that are asked, and the nodes that cannot be.
#[derive(Default)]
struct Chosen {
    agents: BTreeMap<String, Key>,
    /// Wanted nodes without an agent.
    without: BTreeSet<String>,
    /// Nodes of which it is not known whether clients are there, and why.
    unread: Vec<(String, String)>,
}

async fn chosen(
    args: &CollectArgs,
    session: &Session,
    objects: &Objects,
    agents: &BTreeMap<String, Key>,
    service: Option<&Key>,
    progress: &Progress,
) -> anyhow::Result<Chosen> {
    let history = &objects.cluster.history;
    let mut chosen = Chosen::default();
    let mut wanted: BTreeSet<String> = BTreeSet::new();
    if !args.node.is_empty() {
        let wish = Wish { nodes: args.node.clone(), ..Wish::default() };
        let choice = choose(history, &wish, None, now()).map_err(|why| anyhow!(why))?;
        wanted.extend(choice.nodes.into_iter().chain(choice.left_out.into_iter().map(|(node, _)| node)));
    } else if let Some(service) = service {
        wanted = endpoint_nodes(history, service, now());
        progress.say(&format!("asking {} for clients of {service}", count(agents.len(), "agent")));
        let others = agents.iter().filter(|(node, _)| !wanted.contains(*node));
        let each = others.map(|(node, agent)| async {
            let agent = AgentSegments::of(session.client.clone(), agent);
            (node.clone(), agent.has_clients_of(service).await)
        });
        let answers = stream::iter(each).buffered(AT_ONCE).collect::<Vec<_>>().await;
        for (node, answer) in answers {
            match answer {
                Ok(true) => drop(wanted.insert(node)),
                Ok(false) => {}
                Err(error) => chosen.unread.push((node, sentence(&error))),
            }
        }
    } else {
        let known = history.nodes().map(|node| node.key.name.to_string());
        let without: Vec<String> = known.filter(|name| !agents.contains_key(name)).collect();
        if !without.is_empty() {
            progress.say(&format!("no agent runs on {}", list(&without)));
        }
        wanted = agents.keys().cloned().collect();
    }
    chosen.without = wanted.iter().filter(|node| !agents.contains_key(*node)).cloned().collect();
    chosen.agents = agents
        .iter()
        .filter(|(node, _)| wanted.contains(*node))
        .map(|(node, key)| (node.clone(), key.clone()))
        .collect();
    Ok(chosen)
}

/// Lists the segments of each node. Returns the nodes with wanted segments, and why others have none.
async fn list_all(
    args: &CollectArgs,
    times: Span,
    session: &Session,
    agents: &BTreeMap<String, Key>,
    progress: &Progress,
) -> (Vec<Node>, Vec<(String, String)>) {
    progress.say(&format!("listing the segments of {}", count(agents.len(), "node")));
    let each = agents.iter().map(|(node, agent)| async {
        let agent = AgentSegments::of(session.client.clone(), agent);
        let listed = agent.list().await;
        (node.clone(), agent, listed)
    });
    let answers = stream::iter(each).buffered(AT_ONCE).collect::<Vec<_>>().await;
    let (mut nodes, mut unread) = (Vec::new(), Vec::new());
    for (name, agent, listed) in answers {
        let segments = match listed {
            Ok(segments) => segments,
            Err(error) => {
                unread.push((name, sentence(&error)));
                continue;
            }
        };
        let of_time = segments.iter().filter(|segment| segment.overlaps(times.from, times.to, CLOCKS_APART));
        let of_time: Vec<Segment> = of_time.cloned().collect();
        if of_time.is_empty() {
            unread.push((name, none_of_time(&segments)));
            continue;
        }
        let folder = match Folder::of(&args.folder, &name) {
            Ok(folder) => folder,
            Err(error) => {
                unread.push((name, sentence(&*error)));
                continue;
            }
        };
        let mut node = Node { name, agent, folder, missing: Vec::new(), files: 0, bytes: 0 };
        for segment in of_time {
            if node.folder.has(&segment) {
                node.files += 1;
                node.bytes += segment.bytes;
            } else {
                node.missing.push(segment);
            }
        }
        nodes.push(node);
    }
    (nodes, unread)
}

/// Why no segment is of the wanted time.
fn none_of_time(segments: &[Segment]) -> String {
    let oldest = segments.iter().find_map(Segment::began);
    let newest = segments.iter().map(|segment| segment.modified).max();
    match oldest.zip(newest) {
        None if segments.is_empty() => {
            "its agent has no segment: `recorder.folder` is not set, or it has just started".to_owned()
        }
        None => "its agent has no segment of this time".to_owned(),
        Some((oldest, newest)) => format!(
            "its agent has no segment of this time: its segments cover {} to {}",
            oldest.to_the_millisecond(),
            newest.to_the_millisecond()
        ),
    }
}

/// Says how much will be fetched and how much room there is. Fails if it is not enough.
fn state_sizes(args: &CollectArgs, nodes: &[Node], progress: &Progress) -> anyhow::Result<()> {
    let segments: usize = nodes.iter().map(|node| node.missing.len()).sum();
    let bytes: u64 = nodes.iter().map(Node::missing_bytes).sum();
    let here: u64 = nodes.iter().map(|node| node.files).sum();
    let free = platform::free_bytes(&args.folder);
    let room = free.map(|free| format!("; {} are free", size(free))).unwrap_or_default();
    let known = if here > 0 { format!(", {here} more are here") } else { String::new() };
    progress.say(&format!(
        "fetching {} of {} ({}){known}{room}",
        count(segments, "segment"),
        count(nodes.iter().filter(|node| !node.missing.is_empty()).count(), "node"),
        size(bytes)
    ));
    if free.is_some_and(|free| free < bytes) {
        return Err(anyhow!("{} has not enough room", args.folder.display()))
            .hint(|| "name another folder, or choose with --since TIME, --until TIME, --node NAME or --service NAME".to_owned());
    }
    Ok(())
}

/// Fetches the missing segments of one node, the oldest first. Returns what failed; after a failure that is not of one segment
/// the others are not tried.
async fn fetch(node: &mut Node, progress: &Progress) -> Vec<String> {
    let (all, bytes) = (node.missing.len(), node.missing_bytes());
    let (mut got, mut fetched) = (0, 0);
    let mut failed = Vec::new();
    for (number, segment) in std::mem::take(&mut node.missing).iter().enumerate() {
        progress.node(&node.name, &format!("{fetched} of {all} fetched, {} of {}", size(got), size(bytes)));
        match node.folder.fetch(&node.agent, segment).await {
            Ok(written) => {
                got += written;
                fetched += 1;
                node.files += 1;
                node.bytes += written;
            }
            Err(error) => {
                failed.push(format!("cannot fetch {}: {}", segment.name, sentence(&error)));
                if !matches!(error, FetchError::Gone) {
                    let left = all - number - 1;
                    if left > 0 {
                        failed.push(format!("{} after it were not tried", count(left, "segment")));
                    }
                    break;
                }
            }
        }
    }
    progress.node(&node.name, &format!("{fetched} of {all} fetched, {}", size(got)));
    failed
}

/// The wanted times, if the newest segments end now. A time of day at the end is the first one after the beginning.
fn span(since: Option<When>, until: Option<When>, now: Timestamp) -> Result<Span, String> {
    let from = since.map(|since| since.in_recording(now));
    let to = until.map(|until| from.map_or_else(|| until.in_recording(now), |from| until.as_end(from, now)));
    Span::new(from.unwrap_or(Timestamp::MIN), to.unwrap_or(Timestamp::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_span_follows_its_beginning() {
        let when = |text| Some(When::parse(text).unwrap());
        let at = |text| When::parse(text).unwrap().in_recording(Timestamp::MAX);
        let now = at("2026-01-02 21:50");
        let of = |since, until| span(since, until, now).map(|Span { from, to }| (from, to)).unwrap();
        assert_eq!(of(None, None), (Timestamp::MIN, Timestamp::MAX));
        assert_eq!(of(when("-10m"), None), (at("2026-01-02 21:40"), Timestamp::MAX));
        assert_eq!(of(when("21:30"), when("22:00")), (at("2026-01-02 21:30"), at("2026-01-02 22:00")));
        assert_eq!(of(None, when("21:30")), (Timestamp::MIN, at("2026-01-02 21:30")));
        let reversed = span(when("5m"), when("10m"), now).unwrap_err();
        assert!(reversed.contains("--until is before --since"), "{reversed}");
    }
}
