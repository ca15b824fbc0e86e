//! The socket: a Unix socket that only its owner may open. Agents run on Linux; without Unix sockets there is none.

#[cfg(not(unix))]
pub(super) use missing::{Listener, Stream, bind, connect};
#[cfg(unix)]
pub(super) use unix::{Listener, Stream, bind, connect};

#[cfg(unix)]
mod unix {
    use std::{fs, io, os::unix::fs::PermissionsExt as _, path::Path};

    pub(in super::super) use tokio::net::{UnixListener as Listener, UnixStream as Stream};

    /// Binds the socket so that nobody else can open it at any time: under another name first, which gets its mode
    /// before it gets the path. A socket that an earlier agent left is replaced.
    pub(in super::super) fn bind(path: &Path) -> io::Result<Listener> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let new = path.with_extension("new");
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = Listener::bind(&new)?;
        fs::set_permissions(&new, fs::Permissions::from_mode(0o600))?;
        fs::rename(&new, path)?;
        Ok(listener)
    }

    pub(in super::super) async fn connect(path: &Path) -> io::Result<Stream> {
        Stream::connect(path).await
    }
}

/// The types are those of TCP, of which no value is made.
#[cfg(not(unix))]
mod missing {
    use std::{io, path::Path};

    pub(in super::super) use tokio::net::{TcpListener as Listener, TcpStream as Stream};

    pub(in super::super) fn bind(_: &Path) -> io::Result<Listener> {
        Err(io::ErrorKind::Unsupported.into())
    }

    #[expect(clippy::unused_async, reason = "elsewhere it waits")]
    pub(in super::super) async fn connect(_: &Path) -> io::Result<Stream> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
