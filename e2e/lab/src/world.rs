//! Resources of one scenario, started on first use.
//!
//! Owns: the run's directory, and through it control plane, S3 server, operator and test machines.
//! Runs on: any thread.
//! Invariants: dropping the world ends every process and leaves only logs.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use anyhow::{Context, Result, bail, ensure};

use crate::collector::Collector;
use crate::command::{output, strip};
use crate::control_plane::ControlPlane;
use crate::csi::CsiService;
use crate::node::{ControlInterface, NodeDaemon};
use crate::operator::{NAMESPACE, Operator};
use crate::pins::KernelPin;
use crate::process::tail;
use crate::report;
use crate::run_dir::RunDir;
use crate::s3::S3Server;
use crate::setup::{BuildProfile, Toolbox};
use crate::vm::machine::MachineOptions;
use crate::vm::{HOST, Vm};

/// Programs of the workspace in test machines, in addition to this one, which is their process 1.
const NODE_PROGRAMS: &[&str] = &["holdfast-csi", "holdfast-node"];

/// Templates of the chart with access rights.
const ROLES: &[&str] = &["operator-rbac", "node-rbac", "secrets-rbac", "csi-rbac"];
/// API group of the CRD by which backup programs find the snapshot metadata service.
const CHANGED_BLOCKS: &str = "cbt.storage.k8s.io/v1beta1";

/// Resources of one scenario.
#[derive(Debug)]
pub struct World {
    parts: Mutex<StartedParts>,
    toolbox: Toolbox,
    kernel: KernelPin,
    profile: BuildProfile,
    programs: OnceLock<PathBuf>,
    // Dropped last: the processes above write into it.
    run: RunDir,
}

#[derive(Debug, Default)]
struct StartedParts {
    vms: BTreeMap<String, Arc<Vm>>,
    operator: Option<Arc<Operator>>,
    control_plane: Option<Arc<ControlPlane>>,
    s3: Option<Arc<S3Server>>,
    collector: Option<Arc<Collector>>,
    share: Option<PathBuf>,
}

impl World {
    /// Creates an empty world; `name` becomes part of its directory's name. Its machines boot `kernel`.
    /// `profile` is that of the programs under test.
    ///
    /// # Errors
    /// If the run's directory cannot be created.
    pub fn new(toolbox: &Toolbox, name: &str, kernel: KernelPin, profile: BuildProfile) -> Result<Self> {
        Ok(Self {
            parts: Mutex::new(StartedParts::default()),
            toolbox: toolbox.clone(),
            kernel,
            profile,
            programs: OnceLock::new(),
            run: RunDir::create(&toolbox.target(), name)?,
        })
    }

    /// Creates another empty world, with a separate Kubernetes API.
    ///
    /// # Errors
    /// If the run's directory cannot be created.
    pub fn create_sibling(&self, name: &str) -> Result<Self> {
        Self::new(&self.toolbox, name, self.kernel, self.profile)
    }

    /// Returns the directory of this world's files; those that end in `.log` are kept.
    pub fn dir(&self) -> &Path {
        self.run.path()
    }

    /// Returns the kernel of its machines.
    pub fn kernel(&self) -> KernelPin {
        self.kernel
    }

    /// Returns the tools of the host.
    pub fn toolbox(&self) -> &Toolbox {
        &self.toolbox
    }

    /// Returns the Kubernetes API.
    ///
    /// # Errors
    /// If it does not start.
    pub fn control_plane(&self) -> Result<Arc<ControlPlane>> {
        let mut parts = self.lock();
        if let Some(running) = &parts.control_plane {
            return Ok(Arc::clone(running));
        }
        report::step("start etcd and kube-apiserver");
        let started = ControlPlane::start(&self.toolbox, &self.dir().join("control-plane"))?;
        let started = Arc::new(started);
        parts.control_plane = Some(Arc::clone(&started));
        Ok(started)
    }

    /// Returns the S3 server.
    ///
    /// # Errors
    /// If it does not start.
    pub fn s3(&self) -> Result<Arc<S3Server>> {
        let mut parts = self.lock();
        if let Some(running) = &parts.s3 {
            return Ok(Arc::clone(running));
        }
        report::step("start the S3 server");
        let started = Arc::new(S3Server::start(&self.toolbox, &self.dir().join("s3"))?);
        parts.s3 = Some(Arc::clone(&started));
        Ok(started)
    }

