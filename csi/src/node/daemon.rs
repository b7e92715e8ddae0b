//! Client of the node daemon on its local socket.
//!
//! Owns: the requests. Each uses its own connection, so that a restarted daemon is found at once.
//! On failure: `UNAVAILABLE`. While the daemon does not answer, the kernel holds the requests to its devices.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Duration;

use holdfast_proto::node::v1::node_client::NodeClient;
use holdfast_proto::node::v1::{
    AwaitServedRequest, AwaitServedResponse, CapabilitiesRequest, CapabilitiesResponse, ListRequest,
    Transport, TransportCapability, Volume, VolumeState,
};
use tokio::time::{Instant, timeout};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

use super::device_number::DeviceNumber;
use crate::publish_context::PublishContext;

/// Timeout for a response that the daemon has immediately.
const LIMIT: Duration = Duration::from_secs(10);

/// The daemon of this node.
#[derive(Clone, Debug)]
pub(crate) struct DaemonClient {
    socket: PathBuf,
}

/// A volume's device that serves requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServedDevice {
    /// Path of the device.
    pub(super) path: PathBuf,
    /// Number of the device.
    pub(super) number: DeviceNumber,
    /// Size of the device.
    pub(super) bytes: u64,
    /// The writer's fencing number.
    pub(super) epoch: u64,
    /// False if every byte reads as zero and no writer was ever replaced; `None` while unknown.
    pub(super) holds_data: Option<bool>,
    /// True if the user permitted formatting it during this attach, regardless of its content.
    pub(super) may_format: bool,
}

impl ServedDevice {
    fn of(answer: AwaitServedResponse) -> Result<Self, Status> {
        let AwaitServedResponse { volume, may_format } = answer;
        let volume = volume.unwrap_or_default();
        let device = volume.device.ok_or_else(|| Status::unavailable("the volume has no device yet"))?;
        let path = PathBuf::from(device.path);
        let number = DeviceNumber::of(&path)?;
        let holds_data = volume.holds_data;
        Ok(Self { path, number, bytes: device.size_bytes, epoch: device.epoch, holds_data, may_format })
    }
}

impl DaemonClient {
    /// Creates a client of the daemon that listens on `socket`.
    pub(crate) fn new(socket: PathBuf) -> Self {
        Self { socket }
    }

    /// Waits until the daemon serves a published volume.
    ///
    /// # Errors
    /// `UNAVAILABLE`: it does not serve the volume within the time, or the volume's device is gone.
    pub(super) async fn served(
        &self,
        context: &PublishContext,
        until: Instant,
    ) -> Result<ServedDevice, Status> {
        let PublishContext { volume_id, epoch, trace: _ } = context;
        let left = until.saturating_duration_since(Instant::now());
        let mut request =
            Request::new(AwaitServedRequest { volume_id: volume_id.clone(), min_epoch: *epoch });
        request.set_timeout(left);
        let asked = async { Ok::<_, Status>(self.client().await?.await_served(request).await?.into_inner()) };
        let served = match timeout(left, asked).await {
            Ok(Err(status)) if is_answer(&status) => return Err(status),
            Ok(answer) => answer.map_err(|status| away(&self.socket, &status))?,
            Err(_elapsed) => {
                return Err(Status::unavailable(format!(
                    "the node does not serve volume {volume_id} with epoch {epoch} or later yet; see the conditions of its Volume"
                )));
            }
        };
        ServedDevice::of(served)
    }

    /// Returns the volumes of this node, with their serving state.
    ///
    /// # Errors
    /// `UNAVAILABLE`: the daemon does not answer.
    pub(super) async fn volumes(&self) -> Result<Vec<Volume>, Status> {
        let asked = async { Ok::<_, Status>(self.client().await?.list(ListRequest {}).await?.into_inner()) };
        Ok(self.within(asked).await?.volumes)
    }

    /// Returns the capabilities of a daemon that is able to serve volumes.
    ///
    /// # Errors
    /// `UNAVAILABLE`: it does not answer, or the kernel lacks a required feature.
    pub(crate) async fn usable(&self) -> Result<CapabilitiesResponse, Status> {
        let capabilities = self.capabilities().await?;
        if transport_of(&capabilities).is_some() {
            return Ok(capabilities);
        }
        let refusals = capabilities.transports.iter().filter_map(|transport| transport.refusal.as_deref());
        let refusals: Vec<&str> = refusals.collect();
        Err(Status::unavailable(format!("the node cannot serve volumes: {}", refusals.join("; "))))
    }

    async fn capabilities(&self) -> Result<CapabilitiesResponse, Status> {
        self.within(async {
            Ok(self.client().await?.capabilities(CapabilitiesRequest {}).await?.into_inner())
        })
        .await
    }

    async fn within<T>(&self, asked: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
        match timeout(LIMIT, asked).await {
            Ok(answer) => answer.map_err(|status| away(&self.socket, &status)),
            Err(_elapsed) => Err(away(&self.socket, &Status::deadline_exceeded("it does not answer"))),
        }
    }

    async fn client(&self) -> Result<NodeClient<Channel>, Status> {
        let endpoint = Endpoint::from_shared(format!("unix://{}", self.socket.display()));
        let connected = async { endpoint?.connect().await };
        let channel = connected.await.map_err(|error| Status::unknown(holdfast_service::chain(&error)))?;
        // A list of many volumes exceeds the default of 4 MiB, and only root may listen on the socket.
        Ok(NodeClient::new(channel).max_decoding_message_size(usize::MAX))
    }
}

