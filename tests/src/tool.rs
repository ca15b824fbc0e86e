//! viptrace as a user runs it: a child process with its ready file, records, Ctrl-C and exit status. It manages the
//! process and judges nothing.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use crate::{boot, console, expect::Record, invocation::with_only, sys, wait};

pub const PROGRAM: &str = "/bin/viptrace";

/// The size of the terminal.
const COLUMNS: u16 = 160;
const ROWS: u16 = 40;

/// The limit for loading, attaching and the first lists on an emulated machine.
const READY_LIMIT: Duration = Duration::from_secs(90);
/// Detaching some 20 probes takes seconds.
const STOP_LIMIT: Duration = Duration::from_mins(1);

/// Whether the guest has viptrace: a run of the lab alone does not need it.
pub fn is_present() -> bool {
    Path::new(PROGRAM).exists()
}

/// The flags that leave out the hooks in `lab.without=NAME,NAME` on the kernel's command line. A scenario that still
/// passes does not prove those hooks.
fn without_hooks() -> Vec<String> {
    let left_out = boot::kernel_argument("lab.without").unwrap_or_default();
    let names = left_out.split(',').filter(|name| !name.is_empty());
    names.map(|name| format!("--without-hook={name}")).collect()
}

#[derive(Debug, Default)]
struct Output {
    lines: Vec<String>,
    ended: bool,
}

/// Standard output, line by line, for threads that wait for a line.
#[derive(Clone, Debug, Default)]
struct Lines(Arc<(Mutex<Output>, Condvar)>);

impl Lines {
    fn lock(&self) -> MutexGuard<'_, Output> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update(&self, change: impl FnOnce(&mut Output)) {
        change(&mut self.lock());
        self.0.1.notify_all();
    }
}

/// A running `viptrace trace`.
#[derive(Debug)]
pub struct Tool {
    child: Child,
    lines: Lines,
    stderr: JoinHandle<String>,
    /// The time from the start of the process to its ready file.
    pub ready_after: Duration,
    stopped: bool,
}

/// The output and exit status of a finished run.
#[derive(Clone, Debug)]
pub struct Ended {
    /// The exit status; 128 + N for a process that signal N ended.
    pub status: i32,
    pub stdout: Vec<String>,
    pub stderr: String,
}

impl Ended {
    /// The records among the lines (`-o json`).
    pub fn records(&self) -> Vec<Record> {
        self.stdout.iter().filter_map(|line| Record::parse(line)).collect()
    }
}

/// The options of a trace.
#[derive(Clone, Debug)]
pub struct Options {
    pub node: String,
    pub kubeconfig: PathBuf,
    /// Further arguments (`-o json --all`).
    pub arguments: Vec<String>,
    /// Whether each line is printed on the console when it arrives.
    pub show: bool,
    /// Whether standard output is a terminal.
    pub terminal: bool,
    /// The only capabilities, by their numbers; `None` for all.
    pub capabilities: Option<&'static [u32]>,
}

impl Tool {
    /// Starts `viptrace trace` and waits for its ready file.
    pub fn start(options: &Options) -> Result<Self> {
        let ready_file = Path::new("/run/viptrace.ready");
        if ready_file.exists() {
            fs::remove_file(ready_file).context("removing the last run's ready file")?;
        }
        let terminal = if options.terminal {
            Some(sys::open_terminal(COLUMNS, ROWS).context("opening a terminal for viptrace")?)
        } else {
            None
        };
        let (shown, stdout) = match terminal {
            Some((shows, runs)) => (Some(shows), Stdio::from(runs)),
            None => (None, Stdio::piped()),
        };
        let began = Instant::now();
        let mut command = Command::new(PROGRAM);
        command
            .arg("trace")
            .args(["--node", &options.node])
            .arg("--kubeconfig")
            .arg(&options.kubeconfig)
            .arg("--ready-file")
            .arg(ready_file)
            .args(&options.arguments)
            .args(without_hooks())
            .env("NODE_NAME", &options.node)
            .stdin(Stdio::null())
            .stdout(stdout)
            .stderr(Stdio::piped());
        let mut start =
            || command.spawn().with_context(|| format!("starting {PROGRAM}; is it in the guest image?"));
        let mut child = match options.capabilities {
            None => start()?,
            Some(kept) => with_only(kept, start)?,
        };
        // It would keep the terminal open.
        drop(command);
        let lines = Lines::default();
        let stdout: Box<dyn Read + Send> = match (shown, child.stdout.take()) {
            (Some(shown), _) => Box::new(shown),
            (None, Some(piped)) => Box::new(piped),
            (None, None) => bail!("viptrace has no standard output"),
        };
        let stderr = child.stderr.take().context("viptrace has no standard error")?;
        let (reader, show) = (lines.clone(), options.show);
        thread::spawn(move || read_lines(stdout, &reader, show));
        let stderr = thread::spawn(move || {
            let mut text = String::new();
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                if show {
                    console::print(&line);
                }
                text.push_str(&line);
                text.push('\n');
            }
            text
        });
        let mut tool = Self { child, lines, stderr, ready_after: Duration::ZERO, stopped: false };
        let ready = wait::until("viptrace's ready file", READY_LIMIT, || {
            if ready_file.exists() {
                return Some(Ok(()));
            }
            match tool.child.try_wait() {
                Ok(None) => None,
                Ok(Some(status)) => Some(Err(status.to_string())),
                Err(error) => Some(Err(error.to_string())),
            }
        });
        tool.ready_after = began.elapsed();
        let failure = match ready {
            Ok(Ok(())) => return Ok(tool),
            Ok(Err(status)) => format!("it exited before it was ready ({status})"),
            Err(error) => error.to_string(),
        };
        let ended = tool.stop()?;
        bail!(
            "{PROGRAM} trace {}: {failure}; its output: {}",
            options.arguments.join(" "),
            ended.stderr.trim()
        );
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The number of its open files without a name: among them are its programs and their links to hooks.
    pub fn unnamed_files(&self) -> Result<usize> {
        self.files_of("anon_inode:")
    }

