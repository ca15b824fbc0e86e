//! A stand-in for kube-proxy: a process of that name that answers `/proxyMode` and `/metrics` on 127.0.0.1:10249 and
//! `/healthz` on port 10256 with the captured answers of a real one. It writes no rules.

use std::{
    env, fs,
    io::{self, Read, Write},
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode},
    sync::Arc,
    thread,
    time::Duration,
};

use anyhow::{Context, Result};

use crate::{console, wait};

const METRICS_PORT: u16 = 10_249;
const HEALTH_PORT: u16 = 10_256;
const CAPTURE: &str = "LAB_KUBE_PROXY_CAPTURE";

/// The running process. It ends when the value is dropped.
#[derive(Debug)]
pub struct KubeProxy {
    child: Child,
}

impl KubeProxy {
    /// Starts it with the answers in the folder `capture`.
    pub fn start(capture: &Path) -> Result<Self> {
        let name = Path::new("/run/lab/kube-proxy");
        fs::create_dir_all("/run/lab").context("creating /run/lab")?;
        if !name.exists() {
            let this = env::current_exe().context("finding this program")?;
            // The kernel names a process after the file that it executes.
            symlink(&this, name)
                .with_context(|| format!("linking {} to {}", name.display(), this.display()))?;
        }
        let child = Command::new(name)
            .env(CAPTURE, capture)
            .spawn()
            .with_context(|| format!("starting {}", name.display()))?;
        let kube_proxy = Self { child };
        wait::until("kube-proxy's ports", Duration::from_secs(20), || {
            let ports = [METRICS_PORT, HEALTH_PORT];
            ports.iter().all(|&port| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()).then_some(())
        })?;
        Ok(kube_proxy)
    }

    /// Kills it, as a crash does: its rules stay and its ports close.
    pub fn kill(&mut self) {
        // A process that has ended already cannot be killed, which is fine.
        let _dead = self.child.kill();
        let _dead = self.child.wait();
    }
}

impl Drop for KubeProxy {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs as the process.
pub fn serve() -> ExitCode {
    let capture = Arc::new(PathBuf::from(env::var_os(CAPTURE).unwrap_or_default()));
    let listeners = [(Ipv4Addr::LOCALHOST, METRICS_PORT), (Ipv4Addr::UNSPECIFIED, HEALTH_PORT)];
    let mut threads = Vec::new();
    for (address, port) in listeners {
        let listener = match TcpListener::bind((address, port)) {
            Ok(listener) => listener,
            Err(error) => {
                console::print(format!("kube-proxy: cannot listen on {address}:{port}: {error}"));
                return ExitCode::FAILURE;
            }
        };
        let capture = Arc::clone(&capture);
        threads.push(thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A client that disconnects early is not an error.
                let _gone = answer(stream, &capture);
            }
        }));
    }
    for thread in threads {
        let _ended = thread.join();
    }
    ExitCode::SUCCESS
}

fn answer(mut stream: TcpStream, capture: &Path) -> io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut request = [0; 2048];
    let mut length = 0;
    while !request[..length].windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(request.get_mut(length..).unwrap_or_default())? {
            0 => return Ok(()),
            read => length += read,
        }
    }
    let line = String::from_utf8_lossy(&request[..length]);
    let path = line.split_ascii_whitespace().nth(1).unwrap_or("/");
    let file = match path {
        "/proxyMode" => "proxyMode.txt",
        "/metrics" => "metrics.txt",
        "/healthz" | "/livez" => "healthz.txt",
        _ => "",
    };
    let (status, body) = match fs::read(capture.join(file)) {
        Ok(body) if !file.is_empty() => ("200 OK", body),
        _ => ("404 Not Found", Vec::new()),
    };
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    )?;
    stream.write_all(&body)?;
    stream.shutdown(Shutdown::Write)
}
