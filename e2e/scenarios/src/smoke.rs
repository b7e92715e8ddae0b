//! The test machine itself.

use std::time::Duration;

use anyhow::{Result, ensure};
use holdfast_lab::vm::bash;
use holdfast_lab::wire::Exit;
use holdfast_lab::world::World;

pub(super) fn run(world: &World) -> Result<()> {
    let vm = world.vm("a")?;
    let kernel =
        vm.exec("uname -r; test -c /dev/ublk-control; cat /sys/module/ublk_drv/parameters/ublks_max")?;
    // If Debian no longer has the series, the newest of its major version boots.
    let major = world.kernel().series().split('.').next().unwrap_or_default();
    ensure!(kernel.starts_with(&format!("{major}.")), "not a kernel {major}.x: {kernel}");

    let failed = vm.run(&bash("echo out; echo err >&2; exit 3"), Duration::from_secs(60))?;
    ensure!(
        (failed.exit, failed.stdout.as_str(), failed.stderr.as_str()) == (Exit::Code(3), "out\n", "err\n"),
        "the agent reports {failed:?}"
    );

    vm.spawn("sleeper", &bash("echo up; exec sleep 1000"))?;
    ensure!(vm.status("sleeper")?.is_none(), "the sleeper has ended");
    vm.signal("sleeper", 9)?;
    let exit = vm.wait("sleeper", Duration::from_secs(30))?;
    ensure!(exit == Exit::Signal(9), "the sleeper ended by {exit:?}");

    vm.put_file("/var/lib/holdfast/kept", 0o600, b"kept")?;
    vm.put_file("/var/lib/other", 0o600, b"lost")?;
    vm.exec("sync -f /var/lib/holdfast/kept")?;
    vm.reset()?;
    ensure!(vm.get("/var/lib/holdfast/kept")? == b"kept", "the state disk lost a file");
    ensure!(vm.get("/var/lib/other").is_err(), "the root disk kept a file");
    vm.power_off()
}
