//! A complete Kubernetes cluster of one or two nodes.
//!
//! Owns: controller manager and scheduler on the host, the nodes' machines and their kubelets.
//! Does not own: the API server, which is the [`World`]'s.
//! Invariants: no image is ever pulled: all images of pods are imported into each node's container runtime.
//! On failure: a node's logs, including those of its pods, are in [`Vm::logs`].

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::command::output;
use crate::control_plane::ControlPlane;
use crate::images::{self, Image};
use crate::operator::NAMESPACE;
use crate::pins::{SIDECARS, SNAPSHOTTER};
use crate::process::LoggedProcess;
use crate::report;
use crate::setup::go::SNAPSHOT_PROGRAMS;
use crate::setup::{BuildProfile, Toolbox};
use crate::vm::Vm;
use crate::vm::machine::{MachineOptions, POD_PORT, free_port};
use crate::world::World;
pub use controllers::Controllers;

pub mod claims;
mod controllers;
mod node;

/// Name of the VolumeAttributesClass: a FLUSH waits for its commit.
pub const ATTRIBUTES: &str = "safe";
/// Image with a shell and its tools, for test pods; also the sandbox container of every pod.
pub const TOOLS_IMAGE: &str = "docker.io/library/busybox:e2e";
/// Names of the nodes; a single-node cluster has the first one.
pub const NODES: [&str; 2] = ["a", "b"];
/// Maximum wait for the chart's pods, in helm's syntax.
const INSTALL_LIMIT: &str = "20m";

/// A running cluster.
#[derive(Debug)]
pub struct Cluster<'a> {
    world: &'a World,
    control_plane: Arc<ControlPlane>,
    nodes: Vec<Machine>,
    /// The snapshot controller, if requested.
    snapshots: Option<LoggedProcess>,
    // Dropped before the world's API server.
    _controllers: Controllers,
}

/// A node's machine, and the ports on the host's loopback that are forwarded to it.
#[derive(Debug)]
struct Machine {
    vm: Arc<Vm>,
    kubelet: u16,
    /// Forwarded to a pod: see [`Cluster::reach`].
    pod: u16,
}

/// Optional parts of a cluster.
#[derive(Debug, Default)]
pub struct Extras {
    /// The second node.
    pub second_node: bool,
    /// The CRDs of snapshots and group snapshots, and their controller; the chart then installs the
    /// snapshotter.
    pub snapshots: bool,
    /// Images that pods may use.
    pub images: Vec<Image>,
}

impl<'a> Cluster<'a> {
    /// Builds the images, starts all parts and waits until the nodes are Ready.
    ///
    /// # Errors
    /// If one cannot be built or does not start.
    pub fn start(world: &'a World) -> Result<Self> {
        Self::start_with(world, &Extras::default())
    }

    /// Builds the images, starts all parts and these optional ones, and waits until the nodes are Ready.
    ///
    /// # Errors
    /// If one cannot be built or does not start.
    pub fn start_with(world: &'a World, extras: &Extras) -> Result<Self> {
        share_images(world, extras)?;
        world.share(&world.toolbox().kubernetes("kubelet")?, "bin/kubelet")?;
        let control_plane = world.control_plane()?;
        report::step("start controller manager and scheduler");
        let controllers = Controllers::start(world.toolbox(), &control_plane, &[])?;
        let snapshots = extras.snapshots.then(|| start_snapshots(world)).transpose()?;
        let mut cluster =
            Self { world, control_plane, nodes: Vec::new(), snapshots, _controllers: controllers };
        for name in &NODES[..if extras.second_node { 2 } else { 1 }] {
            let (kubelet, pod) = (free_port()?, free_port()?);
            let vm = world.vm_with(name, || MachineOptions::cluster_node(kubelet, pod))?;
            report::step("start containerd and kubelet, import the images");
            node::start(&vm, &cluster.control_plane, kubelet, true)?;
            node::admit(world, name)?;
            cluster.nodes.push(Machine { vm, kubelet, pod });
        }
        Ok(cluster)
    }

    /// Returns the machine of the first node.
    pub fn node(&self) -> &Vm {
        &self.nodes[0].vm
    }

    fn find(&self, name: &str) -> Result<&Machine> {
        self.nodes
            .iter()
            .find(|machine| machine.vm.name() == name)
            .with_context(|| format!("no node {name:?}"))
    }

