//! Lists of a store's volumes, and of the objects of a volume.

use std::collections::BTreeSet;

use holdfast_objects::{MAX_PAGE_ENTRIES, ObjectStore, StoreError};
use holdfast_types::key::{ObjectKey, VOLUMES_PREFIX, log_prefix};
use holdfast_types::{Seq, VolumeId};

use crate::error::{LogFailure, store};

/// Bytes to read from an object that should be empty.
const MAX_EMPTY_BYTES: u64 = 1 << 10;

/// Returns the ids of all volumes in the store, including deleted ones: one LIST per 1,000. Skips foreign
/// objects under the prefix.
///
/// # Errors
/// The store did not answer.
pub async fn list_volumes(objects: &dyn ObjectStore) -> Result<Vec<VolumeId>, StoreError> {
    let (mut names, mut seen, mut from) = (Vec::new(), BTreeSet::new(), None);
    loop {
        let page = objects.list_folders(VOLUMES_PREFIX, from.as_deref(), MAX_PAGE_ENTRIES).await?;
        let before = names.len();
        let is_empty = page.names.is_empty();
        names.extend(page.names.into_iter().filter(|name| seen.insert(name.clone())));
        let Some(next) = page.next else { break };
        // A server that ignores its own tokens would list the same page permanently.
        if (names.len() == before && !is_empty) || from.as_ref() == Some(&next) {
            return Err(StoreError::BadAnswer { field: "other folders on the next page of a list" });
        }
        from = Some(next);
    }
    Ok(names.iter().filter_map(|name| name.parse::<VolumeId>().ok()).collect())
}

/// Returns true if a marker object exists, whose presence alone counts: one GET. A nonempty object, such as a
/// proxy's page, is an error.
pub(crate) async fn is_present(
    objects: &dyn ObjectStore,
    what: &'static str,
    key: &ObjectKey,
) -> Result<bool, LogFailure> {
    let name = key.to_string();
    match objects.get(&name, MAX_EMPTY_BYTES).await {
        Ok(body) if body.is_empty() => Ok(true),
        Ok(body) => Err(LogFailure::NotEmpty { key: name, bytes: body.len() }),
        Err(StoreError::TooLarge { size_bytes, .. }) => {
            let bytes = usize::try_from(size_bytes).unwrap_or(usize::MAX);
            Err(LogFailure::NotEmpty { key: name, bytes })
        }
        Err(StoreError::NotFound { .. }) => Ok(false),
        Err(error) => Err(store(what, key.volume())(error)),
    }
}

/// Returns the seqs of the records after `after`, ascending.
pub(crate) async fn records_after(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    after: Seq,
) -> Result<Vec<Seq>, LogFailure> {
    let start = (after > Seq(0)).then(|| ObjectKey::Log(volume.clone(), after).to_string());
    seqs_under(objects, volume, &log_prefix(volume), start).await
}

/// Returns the seqs of the objects under a prefix.
pub(crate) async fn seqs_under(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    prefix: &str,
    mut start_after: Option<String>,
) -> Result<Vec<Seq>, LogFailure> {
    let mut seqs = Vec::new();
    loop {
        let page = objects
            .list(prefix, start_after.as_deref(), MAX_PAGE_ENTRIES)
            .await
            .map_err(store("list the log", volume))?;
        for entry in &page.entries {
            match ObjectKey::parse(&entry.key) {
                Some(
                    ObjectKey::Log(_, seq)
                    | ObjectKey::Checkpoint(_, seq)
                    | ObjectKey::Snapshot(_, seq)
                    | ObjectKey::Forgotten(_, seq),
                ) => seqs.push(seq),
                // A foreign object under the store's prefix is no evidence about the volume.
                Some(
                    ObjectKey::Segment(..)
                    | ObjectKey::Run(..)
                    | ObjectKey::TruncationMarker(..)
                    | ObjectKey::Origin(..)
                    | ObjectKey::PrefetchList(..),
                )
                | None => {}
            }
        }
        match page.entries.last() {
            Some(last) if page.more => start_after = Some(last.key.clone()),
            Some(_) | None => return Ok(seqs),
        }
    }
}
