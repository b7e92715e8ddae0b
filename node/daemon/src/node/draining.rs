//! The drain of this node: meanwhile its volumes commit early, so that the final commit of each is small.
//!
//! ```text
//! <run>/draining      exists while the node is being drained (tmpfs)
//! ```
//!
//! Owns: that file, from which a restarted daemon resumes before it has asked the API server.
//! Does not own: the limits (`holdfast_engine::limit`), or the detection of a drain.
//! On failure: the volumes still commit early, but those of a restarted daemon only after the next request.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use futures::future::join_all;

use crate::node::Node;
use crate::node::ring::placement::Rings;
use holdfast_serve::Message;

/// Name of the file in the run directory.
const FILE: &str = "draining";

/// Makes the volumes to be recovered commit early if the previous daemon was asked to.
pub(super) async fn resume(run_dir: &Path, rings: &Rings) {
    if run_dir.join(FILE).exists() {
        tracing::info!("the node was being drained: its volumes commit early");
        commit_soon(rings, true).await;
    }
}

/// Makes all volumes commit early from now on, or no longer.
pub(super) async fn commit_soon(rings: &Rings, soon: bool) {
    join_all(rings.iter().map(|ring| ring.send(Message::CommitSoon(soon)))).await;
}

impl Node {
    /// Starts or ends the drain of this node. Repeating it is a no-op.
    pub(crate) async fn set_draining(&self, draining: bool) {
        let file = self.0.config.run_dir.join(FILE);
        let remembered = if draining {
            File::create(&file).map(drop)
        } else {
            match fs::remove_file(&file) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                removed => removed,
            }
        };
        if let Err(error) = remembered {
            tracing::warn!(file = %file.display(), %error, draining, "the drain state was not recorded for a restarted daemon");
        }
        commit_soon(&self.0.rings, draining).await;
    }
}
