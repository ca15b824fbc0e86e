//! Creates network namespaces and runs code inside one. A thread enters a namespace, never the process.

use std::{fs::File, io, sync::Arc, thread};

use anyhow::{Context, Result, anyhow};

use crate::{command, sys};

/// A network namespace; clones refer to the same one.
#[derive(Clone, Debug)]
pub struct Netns {
    name: String,
    file: Arc<File>,
}

impl Netns {
    /// Creates a namespace, as `ip netns add` does.
    pub fn create(name: &str) -> Result<Self> {
        command::run("ip", &["netns", "add", name])?;
        Self::open(name, &format!("/run/netns/{name}"))
    }

    /// Removes the name of a namespace of [`Netns::create`]. The kernel ends it with its last thread and value.
    pub fn remove(&self) -> Result<()> {
        command::run("ip", &["netns", "delete", &self.name]).map(drop)
    }

    /// The namespace of the calling thread: the node's own when the lab starts.
    pub fn current(name: &str) -> Result<Self> {
        Self::open(name, "/proc/thread-self/ns/net")
    }

    fn open(name: &str, path: &str) -> Result<Self> {
        let file = File::open(path).with_context(|| format!("opening the network namespace {path}"))?;
        Ok(Self { name: name.to_owned(), file: Arc::new(file) })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Starts a thread inside. The kernel shows its name as the task's `comm` (at most 15 bytes).
    pub fn spawn<T: Send + 'static>(
        &self,
        thread_name: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<thread::JoinHandle<io::Result<T>>> {
        let file = Arc::clone(&self.file);
        thread::Builder::new().name(thread_name.to_owned()).spawn(move || {
            sys::enter_netns(&file)?;
            Ok(work())
        })
    }

    /// Runs `work` inside and waits for its result.
    pub fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
        self.spawn("lab", work)
            .with_context(|| format!("starting a thread in namespace {}", self.name))?
            .join()
            .map_err(|_| anyhow!("the thread in namespace {} panicked", self.name))?
            .with_context(|| format!("entering the network namespace {}", self.name))
    }

    /// Writes a sysctl of this namespace, `name` with dots (`net.ipv4.ip_forward`).
    pub fn sysctl(&self, name: &str, value: &str) -> Result<()> {
        let path = format!("/proc/sys/{}", name.replace('.', "/"));
        let (path_inside, value) = (path.clone(), value.to_owned());
        self.run(move || std::fs::write(path_inside, value))?
            .with_context(|| format!("setting {name} ({path}) in namespace {}", self.name))
    }

    /// Runs a tool inside the namespace.
    pub fn command(&self, program: &str, arguments: &[&str]) -> Result<String> {
        let program = program.to_owned();
        let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        self.run(move || {
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            command::run(&program, &arguments)
        })?
        .with_context(|| format!("in namespace {}", self.name))
    }

    /// Runs many `ip` commands in one process, because a topology has dozens of links and addresses.
    pub fn ip_batch(&self, commands: &[String]) -> Result<()> {
        let input = commands.join("\n") + "\n";
        self.run(move || command::run_with_input("ip", &["-batch", "-"], &input))?
            .map(drop)
            .with_context(|| format!("in namespace {}, of:\n{}", self.name, commands.join("\n")))
    }
}
