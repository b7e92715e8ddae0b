//! Origin of a volume's content: the snapshot that it was forked from.

use std::fmt;
use std::str::FromStr;

use crate::{Seq, VolumeId};

/// Names a snapshot: `<volume>@<seq>`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SnapshotName {
    /// The volume that it is of.
    pub volume: VolumeId,
    /// Its place in the volume's log.
    pub seq: Seq,
}

impl fmt::Display for SnapshotName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.volume, self.seq)
    }
}

/// A text that names no snapshot.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_snapshot_survives_its_text() {
        let name: SnapshotName = "a-b@7".parse().unwrap();
        assert_eq!((name.volume.as_str(), name.seq, name.to_string()), ("a-b", Seq(7), "a-b@7".to_owned()));
        for foreign in ["a", "a@", "@7", "a@x", "A@7"] {
            let refused = foreign.parse::<SnapshotName>().unwrap_err().to_string();
            assert!(refused.contains(&format!("`{foreign}` names no snapshot")), "{refused}");
        }
    }
}
