//! The store is away for minutes while volumes are written: nothing fails, writes wait at the quota, flushes go on, cold
//! reads wait. When it is back everything catches up, and not all at once.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::load::Load;
use crate::node::{Control, Node};
use crate::report;
use crate::s3::proxy::FaultProxy;
use crate::vm::bash;
use crate::wait::until;
use crate::wire::Exit;
use crate::world::World;

const BUCKET: &str = "outage";
/// Under verified load all the time.
const BUSY: &str = "busy";
/// Written a little during the outage.
const CALM: [&str; 6] = ["calm-1", "calm-2", "calm-3", "calm-4", "calm-5", "calm-6"];
/// Only in the store when that goes away.
const COLD: &str = "cold";
/// A small quota: the load reaches it soon.
const DATA: &str = "slab_size = \"64Mi\"\nseal_size = \"2Mi\"\nmost_dirty = \"8Mi\"\nmax_dirty_age = \"2s\"";
/// How long the store stays away in the scenario, in real time, once writes wait.
const SHORT: Duration = Duration::from_secs(45);
/// Longer than the scenario, in seconds of the machine's time.
const LOAD_SECONDS: u32 = 3600;
const LIMIT: Duration = Duration::from_secs(300);
const DEVICE_LIMIT: Duration = Duration::from_secs(60);
/// Attempts to reach a store that is away, a second, of all volumes together: one is made every half a second.
const MOST_ATTEMPTS_A_SECOND: f64 = 2.5;
/// Requests in the first second of a store that came back, and under way at once: eight volumes wait for it.
const MOST_AT_ONCE: usize = 16;

pub(super) fn run(world: &World) -> Result<()> {
    let errors = outage(world, SHORT)?;
    ensure!(errors == 0, "{errors} requests failed");
    Ok(())
}

