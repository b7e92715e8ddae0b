//! The log record that a writer is about to create: a successor retries it with the same bytes.
//!
//! ```text
//! u64 seq    position of the record
//! record     its bytes, including its root
//! zeros      in the length of an envelope header, so that the remains cannot be read as its root
//! remains    of older records
//! ```
//! Room for the largest record of a volume is allocated at its attach, twice: each record is written into the
//! spare file, which then replaces the other one. A commit thus needs no free space, and commits are required
//! to evict data. Earlier versions created a new file for each record; they can read this one, including the
//! remains.
//! Invariants: a crash or a power failure leaves the complete old or new record.

use std::fs;
use std::io;
use std::path::Path;

use holdfast_engine::settings::Pending;
use holdfast_format::record::Record;
use holdfast_format::wire::ENVELOPE_BYTES;
use holdfast_types::Seq;

use crate::node::error::{NodeError, file};
use crate::node::local::record_file::{replace_synced, reserve_both};

const SEQ_BYTES: usize = size_of::<Seq>();

/// Allocates room for every record of a volume of `sectors` sectors, at `path` and in its spare file.
///
/// # Errors
/// No room.
pub(super) fn reserve(path: &Path, sectors: u64) -> Result<(), NodeError> {
    reserve_both(path, Record::max_writer_bytes(sectors) + (SEQ_BYTES + ENVELOPE_BYTES) as u64)
}

/// Replaces the last record by `pending`.
///
/// # Errors
/// An error of the local disk; the last record stays.
pub(super) fn store(path: &Path, pending: &Pending) -> Result<(), NodeError> {
    let Pending { seq, bytes } = pending;
    replace_synced(path, &[&seq.0.to_le_bytes()[..], bytes, &[0; ENVELOPE_BYTES]].concat())
}

/// Returns the last stored record, if any. Its own checksum shows if it is complete.
///
/// # Errors
/// The file cannot be read.
pub(super) fn read(path: &Path) -> Result<Option<Pending>, NodeError> {
    match fs::read(path) {
        Ok(bytes) => Ok(bytes.split_first_chunk::<SEQ_BYTES>().and_then(|(seq, behind)| {
            let bytes = Record::first_in(behind)?.to_vec();
            Some(Pending { seq: Seq(u64::from_le_bytes(*seq)), bytes })
        })),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(file(path, "read")(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use holdfast_format::record::Body;
    use holdfast_format::snapshot::SnapshotChange;
    use holdfast_types::{Epoch, Nonce};

    use super::*;
    use crate::node::local::record_file::spare;
    use crate::node::tests::host::SmallTmpfs;

    const SECTORS: u64 = 1 << 20;

    /// Returns a record at `seq` whose length rises with the number of `dropped` snapshots.
    fn pending(seq: u64, dropped: u64) -> Pending {
        let dropped = (0..dropped).map(Seq).collect();
        let body = Body::of_snapshots(SnapshotChange { taken: None, dropped });
        let (volume, nonce) = ("disk".parse().unwrap(), Nonce([7; 16]));
        let record = Record { volume, seq: Seq(seq), epoch: Epoch(1), nonce, unix_ms: 0, body };
        Pending { seq: Seq(seq), bytes: record.encode() }
    }

    /// Regression: on a disk filled by others, the segment was uploaded but its record was never created, so
    /// nothing could be evicted.
    #[test]
    fn a_full_disk_keeps_every_record() {
        let Some(tmpfs) = SmallTmpfs::mount(512 << 10) else { return };
        let path = tmpfs.path().join("pending");
        reserve(&path, SECTORS).unwrap();
        assert!(read(&path).unwrap().is_none());
        tmpfs.fill();
        for (seq, dropped) in (1..).zip([1, 4096, 0, 700, 4096, 3]) {
            store(&path, &pending(seq, dropped)).unwrap();
            assert_eq!(read(&path).unwrap().map(|found| (found.seq, found.bytes)), {
                let Pending { seq, bytes } = pending(seq, dropped);
                Some((seq, bytes))
            });
        }
        reserve(&path, SECTORS).expect("a recovery finds its room");
    }

    /// Records of two kinds can have equal length up to a root: an older record's root must not be used.
    #[test]
    fn remains_of_an_older_record_are_no_root() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pending");
        let Pending { seq, bytes } = pending(7, 1);
        let with_root = Pending { seq, bytes: [bytes.clone(), bytes.clone()].concat() };
        for _ in 0..2 {
            store(&path, &with_root).unwrap();
        }
        assert_eq!(read(&path).unwrap().unwrap().bytes, with_root.bytes);
        store(&path, &pending(7, 1)).unwrap();
        assert_eq!(read(&path).unwrap().unwrap().bytes, bytes);
    }

    #[test]
    fn a_record_that_was_half_written_replaces_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pending");
        reserve(&path, SECTORS).unwrap();
        store(&path, &pending(7, 1)).unwrap();
        let next = fs::OpenOptions::new().write(true).open(spare(&path)).unwrap();
        next.write_all_at(&pending(8, 1).bytes[..40], 0).unwrap();
        assert_eq!(read(&path).unwrap().unwrap().seq, Seq(7));
        store(&path, &pending(9, 1)).unwrap();
        assert_eq!(read(&path).unwrap().unwrap().seq, Seq(9));
    }

    /// An upgrade finds the file of an earlier version, and vice versa.
    #[test]
    fn records_of_earlier_versions_are_read_and_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pending");
        let Pending { seq, bytes } = pending(7, 1);
        fs::write(&path, [&seq.0.to_le_bytes()[..], &bytes].concat()).unwrap();
        for _ in 0..2 {
            assert_eq!(
                read(&path).unwrap().map(|found| (found.seq, found.bytes)),
                Some((seq, bytes.clone()))
            );
            reserve(&path, SECTORS).unwrap();
        }
        store(&path, &pending(8, 4096)).unwrap();
        store(&path, &pending(9, 2)).unwrap();
        // As an earlier version reads it: everything after the seq.
        let all = fs::read(&path).unwrap();
        let record = Record::decode(&all[SEQ_BYTES..]).unwrap();
        assert_eq!(record.encode(), pending(9, 2).bytes);
    }
}
