//! Names of objects, relative to the prefix of their store.
//!
//! ```text
//! volumes/<volume>/log/<seq:020>
//! volumes/<volume>/checkpoints/<seq:020>
//! volumes/<volume>/segments/<place:020>-<ulid>
//! volumes/<volume>/runs/<place:020>-<ulid>
//! volumes/<volume>/truncated/<seq:020>
//! volumes/<volume>/snapshots/<seq:020>
//! volumes/<volume>/forgotten/<seq:020>
//! volumes/<volume>/origins/<uid>
//! volumes/<volume>/prefetch/<seq:020>
//! trash/<volume>/<epoch:020>-<nonce:32>/entry
//! trash/<volume>/<epoch:020>-<nonce:32>/end
//! ```
//! Invariant: no key is also a prefix of another key followed by `/` (file-backed servers cannot hold `a` and
//! `a/b`).

use std::fmt;

use crate::{Epoch, Nonce, RunId, SegmentId, Seq, SnapshotUid, VolumeId};

/// The name of one object.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ObjectKey {
    /// A log record; creating it is the commit.
    Log(VolumeId, Seq),
    /// A whole manifest as of a seq.
    Checkpoint(VolumeId, Seq),
    /// Compressed frames and their index.
    Segment(VolumeId, SegmentId),
    /// An index over the frames of many segments.
    Run(VolumeId, RunId),
    /// Its existence means that log records up to this seq may be deleted.
    TruncationMarker(VolumeId, Seq),
    /// The root of a snapshot: the volume's content as of a seq.
    Snapshot(VolumeId, Seq),
    /// Its existence means that the snapshot of this seq no longer counts.
    Forgotten(VolumeId, Seq),
    /// The origin of the snapshot with this uid: labels of the objects that it was taken for.
    Origin(VolumeId, SnapshotUid),
    /// The blocks that a fork of the snapshot of this seq read first.
    PrefetchList(VolumeId, Seq),
}

/// The prefix of everything that belongs to volumes, ending in `/`.
pub const VOLUMES_PREFIX: &str = "volumes/";

/// The prefix of all keys about volumes in the trash, ending in `/`.
pub const TRASH_PREFIX: &str = "trash/";

/// Returns the prefix of everything that belongs to `volume`, ending in `/`.
pub fn volume_prefix(volume: &VolumeId) -> String {
    format!("{VOLUMES_PREFIX}{volume}/")
}

/// Returns the prefix of `volume`'s log, ending in `/`.
pub fn log_prefix(volume: &VolumeId) -> String {
    format!("volumes/{volume}/log/")
}

/// Returns the prefix of `volume`'s checkpoints, ending in `/`.
pub fn checkpoint_prefix(volume: &VolumeId) -> String {
    format!("volumes/{volume}/checkpoints/")
}

/// Returns the prefix of `volume`'s snapshots, ending in `/`.
pub fn snapshot_prefix(volume: &VolumeId) -> String {
    format!("volumes/{volume}/snapshots/")
}

/// Returns the prefix of the marks of `volume`'s forgotten snapshots, ending in `/`.
pub fn forgotten_prefix(volume: &VolumeId) -> String {
    format!("volumes/{volume}/forgotten/")
}

impl ObjectKey {
    /// Returns the volume that the object belongs to.
    pub fn volume(&self) -> &VolumeId {
        match self {
            Self::Log(volume, _)
            | Self::Checkpoint(volume, _)
            | Self::TruncationMarker(volume, _)
            | Self::Snapshot(volume, _)
            | Self::Forgotten(volume, _)
            | Self::Origin(volume, _)
            | Self::PrefetchList(volume, _)
            | Self::Segment(volume, _)
            | Self::Run(volume, _) => volume,
        }
    }

    /// Parses a key; `None` if it is not a key of this kind.
    pub fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix("volumes/")?;
        let (volume, rest) = rest.split_once('/')?;
        let volume: VolumeId = volume.parse().ok()?;
        let (kind, name) = rest.split_once('/')?;
        match kind {
            "log" => Some(Self::Log(volume, Seq::parse_padded(name)?)),
            "checkpoints" => Some(Self::Checkpoint(volume, Seq::parse_padded(name)?)),
            "truncated" => Some(Self::TruncationMarker(volume, Seq::parse_padded(name)?)),
            "snapshots" => Some(Self::Snapshot(volume, Seq::parse_padded(name)?)),
            "forgotten" => Some(Self::Forgotten(volume, Seq::parse_padded(name)?)),
            "origins" => {
                // A uid has only one key.
                let uid: SnapshotUid = name.parse().ok()?;
                (uid.to_string() == name).then_some(Self::Origin(volume, uid))
            }
            "prefetch" => Some(Self::PrefetchList(volume, Seq::parse_padded(name)?)),
            "runs" => Some(Self::Run(volume, RunId::parse(name)?)),
            "segments" => Some(Self::Segment(volume, SegmentId::parse(name)?)),
            _ => None,
        }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Log(volume, seq) => write!(f, "volumes/{volume}/log/{:020}", seq.0),
            Self::Checkpoint(volume, seq) => write!(f, "volumes/{volume}/checkpoints/{:020}", seq.0),
            Self::TruncationMarker(volume, seq) => write!(f, "volumes/{volume}/truncated/{:020}", seq.0),
            Self::Snapshot(volume, seq) => write!(f, "volumes/{volume}/snapshots/{:020}", seq.0),
            Self::Forgotten(volume, seq) => write!(f, "volumes/{volume}/forgotten/{:020}", seq.0),
            Self::Origin(volume, uid) => write!(f, "volumes/{volume}/origins/{uid}"),
            Self::PrefetchList(volume, seq) => write!(f, "volumes/{volume}/prefetch/{:020}", seq.0),
            Self::Run(volume, id) => write!(f, "volumes/{volume}/runs/{id}"),
            Self::Segment(volume, id) => write!(f, "volumes/{volume}/segments/{id}"),
        }
    }
}