    /// Returns the trace collector. Programs and machines started later export to it.
    ///
    /// # Errors
    /// If it does not start.
    pub fn collector(&self) -> Result<Arc<Collector>> {
        let mut parts = self.lock();
        if let Some(running) = &parts.collector {
            return Ok(Arc::clone(running));
        }
        let started = Arc::new(Collector::start()?);
        parts.collector = Some(Arc::clone(&started));
        Ok(started)
    }

    /// Returns variables for programs of the host that enable the export of traces, if a collector exists.
    fn exporting(&self) -> BTreeMap<String, String> {
        self.lock().collector.as_ref().map(|collector| collector.environment(false)).unwrap_or_default()
    }

    /// Returns the operator, after the installation of its CRDs.
    ///
    /// # Errors
    /// If it does not start.
    pub fn operator(&self) -> Result<Arc<Operator>> {
        if let Some(running) = &self.lock().operator {
            return Ok(Arc::clone(running));
        }
        let program = self.programs()?.join("holdfast-operator");
        self.install()?;
        report::step("start the operator");
        let kubernetes = self.control_plane()?;
        let config = kubernetes.service_account_kubeconfig(NAMESPACE, "holdfast-operator", "127.0.0.1")?;
        let kubeconfig = self.dir().join("operator.kubeconfig");
        fs::write(&kubeconfig, config).context("write the operator's kubeconfig")?;
        let started =
            Arc::new(Operator::start(&program, &kubeconfig, self.exporting(), &self.dir().join("operator"))?);
        self.lock().operator = Some(Arc::clone(&started));
        Ok(started)
    }

    /// Returns the CSI driver's Controller service, with its rights from the chart. Requires
    /// [`World::operator`] first.
    ///
    /// # Errors
    /// If it does not start.
    pub fn csi_controller(&self) -> Result<CsiService> {
        let program = self.programs()?.join("holdfast-csi");
        report::step("start the CSI controller");
        let config = self.csi_kubeconfig("127.0.0.1")?;
        CsiService::start(&program, "controller", &config, self.exporting(), &self.dir().join("csi"))
    }

    /// Returns the CSI driver's SnapshotMetadata service, with its rights from the chart. Requires
    /// [`World::operator`] first.
    ///
    /// # Errors
    /// If it does not start.
    pub fn csi_snapshot_metadata(&self) -> Result<CsiService> {
        let program = self.programs()?.join("holdfast-csi");
        report::step("start the CSI driver's snapshot metadata service");
        let mut helm = Command::new(self.toolbox.helm()?);
        helm.args(["template", "holdfast"]).arg(self.chart()).args(["--namespace", NAMESPACE]);
        helm.args(["--api-versions", CHANGED_BLOCKS, "--set", "csi.snapshotMetadata.enabled=true"]);
        helm.args(["--set", "csi.snapshotMetadata.tlsSecret=none,csi.snapshotMetadata.caCert=none"]);
        for template in ["snapshot-metadata", "secrets-rbac"] {
            helm.args(["--show-only", &format!("templates/{template}.yaml")]);
        }
        let rendered = output(&mut helm)?;
        // Its CRD is not installed.
        let known: Vec<&str> =
            rendered.split("\n---\n").filter(|object| !object.contains(CHANGED_BLOCKS)).collect();
        let file = self.dir().join("snapshot-metadata.yaml");
        fs::write(&file, known.join("\n---\n")).context("write the rendered objects")?;
        self.kubectl(["apply", "--server-side", "--filename", &file.display().to_string()])?;
        let kubernetes = self.control_plane()?;
        let config =
            kubernetes.service_account_kubeconfig(NAMESPACE, "holdfast-snapshot-metadata", "127.0.0.1")?;
        CsiService::start(&program, "snapshot-metadata", &config, self.exporting(), &self.dir().join("csi"))
    }

    /// Returns the text of the CSI controller's kubeconfig. `host` is the address of the API.
    ///
    /// # Errors
    /// If the chart is not installed.
    pub fn csi_kubeconfig(&self, host: &str) -> Result<String> {
        self.control_plane()?.service_account_kubeconfig(NAMESPACE, "holdfast-csi-controller", host)
    }

    /// Returns the storage node of that name.
    ///
    /// # Errors
    /// If it does not boot.
    pub fn vm(&self, name: &str) -> Result<Arc<Vm>> {
        self.vm_with(name, MachineOptions::node)
    }

