//! Preflight: checks a node for a daemon with this configuration, before the daemon exists.
//!
//! Owns: the list of checks, and the verdict of each with its fix.
//! Does not own: the daemon's requirements. The checks call the functions that the daemon calls at its start.
//! Runs on: the thread of the command line. It works without a daemon, and while one runs.
//! Invariants: nothing stays. Directories, files and objects created by a check are removed at its end
//! (`docs/install.md` names the remains of a killed process).
//! On failure: a check that cannot determine something reports that as its verdict.

mod directories;
mod disk;
mod driver;
mod io_uring;
mod kernel;
mod memory;
mod store;

use futures::future::join_all;
use holdfast_crds::ByteSize;
use holdfast_ublk::{DeviceLimit, KernelRelease, become_io_flusher, is_in_host_pid_namespace};

use crate::config::{Config, Control};
use crate::node::is_held;

/// Result of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Check {
    /// Its name, for users.
    pub(crate) name: String,
    /// State of the node, as sentences without the final full stop.
    pub(crate) found: String,
    /// Consequence for a daemon.
    pub(crate) verdict: Verdict,
}

/// Consequence of a check's result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The daemon's requirement is met.
    Pass,
    /// A daemon serves, with a restriction or a risk.
    Warn {
        /// Action that removes it.
        fix: String,
    },
    /// A daemon would not serve, or not keep its guarantees.
    Fail {
        /// Action that removes the cause.
        fix: String,
    },
}

impl Verdict {
    /// Returns its name.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Pass => "PASS",
            Self::Warn { .. } => "WARN",
            Self::Fail { .. } => "FAIL",
        }
    }

    /// Returns the action to take, if any.
    pub(crate) fn fix(&self) -> Option<&str> {
        match self {
            Self::Pass => None,
            Self::Warn { fix } | Self::Fail { fix } => Some(fix),
        }
    }
}

impl Check {
    fn pass(name: &str, found: impl Into<String>) -> Self {
        Self { name: name.to_owned(), found: found.into(), verdict: Verdict::Pass }
    }

    fn warn(name: &str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { name: name.to_owned(), found: found.into(), verdict: Verdict::Warn { fix: fix.into() } }
    }

    fn fail(name: &str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { name: name.to_owned(), found: found.into(), verdict: Verdict::Fail { fix: fix.into() } }
    }
}

/// Runs all checks, in an order in which later ones can refer to earlier ones, and reports each at once.
pub(crate) async fn run(config: &Config, say: &mut dyn FnMut(Check)) {
    let Config { node, control, socket: _, metrics: _ } = config;
    let release = KernelRelease::running();
    say(kernel::check(release.as_ref()));
    say(kernel::check_pid_namespace(release.as_ref().ok(), is_in_host_pid_namespace()));
    let ring = io_uring::RingFacts::observe();
    say(io_uring::check(&ring));
    let driver = driver::DriverFacts::observe(release.ok(), ring.made.is_ok(), node);
    driver::check(&driver, node.transport).into_iter().for_each(&mut *say);
    kernel::check_device_limit(DeviceLimit::of_running_kernel()).into_iter().for_each(&mut *say);
    say(memory::check(&memory::MemoryFacts::observe(node)));
    say(memory::check_io_flusher(become_io_flusher()));
    say(check_daemon(is_held(&node.state_dir)));
    directories::check(node, say);
    match control {
        Control::Kubernetes => {
            say(Check::pass("stores", "ObjectStores name them, and the operator probes each"))
        }
        Control::Standalone(stores) => {
            // An unresponsive store does not delay the others.
            join_all(stores.iter().map(|(name, store)| store::check(name, store)))
                .await
                .into_iter()
                .for_each(say);
        }
    }
}

/// Another daemon is not a fault: the next one waits for it, or takes over from it.
fn check_daemon(is_held: std::io::Result<bool>) -> Check {
    let found = match is_held {
        Ok(false) => "none uses the state directory".to_owned(),
        Ok(true) => "one uses the state directory and serves this node. A second one waits until it has ended, or asks it \
                     to leave where it has a name (HOLDFAST_INSTANCE)"
            .to_owned(),
        Err(error) => format!("the lock of the state directory cannot be read ({error})"),
    };
    Check::pass("other daemon", found)
}

/// Rounds a size to the mebibyte, for users.
const fn about(bytes: u64) -> ByteSize {
    ByteSize(bytes >> 20 << 20)
}

#[cfg(test)]
mod tests;
