//! The few system calls that neither the standard library nor socket2 offers. It contains the lab's only unsafe code
//! and decides nothing.

#![expect(unsafe_code, reason = "system calls without a safe wrapper among the lab's dependencies")]

use std::{
    ffi::CString,
    fs::File,
    io,
    os::{
        fd::{AsRawFd, FromRawFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

fn c_string(text: impl Into<Vec<u8>>) -> io::Result<CString> {
    CString::new(text).map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "contains a NUL byte"))
}

fn done(status: libc::c_int) -> io::Result<()> {
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Mounts a file system that has no device (`proc`, `tmpfs`, …). Succeeds if it is already mounted.
pub fn mount(kind: &str, target: &Path) -> io::Result<()> {
    mount_with(kind, target, "")
}

/// As [`mount`], with the file system's own options (`size=64k`).
pub fn mount_with(kind: &str, target: &Path, options: &str) -> io::Result<()> {
    let (kind, options) = (c_string(kind)?, c_string(options)?);
    let target = c_string(target.as_os_str().as_bytes())?;
    // SAFETY: all pointers are to NUL-terminated strings that outlive the call.
    let status =
        unsafe { libc::mount(kind.as_ptr(), target.as_ptr(), kind.as_ptr(), 0, options.as_ptr().cast()) };
    match done(status) {
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Ok(()),
        other => other,
    }
}

/// Makes a file system that was mounted read-only writable.
pub fn remount_writable(target: &Path) -> io::Result<()> {
    let target = c_string(target.as_os_str().as_bytes())?;
    let none = std::ptr::null();
    // SAFETY: the target is a NUL-terminated string that outlives the call; a remount reads no other.
    done(unsafe { libc::mount(none, target.as_ptr(), none, libc::MS_REMOUNT, none.cast()) })
}

/// Moves only the calling thread into a network namespace.
pub fn enter_netns(namespace: &File) -> io::Result<()> {
    // SAFETY: the descriptor is open for as long as the borrow lives; no memory is passed.
    done(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) })
}

/// Sends SIGINT, as Ctrl-C does.
pub fn interrupt(pid: u32) -> io::Result<()> {
    signal(pid, libc::SIGINT)
}

/// Sends SIGTERM, as a kubelet does.
pub fn terminate(pid: u32) -> io::Result<()> {
    signal(pid, libc::SIGTERM)
}

/// Moves the wall clock by this many seconds.
pub fn step_clock(seconds: i64) -> io::Result<()> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer leads to a timespec that lives through the call.
    done(unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut time) })?;
    time.tv_sec = time.tv_sec.saturating_add(seconds);
    // SAFETY: as above.
    done(unsafe { libc::clock_settime(libc::CLOCK_REALTIME, &raw const time) })
}

/// Unmounts a file system.
pub fn unmount(target: &Path) -> io::Result<()> {
    let target = c_string(target.as_os_str().as_bytes())?;
    // SAFETY: the pointer is to a NUL-terminated string that outlives the call.
    done(unsafe { libc::umount(target.as_ptr()) })
}

/// Runs this thread before every thread of the usual kind and of a lower priority (1 to 99), until it waits.
pub fn run_first(priority: libc::c_int) -> io::Result<()> {
    run_thread_first(0, priority)
}

/// The same for the thread with this number; 0 is this one.
pub fn run_thread_first(thread: u32, priority: libc::c_int) -> io::Result<()> {
    let thread = process_number(thread)?;
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: the parameters outlive the call.
    done(unsafe { libc::sched_setscheduler(thread, libc::SCHED_FIFO, &raw const parameters) })
}

/// Sends a signal to a process, the leader of its group, and to the others of the group.
pub fn signal_group(leader: u32, signal: libc::c_int) -> io::Result<()> {
    // SAFETY: no memory is passed; the number belongs to a child that has not been reaped.
    done(unsafe { libc::kill(-process_number(leader)?, signal) })
}

fn process_number(pid: u32) -> io::Result<libc::pid_t> {
    libc::pid_t::try_from(pid)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "invalid process number"))
}

fn signal(pid: u32, signal: libc::c_int) -> io::Result<()> {
    let pid = process_number(pid)?;
    // SAFETY: no memory is passed; the number belongs to a child that has not been reaped.
    done(unsafe { libc::kill(pid, signal) })
}

