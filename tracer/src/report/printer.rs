//! Separates data (standard output) from messages (standard error), and decides which messages are suppressed and which
//! colours are used.
//!
//! Colour only repeats the words, so that everything is legible without it.

use std::{
    env,
    io::{self, IsTerminal, Write},
};

use clap::ValueEnum;
use terminal_size::{Width, terminal_size_of};
use thiserror::Error;

use crate::{report::fit::wrap, text::safe};

/// Why standard output cannot be written.
#[derive(Debug, Error)]
pub enum OutputError {
    /// The reader closed the pipe (`viptrace … | head`): not a failure.
    #[error("the reader of standard output closed it")]
    Closed,
    #[error("writing to standard output failed: {0}")]
    Io(io::Error),
}

impl From<io::Error> for OutputError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::Closed,
            _ => Self::Io(error),
        }
    }
}

/// How much is written to standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verbosity {
    /// Errors only.
    Quiet,
    #[default]
    Normal,
    /// Each step, too.
    Verbose,
    /// The libraries' messages, too.
    Debug,
}

/// When colours are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ColorChoice {
    /// On a terminal, unless `NO_COLOR` is set
    #[default]
    Auto,
    /// Also in pipes and files
    Always,
    /// Not at all
    Never,
}

impl ColorChoice {
    fn resolve(self, is_terminal: bool) -> Paint {
        let on = match self {
            Self::Always => true,
            Self::Never => false,
            Self::Auto => {
                let set = |name| env::var_os(name).is_some_and(|value| !value.is_empty());
                is_terminal && !set("NO_COLOR") && !is_dumb()
            }
        };
        Paint(on)
    }
}

/// Whether the terminal cannot move its cursor.
fn is_dumb() -> bool {
    env::var_os("TERM").is_some_and(|term| term == "dumb")
}

/// Applies colours, or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Paint(pub bool);

/// The role of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    Plain,
    Heading,
    Fault,
    Unknown,
    Good,
    Faint,
}

impl Paint {
    pub fn start(self, style: Style) -> &'static str {
        if !self.0 {
            return "";
        }
        match style {
            Style::Plain => "",
            Style::Heading => "\x1b[1m",
            Style::Fault => "\x1b[1;31m",
            Style::Unknown => "\x1b[1;33m",
            Style::Good => "\x1b[32m",
            Style::Faint => "\x1b[2m",
        }
    }

    pub fn end(self, style: Style) -> &'static str {
        if self.start(style).is_empty() { "" } else { "\x1b[0m" }
    }

    pub fn text(self, style: Style, text: &str) -> String {
        format!("{}{text}{}", self.start(style), self.end(style))
    }
}

/// The two streams, and how they are used.
pub struct Printer {
    verbosity: Verbosity,
    out: Box<dyn Write + Send>,
    err: Box<dyn Write + Send>,
    out_paint: Paint,
    err_paint: Paint,
    out_is_terminal: bool,
    err_is_terminal: bool,
}

impl std::fmt::Debug for Printer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Printer").field("verbosity", &self.verbosity).finish_non_exhaustive()
    }
}

impl Printer {
    /// On the process's own streams.
    pub fn new(verbosity: Verbosity, color: ColorChoice) -> Self {
        let out_is_terminal = io::stdout().is_terminal();
        let err_is_terminal = io::stderr().is_terminal();
        Self {
            verbosity,
            out: Box::new(io::BufWriter::with_capacity(1 << 16, io::stdout())),
            err: Box::new(io::stderr()),
            out_paint: color.resolve(out_is_terminal),
            err_paint: color.resolve(err_is_terminal),
            out_is_terminal: out_is_terminal && !is_dumb(),
            err_is_terminal,
        }
    }

    /// On other streams, without colour, like pipes.
    pub fn to(out: Box<dyn Write + Send>, err: Box<dyn Write + Send>, verbosity: Verbosity) -> Self {
        Self {
            verbosity,
            out,
            err,
            out_paint: Paint(false),
            err_paint: Paint(false),
            out_is_terminal: false,
            err_is_terminal: false,
        }
    }

    /// The colours for standard output.
    pub fn paint(&self) -> Paint {
        self.out_paint
    }

    /// Whether a table can be updated in place: standard output is a terminal that can move its cursor, and no log
    /// lines mix with it.
    pub fn can_update_in_place(&self) -> bool {
        self.out_is_terminal && !(self.err_is_terminal && self.verbosity >= Verbosity::Verbose)
    }

    /// Whether messages and data share one screen.
    pub(super) fn shares_screen(&self) -> bool {
        self.out_is_terminal && self.err_is_terminal
    }

    /// Data, to standard output.
    pub fn data(&mut self, text: &str) -> Result<(), OutputError> {
        Ok(self.out.write_all(text.as_bytes())?)
    }

    /// Text for a person, to standard output: on a terminal long lines are broken between words.
    pub fn text(&mut self, text: &str) -> Result<(), OutputError> {
        match self.terminal_columns() {
            Some(columns) => self.data(&wrap(text, columns)),
            None => self.data(text),
        }
    }

    /// The width of standard output, if that is a terminal.
    pub(super) fn terminal_columns(&self) -> Option<usize> {
        let (Width(columns), _) = terminal_size_of(io::stdout()).filter(|_| self.out_is_terminal)?;
        Some(columns.into())
    }

    /// Flushes everything written so far.
    pub fn flush(&mut self) -> Result<(), OutputError> {
        Ok(self.out.flush()?)
    }

    /// A message to standard error, unless quiet.
    pub fn note(&mut self, text: &str) {
        if self.verbosity >= Verbosity::Normal {
            self.message("", Style::Plain, text);
        }
    }

    /// A warning that does not stop the program.
    pub fn warn(&mut self, text: &str) {
        if self.verbosity >= Verbosity::Normal {
            self.message("warning: ", Style::Unknown, text);
        }
    }

    /// A message for verbose output.
    pub fn detail(&mut self, text: &str) {
        if self.verbosity >= Verbosity::Verbose {
            self.message("", Style::Faint, text);
        }
    }

    /// Why the program ends; written even when quiet.
    pub fn error(&mut self, text: &str, hint: Option<&str>) {
        self.message("error: ", Style::Fault, text);
        if let Some(hint) = hint {
            self.message("hint: ", Style::Heading, hint);
        }
    }

    /// Several prepared lines to standard error, unless quiet (the summary next to records).
    pub(super) fn message_block(&mut self, text: &str) {
        if self.verbosity >= Verbosity::Normal {
            let _ = self.err.write_all(text.as_bytes());
        }
    }

    pub(super) fn message_paint(&self) -> Paint {
        self.err_paint
    }

    /// A closed standard error cannot be reported anywhere, so it is ignored.
    fn message(&mut self, label: &str, style: Style, text: &str) {
        let paint = self.err_paint;
        for (number, line) in text.lines().enumerate() {
            let label = if number == 0 { label } else { "" };
            let line = safe(line);
            let line = if label.is_empty() { paint.text(style, &line) } else { line.into_owned() };
            let _ = writeln!(self.err, "{}{line}", paint.text(style, label));
        }
    }
}
