//! etcd and kube-apiserver on the host's loopback.
//!
//! Owns: the two processes, their certificates, the kubeconfigs, the audit log and the routes to pods.
//! Does not own: controllers: scheduler, controller manager and kubelets belong to a [`crate::cluster`].
//! On failure: the log of each process is in the run directory.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use crate::command::output;
use crate::process::LoggedProcess;
use crate::setup::Toolbox;
use crate::vm;
use crate::vm::machine::free_port;
use crate::wait::until;
use audit::{ApiRequest, Audit};
use certificates::Authority;
use egress::Egress;

pub mod audit;
mod certificates;
mod egress;
mod kubeconfig;

/// Maximum wait for the API server to be ready: it takes 9 s on a quiet machine.
const READY_LIMIT: Duration = Duration::from_secs(120);
/// Addresses of services; they are not routed here.
const SERVICES: &str = "10.96.0.0/16";
/// Address of the API's own service.
pub const API_SERVICE: &str = "10.96.0.1";

/// A running Kubernetes API.
#[derive(Debug)]
pub struct ControlPlane {
    dir: PathBuf,
    port: u16,
    authority: Authority,
    audit: Audit,
    egress: Egress,
    kubectl: PathBuf,
    apiserver_command: Command,
    // Dropped in this order: the API server first, then its database.
    apiserver: Mutex<Option<LoggedProcess>>,
    etcd: Mutex<LoggedProcess>,
}

