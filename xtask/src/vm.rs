//! Running a guest: QEMU under plain emulation, its console on the first serial port, its machine lines on the second.
//!
//! Hardware virtualisation is never asked for, so that a run means the same on every machine. What the lines mean is
//! `event`'s matter; what is in the image is `image`'s.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::event::{self, Event, Metric};
use crate::kernels::Kernel;
use crate::printer::{Printer, indented, seconds};

pub(crate) const QEMU: &str = "qemu-system-x86_64";
/// How many of the console's last lines a failure repeats.
const TAIL_LINES: usize = 25;
/// How often the machine lines are looked at.
const LOOK: Duration = Duration::from_millis(100);
/// How long a guest may take to power off after it said that it was done.
const POWER_OFF: Duration = Duration::from_mins(1);

/// How the guest's console is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Console {
    /// Line by line, after a prefix.
    Prefixed(String),
    /// As it comes, for a person who watches.
    Raw,
}

/// A guest to be run.
#[derive(Debug, Clone)]
pub(crate) struct Guest {
    pub(crate) kernel: Kernel,
    pub(crate) image: PathBuf,
    /// The kernel parameters that the lab reads: `lab.mode=test` and so on.
    pub(crate) parameters: Vec<String>,
    /// Time is counted in instructions, on one processor, the same in each run. Slower.
    pub(crate) counted: bool,
    pub(crate) console: Console,
    /// The longest that the whole run may take.
    pub(crate) limit: Duration,
    /// The longest that neither port may write anything.
    pub(crate) silence: Duration,
    /// Where logs and the files that the guest sends are kept.
    pub(crate) output: PathBuf,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The guest said that it was done, with this exit status.
    Done(i64),
    /// It went down without saying so; the text says how.
    Died(String),
    /// It had to be stopped; the text says why.
    Stopped(String),
}

/// What a run left.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) ending: Ending,
    pub(crate) metrics: Vec<Metric>,
    /// What was wrong with machine lines that could not be used; each hides something that the guest said.
    pub(crate) unread: Vec<String>,
    console_tail: Vec<String>,
    pub(crate) took: Duration,
    reached_init: bool,
}

impl Run {
    /// The end of the console, to be put under a message.
    pub(crate) fn last_words(&self) -> String {
        indented(self.console_tail.iter().map(String::as_str))
    }
}

#[cfg(test)]
impl Run {
    /// A run that ended this way, for tests of what is made of it.
    pub(crate) fn for_test(ending: Ending, unread: &[&str], console: &[&str]) -> Self {
        let owned = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect();
        Self {
            ending,
            metrics: Vec::new(),
            unread: owned(unread),
            console_tail: owned(console),
            took: Duration::ZERO,
            reached_init: true,
        }
    }
}

/// Runs the guest to its end, handing over each event as it comes. A guest that did not get as far as its init is
/// started once more: under emulation a boot is lost now and then to a timer that the host delayed.
pub(crate) fn run(printer: &Printer, guest: &Guest, mut on_event: impl FnMut(&Event)) -> Result<Run> {
    let first = run_once(printer, guest, &mut on_event)?;
    if first.reached_init {
        return Ok(first);
    }
    printer.say(&format!(
        "    guest {} did not reach its init ({}); starting it once more",
        guest.kernel.series, first.ending
    ));
    run_once(printer, guest, &mut on_event)
}

/// QEMU's arguments for this guest; `serial` is the two serial ports.
pub(crate) fn arguments(guest: &Guest, serial: [OsString; 2]) -> Vec<OsString> {
    let mut command_line = vec!["console=ttyS0", "quiet", "panic=-1", "noapic"];
    let mut arguments: Vec<OsString> = Vec::new();
    let mut add = |words: &[&str]| arguments.extend(words.iter().map(OsString::from));
    add(&["-machine", "q35,accel=tcg", "-cpu", "max"]);
    if guest.counted {
        add(&["-smp", "1", "-m", "3072M", "-icount", "shift=0,sleep=off"]);
        add(&["-rtc", "base=2026-01-01,clock=vm", "-seed", "1"]);
        // The same addresses in each run, so that the same instructions are run.
        command_line.push("nokaslr");
    } else {
        add(&["-smp", "2", "-m", "2048M"]);
    }
    add(&["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-net", "none"]);
    command_line.extend(guest.parameters.iter().map(String::as_str));
    for port in serial {
        arguments.extend([OsString::from("-serial"), port]);
    }
    arguments.extend([OsString::from("-kernel"), guest.kernel.image.clone().into_os_string()]);
    arguments.extend([OsString::from("-initrd"), guest.image.clone().into_os_string()]);
    arguments.extend([OsString::from("-append"), OsString::from(command_line.join(" "))]);
    arguments
}

