//! Times that a user waits for the operator, on the host: medians, while no machine runs.

use std::time::Instant;

use anyhow::{Context, Result};
use holdfast_lab::control_plane::audit::ApiRequest;
use holdfast_lab::csi::{Csi, LIMIT, RequestedVolume, expect_granted};
use holdfast_lab::report;
use holdfast_lab::world::World;
use holdfast_scenarios::provisioning::apply;

use super::figure;
use crate::{Figure, median};

/// A StorageNode without a daemon: it gets grants, but attaches no volume.
const NODE: &str = "idle";
const GIB: i64 = 1 << 30;
/// Number of volumes per median, without a first one that does not count.
const VOLUMES: usize = 21;
const MOST_PROVISION_MS: f64 = 150.0;
const MOST_GRANT_MS: f64 = 50.0;

pub(super) fn measure(world: &World, csi: &Csi) -> Result<Vec<Figure>> {
    report::step(format_args!("create {VOLUMES} volumes one after the other, and grant them to a node"));
    apply(
        world,
        &format!(
            "apiVersion: storage.holdfast.dev/v1alpha1\nkind: StorageNode\nmetadata: {{name: {NODE}}}\nspec: {{}}\n"
        ),
    )?;
    let names: Vec<String> = (0..=VOLUMES).map(|number| format!("pvc-wait-{number}")).collect();
    let mut provisioned = Vec::new();
    for name in &names {
        let began = Instant::now();
        // Manual, because no daemon renews a Lease for the node.
        let new = RequestedVolume::new(name, GIB, "store").parameter("failoverPolicy", "Manual");
        expect_granted("create", csi.create(&new, LIMIT)?)?;
        provisioned.push(began.elapsed().as_secs_f64() * 1e3);
    }
    let mut grants = Vec::new();
    for name in &names {
        let object = format!("volume/{name}");
        let before = world.control_plane()?.requests()?.len();
        want(world, name, NODE)?;
        world.wait_for(&object, &format!("jsonpath={{.status.assignedNode}}={NODE}"))?;
        let requests = world.control_plane()?.requests()?.split_off(before);
        grants.push(grant_ms(&requests, name).with_context(|| format!("{name} was not granted"))?);
    }
    for name in &names {
        want(world, name, "")?;
        world.wait_for(&format!("volume/{name}"), "jsonpath={.status.phase}=Ready")?;
        expect_granted("delete", csi.delete(name, LIMIT)?)?;
    }
    world.kubectl(["delete", "storagenode", NODE])?;
    let medians = [provisioned, grants].map(|times| median(times.into_iter().skip(1).collect()));
    Ok(vec![
        figure(
            "provision_ms",
            medians[0],
            "ms",
            "CreateVolume until it is answered, median of 21 on the host",
        )
        .at_most(MOST_PROVISION_MS),
        figure(
            "grant_ms",
            medians[1],
            "ms",
            "spec.nodeName until the grant is written, median of 21 on the host",
        )
        .at_most(MOST_GRANT_MS),
    ])
}

/// Requests a node for a volume; none if `node` is empty.
fn want(world: &World, name: &str, node: &str) -> Result<()> {
    let patch = format!("--patch={{\"spec\":{{\"nodeName\":\"{node}\"}}}}");
    world.kubectl(["patch", "volume", name, "--type=merge", &patch]).map(drop)
}

/// Returns the time from the request for a node to the operator's answer, by the API server's clock.
fn grant_ms(requests: &[ApiRequest], name: &str) -> Option<f64> {
    let mut of_volume = requests.iter().filter(|one| one.resource == "volumes" && one.name == name);
    let asked = of_volume.find(|one| one.account == "admin" && one.verb == "patch")?;
    let granted = of_volume.find(|one| one.account == "holdfast-operator" && one.subresource == "status")?;
    Some(granted.answered_us.checked_sub(asked.answered_us)? as f64 / 1e3)
}
