//! kube-controller-manager, kube-scheduler and snapshot-controller on the host's loopback.

use std::fs;
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::control_plane::ControlPlane;
use crate::process::LoggedProcess;
use crate::setup::Toolbox;
use crate::setup::go::SNAPSHOT_PROGRAMS;
use crate::vm::machine::free_port;
use crate::wait::until;

/// Maximum wait until a component listens: it takes 3 s on a quiet machine.
const START_LIMIT: Duration = Duration::from_secs(60);

/// Name of Kubernetes' own controllers, including those of namespaces and claims.
const MANAGER: &str = "kube-controller-manager";

/// The controller manager and the scheduler, running.
#[derive(Debug)]
pub struct Controllers {
    _processes: [LoggedProcess; 2],
}

impl Controllers {
    /// Starts both, the controller manager with additional `flags`, and waits until they listen.
    ///
    /// # Errors
    /// If one cannot be built, or does not listen in time.
    pub fn start(toolbox: &Toolbox, control_plane: &ControlPlane, flags: &[&str]) -> Result<Self> {
        let manager = start_manager(toolbox, control_plane, flags)?;
        Ok(Self { _processes: [manager, start(toolbox, control_plane, "kube-scheduler", &[])?] })
    }
}

/// Starts the controller manager with additional `flags`, and waits until it listens.
pub(super) fn start_manager(
    toolbox: &Toolbox,
    control_plane: &ControlPlane,
    flags: &[&str],
) -> Result<LoggedProcess> {
    let dir = control_plane.dir();
    let authority = format!("--root-ca-file={}", dir.join("ca.crt").display());
    let key = format!("--service-account-private-key-file={}", dir.join("service-accounts.key").display());
    let more = [&["--use-service-account-credentials=true", &authority, &key], flags].concat();
    start(toolbox, control_plane, MANAGER, &more)
}

/// Starts the component `name` with additional arguments, and waits until it listens.
fn start(
    toolbox: &Toolbox,
    control_plane: &ControlPlane,
    name: &str,
    more: &[&str],
) -> Result<LoggedProcess> {
    let dir = control_plane.dir();
    let config = dir.join(format!("{name}.kubeconfig"));
    // No role is bound to a group of that name, only to the user.
    let user = format!("system:{name}");
    let text = control_plane.component_kubeconfig(&user, &user, "127.0.0.1")?;
    fs::write(&config, text).with_context(|| format!("write the kubeconfig of {name}"))?;
    let port = free_port()?;
    let mut command = Command::new(toolbox.kubernetes(name)?);
    for flag in ["kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"] {
        command.arg(format!("--{flag}={}", config.display()));
    }
    command
        .args(["--bind-address=127.0.0.1", "--leader-elect=false", "--profiling=false"])
        .arg(format!("--secure-port={port}"))
        .args(more);
    let mut process = LoggedProcess::spawn(name, &command, &dir.join(format!("{name}.log")))?;
    until(&format!("{name} to listen"), START_LIMIT, || {
        process.check_running()?;
        Ok(TcpStream::connect(("127.0.0.1", port)).ok())
    })?;
    Ok(process)
}

/// Starts the controller of snapshots and group snapshots, as an administrator. Their CRDs must exist.
pub(super) fn start_snapshots(toolbox: &Toolbox, control_plane: &ControlPlane) -> Result<LoggedProcess> {
    let [_, name] = SNAPSHOT_PROGRAMS;
    let mut command = Command::new(toolbox.sidecar(name)?);
    command
        .arg(format!("--kubeconfig={}", control_plane.admin_kubeconfig().display()))
        // Disabled by default before 8.7.
        .arg("--feature-gates=CSIVolumeGroupSnapshot=true");
    LoggedProcess::spawn(name, &command, &control_plane.dir().join(format!("{name}.log")))
}