/// Checks that a file system on a device may be touched now.
///
/// # Errors
/// `UNAVAILABLE`: its daemon does not serve it, so that a system call on it might never return.
pub(super) fn check_touchable(volumes: &[Volume], number: DeviceNumber) -> Result<(), Status> {
    let is_it = |volume: &&Volume| {
        let device = volume.device.as_ref();
        device.is_some_and(|device| {
            DeviceNumber::of(Path::new(&device.path)).is_ok_and(|found| found == number)
        })
    };
    let waits = |volume: &Volume| match volume.state() {
        VolumeState::Recovering | VolumeState::Quiesced => true,
        VolumeState::Unspecified
        | VolumeState::Attaching
        | VolumeState::Attached
        | VolumeState::Detaching
        | VolumeState::Fenced
        | VolumeState::Unserved => false,
    };
    let waiting = match volumes.iter().find(is_it) {
        Some(volume) => waits(volume).then_some(volume),
        // A volume that has not recovered is listed without its device: this may be the one.
        None => volumes.iter().find(|volume| waits(volume) && volume.device.is_none()),
    };
    waiting.map_or(Ok(()), |volume| {
        Err(Status::unavailable(format!(
            "the device of volume {} waits for its recovery: {}. Nothing was done; the caller retries",
            volume.volume_id,
            volume.message.as_deref().unwrap_or("see the log of the node daemon")
        )))
    })
}

/// Returns the transport of a daemon's new devices. If it does not report one, it uses the first available.
pub(super) fn transport_of(capabilities: &CapabilitiesResponse) -> Option<Transport> {
    let named = capabilities.transport.map(|_| capabilities.transport());
    named.or_else(|| {
        capabilities.transports.iter().find(|one| one.available).map(TransportCapability::transport)
    })
}

/// Returns true if the daemon itself answered that it cannot name a device now: the message has the cause.
/// The status of a failed connection has a source instead.
fn is_answer(status: &Status) -> bool {
    status.code() == Code::Unavailable && status.source().is_none()
}

fn away(socket: &Path, status: &Status) -> Status {
    Status::unavailable(format!(
        "the node daemon did not answer on {}: {}. Its devices wait for it; nothing was done",
        socket.display(),
        status.message()
    ))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use holdfast_proto::node::v1::Device;
    use tonic::Code;

    use super::*;

    fn volume(state: VolumeState, path: Option<&str>) -> Volume {
        let device = path.map(|path| Device { path: path.to_owned(), ..Device::default() });
        Volume { volume_id: "v".to_owned(), state: state.into(), device, ..Volume::default() }
    }

    /// Found by review: on a node with an older daemon, the driver never registered.
    #[test]
    fn the_transport_of_a_daemon_that_does_not_name_it_is_one_that_is_available() {
        let capability = |transport: Transport, available| TransportCapability {
            transport: transport.into(),
            available,
            ..TransportCapability::default()
        };
        let transports =
            vec![capability(Transport::UblkZeroCopy, false), capability(Transport::UblkUserCopy, true)];
        let older = CapabilitiesResponse { transports, ..CapabilitiesResponse::default() };
        assert_eq!(transport_of(&older), Some(Transport::UblkUserCopy));
        let named = CapabilitiesResponse { transport: Some(Transport::FuseLoop.into()), ..older };
        assert_eq!(transport_of(&named), Some(Transport::FuseLoop));
        assert_eq!(transport_of(&CapabilitiesResponse::default()), None);
    }

    /// Regression, found in review: the driver said that the daemon did not answer.
    #[test]
    fn a_refusal_of_the_daemon_is_told_from_a_failed_connection() {
        assert!(is_answer(&Status::unavailable("another program removed the device")));
        let mut cut_off = Status::unavailable("broken pipe");
        cut_off.set_source(Arc::new(std::io::Error::from(std::io::ErrorKind::BrokenPipe)));
        assert!(!is_answer(&cut_off) && !is_answer(&Status::deadline_exceeded("late")));
    }

    /// Any block or character device serves as an example of a device number.
    #[test]
    fn a_device_whose_requests_wait_is_not_touched() {
        let zero = DeviceNumber::of(Path::new("/dev/zero")).expect("a device");
        let null = DeviceNumber::of(Path::new("/dev/null")).expect("a device");
        let serving = volume(VolumeState::Attached, Some("/dev/zero"));
        check_touchable(&[], zero).expect("of no volume: it fails at once");
        check_touchable(std::slice::from_ref(&serving), zero).expect("served");
        check_touchable(&[volume(VolumeState::Fenced, Some("/dev/zero"))], zero).expect("fails at once");
        check_touchable(&[serving.clone(), volume(VolumeState::Quiesced, None)], zero).expect("served");
        for volumes in [
            vec![volume(VolumeState::Quiesced, Some("/dev/zero"))],
            vec![serving.clone(), volume(VolumeState::Recovering, None)],
            vec![serving, volume(VolumeState::Quiesced, None)],
        ] {
            let number = if volumes.len() == 1 { zero } else { null };
            assert_eq!(check_touchable(&volumes, number).expect_err("waits").code(), Code::Unavailable);
        }
    }
}
