//! A node as people have it: systemd, udev, LVM, md, multipath and btrfs run beside the daemon.

use anyhow::{Result, ensure};
use holdfast_lab::node::{Control, Node};
use holdfast_lab::vm::machine::Options;
use holdfast_lab::world::World;

const BUCKET: &str = "host";

pub(super) fn run(world: &World) -> Result<()> {
    let vm = world.vm_with("a", Options::systemd)?;
    let found = vm.exec("cat /proc/1/comm; systemctl is-active systemd-udevd multipathd lvm2-monitor")?;
    ensure!(found == "systemd\nactive\nactive\nactive\n", "not a host with its daemons: {found}");
    let s3 = world.s3()?;
    s3.create_bucket(BUCKET)?;
    let node = Node::start(vm, &Control::standalone(&s3, BUCKET), "auto", "")?;
    node.cli(&["create", "disk", "--size", "256Mi", "--store", "store"])?;
    node.cli(&["attach", "disk", "--store", "store"])?;
    node.cli(&["detach", "disk"])?;
    Ok(())
}
