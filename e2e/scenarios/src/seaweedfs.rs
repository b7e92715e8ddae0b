//! A second real S3 server: it meets the requirements of volumes, and serves them.

use anyhow::{Result, ensure};
use holdfast_lab::node::ControlInterface;
use holdfast_lab::report;
use holdfast_lab::s3::SECRET_KEY;
use holdfast_lab::s3::seaweedfs::SeaweedFs;
use holdfast_lab::world::World;

use super::{preflight, s3_faults, standalone};

const BUCKET: &str = "volumes";

pub(super) fn run(world: &World) -> Result<()> {
    report::step("start SeaweedFS");
    let server = SeaweedFs::start(world.toolbox(), &world.dir().join("seaweedfs"), BUCKET)?;
    report::step("the conformance suite of object stores");
    s3_faults::conformance(world, &server.endpoint(), BUCKET)?;
    report::step("preflight, with the probe of create-once");
    let vm = world.vm("a")?;
    preflight::configure(&vm, &server.endpoint_in_vm(), BUCKET, SECRET_KEY)?;
    let output = preflight::preflight(&vm, "", 0)?;
    ensure!(output.contains("PASS store store: bucket volumes"), "{output}");
    let control =
        ControlInterface::Standalone { endpoint: server.endpoint_in_vm(), bucket: BUCKET.to_owned() };
    report::step("a volume on two nodes");
    standalone::play(world, &control, "zero-copy")
}