/// Plays it with the store away for `away` and returns how many requests of guests failed.
///
/// # Errors
/// What else a user would have noticed.
pub fn outage(world: &World, away: Duration) -> Result<u64> {
    let s3 = world.s3()?;
    s3.create_bucket(BUCKET)?;
    let proxy = FaultProxy::start(s3.port())?;
    let control = Control::Standalone { endpoint: proxy.endpoint_in_vm(), bucket: BUCKET.to_owned() };
    let node = Node::start(world.vm("a")?, &control, "auto", DATA)?;
    let vm = node.vm();
    let sum = make_cold(&node)?;
    let cold = attach(&node, COLD)?;
    let busy = create(&node, BUSY, "128Mi")?;
    let calm = CALM.map(|name| create(&node, name, "16Mi")).into_iter().collect::<Result<Vec<_>>>()?;
    // All of it is on the node: a read of what was never written would ask the store whether it has it.
    vm.exec(&format!("dd if=/dev/zero of={busy} bs=1M count=64 oflag=direct conv=fsync status=none"))?;
    let load = Load::start(vm, &busy, LOAD_SECONDS)?;

    report::step("the store goes away; writes go on to the quota and wait there");
    proxy.go_away();
    for device in &calm {
        // Written and flushed while the store is away.
        vm.exec(&format!(
            "dd if=/dev/urandom of={device} bs=64k count=4 oflag=direct conv=fsync status=none"
        ))?;
    }
    until("writes that wait at the quota", LIMIT, || {
        load.check()?;
        let delayed = node.metric("holdfast_volume_writes_delayed_seconds", BUSY)?;
        Ok((delayed > Some(0.0)).then_some(()))
    })?;
    vm.spawn(
        "cold-read",
        &bash(&format!("dd if={cold} bs=1M count=4 iflag=direct status=none | sha256sum")),
    )?;
    let from = (Instant::now(), proxy.turned_away());
    let mut flushes = 0;
    while from.0.elapsed() < away {
        // A flush of what is on the node already, beside writes that wait.
        vm.exec(&format!(
            "sync {busy}; dd if=/dev/urandom of={} bs=4k count=1 oflag=direct conv=fsync,notrunc status=none",
            calm[0]
        ))?;
        flushes += 1;
    }
    ensure!(vm.status("cold-read")?.is_none(), "a cold read ended while the store was away");
    let oldest = node.metric("holdfast_volume_oldest_dirty_seconds", BUSY)?.unwrap_or(0.0);
    ensure!(oldest >= away.as_secs_f64(), "the oldest dirty data is {oldest} s old");
    for name in [BUSY, CALM[0]] {
        let told = node.metric("holdfast_volume_store_away_seconds", name)?;
        ensure!(told >= Some(away.as_secs_f64()), "{name} says that the store is away for {told:?} s");
    }
    let delayed = node.metric("holdfast_volume_writes_delayed_seconds", BUSY)?;
    ensure!(delayed > Some(0.0), "the volume does not say that its writes wait: {delayed:?}");
    let attempts = proxy.turned_away() - from.1;
    let a_second = attempts as f64 / from.0.elapsed().as_secs_f64();
    report::step(format_args!(
        "{flushes} flushes went on; {a_second:.1} attempts a second to reach the store"
    ));
    ensure!(
        a_second <= MOST_ATTEMPTS_A_SECOND,
        "{a_second:.1} attempts a second to reach a store that is away"
    );

    report::step("the store is back");
    let back = Instant::now();
    proxy.come_back();
    let exit = vm.wait("cold-read", LIMIT)?;
    ensure!(exit == Exit::Code(0) && vm.log("cold-read")? == sum, "the cold read ended by {exit:?}");
    load.goes_on()?;
    until("everything to be committed", LIMIT, || {
        for name in CALM {
            for figure in ["holdfast_volume_dirty_bytes", "holdfast_volume_store_away_seconds"] {
                if node.metric(figure, name)? != Some(0.0) {
                    return Ok(None);
                }
            }
        }
        Ok(Some(()))
    })?;
    check_return(&proxy, back)?;
    load.stop()?;

    let mut errors = 0.0;
    for name in CALM.into_iter().chain([BUSY, COLD]) {
        errors += node.metric("holdfast_volume_failed_requests_total", name)?.unwrap_or(0.0);
        node.cli(&["detach", name])?;
    }
    node.terminate()?;
    Ok(errors as u64)
}

/// A volume with data that only the store has; returns the sum of its first bytes.
fn make_cold(node: &Node) -> Result<String> {
    let device = create(node, COLD, "16Mi")?;
    let sum = node.vm().exec(&format!(
        "head -c 4M /dev/urandom > /tmp/cold; dd if=/tmp/cold of={device} bs=1M oflag=direct conv=fsync status=none; \
         sha256sum < /tmp/cold"
    ))?;
    node.cli(&["detach", COLD])?;
    node.terminate()?;
    node.vm().exec("rm -r /var/lib/holdfast/*")?;
    node.restart()?;
    Ok(sum)
}

/// How the node fell upon the store that came back.
fn check_return(proxy: &FaultProxy, back: Instant) -> Result<()> {
    let since: Vec<_> = proxy.passed().into_iter().filter(|passed| passed.at >= back).collect();
    let first = since.iter().filter(|passed| passed.at - back <= Duration::from_secs(1)).count();
    let at_once = since.iter().map(|passed| passed.under_way).max().unwrap_or(0);
    report::step(format_args!("{first} requests in its first second, at most {at_once} at once"));
    ensure!(
        first <= MOST_AT_ONCE && at_once <= MOST_AT_ONCE,
        "a herd: {first} requests in the first second, at most {at_once} at once"
    );
    Ok(())
}

fn create(node: &Node, name: &str, size: &str) -> Result<String> {
    node.cli(&["create", name, "--size", size, "--store", "store"])?;
    attach(node, name)
}

fn attach(node: &Node, name: &str) -> Result<String> {
    let device = node.cli(&["attach", name, "--store", "store"])?.trim().to_owned();
    node.vm().wait_block_device(&device, DEVICE_LIMIT)?;
    Ok(device)
}
