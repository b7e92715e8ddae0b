//! Recovery of the previous process's memory volumes: device paused, files opened, queues armed, requests
//! served again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use holdfast_service::chain;
use holdfast_types::{Backoff, Jitter, VolumeId};
use holdfast_ublk::{Device, DeviceState, Expected};
use tokio::sync::oneshot;

use super::detach::delete_device;
use super::local::{MemoryLocal, MemoryRecord, attached_memory, trash_left_spill_files};
use super::present::PresentMemory;
use super::table::MemoryState;
use crate::node::exit_on_panic::ExitOnPanic;
use crate::node::run_blocking::blocking;
use crate::node::volume::recover::tagged;
use crate::node::{Node, NodeError};

/// Maximum time from the death of a device's last server until it is quiesced.
const QUIESCE_WITHIN: Duration = Duration::from_secs(10);
/// Interval between attempts.
const AGAIN_AFTER: Backoff =
    Backoff { first: Duration::from_secs(1), last: Duration::from_secs(5), jitter: Jitter::Half };

/// Steps of a recovery that are done only once, even if a later one fails.
#[derive(Default)]
struct RecoverySteps {
    begun: Option<Device>,
    present: Option<Arc<PresentMemory>>,
    is_armed: bool,
}

/// Record and device of a volume left by a predecessor.
struct LeftMemory {
    record: MemoryRecord,
    device: Device,
}

impl Node {
    /// Starts the recovery of every memory volume of the run directory, once the other volumes are in their
    /// table. Returns the tags of their devices, and receivers for the ends of their first attempts. A volume
    /// whose name is taken by another one stays as it is, with its device paused.
    ///
    /// # Errors
    /// The run directory cannot be listed.
    pub(in crate::node) fn recover_memory(
        &self,
    ) -> Result<(BTreeSet<u64>, Vec<oneshot::Receiver<()>>), NodeError> {
        let (mut tags, mut tries) = (BTreeSet::new(), Vec::new());
        if let Err(error) = trash_left_spill_files(&self.0.dirs) {
            tracing::error!(
                error = chain(&error),
                "spill files of memory volumes that are gone were not moved to the trash"
            );
        }
        for volume in attached_memory(&self.0.dirs.run)? {
            let local = MemoryLocal::new(&self.0.dirs, &volume);
            tags.extend(local.record().ok().flatten().map(|record| record.tag));
            if self.0.volumes.contains(&volume) {
                let error = NodeError::MemoryLeft(volume);
                tracing::error!(error = chain(&error), "a memory volume was not recovered");
                continue;
            }
            self.0.memory.recover(volume.clone(), local.max_bytes());
            let (ends, ended) = oneshot::channel();
            self.0.tasks.spawn(self.clone().recover_one_memory(volume, local, ends));
            tries.push(ended);
        }
        Ok((tags, tries))
    }

    /// Fails if the device of a memory volume of this name remains, because its recovery was rejected.
    ///
    /// # Errors
    /// [`NodeError::MemoryLeft`]; an unreadable record.
    pub(in crate::node) async fn refuse_left_memory(&self, volume: &VolumeId) -> Result<(), NodeError> {
        let (kernel, volume) = (Arc::clone(self.0.devices.kernel()), volume.clone());
        let local = MemoryLocal::new(&self.0.dirs, &volume);
        blocking(move || {
            let Some(record) = local.record()? else { return Ok(()) };
            match tagged(&*kernel, &Expected { tag: record.tag, sectors: record.sectors })? {
                Some(_paused) => Err(NodeError::MemoryLeft(volume)),
                None => Ok(()),
            }
        })
        .await
    }

