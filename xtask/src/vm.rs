//! Runs a guest: QEMU with plain emulation, the console on the first serial port, machine lines on the second.
//!
//! It never uses hardware virtualisation, so that runs on all machines are comparable. `event` parses the lines;
//! `image` makes the image.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::event::{Event, Metric};
use crate::kernels::Kernel;
use crate::place::make_empty;
use crate::printer::{Printer, indented, seconds};
use crate::watch::{MachineLines, Watch};

pub(crate) const QEMU: &str = "qemu-system-x86_64";
/// The machine of every guest, with plain emulation.
///
/// QEMU before 8.1 translates code without a lock on its page. With one thread per processor, a breakpoint that the kernel
/// writes while it patches a branch can remain translated, and the kernel ends with "Oops: int3".
pub(crate) const MACHINE: &[&str] = &[
    "-machine",
    "q35",
    "-accel",
    "tcg,thread=single",
    "-cpu",
    "max",
    "-nodefaults",
    "-no-user-config",
    "-display",
    "none",
    "-no-reboot",
];
/// The day on which a guest begins whose instructions are counted. It is later than the objects of the fixtures: viptrace
/// judges each flow that is older than its Service by itself, which costs more than a flow usually does.
const COUNTED_CLOCK: &str = "2027-01-01";
/// The kernel's parameters in every guest. With programs at fixed addresses (`norandmaps`) a guest's scenarios took half of the
/// processor time, because the emulator translates less code.
pub(crate) const PARAMETERS: &[&str] = &["console=ttyS0", "quiet", "panic=-1", "noapic", "norandmaps"];
/// An emulated processor does not need the mitigations, and they slow every entry into the kernel.
pub(crate) const NO_MITIGATIONS: &str = "mitigations=off";
/// The interval at which the machine lines are read.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The longest time from a guest's `done` line until it powers off.
const POWER_OFF: Duration = Duration::from_mins(1);

/// The number of attempts to start a guest that does not reach its init.
pub(crate) const BOOTS: usize = 3;
/// The longest silence before its init: a boot takes 4 to 20 s, or a minute on a busy machine.
pub(crate) const BOOT: Duration = Duration::from_mins(2);

/// The display of the guest's console.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Console {
    /// Line by line, after a prefix.
    Prefixed(String),
    /// Unchanged, for a person at the terminal.
    Raw,
}

/// A guest to be run.
#[derive(Debug, Clone)]
pub(crate) struct Guest {
    /// Its name in messages.
    pub(crate) name: String,
    pub(crate) kernel: Kernel,
    pub(crate) image: PathBuf,
    /// The emulator: `QEMU`, except in tests.
    pub(crate) emulator: PathBuf,
    /// The kernel parameters that the lab reads: `lab.mode=test` and so on.
    pub(crate) parameters: Vec<String>,
    /// Whether the guest's clock counts instructions, on one processor, equally in each run. This is slower.
    pub(crate) counted: bool,
    pub(crate) console: Console,
    /// The longest time of the whole run.
    pub(crate) limit: Duration,
    /// The longest time without output on both ports.
    pub(crate) silence: Duration,
    /// The folder for logs and for the files that the guest sends.
    pub(crate) output: PathBuf,
}

#[cfg(test)]
impl Guest {
    pub(crate) fn for_test(output: PathBuf) -> Self {
        let kernel = Kernel { series: "6.1", release: "r".into(), image: "/k".into(), modules: "/m".into() };
        Self {
            name: "6.1".into(),
            kernel,
            image: "/i".into(),
            emulator: QEMU.into(),
            parameters: vec!["lab.mode=test".into(), "lab.filter=c6".into()],
            counted: false,
            console: Console::Raw,
            limit: Duration::from_secs(1),
            silence: Duration::from_secs(1),
            output,
        }
    }
}

/// The end of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The guest reported that it was done, with this exit status.
    Done(i64),
    /// The guest ended without that report; the text states how.
    Died(String),
    /// This program stopped it; the text gives the reason.
    Stopped(String),
}

/// The results of a run.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) ending: Ending,
    pub(crate) metrics: Vec<Metric>,
    /// An error for each machine line that could not be used; each may hide a result.
    pub(crate) unread: Vec<String>,
    pub(crate) console_tail: Vec<String>,
    pub(crate) took: Duration,
    pub(crate) reached_init: bool,
}

impl Run {
    /// The last lines of the console, to append to a message.
    pub(crate) fn last_words(&self) -> String {
        indented(self.console_tail.iter().map(String::as_str))
    }
}

