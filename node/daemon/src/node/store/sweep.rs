//! Sweeps requested by a user: one at a time for each store.
//!
//! Invariants: a sweep sends its requests through the client that the store's volumes use, with its limits.
//! It keeps no state for the next one.
//! On failure: the next sweep deletes the rest.

use std::time::Duration;

use holdfast_log::sweep::{ABORT_RIGHTS, SweepMemory, SweepOptions, SweepReport, sweep};
use holdfast_s3::S3Config;
use holdfast_service::chain;

use crate::node::error::NodeError;
use crate::node::store::change::NodeStores;

/// Request for a sweep.
#[derive(Debug, Clone)]
pub(crate) struct SweepRequest {
    /// Name of the store.
    pub(crate) name: String,
    /// The store.
    pub(crate) store: S3Config,
    /// Minimum age of deleted objects, by the store's clock.
    pub(crate) grace: Duration,
    /// Only counts, deletes nothing.
    pub(crate) dry_run: bool,
    /// Maximum number of deleted objects.
    pub(crate) most: u64,
}

/// Sweeps of the stores of this node.
pub(crate) struct Sweeps<'a> {
    pub(in crate::node) stores: &'a NodeStores,
}

impl Sweeps<'_> {
    /// Deletes the objects of a store that no volume needs.
    ///
    /// # Errors
    /// [`NodeError::Sweeping`]; the store's error.
    #[tracing::instrument(skip_all, fields(store = %request.name, dry_run = request.dry_run))]
    pub(crate) async fn sweep(&self, request: SweepRequest) -> Result<SweepReport, NodeError> {
        let SweepRequest { name, store, grace, dry_run, most } = request;
        let Some(_alone) = self.stores.sweep_alone(&name) else { return Err(NodeError::Sweeping { name }) };
        let objects = self.stores.connected(&name, &store).await?;
        let options = SweepOptions { grace, dry_run, most };
        let report = sweep(&*objects, &mut SweepMemory::default(), options).await?;
        tracing::info!(
            volumes = report.volumes,
            garbage_bytes = report.garbage.bytes,
            deleted_objects = report.deleted.objects,
            deleted_bytes = report.deleted.bytes,
            skipped = report.skipped.len(),
            aborted_uploads = report.uploads.aborted,
            "store swept"
        );
        if let Some(error) = &report.uploads.failed {
            tracing::warn!(error = chain(error), "unfinished uploads stay and are billed; {ABORT_RIGHTS}");
        }
        Ok(report)
    }
}
