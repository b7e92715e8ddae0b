//! Commits to one store while another store of the same node does not answer, or refuses the key.
//!
//! Times are of the host's clock, from before the writes until the S3 server has the record that commits
//! them. The volumes of the other store have more dirty data than the node's memory for uploads, so each of
//! them waits for that store.

use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use holdfast_lab::node::{ControlInterface, NamedStore, NodeDaemon};
use holdfast_lab::report;
use holdfast_lab::s3::{ACCESS_KEY, S3Server, SECRET_KEY};
use holdfast_lab::vm::Vm;
use holdfast_lab::wait::until;
use holdfast_lab::world::World;

use super::{BUCKET, DEVICE_LIMIT, SETTLE_LIMIT, figure};
use crate::{Bar, Figure};

/// Age at which the daemon commits writes.
const MAX_DIRTY_AGE: Duration = Duration::from_secs(5);
/// Maximum time of the commit itself.
const COMMITS_WITHIN: Duration = Duration::from_secs(5);
const DATA: &str = "slab_size = \"64Mi\"\nmax_dirty_age = \"5s\"\nupload_memory = \"64Mi\"";
/// Volumes per store.
const VOLUMES: usize = 8;
/// Noise written to each volume of the failing store, in MiB.
const WAITING_MIB: u32 = 24;
/// Commits of each other volume: they last longer than the node needs to report a store as unreachable.
const ROUNDS: u32 = 5;

/// A store and its volumes, as names and devices.
struct StoreVolumes<'a> {
    name: &'static str,
    s3: &'a S3Server,
    volumes: Vec<(String, String)>,
}

pub(super) fn measure(world: &World) -> Result<Vec<Figure>> {
    let healthy = world.s3()?;
    let failing = S3Server::start(world.toolbox(), &world.dir().join("s3-failing"))?;
    let mut configured = Vec::new();
    for (name, s3) in [("healthy", &*healthy), ("failing", &failing)] {
        s3.create_bucket(BUCKET)?;
        configured.push(NamedStore::of(name, s3, BUCKET));
    }
    let node =
        NodeDaemon::start(world.vm("stores")?, &ControlInterface::Stores(configured), "zero-copy", DATA)?;
    let healthy = StoreVolumes::with_volumes("healthy", &healthy, &node)?;
    let failing = StoreVolumes::with_volumes("failing", &failing, &node)?;

    report::step("one store is frozen: it accepts connections and does not answer");
    failing.s3.pause()?;
    let frozen = longest_commit(&node, &healthy, &failing)?;
    failing.s3.resume()?;
    failing.wait_committed(&node)?;
    report::step("it refuses the key");
    failing.s3.replace_key("another-key", "another-secret")?;
    let denied = longest_commit(&node, &healthy, &failing)?;
    failing.s3.replace_key(ACCESS_KEY, SECRET_KEY)?;
    failing.wait_committed(&node)?;

    node.terminate()?;
    let bar = MAX_DIRTY_AGE + COMMITS_WITHIN;
    Ok(vec![figure(
        "other_store_commit_seconds",
        frozen.max(denied).as_secs_f64(),
        "s",
        Bar::AtMost(bar.as_secs_f64()),
        format!(
            "maxDirtyAge of {} s and {} s; {:.1} s with the other store frozen, {:.1} s while it refused the key, \
             {VOLUMES} volumes of each",
            MAX_DIRTY_AGE.as_secs(),
            COMMITS_WITHIN.as_secs(),
            frozen.as_secs_f64(),
            denied.as_secs_f64()
        ),
    )])
}

/// Returns the longest time from a write to its commit in a volume of `healthy`, while all volumes of
/// `failing` have data that their store does not accept.
fn longest_commit(
    node: &NodeDaemon,
    healthy: &StoreVolumes<'_>,
    failing: &StoreVolumes<'_>,
) -> Result<Duration> {
    for (_, device) in &failing.volumes {
        StoreVolumes::write(node.vm(), device, &format!("bs=1M count={WAITING_MIB}"))?;
    }
    let mut longest = Duration::ZERO;
    for _ in 0..ROUNDS {
        longest = longest.max(healthy.commit(node)?);
    }
    for (volume, _) in &failing.volumes {
        let dirty = node.metric("holdfast_volume_dirty_bytes", volume)?;
        ensure!(dirty >= Some(f64::from(WAITING_MIB << 20)), "{volume} holds only {dirty:?} dirty bytes");
        let unreachable = node.metric("holdfast_volume_store_unreachable_seconds", volume)?;
        ensure!(unreachable > Some(0.0), "the store of {volume} is unreachable for {unreachable:?} s");
    }
    Ok(longest)
}

impl<'a> StoreVolumes<'a> {
    /// Creates and attaches the volumes.
    fn with_volumes(name: &'static str, s3: &'a S3Server, node: &NodeDaemon) -> Result<Self> {
        let mut volumes = Vec::new();
        for number in 1..=VOLUMES {
            let volume = format!("{name}-{number}");
            node.cli(&["create", &volume, "--size", "64Mi", "--store", name])?;
            let device = node.cli(&["attach", &volume, "--store", name])?.trim().to_owned();
            node.vm().wait_block_device(&device, DEVICE_LIMIT)?;
            volumes.push((volume, device));
        }
        Ok(Self { name, s3, volumes })
    }

    /// Writes noise to the start of a device, and flushes it.
    fn write(vm: &Vm, device: &str, amount: &str) -> Result<()> {
        let dd = format!("dd if=/dev/urandom of={device} {amount} oflag=direct conv=fsync status=none");
        vm.exec(&dd).map(drop)
    }

    /// Writes to each volume. Returns the longest time to a commit.
    fn commit(&self, node: &NodeDaemon) -> Result<Duration> {
        let mut written = Vec::new();
        for (volume, device) in &self.volumes {
            written.push((volume, self.newest_record(volume)?, SystemTime::now()));
            Self::write(node.vm(), device, "bs=64k count=4")?;
        }
        let mut longest = Duration::ZERO;
        for (volume, before, begun) in written {
            let record = until("the commit", SETTLE_LIMIT, || {
                let dirty = node.metric("holdfast_volume_dirty_bytes", volume)?;
                let newest = self.newest_record(volume)?;
                Ok((newest != before && dirty == Some(0.0)).then_some(newest))
            })?;
            let path = self.s3.object_path(BUCKET, &record);
            let stored = path.metadata().and_then(|record| record.modified());
            let stored = stored.with_context(|| format!("read {}", path.display()))?;
            longest = longest.max(stored.duration_since(begun).context("a record older than its data")?);
        }
        report::step(format_args!("{}: committed after {:.1} s", self.name, longest.as_secs_f64()));
        Ok(longest)
    }

    /// Returns the key of the last record of a volume's log.
    fn newest_record(&self, volume: &str) -> Result<String> {
        self.s3.keys(BUCKET, &format!("volumes/{volume}/log/"))?.pop().context("a log has a record")
    }

    fn wait_committed(&self, node: &NodeDaemon) -> Result<()> {
        for (volume, _) in &self.volumes {
            until("everything to be committed", SETTLE_LIMIT, || {
                let dirty = node.metric("holdfast_volume_dirty_bytes", volume)?;
                Ok((dirty == Some(0.0)).then_some(()))
            })?;
        }
        Ok(())
    }
}
