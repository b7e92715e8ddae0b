//! Keepers of machines without ublk.

use std::time::Duration;

use anyhow::{Result, ensure};
use holdfast_lab::vm::{Vm, bash};
use holdfast_lab::wait::until;

/// Maximum wait until a keeper serves.
const SERVE_LIMIT: Duration = Duration::from_secs(60);

/// Starts a keeper like the DaemonSet's container, and waits until it has `connections` or, without any,
/// until it responds.
pub(super) fn start_keeper(vm: &Vm, name: &'static str, connections: bool) -> Result<()> {
    let pid = vm.spawn(name, &bash("exec holdfast-node keeper"))?;
    let wanted = if connections { "/dev/fuse" } else { "socket:" };
    let has = format!("ls -l /proc/{pid}/fd | grep -q {wanted}");
    until("the keeper to serve", SERVE_LIMIT, || {
        ensure!(vm.status(name)?.is_none(), "the keeper ended: {}", vm.log(name)?);
        Ok(vm.exec(&has).ok())
    })?;
    Ok(())
}