/// Stops QEMU when it goes out of scope.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn run_once(printer: &Printer, guest: &Guest, on_event: &mut impl FnMut(&Event)) -> Result<Run> {
    let output = &guest.output;
    if output.exists() {
        fs::remove_dir_all(output).with_context(|| format!("could not clear {}", output.display()))?;
    }
    fs::create_dir_all(output).with_context(|| format!("could not create {}", output.display()))?;
    let machine_log = output.join("machine.log");
    let qemu_log = output.join("qemu.log");
    let create =
        |path: &Path| File::create(path).with_context(|| format!("could not create {}", path.display()));
    create(&machine_log)?;
    let started = Instant::now();
    // Relative to the folder below, since a comma in a path would end QEMU's option.
    let serial = [OsString::from("stdio"), OsString::from("file:machine.log")];
    let mut child = Command::new(QEMU)
        .args(arguments(guest, serial))
        .current_dir(output)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(create(&qemu_log)?)
        .spawn()
        .with_context(|| format!("could not start `{QEMU}`\nhint: type: cargo xtask setup"))?;
    let stdout = child.stdout.take().context("QEMU has no stdout")?;
    let mut qemu = Running(child);
    let chunks = read_in_background(stdout);
    let mut console_log = create(&output.join("console.log"))?;
    let mut watch = Watch::new(printer, guest, MachineLines::open(&machine_log)?);

    let ending = loop {
        let received = chunks.recv_timeout(LOOK);
        if let Ok(chunk) = &received {
            let _ = std::io::Write::write_all(&mut console_log, chunk);
            watch.console(chunk);
        }
        watch.machine(on_event)?;
        let closed = matches!(received, Err(RecvTimeoutError::Disconnected));
        if closed {
            let status = qemu.0.wait().context("could not wait for QEMU")?;
            watch.machine(on_event)?;
            break watch.done.map_or_else(
                || {
                    Ending::Died(format!(
                        "it went down without saying that it was done; QEMU ended with {status}"
                    ))
                },
                |(exit, _)| Ending::Done(exit),
            );
        }
        if let Some((exit, since)) = watch.done {
            if since.elapsed() > POWER_OFF {
                break Ending::Done(exit);
            }
        } else if started.elapsed() > guest.limit {
            break Ending::Stopped(format!("it was not done after {}", seconds(guest.limit)));
        } else if watch.last_sign.elapsed() > guest.silence {
            break Ending::Stopped(format!("it wrote nothing for {}", seconds(guest.silence)));
        }
    };
    drop(qemu);
    watch.end_line();
    let mut run = watch.into_run(ending, started.elapsed());
    if !run.reached_init {
        let complaint = fs::read_to_string(&qemu_log).unwrap_or_default();
        run.console_tail.extend(complaint.lines().map(|line| format!("QEMU: {line}")));
    }
    Ok(run)
}

fn read_in_background(mut input: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut buffer = [0_u8; 8192];
        while let Ok(length @ 1..) = input.read(&mut buffer) {
            if sender.send(buffer[..length].to_vec()).is_err() {
                break;
            }
        }
    });
    receiver
}

/// Follows both ports of a guest.
struct Watch<'a> {
    printer: &'a Printer,
    guest: &'a Guest,
    lines: MachineLines,
    partial: Vec<u8>,
    tail: Vec<String>,
    metrics: Vec<Metric>,
    unread: Vec<String>,
    done: Option<(i64, Instant)>,
    last_sign: Instant,
    reached_init: bool,
}

impl<'a> Watch<'a> {
    fn new(printer: &'a Printer, guest: &'a Guest, lines: MachineLines) -> Self {
        Self {
            printer,
            guest,
            lines,
            partial: Vec::new(),
            tail: Vec::new(),
            metrics: Vec::new(),
            unread: Vec::new(),
            done: None,
            last_sign: Instant::now(),
            reached_init: false,
        }
    }

    fn console(&mut self, chunk: &[u8]) {
        self.last_sign = Instant::now();
        if self.guest.console == Console::Raw {
            self.printer.raw(chunk);
        }
        for byte in chunk {
            if *byte == b'\n' {
                self.end_line();
            } else {
                self.partial.push(*byte);
            }
        }
    }

    fn end_line(&mut self) {
        if self.partial.is_empty() {
            return;
        }
        let line = String::from_utf8_lossy(&self.partial).trim_end_matches('\r').to_owned();
        self.partial.clear();
        if let Console::Prefixed(prefix) = &self.guest.console {
            self.printer.data(&format!("{prefix}{line}"));
        }
        self.reached_init |= !line.trim().is_empty() && !is_from_kernel(&line);
        if self.tail.len() == TAIL_LINES {
            self.tail.remove(0);
        }
        self.tail.push(line);
    }

    fn machine(&mut self, on_event: &mut impl FnMut(&Event)) -> Result<()> {
        for line in self.lines.read()? {
            self.last_sign = Instant::now();
            self.reached_init = true;
            match event::parse(&line) {
                Ok(None) => {}
                Ok(Some(event)) => {
                    on_event(&event);
                    self.take(event)?;
                }
                Err(why) => self.unread.push(why),
            }
        }
        Ok(())
    }