#[cfg(test)]
impl Run {
    /// A run with this end.
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

/// Runs the guest to its end and passes on each event as it arrives. It restarts a guest that did not reach its init:
/// under emulation, a boot fails now and then because the host delayed a timer.
pub(crate) fn run(printer: &Printer, guest: &Guest, mut on_event: impl FnMut(&Event)) -> Result<Run> {
    let mut run = run_once(printer, guest, &mut on_event)?;
    for _ in 1..BOOTS {
        if run.reached_init {
            break;
        }
        printer
            .say(&format!("    guest {} did not reach its init ({}); restarting it", guest.name, run.ending));
        run = run_once(printer, guest, &mut on_event)?;
    }
    Ok(run)
}

/// The longest silence of the guest in this phase.
fn silence_of(guest: &Guest, reached_init: bool) -> Duration {
    // A guest whose instructions are counted is many times slower.
    if reached_init || guest.counted { guest.silence } else { guest.silence.min(BOOT) }
}

/// QEMU's arguments for this guest; `serial` is the two serial ports.
pub(crate) fn arguments(guest: &Guest, serial: [OsString; 2]) -> Vec<OsString> {
    let mut command_line = PARAMETERS.to_vec();
    let mut arguments: Vec<OsString> = Vec::new();
    let mut add = |words: &[&str]| arguments.extend(words.iter().map(OsString::from));
    add(MACHINE);
    if guest.counted {
        add(&["-smp", "1", "-m", "3072M", "-icount", "shift=0,sleep=off"]);
        add(&["-rtc", &format!("base={COUNTED_CLOCK},clock=vm"), "-seed", "1"]);
        // The same addresses in each run lead to the same instructions.
        command_line.push("nokaslr");
    } else {
        add(&["-smp", "2", "-m", "2048M"]);
        command_line.push(NO_MITIGATIONS);
    }
    add(&["-net", "none"]);
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
    make_empty(output)?;
    let machine_log = output.join("machine.log");
    let qemu_log = output.join("qemu.log");
    let create =
        |path: &Path| File::create(path).with_context(|| format!("could not create {}", path.display()));
    create(&machine_log)?;
    let started = Instant::now();
    // Relative to the working folder, since a comma in a path would end QEMU's option.
    let serial = [OsString::from("stdio"), OsString::from("file:machine.log")];
    // With `setpriv`, the kernel kills the guest when this process ends in any way, such as at a CI's time limit.
    let mut child = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "--"])
        .arg(&guest.emulator)
        .args(arguments(guest, serial))
        .current_dir(output)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(create(&qemu_log)?)
        .spawn()
        .with_context(|| {
            let emulator = guest.emulator.display();
            format!("could not start `setpriv --pdeathsig KILL -- {emulator}` (the package util-linux has setpriv)")
        })?;
    let stdout = child.stdout.take().context("QEMU has no stdout")?;
    let mut qemu = Running(child);
    let chunks = read_in_background(stdout);
    let mut console_log = create(&output.join("console.log"))?;
    let mut watch = Watch::new(printer, guest, MachineLines::open(&machine_log)?);

    let ending = loop {
        let received = chunks.recv_timeout(POLL_INTERVAL);
        if let Ok(chunk) = &received {
            let _ = std::io::Write::write_all(&mut console_log, chunk);
            watch.console(chunk);
        }
        watch.machine(on_event)?;
        let silence = silence_of(guest, watch.reached_init);
        let closed = matches!(received, Err(RecvTimeoutError::Disconnected));
        if closed {
            let status = qemu.0.wait().context("could not wait for QEMU")?;
            watch.machine(on_event)?;
            break watch
                .done
                .map_or_else(|| Ending::Died(watch.death(status)), |(exit, _)| Ending::Done(exit));
        }
        if let Some((exit, since)) = watch.done {
            if since.elapsed() > POWER_OFF {
                break Ending::Done(exit);
            }
        } else if started.elapsed() > guest.limit {
            break Ending::Stopped(format!("it was not done after {}", seconds(guest.limit)));
        } else if watch.last_sign.elapsed() > silence {
            break Ending::Stopped(format!("it wrote nothing for {}", seconds(silence)));
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

impl std::fmt::Display for Ending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Done(exit) => write!(f, "it was done, with exit status {exit}"),
            Self::Died(why) | Self::Stopped(why) => f.write_str(why),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{call::Call, modules};

    fn guest(counted: bool) -> Guest {
        Guest { counted, ..Guest::for_test(PathBuf::new()) }
    }

    #[test]
    fn emulation_is_plain_and_counting_is_reproducible() {
        for counted in [false, true] {
            let arguments = arguments(&guest(counted), ["stdio".into(), "file:x".into()]);
            let text = arguments.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
            assert!(text.contains("tcg,thread=single") && !text.contains("kvm"), "{text}");
            assert!(text.contains("-serial stdio -serial file:x"), "{text}");
            assert_eq!(text.contains("-icount shift=0,sleep=off"), counted, "{text}");
            assert_eq!(text.contains(" nokaslr "), counted, "{text}");
            assert!(text.ends_with("lab.mode=test lab.filter=c6"), "{text}");
        }
    }

    #[test]
    fn a_counted_guest_begins_after_the_objects_of_the_fixtures() {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures");
        let mut times = Vec::new();
        for path in modules::files_below(&fixtures).unwrap() {
            if path.extension().is_some_and(|extension| extension == "json") {
                let text = fs::read_to_string(path).unwrap();
                let created = text.split("\"creationTimestamp\":").skip(1);
                times.extend(created.filter_map(|rest| Some(rest.split('"').nth(1)?.to_owned())));
            }
        }
        let newest = times.iter().max().unwrap();
        assert!(times.len() > 50 && newest.as_str() < COUNTED_CLOCK, "{} objects, {newest}", times.len());
    }

    /// Runs a shell script in QEMU's place, in a folder below `here`.
    fn run_script(here: &Path, script: &str, silence: Duration) -> (Run, Vec<Event>) {
        let emulator = here.join("qemu");
        // A child writes it: if the file were open for writing here while another test starts a program, that program
        // would hold it open, and its start would fail with "text file busy".
        Call::new("write a script", "sh")
            .args([
                "-c",
                r#"printf '#!/bin/sh\necho started >>../starts\n%s\n' "$1" >"$0" && chmod 755 "$0""#,
            ])
            .arg(&emulator)
            .arg(script)
            .read()
            .unwrap();
        let limit = Duration::from_mins(1);
        let guest = Guest { emulator, silence, limit, output: here.join("out"), ..guest(false) };
        let mut events = Vec::new();
        let run = run(&Printer::quiet(), &guest, |event| events.push(event.clone())).unwrap();
        (run, events)
    }

    fn starts(here: &Path) -> usize {
        fs::read_to_string(here.join("starts")).unwrap().lines().count()
    }

    #[test]
    fn a_guest_that_is_done_leaves_its_events_and_files() {
        let here = tempfile::tempdir().unwrap();
        let script = r#"echo hello
echo '{"event":"file","name":"../a.txt","data":"text"}' >>machine.log
echo 'not json' >>machine.log
echo '{"event":"done","exit":3}' >>machine.log"#;
        let (run, events) = run_script(here.path(), script, Duration::from_mins(1));
        assert_eq!(run.ending, Ending::Done(3));
        assert_eq!(events.len(), 2);
        assert_eq!(run.unread.len(), 1);
        assert_eq!(fs::read_to_string(here.path().join("out/files/_a.txt")).unwrap(), "text");
        assert_eq!(fs::read_to_string(here.path().join("out/console.log")).unwrap(), "hello\n");
        assert_eq!(starts(here.path()), 1);
    }

    #[test]
    fn a_guest_that_never_reaches_init_is_started_three_times() {
        let here = tempfile::tempdir().unwrap();
        let script = "echo '[    0.5] Kernel panic - not syncing: timer'; echo 'no such device' >&2; exit 1";
        let (run, _) = run_script(here.path(), script, Duration::from_mins(1));
        assert_eq!(starts(here.path()), BOOTS);
        let Ending::Died(why) = &run.ending else { panic!("{:?}", run.ending) };
        assert!(why.contains("not syncing: timer") && why.contains("exit status: 1"), "{why}");
        assert!(run.last_words().ends_with("QEMU: no such device"), "{}", run.last_words());
    }

    #[test]
    fn a_boot_that_hangs_is_stopped_and_the_next_one_counts() {
        let here = tempfile::tempdir().unwrap();
        let script = r#"[ "$(wc -l <../starts)" -lt 3 ] && exec sleep 1000
echo hello
echo '{"event":"done","exit":0}' >>machine.log"#;
        let (run, _) = run_script(here.path(), script, Duration::from_secs(2));
        assert_eq!((run.ending, starts(here.path())), (Ending::Done(0), 3));
    }

    #[test]
    fn a_boot_may_be_silent_for_a_shorter_time_than_a_scenario() {
        let patient = Guest { silence: BOOT * 2, ..guest(false) };
        assert_eq!((silence_of(&patient, false), silence_of(&patient, true)), (BOOT, BOOT * 2));
        assert_eq!(silence_of(&Guest { counted: true, ..patient }, false), BOOT * 2);
    }

    #[test]
    fn a_guest_that_dies_after_init_is_not_started_again() {
        let here = tempfile::tempdir().unwrap();
        let (run, _) = run_script(here.path(), "echo working", Duration::from_mins(1));
        assert!(matches!(run.ending, Ending::Died(_)));
        assert_eq!(starts(here.path()), 1);
    }

    #[test]
    fn a_guest_that_hangs_is_stopped() {
        let here = tempfile::tempdir().unwrap();
        let (run, _) = run_script(here.path(), "echo working; exec sleep 1000", Duration::from_millis(300));
        let Ending::Stopped(why) = &run.ending else { panic!("{:?}", run.ending) };
        assert!(why.contains("wrote nothing"), "{why}");
    }
}
