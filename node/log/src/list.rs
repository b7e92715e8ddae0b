//! The volumes of a store.

use holdfast_objects::{ObjectStore, StoreError};
use holdfast_types::VolumeId;
use holdfast_types::key::VOLUMES_PREFIX;

/// The ids of all volumes in the store, deleted ones among them, in the order of their keys: one LIST for
/// each, and one more. Foreign objects under the prefix are passed over.
///
/// # Errors
/// The store did not answer.
pub async fn list_volumes(objects: &dyn ObjectStore) -> Result<Vec<VolumeId>, StoreError> {
    let mut ids = Vec::new();
    let mut after: Option<String> = None;
    loop {
        let page = objects.list(VOLUMES_PREFIX, after.as_deref(), 1).await?;
        let Some(entry) = page.entries.first() else { return Ok(ids) };
        let rest = entry.key.strip_prefix(VOLUMES_PREFIX).unwrap_or_default();
        let Some((name, _)) = rest.split_once('/') else {
            after = Some(entry.key.clone());
            continue;
        };
        ids.extend(name.parse::<VolumeId>());
        // The character after '/': behind all keys of this volume, before those of any other.
        after = Some(format!("{VOLUMES_PREFIX}{name}0"));
    }
}
