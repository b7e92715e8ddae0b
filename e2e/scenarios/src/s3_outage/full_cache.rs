//! More data is written than fits in the node's cache: data in the store is evicted and read from there;
//! while the store is unreachable, so that nothing can be evicted, writes wait.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use holdfast_lab::node::NodeDaemon;
use holdfast_lab::report;
use holdfast_lab::s3::proxy::FaultProxy;
use holdfast_lab::vm::bash;
use holdfast_lab::wait::until;
use holdfast_lab::wire::Exit;
use holdfast_lab::world::World;

use super::{COLD, LIMIT, STORE_REACHABLE, WRITABLE, sum_of, wait_all_answer, wait_committed};
use crate::volumes::{release, reported, serve_all};

/// A cache of half the written size.
pub(super) const DATA: &str =
    "slab_size = \"64Mi\"\nseal_size = \"2Mi\"\nmax_dirty = \"64Mi\"\ncache_size = \"8Mi\"";
const CACHE_BYTES: u64 = 8 << 20;
const COLD_MIB: u32 = 4;
const WIDE_MIB: u32 = 12;
/// Written while the store is unreachable.
const WIDE: &str = "wide";
/// Directory of the node's volumes.
const LOCAL: &str = "/var/lib/holdfast/volumes";
/// Maximum wait for the report to the user.
const REPORT_LIMIT: Duration = Duration::from_secs(60);

/// Writes [`COLD`] and [`WIDE`]; returns the number of failed requests.
pub(super) fn overfill(world: &World, node: &NodeDaemon, proxy: &FaultProxy) -> Result<f64> {
    let vm = node.vm();
    let served = serve_all(world, node, &[(COLD, "16Mi"), (WIDE, "64Mi")])?;
    let (cold, wide) = (&served[COLD], &served[WIDE]);
    vm.exec(&format!(
        "head -c {COLD_MIB}M /dev/urandom > /tmp/{COLD}; head -c {WIDE_MIB}M /dev/urandom > /tmp/{WIDE}; \
         dd if=/tmp/{COLD} of={} bs=1M oflag=direct conv=fsync status=none",
        cold.device
    ))?;
    wait_committed(node, [cold])?;
    let before = reported(world, WIDE, WRITABLE)?;

    report::step("the store becomes unreachable; writes continue until the node's cache is full");
    proxy.make_unreachable();
    vm.spawn(
        "dd",
        &bash(&format!(
            "exec dd if=/tmp/{WIDE} of={} bs=1M oflag=direct conv=fsync status=none",
            wide.device
        )),
    )?;
    let full = until("the Volume to say that the cache is full", REPORT_LIMIT, || {
        let ended = vm.status("dd")?;
        ensure!(ended.is_none(), "dd ended: {ended:?} {}", vm.log("dd")?);
        let now = reported(world, WIDE, WRITABLE)?;
        Ok((now.status_and_reason == "False/CacheFull").then_some(now))
    })?;
    report::step(&full.message);
    ensure!(full.since > before.since, "{full:?} is not later than {before:?}");
    let away = reported(world, WIDE, STORE_REACHABLE)?;
    ensure!(away.status_and_reason == "False/StoreUnreachable", "nothing can be evicted, and {away:?}");
    let idle = reported(world, COLD, WRITABLE)?;
    ensure!(idle.status_and_reason == "True/Serving", "nothing is written to {COLD}, and {idle:?}");
    check_held(node)?;

    proxy.make_reachable();
    let exit = vm.wait("dd", LIMIT)?;
    ensure!(exit == Exit::Code(0), "dd ended by {exit:?}: {}", vm.log("dd")?);
    wait_all_answer(world)?;
    let after = reported(world, WIDE, WRITABLE)?;
    ensure!(after.since > full.since, "{after:?} is not later than {full:?}");
    wait_committed(node, [cold, wide])?;
    check_held(node)?;
    let fetched = sum_of(node, "holdfast_volume_cold_reads_total", [cold, wide])?;
    for (name, volume) in [(COLD, cold), (WIDE, wide)] {
        vm.exec(&format!("cmp -n $(stat -c %s /tmp/{name}) {} /tmp/{name}", volume.device))?;
    }
    until("reads from the store to be counted", LIMIT, || {
        Ok((sum_of(node, "holdfast_volume_cold_reads_total", [cold, wide])? > fetched).then_some(()))
    })?;
    let failed = sum_of(node, "holdfast_volume_failed_requests_total", served.values())?;
    world.kubectl(["delete", "volume", WIDE, "--timeout=300s"])?;
    release(world, COLD)?;
    Ok(failed)
}

/// Checks that the sides of all volumes stay within their limit on the node's disk.
fn check_held(node: &NodeDaemon) -> Result<()> {
    let local_bytes = node.vm().exec(&format!("du -cB1 {LOCAL}/*/[ab].data | tail -1"))?;
    let bytes: u64 =
        local_bytes.split_whitespace().next().unwrap_or_default().parse().context("bytes held")?;
    report::step(format_args!("the node's cache holds {bytes} bytes"));
    ensure!(bytes <= CACHE_BYTES, "the cache of {CACHE_BYTES} bytes holds {bytes}");
    Ok(())
}
