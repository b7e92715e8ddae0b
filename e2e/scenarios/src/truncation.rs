//! A log is truncated while two paused hosts know only an older part of it: the replaced writer, and one that
//! is about to replace its successor. Neither damages the volume, and the second one serves the newest state.

use std::time::Duration;

use anyhow::{Result, ensure};
use holdfast_lab::node::{ControlInterface, NodeDaemon, PROGRAM};
use holdfast_lab::report;
use holdfast_lab::s3::proxy::{FaultProxy, ProxyFault, Rule};
use holdfast_lab::vm::Vm;
use holdfast_lab::wait::until;
use holdfast_lab::wire::{Exit, GuestProgram};
use holdfast_lab::world::World;

const BUCKET: &str = "truncation";
const VOLUME: &str = "disk";
/// Flushes that are a commit each: enough for the second newest checkpoint to reach the first marker, at 64.
const COMMITS: u32 = 110;
/// Upper bound of the remaining records.
const KEPT: usize = 64;
/// Delay of a create by the proxy, so that the test can make it hold that request.
const CREATE_DELAY: Duration = Duration::from_secs(4);
const LIMIT: Duration = Duration::from_secs(300);
const SIGCONT: i32 = 18;
const SIGSTOP: i32 = 19;

pub(super) fn run(world: &World) -> Result<()> {
    let s3 = world.s3()?;
    s3.create_bucket(BUCKET)?;
    let proxy = FaultProxy::start(s3.port())?;
    let direct = ControlInterface::standalone(&s3, BUCKET);
    let proxied =
        ControlInterface::Standalone { endpoint: proxy.endpoint_in_vm(), bucket: BUCKET.to_owned() };

    report::step("node a writes, and is paused");
    let a = NodeDaemon::start(world.vm("a")?, &direct, "auto", "")?;
    a.cli(&["create", VOLUME, "--size", "16Mi", "--store", "store"])?;
    let device = attach(&a, &["--max-dirty-age", "1h"])?;
    write(a.vm(), &device, "900")?;
    a.vm().signal(PROGRAM, SIGSTOP)?;

    report::step("node b takes over");
    let b = NodeDaemon::start(world.vm("b")?, &direct, "auto", "")?;
    let device = attach(&b, &["--take-over", "1", "--durability", "object"])?;
    let taken = s3.keys(BUCKET, &log_prefix())?.len();

    report::step("node c has read the log, and is paused before it creates its record");
    let c = NodeDaemon::start(world.vm("c")?, &proxied, "auto", "")?;
    let next = format!("{}{:020}", log_prefix(), taken + 1);
    pause_in_create(&c, &proxy, &next)?;

    report::step(format_args!("node b flushes {COMMITS} times, and truncates"));
    write(b.vm(), &device, &format!("$(seq {COMMITS})"))?;
    let sum = sum(b.vm(), &device)?;
    until("the log to be truncated", LIMIT, || {
        Ok((s3.keys(BUCKET, &log_prefix())?.len() < KEPT).then_some(()))
    })?;
    ensure!(s3.keys(BUCKET, &next)?.is_empty(), "{next} was not truncated");
    let markers = s3.keys(BUCKET, &format!("volumes/{VOLUME}/truncated/"))?;
    ensure!(markers == [format!("volumes/{VOLUME}/truncated/{:020}", 64)], "markers: {markers:?}");

    report::step("node a resumes: it is fenced");
    a.vm().signal(PROGRAM, SIGCONT)?;
    let refused = a.cli(&["detach", VOLUME]).err().map(|error| format!("{error:#}")).unwrap_or_default();
    ensure!(refused.contains("`holdfast-node fenced list` shows"), "{refused}");
    a.terminate()?;

    report::step(
        "node c resumes: its create succeeds at the position of a truncated record, which does not count as an attach",
    );
    proxy.release();
    until("the late create", LIMIT, || Ok((!s3.keys(BUCKET, &next)?.is_empty()).then_some(())))?;
    c.vm().signal(PROGRAM, SIGCONT)?;
    let exit = c.vm().wait("attach", LIMIT)?;
    ensure!(exit == Exit::Code(0), "attach ended by {exit:?}: {}", c.vm().log("attach")?);
    // The output also names the replaced writer.
    let device = c.vm().log("attach")?.lines().last().unwrap_or_default().trim().to_owned();
    c.vm().wait_block_device(&device, LIMIT)?;
    let read = self::sum(c.vm(), &device)?;
    ensure!(read == sum, "node c reads {read}, node b flushed {sum}");
    let fenced = b.cli(&["detach", VOLUME]).err().map(|error| format!("{error:#}")).unwrap_or_default();
    ensure!(fenced.contains("fenced"), "node b was not fenced: {fenced:?}");
    c.cli(&["detach", VOLUME])?;
    let scrubbed = c.cli(&["scrub", VOLUME, "--store", "store"])?;
    report::step(format_args!("a scrub says\n{scrubbed}"));
    b.terminate()?;
    c.terminate()
}

/// Returns the prefix of the volume's log.
fn log_prefix() -> String {
    format!("volumes/{VOLUME}/log/")
}

/// Begins to attach the volume on the node, and pauses the daemon while the proxy holds the create of
/// `record`.
fn pause_in_create(node: &NodeDaemon, proxy: &FaultProxy, record: &str) -> Result<()> {
    proxy.set_rules(vec![Rule {
        method: Some("PUT"),
        target: record.to_owned(),
        first_only: true,
        fault: ProxyFault::Delay(CREATE_DELAY),
    }]);
    let words = ["holdfast-node", "attach", VOLUME, "--store", "store", "--take-over", "2"];
    node.vm().spawn(
        "attach",
        &GuestProgram { argv: words.map(str::to_owned).to_vec(), ..GuestProgram::default() },
    )?;
    until("its create", LIMIT, || {
        Ok(proxy.received().iter().any(|request| request.fault.is_some()).then_some(()))
    })?;
    node.vm().signal(PROGRAM, SIGSTOP)?;
    proxy.hold_requests()
}

fn attach(node: &NodeDaemon, options: &[&str]) -> Result<String> {
    let device = node.cli(&[&["attach", VOLUME, "--store", "store"], options].concat())?.trim().to_owned();
    node.vm().wait_block_device(&device, LIMIT)?;
    Ok(device)
}

/// Writes noise to these blocks and flushes after each.
fn write(vm: &Vm, device: &str, blocks: &str) -> Result<()> {
    vm.exec(&format!(
        "for block in {blocks}; do \
         dd if=/dev/urandom of={device} bs=4k count=1 seek=$block oflag=direct conv=fsync,notrunc status=none; done"
    ))
    .map(drop)
}

fn sum(vm: &Vm, device: &str) -> Result<String> {
    vm.exec(&format!("dd if={device} bs=1M iflag=direct status=none | sha256sum"))
}
