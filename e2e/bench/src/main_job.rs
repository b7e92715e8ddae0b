//! Figures of the main job: S3 requests per step, costs of many volumes.
//!
//! The S3 server runs on the host, so its times are meaningless: the benchmark counts requests and subtracts
//! their time from measured times.

use anyhow::Result;
use holdfast_lab::report;
use holdfast_lab::world::World;

use super::Figure;
use super::daemon::DaemonBench;

mod many;
mod requests;

/// Delayed uploads: a volume is sealed only if it is detached, or attached with another age.
const HELD_BACK: &str = "slab_size = \"64Mi\"\nseal_size = \"2Gi\"\nmax_dirty_age = \"1h\"";
/// One seal per MiB written.
const SEAL_OFTEN: &str = "slab_size = \"64Mi\"\nseal_size = \"1Mi\"\nmax_dirty_age = \"1h\"";

pub(super) fn run(world: &World) -> Result<Vec<Figure>> {
    let mut bench = DaemonBench::start(world, SEAL_OFTEN)?;
    report::step("count the requests to S3");
    let mut figures = requests::measure(&mut bench)?;
    report::step("attach many volumes");
    figures.extend(many::measure(&bench)?);
    bench.vm.power_off()?;
    Ok(figures)
}
