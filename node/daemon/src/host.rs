//! Detects shutdowns of the host, by asking its process 1 when the daemon is to exit.
//!
//! ```text
//! /proc/1/comm                                  systemd-shutdow: the last phase, all processes get SIGTERM
//! /proc/1/root/run/systemd/private              SystemState `stopping`: the phase in which units are stopped
//! /proc/1/root/run/dbus/system_bus_socket       PreparingForShutdown: before both, while a kubelet ends its pods
//! ```
//!
//! The paths lead to the host's files even from a privileged pod with `hostPID`, without a mount.
//! Owns: the detection.
//! Does not own: the reaction (`node/volume/release_all.rs`).
//! On failure: a sign that cannot be read is ignored. If process 1 is not systemd, no shutdown is detected.

mod dbus;

use std::path::Path;
use std::time::Duration;

use dbus::{Peer, Property, Value};

/// Process 1 of the host, as this process sees it.
const INIT: &str = "/proc/1";
/// Its name after systemd has executed systemd-shutdown(8), truncated to the kernel's maximum.
const LAST_PHASE: &str = "systemd-shutdow";
/// Maximum wait for a response.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// Source: org.freedesktop.systemd1(5).
const SYSTEM_STATE: Property = Property {
    destination: "org.freedesktop.systemd1",
    path: "/org/freedesktop/systemd1",
    interface: "org.freedesktop.systemd1.Manager",
    name: "SystemState",
};
/// Source: org.freedesktop.login1(5).
const PREPARING: Property = Property {
    destination: "org.freedesktop.login1",
    path: "/org/freedesktop/login1",
    interface: "org.freedesktop.login1.Manager",
    name: "PreparingForShutdown",
};

/// Phase of the host's shutdown or restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HostShutdown {
    /// logind delays it. The kubelet ends its pods, those of this class last.
    Prepared,
    /// systemd stops all units at once, and unmounts file systems.
    Stopping,
    /// systemd-shutdown(8) ends all processes, and unmounts file systems afterwards.
    LastPhase,
}

impl HostShutdown {
    /// Returns the time within which devices must become unused by the unmounts in progress.
    pub(crate) fn unused_within(self) -> Duration {
        match self {
            // The kubelet often gives its critical pods at most ten seconds after all others have ended.
            Self::Prepared => Duration::from_secs(7),
            // The default grace period of a pod. systemd kills after 90 seconds.
            Self::Stopping => Duration::from_secs(30),
            // Nothing is unmounted before this process has exited.
            Self::LastPhase => Duration::from_secs(7),
        }
    }
}

/// Returns the phase of the host's shutdown or restart; `None` if it is not shutting down.
pub(crate) async fn shutdown() -> Option<HostShutdown> {
    shutdown_by(Path::new(INIT)).await
}

async fn shutdown_by(init: &Path) -> Option<HostShutdown> {
    let name = std::fs::read_to_string(init.join("comm")).unwrap_or_default();
    if name.trim_end() == LAST_PHASE {
        return Some(HostShutdown::LastPhase);
    }
    let run = init.join("root/run");
    let state = asked(&run.join("systemd/private"), Peer::Direct, &SYSTEM_STATE).await;
    if state == Some(Value::Text("stopping".to_owned())) {
        return Some(HostShutdown::Stopping);
    }
    let prepared = asked(&run.join("dbus/system_bus_socket"), Peer::Bus, &PREPARING).await;
    (prepared == Some(Value::Flag(true))).then_some(HostShutdown::Prepared)
}

async fn asked(socket: &Path, peer: Peer, property: &Property) -> Option<Value> {
    let answer = tokio::time::timeout(ANSWER_WITHIN, dbus::get(socket, peer, property)).await;
    let error = match answer {
        Ok(Ok(value)) => return Some(value),
        Ok(Err(error)) => error,
        Err(elapsed) => elapsed.into(),
    };
    tracing::debug!(socket = %socket.display(), %error, property.name, "the host was not asked");
    None
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::dbus::tests::{answer, serve};
    use super::*;

    /// Fakes a process 1 with this name, and sockets that answer these values; `None`: no socket.
    async fn host(name: &str, state: Option<&str>, preparing: Option<bool>) -> Option<HostShutdown> {
        let init = tempfile::tempdir().unwrap();
        let socket = |path: &str| -> PathBuf {
            let socket = init.path().join("root/run").join(path);
            fs::create_dir_all(socket.parent().unwrap()).unwrap();
            socket
        };
        fs::write(init.path().join("comm"), format!("{name}\n")).unwrap();
        if let Some(state) = state {
            serve(&socket("systemd/private"), vec![answer(&Value::Text(state.to_owned()))]);
        }
        if let Some(preparing) = preparing {
            // The bus first answers with a name.
            let name = answer(&Value::Text(":1.7".to_owned()));
            serve(&socket("dbus/system_bus_socket"), vec![name, answer(&Value::Flag(preparing))]);
        }
        shutdown_by(init.path()).await
    }

    #[tokio::test]
    async fn each_phase_of_a_shutdown_is_seen() {
        for (name, state, preparing, expected) in [
            ("systemd", Some("running"), Some(false), None),
            ("systemd", Some("degraded"), None, None),
            ("systemd", Some("running"), Some(true), Some(HostShutdown::Prepared)),
            ("systemd", Some("stopping"), None, Some(HostShutdown::Stopping)),
            ("systemd", Some("stopping"), Some(true), Some(HostShutdown::Stopping)),
            ("systemd-shutdow", None, None, Some(HostShutdown::LastPhase)),
            ("init", None, None, None),
        ] {
            assert_eq!(host(name, state, preparing).await, expected, "{name} {state:?} {preparing:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_that_does_not_answer_holds_up_no_end() {
        let init = tempfile::tempdir().unwrap();
        let socket = init.path().join("root/run/systemd/private");
        fs::create_dir_all(socket.parent().unwrap()).unwrap();
        let _silent = tokio::net::UnixListener::bind(&socket).unwrap();
        assert_eq!(shutdown_by(init.path()).await, None);
    }
}
