//! The kernel of this machine, which runs the workspace's tests.

use anyhow::{Result, ensure};

/// The first release with incremental use of provided buffers in io_uring (`IOU_PBUF_RING_INC`).
const MIN_RELEASE: (u32, u32) = (6, 12);

/// Checks that the tests can run here; test machines have their own kernels.
///
/// # Errors
/// The kernel is too old.
pub(super) fn check() -> Result<()> {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy();
    ensure!(
        is_new_enough(&release),
        "the tests need Linux {}.{} or newer on this machine, for io_uring, and it runs {release}. Install a newer \
         kernel (Debian 13 has one; for Debian 12: linux-image-amd64 of bookworm-backports) and restart",
        MIN_RELEASE.0,
        MIN_RELEASE.1
    );
    Ok(())
}

/// Returns true if the release is new enough, or unreadable: the tests then report missing features.
fn is_new_enough(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) >= MIN_RELEASE,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_from_6_12_on_are_new_enough() {
        assert!(
            ["6.12.0", "6.12.117+deb13-cloud-amd64", "6.18.44", "7.0-rc1"].map(is_new_enough) == [true; 4]
        );
        assert!(["6.1.0-28-amd64", "6.11.9", "5.10.0"].map(is_new_enough) == [false; 3]);
    }
}