    /// Returns the machine of the node `name`.
    ///
    /// # Errors
    /// If the node does not exist.
    pub fn node_named(&self, name: &str) -> Result<&Vm> {
        Ok(&self.find(name)?.vm)
    }

    /// Forwards the API server's connections to the pod at `address` on the first node, one pod at a time.
    ///
    /// # Errors
    /// If the machine rejects it.
    pub fn reach(&self, address: SocketAddr) -> Result<()> {
        let Machine { vm, kubelet: _, pod } = &self.nodes[0];
        vm.exec(&format!(
            "iptables -t nat -N POD 2>/dev/null && iptables -t nat -A PREROUTING -p tcp --dport {POD_PORT} -j POD
             iptables -t nat -F POD
             iptables -t nat -A POD -p tcp -j DNAT --to {address}"
        ))?;
        self.control_plane.route(address, *pod);
        Ok(())
    }

    /// Returns the address of the daemon's metrics on the first node; `None` while it has no pod.
    ///
    /// # Errors
    /// If the API server does not respond.
    pub fn daemon(&self) -> Result<Option<SocketAddr>> {
        let address = "{.status.podIP}:{.spec.containers[0].ports[0].containerPort}";
        let all = format!("--output=jsonpath={{range .items[*]}}{address}{{\"\\n\"}}{{end}}");
        let node = "--selector=app.kubernetes.io/component=node";
        let output = self.world.kubectl(["get", "pods", "--namespace=holdfast-system", node, &all])?;
        // A new pod has no address yet.
        Ok(output.lines().filter_map(|line| line.parse().ok()).next_back())
    }

    /// Restores the power of the node `name` after a power failure, and waits until it is Ready. Its disk is
    /// unchanged: images, pods, the state of the daemon.
    ///
    /// # Errors
    /// If it does not become Ready.
    pub fn power_on(&self, name: &str) -> Result<()> {
        let Machine { vm, kubelet, pod: _ } = self.find(name)?;
        vm.boot()?;
        node::start(vm, &self.control_plane, *kubelet, false)?;
        self.world.wait_for(&format!("node/{name}"), "condition=Ready")
    }

    /// Installs the chart with these values, in addition to those for a cluster of one small node, and waits
    /// until all pods are ready.
    ///
    /// # Errors
    /// If they do not become ready; the error lists pods and events.
    pub fn install(&self, store: &ClusterStore) -> Result<()> {
        report::step("helm install the chart, wait until all pods are ready");
        let values = self.world.dir().join("values.json");
        fs::write(&values, store.values(self.snapshots.is_some()).to_string())
            .context("write the chart's values")?;
        let installed = self.helm(&[
            "install".as_ref(),
            "holdfast".as_ref(),
            self.world.chart().as_os_str(),
            "--create-namespace".as_ref(),
            "--wait".as_ref(),
            "--timeout".as_ref(),
            INSTALL_LIMIT.as_ref(),
            "--values".as_ref(),
            values.as_os_str(),
        ]);
        installed.with_context(|| self.describe())?;
        self.world.kubectl([
            "create",
            "secret",
            "generic",
            store.name,
            &format!("--namespace={NAMESPACE}"),
            &format!("--from-literal=accessKeyId={}", crate::s3::ACCESS_KEY),
            &format!("--from-literal=secretAccessKey={}", crate::s3::SECRET_KEY),
        ])?;
        let file = self.world.dir().join("store.json");
        fs::write(&file, store.object().to_string()).context("write the ObjectStore")?;
        self.world.kubectl(["apply".as_ref(), "--filename".as_ref(), file.as_os_str()])?;
        self.world.wait_for(&format!("objectstore/{}", store.name), "condition=Ready")
    }

