//! A second process that removes a run's Pods if the plugin is killed.
//!
//! It waits on a pipe: a word before the end means that the plugin has removed the Pods itself. The terminal's Ctrl-C does
//! not reach it.

use std::{
    io::{self, Read as _, Write as _},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use crate::{cluster::Access, platform};

/// The hidden verb that runs the guard.
pub(crate) const VERB: &str = "__guard";
/// The plugin has removed the Pods.
const DONE: &[u8] = b"done\n";
/// The longest time for the removal after the plugin's end.
pub(crate) const REMOVAL: Duration = Duration::from_mins(1);

/// What the guard has to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Watched {
    pub(crate) access: Access,
    pub(crate) namespace: String,
    pub(crate) run: String,
}

/// The running guard.
#[derive(Debug)]
pub(crate) struct Guard {
    child: Child,
}

impl Guard {
    /// Starts the guard of these Pods.
    pub(crate) fn start(watched: &Watched) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("cannot find this program's file")?;
        let mut command = Command::new(program);
        command.arg(VERB).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        platform::apart_from_terminal(&mut command);
        let mut child =
            command.spawn().context("cannot start the process that removes Pods after a crash")?;
        let mut line = serde_json::to_vec(watched)?;
        line.push(b'\n');
        if let Some(input) = &mut child.stdin {
            input.write_all(&line).context("the process that removes Pods after a crash has ended")?;
        }
        Ok(Self { child })
    }

    /// Ends the guard: the Pods are gone.
    pub(crate) fn dismiss(mut self) {
        if let Some(mut input) = self.child.stdin.take() {
            // A guard that has ended has nothing to learn.
            let _ = input.write_all(DONE);
        }
        let _ = self.child.wait();
    }
}

/// The guard's side: waits for the plugin's end. Returns what to remove, or `None` if the plugin has removed it.
pub(crate) fn wait() -> anyhow::Result<Option<Watched>> {
    let mut input = String::new();
    io::stdin().read_to_string(&mut input)?;
    parse(&input)
}

fn parse(input: &str) -> anyhow::Result<Option<Watched>> {
    let (first, rest) = input.split_once('\n').context("there is no line that names the Pods")?;
    let watched = serde_json::from_str(first)?;
    Ok((rest.as_bytes() != DONE).then_some(watched))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_end_without_a_word_needs_the_guard() {
        let watched = Watched {
            access: Access { context: Some("lab".into()), user: Some("eve".into()), ..Access::default() },
            namespace: "kube-system".into(),
            run: "7f3a".into(),
        };
        let line = format!("{}\n", serde_json::to_string(&watched).unwrap());
        assert_eq!(parse(&line).unwrap(), Some(watched));
        assert_eq!(parse(&(line + "done\n")).unwrap(), None);
        parse("").unwrap_err();
        parse("x\n").unwrap_err();
    }
}
