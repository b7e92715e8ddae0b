//! The volumes of a store.

use holdfast_objects::{MAX_PAGE_ENTRIES, ObjectStore, StoreError};
use holdfast_types::VolumeId;
use holdfast_types::key::VOLUMES_PREFIX;

/// The ids of all volumes in the store, deleted ones among them, in the order of their keys: a LIST for each
/// 1,000. Foreign objects under the prefix are passed over.
///
/// # Errors
/// The store did not answer.
pub async fn list_volumes(objects: &dyn ObjectStore) -> Result<Vec<VolumeId>, StoreError> {
    let (mut ids, mut after) = (Vec::new(), None);
    loop {
        let page = objects.list_folders(VOLUMES_PREFIX, after.as_deref(), MAX_PAGE_ENTRIES).await?;
        ids.extend(page.names.iter().filter_map(|name| name.parse::<VolumeId>().ok()));
        after = page.next;
        if after.is_none() {
            return Ok(ids);
        }
    }
}
