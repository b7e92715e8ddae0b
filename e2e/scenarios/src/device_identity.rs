//! The kernel gives the number of a deleted device to the next one. A daemon that dies at the worst moment
//! leaves records of both: each volume still keeps its own device. Another program stops a device.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use holdfast_lab::node::{ControlInterface, NodeDaemon, SIGKILL};
use holdfast_lab::report;
use holdfast_lab::s3::proxy::{FaultProxy, ProxyFault, Rule};
use holdfast_lab::vm::bash;
use holdfast_lab::wait::until;
use holdfast_lab::wire::GuestProgram;
use holdfast_lab::world::World;

const BUCKET: &str = "identity";
const DEVICE: &str = "/dev/ublkb0";
const LIMIT: Duration = Duration::from_secs(120);
/// Text that is repeatedly written to each volume.
const MARKS: [(&str, &str); 2] = [("x", "mark-of-x"), ("y", "mark-of-y")];

pub(super) fn run(world: &World) -> Result<()> {
    let s3 = world.s3()?;
    s3.create_bucket(BUCKET)?;
    let proxy = FaultProxy::start(s3.port())?;
    let control =
        ControlInterface::Standalone { endpoint: proxy.endpoint_in_vm(), bucket: BUCKET.to_owned() };
    world.share(&world.programs()?.join("examples/stop_device"), "bin/stop-device")?;
    let node = NodeDaemon::start(world.vm("a")?, &control, "auto", "")?;
    for (volume, _) in MARKS {
        node.cli(&["create", volume, "--size", "64Mi", "--store", "store"])?;
    }
    report::step(
        "the daemon is killed when the device of a volume that it detaches has gone; the store is unreachable",
    );
    attach(&node, "x")?;
    write_mark(&node, 0)?;
    reject_requests_of(&proxy, "x");
    kill_when_device_disappears(&node)?;
    node.restart()?;
    until("x to resume its detach", LIMIT, || Ok(has_state(&node, "x", "Detaching")?.then_some(())))?;

    report::step("another volume gets the number; the daemon ends twice more");
    attach(&node, "y")?;
    write_mark(&node, 1)?;
    node.kill()?;
    node.restart()?;
    wait_y_served(&node)?;
    node.terminate()?;
    node.restart()?;
    wait_y_served(&node)?;

    report::step("the store answers: the first volume is released, and the other one is still served");
    proxy.set_rules(Vec::new());
    until("x to be released", LIMIT, || Ok((!node.cli(&["list"])?.contains("\nx ")).then_some(())))?;
    wait_y_served(&node)?;

    report::step("a detach is rejected while the attach commits the data of a lost host");
    reject_requests_of(&proxy, "y");
    write_mark(&node, 1)?;
    node.vm().reset()?;
    node.restart()?;
    let attaching = GuestProgram {
        argv: ["holdfast-node", "attach", "y", "--store", "store"].map(str::to_owned).to_vec(),
        ..GuestProgram::default()
    };
    proxy.set_rules(vec![rule("y", Some("PUT"), "segments")]);
    node.vm().spawn("attach", &attaching)?;
    until("y to commit", LIMIT, || Ok(node.cli(&["list"])?.contains("left dirty").then_some(())))?;
    let refused = node.cli(&["detach", "y"]).err().context("y was detached while it was attached")?;
    ensure!(format!("{refused:#}").contains("volume y is being attached on this node"), "{refused:#}");
    proxy.set_rules(Vec::new());
    node.vm().wait("attach", LIMIT)?;
    wait_y_served(&node)?;

    check_foreign_stop(&node)?;

    report::step("a device that a program has open is not detached");
    node.vm().spawn("holder", &bash(&format!("exec 9<{DEVICE}; echo held; exec sleep 600")))?;
    node.vm().wait_log("holder", "held", LIMIT)?;
    let refused = node.cli(&["detach", "y"]).err().context("the device was taken from below its user")?;
    ensure!(format!("{refused:#}").contains("in use"), "{refused:#}");
    wait_y_served(&node)?;
    node.vm().signal("holder", SIGKILL)?;
    node.vm().wait("holder", LIMIT)?;
    node.cli(&["detach", "y"])?;
    node.vm().exec("! ls /dev/ublkb* /dev/ublkc* 2>/dev/null")?;
    node.terminate()
}

