//! `NodeGetVolumeStats`.

use holdfast_proto::csi::v1::volume_usage::Unit;
use holdfast_proto::csi::v1::{NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse, VolumeUsage};
use tonic::{Request, Status};

use super::daemon::check_touchable;
use super::tool::{CommandLine, EndedProgram};
use super::{NodeService, mounts, paths};
use crate::deadline;

/// Blocks of a file system, free ones, those free for users, block size; inodes, free ones. Source: stat(1).
const FORMAT: &str = "%b %f %a %S %c %d";

pub(super) async fn answer(
    node: &NodeService,
    request: Request<NodeGetVolumeStatsRequest>,
) -> Result<NodeGetVolumeStatsResponse, Status> {
    let until = deadline::of(&request);
    let NodeGetVolumeStatsRequest { volume_id, volume_path, staging_target_path: _ } = request.into_inner();
    let volume = paths::volume(volume_id)?;
    let path = paths::named("volume_path", volume_path)?;
    let mounts = mounts::all()?;
    let mount = mounts::at(&mounts, &path).ok_or_else(|| super::expand::not_published(&path))?;
    let volumes = node.0.daemon.volumes().await?;
    if let Some(device) = mount.device_node() {
        let found = volumes.iter().filter_map(|volume| volume.device.as_ref());
        let bytes = found.into_iter().find(|found| device.as_os_str() == found.path.as_str());
        let bytes =
            bytes.ok_or_else(|| Status::unavailable("the node does not serve the device now"))?.size_bytes;
        let usage = VolumeUsage { total: signed(bytes), unit: Unit::Bytes.into(), ..VolumeUsage::default() };
        return Ok(NodeGetVolumeStatsResponse { usage: vec![usage] });
    }
    if let Some(number) = mount.device() {
        check_touchable(&volumes, number)?;
    }
    // Uses its own name: an operation on the volume and the figures do not wait for each other.
    let inner = node.0.clone();
    let name = operation(&volume);
    let line = CommandLine::new(["stat", "--file-system", "--format", FORMAT]).and(&path);
    let measured = async move { usage(&inner.tools.run(&name, line).await?) };
    let usage = node.0.operations.run(&operation(&volume), until, measured).await?;
    Ok(NodeGetVolumeStatsResponse { usage })
}

/// Returns the name of these requests about a volume, under which `Tools` locks them.
pub(super) fn operation(volume: &str) -> String {
    format!("{volume}/stats")
}

fn usage(ended: &EndedProgram) -> Result<Vec<VolumeUsage>, Status> {
    let figures: Vec<u64> =
        ended.stdout.split_whitespace().filter_map(|figure| figure.parse().ok()).collect();
    let [blocks, free, available, size, inodes, free_inodes] = figures[..] else {
        return Err(Status::internal(format!("stat failed ({:?}): {}", ended.code, ended.output())));
    };
    let of = |unit: Unit, total: u64, available: u64, used: u64| VolumeUsage {
        available: signed(available),
        total: signed(total),
        used: signed(used),
        unit: unit.into(),
    };
    let bytes = |blocks: u64| blocks.saturating_mul(size);
    Ok(vec![
        of(Unit::Bytes, bytes(blocks), bytes(available), bytes(blocks.saturating_sub(free))),
        of(Unit::Inodes, inodes, free_inodes, inodes.saturating_sub(free_inodes)),
    ])
}

fn signed(figure: u64) -> i64 {
    i64::try_from(figure).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::tool::Tools;
    use super::*;

    #[tokio::test]
    async fn a_file_system_has_bytes_and_inodes() {
        let directory = tempfile::tempdir().expect("a directory");
        let tools = Tools::new(directory.path().join("locks"));
        let line = CommandLine::new(["stat", "--file-system", "--format", FORMAT]).and(directory.path());
        let usage = usage(&tools.run("v", line).await.expect("stat")).expect("figures");
        assert!(usage[0].total > usage[0].used && usage[0].total >= usage[0].available, "{usage:?}");
        assert_eq!((usage[0].unit(), usage[1].unit()), (Unit::Bytes, Unit::Inodes));
    }
}