impl ControlPlane {
    /// Starts both and waits until the API is ready.
    ///
    /// # Errors
    /// If one cannot be built or started, or the API is not ready in time.
    pub fn start(toolbox: &Toolbox, dir: &Path) -> Result<Self> {
        fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
        let authority = Authority::create(dir, &["127.0.0.1", vm::HOST, API_SERVICE])?;
        let (certificate, key) = authority.client("kube-apiserver", "system:masters")?;
        fs::write(dir.join("kubelet-client.crt"), certificate).context("write the kubelets' client")?;
        fs::write(dir.join("kubelet-client.key"), key).context("write the kubelets' client")?;
        let (client, peer, port) = (free_port()?, free_port()?, free_port()?);
        let client = format!("http://127.0.0.1:{client}");
        let peer = format!("http://127.0.0.1:{peer}");
        let mut etcd = Command::new(toolbox.etcd()?);
        etcd.arg("--data-dir")
            .arg(dir.join("etcd"))
            .args(["--unsafe-no-fsync", "--log-level", "warn"])
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("default={peer}")]);
        let audit = Audit::prepare(dir)?;
        let egress = Egress::start(dir)?;
        let etcd = LoggedProcess::spawn("etcd", &etcd, &dir.join("etcd.log"))?;
        let mut apiserver = Command::new(toolbox.kubernetes("kube-apiserver")?);
        apiserver
            .arg(format!("--etcd-servers={client}"))
            .args(["--bind-address=127.0.0.1", "--advertise-address=127.0.0.1"])
            .arg(format!("--secure-port={port}"))
            .arg(format!("--service-cluster-ip-range={SERVICES}"))
            .args(["--authorization-mode=Node,RBAC", "--allow-privileged=true"])
            .args(["--enable-admission-plugins=NodeRestriction"])
            .args(audit.arguments())
            .arg(egress.argument())
            .arg("--kubelet-preferred-address-types=InternalIP")
            .arg("--service-account-issuer=https://kubernetes.default.svc")
            .arg("--profiling=false");
        for (flag, file) in [
            ("tls-cert-file", "server.crt"),
            ("tls-private-key-file", "server.key"),
            ("client-ca-file", "ca.crt"),
            ("kubelet-certificate-authority", "ca.crt"),
            ("kubelet-client-certificate", "kubelet-client.crt"),
            ("kubelet-client-key", "kubelet-client.key"),
            ("service-account-key-file", "service-accounts.pub"),
            ("service-account-signing-key-file", "service-accounts.key"),
        ] {
            apiserver.arg(format!("--{flag}={}", dir.join(file).display()));
        }
        let (certificate, key) = authority.client("admin", "system:masters")?;
        let admin = kubeconfig::with_certificate(
            &authority.certificate(),
            &format!("https://127.0.0.1:{port}"),
            &certificate,
            &key,
        );
        fs::write(dir.join("admin.kubeconfig"), admin).context("write the kubeconfig")?;
        let control_plane = Self {
            dir: dir.to_owned(),
            port,
            authority,
            audit,
            egress,
            kubectl: toolbox.kubectl()?,
            apiserver_command: apiserver,
            apiserver: Mutex::new(None),
            etcd: Mutex::new(etcd),
        };
        control_plane.restart()?;
        Ok(control_plane)
    }

    /// Starts the API server after [`ControlPlane::kill`], and waits until it is ready.
    ///
    /// # Errors
    /// If it is already running, or is not ready in time.
    pub fn restart(&self) -> Result<()> {
        let mut running = lock(&self.apiserver);
        ensure!(running.is_none(), "the API server runs already");
        let log = self.dir.join("kube-apiserver.log");
        let mut apiserver = LoggedProcess::spawn("kube-apiserver", &self.apiserver_command, &log)?;
        until("the Kubernetes API to be ready", READY_LIMIT, || {
            lock(&self.etcd).check_running()?;
            apiserver.check_running()?;
            let ready = ["get", "--raw", "/readyz", "--request-timeout=5s"];
            Ok(output(self.kubectl().args(ready)).ok())
        })?;
        *running = Some(apiserver);
        Ok(())
    }

    /// Kills the API server: connections are refused from now on.
    pub fn kill(&self) {
        lock(&self.apiserver).take();
    }

    /// Stops the API server until [`ControlPlane::thaw`]: it accepts connections but does not respond.
    ///
    /// # Errors
    /// If it is not running.
    pub fn freeze(&self) -> Result<()> {
        lock(&self.apiserver).as_ref().context("the API server does not run")?.freeze()
    }

    /// Resumes the API server.
    ///
    /// # Errors
    /// If it is not running.
    pub fn thaw(&self) -> Result<()> {
        lock(&self.apiserver).as_ref().context("the API server does not run")?.signal(Signal::CONT)
    }

    /// Returns a kubectl command with administrator's rights, without arguments.
    pub fn kubectl(&self) -> Command {
        kubectl_with(&self.kubectl, &self.dir, "admin")
    }

    /// Returns the path of the administrator's kubeconfig on the host.
    pub fn admin_kubeconfig(&self) -> PathBuf {
        self.dir.join("admin.kubeconfig")
    }

    /// Returns our programs' requests that were answered so far, and the changes by kubectl, in order.
    ///
    /// # Errors
    /// If the audit log cannot be read.
    pub fn requests(&self) -> Result<Vec<ApiRequest>> {
        self.audit.requests()
    }

    /// Routes the API server's connections to a pod at `address` to this port of the host's loopback.
    pub fn route(&self, address: SocketAddr, port: u16) {
        self.egress.route(address, port);
    }

    /// Returns the directory of its certificates and keys.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns its port on the host's loopback.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the text of a kubeconfig for a component of Kubernetes, by its user and group.
    ///
    /// # Errors
    /// If the certificate cannot be created.
    pub(crate) fn component_kubeconfig(&self, user: &str, group: &str, host: &str) -> Result<String> {
        let (certificate, key) = self.authority.client(user, group)?;
        let server = format!("https://{host}:{}", self.port);
        Ok(kubeconfig::with_certificate(&self.authority.certificate(), &server, &certificate, &key))
    }

    /// Returns certificate and key (PEM) of a server at these addresses, and the authority's certificate.
    ///
    /// # Errors
    /// If the certificate cannot be created.
    pub(crate) fn server_certificate(
        &self,
        name: &str,
        addresses: &[&str],
    ) -> Result<(String, String, String)> {
        let (certificate, key) = self.authority.server(name, addresses)?;
        Ok((certificate, key, self.authority.certificate()))
    }

    /// Returns the text of a kubeconfig for an existing service account, with exactly the rights of its role
    /// bindings. `host` is the address of the API: `127.0.0.1`, or [`vm::HOST`] in a test machine.
    ///
    /// # Errors
    /// If the account does not exist.
    pub fn service_account_kubeconfig(&self, namespace: &str, account: &str, host: &str) -> Result<String> {
        let token = output(self.kubectl().args([
            "--namespace",
            namespace,
            "create",
            "token",
            account,
            "--duration=24h",
        ]))?;
        Ok(kubeconfig::with_token(
            &self.authority.certificate(),
            &format!("https://{host}:{}", self.port),
            namespace,
            token.trim(),
        ))
    }
}

fn kubectl_with(kubectl: &Path, dir: &Path, identity: &str) -> Command {
    let mut command = Command::new(kubectl);
    command
        .env("KUBECONFIG", dir.join(format!("{identity}.kubeconfig")))
        // Cached discovery results of a past API server must not be used for a new one on the same port.
        .arg("--cache-dir")
        .arg(dir.join("kubectl-cache"));
    command
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().expect("nothing panics while it holds this lock")
}
