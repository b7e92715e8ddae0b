//! The drain of this node: meanwhile its volumes commit soon, so that the last commit of each is small.
//!
//! ```text
//! <run>/draining      there while the node is being drained (tmpfs)
//! ```
//!
//! Owns: that file, by which a restarted daemon continues before it has asked the API server.
//! Does not own: the limits (`holdfast_engine::limit`), nor who says that the node is drained.
//! On failure: the volumes commit soon all the same; a restarted daemon does not until it is asked to again.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use futures::future::join_all;

use crate::node::Node;
use crate::node::ring::placement::Rings;
use holdfast_serve::Message;

/// Name of the file in the run directory.
const FILE: &str = "draining";

/// Lets the volumes that will be recovered commit soon if the previous daemon was asked to.
pub(super) async fn resume(run_dir: &Path, rings: &Rings) {
    if run_dir.join(FILE).exists() {
        tracing::info!("the node was being drained: its volumes commit soon");
        commit_soon(rings, true).await;
    }
}

/// All volumes commit soon from now on, or no longer.
pub(super) async fn commit_soon(rings: &Rings, soon: bool) {
    join_all(rings.iter().map(|ring| ring.send(Message::CommitSoon(soon)))).await;
}

impl Node {
    /// The node is being drained from now on, or no longer. Again it changes nothing.
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
            tracing::warn!(file = %file.display(), %error, draining, "a restarted daemon will not know this");
        }
        commit_soon(&self.0.rings, draining).await;
    }
}
