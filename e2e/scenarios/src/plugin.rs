//! The kubectl plugin, as run by an administrator.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use holdfast_lab::world::World;

/// Returns a command of the plugin with administrator's rights.
pub(super) fn command(world: &World, arguments: &[&str]) -> Result<Command> {
    let mut command = Command::new(world.programs()?.join("kubectl-holdfast"));
    command.env("KUBECONFIG", world.control_plane()?.admin_kubeconfig()).args(arguments);
    Ok(command)
}

/// Runs the plugin, checks its exit code and that it prints `says`, and returns its standard output.
pub(super) fn plugin(world: &World, arguments: &[&str], code: i32, says: &str) -> Result<String> {
    let out = command(world, arguments)?.output().context("start kubectl-holdfast")?;
    let stdout = String::from_utf8_lossy(&out.stdout).into_owned();
    let text = format!("{stdout}{}", String::from_utf8_lossy(&out.stderr));
    let is_as_expected = out.status.code() == Some(code) && text.contains(says);
    ensure!(is_as_expected, "kubectl holdfast {arguments:?} ended with {} and said {text}", out.status);
    Ok(stdout)
}