    /// Returns the test machine of that name; `options` are used if it is not running yet.
    ///
    /// # Errors
    /// If it does not boot.
    pub fn vm_with(&self, name: &str, options: impl FnOnce() -> MachineOptions) -> Result<Arc<Vm>> {
        let mut parts = self.lock();
        if let Some(running) = parts.vms.get(name) {
            return Ok(Arc::clone(running));
        }
        let share = match &parts.share {
            Some(share) => share.clone(),
            None => parts.share.insert(self.make_share()?).clone(),
        };
        let options = options();
        let boot = self.toolbox.boot_files(self.kernel, options.user_space)?;
        report::step(format_args!("boot test machine {name}"));
        let dir = self.dir().join(format!("vm-{name}"));
        let vm = Arc::new(Vm::start(name, &dir, &boot, &share, options)?);
        if let Some(collector) = &parts.collector {
            vm.set_environment(collector.environment(true));
        }
        parts.vms.insert(name.to_owned(), Arc::clone(&vm));
        Ok(vm)
    }

    /// Adds a program, without its debug information, at `/holdfast/<path>` of test machines booted later.
    ///
    /// # Errors
    /// If it cannot be copied.
    pub fn share(&self, file: &Path, path: &str) -> Result<()> {
        strip(file, &self.place_in_share(path)?)
    }

    /// Adds an unchanged file at `/holdfast/<path>` of test machines booted later.
    ///
    /// # Errors
    /// If it cannot be copied.
    pub fn share_file(&self, file: &Path, path: &str) -> Result<()> {
        let to = self.place_in_share(path)?;
        fs::copy(file, &to).map(drop).with_context(|| format!("copy {}", file.display()))
    }

