//! A second real S3 server (SeaweedFS, all its parts in one process) on the host's loopback.
//!
//! Owns: the process and its directory.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::process::LoggedProcess;
use crate::setup::Toolbox;
use crate::vm;
use crate::vm::machine::free_port;
use crate::wait::until;

use super::{ACCESS_KEY, SECRET_KEY};

/// Maximum wait for the S3 server: before it responds, the components elect a leader and register.
const START_LIMIT: Duration = Duration::from_secs(120);

/// A running SeaweedFS with one bucket.
#[derive(Debug)]
pub struct SeaweedFs {
    port: u16,
    _process: LoggedProcess,
}

impl SeaweedFs {
    /// Starts a server with its data in the new directory `dir`, and creates `bucket`.
    ///
    /// # Errors
    /// If it cannot be built, or is not ready within two minutes.
    pub fn start(toolbox: &Toolbox, dir: &Path, bucket: &str) -> Result<Self> {
        fs::create_dir_all(dir.join("data")).with_context(|| format!("create {}", dir.display()))?;
        let port = free_port()?;
        let mut command = Command::new(toolbox.seaweedfs()?);
        command
            .args(["mini", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-webdav=false", "-admin.ui=false"])
            .args(["-master.telemetry=false", "-s3.port.iceberg=0", "-s3.port.lance=0"])
            .args([format!("-bucket={bucket}"), format!("-s3.port={port}")])
            .arg(format!("-dir={}", dir.join("data").display()))
            .current_dir(dir)
            .env("AWS_ACCESS_KEY_ID", ACCESS_KEY)
            .env("AWS_SECRET_ACCESS_KEY", SECRET_KEY);
        for part in ["s3", "master", "volume", "filer"] {
            command.arg(format!("-{part}.port.grpc={}", free_port()?));
        }
        for part in ["master", "volume", "filer"] {
            command.arg(format!("-{part}.port={}", free_port()?));
        }
        let log = dir.join("seaweedfs.log");
        let mut process = LoggedProcess::spawn("seaweedfs", &command, &log)?;
        until("SeaweedFS to be ready", START_LIMIT, || {
            process.check_running()?;
            let text = fs::read_to_string(&log).context("read the log of SeaweedFS")?;
            Ok(text.contains("running and ready to use").then_some(()))
        })?;
        Ok(Self { port, _process: process })
    }

    /// Returns the endpoint for programs on the host.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Returns the endpoint for programs in a test machine.
    pub fn endpoint_in_vm(&self) -> String {
        format!("http://{}:{}", vm::HOST, self.port)
    }
}
