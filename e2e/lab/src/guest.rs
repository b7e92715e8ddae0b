//! The agent of a test machine: this same program, started by the initramfs as process 1. Where another
//! program is asked to be that, the agent becomes it, and is started again by it as a service.
//!
//! Owns: network and modules of the machine, as process 1 its mounts too; the programs it is asked to run.
//! Does not own: what is tested.
//! Runs on: one thread for each connection, one that reaps.
//! On failure: prints why on the console and turns the machine off, which the harness sees.

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

/// Kernel command line prefix: the machine's host name follows.
pub const NAME: &str = "holdfast.name=";
/// Kernel command line prefix: modules to load, separated by commas, follow.
pub const MODULES: &str = "holdfast.modules=";
/// Kernel command line prefix: the program that is to be process 1 in the agent's place follows.
pub const INIT: &str = "holdfast.init=";
/// It is there where systemd is process 1. Source: sd_booted(3).
const SYSTEMD: &str = "/run/systemd/system";
/// Mount point of the state disk, the machine's third; `holdfast` and `log` in it appear as
/// `/var/lib/holdfast` and `/var/log/holdfast`.
const STATE_DIR: &str = "/state";

/// Runs until the machine is turned off.
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
        say(wire::READY);
        for connection in listener.incoming() {
            let connection = connection.context("accept a connection")?;
            let programs = Arc::clone(&programs);
            std::thread::spawn(move || {
                // A connection that broke is the harness's to notice.
                drop(serve::serve(connection, &programs));
            });
        }
        Ok(())
    });
    if let Err(error) = &served {
        say(&format!("guest-agent: {error:#}"));
    }
    power_off()?;
    served
}

/// Writes everything out and turns the machine off.
///
/// # Errors
/// If the kernel refuses.
fn power_off() -> Result<()> {
    rustix::fs::sync();
    rustix::system::reboot(rustix::system::RebootCommand::PowerOff).context("turn the machine off")
}

/// Prints on the console; errors of a console that is gone are ignored.
fn say(line: &str) {
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

/// The mounts that every host has.
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

/// The addresses are those of QEMU's user network: the host's loopback is 10.0.2.2.
fn set_up_network() -> Result<()> {
    fs::write(
        "/run/network",
        "link set lo up\nlink set eth0 up\naddr add 10.0.2.15/24 dev eth0\nroute add default via 10.0.2.2\n",
    )
    .context("write the network's settings")?;
    // The name under which the host's servers are known on the host too.
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

/// Raises the limits as a container runtime or systemd would for a daemon; inherited by every program.
fn raise_limits() -> Result<()> {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let files = Rlimit { current: Some(1 << 20), maximum: Some(1 << 20) };
    setrlimit(Resource::Nofile, files).context("raise the limit of open files")?;
    let unlimited = Rlimit { current: None, maximum: None };
    setrlimit(Resource::Memlock, unlimited).context("raise the limit of locked memory")
}

/// Runs a tool before there is a reaper.
fn run_tool(command: &mut Command) -> Result<()> {
    crate::command::output(command.env("PATH", programs::PATH)).map(drop)
}
