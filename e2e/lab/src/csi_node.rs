//! The CSI driver's Node service in a test machine, with the requests of the kubelet.
//!
//! Owns: one `holdfast-csi node` at a time in a machine, which can be killed and restarted.
//! Does not own: the node daemon on the same machine.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use holdfast_proto::csi::v1::{self, CapacityRange};
use holdfast_proto::pluginregistration::v1::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};
use prost::Message;

use crate::csi::{Csi, CsiResponse, LIMIT, Use};
use crate::node::SIGKILL;
use crate::rpc::GrpcSocket;
use crate::vm::Vm;
use crate::wire::GuestProgram;

/// Name of the process among the machine's programs.
pub const PROGRAM: &str = "csi-node";
/// Path of its socket in the machine.
pub const SOCKET: &str = "/var/lib/kubelet/plugins/csi.holdfast.dev/csi.sock";
const REGISTRATION: &str = "/var/lib/kubelet/plugins_registry/csi.holdfast.dev@reg.sock";
const DAEMON: &str = "/run/holdfast/node.sock";
const START_LIMIT: Duration = Duration::from_secs(120);
const STOP_LIMIT: Duration = Duration::from_secs(60);

/// The Node service of one machine.
#[derive(Debug, Clone)]
pub struct CsiNode {
    vm: Arc<Vm>,
    csi: Csi,
}

/// A published volume on its node, as known to the kubelet.
#[derive(Debug, Clone)]
pub struct PublishedVolume {
    /// The volume's id.
    pub volume: String,
    /// Answer of `ControllerPublishVolume`.
    pub context: HashMap<String, String>,
    /// Its use.
    pub usage: Use,
}

impl PublishedVolume {
    /// Returns the path where the kubelet has the volume staged.
    pub fn staging(&self) -> String {
        format!("/var/lib/kubelet/plugins/kubernetes.io/csi/{}/globalmount", self.volume)
    }

    /// Returns the path of a pod.
    pub fn target(&self, pod: &str) -> String {
        format!("/var/lib/kubelet/pods/{pod}/volumes/{}", self.volume)
    }
}

