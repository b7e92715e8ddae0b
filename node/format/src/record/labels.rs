//! Labels of a create record and of a snapshot: their purpose, in names that a new cluster can interpret.

use std::collections::BTreeMap;
use std::fmt;

use crate::limit::MAX_LABEL_BYTES;
use crate::wire::{self, DecodeError, Kind, Reader};

/// Names and values, ascending by name. With their length bytes they take at most [`MAX_LABEL_BYTES`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Labels(BTreeMap<String, String>);

/// The object that a volume was created for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// Uid of the object's cluster; `None` for a volume created on the command line.
    pub cluster: Option<String>,
    /// Its name.
    pub volume: Option<String>,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self { cluster: Some(cluster), volume: Some(volume) } => {
                write!(f, "Volume `{volume}` of cluster {cluster}")
            }
            Self { cluster: None, .. } | Self { volume: None, .. } => f.write_str("the command line"),
        }
    }
}

impl Labels {
    /// Uid of the cluster: that of its namespace `kube-system`.
    pub const CLUSTER: &str = "cluster";
    /// Name of the Volume object.
    pub const VOLUME: &str = "volume";
    /// Namespace of the PersistentVolumeClaim.
    pub const CLAIM_NAMESPACE: &str = "claimNamespace";
    /// Name of the PersistentVolumeClaim.
    pub const CLAIM_NAME: &str = "claimName";
    /// Name of its StorageClass.
    pub const STORAGE_CLASS: &str = "storageClass";
    /// File system that its pods request; absent for a raw device.
    pub const FS_TYPE: &str = "fsType";

    /// Name of the VolumeSnapshot object, which is the handle of the snapshot in CSI.
    pub const SNAPSHOT: &str = "snapshot";
    /// Namespace of the user's VolumeSnapshot, of `snapshot.storage.k8s.io`.
    pub const USER_SNAPSHOT_NAMESPACE: &str = "userSnapshotNamespace";
    /// Name of the user's VolumeSnapshot.
    pub const USER_SNAPSHOT_NAME: &str = "userSnapshotName";

    /// Purpose of a snapshot without a user's request: [`Labels::FOR_CLONE`] or [`Labels::FOR_READERS`].
    pub const MADE_FOR: &str = "madeFor";
    /// It was taken for a clone of the volume.
    pub const FOR_CLONE: &str = "clone";
    /// It was taken for the nodes that read the volume.
    pub const FOR_READERS: &str = "readers";

    /// Maximum bytes of the object that [`Labels::encode`] creates.
    pub const MAX_ENCODED_BYTES: usize = wire::ENVELOPE_BYTES + MAX_LABEL_BYTES;

    /// Returns the object for which the volume was created.
    pub fn origin(&self) -> Origin {
        let owned = |name| self.get(name).map(str::to_owned);
        Origin { cluster: owned(Self::CLUSTER), volume: owned(Self::VOLUME) }
    }

    /// Adds a label and returns true; returns false, and adds nothing, if it is empty, already present or
    /// too long.
    pub fn insert(&mut self, name: &str, value: &str) -> bool {
        let is_text = |text: &str| (1..=255).contains(&text.len());
        let fits = self.bytes() + bytes_of(name, value) <= MAX_LABEL_BYTES;
        let is_new = is_text(name) && is_text(value) && fits && !self.0.contains_key(name);
        if is_new {
            self.0.insert(name.to_owned(), value.to_owned());
        }
        is_new
    }

    /// Returns the value of the label with this name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Returns the labels as a separate object: the origin of a snapshot.
    pub fn encode(&self) -> Vec<u8> {
        let mut payload = Vec::new();
        self.put(&mut payload);
        wire::enclose(Kind::Origin, &payload)
    }

    /// Reads the result of [`Labels::encode`].
    ///
    /// # Errors
    /// The first violation of the format.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        const WHAT: &str = "origin of a snapshot";
        Self::take(&mut Reader::new(WHAT, wire::open(Kind::Origin, WHAT, bytes)?))
    }

    fn bytes(&self) -> usize {
        self.0.iter().map(|(name, value)| bytes_of(name, value)).sum()
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        for (name, value) in &self.0 {
            wire::put_text(out, name);
            wire::put_text(out, value);
        }
    }

    /// Reads labels up to the end of the fields.
    pub(crate) fn take(fields: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let bytes = fields.left();
        if bytes > MAX_LABEL_BYTES {
            return Err(fields.bad("bytes of labels", bytes as u64));
        }
        let mut labels = Self::default();
        while fields.left() > 0 {
            let (name, value) = (fields.text()?, fields.text()?);
            let is_ascending = labels.0.last_key_value().is_none_or(|(last, _)| *last < name);
            if !is_ascending || !labels.insert(&name, &value) {
                return Err(fields.bad("label", labels.0.len() as u64));
            }
        }
        Ok(labels)
    }
}

/// Returns the size of a label in a record, in bytes.
fn bytes_of(name: &str, value: &str) -> usize {
    2 + name.len() + value.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<Labels, DecodeError> {
        Labels::take(&mut Reader::new("labels", bytes))
    }

    #[test]
    fn labels_survive_their_bytes_up_to_the_limit() {
        let mut labels = Labels::default();
        assert!(labels.insert("claim", "data") && labels.insert("a", &"x".repeat(255)));
        assert!(labels.insert("b", &"x".repeat(255)) && labels.insert("c", &"x".repeat(255)));
        assert!(!labels.insert("d", &"x".repeat(255)), "1 KiB in all");
        assert!(!labels.insert("e", &"x".repeat(256)) && !labels.insert("e", "") && !labels.insert("", "e"));
        assert!(!labels.insert("claim", "other"), "it is there");
        assert_eq!((labels.get("claim"), labels.get("d")), (Some("data"), None));
        let mut bytes = Vec::new();
        labels.put(&mut bytes);
        assert_eq!((bytes.len(), read(&bytes)), (labels.bytes(), Ok(labels)));
        assert_eq!(read(&[]), Ok(Labels::default()));
        let mut origin = Labels::default();
        assert!(origin.insert(Labels::SNAPSHOT, "nightly"));
        let mut bytes = origin.encode();
        assert_eq!(Labels::decode(&bytes), Ok(origin));
        bytes[40] ^= 1;
        assert!(Labels::decode(&bytes).is_err(), "one bit changed");
    }

    #[test]
    fn labels_that_were_not_written_so_are_refused() {
        for bytes in [
            &b"\x01b\x01x\x01a\x01x"[..],
            b"\x01a\x01x\x01a\x01y",
            b"\x00\x01x",
            b"\x01a\x00",
            b"\x01a",
            b"\x01a\x02x",
            b"\x01a\x01\xff",
            &[1; MAX_LABEL_BYTES + 1],
        ] {
            assert!(read(bytes).is_err(), "{bytes:?}");
        }
    }
}
