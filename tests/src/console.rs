//! The guest's output: text lines on the console (standard output) and machine lines, one JSON object a line, on the
//! second serial line. It defines both forms and knows nothing of their content.

use std::{
    fs::{File, OpenOptions},
    io::Write,
    sync::{Mutex, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    matrix::{Cell, Mode},
    score::Scores,
    sys,
};

const MACHINE_LINE: &str = "/dev/ttyS1";

/// Prints one line on the console.
pub fn print(line: impl AsRef<str>) {
    // A closed console must not stop a test.
    let _gone = writeln!(std::io::stdout().lock(), "{}", line.as_ref());
}

/// When the next line of progress is due: a guest that is silent for long counts as dead.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    interval: Duration,
    shown: Instant,
}

impl Progress {
    /// The first one is due after the interval.
    pub fn every(interval: Duration) -> Self {
        Self { interval, shown: Instant::now() }
    }

    /// Whether one is due now; the next is due an interval later.
    pub fn is_due(&mut self) -> bool {
        let is_due = self.shown.elapsed() >= self.interval;
        if is_due {
            self.shown = Instant::now();
        }
        is_due
    }
}

/// How a scenario ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Passed,
    Failed(String),
    /// With the feature that the kernel lacks.
    Skipped(String),
}

/// A scenario, as its result names it.
#[derive(Clone, Copy, Debug)]
pub struct Of<'a> {
    pub name: &'a str,
    /// `None`: it runs beside the node, whatever the mode.
    pub mode: Option<Mode>,
    /// The cells of the matrix that it proves.
    pub cells: &'a [Cell],
    pub scores: &'a Scores,
}

/// Reports how a scenario ended.
pub fn scenario(of: Of<'_>, outcome: &Outcome, took: Duration) {
    let Of { name, mode, cells, scores } = of;
    let (result, detail) = match outcome {
        Outcome::Passed => ("passed", ""),
        Outcome::Failed(detail) => ("failed", detail.as_str()),
        Outcome::Skipped(detail) => ("skipped", detail.as_str()),
    };
    print(format!("{result:>7}  {name} ({:.1} s)", took.as_secs_f64()));
    for line in detail.lines() {
        print(format!("         {line}"));
    }
    emit(&json!({
        "event": "scenario", "name": name, "result": result, "detail": detail, "seconds": took.as_secs_f64(),
        "mode": mode, "cells": cells, "scores": scores,
    }));
}

/// Reports all cells of the matrix, so that the host can name those that no scenario proves.
pub fn matrix(cells: &[Cell]) {
    emit(&json!({"event": "matrix", "cells": cells}));
}

/// Sends a text file to the host.
pub fn file(name: &str, data: &str) {
    emit(&json!({"event": "file", "name": name, "data": data}));
}

/// Sends a binary file to the host.
pub fn binary(name: &str, bytes: &[u8]) {
    let mut digits = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        digits.extend([byte >> 4, byte & 0xf].map(|digit| char::from_digit(digit.into(), 16).unwrap_or('0')));
    }
    emit(&json!({"event": "file", "name": name, "data": digits, "encoding": "hex"}));
}

/// Reports one measurement; `labels` is an object of strings.
pub fn metric(name: &str, value: f64, unit: &str, labels: &Value) {
    emit(&json!({"event": "metric", "name": name, "value": value, "unit": unit, "labels": labels}));
}

/// Reports the end of the run. It is the last machine line.
pub fn done(exit: i32) {
    emit(&json!({"event": "done", "exit": exit}));
}

fn emit(event: &Value) {
    static LINE: OnceLock<Option<Mutex<File>>> = OnceLock::new();
    let line = LINE.get_or_init(|| {
        let file = OpenOptions::new().write(true).open(MACHINE_LINE).ok()?;
        // A line that is not a terminal (a pipe, a file) needs no settings.
        let _plain = sys::make_raw(&file);
        Some(Mutex::new(file))
    });
    match line {
        Some(line) => {
            let mut line = line.lock().unwrap_or_else(PoisonError::into_inner);
            let _gone = line.write_all(format!("{event}\n").as_bytes());
        }
        None => print(event.to_string()),
    }
}