impl CsiNode {
    /// Starts the service next to the daemon of `vm`, and waits until it can be registered.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start(vm: Arc<Vm>) -> Result<Self> {
        let csi = Csi::new(GrpcSocket::Machine(Arc::clone(&vm), SOCKET.to_owned()));
        let node = Self { vm, csi };
        node.vm
            .exec("mkdir -p /var/lib/kubelet/plugins/csi.holdfast.dev /var/lib/kubelet/plugins_registry")?;
        node.restart()?;
        Ok(node)
    }

    /// Returns the machine.
    pub fn vm(&self) -> &Vm {
        &self.vm
    }

    /// Kills it and waits until it is gone.
    ///
    /// # Errors
    /// If it is not running.
    pub fn kill(&self) -> Result<()> {
        self.vm.signal(PROGRAM, SIGKILL)?;
        self.vm.wait(PROGRAM, STOP_LIMIT).map(drop)
    }

    /// Restarts it after [`CsiNode::kill`], and waits until it listens.
    ///
    /// # Errors
    /// If it does not start.
    pub fn restart(&self) -> Result<()> {
        let node = format!("--node-name={}", self.vm.name());
        let argv = ["holdfast-csi", "node", &node]
            .map(str::to_owned)
            .into_iter()
            .chain([format!("--endpoint=unix://{SOCKET}"), format!("--registration=unix://{REGISTRATION}")])
            .chain([format!("--kubelet-endpoint={SOCKET}"), format!("--daemon-socket={DAEMON}")])
            .chain(["--directory=/var/lib/kubelet/plugins/csi.holdfast.dev".to_owned()]);
        let mut program = GuestProgram { argv: argv.collect(), ..GuestProgram::default() };
        program.env.insert("RUST_LOG".to_owned(), "info".to_owned());
        let lines = self.vm.log(PROGRAM).unwrap_or_default().lines().count();
        self.vm.spawn(PROGRAM, &program)?;
        crate::wait::until("the CSI node service to listen", START_LIMIT, || {
            ensure!(self.vm.status(PROGRAM)?.is_none(), "it ended:\n{}", self.vm.log(PROGRAM)?);
            let log = self.vm.log(PROGRAM)?;
            Ok(log.lines().skip(lines).any(|line| line.contains("kubelet can register")).then_some(()))
        })
    }

    /// Returns the result of the pod's readiness probe. The liveness probe must succeed.
    ///
    /// # Errors
    /// If the liveness probe fails.
    pub fn is_ready(&self) -> Result<bool> {
        let probe = format!("holdfast-csi probe --endpoint=unix://{SOCKET}");
        let found = self.vm.exec(&format!("{probe} && if {probe} --ready; then echo ready; fi"))?;
        Ok(found.contains("ready"))
    }

    /// Sends the kubelet's requests on the registration socket, and confirms the registration.
    ///
    /// # Errors
    /// If the driver is unreachable.
    pub fn register(&self) -> Result<PluginInfo> {
        let socket = GrpcSocket::Machine(Arc::clone(&self.vm), REGISTRATION.to_owned());
        let ask = |method: &str, message: &[u8]| -> Result<Vec<u8>> {
            let path = format!("/pluginregistration.Registration/{method}");
            socket.call(&path, message, LIMIT)?.map_err(|refused| anyhow::anyhow!("{}", refused.message))
        };
        let info = PluginInfo::decode(ask("GetInfo", &InfoRequest {}.encode_to_vec())?.as_slice())?;
        let status = RegistrationStatus { plugin_registered: true, error: String::new() };
        let response = ask("NotifyRegistrationStatus", &status.encode_to_vec())?;
        RegistrationStatusResponse::decode(response.as_slice()).context("read the answer")?;
        Ok(info)
    }

    /// `NodeGetInfo`.
    ///
    /// # Errors
    /// If the driver is unreachable.
    pub fn info(&self) -> Result<CsiResponse<v1::NodeGetInfoResponse>> {
        self.csi.call("Node/NodeGetInfo", &v1::NodeGetInfoRequest {}, LIMIT)
    }

    /// `NodeStageVolume`.
    ///
    /// # Errors
    /// If the driver is unreachable.
    pub fn stage(&self, claim: &PublishedVolume, limit: Duration) -> Result<CsiResponse<()>> {
        let request = v1::NodeStageVolumeRequest {
            volume_id: claim.volume.clone(),
            publish_context: claim.context.clone(),
            staging_target_path: claim.staging(),
            volume_capability: Some(claim.usage.capability()),
            ..Default::default()
        };
        let answer: CsiResponse<v1::NodeStageVolumeResponse> =
            self.csi.call("Node/NodeStageVolume", &request, limit)?;
        Ok(answer.map(drop))
    }

    /// `NodeUnstageVolume`.
    ///
    /// # Errors
    /// If the driver is unreachable.
    pub fn unstage(&self, claim: &PublishedVolume, limit: Duration) -> Result<CsiResponse<()>> {
        let request = v1::NodeUnstageVolumeRequest {
            volume_id: claim.volume.clone(),
            staging_target_path: claim.staging(),
        };
        let answer: CsiResponse<v1::NodeUnstageVolumeResponse> =
            self.csi.call("Node/NodeUnstageVolume", &request, limit)?;
        Ok(answer.map(drop))
    }

    /// `NodePublishVolume` at the path of a pod.
    ///
    /// # Errors
    /// If the driver is unreachable.
    pub fn publish(&self, claim: &PublishedVolume, pod: &str, readonly: bool) -> Result<CsiResponse<()>> {
        let request = v1::NodePublishVolumeRequest {
            volume_id: claim.volume.clone(),
            publish_context: claim.context.clone(),
            staging_target_path: claim.staging(),
            target_path: claim.target(pod),
            volume_capability: Some(claim.usage.capability()),
            readonly,
            ..Default::default()
        };
        let answer: CsiResponse<v1::NodePublishVolumeResponse> =
            self.csi.call("Node/NodePublishVolume", &request, LIMIT)?;
        Ok(answer.map(drop))
    }

    /// `NodeUnpublishVolume` from the path of a pod.
    ///
    /// # Errors
    /// If the driver is unreachable.
    pub fn unpublish(&self, claim: &PublishedVolume, pod: &str) -> Result<CsiResponse<()>> {
        let request = v1::NodeUnpublishVolumeRequest {
            volume_id: claim.volume.clone(),
            target_path: claim.target(pod),
        };
        let answer: CsiResponse<v1::NodeUnpublishVolumeResponse> =
            self.csi.call("Node/NodeUnpublishVolume", &request, LIMIT)?;
        Ok(answer.map(drop))
    }

    /// `NodeGetVolumeStats`: returns the total bytes at the path of a pod.
    ///
    /// # Errors
    /// If the driver is unreachable.
    pub fn total(&self, claim: &PublishedVolume, pod: &str) -> Result<CsiResponse<i64>> {
        let request = v1::NodeGetVolumeStatsRequest {
            volume_id: claim.volume.clone(),
            volume_path: claim.target(pod),
            ..Default::default()
        };
        let answer: CsiResponse<v1::NodeGetVolumeStatsResponse> =
            self.csi.call("Node/NodeGetVolumeStats", &request, LIMIT)?;
        Ok(answer.map(|stats| stats.usage.first().map_or(0, |usage| usage.total)))
    }

    /// `NodeExpandVolume` at the path of a pod.
    ///
    /// # Errors
    /// If the driver is unreachable.
    pub fn expand(&self, claim: &PublishedVolume, pod: &str, bytes: i64) -> Result<CsiResponse<i64>> {
        let request = v1::NodeExpandVolumeRequest {
            volume_id: claim.volume.clone(),
            volume_path: claim.target(pod),
            capacity_range: Some(CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
            ..Default::default()
        };
        let answer: CsiResponse<v1::NodeExpandVolumeResponse> =
            self.csi.call("Node/NodeExpandVolume", &request, LIMIT)?;
        Ok(answer.map(|expanded| expanded.capacity_bytes))
    }
}