/// Another program stops the device of `y`, then deletes it: the volume is unserved, and after a detach and
/// an attach it is served with its data.
fn check_foreign_stop(node: &NodeDaemon) -> Result<()> {
    for options in ["", " --delete"] {
        report::step(format_args!("another program runs stop-device{options}"));
        node.vm().exec(&format!("stop-device{options} 0; ! test -e {DEVICE}"))?;
        let refused = node.cli(&["attach", "y", "--store", "store"]).err();
        let refused = refused.context("y counts as attached without its device")?;
        ensure!(has_state(node, "y", "Unserved")?, "{refused:#}\n{}", node.cli(&["list"])?);
        node.cli(&["detach", "y"])?;
        attach(node, "y")?;
        wait_y_served(node)?;
    }
    Ok(())
}

/// Makes the store reject all requests about a volume.
fn reject_requests_of(proxy: &FaultProxy, volume: &str) {
    proxy.set_rules(vec![rule(volume, None, ""), rule(volume, None, "%2F")]);
}

fn rule(volume: &str, method: Option<&'static str>, part: &str) -> Rule {
    let target = match part {
        "%2F" => format!("volumes%2F{volume}%2F"),
        part => format!("volumes/{volume}/{part}"),
    };
    Rule { method, target, first_only: false, fault: ProxyFault::SlowDown }
}

fn attach(node: &NodeDaemon, volume: &str) -> Result<()> {
    let device = node.cli(&["attach", volume, "--store", "store"])?;
    ensure!(device.trim() == DEVICE, "{volume} got {device}");
    node.vm().wait_block_device(DEVICE, LIMIT)
}

fn write_mark(node: &NodeDaemon, number: usize) -> Result<()> {
    let (_, mark) = MARKS[number];
    node.vm().exec(&format!(
        "yes {mark} | head -c 65536 > /tmp/{mark} || true; \
         dd if=/tmp/{mark} of={DEVICE} bs=64k oflag=direct conv=fsync,notrunc status=none"
    ))?;
    check_mark(node, number)
}

/// Checks that the device holds the mark of this volume, bypassing the page cache.
fn check_mark(node: &NodeDaemon, number: usize) -> Result<()> {
    let (volume, mark) = MARKS[number];
    let read = format!(
        "yes {mark} | head -c 65536 > /tmp/{mark} || true; \
         dd if={DEVICE} bs=64k count=1 iflag=direct status=none | cmp - /tmp/{mark}"
    );
    node.vm().exec(&read).with_context(|| format!("{DEVICE} does not hold what {volume} was given")).map(drop)
}

/// Detaches `x`, and kills the daemon at the moment when the block device disappears.
fn kill_when_device_disappears(node: &NodeDaemon) -> Result<()> {
    let killer = format!(
        "pid=$(pgrep -x holdfast-node); echo ready; while test -e {DEVICE}; do :; done; kill -9 $pid"
    );
    node.vm().spawn("killer", &bash(&killer))?;
    node.vm().wait_log("killer", "ready", LIMIT)?;
    let detach = GuestProgram {
        argv: ["holdfast-node", "detach", "x"].map(str::to_owned).to_vec(),
        ..GuestProgram::default()
    };
    node.vm().spawn("detach", &detach)?;
    node.vm().wait(holdfast_lab::node::PROGRAM, LIMIT)?;
    node.vm().wait("killer", LIMIT)?;
    node.vm().wait("detach", LIMIT).map(drop)
}

fn has_state(node: &NodeDaemon, volume: &str, state: &str) -> Result<bool> {
    let list = node.cli(&["list"])?;
    Ok(list.lines().any(|line| {
        let mut words = line.split_whitespace();
        words.next() == Some(volume) && words.next() == Some(state)
    }))
}

fn wait_y_served(node: &NodeDaemon) -> Result<()> {
    until("y to be served", LIMIT, || Ok(has_state(node, "y", "Attached")?.then_some(())))?;
    let list = node.cli(&["list"])?;
    let owners: Vec<&str> = list.lines().filter(|line| line.contains(DEVICE)).collect();
    ensure!(owners.len() == 1 && owners[0].starts_with("y "), "{list}");
    check_mark(node, 1)
}
