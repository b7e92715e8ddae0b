//! containerd and a kubelet in a test machine.
//!
//! The host reaches the kubelet through a forwarded port of its loopback, on which the kubelet listens, too;
//! the node's address is therefore 127.0.0.1. A kubelet does not choose that by itself: it is configured for
//! addresses from a cloud controller, and [`admit`] takes that controller's place.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::TOOLS_IMAGE;
use crate::control_plane::{API_SERVICE, ControlPlane};
use crate::vm::{HOST, Vm, bash};
use crate::wait::until;
use crate::world::World;

/// Time limits: emulated on a quiet host, these steps take 10 s and 20 s.
const RUNTIME_LIMIT: Duration = Duration::from_secs(600);
const REGISTRATION_LIMIT: Duration = Duration::from_secs(600);
/// Directory of the node's configuration and keys.
const DIR: &str = "/run/kubernetes";
/// Starts a component of the node itself. As on other nodes, its control group is a sibling of that of all
/// pods: in the root group, each of its threads would get as much of the processors as all pods together.
/// Memory is plentiful but an emulated processor is slow, so garbage collections are rarer.
const SYSTEM: &str = "echo $$ > /sys/fs/cgroup/system/cgroup.procs; GOGC=400 exec";
/// Taint of a node that waits for its cloud controller.
const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";

/// containerd without features that the machine's kernel or disk lacks; its images come from archives.
const CONTAINERD: &str = r#"version = 3
disabled_plugins = [
  'io.containerd.snapshotter.v1.blockfile', 'io.containerd.snapshotter.v1.btrfs',
  'io.containerd.snapshotter.v1.devmapper', 'io.containerd.snapshotter.v1.erofs',
  'io.containerd.snapshotter.v1.zfs', 'io.containerd.differ.v1.erofs',
]
[plugins.'io.containerd.cri.v1.images']
  snapshotter = 'overlayfs'
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = 'TOOLS_IMAGE'
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ['/usr/lib/cni']
  conf_dir = '/etc/cni/net.d'
"#;

/// Starts both in `vm`, which has just booted; the kubelet listens on `port`. With `import` the images are
/// imported from their archives; containerd keeps them on the state disk.
pub(super) fn start(vm: &Vm, control_plane: &ControlPlane, port: u16, import: bool) -> Result<()> {
    let (certificate, key, authority) = control_plane.server_certificate(vm.name(), &["127.0.0.1"])?;
    let user = format!("system:node:{}", vm.name());
    let kubeconfig = control_plane.component_kubeconfig(&user, "system:nodes", HOST)?;
    for (path, text) in [
        ("/etc/containerd/config.toml".to_owned(), CONTAINERD.replace("TOOLS_IMAGE", TOOLS_IMAGE)),
        ("/etc/cni/net.d/10-bridge.conflist".to_owned(), network().to_string()),
        // QEMU's own name server.
        ("/etc/resolv.conf".to_owned(), "nameserver 10.0.2.3\n".to_owned()),
        (format!("{DIR}/ca.crt"), authority),
        (format!("{DIR}/kubelet.crt"), certificate),
        (format!("{DIR}/kubelet.key"), key),
        (format!("{DIR}/kubeconfig"), kubeconfig),
        (format!("{DIR}/kubelet.json"), kubelet(port).to_string()),
    ] {
        vm.put_file(&path, 0o600, text.as_bytes())?;
    }
    vm.exec(&set_up(control_plane.port()))?;
    vm.spawn("containerd", &bash(&format!("{SYSTEM} containerd")))?;
    let answers = bash("until ctr version > /dev/null 2>&1; do sleep 0.5; done");
    let started = vm.run(&answers, RUNTIME_LIMIT);
    started.with_context(|| format!("containerd:\n{}", vm.log("containerd").unwrap_or_default()))?;
    if import {
        vm.exec(
            "for archive in /holdfast/images/*.tar; do
               ctr --namespace k8s.io images import --local --label io.cri-containerd.image=managed $archive
             done",
        )?;
    }
    vm.spawn(
        "kubelet",
        &bash(&format!(
            "{SYSTEM} kubelet --config={DIR}/kubelet.json --kubeconfig={DIR}/kubeconfig \
               --hostname-override={} --cloud-provider=external --housekeeping-interval=1m",
            vm.name()
        )),
    )
    .map(drop)
}

/// Waits until the node has registered itself, sets its address, and waits until it is Ready.
pub(super) fn admit(world: &World, name: &str) -> Result<()> {
    let node = format!("node/{name}");
    until(&format!("{node} to register itself"), REGISTRATION_LIMIT, || {
        Ok(world.kubectl(["get", &node]).ok())
    })?;
    let addresses = json!([
        { "type": "InternalIP", "address": "127.0.0.1" },
        { "type": "Hostname", "address": name },
    ]);
    let patch = json!({ "status": { "addresses": addresses } }).to_string();
    world.kubectl(["patch", &node, "--subresource=status", "--type=merge", "--patch", &patch])?;
    world.kubectl(["taint", "node", name, &format!("{UNINITIALIZED}-")])?;
    world.wait_for(&node, "condition=Ready")
}

/// Returns the script for the machine's mounts and network: cgroups, shared mount propagation for pods, space
/// on the state disk, and the API at its service's address (there is no kube-proxy).
fn set_up(port: u16) -> String {
    format!(
        "mount -t cgroup2 cgroup2 /sys/fs/cgroup
         mkdir /sys/fs/cgroup/system
         for name in containerd kubelet; do
           mkdir -p /state/$name /var/lib/$name; mount --bind /state/$name /var/lib/$name
         done
         mount --make-rshared /
         echo 1 > /proc/sys/net/ipv4/ip_forward
         for chain in OUTPUT PREROUTING; do
           iptables -t nat -A $chain -d {API_SERVICE} -p tcp --dport 443 -j DNAT --to {HOST}:{port}
         done"
    )
}

/// Pods are behind a bridge, and reach the host like the machine does.
fn network() -> Value {
    json!({
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [{
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": true,
            "ipMasq": true,
            "hairpinMode": true,
            "ipam": {
                "type": "host-local",
                "ranges": [[{ "subnet": "10.244.0.0/24" }]],
                "routes": [{ "dst": "0.0.0.0/0" }],
            },
        }],
    })
}

fn kubelet(port: u16) -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "port": port,
        "authentication": {
            "anonymous": { "enabled": false },
            "webhook": { "enabled": true },
            "x509": { "clientCAFile": format!("{DIR}/ca.crt") },
        },
        "authorization": { "mode": "Webhook" },
        "tlsCertFile": format!("{DIR}/kubelet.crt"),
        "tlsPrivateKeyFile": format!("{DIR}/kubelet.key"),
        "cgroupDriver": "cgroupfs",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "failSwapOn": false,
        "resolvConf": "/etc/resolv.conf",
        // QEMU's, too: the cluster has no name server.
        "clusterDNS": ["10.0.2.3"],
        // An emulated machine is slow, and its images could not be pulled again.
        "runtimeRequestTimeout": "15m",
        "nodeLeaseDurationSeconds": 120,
        "imageGCHighThresholdPercent": 100,
        "evictionHard": { "memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%" },
    })
}
