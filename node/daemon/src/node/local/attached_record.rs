//! The record of an attached volume in the tmpfs directory, used by a restarted daemon to recover its device.

use holdfast_engine::settings::Durability;
use holdfast_format::displaced::Displaced;
use holdfast_format::wire::{self, Kind};
use holdfast_serve::IoLimits;
use holdfast_types::Epoch;
use holdfast_ublk::LOOP_IDS;
use serde::{Deserialize, Serialize};

use crate::node::error::LocalDamage;
use crate::node::store::record::StoreRecord;

/// Version of [`AttachedRecord`]; it rises when a field is added, changed or removed.
pub(crate) const ATTACHED_VERSION: u32 = 3;
/// Version of the record of a device without ublk: a release without support for these rejects the record,
/// instead of assuming a volume without a device.
const LOOP_VERSION: u32 = 4;
/// Version of the record of a volume with limits, with any device: a release without support for limits
/// rejects it, instead of serving the volume without them.
const LIMITS_VERSION: u32 = 5;

/// Record of an attached volume in the tmpfs directory.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AttachedRecord {
    /// [`ATTACHED_VERSION`] of the daemon that wrote it.
    pub(crate) version: u32,
    /// The tag of the volume's device, known before the device exists.
    pub(crate) tag: u64,
    /// The number of its device, from its addition to its deletion. [`LOOP_IDS`] and above are loop devices
    /// on FUSE files, lower numbers are ublk devices.
    pub(crate) device_id: Option<u32>,
    pub(crate) sectors: u64,
    pub(crate) epoch: u64,
    pub(crate) max_age_ms: u64,
    #[serde(with = "DurabilityWord")]
    pub(crate) durability: Durability,
    /// Limits of its I/O, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) limits: Option<LimitsRecord>,
    /// The writer that this attach replaced.
    pub(crate) displaced: Option<DisplacedRecord>,
    pub(crate) detaching: bool,
    pub(crate) store_name: String,
    pub(crate) store: StoreRecord,
}

impl AttachedRecord {
    /// Returns the version for a record with its device and limits.
    pub(super) fn written_version(&self) -> u32 {
        if self.limits.is_some() {
            LIMITS_VERSION
        } else if self.device_id.is_some_and(|id| id >= LOOP_IDS) {
            LOOP_VERSION
        } else {
            ATTACHED_VERSION
        }
    }
}

/// The file of an [`AttachedRecord`].
pub(super) const RECORD: &str = "attached";

/// A [`Displaced`] writer.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DisplacedRecord {
    epoch: u64,
    node: String,
    since_unix_ms: u64,
}

impl From<Displaced> for DisplacedRecord {
    fn from(Displaced { epoch, node, since_unix_ms }: Displaced) -> Self {
        Self { epoch: epoch.0, node, since_unix_ms }
    }
}

impl From<DisplacedRecord> for Displaced {
    fn from(DisplacedRecord { epoch, node, since_unix_ms }: DisplacedRecord) -> Self {
        Self { epoch: Epoch(epoch), node, since_unix_ms }
    }
}

/// The [`IoLimits`] of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LimitsRecord {
    iops: Option<u64>,
    bytes_per_second: Option<u64>,
}

impl From<IoLimits> for LimitsRecord {
    fn from(IoLimits { iops, bytes_per_second }: IoLimits) -> Self {
        Self { iops, bytes_per_second }
    }
}

impl From<LimitsRecord> for IoLimits {
    fn from(LimitsRecord { iops, bytes_per_second }: LimitsRecord) -> Self {
        Self { iops, bytes_per_second }
    }
}

/// Parses an [`AttachedRecord`]: JSON in an envelope. The version is checked first, because other versions
/// may have other fields.
pub(super) fn attached_record(bytes: &[u8]) -> Result<AttachedRecord, LocalDamage> {
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    let text = wire::open(Kind::Attached, "the record of an attached volume", bytes)?;
    let Versioned { version } = serde_json::from_slice(text)?;
    if ![ATTACHED_VERSION, LOOP_VERSION, LIMITS_VERSION].contains(&version) {
        return Err(LocalDamage::Version { found: version, known: LIMITS_VERSION });
    }
    Ok(serde_json::from_slice(text)?)
}

/// Name of a [`Durability`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "Durability", rename_all = "snake_case")]
enum DurabilityWord {
    Local,
    Object,
}
