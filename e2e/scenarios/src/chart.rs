//! The Helm chart.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result};
use holdfast_lab::command::output;
use holdfast_lab::operator::NAMESPACE;
use holdfast_lab::world::World;

pub(super) fn run(world: &World) -> Result<()> {
    let helm = world.toolbox().helm()?;
    output(Command::new(&helm).args(["lint", "--strict", "--namespace", NAMESPACE]).arg(world.chart()))?;
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
