//! kube-proxy as a process of this node: whether it runs, and the flags that it was started with.
//!
//! Owns the part of the process list that is kept: kube-proxy's own line and no other. A program that contains
//! kube-proxy (k3s) is named without its command line, which may contain tokens. A kube-proxy in another network
//! namespace is another node's (kind, several clusters on one machine), or viptrace is not in the node's namespace.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::{node::procfs, parse::ParseError};

/// The most bytes of a command line that are read.
const MAX_CMDLINE_BYTES: usize = 64 << 10;
/// The units of a process's start time in `/proc/PID/stat`, per second: `USER_HZ`, which is 100 on every architecture
/// that Kubernetes runs on (proc(5), time(7)).
const TICKS_PER_SEC: u64 = 100;
/// The most processes that are searched for kube-proxy.
const MAX_PROCESSES: usize = 1 << 20;
const KUBE_PROXY: &str = "kube-proxy";
/// Programs that distributions build kube-proxy into: k3s and `MicroK8s`. Each can run without it (`k3s server
/// --disable-kube-proxy`), and k3s hides its arguments, so that only an answer on kube-proxy's ports shows that it
/// runs. RKE2 runs kube-proxy as a static Pod with a process of its own.
const EMBEDDING: [&str; 4] = ["k3s", "k3s-server", "k3s-agent", "kubelite"];

/// The process list's facts about kube-proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessList {
    /// Whether every process of the node was visible, so that absence is known.
    pub complete: bool,
    /// The program that runs kube-proxy; `None` if none was found.
    #[serde(default)]
    pub program: Option<String>,
    /// Its arguments, if the program is kube-proxy itself.
    #[serde(default)]
    pub arguments: Vec<String>,
    /// Its process id, if the program is kube-proxy itself.
    #[serde(default)]
    pub pid: Option<u32>,
    /// When that process was started, in seconds since the epoch, exact to about a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<u64>,
    /// The process id of a kube-proxy, or of a program that may contain it, in another network namespace, if there is
    /// none in this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elsewhere: Option<u32>,
    /// The node's online CPUs, not the CPUs that the kernel could have.
    #[serde(default)]
    pub cpus: Option<u32>,
}

impl ProcessList {
    /// Reads `/proc` at `root`. Blocks briefly.
    pub fn read(root: &Path) -> io::Result<Self> {
        let cpus = procfs::read_text(&root.join("cpuinfo")).ok().and_then(|text| {
            u32::try_from(text.lines().filter(|line| line.starts_with("processor")).count()).ok()
        });
        let mut list = Self { cpus: cpus.filter(|count| *count > 0), ..Self::default() };
        let own = namespace(&root.join("self"));
        for entry in fs::read_dir(root)?.take(MAX_PROCESSES).flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            let folder = entry.path();
            // A process may end between the listing and this read.
            let Ok(comm) = procfs::read_text(&folder.join("comm")) else { continue };
            let comm = comm.trim_end();
            // Only the node's own process list has the kernel's threads.
            list.complete |= comm == "kthreadd";
            if (comm == KUBE_PROXY || EMBEDDING.contains(&comm))
                && own.is_some()
                && namespace(&folder).is_some_and(|its| Some(its) != own)
            {
                list.elsewhere.get_or_insert(pid);
                continue;
            }
            if comm == KUBE_PROXY {
                list.pid = Some(pid);
                list.started = started(root, &folder);
                list.arguments = arguments(&folder);
                list.program = Some(comm.to_owned());
                break;
            }
            if EMBEDDING.contains(&comm) {
                list.program.get_or_insert_with(|| comm.to_owned());
            }
        }
        list.complete |= list.program.is_some();
        if list.program.is_some() {
            list.elsewhere = None;
        }
        Ok(list)
    }

    /// Parses what [`Self::to_text`] writes. Anything else is not a process list.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        Ok(serde_json::from_str(text)?)
    }

    pub fn to_text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Whether kube-proxy runs; `None` if that is unknown: a program that may contain it proves nothing.
    pub fn runs(&self) -> Option<bool> {
        match self.program.as_deref() {
            Some(KUBE_PROXY) => Some(true),
            Some(_) => None,
            None => (self.complete && self.elsewhere.is_none()).then_some(false),
        }
    }

    /// Why the list does not show whether kube-proxy runs.
    pub fn why_unknown(&self) -> String {
        match (&self.program, self.elsewhere) {
            (Some(program), _) => {
                format!("{program} runs, with or without kube-proxy, and no port of kube-proxy answers")
            }
            (None, Some(pid)) => format!("kube-proxy runs in another network namespace, as process {pid}"),
            (None, None) => "not all of the node's processes are visible".to_owned(),
        }
    }

    /// The value of a flag that is on or off: `--NAME`, which takes no argument, or `--NAME=VALUE`. The last one counts.
    pub fn switch(&self, name: &str) -> Option<bool> {
        let flags =
            self.arguments.iter().filter_map(|argument| argument.strip_prefix("--")?.strip_prefix(name));
        let mut values = flags.filter_map(|rest| match rest.strip_prefix('=') {
            Some(value) => Some(go_bool(value)),
            None => rest.is_empty().then_some(Some(true)),
        });
        values.next_back().flatten()
    }

    /// The value of `--NAME=VALUE` or `--NAME VALUE`.
    pub fn flag(&self, name: &str) -> Option<&str> {
        let mut arguments = self.arguments.iter();
        while let Some(argument) = arguments.next() {
            let Some(rest) = argument.strip_prefix("--").and_then(|flag| flag.strip_prefix(name)) else {
                continue;
            };
            match rest.strip_prefix('=') {
                Some(value) => return Some(value),
                None if rest.is_empty() => return arguments.next().map(String::as_str),
                None => {}
            }
        }
        None
    }
}

