//! `holdfast-node create`: creates a volume, empty or with the content of another one.

use std::io;
use std::pin::pin;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;
use holdfast_crds::ByteSize;
use holdfast_proto::node::v1::node_client::NodeClient;
use holdfast_proto::node::v1::{CreateRequest, CreateResponse, CreateSnapshotRequest, DeleteSnapshotRequest};
use holdfast_types::{InvalidSnapshotName, InvalidVolumeId, SnapshotName, SnapshotUid, VolumeId};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tonic::transport::Channel;

use super::client::{connect, refused, show};
use super::{Target, note};
use crate::failure::Failure;
use crate::node::{FailureKind, random};

/// Arguments of `create`.
#[derive(Debug, Args)]
pub(super) struct Create {
    /// Name of the new volume: 1 to 63 of a-z, 0-9 and '-'
    volume: String,
    /// Its size: bytes, or with a suffix such as Mi or G; with --from at least the source's size, which is
    /// the default
    #[arg(long, required_unless_present = "from")]
    size: Option<ByteSize>,
    /// Start with the content of this snapshot in the same store, as shown by `snapshot list`, or with the
    /// current content of this volume; nothing is copied
    #[arg(long, value_name = "VOLUME@SEQ|VOLUME")]
    from: Option<ContentSource>,
    /// Name of a store of the daemon's configuration
    #[arg(long)]
    store: String,
    #[command(flatten)]
    target: Target,
}

/// Source of a new volume's content.
#[derive(Debug, Clone)]
enum ContentSource {
    Snapshot(SnapshotName),
    Volume(VolumeId),
}

/// Text that is neither a snapshot name nor a volume name.
#[derive(Debug, thiserror::Error)]
enum InvalidSource {
    #[error(transparent)]
    Snapshot(#[from] InvalidSnapshotName),
    #[error(transparent)]
    Volume(#[from] InvalidVolumeId),
}

impl FromStr for ContentSource {
    type Err = InvalidSource;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(if text.contains('@') { Self::Snapshot(text.parse()?) } else { Self::Volume(text.parse()?) })
    }
}

/// Creates the volume; the answer goes to `out`.
///
/// # Errors
/// The daemon's rejection, or the reason it was not reached.
pub(super) async fn run(create: Create, out: &mut String) -> Result<(), Failure> {
    let mut stops = match create.from {
        Some(ContentSource::Volume(_)) => {
            signals().map_err(|error| Failure::new(FailureKind::Local, &error))?
        }
        // It leaves nothing behind: a signal ends the command.
        Some(ContentSource::Snapshot(_)) | None => mpsc::channel(1).1,
    };
    run_until(create, &mut stops, out).await
}

/// Returns a queue with an entry for each SIGINT and SIGTERM from now on.
fn signals() -> io::Result<mpsc::Receiver<()>> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let (sender, stops) = mpsc::channel(2);
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            if sender.send(()).await.is_err() {
                return;
            }
        }
    });
    Ok(stops)
}

/// As [`run`]. The first entry of `stops` ends a clone once its temporary snapshot is deleted, the second one
/// at once.
pub(super) async fn run_until(
    create: Create,
    stops: &mut mpsc::Receiver<()>,
    out: &mut String,
) -> Result<(), Failure> {
    let Create { volume, size, from, store, target } = create;
    let mut client = connect(&target).await?;
    let size_bytes = size.map_or(0, |size| size.0);
    let request = CreateRequest { volume_id: volume, store, size_bytes, snapshot: None };
    let made = match from {
        None => client.create(request).await.map_err(refused)?.into_inner(),
        Some(ContentSource::Snapshot(snapshot)) => {
            restore(&mut client, request, snapshot.to_string()).await?
        }
        Some(ContentSource::Volume(volume)) => clone(&mut client, request, volume, stops).await?,
    };
    show(&made, &target, out);
    Ok(())
}

