//! Starts another program. An error states the attempt, how the program ended, and the remedy.
//!
//! Runs only short-lived programs; `vm` runs the guest.

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, ExitStatus, Output, Stdio};

use anyhow::Result;

use crate::printer::indented;

/// How many of a failed program's last lines an error repeats.
const TAIL_LINES: usize = 12;
/// How many characters of a failed program's command an error repeats: enough to type it again, unless it names hundreds
/// of files.
const COMMAND_CHARACTERS: usize = 400;

/// The failure of a program.
#[derive(Debug)]
pub(crate) struct Failure {
    what: String,
    command: String,
    why: String,
    hint: Option<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "could not {}: `{}` {}", self.what, self.command, self.why)?;
        if let Some(hint) = &self.hint {
            write!(f, "\nhint: {hint}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Failure {}

/// A program about to be started.
#[derive(Debug)]
pub(crate) struct Call {
    what: String,
    hint: Option<String>,
    command: Command,
}

impl Call {
    /// `what` completes the sentence "could not …".
    pub(crate) fn new(what: impl Into<String>, program: impl AsRef<OsStr>) -> Self {
        let mut command = Command::new(program);
        command.stdin(Stdio::null());
        Self { what: what.into(), hint: None, command }
    }

    pub(crate) fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.command.arg(argument);
        self
    }

    pub(crate) fn args<A: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.command.args(arguments);
        self
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    pub(crate) fn without_env(mut self, name: &str) -> Self {
        self.command.env_remove(name);
        self
    }

    pub(crate) fn directory(mut self, directory: &Path) -> Self {
        self.command.current_dir(directory);
        self
    }

    /// The advice in an error: a command that can be typed, if there is one.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The command as a shell reads it.
    pub(crate) fn command_line(&self) -> String {
        let words = std::iter::once(self.command.get_program()).chain(self.command.get_args());
        words.map(|word| quoted(&word.to_string_lossy())).collect::<Vec<_>>().join(" ")
    }

    /// Runs the program with its output on our stderr. Fails unless the program succeeds.
    pub(crate) fn stream(mut self) -> Result<()> {
        let status = self.command.stdout(Stdio::from(io::stderr())).status();
        match status {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(self.failure(&ended(status))),
            Err(error) => Err(self.not_started(&error)),
        }
    }

    /// Runs the program with all its output in a file.
    pub(crate) fn logged(mut self, file: &File) -> Result<ExitStatus> {
        let copies = file.try_clone().and_then(|out| Ok((out, file.try_clone()?)));
        let (out, err) = copies.map_err(|error| self.not_started(&error))?;
        self.command.stdout(out).stderr(err).status().map_err(|error| self.not_started(&error))
    }

    /// Runs the program silently and returns its stdout. An error repeats its last lines.
    pub(crate) fn read(mut self) -> Result<String> {
        let output = match self.command.output() {
            Ok(output) => output,
            Err(error) => return Err(self.not_started(&error)),
        };
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let text = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
        let tail = tail(&String::from_utf8_lossy(&text));
        Err(self.failure(&format!("{}{tail}", ended(output.status))))
    }

    /// Runs the program silently and returns its whole output, whatever its exit status.
    pub(crate) fn output(mut self) -> Result<Output> {
        match self.command.output() {
            Ok(output) => Ok(output),
            Err(error) => Err(self.not_started(&error)),
        }
    }

    /// Runs the program and passes each line of its stdout to `line` as it arrives. Its stderr goes to ours.
    pub(crate) fn lines(mut self, line: impl FnMut(&str)) -> Result<ExitStatus> {
        self.pass_lines(line)
    }

    /// The same. Fails unless the program succeeds.
    pub(crate) fn lines_of_success(mut self, line: impl FnMut(&str)) -> Result<()> {
        let status = self.pass_lines(line)?;
        if status.success() { Ok(()) } else { Err(self.failure(&ended(status))) }
    }

    fn pass_lines(&mut self, mut line: impl FnMut(&str)) -> Result<ExitStatus> {
        let mut child = match self.command.stdout(Stdio::piped()).spawn() {
            Ok(child) => child,
            Err(error) => return Err(self.not_started(&error)),
        };
        if let Some(stdout) = child.stdout.take() {
            for bytes in BufReader::new(stdout).split(b'\n') {
                match bytes {
                    Ok(bytes) => line(&String::from_utf8_lossy(&bytes)),
                    Err(_) => break,
                }
            }
        }
        child.wait().map_err(|error| self.failure(&format!("could not be waited for: {error}")))
    }

    fn not_started(&self, error: &io::Error) -> anyhow::Error {
        self.failure(&format!("could not be started: {error}"))
    }

    fn failure(&self, why: &str) -> anyhow::Error {
        let failure = Failure {
            what: self.what.clone(),
            command: shortened(&self.command_line()),
            why: why.to_owned(),
            hint: self.hint.clone(),
        };
        anyhow::Error::new(failure)
    }
}

fn ended(status: ExitStatus) -> String {
    match status.code() {
        Some(code) => format!("exited with status {code}"),
        None => format!("was killed ({status})"),
    }
}

fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let first = lines.len().saturating_sub(TAIL_LINES);
    indented(lines.into_iter().skip(first))
}

