//! The differences between operating systems that the plugin and the files of a person's machine meet: private files,
//! requests to stop, and a process that Ctrl-C does not reach.
//!
//! Verbs that need the kernel of a node exist on Linux only, and need nothing from here but what others need, too.

use std::{
    fs::{DirBuilder, File, Metadata, OpenOptions},
    io,
    path::Path,
    process::Command,
};

/// The requests to stop this process: Ctrl-C, and SIGTERM or Ctrl-Break.
#[derive(Debug)]
pub(crate) struct StopSignals {
    interrupt: imp::Interrupt,
    terminate: imp::Terminate,
}

impl StopSignals {
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self { interrupt: imp::interrupt()?, terminate: imp::terminate()? })
    }

    /// Waits for the next one, also if it came since the last call.
    pub(crate) async fn recv(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Only the owner may read a file that `options` create. On Windows, a file has the permissions of its folder: one
/// below the user's own folder is private.
pub(crate) fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    imp::private(options)
}

/// Only the owner may open a folder that `builder` creates. On Windows, as for [`private`].
pub(crate) fn private_folder(builder: &mut DirBuilder) -> &mut DirBuilder {
    imp::private_folder(builder)
}

/// Takes the permissions on an existing file from all but its owner. On Windows, as for [`private`].
pub(crate) fn make_private(file: &File) -> io::Result<()> {
    imp::make_private(file)
}

/// The inode number, which no other file of the file system has; 0 on Windows.
pub(crate) fn inode(meta: &Metadata) -> u64 {
    imp::inode(meta)
}

/// Whether both are one file of the file system, also by another name. On Windows it is not known, and false.
pub(crate) fn is_same_file(one: &Metadata, other: &Metadata) -> bool {
    imp::is_same_file(one, other)
}

/// The free bytes where this folder is, for its user; `None` if they are not known, as on Windows.
pub(crate) fn free_bytes(folder: &Path) -> Option<u64> {
    imp::free_bytes(folder)
}

/// Neither the terminal's Ctrl-C nor its end reaches the process that `command` starts.
pub(crate) fn apart_from_terminal(command: &mut Command) -> &mut Command {
    imp::apart_from_terminal(command)
}

#[cfg(unix)]
mod imp {
    use std::{
        fs::{DirBuilder, File, Metadata, OpenOptions, Permissions},
        io,
        os::unix::{
            fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
            process::CommandExt as _,
        },
        path::Path,
        process::{Command, Stdio},
    };

    use tokio::signal::unix::{Signal, SignalKind, signal};

    pub(super) type Interrupt = Signal;
    pub(super) type Terminate = Signal;

    pub(super) fn interrupt() -> io::Result<Interrupt> {
        signal(SignalKind::interrupt())
    }

    pub(super) fn terminate() -> io::Result<Terminate> {
        signal(SignalKind::terminate())
    }

    pub(super) fn private(options: &mut OpenOptions) -> &mut OpenOptions {
        options.mode(0o600)
    }

    pub(super) fn private_folder(builder: &mut DirBuilder) -> &mut DirBuilder {
        builder.mode(0o700)
    }

    pub(super) fn make_private(file: &File) -> io::Result<()> {
        file.set_permissions(Permissions::from_mode(0o600))
    }

    pub(super) fn inode(meta: &Metadata) -> u64 {
        meta.ino()
    }

    pub(super) fn is_same_file(one: &Metadata, other: &Metadata) -> bool {
        (one.dev(), one.ino()) == (other.dev(), other.ino())
    }

    /// As `df` says it in its portable form: the column before that of the percentage.
    pub(super) fn free_bytes(folder: &Path) -> Option<u64> {
        let mut df = Command::new("df");
        df.arg("-Pk").arg(folder).env("LC_ALL", "C").stdin(Stdio::null()).stderr(Stdio::null());
        let output = df.output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let columns: Vec<&str> = text.lines().last()?.split_whitespace().collect();
        let percentage = columns.iter().rposition(|column| column.ends_with('%'))?;
        columns.get(percentage.checked_sub(1)?)?.parse::<u64>().ok()?.checked_mul(1024)
    }

    pub(super) fn apart_from_terminal(command: &mut Command) -> &mut Command {
        command.process_group(0)
    }
}

#[cfg(windows)]
mod imp {
    use std::{
        fs::{DirBuilder, File, Metadata, OpenOptions},
        io,
        os::windows::process::CommandExt as _,
        path::Path,
        process::Command,
    };

    use tokio::signal::windows::{CtrlBreak, CtrlC, ctrl_break, ctrl_c};

    /// The process has no console, so that closing the plugin's does not end it (Process Creation Flags, Win32).
    const DETACHED_PROCESS: u32 = 0x0000_0008;
    const CREATE_NEW_PROCESS_GROUP: u32 = 0x0000_0200;

    pub(super) type Interrupt = CtrlC;
    pub(super) type Terminate = CtrlBreak;

    pub(super) fn interrupt() -> io::Result<Interrupt> {
        ctrl_c()
    }

    pub(super) fn terminate() -> io::Result<Terminate> {
        ctrl_break()
    }

    pub(super) fn private(options: &mut OpenOptions) -> &mut OpenOptions {
        options
    }

    pub(super) fn private_folder(builder: &mut DirBuilder) -> &mut DirBuilder {
        builder
    }

    #[expect(clippy::unnecessary_wraps, reason = "elsewhere it can fail")]
    pub(super) fn make_private(_: &File) -> io::Result<()> {
        Ok(())
    }

    pub(super) fn inode(_: &Metadata) -> u64 {
        0
    }

    pub(super) fn is_same_file(_: &Metadata, _: &Metadata) -> bool {
        false
    }

    pub(super) fn free_bytes(_: &Path) -> Option<u64> {
        None
    }

    pub(super) fn apart_from_terminal(command: &mut Command) -> &mut Command {
        command.creation_flags(DETACHED_PROCESS | CREATE_NEW_PROCESS_GROUP)
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn the_free_bytes_of_a_folder_are_known() {
        let folder = tempfile::tempdir().unwrap();
        assert!(free_bytes(folder.path()).is_some_and(|free| free > 0));
        assert_eq!(free_bytes(&folder.path().join("none")), None);
    }
}
