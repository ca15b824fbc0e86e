//! The agent under a small CPU limit for minutes: steady connections, DNS, endpoints that come and go, and a Pod that
//! connects to a closed port as fast as it can. Every fault of another Service is reported with its class, the noise makes no
//! healthy flow uncertain, and nothing grows. `lab.soak=SECONDS` on the kernel's command line sets the length.

use std::{
    fs,
    io::{self, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, ensure};

use super::{agent::fresh, silent};
use crate::{
    agent::Agent,
    boot, console,
    topology::Place,
    traffic::{
        Outcome, all_ended,
        client::{self, Script},
        server::EXCHANGE,
        udp::Answer,
    },
    wait,
    world::Stage,
};

const LENGTH: Duration = Duration::from_mins(3);
/// From one fault to the next.
const PACE: Duration = Duration::from_secs(15);
/// The limit of one connection of the load.
const PATIENCE: Duration = Duration::from_secs(20);
const SILENT: usize = 2;
const REJECTED: usize = 2;
/// 200 thousandths of a CPU, as `resources.limits.cpu: 200m`.
const CPU_MAX: &str = "20000 100000";
const GROUP: &str = "/sys/fs/cgroup/agent";
/// The growth of the agent's resident memory after the first third: the room that its allocator and its histograms may still take.
const GROWTH: u64 = 8 << 20;

/// The connections that were made.
#[derive(Debug, Default)]
struct Made {
    steady: usize,
    noise: usize,
    queries: usize,
    silent: usize,
    rejected: usize,
}

pub(super) fn story(stage: &mut Stage) -> Result<()> {
    stage.needs_viptrace()?;
    let length = match boot::kernel_argument("lab.soak") {
        Some(seconds) => Duration::from_secs(seconds.parse().context("lab.soak is no number of seconds")?),
        None => LENGTH,
    };
    stage.keep_serving(&["shop/cart-1", "shop/cart-2", "shop/cart-3"], 8080, EXCHANGE)?;
    stage.keep_serving_udp(&["kube-system/coredns-1", "kube-system/coredns-2"], 53, Answer::Echo)?;
    silent::misdeliver_payments(stage)?;
    let agent = Agent::start(&stage.kubeconfig()?, &fresh("/tmp/segments")?, "sample: 1/100\n")?;
    limit_cpu(&agent)?;
    let (made, grown) = traffic(stage, length)?;

    let faults = |service: &str, class: &str, made: usize| {
        let labels = [format!("service=\"{service}\""), format!("class=\"{class}\"")];
        let labels = labels.each_ref().map(String::as_str);
        let counted = Agent::wait_for("viptrace_faults_total", &labels, made as u64)?;
        ensure!(
            counted == made as u64,
            "{counted} faults {class} of {service} were reported, {made} were caused"
        );
        anyhow::Ok(())
    };
    faults("payments", "C29", made.silent)?;
    faults("checkout", "C20", made.rejected)?;
    for (service, made) in [("cart", made.steady), ("api", made.noise), ("payments", made.silent)] {
        let label = format!("service=\"{service}\"");
        let counted = Agent::wait_for("viptrace_connections_total", &[&label], made as u64)?;
        ensure!(counted == made as u64, "{counted} connections to {service} were counted, {made} were made");
    }
    for service in ["cart", "kube-dns"] {
        let label = format!("service=\"{service}\"");
        let (faults, unexplained) = (
            Agent::sum("viptrace_faults_total", &[&label])?,
            Agent::sum("viptrace_unexplained_total", &[&label])?,
        );
        ensure!(
            (faults, unexplained) == (0, 0),
            "{service}: {faults} faults and {unexplained} unexplained flows"
        );
    }
    let label = ["service=\"kube-dns\""];
    let queries = Agent::wait_for("viptrace_connections_total", &label, 1)?;
    // A query from a port whose entry is still alive begins no connection.
    ensure!(queries <= made.queries as u64, "{queries} connections of {} queries", made.queries);
    let (lost, suppressed) = (
        Agent::sum("viptrace_lost_events_total", &[])?,
        Agent::sum("viptrace_suppressed_events_total", &[])?,
    );
    let cpu = agent.cpu_seconds()?;
    console::print(format!(
        "agent-soak: {made:?}; {suppressed} events suppressed, {lost} lost, {cpu} s of CPU, {grown} bytes grown"
    ));
    ensure!(lost == 0 && suppressed > 0, "{lost} events were lost, {suppressed} suppressed");
    ensure!(grown <= GROWTH, "the agent's memory grew by {grown} bytes after the first third");
    let ended = agent.stop()?;
    ensure!(ended.status == 0, "the agent's exit status is {}: {}", ended.status, ended.stderr);
    Ok(())
}

/// Makes connections for as long. Returns how many, and by how many bytes the agent grew after the first third.
fn traffic(stage: &mut Stage, length: Duration) -> Result<(Made, u64)> {
    let vip = |service, port| stage.vip(service, port);
    let (cart, dns) = (vip("shop/cart", "http")?, vip("kube-system/kube-dns", "dns")?);
    let (api, payments, checkout) =
        (vip("shop/api", "https")?, vip("shop/payments", "grpc")?, vip("shop/checkout", "http")?);
    let (client_1, slow_1) = (stage.place("shop/client-1")?, stage.place("shop/slow-1")?);
    let steady = Load::start(client_1, cart, exchange)?;
    let queries = Load::start(client_1, dns, query)?;
    let noise = Load::start(slow_1, api, refused)?;
    let (mut silent, mut rejected, mut at_third, mut round) = (0, 0, None, 0);
    let began = Instant::now();
    while began.elapsed() < length {
        let patience = Script::exchange().connect_limit(Duration::from_secs(4));
        all_ended(&client::connect(client_1, payments, SILENT, 2, patience)?, &Outcome::ConnectTimedOut)?;
        let without = client::connect(client_1, checkout, REJECTED, 1, Script::exchange())?;
        all_ended(&without, &Outcome::Refused)?;
        (silent, rejected, round) = (silent + SILENT, rejected + REJECTED, round + 1);
        if began.elapsed() * 3 >= length && at_third.is_none() {
            at_third = Some(Agent::sum("process_resident_memory_bytes", &[])?);
        }
        wait::until_older_than(began, (PACE * round).min(length));
    }
    let now = Agent::sum("process_resident_memory_bytes", &[])?;
    let made =
        Made { steady: steady.stop()?, noise: noise.stop()?, queries: queries.stop()?, silent, rejected };
    Ok((made, now.saturating_sub(at_third.unwrap_or(now))))
}

/// One connection after the other, from ports that the kernel chooses.
struct Load {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<io::Result<io::Result<usize>>>,
}

impl Load {
    fn start(from: &Place, to: SocketAddr, connect: fn(SocketAddr) -> io::Result<()>) -> Result<Self> {
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&is_over);
        let work = move || {
            let mut count = 0;
            while !ends.load(Ordering::Relaxed) {
                connect(to)?;
                count += 1;
            }
            Ok(count)
        };
        Ok(Self { is_over, thread: from.netns.spawn("load", work).context("starting a load")? })
    }

    /// The number of connections.
    fn stop(self) -> Result<usize> {
        self.is_over.store(true, Ordering::Relaxed);
        let ended = self.thread.join().map_err(|_| anyhow!("a load panicked"))?;
        ended.context("entering the load's namespace")?.context("a connection of the load failed")
    }
}

fn exchange(to: SocketAddr) -> io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(&[b'q'; client::REQUEST])?;
    stream.read_exact(&mut [0; client::RESPONSE])
}

fn query(to: SocketAddr) -> io::Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.connect(to)?;
    socket.send(b"query")?;
    socket.recv(&mut [0; 64]).map(drop)
}

fn refused(to: SocketAddr) -> io::Result<()> {
    match TcpStream::connect_timeout(&to, PATIENCE) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        Err(error) => Err(error),
        Ok(_) => Err(io::Error::other("the closed port accepted a connection")),
    }
}

/// Puts the agent into a group with a limit of its CPU time.
fn limit_cpu(agent: &Agent) -> Result<()> {
    let group = Path::new(GROUP);
    fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+cpu").context("enabling the CPU controller")?;
    fs::create_dir_all(group).context("creating the agent's group")?;
    fs::write(group.join("cpu.max"), CPU_MAX).context("limiting the agent's CPU time")?;
    fs::write(group.join("cgroup.procs"), agent.pid().to_string())
        .context("moving the agent into its group")?;
    Ok(())
}