async fn restore(
    client: &mut NodeClient<Channel>,
    request: CreateRequest,
    snapshot: String,
) -> Result<CreateResponse, Failure> {
    let volume = request.volume_id.clone();
    let request = CreateRequest { snapshot: Some(snapshot), ..request };
    let made = client.create(request).await.map_err(refused)?.into_inner();
    check_restored(&volume, &made)?;
    Ok(made)
}

/// Creates a volume from a temporary snapshot of `volume`, until the second entry of `stops`.
async fn clone(
    client: &mut NodeClient<Channel>,
    request: CreateRequest,
    volume: VolumeId,
    stops: &mut mpsc::Receiver<()>,
) -> Result<CreateResponse, Failure> {
    let (uid, is_stopped) = (SnapshotUid(random()), AtomicBool::new(false));
    let mut work = pin!(clone_with(client, request, &volume, uid, &is_stopped));
    tokio::select! {
        made = &mut work => return made,
        Some(()) = stops.recv() => is_stopped.store(true, Ordering::Relaxed),
    }
    note(&format!(
        "stopping once the temporary snapshot of {volume} is deleted; the next signal leaves that snapshot, with uid {uid}"
    ));
    tokio::select! {
        made = &mut work => made,
        Some(()) = stops.recv() => Err(stopped(format!(
            "the temporary snapshot of {volume}, with uid {uid}, may stay. Find it with `snapshot list {volume}`, and delete it with \
             `snapshot delete`"
        ))),
    }
}

/// Takes a temporary snapshot, creates the volume from it unless the command was stopped meanwhile, and
/// deletes it.
async fn clone_with(
    client: &mut NodeClient<Channel>,
    request: CreateRequest,
    volume: &VolumeId,
    uid: SnapshotUid,
    is_stopped: &AtomicBool,
) -> Result<CreateResponse, Failure> {
    let store = Some(request.store.clone());
    let take =
        CreateSnapshotRequest { volume_id: volume.to_string(), store: store.clone(), uid: uid.to_string() };
    let taken = client.create_snapshot(take).await.map_err(refused)?.into_inner().snapshot;
    let seq = taken.map(|snapshot| snapshot.seq).unwrap_or_default();
    let name = format!("{volume}@{seq}");
    let made = if is_stopped.load(Ordering::Relaxed) {
        Err(stopped(format!("volume {} was not created", request.volume_id)))
    } else {
        restore(client, request, name.clone()).await
    };
    let delete = DeleteSnapshotRequest { volume_id: volume.to_string(), store, seq };
    if let Err(status) = client.delete_snapshot(delete).await {
        let cause = status.message();
        note(&format!(
            "snapshot {name}, which this command took, is not deleted: {cause}; delete it with `snapshot delete {name}`"
        ));
    }
    made
}

/// Builds the failure of a command that a signal ended.
fn stopped(state: String) -> Failure {
    Failure { kind: FailureKind::Local, message: format!("stopped by a signal: {state}") }
}

/// Checks that the daemon created a volume with a snapshot's content. A daemon older than `--from` ignores
/// the option and responds without a size.
fn check_restored(volume: &str, made: &CreateResponse) -> Result<(), Failure> {
    if made.size_bytes > 0 {
        return Ok(());
    }
    Err(Failure {
        kind: FailureKind::Unavailable,
        message: format!(
            "--from: the daemon is older than this command and does not restore snapshots; volume {volume} may have been \
             created empty. Upgrade the daemon, and restore the snapshot with another volume id"
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The field is newer than the response: an older daemon ignored `--from` and created an empty volume.
    #[test]
    fn an_answer_without_a_size_is_no_restored_volume() {
        let refused = check_restored("copy", &CreateResponse { size_bytes: 0 }).unwrap_err();
        assert_eq!(refused.kind, FailureKind::Unavailable);
        assert!(refused.message.starts_with("--from: the daemon is older"), "{}", refused.message);
        assert!(refused.message.contains("volume copy may have been created empty"), "{}", refused.message);
        assert!(check_restored("copy", &CreateResponse { size_bytes: 4096 }).is_ok());
    }
}
