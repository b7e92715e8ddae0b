//! The node daemon in a test machine.
//!
//! Owns: one `holdfast-node` at a time, its configuration, the lifecycle of the process.
//! Does not own: the machine.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::report;
use crate::s3::{ACCESS_KEY, REGION, S3Server, SECRET_KEY};
use crate::vm::{ProgramOutput, Vm, bash};
use crate::wait::until;
use crate::wire::{Exit, GuestProgram};

/// Name of the daemon among the machine's programs.
pub const PROGRAM: &str = "node";
/// The same after an odd number of [`NodeDaemon::hand_over`]s.
const SUCCESSOR: &str = "node-successor";
/// Path of its configuration: on the state disk, so that it survives a reset.
const CONFIG: &str = "/state/node.toml";
/// Path of its kubeconfig.
const KUBECONFIG: &str = "/state/node.kubeconfig";
/// Port of its metrics in the machine.
pub const METRICS_PORT: u16 = 9181;

/// Number of instances that were named in this process.
static INSTANCES: AtomicUsize = AtomicUsize::new(1);

const START_LIMIT: Duration = Duration::from_secs(120);
const STOP_LIMIT: Duration = Duration::from_secs(60);
const CLI_LIMIT: Duration = Duration::from_secs(300);
/// Exit code of a command that depends on an unresponsive external service (`docs/monitoring.md`).
const UNAVAILABLE: i32 = 7;

/// Number of the signal that kills a process.
pub const SIGKILL: i32 = 9;
/// Number of the signal that asks a process to exit.
pub const SIGTERM: i32 = 15;

/// Interface that assigns the volumes to serve.
#[derive(Debug, Clone)]
pub enum ControlInterface {
    /// The Volume objects of the API in this kubeconfig.
    Kubernetes {
        /// The kubeconfig's text; see [`crate::world::World::node_kubeconfig`].
        kubeconfig: String,
    },
    /// Its command line. The name of the store is `store`.
    Standalone {
        /// The S3 endpoint as reached from the machine.
        endpoint: String,
        /// The bucket.
        bucket: String,
    },
    /// Its command line, with several stores.
    Stores(Vec<NamedStore>),
}

/// A store in the daemon's configuration.
#[derive(Debug, Clone)]
pub struct NamedStore {
    /// Its name in the configuration.
    pub name: &'static str,
    /// The S3 endpoint as reached from the machine.
    pub endpoint: String,
    /// The bucket.
    pub bucket: String,
}

impl NamedStore {
    /// Returns a bucket of `s3`.
    pub fn of(name: &'static str, s3: &S3Server, bucket: &str) -> Self {
        Self { name, endpoint: s3.endpoint_in_vm(), bucket: bucket.to_owned() }
    }
}

impl ControlInterface {
    /// Returns the command line, with a bucket of `s3`.
    pub fn standalone(s3: &S3Server, bucket: &str) -> Self {
        Self::Standalone { endpoint: s3.endpoint_in_vm(), bucket: bucket.to_owned() }
    }

    /// Returns the stores in the configuration.
    fn stores(&self) -> Vec<NamedStore> {
        match self {
            Self::Kubernetes { .. } => Vec::new(),
            Self::Standalone { endpoint, bucket } => {
                vec![NamedStore { name: "store", endpoint: endpoint.clone(), bucket: bucket.clone() }]
            }
            Self::Stores(stores) => stores.clone(),
        }
    }
}

/// The daemon of one machine.
#[derive(Debug)]
pub struct NodeDaemon {
    vm: Arc<Vm>,
    kubernetes: bool,
    /// True if it runs in a separate PID namespace, as in a pod without `hostPID`.
    own_pids: bool,
    /// Number of [`NodeDaemon::hand_over`]s.
    handoffs: AtomicUsize,
}

