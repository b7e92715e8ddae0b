//! `cargo e2e cluster`: a Kubernetes cluster with Holdfast, for manual use.

use std::time::Duration;

use anyhow::Result;
use holdfast_lab::cluster::{Cluster, ClusterStore};
use holdfast_lab::pins::KERNEL;
use holdfast_lab::report;
use holdfast_lab::setup::{BuildProfile, Toolbox};
use holdfast_lab::wait::wait_exit_signal;
use holdfast_lab::world::World;

/// Name of the bucket, the ObjectStore and the StorageClass.
const STORE: &str = "holdfast";

/// Interval of checks for the address of the daemon's pod, which changes with each rollout.
const FOLLOW: Duration = Duration::from_secs(2);

/// Starts a cluster, installs the chart and keeps both until Ctrl-C.
///
/// # Errors
/// If a component does not start.
pub fn run() -> Result<()> {
    let toolbox = Toolbox::open()?;
    let world = World::new(&toolbox, "cluster", KERNEL, BuildProfile::Dev)?;
    let s3 = world.s3()?;
    s3.create_bucket(STORE)?;
    let cluster = Cluster::start(&world)?;
    cluster.install(&ClusterStore { name: STORE, bucket: STORE, endpoint: &s3.endpoint_in_vm() })?;
    report::line(cluster.describe());
    report::line(format_args!("export KUBECONFIG={}", world.control_plane()?.admin_kubeconfig().display()));
    report::line(format_args!("alias kubectl={}", toolbox.kubectl()?.display()));
    report::step(format_args!("StorageClass {STORE} is the default; the bucket is at {}", s3.endpoint()));
    report::step(format_args!(
        "image {} has a shell; no other image can be fetched",
        holdfast_lab::cluster::TOOLS_IMAGE
    ));
    report::step(format_args!("logs are in {}; Ctrl-C ends everything", world.dir().display()));
    // `kubectl holdfast top` reads the daemon through the API server, whose route to a pod depends on its
    // address.
    let mut reached = None;
    wait_exit_signal(FOLLOW, || {
        let now = cluster.daemon().ok().flatten().filter(|now| reached != Some(*now));
        if let Some(address) = now
            && cluster.reach(address).is_ok()
        {
            reached = now;
        }
    })
}
