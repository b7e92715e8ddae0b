//! The agent of a test machine: this same program, started by the initramfs as process 1. If another program
//! is requested as process 1, the agent executes it, and is restarted by it as a service.
//!
//! Owns: network and modules of the machine, as process 1 its mounts, too; the programs run on request.
//! Does not own: the tests.
//! Runs on: one thread for each connection, one that reaps.
//! On failure: prints the reason on the console and powers the machine off, which the harness detects.

use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use rustix::mount::{MountFlags, mount, mount_bind};

use crate::wire;
use programs::Programs;

mod programs;
mod serve;
mod shut_down;

/// Prefix on the kernel command line, followed by the machine's host name.
pub const NAME: &str = "holdfast.name=";
/// Prefix on the kernel command line, followed by modules to load, separated by commas.
pub const MODULES: &str = "holdfast.modules=";
/// Prefix on the kernel command line, followed by the program to run as process 1 instead of the agent.
pub const INIT: &str = "holdfast.init=";
/// Exists if systemd is process 1. Source: sd_booted(3).
const SYSTEMD: &str = "/run/systemd/system";
/// Mount point of the state disk, the machine's third; its `holdfast` and `log` are mounted at
/// `/var/lib/holdfast` and `/var/log/holdfast`.
const STATE_DIR: &str = "/state";

/// Runs until the machine is powered off.
///
/// # Errors
/// If the machine cannot be set up; the caller prints the error.
pub fn run() -> Result<()> {
    let is_init = rustix::process::getpid().is_init();
    ensure!(
        is_init || Path::new(SYSTEMD).exists(),
        "guest-agent is process 1 of a test machine, or a service in one"
    );
    let served = set_up(is_init).and_then(|listener| {
        let programs = Arc::new(Programs::new());
        let reaper = Arc::clone(&programs);
        std::thread::spawn(move || reaper.reap());
        print_console(wire::READY);
        for connection in listener.incoming() {
            let connection = connection.context("accept a connection")?;
            let programs = Arc::clone(&programs);
            std::thread::spawn(move || {
                // The harness detects a broken connection itself.
                drop(serve::serve(connection, &programs));
            });
        }
        Ok(())
    });
    if let Err(error) = &served {
        print_console(&format!("guest-agent: {error:#}"));
    }
    power_off()?;
    served
}

/// Writes all data to disk and powers the machine off.
///
/// # Errors
/// If the kernel rejects it.
fn power_off() -> Result<()> {
    rustix::fs::sync();
    rustix::system::reboot(rustix::system::RebootCommand::PowerOff).context("turn the machine off")
}

/// Prints on the console; errors of a closed console are ignored.
fn print_console(line: &str) {
    if let Ok(mut console) = fs::File::options().write(true).open("/dev/console") {
        drop(writeln!(console, "{line}"));
    }
}

fn set_up(is_init: bool) -> Result<TcpListener> {
    let boot = fs::read_to_string("/proc/cmdline").context("read the kernel command line")?;
    let option = |prefix: &str| boot.split_whitespace().find_map(|word| word.strip_prefix(prefix));
    if is_init {
        if let Some(init) = option(INIT) {
            return Err(Command::new(init).exec()).with_context(|| format!("become {init}"));
        }
        mount_all()?;
    }
    let name = option(NAME).unwrap_or("vm");
    rustix::system::sethostname(name.as_bytes()).context("set the host name")?;
    let modules = option(MODULES).unwrap_or_default();
    run_tool(
        Command::new("modprobe")
            .args(["-a", "virtio_net"])
            .args(modules.split(',').filter(|module| !module.is_empty())),
    )?;
    set_up_network()?;
    mount_state()?;
    fs::create_dir_all("/var/log/holdfast").context("create the log directory")?;
    raise_limits()?;
    TcpListener::bind(("0.0.0.0", wire::PORT)).context("listen")
}

/// Mounts the file systems that every host has.
fn mount_all() -> Result<()> {
    let tmpfs = [
        ("tmpfs", "/tmp"),
        ("tmpfs", "/run"),
        ("tmpfs", "/dev/shm"),
        ("devpts", "/dev/pts"),
        ("tracefs", "/sys/kernel/tracing"),
    ];
    for (kind, target) in tmpfs {
        fs::create_dir_all(target).with_context(|| format!("create {target}"))?;
        mount(kind, target, kind, MountFlags::empty(), None).with_context(|| format!("mount {target}"))?;
    }
    symlink("/proc/self/fd", "/dev/fd").context("link /dev/fd")
}

/// Configures the addresses of QEMU's user network: the host's loopback is 10.0.2.2.
fn set_up_network() -> Result<()> {
    fs::write(
        "/run/network",
        "link set lo up\nlink set eth0 up\naddr add 10.0.2.15/24 dev eth0\nroute add default via 10.0.2.2\n",
    )
    .context("write the network's settings")?;
    // The host's servers are known by this name on the host, too.
    fs::write("/etc/hosts", "10.0.2.2 localhost\n").context("write /etc/hosts")?;
    run_tool(Command::new("ip").args(["-batch", "/run/network"]))
}

fn mount_state() -> Result<()> {
    fs::create_dir_all(STATE_DIR).context("create the state directory")?;
    mount("/dev/vdc", STATE_DIR, "ext4", MountFlags::NOATIME, None).context("mount the state disk")?;
    for (sub, target) in [("holdfast", "/var/lib/holdfast"), ("log", "/var/log/holdfast")] {
        let source = format!("{STATE_DIR}/{sub}");
        fs::create_dir_all(&source).with_context(|| format!("create {source}"))?;
        fs::create_dir_all(target).with_context(|| format!("create {target}"))?;
        mount_bind(&source, target).with_context(|| format!("mount {target}"))?;
    }
    Ok(())
}

/// Raises the limits like a container runtime or systemd does for a daemon; inherited by every program.
fn raise_limits() -> Result<()> {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let files = Rlimit { current: Some(1 << 20), maximum: Some(1 << 20) };
    setrlimit(Resource::Nofile, files).context("raise the limit of open files")?;
    let unlimited = Rlimit { current: None, maximum: None };
    setrlimit(Resource::Memlock, unlimited).context("raise the limit of locked memory")
}

/// Runs a tool before the reaper is started.
fn run_tool(command: &mut Command) -> Result<()> {
    crate::command::output(command.env("PATH", programs::PATH)).map(drop)
}
