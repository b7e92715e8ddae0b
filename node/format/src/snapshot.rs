//! Snapshots: positions of a volume's log whose content is kept.
//!
//! A snapshot is named by the seq of the record that registers it. Its *root* is stored before that
//! record: a checkpoint with the volume's content at that point, without its writers. The root's bytes thus
//! follow from the log and the record, and are the same each time it is created.
//!
//! ```text
//! in a checkpoint, for each registered snapshot:
//!     u64 seq   u8[16] uid   u64 unix milliseconds of the record   u64 sectors
//! in a record:
//!     u8 0, or u8 1 and u8[16] uid   u32 n, n x u64 seq of a snapshot that is registered no longer
//! ```

use std::collections::BTreeSet;

use holdfast_types::{Seq, SnapshotUid};

use crate::limit::{MAX_SECTORS, MAX_SNAPSHOTS};
use crate::wire::{DecodeError, Reader};

/// A snapshot that is registered in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Snapshot {
    /// Its position: the seq of the record that registered it.
    pub seq: Seq,
    /// Identifies the snapshot.
    pub uid: SnapshotUid,
    /// Time of its record, milliseconds since 1970 by the clock of its creator.
    pub unix_ms: u64,
    /// Logical size of the volume at that position.
    pub sectors: u64,
}

/// Changes of a record to a volume's list of snapshots.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SnapshotChange {
    /// The record registers a snapshot with this uid.
    pub taken: Option<SnapshotUid>,
    /// Forgotten snapshots that are no longer registered.
    pub dropped: Vec<Seq>,
}

impl Snapshot {
    /// Bytes of an encoded snapshot.
    const BYTES: usize = 40;

    /// Appends a list.
    pub(crate) fn put_all(list: &[Self], out: &mut Vec<u8>) {
        let count = u32::try_from(list.len()).expect("MAX_SNAPSHOTS fits");
        out.extend_from_slice(&count.to_le_bytes());
        for Self { seq, uid, unix_ms, sectors } in list {
            out.extend_from_slice(&seq.0.to_le_bytes());
            out.extend_from_slice(&uid.0);
            out.extend_from_slice(&unix_ms.to_le_bytes());
            out.extend_from_slice(&sectors.to_le_bytes());
        }
    }

    /// Reads the list of a volume whose log ends at `end`, in ascending order.
    pub(crate) fn take_all(fields: &mut Reader<'_>, end: Seq) -> Result<Vec<Self>, DecodeError> {
        let count = fields.count(Self::BYTES)?;
        if count > MAX_SNAPSHOTS {
            return Err(fields.bad("number of snapshots", count as u64));
        }
        let mut list: Vec<Self> = Vec::with_capacity(count);
        for _ in 0..count {
            let (seq, uid) = (Seq(fields.u64()?), SnapshotUid(fields.array()?));
            let (unix_ms, sectors) = (fields.u64()?, fields.u64()?);
            if seq > end || list.last().is_some_and(|last| last.seq >= seq) {
                return Err(fields.bad("seq of a snapshot", seq.0));
            }
            if sectors > MAX_SECTORS {
                return Err(fields.bad("sectors of a snapshot", sectors));
            }
            list.push(Self { seq, uid, unix_ms, sectors });
        }
        Ok(list)
    }
}

impl SnapshotChange {
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(self.taken.is_some()));
        out.extend(self.taken.iter().flat_map(|uid| uid.0));
        let count = u32::try_from(self.dropped.len()).expect("MAX_SNAPSHOTS fits");
        out.extend_from_slice(&count.to_le_bytes());
        out.extend(self.dropped.iter().flat_map(|seq| seq.0.to_le_bytes()));
    }

    pub(crate) fn take(fields: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let taken = match fields.u8()? {
            0 => None,
            1 => Some(SnapshotUid(fields.array()?)),
            other => return Err(fields.bad("snapshot", u64::from(other))),
        };
        let dropped = (0..fields.count(8)?).map(|_| Ok(Seq(fields.u64()?))).collect::<Result<_, _>>()?;
        Ok(Self { taken, dropped })
    }

    /// Returns the list after the record of `own`, whose uid counts only with `taken`. `None` if the change
    /// is invalid: a dropped snapshot is not registered, the new one already is, or there are too many.
    pub fn applied(&self, list: &[Snapshot], own: Snapshot) -> Option<Vec<Snapshot>> {
        let dropped: BTreeSet<Seq> = self.dropped.iter().copied().collect();
        let kept = list.iter().filter(|known| !dropped.contains(&known.seq));
        let mut after: Vec<Snapshot> = kept.copied().collect();
        if after.len() + dropped.len() != list.len() {
            return None;
        }
        if let Some(uid) = self.taken {
            let is_known = after.iter().any(|known| known.uid == uid);
            if is_known || after.len() >= MAX_SNAPSHOTS {
                return None;
            }
            after.push(Snapshot { uid, ..own });
        }
        Some(after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(seq: u64) -> Snapshot {
        Snapshot { seq: Seq(seq), uid: SnapshotUid([u8::try_from(seq).unwrap(); 16]), unix_ms: 0, sectors: 8 }
    }

    /// Lists in records are unordered, and may name a position twice.
    #[test]
    fn only_registered_snapshots_are_dropped() {
        let list = [2, 4, 6].map(known);
        let dropped = |seqs: &[u64]| {
            let change = SnapshotChange { taken: None, dropped: seqs.iter().map(|seq| Seq(*seq)).collect() };
            change.applied(&list, known(9))
        };
        assert_eq!(dropped(&[]), Some(list.to_vec()));
        assert_eq!(dropped(&[6, 2, 6]), Some(vec![known(4)]));
        for unknown in [&[3][..], &[2, 7], &[4, 4, 9]] {
            assert_eq!(dropped(unknown), None, "{unknown:?}");
        }
        let change = SnapshotChange { taken: Some(known(9).uid), dropped: vec![Seq(4)] };
        assert_eq!(change.applied(&list, known(9)), Some([2, 6, 9].map(known).to_vec()));
    }
}
