//! A terminal for tests: commands typed in a temporary folder, and their output.

use std::{
    fs,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Committed files.
pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(name)
}

/// A folder in which commands are typed, without the host's environment.
pub(crate) struct Terminal {
    folder: tempfile::TempDir,
    environment: Vec<(String, String)>,
}

impl Terminal {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), environment: Vec::new() }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        let path = self.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Copies a committed file or folder here.
    pub(crate) fn bring(&self, from: &str, name: &str) {
        copy(&fixture(from), &self.path().join(name));
    }

    pub(crate) fn rename(&self, from: &str, to: &str) {
        fs::rename(self.path().join(from), self.path().join(to)).unwrap();
    }

    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.environment.push((name.to_owned(), value.to_owned()));
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_viptrace"));
        command
            .args(arguments)
            .current_dir(self.path())
            .env_clear()
            .env("HOME", self.path())
            .env("NODE_NAME", "worker-1")
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null());
        command
    }

    /// Types `viptrace ARGUMENTS`: returns standard output, then standard error, then the exit status if it is not 0.
    pub(crate) fn run(&self, arguments: &str) -> String {
        let words: Vec<&str> = arguments.split_whitespace().collect();
        let output = self.command(&words).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        self.transcript(arguments, &(text(&output.stdout) + &text(&output.stderr)), output.status.code())
    }

    /// The same for `kubectl viptrace ARGUMENTS`.
    pub(crate) fn kubectl(&self, arguments: &str) -> String {
        let words: Vec<&str> = arguments.split_whitespace().collect();
        let output = self.command(&words).arg0("kubectl-viptrace").output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let read = text(&output.stdout) + &text(&output.stderr);
        self.transcript(arguments, &read, output.status.code()).replacen("$ ", "$ kubectl ", 1)
    }

    /// Types the command with standard output redirected to this file.
    pub(crate) fn run_into(&self, arguments: &str, file: &str) -> String {
        let words: Vec<&str> = arguments.split_whitespace().collect();
        let out = fs::OpenOptions::new().write(true).open(file).unwrap();
        let output = self.command(&words).stdout(out).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        self.transcript(&format!("{arguments} > {file}"), &stderr, output.status.code())
    }

    fn transcript(&self, arguments: &str, read: &str, status: Option<i32>) -> String {
        let status = match status {
            Some(0) => String::new(),
            Some(status) => format!("[exit status {status}]\n"),
            None => "[killed]\n".to_owned(),
        };
        let read = read.replace(&self.path().display().to_string(), "/home/me");
        format!("$ viptrace {arguments}\n{read}{status}\n").replace(env!("CARGO_PKG_VERSION"), "[VERSION]")
    }

    /// The output of several commands, one after the other.
    pub(crate) fn session(&self, commands: &[&str]) -> String {
        commands.iter().map(|arguments| self.run(arguments)).collect()
    }
}

/// Copies a file, or a folder with all that is in it.
pub(crate) fn copy(from: &Path, to: &Path) {
    if from.is_dir() {
        fs::create_dir_all(to).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            copy(&entry.path(), &to.join(entry.file_name()));
        }
    } else {
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(from, to).unwrap();
    }
}