/// Takes a capability, by its number, from all programs that the calling thread starts later.
pub fn withhold_capability(capability: u32) -> io::Result<()> {
    // SAFETY: the call takes numbers only.
    done(unsafe { libc::prctl(libc::PR_CAPBSET_DROP, libc::c_ulong::from(capability), 0, 0, 0) })
}

/// The next sequence numbers that a TCP socket sends and expects (`TCP_REPAIR`, tcp(7)).
pub fn tcp_sequences(socket: &impl AsRawFd) -> io::Result<(u32, u32)> {
    const TCP_REPAIR: libc::c_int = 19;
    const TCP_REPAIR_QUEUE: libc::c_int = 20;
    const TCP_QUEUE_SEQ: libc::c_int = 21;
    const RECV_QUEUE: libc::c_int = 1;
    const SEND_QUEUE: libc::c_int = 2;
    /// Leaves repair mode without a window probe.
    const OFF_QUIETLY: libc::c_int = -1;
    let fd = socket.as_raw_fd();
    let set = |name, value: libc::c_int| {
        let length = size_of_val(&value) as libc::socklen_t;
        // SAFETY: the option's value is an int that outlives the call, and its size is given.
        done(unsafe { libc::setsockopt(fd, libc::IPPROTO_TCP, name, (&raw const value).cast(), length) })
    };
    let sequence = |queue| {
        set(TCP_REPAIR_QUEUE, queue)?;
        let mut value = 0_u32;
        let mut length = size_of_val(&value) as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes, which is the size of the value.
        done(unsafe {
            libc::getsockopt(fd, libc::IPPROTO_TCP, TCP_QUEUE_SEQ, (&raw mut value).cast(), &raw mut length)
        })?;
        Ok(value)
    };
    set(TCP_REPAIR, 1)?;
    let both = sequence(SEND_QUEUE).and_then(|sent| Ok((sent, sequence(RECV_QUEUE)?)));
    set(TCP_REPAIR, OFF_QUIETLY)?;
    both
}

/// Raises this process's limit of open files to `count`.
pub fn allow_open_files(count: u64) -> io::Result<()> {
    let limit = libc::rlimit { rlim_cur: count, rlim_max: count };
    // SAFETY: `limit` is only read and outlives the call.
    done(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) })
}

/// The two ends of a new terminal: the one that displays and the one that a program runs on.
pub fn open_terminal(columns: u16, rows: u16) -> io::Result<(File, File)> {
    let (mut shows, mut runs) = (-1, -1);
    let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the two numbers are valid places for the call to write to, `size` is only read, the others may be null.
    done(unsafe {
        libc::openpty(&raw mut shows, &raw mut runs, std::ptr::null_mut(), std::ptr::null(), &raw const size)
    })?;
    // SAFETY: the call succeeded, so both descriptors are open and have no other owner.
    Ok(unsafe { (File::from_raw_fd(shows), File::from_raw_fd(runs)) })
}

/// Waits for any child and returns its process number and wait status.
pub fn reap() -> io::Result<(u32, i32)> {
    let mut status = 0;
    // SAFETY: `status` is a valid place for the one integer that the call writes.
    let pid = unsafe { libc::waitpid(-1, &raw mut status, 0) };
    u32::try_from(pid).map(|pid| (pid, status)).map_err(|_| io::Error::last_os_error())
}

/// The exit code in a wait status, or 128 plus the signal that ended the process.
pub fn exit_code(status: i32) -> i32 {
    if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 128 + libc::WTERMSIG(status) }
}

/// Writes all caches to disk and switches the machine off. Returns only if the kernel refuses.
pub fn power_off() -> io::Result<()> {
    // SAFETY: neither call takes memory.
    unsafe {
        libc::sync();
        done(libc::reboot(libc::RB_POWER_OFF))
    }
}

/// Disables a serial line's processing (echo, carriage returns), so that bytes are sent as written.
pub fn make_raw(line: &File) -> io::Result<()> {
    // SAFETY: a termios is plain integers, for which zero is a valid value; it is filled before it is read.
    let mut settings: libc::termios = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open and `settings` is a valid termios for all three calls.
    unsafe {
        done(libc::tcgetattr(line.as_raw_fd(), &raw mut settings))?;
        libc::cfmakeraw(&raw mut settings);
        done(libc::tcsetattr(line.as_raw_fd(), libc::TCSANOW, &raw const settings))
    }
}