impl NodeDaemon {
    /// Configures and starts the daemon. `transport` is `auto`, `zero-copy` or `user-copy`; `data` is
    /// appended to the section `data` of the configuration.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start(vm: Arc<Vm>, control: &ControlInterface, transport: &str, data: &str) -> Result<Self> {
        Self::configure(vm, control, transport, data, false)
    }

    /// Configures and starts the daemon in a separate PID namespace. Only [`NodeDaemon::kill`] ends it.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start_in_pid_namespace(vm: Arc<Vm>, control: &ControlInterface) -> Result<Self> {
        Self::configure(vm, control, "auto", "", true)
    }

    fn configure(
        vm: Arc<Vm>,
        control: &ControlInterface,
        transport: &str,
        data: &str,
        own_pids: bool,
    ) -> Result<Self> {
        let config = config(vm.name(), control, transport, data)?;
        vm.put_file(CONFIG, 0o600, config.as_bytes())?;
        let kubernetes = match control {
            ControlInterface::Kubernetes { kubeconfig } => {
                vm.put_file(KUBECONFIG, 0o600, kubeconfig.as_bytes())?;
                true
            }
            ControlInterface::Standalone { .. } | ControlInterface::Stores(_) => false,
        };
        let node = Self { vm, kubernetes, own_pids, handoffs: AtomicUsize::new(0) };
        node.restart()?;
        Ok(node)
    }

    /// Starts the daemon of a machine whose state disk came from another one, with its configuration. Its
    /// command line selects the volumes to serve.
    ///
    /// # Errors
    /// If it does not start.
    pub fn resume(vm: Arc<Vm>) -> Result<Self> {
        let node = Self { vm, kubernetes: false, own_pids: false, handoffs: AtomicUsize::new(0) };
        node.restart()?;
        Ok(node)
    }

    /// Returns the machine.
    pub fn vm(&self) -> &Vm {
        &self.vm
    }

    /// Starts the daemon after [`NodeDaemon::kill`], [`NodeDaemon::terminate`] or a reset of the machine, and
    /// waits until it is ready and serves all volumes of the node.
    ///
    /// # Errors
    /// If it is already running or does not start.
    pub fn restart(&self) -> Result<()> {
        self.spawn(None)?;
        self.wait_ready("200 OK")
    }

    /// Starts the daemon like [`NodeDaemon::restart`], but waits until `/readyz` gives this response.
    ///
    /// # Errors
    /// If it is already running or does not start.
    pub fn restart_until(&self, answer: &str) -> Result<()> {
        self.spawn(None)?;
        self.wait_ready(answer)
    }

    fn spawn(&self, instance: Option<&str>) -> Result<()> {
        let namespace = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"];
        let daemon = ["holdfast-node", "run", "--config", CONFIG];
        let argv = namespace.iter().filter(|_| self.own_pids).chain(&daemon).map(|&word| word.to_owned());
        let mut program = GuestProgram { argv: argv.collect(), ..GuestProgram::default() };
        program.env.insert("RUST_LOG".to_owned(), "info".to_owned());
        program.env.insert("RUST_BACKTRACE".to_owned(), "1".to_owned());
        if self.kubernetes {
            program.env.insert("KUBECONFIG".to_owned(), KUBECONFIG.to_owned());
        }
        if let Some(instance) = instance {
            program.env.insert("HOLDFAST_INSTANCE".to_owned(), instance.to_owned());
        }
        self.vm.spawn(self.program(), &program).map(drop)
    }

    /// Waits until `/readyz` gives this response.
    ///
    /// # Errors
    /// If the daemon exits, or on a timeout.
    pub fn wait_ready(&self, answer: &str) -> Result<()> {
        let probe = bash(&get("/readyz"));
        until("the daemon to serve", START_LIMIT, || {
            if let Some(exit) = self.vm.status(self.program())? {
                bail!("the daemon ended: {exit:?}\n{}", self.vm.log(self.program())?);
            }
            Ok(self.vm.run(&probe, START_LIMIT)?.stdout.contains(answer).then_some(()))
        })
    }

    /// Kills the daemon and waits until it is gone.
    ///
    /// # Errors
    /// If it is not running.
    pub fn kill(&self) -> Result<()> {
        self.vm.signal(self.program(), SIGKILL)?;
        self.vm.wait(self.program(), STOP_LIMIT).map(drop)
    }

    /// Asks the daemon to exit, like Kubernetes.
    ///
    /// # Errors
    /// If it does not exit in time, or its exit code is not 0.
    pub fn terminate(&self) -> Result<()> {
        self.vm.signal(self.program(), SIGTERM)?;
        let exit = self.vm.wait(self.program(), STOP_LIMIT)?;
        ensure!(exit == Exit::Code(0), "the daemon ended by {exit:?} on SIGTERM");
        Ok(())
    }

    /// Starts a second daemon, waits until the running one has handed the devices over and has exited, and
    /// the new one serves. The new one replaces it in this object. A daemon of Kubernetes stands by instead,
    /// and is ended like its pod.
    ///
    /// # Errors
    /// If the old one does not exit in time with code 0, or the new one does not start.
    pub fn hand_over(&self) -> Result<()> {
        let old = self.program();
        self.handoffs.fetch_add(1, Ordering::Relaxed);
        // Unique across the daemons of a scenario: a node refuses an instance that served it before.
        let number = INSTANCES.fetch_add(1, Ordering::Relaxed);
        self.spawn(Some(&format!("daemon-{number}")))?;
        if self.kubernetes {
            self.vm.wait_log(old, "standing by", STOP_LIMIT)?;
            self.vm.signal(old, SIGTERM)?;
        }
        let exit = self.vm.wait(old, STOP_LIMIT)?;
        ensure!(exit == Exit::Code(0), "the daemon ended by {exit:?} when another asked it to leave");
        self.wait_ready("200 OK")
    }

    /// Returns the name of the daemon's process among the machine's programs.
    fn program(&self) -> &'static str {
        if self.handoffs.load(Ordering::Relaxed).is_multiple_of(2) { PROGRAM } else { SUCCESSOR }
    }

    /// Runs the daemon's command line and returns its output.
    ///
    /// # Errors
    /// If it fails; the error contains its output.
    pub fn cli(&self, arguments: &[&str]) -> Result<String> {
        let done = self.run_cli(arguments)?;
        ensure!(done.exit == Exit::Code(0), "{}", failed(arguments, &done));
        Ok(done.stdout)
    }

    /// Runs the daemon's command line, and retries while its exit code means an unresponsive store: on a busy
    /// host a request may take longer than the daemon's timeout.
    ///
    /// # Errors
    /// If it fails otherwise, or the store does not respond in time; the error contains its output.
    pub fn cli_with_retries(&self, arguments: &[&str]) -> Result<String> {
        until("a command that the store answers", CLI_LIMIT, || {
            let done = self.run_cli(arguments)?;
            match done.exit {
                Exit::Code(0) => Ok(Some(done.stdout)),
                Exit::Code(UNAVAILABLE) => {
                    report::step(failed(arguments, &done));
                    Ok(None)
                }
                Exit::Code(_) | Exit::Signal(_) => bail!("{}", failed(arguments, &done)),
            }
        })
    }

    fn run_cli(&self, arguments: &[&str]) -> Result<ProgramOutput> {
        let mut argv = vec!["holdfast-node".to_owned()];
        argv.extend(arguments.iter().map(|&word| word.to_owned()));
        self.vm.run(&GuestProgram { argv, ..GuestProgram::default() }, CLI_LIMIT)
    }

    /// Returns a metric of a volume; `None` while the daemon does not export it.
    ///
    /// # Errors
    /// If the metrics are not available.
    pub fn metric(&self, name: &str, volume: &str) -> Result<Option<f64>> {
        let start = format!("{name}{{volume=\"{volume}\"}} ");
        let metrics = self.metrics()?;
        let value = metrics.lines().find_map(|line| line.strip_prefix(&start));
        value.map(|value| value.trim().parse().with_context(|| format!("{name} is {value:?}"))).transpose()
    }

    /// Returns its metrics, as read by Prometheus.
    ///
    /// # Errors
    /// If they are not available.
    pub fn metrics(&self) -> Result<String> {
        self.vm.exec(&get("/metrics"))
    }
}