/// A command without the words that exceed the limit, whose number is stated.
fn shortened(command: &str) -> String {
    let Some((limit, _)) = command.char_indices().nth(COMMAND_CHARACTERS) else { return command.to_owned() };
    let kept = command[..limit].rfind(' ').unwrap_or(limit);
    let left_out = command[kept..].split_whitespace().count();
    format!("{} … ({left_out} more words)", &command[..kept])
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) { word.to_owned() } else { format!("'{word}'") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_has_the_command_its_last_lines_and_a_hint() {
        let call =
            Call::new("make tea", "sh").args(["-c", "echo no water >&2; exit 3"]).hint("fill the kettle");
        let message = call.read().unwrap_err().to_string();
        assert_eq!(
            message,
            "could not make tea: `sh -c 'echo no water >&2; exit 3'` exited with status 3\n    no water\nhint: fill the kettle"
        );
    }

    #[test]
    fn a_missing_program_is_named() {
        let message = Call::new("go", "/nonexistent/tool").read().unwrap_err().to_string();
        assert!(message.starts_with("could not go: `/nonexistent/tool` could not be started"), "{message}");
    }

    #[test]
    fn a_long_command_does_not_hide_the_reason() {
        let call = Call::new("unpack files", "sh").args(["-c", "echo no space left >&2; exit 1"]);
        let message =
            call.args((0..1000).map(|n| format!("/folder/of/file-{n}"))).read().unwrap_err().to_string();
        assert!(message.len() < 2 * COMMAND_CHARACTERS, "{message}");
        assert!(
            message.starts_with("could not unpack files: `sh -c 'echo no space left >&2; exit 1' /folder/"),
            "{message}"
        );
        assert!(message.contains(" more words)` exited with status 1\n    no space left"), "{message}");
        assert_eq!(shortened(&"é".repeat(500)), format!("{} … (1 more words)", "é".repeat(400)));
    }

    #[test]
    fn lines_come_one_by_one() {
        let mut seen = Vec::new();
        let status = Call::new("count", "printf")
            .arg("one\\ntwo\\n")
            .lines(|line| seen.push(line.to_owned()))
            .unwrap();
        assert!(status.success());
        assert_eq!(seen, ["one", "two"]);
    }

    #[test]
    fn lines_are_passed_although_the_program_fails() {
        let mut seen = Vec::new();
        let call = Call::new("count", "sh").args(["-c", "echo one; exit 3"]).hint("count again");
        let error = call.lines_of_success(|line| seen.push(line.to_owned())).unwrap_err().to_string();
        assert_eq!(
            error,
            "could not count: `sh -c 'echo one; exit 3'` exited with status 3\nhint: count again"
        );
        assert_eq!(seen, ["one"]);
    }

    #[test]
    fn only_the_last_lines_are_repeated() {
        let text: String = (0..100).map(|n| n.to_string()).collect::<Vec<_>>().join("\n");
        let tail = tail(&text);
        assert!(tail.starts_with("\n    88\n") && tail.ends_with("\n    99"), "{tail}");
    }
}