/// A number of truth as Go's flags read it (`strconv.ParseBool`).
fn go_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// The network namespace of the process with this folder.
fn namespace(folder: &Path) -> Option<PathBuf> {
    fs::read_link(folder.join("ns/net")).ok()
}

/// When the process with this folder was started, in seconds since the epoch.
fn started(root: &Path, folder: &Path) -> Option<u64> {
    let boot = procfs::read_text(&root.join("stat")).ok()?;
    let boot: u64 = boot.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    let stat = procfs::read_text(&folder.join("stat")).ok()?;
    // The name in parentheses may contain spaces and parentheses. The start is the 22nd field, and the state the third.
    let (_, fields) = stat.rsplit_once(") ")?;
    let ticks: u64 = fields.split(' ').nth(22 - 3)?.parse().ok()?;
    boot.checked_add(ticks / TICKS_PER_SEC)
}

/// The command line of the process with this folder.
fn arguments(folder: &Path) -> Vec<String> {
    let text = procfs::read_text(&folder.join("cmdline")).unwrap_or_default();
    let text = text.get(..text.floor_char_boundary(MAX_CMDLINE_BYTES)).unwrap_or_default();
    text.split('\0').filter(|argument| !argument.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn process(root: &Path, pid: u32, comm: &str, cmdline: &str) {
        let folder = root.join(pid.to_string());
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("comm"), format!("{comm}\n")).unwrap();
        fs::write(folder.join("cmdline"), cmdline).unwrap();
    }

    #[test]
    fn only_kube_proxys_own_flags_are_kept() {
        let root = tempfile::tempdir().unwrap();
        process(root.path(), 1, "viptrace", "");
        assert_eq!(ProcessList::read(root.path()).unwrap().runs(), None, "not all processes are visible");
        process(root.path(), 2, "kthreadd", "");
        process(root.path(), 7, "bash", "bash\0-c\0secret");
        assert_eq!(ProcessList::read(root.path()).unwrap().runs(), Some(false));
        process(root.path(), 9, "k3s-agent", "k3s\0agent\0--token=secret");
        let embedded = ProcessList::read(root.path()).unwrap();
        assert_eq!((embedded.program.as_deref(), embedded.arguments.len()), (Some("k3s-agent"), 0));
        assert_eq!(embedded.runs(), None, "k3s may run without kube-proxy");
        process(root.path(), 8, "kube-proxy", "/usr/bin/kube-proxy\0--config=/etc/p.conf\0--v\x002\0");
        let own = ProcessList::read(root.path()).unwrap();
        assert_eq!(
            (own.flag("config"), own.flag("v"), own.flag("conf")),
            (Some("/etc/p.conf"), Some("2"), None)
        );
        assert!(!own.to_text().contains("secret"));
    }

    #[test]
    fn a_process_has_a_start() {
        let root = tempfile::tempdir().unwrap();
        process(root.path(), 8, "kube-proxy", "/usr/bin/kube-proxy\0");
        let started = || ProcessList::read(root.path()).unwrap().started;
        assert_eq!(started(), None, "no file says when it was");
        fs::write(root.path().join("stat"), "cpu  1 2\nbtime 1795217000\nprocesses 9\n").unwrap();
        let stat = "8 (kube) proxy) S 1 8 8 0 -1 4194560 1 0 0 0 3 4 0 0 20 0 9 0 9812 1000 300 1844 1 1\n";
        fs::write(root.path().join("8/stat"), stat).unwrap();
        assert_eq!(started(), Some(1_795_217_098));
        fs::write(root.path().join("8/stat"), "8 (kube-proxy) S 1").unwrap();
        assert_eq!(started(), None, "a line that is cut off");
    }

    #[test]
    fn a_kube_proxy_of_another_network_namespace_is_not_this_nodes() {
        let root = tempfile::tempdir().unwrap();
        let namespace = |pid: &str, netns: &str| {
            fs::create_dir_all(root.path().join(pid).join("ns")).unwrap();
            std::os::unix::fs::symlink(netns, root.path().join(pid).join("ns/net")).unwrap();
        };
        namespace("self", "net:[1]");
        process(root.path(), 2, "kthreadd", "");
        process(root.path(), 8, "kube-proxy", "/usr/bin/kube-proxy\0");
        namespace("8", "net:[2]");
        let other = ProcessList::read(root.path()).unwrap();
        assert_eq!((other.runs(), other.elsewhere), (None, Some(8)), "{other:?}");
        process(root.path(), 9, "kube-proxy", "/usr/bin/kube-proxy\0");
        namespace("9", "net:[1]");
        let both = ProcessList::read(root.path()).unwrap();
        assert_eq!((both.runs(), both.pid, both.elsewhere), (Some(true), Some(9), None), "{both:?}");
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(complete in any::<bool>(), program in proptest::option::of("[a-z]{1,9}"), arguments in vec(any::<String>(), 0..5), pid in any::<Option<u32>>(), started in any::<Option<u64>>(), elsewhere in any::<Option<u32>>(), cpus in any::<Option<u32>>()) {
            let list = ProcessList { complete, program, arguments, pid, started, elsewhere, cpus };
            prop_assert_eq!(ProcessList::parse(&list.to_text()), Ok(list));
        }

        #[test]
        fn any_text_is_read(text in any::<String>()) {
            let _ = ProcessList::parse(&text);
        }
    }
}
