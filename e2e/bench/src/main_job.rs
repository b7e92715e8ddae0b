//! The main job's figures: S3 requests of each step, costs of many volumes.
//!
//! The S3 server runs on the host: how long it takes means nothing, so requests are counted and their time is
//! taken out of what is timed.

use anyhow::Result;
use holdfast_lab::report;
use holdfast_lab::world::World;

use super::Figure;
use super::daemon::Bench;

mod many;
mod requests;

/// Uploads held back: nothing is sealed unless a volume is detached or attached with another age.
const HELD_BACK: &str = "slab_size = \"64Mi\"\nseal_size = \"2Gi\"\nmax_dirty_age = \"1h\"";
/// A seal for every MiB written.
const SEAL_OFTEN: &str = "slab_size = \"64Mi\"\nseal_size = \"1Mi\"\nmax_dirty_age = \"1h\"";

pub(super) fn run(world: &World) -> Result<Vec<Figure>> {
    let mut bench = Bench::start(world, SEAL_OFTEN)?;
    report::step("count the requests to S3");
    let mut figures = requests::measure(&mut bench)?;
    report::step("attach many volumes");
    figures.extend(many::measure(&bench)?);
    bench.vm.power_off()?;
    Ok(figures)
}
