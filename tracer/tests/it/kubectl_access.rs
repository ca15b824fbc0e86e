//! How the plugin reaches the API server with the kubeconfigs that people have: proxies and credential plugins.

use std::{
    fs,
    io::Read as _,
    net::{SocketAddr, TcpListener},
    os::unix::process::CommandExt as _,
    process::Command,
    sync::mpsc::{self, Receiver},
    thread,
    time::Duration,
};

/// A server that takes the first bytes of each connection and closes it.
struct Listener {
    address: SocketAddr,
    heard: Receiver<Vec<u8>>,
}

impl Listener {
    fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, heard) = mpsc::channel();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
                let mut first = [0; 256];
                let read = stream.read(&mut first).unwrap_or(0);
                if sender.send(first[..read].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self { address, heard }
    }

    /// The first bytes of the first connection.
    fn first(&self) -> Option<Vec<u8>> {
        self.heard.try_recv().ok()
    }
}

/// What the plugin prints with this kubeconfig and environment.
fn said(cluster: &str, user: &str, environment: &[(&str, &str)]) -> String {
    let home = tempfile::tempdir().unwrap();
    let config = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
         clusters:\n- name: c\n  cluster: {{{cluster}}}\nusers:\n- name: u\n  user: {{{user}}}\n"
    );
    fs::write(home.path().join("config"), config).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_viptrace"))
        .arg0("kubectl-viptrace")
        .args(["cleanup", "--kubeconfig", "config"])
        .current_dir(home.path())
        .env_clear()
        .envs(environment.iter().copied())
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap()
}

#[test]
fn the_proxy_of_the_kubeconfig_is_used() {
    for (scheme, begins) in [("http", &b"CONNECT 192.0.2.1:6443 "[..]), ("socks5", &[5][..])] {
        let proxy = Listener::start();
        let cluster = format!("server: 'https://192.0.2.1:6443', proxy-url: '{scheme}://{}'", proxy.address);
        // NO_PROXY is about the environment's proxy.
        let read = said(&cluster, "", &[("NO_PROXY", "192.0.2.0/24")]);
        let heard = proxy.first().unwrap_or_else(|| panic!("{scheme}: {read}"));
        assert!(heard.starts_with(begins), "{scheme}: {heard:?}: {read}");
    }
}

#[test]
fn the_environments_proxy_is_used_unless_the_server_is_excepted() {
    let server = "server: 'https://192.0.2.1:6443'";
    let proxy = Listener::start();
    let name = proxy.address.to_string();
    let read = said(server, "", &[("HTTPS_PROXY", &name), ("NO_PROXY", "127.0.0.0/8,10.0.0.0/8")]);
    let heard = proxy.first().unwrap_or_else(|| panic!("{read}"));
    assert!(heard.starts_with(b"CONNECT 192.0.2.1:6443 "), "{heard:?}: {read}");
    // A server on this machine, as kind's: no proxy would reach it.
    let local = Listener::start();
    let read = said(&format!("server: 'https://{}'", local.address), "", &[("HTTPS_PROXY", &name)]);
    assert!(local.first().is_some() && proxy.first().is_none(), "{read}");
}

#[test]
fn a_proxy_that_cannot_be_used_is_an_error_that_names_its_place_and_not_its_password() {
    let server = Listener::start();
    let address = format!("https://{}", server.address);
    for (text, why) in [
        ("http://u:hunter2@pro xy:3128", "it cannot be read as a URL"),
        ("ftp://u:hunter2@proxy:3128", "its scheme is none of http, https and socks5"),
        ("http://u:hunter2@proxy:99999", "its port is no number up to 65535"),
    ] {
        let own = said(&format!("server: '{address}', proxy-url: '{text}'"), "", &[]);
        let environment = said("server: 'https://192.0.2.1:6443'", "", &[("https_proxy", text)]);
        for (read, place) in
            [(own, "proxy-url of the kubeconfig's cluster c"), (environment, "the environment's https_proxy")]
        {
            assert!(read.contains(&format!("{place} is not a proxy's URL: {why}")), "{read}");
            assert!(read.contains("http://HOST:PORT") && !read.contains("hunter2"), "{read}");
        }
    }
    assert!(server.first().is_none(), "nothing is asked past the proxy");
    // kubectl does not look at it either.
    let read = said(&format!("server: '{address}'"), "", &[("HTTPS_PROXY", "ftp://u:hunter2@proxy:x")]);
    assert!(server.first().is_some(), "{read}");
    let read = said("server: 'https://192.0.2.1:6443'", "", &[("HTTPS_PROXY", "p:1"), ("NO_PROXY", "a,")]);
    assert!(read.contains("NO_PROXY cannot be read: leave out empty entries"), "{read}");
}

#[test]
fn a_credential_plugin_that_fails_is_named() {
    let server = Listener::start();
    let cluster = format!("server: 'https://{}'", server.address);
    let exec = |command: &str, more: &str| {
        format!(
            "exec: {{apiVersion: client.authentication.k8s.io/v1, command: {command}, interactiveMode: IfAvailable{more}}}"
        )
    };
    let missing = said(&cluster, &exec("no-such-login", ""), &[("PATH", "/usr/bin:/bin")]);
    assert!(missing.contains("no-such-login"), "{missing}");
    let failing = said(
        &cluster,
        &exec("sh", ", args: [-c, 'echo token expired >&2; exit 3']"),
        &[("PATH", "/usr/bin:/bin")],
    );
    assert!(failing.contains("sh") && failing.contains("exit status"), "{failing}");
    assert!(server.first().is_none(), "nothing is asked without credentials");
}
