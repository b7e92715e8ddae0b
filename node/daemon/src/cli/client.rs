//! Requests to the daemon over its socket.

use std::path::Path;

use holdfast_proto::node::v1::node_client::NodeClient;
use holdfast_proto::node::v1::{
    AttachRequest, CapabilitiesRequest, CreateRequest, CreateResponse, DetachRequest, Durability,
    ListRequest, StatsRequest,
};
use holdfast_service::chain;
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};

use super::output::{self, Render};
use super::{Attach, Class, Command, Target, exit, gc, scrub, snapshot};
use crate::failure::Failure;
use crate::node::FailureKind;

/// Sends one command to the daemon; its answer, as text for a person or as JSON, goes to `out`.
///
/// # Errors
/// The daemon's refusal, or why it was not reached.
pub(super) async fn ask(command: Command, out: &mut String) -> Result<(), Failure> {
    match command {
        Command::Run { .. } | Command::Fenced(_) | Command::FlushDevice { .. } => {
            Err(Failure { kind: FailureKind::Local, message: "this is no request to the daemon".to_owned() })
        }
        Command::Create { volume, size, from, store, target } => {
            let request = CreateRequest {
                volume_id: volume,
                store,
                size_bytes: size.map_or(0, |size| size.0),
                snapshot: from.map(|snapshot| snapshot.to_string()),
            };
            let mut client = connect(&target).await?;
            let (volume, is_restored) = (request.volume_id.clone(), request.snapshot.is_some());
            let answer = client.create(request).await;
            if is_restored && let Ok(answer) = &answer {
                check_restored(&volume, answer.get_ref())?;
            }
            finish(answer, &target, out)
        }
        Command::Attach(Attach { volume, store, size, take_over, max_dirty_age, durability, target }) => {
            let request = AttachRequest {
                volume_id: volume,
                store,
                size_bytes: size.map(|size| size.0),
                replaces_epoch: take_over,
                max_dirty_age: max_dirty_age.and_then(|age| age.0.try_into().ok()),
                durability: match durability {
                    Class::Local => Durability::Local,
                    Class::Object => Durability::Object,
                }
                .into(),
            };
            let mut client = connect(&target).await?;
            let answer = client.attach(request).await;
            if let Ok(answer) = &answer
                && let Some(displaced) = &answer.get_ref().displaced
            {
                super::note(&output::displaced(displaced));
            }
            finish(answer, &target, out)
        }
        Command::Detach { volume, target } => {
            let mut client = connect(&target).await?;
            finish(client.detach(DetachRequest { volume_id: volume }).await, &target, out)
        }
        Command::List { target } => {
            let mut client = connect(&target).await?;
            finish(client.list(ListRequest {}).await, &target, out)
        }
        Command::Stats { volume, target } => {
            let mut client = connect(&target).await?;
            finish(client.stats(StatsRequest { volume_id: volume }).await, &target, out)
        }
        Command::Scrub(scrub) => scrub::run(scrub, out).await,
        Command::Gc(gc) => gc::run(gc, out).await,
        Command::Snapshot(command) => snapshot::run(command, out).await,
        Command::Capabilities { target } => {
            let mut client = connect(&target).await?;
            finish(client.capabilities(CapabilitiesRequest {}).await, &target, out)
        }
    }
}

/// Checks that the daemon has made a volume with the content of a snapshot. One that is older than `--from`
/// does not know it, and answers no size.
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

pub(super) async fn connect(target: &Target) -> Result<NodeClient<Channel>, Failure> {
    let unreachable = |error: &dyn std::error::Error| Failure {
        kind: FailureKind::Unavailable,
        message: format!(
            "no daemon answers on {}; start it with `holdfast-node run`, or name its socket with --socket ({})",
            target.socket.display(),
            chain(error)
        ),
    };
    let endpoint = Endpoint::from_shared(address(&target.socket)).map_err(|error| unreachable(&error))?;
    let channel = endpoint.connect().await.map_err(|error| unreachable(&error))?;
    Ok(NodeClient::new(channel))
}

fn address(socket: &Path) -> String {
    format!("unix://{}", socket.display())
}

/// Failure that a gRPC status reports.
pub(super) fn refused(status: Status) -> Failure {
    Failure { kind: exit::kind(status.code()), message: status.message().to_owned() }
}

pub(super) fn finish<T: Render>(
    answer: Result<Response<T>, Status>,
    target: &Target,
    out: &mut String,
) -> Result<(), Failure> {
    let answer = answer.map_err(refused)?;
    let answer = answer.into_inner();
    out.push_str(&if target.json { format!("{:#}\n", answer.json()) } else { answer.text() });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The field is younger than the answer: an older daemon ignored `--from`, and created an empty volume.
    #[test]
    fn an_answer_without_a_size_is_no_restored_volume() {
        let refused = check_restored("copy", &CreateResponse { size_bytes: 0 }).unwrap_err();
        assert_eq!(refused.kind, FailureKind::Unavailable);
        assert!(refused.message.starts_with("--from: the daemon is older"), "{}", refused.message);
        assert!(refused.message.contains("volume copy may have been created empty"), "{}", refused.message);
        assert!(check_restored("copy", &CreateResponse { size_bytes: 4096 }).is_ok());
    }
}
