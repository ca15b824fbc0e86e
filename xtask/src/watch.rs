//! Follows a guest's two serial ports: shows the console, keeps its last lines, reads the machine lines and saves the
//! files that the guest sends.
//!
//! `vm` owns QEMU and the limits; this file must not use them.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::event::{self, Event, Metric};
use crate::printer::Printer;
use crate::vm::{Console, Ending, Guest, Run};

/// How many of the console's last lines a failure repeats.
const TAIL_LINES: usize = 15;
/// The beginning of the kernel's last message; a trace longer than the tail follows it.
const PANIC: &str = "Kernel panic - not syncing";

/// Follows both ports of a guest.
pub(crate) struct Watch<'a> {
    printer: &'a Printer,
    guest: &'a Guest,
    lines: MachineLines,
    partial: Vec<u8>,
    tail: Vec<String>,
    panic: Option<String>,
    metrics: Vec<Metric>,
    unread: Vec<String>,
    pub(crate) done: Option<(i64, Instant)>,
    pub(crate) last_sign: Instant,
    pub(crate) reached_init: bool,
}

impl<'a> Watch<'a> {
    pub(crate) fn new(printer: &'a Printer, guest: &'a Guest, lines: MachineLines) -> Self {
        Self {
            printer,
            guest,
            lines,
            partial: Vec::new(),
            tail: Vec::new(),
            panic: None,
            metrics: Vec::new(),
            unread: Vec::new(),
            done: None,
            last_sign: Instant::now(),
            reached_init: false,
        }
    }

    pub(crate) fn console(&mut self, chunk: &[u8]) {
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

    pub(crate) fn end_line(&mut self) {
        if self.partial.is_empty() {
            return;
        }
        let line = String::from_utf8_lossy(&self.partial).trim_end_matches('\r').to_owned();
        self.partial.clear();
        if let Console::Prefixed(prefix) = &self.guest.console {
            self.printer.data(&format!("{prefix}{line}"));
        }
        self.reached_init |= !line.trim().is_empty() && !is_from_kernel(&line);
        if line.contains(PANIC) {
            self.panic.get_or_insert_with(|| line.clone());
        }
        if self.tail.len() == TAIL_LINES {
            self.tail.remove(0);
        }
        self.tail.push(line);
    }

    /// Describes the end of a guest that did not report that it was done.
    pub(crate) fn death(&self, status: ExitStatus) -> String {
        let panic = self.panic.as_ref().map_or(String::new(), |line| format!(" after `{line}`"));
        format!("it ended{panic} without a report that it was done; QEMU ended with {status}")
    }

    pub(crate) fn machine(&mut self, on_event: &mut impl FnMut(&Event)) -> Result<()> {
        let (lines, bytes) = self.lines.read()?;
        if bytes > 0 {
            // A file is one machine line, which may take minutes on a serial port.
            self.last_sign = Instant::now();
        }
        for line in lines {
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
            Event::Scenario(_) | Event::Matrix { .. } => {}
            Event::Metric(metric) => self.metrics.push(metric),
            Event::Done { exit } => self.done = Some((exit, Instant::now())),
            Event::File { name, data, encoding } => {
                let Some(data) = encoding.decode(&data) else {
                    self.unread.push(format!("the file {name} is not hexadecimal"));
                    return Ok(());
                };
                let path = self.guest.output.join("files").join(plain_name(&name));
                fs::create_dir_all(self.guest.output.join("files"))
                    .and_then(|()| fs::write(&path, data))
                    .with_context(|| format!("could not write {}", path.display()))?;
            }
        }
        Ok(())
    }

    pub(crate) fn into_run(mut self, ending: Ending, took: Duration) -> Run {
        if let Some(rest) = self.lines.unfinished() {
            self.unread.push(format!("the last machine line was cut off: {rest}"));
        }
        let Self { metrics, unread, tail, reached_init, .. } = self;
        Run { ending, metrics, unread, console_tail: tail, took, reached_init }
    }
}

/// Reads the lines of a growing file.
pub(crate) struct MachineLines {
    file: File,
    partial: Vec<u8>,
}

impl MachineLines {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).with_context(|| format!("could not open {}", path.display()))?;
        Ok(Self { file, partial: Vec::new() })
    }

    /// The lines completed since the last call, and the number of bytes read in this call.
    fn read(&mut self) -> Result<(Vec<String>, usize)> {
        let bytes =
            self.file.read_to_end(&mut self.partial).context("could not read the guest's machine lines")?;
        let Some(end) = self.partial.iter().rposition(|byte| *byte == b'\n') else {
            return Ok((Vec::new(), bytes));
        };
        let rest = self.partial.split_off(end + 1);
        let whole = std::mem::replace(&mut self.partial, rest);
        Ok((String::from_utf8_lossy(&whole).lines().map(str::to_owned).collect(), bytes))
    }

    fn unfinished(&self) -> Option<String> {
        let text = String::from_utf8_lossy(&self.partial);
        let start: String = text.trim().chars().take(120).collect();
        (!start.is_empty()).then_some(start)
    }
}

/// Whether a console line is the kernel's: "[    1.234567] …". Other lines come from init or its children.
fn is_from_kernel(line: &str) -> bool {
    let Some((stamp, _)) = line.trim_start().strip_prefix('[').and_then(|rest| rest.split_once(']')) else {
        return false;
    };
    stamp.contains('.') && stamp.trim().chars().all(|c| c.is_ascii_digit() || c == '.')
}

/// Turns any name from the guest into the name of a file in one folder.
fn plain_name(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
    let name: String = name.chars().take(120).map(plain).collect();
    let name = name.trim_start_matches('.');
    if name.is_empty() { "unnamed".to_owned() } else { name.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_lines_are_recognised() {
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
    fn only_complete_lines_are_read() {
        let here = tempfile::tempdir().unwrap();
        let path = here.path().join("log");
        fs::write(&path, "").unwrap();
        let mut lines = MachineLines::open(&path).unwrap();
        let append = |text: &str| {
            let mut file = File::options().append(true).open(&path).unwrap();
            std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
        };
        append("one\r\ntw");
        assert_eq!(lines.read().unwrap().0, ["one"]);
        assert_eq!(lines.unfinished().unwrap(), "tw");
        append("o\nthree\n");
        assert_eq!(lines.read().unwrap(), (vec!["two".to_owned(), "three".to_owned()], 8));
        assert_eq!(lines.unfinished(), None);
        assert_eq!(lines.read().unwrap(), (Vec::new(), 0));
    }
}
