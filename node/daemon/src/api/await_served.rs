//! Waits until a volume is served.

use std::time::Duration;

use holdfast_types::VolumeId;

use crate::node::{NodeVolumeStatus, VolumeState};
use crate::volumes::Volumes;

/// Poll interval; the polled figures are in memory and are published no more often.
const LOOK: Duration = Duration::from_millis(100);

/// Waits until this node serves a volume with at least this epoch. The caller's deadline ends the wait.
pub(super) async fn wait<V: Volumes>(volumes: &V, volume: &VolumeId, min_epoch: u64) -> NodeVolumeStatus {
    loop {
        let found = volumes.list().into_iter().find(|status| status.volume == *volume);
        if let Some(status) = found.filter(|status| is_served(status, min_epoch)) {
            return status;
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
        assert_eq!(wait(&fake, &id, 3).await.volume, id);
    }
}