    /// Makes the kubelet run the CSI driver's probes less often. Each is a process in a container, and at the
    /// chart's periods an emulated node spends half of its time on them.
    ///
    /// # Errors
    /// If the pods do not become ready again.
    pub fn relax_probes(&self) -> Result<()> {
        report::step("lengthen the periods of the CSI driver's probes");
        for (object, container) in [
            ("daemonset/holdfast-csi-node", "csi-node"),
            ("deployment/holdfast-csi-controller", "csi-controller"),
        ] {
            let probes = json!({
                "name": container,
                "livenessProbe": { "periodSeconds": 300 },
                "readinessProbe": { "periodSeconds": 60 },
            });
            let patch = json!({ "spec": { "template": { "spec": { "containers": [probes] } } } }).to_string();
            let namespace = format!("--namespace={NAMESPACE}");
            self.world.kubectl(["patch", object, &namespace, "--patch", &patch])?;
            let status = ["rollout", "status", object, &namespace, "--timeout=20m"];
            self.world.kubectl(status).with_context(|| self.describe())?;
        }
        Ok(())
    }

    /// Runs the chart's own test to completion.
    ///
    /// # Errors
    /// If it fails.
    pub fn test(&self) -> Result<()> {
        self.helm(&["test".as_ref(), "holdfast".as_ref(), "--timeout".as_ref(), INSTALL_LIMIT.as_ref()])
    }

    /// Removes the release, once the API server's guard reports that no volume is served.
    ///
    /// # Errors
    /// If helm fails.
    pub fn uninstall(&self) -> Result<()> {
        let none = "--for=jsonpath={.data.attached}=0";
        let guard = ["--namespace", NAMESPACE, "wait", "configmap/holdfast-in-use", none, "--timeout=60s"];
        self.world.kubectl(guard)?;
        self.helm(&["uninstall".as_ref(), "holdfast".as_ref(), "--wait".as_ref()])
    }

    /// Returns pods, claims and events, for troubleshooting.
    pub fn describe(&self) -> String {
        let ask = |what: &[&str]| {
            let shown = self.world.kubectl(what.iter().copied().chain(["--all-namespaces"]));
            shown.unwrap_or_else(|error| format!("{error:#}"))
        };
        let pods = ask(&["get", "pods,pvc,volumeattachments,volumes", "--output=wide"]);
        let events = ask(&["get", "events", "--sort-by=.metadata.creationTimestamp"]);
        format!("{pods}\n{events}")
    }

    fn helm(&self, arguments: &[&std::ffi::OsStr]) -> Result<()> {
        let home = self.world.dir().join("helm");
        let mut helm = Command::new(self.world.toolbox().helm()?);
        helm.args(arguments)
            .args(["--namespace", NAMESPACE])
            .env("KUBECONFIG", self.world.control_plane()?.admin_kubeconfig())
            // Ignores the user's settings, and leaves nothing behind.
            .env("HELM_CACHE_HOME", &home)
            .env("HELM_CONFIG_HOME", &home)
            .env("HELM_DATA_HOME", &home);
        output(&mut helm).map(drop)
    }
}

/// A bucket of the S3 server, and the StorageClass of the same name.
#[derive(Debug)]
pub struct ClusterStore<'a> {
    /// Name of ObjectStore, Secret and StorageClass.
    pub name: &'a str,
    /// The bucket, which must exist.
    pub bucket: &'a str,
    /// Its server, as reached by pods.
    pub endpoint: &'a str,
}

impl ClusterStore<'_> {
    /// Returns the chart's values. `snapshots` adds a VolumeSnapshotClass and a VolumeGroupSnapshotClass of
    /// the same name.
    fn values(&self, snapshots: bool) -> Value {
        let classes: &[&str] = if snapshots { &[self.name] } else { &[] };
        let tag = |name: &str| {
            let version = SIDECARS.iter().find(|(sidecar, _)| *sidecar == name).map(|(_, version)| version);
            json!({ "tag": version.map(|version| format!("v{version}")) })
        };
        json!({
            "node": { "slabSize": "256Mi", "cacheSize": "4Gi", "maxDirty": "512Mi" },
            "storageClasses": [{ "name": self.name, "objectStore": self.name, "default": true }],
            "volumeAttributesClasses": [{ "name": ATTRIBUTES, "durability": "object" }],
            "volumeSnapshotClasses": classes.iter().map(|name| json!({ "name": name })).collect::<Vec<_>>(),
            // One instance of each is enough load for an emulated node. Pods share its processors by their
            // requests: those of the chart are too small for leases of seconds.
            "operator": { "replicas": 1, "resources": { "requests": { "cpu": "400m", "memory": "64Mi" } } },
            "csi": {
                "controller": {
                    "replicas": 1,
                    "resources": { "requests": { "cpu": "200m", "memory": "32Mi" } },
                },
                "node": { "resources": { "requests": { "cpu": "200m", "memory": "32Mi" } } },
                "sidecars": {
                    "provisioner": tag("csi-provisioner"),
                    "attacher": tag("csi-attacher"),
                    "resizer": tag("csi-resizer"),
                    "snapshotter": { "tag": format!("v{SNAPSHOTTER}") },
                },
            },
        })
    }

    fn object(&self) -> Value {
        json!({
            "apiVersion": "storage.holdfast.dev/v1alpha1",
            "kind": "ObjectStore",
            "metadata": { "name": self.name },
            "spec": {
                "bucket": self.bucket,
                "endpoint": self.endpoint,
                "region": crate::s3::REGION,
                "pathStyle": true,
                "keepDeleted": "0s",
                "credentials": { "secretRef": { "name": self.name, "namespace": NAMESPACE } },
            },
        })
    }
}