    #[tracing::instrument(name = "recover_memory", skip_all, fields(%volume))]
    async fn recover_one_memory(self, volume: VolumeId, local: MemoryLocal, first: oneshot::Sender<()>) {
        let _alone = ExitOnPanic("the recovery of a memory volume");
        let mut first = Some(first);
        let mut progress = RecoverySteps::default();
        let mut attempt = 0;
        let mut known = String::new();
        loop {
            let tried = self.try_recover_memory(&volume, &local, &mut progress).await;
            drop(first.take());
            let Err(error) = tried else { return };
            let why = chain(&error);
            if known != why {
                tracing::error!(
                    why,
                    "recovery of a memory volume failed; its device is paused and the recovery is retried"
                );
                known.clone_from(&why);
            }
            self.0.memory.set(&volume, MemoryState::Recovering { error: Some(why) });
            attempt += 1;
            tokio::time::sleep(AGAIN_AFTER.delay(attempt, fastrand::f64())).await;
        }
    }

    /// Resumes where the last attempt ended.
    async fn try_recover_memory(
        &self,
        volume: &VolumeId,
        local: &MemoryLocal,
        progress: &mut RecoverySteps,
    ) -> Result<(), NodeError> {
        let kernel = Arc::clone(self.0.devices.kernel());
        // The last server wrote to the spill file until its rings ended.
        self.0.rings.earlier().are_gone(QUIESCE_WITHIN).await?;
        let Some(LeftMemory { record, device }) = self.find_memory(volume, local).await? else {
            self.0.memory.forget(volume);
            return Ok(());
        };
        if progress.begun != Some(device) {
            self.0.devices.begin_recovery(device, QUIESCE_WITHIN).await?;
            progress.begun = Some(device);
        }
        let present = match &progress.present {
            Some(present) => Arc::clone(present),
            None => {
                let files = local.clone();
                let read = record.clone();
                let opened = blocking(move || files.open(&read)).await?;
                let sizes = Arc::clone(&kernel);
                let device_sectors = blocking(move || Ok(sizes.sectors(device)?)).await?;
                let shape = (device_sectors, device.queues());
                let present = self.add_memory(volume, local.clone(), record, opened, shape).await?;
                Arc::clone(progress.present.insert(present))
            }
        };
        if !progress.is_armed {
            present.arm(&kernel, device).await?;
            progress.is_armed = true;
        }
        let ends = Arc::clone(&kernel);
        present.unless_refused(device, blocking(move || Ok(ends.end_recovery(device)?))).await?;
        // The predecessor died during a growth.
        if let Err(error) = present.grow_device(&kernel, device).await {
            // The device serves with its current size; the next request for the growth resumes the growth.
            tracing::warn!(
                error = chain(&error),
                "the device of a memory volume did not grow; its recorded growth is incomplete"
            );
        }
        self.0.memory.set(volume, MemoryState::Serving(device));
        tracing::info!(device = device.id(), "recovered a memory volume");
        Ok(())
    }

    /// Returns the record and the device of a volume. `None` if it never served, or was being detached: its
    /// files are removed in that case.
    async fn find_memory(
        &self,
        volume: &VolumeId,
        local: &MemoryLocal,
    ) -> Result<Option<LeftMemory>, NodeError> {
        let (kernel, installation) = (Arc::clone(self.0.devices.kernel()), self.0.installation);
        let (named, files) = (volume.clone(), local.clone());
        let found = blocking(move || {
            let Some(record) = files.record()? else { return Ok(None) };
            if record.tag != installation.tag(&named, record.nonce).0 {
                return Err(NodeError::OtherInstallation(named));
            }
            let Some(device) = tagged(&*kernel, &Expected { tag: record.tag, sectors: record.sectors })?
            else {
                return Ok(None);
            };
            Ok(Some((record, device, kernel.look(device.id())?.state)))
        });
        match found.await? {
            Some((record, device, DeviceState::Live | DeviceState::Quiesced | DeviceState::FailIo)) => {
                return Ok(Some(LeftMemory { record, device }));
            }
            Some((_, device, DeviceState::Dead)) => {
                delete_device(&self.0.tasks, self.0.devices.kernel(), device).await;
            }
            None => {}
        }
        let files = local.clone();
        blocking(move || files.remove()).await?;
        tracing::warn!(
            "removed the files of a memory volume without a device: its attach or detach was interrupted, or \
             another program removed the device"
        );
        Ok(None)
    }
}