/// A stay of a volume in the trash.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TrashStay {
    /// The volume.
    pub volume: VolumeId,
    /// Its epoch at that time, or [`TrashStay::UNREADABLE`].
    pub epoch: Epoch,
    /// Identifies this stay: no key of the trash is created twice.
    pub nonce: Nonce,
}

impl TrashStay {
    /// Replaces the epoch of a volume whose log could not be read.
    pub const UNREADABLE: Epoch = Epoch(u64::MAX);
}

/// The name of an object about a stay in the trash.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum TrashKey {
    /// The volume is in the trash.
    Entry(TrashStay),
    /// The end of the stay, and its reason.
    End(TrashStay),
}

/// Returns the prefix of `volume`'s stays in the trash, ending in `/`.
pub fn trash_prefix(volume: &VolumeId) -> String {
    format!("{TRASH_PREFIX}{volume}/")
}

impl TrashKey {
    /// Parses a key; `None` if it is not a key of this kind.
    pub fn parse(text: &str) -> Option<Self> {
        let (volume, rest) = text.strip_prefix(TRASH_PREFIX)?.split_once('/')?;
        let (stay, kind) = rest.split_once('/')?;
        let (epoch, nonce) = stay.split_once('-')?;
        let nonce = nonce.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')).then_some(nonce)?;
        let stay = TrashStay {
            volume: volume.parse().ok()?,
            epoch: Epoch(Seq::parse_padded(epoch)?.0),
            nonce: Nonce(u128::from_str_radix(nonce, 16).ok().filter(|_| nonce.len() == 32)?.to_be_bytes()),
        };
        match kind {
            "entry" => Some(Self::Entry(stay)),
            "end" => Some(Self::End(stay)),
            _ => None,
        }
    }
}

impl fmt::Display for TrashKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Entry(stay) | Self::End(stay)) = self;
        let kind = match self {
            Self::Entry(_) => "entry",
            Self::End(_) => "end",
        };
        let (volume, nonce) = (&stay.volume, u128::from_be_bytes(stay.nonce.0));
        write!(f, "{TRASH_PREFIX}{volume}/{:020}-{nonce:032x}/{kind}", stay.epoch.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Place;

    #[test]
    fn every_key_of_the_trash_survives_its_text() {
        let stay =
            TrashStay { volume: "v1".parse().unwrap(), epoch: Epoch(u64::MAX), nonce: Nonce([10; 16]) };
        for key in [TrashKey::Entry(stay.clone()), TrashKey::End(stay)] {
            assert_eq!(TrashKey::parse(&key.to_string()), Some(key));
        }
        let zeros = "00000000000000000000";
        for foreign in [
            "trash/v1/end".to_owned(),
            format!("trash/v1/{zeros}-{}/end", "0".repeat(31)),
            format!("trash/v1/{zeros}-+{}/end", "0".repeat(31)),
            format!("trash/V/{zeros}-{}/entry", "0".repeat(32)),
            format!("trash/v1/{zeros}-{}/other", "0".repeat(32)),
        ] {
            assert_eq!(TrashKey::parse(&foreign), None, "{foreign}");
        }
    }

    #[test]
    fn every_kind_of_key_survives_its_text() {
        let volume: VolumeId = "v1".parse().unwrap();
        for key in [
            ObjectKey::Log(volume.clone(), Seq(7)),
            ObjectKey::Checkpoint(volume.clone(), Seq(u64::MAX)),
            ObjectKey::Segment(volume.clone(), SegmentId::new(Place::until(Seq(9)), 5, [1; 10])),
            ObjectKey::Run(volume.clone(), RunId::new(Place::until(Seq(u64::MAX)), 5, [1; 10])),
            ObjectKey::TruncationMarker(volume.clone(), Seq(64)),
            ObjectKey::Snapshot(volume.clone(), Seq(65)),
            ObjectKey::Forgotten(volume.clone(), Seq(65)),
            ObjectKey::Origin(volume.clone(), SnapshotUid([10; 16])),
            ObjectKey::PrefetchList(volume.clone(), Seq(65)),
        ] {
            assert_eq!(ObjectKey::parse(&key.to_string()), Some(key));
        }
        for foreign in [
            "volumes/v1",
            "volumes/v1/log/7",
            "volumes/v1/log/+0000000000000000007",
            "volumes/V/log/00000000000000000007",
            "volumes/v1/segments/00000000000000000000000000",
            "volumes/v1/origins/0A0A0A0A-0a0a-0a0a-0a0a-0a0a0a0a0a0a",
            "x/v1/log/1",
        ] {
            assert_eq!(ObjectKey::parse(foreign), None, "{foreign}");
        }
    }
}
