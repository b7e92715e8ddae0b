//! The connection to the daemon's socket, and its responses.

use std::path::Path;

use holdfast_proto::node::v1::node_client::NodeClient;
use holdfast_service::chain;
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};

use super::output::Render;
use super::{Target, exit};
use crate::failure::Failure;
use crate::node::FailureKind;

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
    // A report about a large volume exceeds the default of 4 MiB, and only root may listen on the socket.
    Ok(NodeClient::new(channel).max_decoding_message_size(usize::MAX))
}

fn address(socket: &Path) -> String {
    format!("unix://{}", socket.display())
}

/// Returns the failure reported by a gRPC status.
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

/// Appends an answer in the requested format to `out`.
pub(super) fn show<T: Render>(answer: &T, target: &Target, out: &mut String) {
    out.push_str(&if target.json { format!("{:#}\n", answer.json()) } else { answer.text() });
}
