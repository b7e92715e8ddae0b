//! A replaced writer: its un-uploaded data, flushed or not, is preserved and exported to a file; the other
//! node's volume does not contain it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use holdfast_lab::node::{ControlInterface, NodeDaemon};
use holdfast_lab::world::World;

const BUCKET: &str = "fenced";
/// A committed block, and one that is not.
const COMMITTED: u64 = 9;
const KEPT: u64 = 20;
const BLOCK_BYTES: u64 = 128 << 10;
const LIMIT: Duration = Duration::from_secs(60);

pub(super) fn run(world: &World) -> Result<()> {
    let s3 = world.s3()?;
    s3.create_bucket(BUCKET)?;
    let control = ControlInterface::standalone(&s3, BUCKET);
    let old = NodeDaemon::start(world.vm("a")?, &control, "auto", "")?;
    old.cli(&["create", "disk", "--size", "256Mi", "--store", "store"])?;
    attach(&old, &[])?;
    write(&old, COMMITTED)?;
    old.cli(&["detach", "disk"])?;
    attach(&old, &["--max-dirty-age", "1h"])?;
    let preserved = write(&old, KEPT)?;

    let new = NodeDaemon::start(world.vm("b")?, &control, "auto", "")?;
    let device = attach(&new, &["--take-over", "2"])?;
    let sum = new.vm().exec(&read(&device, KEPT))?;
    ensure!(sum != preserved, "what was never uploaded is on the other node");
    new.cli(&["detach", "disk"])?;

    let refused = old.cli(&["detach", "disk"]).err().context("a fenced writer detached")?;
    ensure!(format!("{refused:#}").contains("`holdfast-node fenced list` shows"), "{refused:#}");
    old.terminate()?;
    let list = old.cli(&["fenced", "list"])?;
    let row: Vec<&str> = list.lines().nth(1).unwrap_or_default().split_whitespace().collect();
    ensure!(row == ["disk-2", "disk", "2", "256Mi", "128Ki", "-"], "{list}");
    let exported = old.cli(&["fenced", "export", "disk-2", "--output", "/state/disk.img"])?;
    ensure!(exported.contains("256Mi, of which 128Ki were not uploaded (ranges: 1,"), "{exported}");
    let sum = old.vm().exec(&read("/state/disk.img", KEPT))?;
    ensure!(sum == preserved, "the export holds {sum}, {preserved} was written");
    let range = format!("{{\"offset_bytes\":{},\"length_bytes\":{BLOCK_BYTES}}}", KEPT * BLOCK_BYTES);
    let ranges = old.vm().exec("tr -d ' \\n' < /state/disk.img.json")?;
    ensure!(ranges.contains(&format!("\"ranges\":[{range}]")), "{ranges}");

    let kept_on = old.cli(&["fenced", "delete", "disk-2"]).err().context("it was deleted without a word")?;
    ensure!(format!("{kept_on:#}").contains("--confirm-data-loss"), "{kept_on:#}");
    old.cli(&["fenced", "delete", "disk-2", "--confirm-data-loss"])?;
    ensure!(old.cli(&["fenced", "list"])?.lines().count() == 1, "it is still there");
    Ok(())
}

fn attach(node: &NodeDaemon, options: &[&str]) -> Result<String> {
    let device = node.cli(&[&["attach", "disk", "--store", "store"], options].concat())?.trim().to_owned();
    node.vm().wait_block_device(&device, LIMIT)?;
    Ok(device)
}

/// Writes noise to a block, without a flush. Returns its checksum.
fn write(node: &NodeDaemon, block: u64) -> Result<String> {
    node.vm().exec(&format!(
        "dd if=/dev/urandom of=/tmp/noise bs={BLOCK_BYTES} count=1 status=none; \
         dd if=/tmp/noise of=/dev/ublkb0 bs={BLOCK_BYTES} seek={block} oflag=direct conv=notrunc status=none; \
         sha256sum < /tmp/noise"
    ))
}

fn read(path: &str, block: u64) -> String {
    format!("dd if={path} bs={BLOCK_BYTES} skip={block} count=1 status=none | sha256sum")
}
