//! The Unix socket of the gRPC interface.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use holdfast_proto::node::v1::node_server::NodeServer;
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;

use super::Api;
use crate::volumes::Volumes;

/// The Unix socket could not be created.
#[derive(Debug, thiserror::Error)]
#[error("api.socket: {} cannot be made; choose a path in a directory that the daemon may write", path.display())]
pub(crate) struct SocketError {
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// Creates the socket. The caller holds the node's lock, so an existing socket belongs to a dead process.
///
/// # Errors
/// [`SocketError`]; it requires action by the user.
pub(crate) fn bind(path: &Path) -> Result<UnixListener, SocketError> {
    let listen = || {
        if let Some(directory) = path.parent() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        }
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let listener = UnixListener::bind(path)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
        Ok(listener)
    };
    listen().map_err(|source| SocketError { path: path.to_owned(), source })
}

/// Serves requests until `stop` ends. Operations in progress are cancelled, not awaited, because a detach may
/// wait for its store without limit. All have ended when this returns.
///
/// # Errors
/// The listener itself failed.
pub(crate) async fn serve<V: Volumes>(
    listener: UnixListener,
    api: Api<V>,
    stop: impl Future<Output = ()> + Send,
) -> Result<(), tonic::transport::Error> {
    let tasks = api.tasks.clone();
    let server = Server::builder()
        .add_service(NodeServer::new(api))
        .serve_with_incoming(UnixListenerStream::new(listener));
    let served = tokio::select! {
        served = server => served,
        () = stop => Ok(()),
    };
    tasks.stop().await;
    served
}
