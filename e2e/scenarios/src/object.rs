//! Objects of the API server, as JSON.

use std::fs;

use anyhow::{Context, Result};
use holdfast_lab::world::World;
use serde_json::Value;

/// Applies `object`.
///
/// # Errors
/// If the API server rejects it.
pub(super) fn apply(world: &World, object: &Value) -> Result<()> {
    world.kubectl(["apply", "--filename", &file(world, object)?]).map(drop)
}

/// Returns the path of a file that contains `object`.
pub(super) fn file(world: &World, object: &Value) -> Result<String> {
    let file = world.dir().join("object.json");
    fs::write(&file, object.to_string()).context("write an object")?;
    Ok(file.display().to_string())
}