/// Returns a script that queries the daemon's HTTP listener.
fn get(path: &str) -> String {
    format!(
        "exec 3<>/dev/tcp/127.0.0.1/{METRICS_PORT}; \
         printf 'GET {path} HTTP/1.1\\r\\nHost: node\\r\\nConnection: close\\r\\n\\r\\n' >&3; cat <&3"
    )
}

fn failed(arguments: &[&str], ProgramOutput { exit, stdout, stderr }: &ProgramOutput) -> String {
    format!("holdfast-node {}: {exit:?}\n{stdout}{stderr}", arguments.join(" "))
}

fn config(name: &str, control: &ControlInterface, transport: &str, data: &str) -> Result<String> {
    let kubernetes = matches!(control, ControlInterface::Kubernetes { .. });
    let mut text = format!(
        "kubernetes = {kubernetes}\n\n[node]\nname = \"{name}\"\n\n[data]\ntransport = \"{transport}\"\n{data}\n\n\
         [metrics]\nlisten = \"0.0.0.0:{METRICS_PORT}\"\n"
    );
    for NamedStore { name, endpoint, bucket } in control.stores() {
        write!(
            text,
            "\n[stores.{name}]\nendpoint = \"{endpoint}\"\nregion = \"{REGION}\"\nbucket = \"{bucket}\"\npath_style = true\n\
             [stores.{name}.credentials]\naccess_key_id = \"{ACCESS_KEY}\"\nsecret_access_key = \"{SECRET_KEY}\"\n"
        )
        .context("write a store's section")?;
    }
    Ok(text)
}
