//! The keys of the bucket are rotated under load: old ones are revoked before any program has new ones.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use holdfast_lab::operator::NAMESPACE;
use holdfast_lab::report;
use holdfast_lab::wait::until;
use holdfast_lab::world::World;

use super::load::Load;
use super::provisioning::{apply, expect_removed, volume};
use super::story::{provision_store, serve};

const BUCKET: &str = "rotation";
const KEY: &str = "holdfast-rotated";
const SECRET: &str = "holdfast-rotated-secret";
/// Small seals with a short maximum age, so that uploads never pause by themselves.
const DATA: &str = "seal_size = \"4Mi\"\nmax_dirty_age = \"1s\"";
/// Maximum time until uploads resume.
pub const RESUME_WITHIN: Duration = Duration::from_secs(90);
const LIMIT: Duration = Duration::from_secs(300);
/// Maximum run time of fio, in seconds of the machine's time.
const LOAD_SECONDS: u32 = 600;

/// Result of a rotation.
#[derive(Debug)]
pub struct RotationOutcome {
    /// Time from the revocation of the old key to the first upload with the new one.
    pub resumed_after: Duration,
    /// Errors seen by the load.
    pub errors: Vec<String>,
}

pub(super) fn run(world: &World) -> Result<()> {
    let RotationOutcome { resumed_after, errors } = rotate(world)?;
    ensure!(errors.is_empty(), "the load saw errors: {}", errors.join(", "));
    ensure!(resumed_after <= RESUME_WITHIN, "uploads resumed after {} s", resumed_after.as_secs());
    Ok(())
}

/// Revokes the key under load, writes the new one into the Secret, and waits for the next uploads.
///
/// # Errors
/// If uploads do not resume, or something else fails.
pub fn rotate(world: &World) -> Result<RotationOutcome> {
    let s3 = world.s3()?;
    let operator = world.operator()?;
    provision_store(world, &s3, BUCKET)?;
    apply(world, &volume("disk", "store", "256Mi").replace("{size", "{maxDirtyAge: 1s, size"))?;
    world.wait_for("volume/disk", "jsonpath={.status.phase}=Ready")?;
    let id = world.kubectl(["get", "volume/disk", "--output=jsonpath={.status.volumeId}"])?;
    let node = world.node("a", "auto", DATA)?;
    let device = serve(world, &node, "disk")?;
    let committed =
        || Ok::<_, anyhow::Error>(node.metric("holdfast_volume_committed_seq", &id)?.unwrap_or(0.0));

    report::step("fio writes and verifies; uploads are observed");
    let load = Load::start(node.vm(), &device, LOAD_SECONDS)?;
    let before = committed()?;
    until("an upload", LIMIT, || Ok((committed()? > before).then_some(())))?;

    report::step("the key is revoked, and the Secret has another one");
    s3.replace_key(KEY, SECRET)?;
    let revoked = Instant::now();
    let patch = format!("{{\"stringData\":{{\"accessKeyId\":\"{KEY}\",\"secretAccessKey\":\"{SECRET}\"}}}}");
    let namespace = format!("--namespace={NAMESPACE}");
    world.kubectl(["patch", "secret", "store", &namespace, "--type=merge", "--patch", &patch])?;
    // The first of two may have been answered before the revocation.
    let before = committed()?;
    until("uploads to resume", LIMIT, || Ok((committed()? >= before + 2.0).then_some(())))?;
    let resumed_after = revoked.elapsed();
    report::step(format_args!("uploads resumed after {:.1} s", resumed_after.as_secs_f64()));

    let errors = load.wait_progress().and_then(|()| load.stop()).err();
    let errors: Vec<String> = errors.into_iter().map(|error| format!("{error:#}")).collect();
    world.wait_for("volume/disk", "condition=StoreReachable")?;
    world.wait_for("objectstore/store", "condition=Ready")?;
    world.kubectl(["delete", "volume", "disk", "--timeout=300s"])?;
    expect_removed(&s3, BUCKET, 1)?;
    node.terminate()?;
    operator.stop()?;
    Ok(RotationOutcome { resumed_after, errors })
}
