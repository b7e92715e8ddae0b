//! The load generator `node/ublk/examples/load.rs` in a test machine.
//!
//! It writes directly from the memory of a file, so writes have the bytes of a corpus; fio fills its buffers
//! with one pattern, or generates them at the machine's expense.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use holdfast_lab::vm::{Vm, bash};
use holdfast_lab::wire::Exit;

/// Time limit of one load on the host.
const LIMIT: Duration = Duration::from_secs(900);

/// Orders of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PlaceOrder {
    Random,
    Sequential,
}

/// Requests to one device.
#[derive(Debug, Clone, Copy)]
pub(super) struct DeviceLoad {
    pub(super) write: bool,
    pub(super) order: PlaceOrder,
    pub(super) block_bytes: u64,
    pub(super) depth: u32,
    pub(super) requests: u64,
}

impl DeviceLoad {
    /// Sends the requests. Returns requests per second of the machine's time.
    pub(super) fn run(&self, vm: &Vm, device: &str, corpus: &str) -> Result<f64> {
        let nanoseconds = self.send(vm, device, corpus, "")?;
        Ok(self.requests as f64 / (nanoseconds / 1e9))
    }

    fn send(&self, vm: &Vm, device: &str, corpus: &str, more: &str) -> Result<f64> {
        let Self { write, order, block_bytes, depth, requests } = self;
        let write = if *write { "--write" } else { "" };
        let random = if *order == PlaceOrder::Random { "--random" } else { "" };
        let script = format!(
            "exec load --device {device} --corpus {corpus} {write} {random} {more} --block-bytes {block_bytes} \
             --depth {depth} --requests {requests}"
        );
        let done = vm.run(&bash(&script), LIMIT)?;
        ensure!(done.exit == Exit::Code(0), "{script}: {:?}\n{}{}", done.exit, done.stdout, done.stderr);
        done.stdout.trim().parse().with_context(|| format!("{script} printed {:?}", done.stdout))
    }
}

/// Returns requests to the whole device, in order.
fn whole(write: bool, device_bytes: u64) -> DeviceLoad {
    let block_bytes = 1 << 20;
    DeviceLoad {
        write,
        order: PlaceOrder::Sequential,
        block_bytes,
        depth: 8,
        requests: device_bytes / block_bytes,
    }
}

/// Writes the whole corpus.
pub(super) fn fill(vm: &Vm, device: &str, corpus: &str, device_bytes: u64) -> Result<()> {
    whole(true, device_bytes).send(vm, device, corpus, "").map(drop)
}

/// Compares the whole device with the corpus.
pub(super) fn check(vm: &Vm, device: &str, corpus: &str, device_bytes: u64) -> Result<()> {
    whole(false, device_bytes).send(vm, device, corpus, "--check").map(drop)
}
