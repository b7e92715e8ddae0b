//! The socket that the driver serves.
//!
//! Owns: the socket file, which is removed at the end.
//! Invariants: never replaces a socket that another process serves, only a dead one.

use std::io::{self, ErrorKind};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::service::Routes;
use tonic::transport::Server;

/// Reason why the driver cannot listen.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ListenError {
    /// Another process serves the socket.
    #[error("--endpoint: another process answers on {path}; stop it or choose another socket")]
    Taken {
        /// The socket.
        path: PathBuf,
    },
    /// A file other than a socket has the name.
    #[error("--endpoint: {path} exists and is not a socket; choose another name")]
    NotASocket {
        /// The file.
        path: PathBuf,
    },
    /// The operating system rejected the request.
    #[error("--endpoint: cannot listen on {path}; does its directory exist?")]
    Refused {
        /// The socket.
        path: PathBuf,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
}

/// A socket being listened on.
#[derive(Debug)]
pub(crate) struct Socket {
    listener: UnixListener,
    file: SocketFile,
}

/// A socket file, removed when dropped.
#[derive(Debug)]
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.0) {
            tracing::warn!(%error, socket = %self.0.display(), "socket not removed");
        }
    }
}

/// Listens on `path`, replacing the socket of a dead process if necessary.
///
/// # Errors
/// [`ListenError`] names the option and the fix.
pub(crate) fn listen(path: &Path) -> Result<Socket, ListenError> {
    let refused = |source| ListenError::Refused { path: path.to_owned(), source };
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(refused(error)),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(ListenError::NotASocket { path: path.to_owned() });
        }
        Ok(_) => match UnixStream::connect(path) {
            Ok(_answered) => return Err(ListenError::Taken { path: path.to_owned() }),
            Err(_dead) => std::fs::remove_file(path).map_err(refused)?,
        },
    }
    let listener = UnixListener::bind(path).map_err(refused)?;
    Ok(Socket { listener, file: SocketFile(path.to_owned()) })
}

impl Socket {
    /// Serves these services until `stop` ends and the requests in progress are done.
    ///
    /// # Errors
    /// The socket failed.
    pub(crate) async fn serve(
        self,
        services: Routes,
        stop: impl Future<Output = ()>,
    ) -> Result<(), tonic::transport::Error> {
        let Self { listener, file } = self;
        let served = Server::builder()
            .add_routes(services)
            .serve_with_incoming_shutdown(UnixListenerStream::new(listener), stop)
            .await;
        drop(file);
        served
    }
}

#[cfg(test)]
mod tests;
