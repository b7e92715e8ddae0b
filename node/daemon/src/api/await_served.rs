//! Waits until a volume is served, by a device that is still its own.

use std::time::Duration;

use holdfast_types::VolumeId;

use crate::failure::Failure;
use crate::node::{NodeVolumeStatus, VolumeState};
use crate::volumes::Volumes;

/// Poll interval; the polled figures are in memory and are published no more often.
const LOOK: Duration = Duration::from_millis(100);

/// Waits until this node serves a volume with at least this epoch. The caller's deadline ends the wait.
///
/// # Errors
/// The device is not the volume's any more: the caller must not use its path, which may be another program's
/// device by now.
pub(super) async fn wait<V: Volumes>(
    volumes: &V,
    volume: &VolumeId,
    min_epoch: u64,
) -> Result<NodeVolumeStatus, Failure> {
    let served = || {
        let found = volumes.list().into_iter().find(|status| status.volume == *volume);
        found.filter(|status| is_served(status, min_epoch))
    };
    loop {
        // Read again after the check: until then, the volume may get another device.
        if served().is_some()
            && volumes.check_served(volume).await?
            && let Some(status) = served()
        {
            return Ok(status);
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn is_served(status: &NodeVolumeStatus, min_epoch: u64) -> bool {
    let serves = status.attached.as_ref().is_some_and(|device| device.epoch >= min_epoch);
    serves && status.state == VolumeState::Attached
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::FailureKind;
    use crate::volumes::tests::{Fake, attached};

    #[tokio::test(start_paused = true)]
    async fn only_a_volume_that_is_served_ends_the_wait() {
        let fake = Fake::default();
        let id: VolumeId = "v".parse().unwrap();
        let quiesced = NodeVolumeStatus { state: VolumeState::Quiesced, ..attached("v") };
        for (status, min_epoch) in [(quiesced, 3), (attached("w"), 3), (attached("v"), 4)] {
            fake.put(status);
            let waited = tokio::time::timeout(Duration::from_secs(60), wait(&fake, &id, min_epoch)).await;
            assert!(waited.is_err(), "it is not served with epoch {min_epoch}");
        }
        fake.put(attached("v"));
        assert_eq!(wait(&fake, &id, 3).await.unwrap().volume, id);
    }

    /// Regression, found in review: after `losetup --detach` by another program, the answer named a device
    /// that belonged to that program by then.
    #[tokio::test(start_paused = true)]
    async fn a_device_that_is_not_confirmed_is_not_named() {
        let (fake, id) = (Fake::default(), "v".parse().unwrap());
        fake.put(attached("v"));
        fake.fail(FailureKind::Unavailable, "another program removed it");
        let refused = wait(&fake, &id, 3).await.unwrap_err();
        assert_eq!(
            (refused.kind, &refused.message[..]),
            (FailureKind::Unavailable, "another program removed it")
        );
    }
}
