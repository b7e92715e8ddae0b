//! etcd and kube-apiserver on the host's loopback.
//!
//! Owns: the two processes, their certificates, the kubeconfigs, the audit log and the ways to pods.
//! Does not own: any controller: scheduler, controller manager and kubelets are a [`crate::cluster`]'s.
//! On failure: the log of either is in the run directory.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use crate::command::output;
use crate::process::Process;
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

/// Longest wait for the API server to be ready: 9 s on a quiet machine.
const READY_LIMIT: Duration = Duration::from_secs(120);
/// Addresses of services; nothing routes them here.
const SERVICES: &str = "10.96.0.0/16";
/// Address of the service that is the API itself.
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
    apiserver: Mutex<Option<Process>>,
    etcd: Mutex<Process>,
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
        let etcd = Process::spawn("etcd", &etcd, &dir.join("etcd.log"))?;
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
        control_plane.start_again()?;
        Ok(control_plane)
    }

    /// Starts the API server after [`ControlPlane::kill`], and waits until it is ready.
    ///
    /// # Errors
    /// If it runs already, or is not ready in time.
    pub fn start_again(&self) -> Result<()> {
        let mut running = lock(&self.apiserver);
        ensure!(running.is_none(), "the API server runs already");
        let log = self.dir.join("kube-apiserver.log");
        let mut apiserver = Process::spawn("kube-apiserver", &self.apiserver_command, &log)?;
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

    /// Stops the API server, until [`ControlPlane::thaw`]: it accepts connections and answers nothing.
    ///
    /// # Errors
    /// If it does not run.
    pub fn freeze(&self) -> Result<()> {
        lock(&self.apiserver).as_ref().context("the API server does not run")?.freeze()
    }

    /// Lets it continue.
    ///
    /// # Errors
    /// If it does not run.
    pub fn thaw(&self) -> Result<()> {
        lock(&self.apiserver).as_ref().context("the API server does not run")?.signal(Signal::CONT)
    }

    /// A kubectl command with administrator's rights, to add arguments to.
    pub fn kubectl(&self) -> Command {
        kubectl_with(&self.kubectl, &self.dir, "admin")
    }

    /// The administrator's kubeconfig on the host.
    pub fn admin_kubeconfig(&self) -> PathBuf {
        self.dir.join("admin.kubeconfig")
    }

    /// The requests of our programs that were answered so far, and the changes by kubectl, in their order.
    ///
    /// # Errors
    /// If the audit log cannot be read.
    pub fn requests(&self) -> Result<Vec<ApiRequest>> {
        self.audit.requests()
    }

    /// Has the API server's connections to a pod at `address` lead to this port of the host's loopback.
    pub fn route(&self, address: SocketAddr, port: u16) {
        self.egress.route(address, port);
    }

    /// Directory of its certificates and keys.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Its port of the host's loopback.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Text of a kubeconfig for a component of Kubernetes, by its user and group.
    ///
    /// # Errors
    /// If no certificate can be made.
    pub(crate) fn component_kubeconfig(&self, user: &str, group: &str, host: &str) -> Result<String> {
        let (certificate, key) = self.authority.client(user, group)?;
        let server = format!("https://{host}:{}", self.port);
        Ok(kubeconfig::with_certificate(&self.authority.certificate(), &server, &certificate, &key))
    }

    /// Certificate and key (PEM) of a server at these addresses, and the authority's certificate.
    ///
    /// # Errors
    /// If no certificate can be made.
    pub(crate) fn server_certificate(
        &self,
        name: &str,
        addresses: &[&str],
    ) -> Result<(String, String, String)> {
        let (certificate, key) = self.authority.server(name, addresses)?;
        Ok((certificate, key, self.authority.certificate()))
    }

    /// Text of a kubeconfig for a service account that exists, with exactly the rights its role bindings
    /// give it. `host` is how the API is reached: `127.0.0.1`, or [`vm::HOST`] in a test machine.
    ///
    /// # Errors
    /// If there is no such account.
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
        // Discovery results of an API server that is gone must not be found again on the same port.
        .arg("--cache-dir")
        .arg(dir.join("kubectl-cache"));
    command
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().expect("nothing panics while it holds this lock")
}
