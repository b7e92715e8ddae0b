//! `holdfast-node snapshot`: takes, lists and deletes snapshots of a volume.

use clap::{Args, Subcommand};
use holdfast_crds::ByteSize;
use holdfast_proto::node::v1::{
    CreateSnapshotRequest, CreateSnapshotResponse, DeleteSnapshotRequest, DeleteSnapshotResponse,
    ListSnapshotsRequest, ListSnapshotsResponse, Snapshot,
};
use holdfast_types::{SnapshotName, SnapshotUid};
use serde_json::{Value, json};

use super::Target;
use super::client::{connect, finish, refused};
use super::output::{Render, or_dash, table};
use crate::failure::Failure;
use crate::node::random;

/// Arguments of `snapshot`.
#[derive(Debug, Args)]
pub(super) struct SnapshotCommand {
    #[command(subcommand)]
    verb: SnapshotVerb,
}

#[derive(Debug, Subcommand)]
enum SnapshotVerb {
    /// Take a snapshot of all completed writes, of a volume that this node serves or that no node has
    /// attached
    Create {
        /// Name of the volume
        volume: String,
        #[command(flatten)]
        place: StoreAndDaemon,
        /// Return the snapshot that was taken for this UUID, if it exists
        #[arg(long)]
        uid: Option<SnapshotUid>,
    },
    /// Show the snapshots of a volume
    List {
        /// Name of the volume
        volume: String,
        #[command(flatten)]
        place: StoreAndDaemon,
    },
    /// Delete a snapshot; `gc` frees the objects that only it needs
    Delete {
        /// The snapshot, as shown by `create` and `list`: VOLUME@SEQ
        snapshot: SnapshotName,
        #[command(flatten)]
        place: StoreAndDaemon,
    },
}

/// The volume's store, and the daemon's socket.
#[derive(Debug, Args)]
struct StoreAndDaemon {
    /// Name of a store of the daemon's configuration; only for a volume that is not attached on this node
    #[arg(long)]
    store: Option<String>,
    #[command(flatten)]
    target: Target,
}

/// Sends the request to the daemon; its answer goes to `out`.
///
/// # Errors
/// The daemon's rejection, or the reason it was not reached.
pub(super) async fn run(command: SnapshotCommand, out: &mut String) -> Result<(), Failure> {
    match command.verb {
        SnapshotVerb::Create { volume, place: StoreAndDaemon { store, target }, uid } => {
            let uid = uid.unwrap_or_else(|| SnapshotUid(random()));
            let request = CreateSnapshotRequest { volume_id: volume, store, uid: uid.to_string() };
            let answer = connect(&target).await?.create_snapshot(request).await;
            if let Err(status) = answer {
                let mut failure = refused(status);
                failure.message.push_str(&format!(" (to ask for the same snapshot again: --uid {uid})"));
                return Err(failure);
            }
            finish(answer, &target, out)
        }
        SnapshotVerb::List { volume, place: StoreAndDaemon { store, target } } => {
            let request = ListSnapshotsRequest { volume_id: volume, store };
            finish(connect(&target).await?.list_snapshots(request).await, &target, out)
        }
        SnapshotVerb::Delete {
            snapshot: SnapshotName { volume, seq },
            place: StoreAndDaemon { store, target },
        } => {
            let request = DeleteSnapshotRequest { volume_id: volume.to_string(), store, seq: seq.0 };
            finish(connect(&target).await?.delete_snapshot(request).await, &target, out)
        }
    }
}

fn name(snapshot: &Snapshot) -> String {
    format!("{}@{}", snapshot.volume_id, snapshot.seq)
}

fn snapshot_json(snapshot: &Snapshot) -> Value {
    let Snapshot { volume_id, seq, uid, created, size_bytes } = snapshot;
    json!({
        "name": name(snapshot),
        "volume_id": volume_id,
        "seq": seq,
        "uid": uid,
        "created": created.map(|time| time.to_string()),
        "size_bytes": size_bytes,
    })
}

impl Render for CreateSnapshotResponse {
    fn text(&self) -> String {
        self.snapshot.as_ref().map(|snapshot| format!("{}\n", name(snapshot))).unwrap_or_default()
    }

    fn json(&self) -> Value {
        self.snapshot.as_ref().map(snapshot_json).unwrap_or_default()
    }
}

impl Render for ListSnapshotsResponse {
    fn text(&self) -> String {
        let row = |snapshot: &Snapshot| {
            [
                name(snapshot),
                or_dash(snapshot.created),
                ByteSize(snapshot.size_bytes).to_string(),
                snapshot.uid.clone(),
            ]
        };
        table(["SNAPSHOT", "CREATED", "SIZE", "UID"], self.snapshots.iter().map(row))
    }

    fn json(&self) -> Value {
        json!({ "snapshots": self.snapshots.iter().map(snapshot_json).collect::<Vec<_>>() })
    }
}

impl Render for DeleteSnapshotResponse {
    fn text(&self) -> String {
        String::new()
    }

    fn json(&self) -> Value {
        json!({})
    }
}
