//! The kernel of this machine, on which the workspace's tests run.

use anyhow::{Result, ensure};

/// The first release whose io_uring hands out provided buffers piece by piece (`IOU_PBUF_RING_INC`).
const LEAST: (u32, u32) = (6, 12);

/// Checks that the tests can run here; test machines have kernels of their own.
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
        LEAST.0,
        LEAST.1
    );
    Ok(())
}

/// A release that cannot be read is taken as new: the tests then say what they lack.
fn is_new_enough(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) >= LEAST,
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
