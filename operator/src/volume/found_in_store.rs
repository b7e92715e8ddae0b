//! The volume stored under an identity in an object store.

use holdfast_crds::Time;
use holdfast_format::manifest::{Manifest, Writer};
use holdfast_log::LogFailure;
use holdfast_objects::ObjectStore;
use holdfast_types::{SECTOR_BYTES, VolumeId};
use k8s_openapi::jiff::Timestamp;

/// Content of an object store under an identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FoundInStore {
    /// Nothing.
    Nothing,
    /// The remains of a volume that was deleted.
    Tombstone,
    /// A volume.
    Volume {
        /// Logical size.
        size_bytes: u64,
        /// The writer of the last attach.
        last: Option<LastWriter>,
    },
}

/// The writer of a volume's last attach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LastWriter {
    /// Its node.
    pub(crate) node: String,
    /// Its epoch.
    pub(crate) epoch: u64,
    /// Time of its attach.
    pub(crate) since: Option<Time>,
    /// True if it did not detach.
    pub(crate) is_attached: bool,
}

impl FoundInStore {
    /// Reads it from the store: a LIST, and a GET of the last record of a detached volume, otherwise of each
    /// record since the last checkpoint.
    ///
    /// # Errors
    /// The part of the log that cannot be read.
    pub(crate) async fn read(objects: &dyn ObjectStore, volume: &VolumeId) -> Result<Self, LogFailure> {
        Ok(Self::of(&holdfast_log::read_manifest_to_end(objects, volume).await?))
    }

    /// Returns the content described by a log.
    pub(crate) fn of(manifest: &Manifest) -> Self {
        if manifest.is_deleted() {
            return Self::Tombstone;
        }
        if !manifest.exists() {
            return Self::Nothing;
        }
        let last = manifest.newest_writer().map(|Writer { epoch, nonce: _, node, since_unix_ms }| {
            let since = i64::try_from(since_unix_ms).ok();
            LastWriter {
                node,
                epoch: epoch.0,
                since: since.and_then(|ms| Timestamp::from_millisecond(ms).ok()).map(Time),
                is_attached: manifest.is_attached(),
            }
        });
        Self::Volume { size_bytes: manifest.sectors() * SECTOR_BYTES, last }
    }
}

#[cfg(test)]
mod tests {
    use holdfast_format::record::{Body, Record};
    use holdfast_log::{CreateOutcome, Creation};
    use holdfast_objects::MemoryStore;
    use holdfast_types::{Epoch, Nonce, Seq};

    use super::super::adoption::history;
    use super::*;

    fn id() -> VolumeId {
        "v".parse().expect("an id")
    }

    async fn add(store: &MemoryStore, seq: u64, body: Body) {
        let (volume, nonce) = (id(), Nonce([1; 16]));
        let record = Record { volume, seq: Seq(seq), epoch: Epoch(1), nonce, unix_ms: 1000, body };
        assert_eq!(
            holdfast_log::create_record(store, &record).await.expect("stored"),
            CreateOutcome::Created
        );
    }

    #[tokio::test]
    async fn the_log_says_size_and_last_writer_without_a_put() {
        let store = MemoryStore::new();
        assert_eq!(FoundInStore::read(&store, &id()).await.expect("read"), FoundInStore::Nothing);
        holdfast_log::provision(&store, &id(), Creation::plain(100, Nonce([9; 16]), 0))
            .await
            .expect("created");
        let read = |last| FoundInStore::Volume { size_bytes: 100 * SECTOR_BYTES, last };
        assert_eq!(FoundInStore::read(&store, &id()).await.expect("read"), read(None));
        add(&store, 2, Body::Attach { sectors: 100, node: "a".to_owned(), displaced: None }).await;
        let since = Some(Time("1970-01-01T00:00:01Z".parse().expect("a time")));
        let last = LastWriter { node: "a".to_owned(), epoch: 1, since, is_attached: true };
        assert_eq!(FoundInStore::read(&store, &id()).await.expect("read"), read(Some(last.clone())));
        assert!(history(Some(&last)).contains("holdfast.dev/force-detach=a"));
        add(&store, 3, Body::Detach { root: None }).await;
        let puts = store.counts().put;
        let last = LastWriter { is_attached: false, ..last };
        assert_eq!(FoundInStore::read(&store, &id()).await.expect("read"), read(Some(last.clone())));
        assert!(history(Some(&last)).ends_with("detached it after its last commit"));
        assert_eq!(store.counts().put, puts);
        holdfast_log::remove(&store, &id(), Nonce([0; 16]), 0, None).await.expect("removed");
        assert_eq!(FoundInStore::read(&store, &id()).await.expect("read"), FoundInStore::Tombstone);
    }
}