    fn take(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Scenario(_) => {}
            Event::Metric(metric) => self.metrics.push(metric),
            Event::Done { exit } => self.done = Some((exit, Instant::now())),
            Event::File { name, data } => {
                let path = self.guest.output.join("files").join(plain_name(&name));
                fs::create_dir_all(self.guest.output.join("files"))
                    .and_then(|()| fs::write(&path, data))
                    .with_context(|| format!("could not write {}", path.display()))?;
            }
        }
        Ok(())
    }

    fn into_run(mut self, ending: Ending, took: Duration) -> Run {
        if let Some(rest) = self.lines.unfinished() {
            self.unread.push(format!("the last machine line was cut off: {rest}"));
        }
        let Self { metrics, unread, tail, reached_init, .. } = self;
        Run { ending, metrics, unread, console_tail: tail, took, reached_init }
    }
}

/// The lines of a file that is being written.
struct MachineLines {
    file: File,
    partial: Vec<u8>,
}

impl MachineLines {
    fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).with_context(|| format!("could not open {}", path.display()))?;
        Ok(Self { file, partial: Vec::new() })
    }

    /// The lines that were ended since the last call.
    fn read(&mut self) -> Result<Vec<String>> {
        self.file.read_to_end(&mut self.partial).context("could not read the guest's machine lines")?;
        let Some(end) = self.partial.iter().rposition(|byte| *byte == b'\n') else { return Ok(Vec::new()) };
        let rest = self.partial.split_off(end + 1);
        let whole = std::mem::replace(&mut self.partial, rest);
        Ok(String::from_utf8_lossy(&whole).lines().map(str::to_owned).collect())
    }

    fn unfinished(&self) -> Option<String> {
        let text = String::from_utf8_lossy(&self.partial);
        let start: String = text.trim().chars().take(120).collect();
        (!start.is_empty()).then_some(start)
    }
}

/// Whether a console line is the kernel's: "[    1.234567] …". All else comes from init or what it started.
fn is_from_kernel(line: &str) -> bool {
    let Some((stamp, _)) = line.trim_start().strip_prefix('[').and_then(|rest| rest.split_once(']')) else {
        return false;
    };
    stamp.contains('.') && stamp.trim().chars().all(|c| c.is_ascii_digit() || c == '.')
}

/// A name from the guest as the name of a file in one folder, whatever it holds.
fn plain_name(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
    let name: String = name.chars().take(120).map(plain).collect();
    let name = name.trim_start_matches('.');
    if name.is_empty() { "unnamed".to_owned() } else { name.to_owned() }
}

impl std::fmt::Display for Ending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Done(exit) => write!(f, "it was done, with exit status {exit}"),
            Self::Died(why) | Self::Stopped(why) => f.write_str(why),
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn guest(counted: bool) -> Guest {
        let kernel = Kernel { series: "6.1", release: "r".into(), image: "/k".into(), modules: "/m".into() };
        let parameters = vec!["lab.mode=test".into(), "lab.filter=c6".into()];
        Guest {
            kernel,
            image: "/i".into(),
            parameters,
            counted,
            console: Console::Raw,
            limit: Duration::from_secs(1),
            silence: Duration::from_secs(1),
            output: PathBuf::new(),
        }
    }

    #[test]
    fn emulation_is_plain_and_counting_is_reproducible() {
        for counted in [false, true] {
            let arguments = arguments(&guest(counted), ["stdio".into(), "file:x".into()]);
            let text = arguments.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
            assert!(text.contains("accel=tcg") && !text.contains("kvm"), "{text}");
            assert!(text.contains("-serial stdio -serial file:x"), "{text}");
            assert_eq!(text.contains("-icount shift=0,sleep=off"), counted, "{text}");
            assert_eq!(text.contains(" nokaslr "), counted, "{text}");
            assert!(text.ends_with("lab.mode=test lab.filter=c6"), "{text}");
        }
    }

    #[test]
    fn kernel_lines_are_told_from_inits() {
        assert!(is_from_kernel("[    0.543210] Kernel panic - not syncing: VFS"));
        assert!(!is_from_kernel("[ok] network up"));
        assert!(!is_from_kernel("hello"));
    }

    #[test]
    fn names_stay_in_their_folder() {
        assert_eq!(plain_name("../../etc/passwd"), "_.._etc_passwd");
        assert_eq!(plain_name("c6 records.jsonl"), "c6_records.jsonl");
        assert_eq!(plain_name(".."), "unnamed");
        assert_eq!(plain_name(""), "unnamed");
    }

    #[test]
    fn lines_are_read_as_they_are_ended() {
        let here = tempfile::tempdir().unwrap();
        let path = here.path().join("log");
        fs::write(&path, "").unwrap();
        let mut lines = MachineLines::open(&path).unwrap();
        let append = |text: &str| {
            let mut file = File::options().append(true).open(&path).unwrap();
            std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
        };
        append("one\r\ntw");
        assert_eq!(lines.read().unwrap(), ["one"]);
        assert_eq!(lines.unfinished().unwrap(), "tw");
        append("o\nthree\n");
        assert_eq!(lines.read().unwrap(), ["two", "three"]);
        assert_eq!(lines.unfinished(), None);
        assert!(lines.read().unwrap().is_empty());
    }
}
