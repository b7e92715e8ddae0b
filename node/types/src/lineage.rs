//! Origin of a volume's content: the snapshot from which it was forked, and its ancestors.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::key::ObjectKey;
use crate::{RunId, SegmentId, Seq, VolumeId};

/// Name of a snapshot: `<volume>@<seq>`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SnapshotName {
    /// The volume of the snapshot.
    pub volume: VolumeId,
    /// Its position in the volume's log.
    pub seq: Seq,
}

impl fmt::Display for SnapshotName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.volume, self.seq)
    }
}

/// A text that is not a snapshot name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` names no snapshot: write <volume>@<number>, as `snapshot list` shows it")]
pub struct InvalidSnapshotName(pub String);

impl FromStr for SnapshotName {
    type Err = InvalidSnapshotName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || InvalidSnapshotName(text.to_owned());
        let (volume, seq) = text.rsplit_once('@').ok_or_else(invalid)?;
        let volume = volume.parse().map_err(|_no_id| invalid())?;
        Ok(Self { volume, seq: Seq(seq.parse().map_err(|_no_number| invalid())?) })
    }
}

/// A volume and its ancestors, whose objects it reads because it is a fork of one of their snapshots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lineage {
    volume: VolumeId,
    /// Nearest first.
    ancestors: Arc<[VolumeId]>,
}

impl Lineage {
    /// Maximum number of ancestors.
    pub const MAX_ANCESTORS: usize = 100;

    /// Returns the lineage of a volume that is not a fork.
    pub fn of(volume: VolumeId) -> Self {
        Self { volume, ancestors: Arc::default() }
    }

    /// Returns the lineage of a volume with these ancestors, nearest first; `None` if there are too many.
    pub fn with_ancestors(volume: VolumeId, ancestors: Vec<VolumeId>) -> Option<Self> {
        let fits = ancestors.len() <= Self::MAX_ANCESTORS;
        fits.then(|| Self { volume, ancestors: ancestors.into() })
    }

    /// Returns the volume.
    pub fn volume(&self) -> &VolumeId {
        &self.volume
    }

    /// Returns its ancestors, nearest first.
    pub fn ancestors(&self) -> &[VolumeId] {
        &self.ancestors
    }

    /// Returns the key of a segment.
    pub fn segment_key(&self, id: SegmentId) -> String {
        ObjectKey::Segment(self.owner(id.0.owner).clone(), id).to_string()
    }

    /// Returns the key of a merged run.
    pub fn run_key(&self, id: RunId) -> String {
        ObjectKey::Run(self.owner(id.0.owner).clone(), id).to_string()
    }

    /// Returns the ancestor that is `forks` forks away. Without such an ancestor it returns the volume
    /// itself, in which the object cannot be found.
    pub fn owner(&self, forks: u8) -> &VolumeId {
        let ancestor = usize::from(forks).checked_sub(1).and_then(|above| self.ancestors.get(above));
        ancestor.unwrap_or(&self.volume)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Place;

    #[test]
    fn the_name_of_a_snapshot_survives_its_text() {
        let name: SnapshotName = "a-b@7".parse().unwrap();
        assert_eq!((name.volume.as_str(), name.seq, name.to_string()), ("a-b", Seq(7), "a-b@7".to_owned()));
        for foreign in ["a", "a@", "@7", "a@x", "A@7"] {
            let refused = foreign.parse::<SnapshotName>().unwrap_err().to_string();
            assert!(refused.contains(&format!("`{foreign}` names no snapshot")), "{refused}");
        }
    }

    #[test]
    fn an_object_is_looked_for_under_its_owner() {
        let volumes = ["c", "b", "a"].map(|name| name.parse::<VolumeId>().unwrap());
        let lineage = Lineage::with_ancestors(volumes[0].clone(), volumes[1..].to_vec()).unwrap();
        let mut id = SegmentId::new(Place::until(Seq(9)), 1, [1; 10]);
        for volume in &volumes {
            assert_eq!(lineage.segment_key(id), format!("volumes/{volume}/segments/{id}"));
            id = id.inherited(1).unwrap();
        }
    }
}
