//! Requests to the daemon over its socket.

use std::path::Path;

use holdfast_proto::node::v1::node_client::NodeClient;
use holdfast_proto::node::v1::{
    AttachRequest, CapabilitiesRequest, ConfigureRequest, DetachRequest, Durability, GrowRequest,
    ListRequest, StatsRequest,
};
use holdfast_service::chain;
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};

use super::output::{self, Render};
use super::{Attach, Class, Command, Configure, Target, create, exit, gc, scrub, snapshot};
use crate::failure::Failure;
use crate::node::FailureKind;

/// Sends one command to the daemon; its answer, as text for a person or as JSON, goes to `out`.
///
/// # Errors
/// The daemon's refusal, or why it was not reached.
pub(super) async fn ask(command: Command, out: &mut String) -> Result<(), Failure> {
    match command {
        Command::Run { .. } | Command::Preflight(_) | Command::Fenced(_) | Command::FlushDevice { .. } => {
            Err(Failure { kind: FailureKind::Local, message: "this is no request to the daemon".to_owned() })
        }
        Command::Create(create) => create::run(create, out).await,
        Command::Attach(Attach { volume, store, size, take_over, max_dirty_age, durability, target }) => {
            let request = AttachRequest {
                volume_id: volume,
                store,
                size_bytes: size.map(|size| size.0),
                replaces_epoch: take_over,
                max_dirty_age: max_dirty_age.and_then(|age| age.0.try_into().ok()),
                durability: wire(durability).into(),
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
        Command::Configure(Configure { volume, max_dirty_age, durability, target }) => {
            let mut client = connect(&target).await?;
            let request = ConfigureRequest {
                volume_id: volume,
                max_dirty_age: max_dirty_age.and_then(|age| age.0.try_into().ok()),
                durability: durability.map_or(Durability::Unspecified, wire).into(),
            };
            finish(client.configure(request).await, &target, out)
        }
        Command::Grow { volume, size, target } => {
            let mut client = connect(&target).await?;
            let request = GrowRequest { volume_id: volume, size_bytes: size.0 };
            finish(client.grow(request).await, &target, out)
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

fn wire(class: Class) -> Durability {
    match class {
        Class::Local => Durability::Local,
        Class::Object => Durability::Object,
    }
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
    show(answer.map_err(refused)?.get_ref(), target, out);
    Ok(())
}

/// Puts an answer in the wanted format into `out`.
pub(super) fn show<T: Render>(answer: &T, target: &Target, out: &mut String) {
    out.push_str(&if target.json { format!("{:#}\n", answer.json()) } else { answer.text() });
}