    /// Runs kubectl with administrator's rights and returns its output.
    ///
    /// # Errors
    /// If it fails; the error contains its output.
    pub fn kubectl<A: AsRef<std::ffi::OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = A>,
    ) -> Result<String> {
        output(self.control_plane()?.kubectl().args(arguments))
    }

    /// Waits until `what` (an argument of `kubectl wait --for`) holds for `kind/name`, or for all objects of
    /// a kind.
    ///
    /// # Errors
    /// If it does not within five minutes; the error shows the state of the objects.
    pub fn wait_for(&self, objects: &str, what: &str) -> Result<()> {
        let all = (!objects.contains('/')).then_some("--all");
        let on = format!("--for={what}");
        let words = ["wait", objects, &on, "--timeout=300s"];
        let waited = self.kubectl(words.into_iter().chain(all));
        waited.map(drop).with_context(|| {
            let shown = self.kubectl(["get", objects, "--output=yaml"]);
            shown.unwrap_or_else(|error| format!("{error:#}"))
        })
    }

    /// Installs the CRDs of `crds/` and waits until the API server serves them.
    ///
    /// # Errors
    /// If it rejects one.
    pub fn install_crds(&self) -> Result<()> {
        let crds = self.toolbox.workspace().join("crds");
        let mut files = Vec::new();
        for entry in fs::read_dir(&crds).with_context(|| format!("list {}", crds.display()))? {
            let path = entry?.path();
            if path.extension().is_some_and(|kind| kind == "yaml") {
                files.push(format!("--filename={}", path.display()));
            }
        }
        ensure!(!files.is_empty(), "no kinds in {}", crds.display());
        let apply = ["apply", "--server-side"].into_iter().chain(files.iter().map(String::as_str));
        self.kubectl(apply)?;
        let wait = ["wait", "--for=condition=Established", "--timeout=60s"];
        self.kubectl(wait.into_iter().chain(files.iter().map(String::as_str))).map(drop)
    }

    /// Installs the parts of the chart that the programs depend on: CRDs, namespace, service accounts and
    /// their roles. (Its pods need a kubelet; the harness starts the programs itself.)
    ///
    /// # Errors
    /// If the chart cannot be rendered or the API server rejects something.
    pub fn install(&self) -> Result<()> {
        self.install_crds()?;
        self.kubectl(["create", "namespace", NAMESPACE])?;
        let mut helm = Command::new(self.toolbox.helm()?);
        helm.args(["template", "holdfast"]).arg(self.chart()).args(["--namespace", NAMESPACE]);
        for template in ROLES {
            helm.args(["--show-only", &format!("templates/{template}.yaml")]);
        }
        let roles = self.dir().join("roles.yaml");
        fs::write(&roles, output(&mut helm)?).context("write the chart's roles")?;
        self.kubectl(["apply", "--server-side", "--filename", &roles.display().to_string()]).map(drop)
    }

    /// Returns the text of the kubeconfig of a node daemon in a test machine, with its rights from the chart.
    /// Requires [`World::install`] or [`World::operator`] first.
    ///
    /// # Errors
    /// If the chart is not installed.
    pub fn node_kubeconfig(&self) -> Result<String> {
        self.control_plane()?.service_account_kubeconfig(NAMESPACE, "holdfast-node", HOST)
    }

    /// Returns the daemon of the machine of that name, which serves the volumes assigned by the Kubernetes
    /// API. Boots the machine if needed. See [`NodeDaemon::start`] for `transport` and `data`.
    ///
    /// # Errors
    /// If the machine or the daemon does not start.
    pub fn node(&self, name: &str, transport: &str, data: &str) -> Result<NodeDaemon> {
        let control = ControlInterface::Kubernetes { kubeconfig: self.node_kubeconfig()? };
        NodeDaemon::start(self.vm(name)?, &control, transport, data)
    }

    /// Returns the path of the chart.
    pub fn chart(&self) -> PathBuf {
        self.toolbox.workspace().join("charts/holdfast")
    }

    /// Returns the directory of the programs under test, built if needed.
    ///
    /// # Errors
    /// If cargo fails.
    pub fn programs(&self) -> Result<PathBuf> {
        if let Some(built) = self.programs.get() {
            return Ok(built.clone());
        }
        let built = self.toolbox.programs(self.profile)?;
        Ok(self.programs.get_or_init(|| built).clone())
    }

    /// Checks that no kernel of the test machines has reported its own fault, such as freed memory in use.
    /// Programs may continue to run for a while after such a fault.
    ///
    /// # Errors
    /// The first such line of a console.
    pub fn check_kernels(&self) -> Result<()> {
        let vms: Vec<Arc<Vm>> = self.lock().vms.values().map(Arc::clone).collect();
        for vm in vms {
            let path = vm.console();
            let text = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
            if let Some(fault) = kernel_fault(&String::from_utf8_lossy(&text)) {
                bail!("the kernel of machine {} reported: {fault}", vm.name());
            }
        }
        Ok(())
    }

    /// Returns the ends of all existing logs.
    pub fn logs(&self, lines: usize) -> String {
        let mut text = String::new();
        let vms: Vec<Arc<Vm>> = self.lock().vms.values().map(Arc::clone).collect();
        for vm in vms {
            text.push_str(&vm.logs(lines));
        }
        for part in ["control-plane", "s3", "operator", "csi", "velero"] {
            let Ok(entries) = fs::read_dir(self.dir().join(part)) else {
                continue;
            };
            let mut logs: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
            logs.retain(|path| path.extension().is_some_and(|kind| kind == "log"));
            logs.sort();
            for log in logs {
                // Writing to a String cannot fail.
                text.push_str(&format!("--- {}\n{}\n", log.display(), tail(&log, lines)));
            }
        }
        text
    }

    /// Returns the path of a new file of the share, after creating its directory.
    fn place_in_share(&self, path: &str) -> Result<PathBuf> {
        let mut parts = self.lock();
        let share = match &parts.share {
            Some(share) => share.clone(),
            None => parts.share.insert(self.make_share()?).clone(),
        };
        let to = share.join(path);
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent).with_context(|| format!("create {}", parent.display()))?;
        }
        Ok(to)
    }

    /// Creates the directory that test machines see at `/holdfast`: the programs under test, without debug
    /// information.
    fn make_share(&self) -> Result<PathBuf> {
        let built = self.programs()?;
        let share = self.dir().join("share");
        fs::create_dir_all(share.join("bin")).context("create the share")?;
        // With this name, the kernel finds the program even after `cargo test` has replaced it.
        let agent = PathBuf::from(format!("/proc/{}/exe", std::process::id()));
        strip(&agent, &share.join("bin/holdfast-e2e"))?;
        for program in NODE_PROGRAMS {
            strip(&built.join(program), &share.join("bin").join(program))?;
        }
        Ok(share)
    }

    fn lock(&self) -> MutexGuard<'_, StartedParts> {
        self.parts.lock().expect("nothing panics while it holds this lock")
    }
}

/// Returns the first line of a console that reports a fault of the kernel. A lockup is none: an overloaded
/// host pauses its machines.
fn kernel_fault(console: &str) -> Option<&str> {
    console.lines().find(|line| line.contains("BUG: ") && !line.contains("lockup"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Found by chance: a scenario passed while its kernel freed memory in use.
    #[test]
    fn a_fault_of_the_kernel_is_found_among_other_lines() {
        let bad = "[  248.475715] BUG: Bad page state in process kept-ring  pfn:05e60";
        assert_eq!(kernel_fault(&format!("HOLDFAST-AGENT-READY\n{bad}\nlast")), Some(bad));
        let slow = "watchdog: BUG: soft lockup - CPU#0 stuck for 22s!\nBUG: workqueue lockup - pool";
        assert_eq!(kernel_fault(slow), None);
    }
}
