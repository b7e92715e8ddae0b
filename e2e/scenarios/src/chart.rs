//! The Helm chart.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use holdfast_lab::command::output;
use holdfast_lab::operator::NAMESPACE;
use holdfast_lab::world::World;

pub(super) fn run(world: &World) -> Result<()> {
    let helm = world.toolbox().helm()?;
    output(Command::new(&helm).args(["lint", "--strict", "--namespace", NAMESPACE]).arg(world.chart()))?;
    for (version, expected) in [("1.33.0", false), ("1.34.0", true)] {
        let found = asks_again(world, version)?;
        ensure!(found == expected, "for Kubernetes {version} the update period is rendered: {found}");
    }
    let rendered = output(
        Command::new(&helm)
            .args(["template", "holdfast", "--include-crds", "--namespace", NAMESPACE])
            .arg(world.chart()),
    )?;
    let file = world.dir().join("chart.yaml");
    fs::write(&file, rendered).context("write the rendered chart")?;
    world.kubectl(["create", "namespace", NAMESPACE])?;
    let file = file.display().to_string();
    world.kubectl(["apply", "--server-side", "--validate=strict", "--filename", &file]).map(drop)
}

/// Returns true if the kubelet of that version asks again how many volumes its node can serve.
/// Older API servers refuse the field.
fn asks_again(world: &World, version: &str) -> Result<bool> {
    let rendered = output(
        Command::new(world.toolbox().helm()?)
            .args(["template", "holdfast", "--kube-version", version])
            .args(["--show-only", "templates/csi-driver.yaml"])
            .arg(world.chart()),
    )?;
    Ok(rendered.contains("nodeAllocatableUpdatePeriodSeconds: 60"))
}