    /// The number of its programs in the kernel.
    pub fn programs(&self) -> Result<usize> {
        self.files_of("anon_inode:bpf-prog")
    }

    /// The number of its open files whose target begins with this.
    fn files_of(&self, kind: &str) -> Result<usize> {
        let folder = format!("/proc/{}/fd", self.pid());
        let files = fs::read_dir(&folder).with_context(|| format!("listing {folder}"))?;
        // A file that was closed meanwhile has no target.
        let targets = files.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
        Ok(targets.filter(|target| target.to_string_lossy().starts_with(kind)).count())
    }

    /// The number of lines so far.
    pub fn line_count(&self) -> usize {
        self.lines.lock().lines.len()
    }

    /// The lines from number `from` on.
    pub fn lines_from(&self, from: usize) -> Vec<String> {
        self.lines.lock().lines.get(from..).unwrap_or_default().to_vec()
    }

    /// Passes every line, old and new, to `enough` until it returns true or the limit passes. Returns whether it did.
    pub fn wait_for(&self, limit: Duration, mut enough: impl FnMut(&str) -> bool) -> bool {
        let started = Instant::now();
        let mut read = 0;
        let mut output = self.lines.lock();
        loop {
            while let Some(line) = output.lines.get(read) {
                read += 1;
                if enough(line) {
                    return true;
                }
            }
            let Some(left) = limit.checked_sub(started.elapsed()) else { return false };
            if output.ended {
                return false;
            }
            output = self.lines.0.1.wait_timeout(output, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Kills viptrace, which leaves it no chance to write anything.
    pub fn kill(mut self) -> Result<Ended> {
        self.child.kill().context("killing viptrace")?;
        self.stop()
    }

    /// Sends SIGINT and waits for the end.
    pub fn stop(mut self) -> Result<Ended> {
        self.stopped = true;
        if self.child.try_wait().context("checking on viptrace")?.is_none() {
            sys::interrupt(self.child.id()).context("interrupting viptrace")?;
        }
        let status = wait::until("viptrace to end after SIGINT", STOP_LIMIT, || {
            self.child.try_wait().transpose().map(|status| status.context("waiting for viptrace"))
        });
        let status = match status {
            Ok(status) => status?,
            Err(late) => {
                self.child.kill().context("killing viptrace")?;
                let _killed = self.child.wait();
                return Err(late);
            }
        };
        wait::until("the end of viptrace's output", STOP_LIMIT, || self.lines.lock().ended.then_some(()))?;
        let stderr = std::mem::replace(&mut self.stderr, thread::spawn(String::new));
        Ok(Ended {
            status: sys::exit_code(std::os::unix::process::ExitStatusExt::into_raw(status)),
            stdout: std::mem::take(&mut self.lines.lock().lines),
            stderr: stderr.join().unwrap_or_else(|_| "(its standard error could not be read)".to_owned()),
        })
    }
}

impl Drop for Tool {
    fn drop(&mut self) {
        if !self.stopped {
            // The scenario failed on its way. Its process must not reach the next scenario.
            let _ended = self.child.kill();
            let _ended = self.child.wait();
        }
    }
}

fn read_lines(stdout: impl Read, lines: &Lines, show: bool) {
    for line in BufReader::new(stdout).lines().map_while(Result::ok) {
        if show {
            console::print(&line);
        }
        lines.update(|output| output.lines.push(line));
    }
    lines.update(|output| output.ended = true);
}
