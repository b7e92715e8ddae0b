//! Unmounting of a path.

use std::path::Path;

use tonic::Status;

use super::NodeServiceState;
use super::daemon::check_touchable;
use super::mounts;
use super::tool::CommandLine;

/// Maximum number of stacked mounts to unmount in one request: more were not made by the driver.
const MOST: usize = 16;

impl NodeServiceState {
    /// Unmounts every mount at `path`. A file system whose device waits for its daemon is left untouched.
    ///
    /// # Errors
    /// `UNAVAILABLE`: the device waits for its daemon. `INTERNAL`: the mount is in use, or umount(8) failed
    /// otherwise.
    pub(super) async fn unmount(&self, volume: &str, path: &Path) -> Result<(), Status> {
        for _ in 0..MOST {
            let mounts = mounts::all()?;
            let Some(mount) = mounts::at(&mounts, path) else { return Ok(()) };
            // A device node is not a file system: unmounting it never blocks.
            if mount.device_node().is_none()
                && let Some(number) = mount.device()
            {
                check_touchable(&self.daemon.volumes().await?, number)?;
            }
            self.tools.succeed(volume, CommandLine::new(["umount", "--no-canonicalize"]).and(path)).await?;
        }
        Err(Status::internal(format!(
            "{} has more than {MOST} mounts; unmount them manually",
            path.display()
        )))
    }
}