/// Builds all images used by the cluster's pods, in the machines' shared directory.
fn share_images(world: &World, extras: &Extras) -> Result<()> {
    let directory = world.dir().join("images");
    let toolbox = world.toolbox();
    let mut archives = Vec::new();
    for built in images::build(toolbox, BuildProfile::Dev, &directory)? {
        archives.push(built.path);
    }
    let mut sidecars = SIDECARS.to_vec();
    if extras.snapshots {
        sidecars.push((SNAPSHOT_PROGRAMS[0], SNAPSHOTTER));
    }
    for (name, version) in sidecars {
        let reference = format!("registry.k8s.io/sig-storage/{name}:v{version}");
        archives.push(Image::of_static(&reference, name, &toolbox.sidecar(name)?)?.write(&directory)?.0);
    }
    archives.push(tools(toolbox, TOOLS_IMAGE)?.write(&directory)?.0);
    for archive in archives {
        let name = archive.file_name().context("an archive has a name")?;
        world.share_file(&archive, &Path::new("images").join(name).display().to_string())?;
    }
    for (number, image) in extras.images.iter().enumerate() {
        let (archive, _) = image.write(&directory.join("extra"))?;
        world.share_file(&archive, &format!("images/extra-{number}.tar"))?;
    }
    Ok(())
}

/// Installs the CRDs of `snapshot.storage.k8s.io` and `groupsnapshot.storage.k8s.io`, and starts their
/// controller on the host.
fn start_snapshots(world: &World) -> Result<LoggedProcess> {
    report::step("install the kinds of snapshots, start their controller");
    install_snapshot_kinds(world)?;
    controllers::start_snapshots(world.toolbox(), &*world.control_plane()?)
}

/// Installs the CRDs of `snapshot.storage.k8s.io` and `groupsnapshot.storage.k8s.io`.
///
/// # Errors
/// If they cannot be downloaded, or the API server rejects one.
pub fn install_snapshot_kinds(world: &World) -> Result<()> {
    let kinds = world.toolbox().snapshot_kinds()?;
    let mut files = Vec::new();
    for entry in fs::read_dir(&kinds).with_context(|| format!("list {}", kinds.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        // The directory also contains a list of them.
        if name.contains("snapshot.storage.k8s.io_") {
            files.push(format!("--filename={}", path.display()));
        }
    }
    world.kubectl(["apply", "--server-side"].into_iter().chain(files.iter().map(String::as_str)))?;
    let established = ["wait", "--for=condition=Established", "--timeout=60s"];
    world.kubectl(established.into_iter().chain(files.iter().map(String::as_str))).map(drop)
}

/// Builds an image with a shell and its tools, at `reference`: it waits unless a pod sets a command.
pub(crate) fn tools(toolbox: &Toolbox, reference: &str) -> Result<Image> {
    let program = toolbox.busybox()?;
    let mut image = Image::of_static(reference, "bin/busybox", &program)?;
    image.user = images::ROOT;
    image.entrypoint.extend(["sleep", "inf"].map(str::to_owned));
    for applet in output(Command::new(&program).arg("--list"))?.lines().filter(|name| *name != "busybox") {
        image.layers[0].link(&format!("bin/{applet}"), "busybox");
    }
    Ok(image)
}
