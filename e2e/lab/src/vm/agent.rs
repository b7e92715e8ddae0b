//! The harness's end of the connection to a test machine's agent.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::{ProgramOutput, unexpected};
use crate::process::LoggedProcess;
use crate::wait::until;
use crate::wire::{self, AgentReply, AgentRequest, FrameKind, GuestProgram};

/// Time limit of one attempt to reach an agent that may not be running yet.
const ATTEMPT: Duration = Duration::from_secs(2);

/// Client of the agent of one booted machine.
#[derive(Debug, Clone)]
pub struct Agent {
    machine: String,
    port: u16,
}

impl Agent {
    /// Creates a client of an agent reached through `port` of the loopback.
    pub fn new(machine: &str, port: u16) -> Self {
        Self { machine: machine.to_owned(), port }
    }

    /// Returns the host port that is forwarded to it.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Waits until the agent responds. QEMU accepts connections before the machine does, so only a response
    /// counts.
    pub(super) fn wait_ready(&self, qemu: &mut LoggedProcess, limit: Duration) -> Result<()> {
        until("the machine's agent", limit, || {
            qemu.check_running()?;
            Ok(self.done(&AgentRequest::Ping, ATTEMPT).ok())
        })
    }

    /// Sends a request without a result.
    ///
    /// # Errors
    /// If it failed.
    pub fn done(&self, request: &AgentRequest, limit: Duration) -> Result<()> {
        match self.request(request, limit)? {
            AgentReply::Done => Ok(()),
            other @ (AgentReply::Started(_) | AgentReply::Exit(_) | AgentReply::Failed(_)) => {
                unexpected(&other)
            }
        }
    }

    /// Sends a request and returns the reply.
    ///
    /// # Errors
    /// If no reply comes within `limit`.
    pub fn request(&self, request: &AgentRequest, limit: Duration) -> Result<AgentReply> {
        let mut connection = self.connect(limit)?;
        wire::send_json(&mut connection, request)?;
        wire::receive_json(&mut connection)
            .with_context(|| format!("no reply of {} to {request:?}", self.machine))
    }

    /// Runs a program to completion.
    ///
    /// # Errors
    /// If it cannot be started or runs longer than `limit`; it is killed in that case.
    pub fn exec(&self, program: &GuestProgram, limit: Duration) -> Result<ProgramOutput> {
        let started = Instant::now();
        let mut connection = self.connect(limit)?;
        wire::send_json(&mut connection, &AgentRequest::Exec(program.clone()))?;
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        loop {
            let left = limit.saturating_sub(started.elapsed());
            let frame = connection
                .set_read_timeout(Some(left.max(Duration::from_millis(1))))
                .and_then(|()| wire::receive(&mut connection));
            let (kind, bytes) = frame.with_context(|| {
                format!(
                    "no end of {} in {} within {} s\n{}{}",
                    program.argv.join(" "),
                    self.machine,
                    limit.as_secs(),
                    text(&stdout),
                    text(&stderr)
                )
            })?;
            match kind {
                FrameKind::Stdout => stdout.extend_from_slice(&bytes),
                FrameKind::Stderr => stderr.extend_from_slice(&bytes),
                FrameKind::Data => bail!("the agent of {} sent a file", self.machine),
                FrameKind::Json => match serde_json::from_slice(&bytes).context("read the reply")? {
                    AgentReply::Exit(Some(exit)) => {
                        return Ok(ProgramOutput { exit, stdout: text(&stdout), stderr: text(&stderr) });
                    }
                    other @ (AgentReply::Done
                    | AgentReply::Started(_)
                    | AgentReply::Exit(None)
                    | AgentReply::Failed(_)) => {
                        return unexpected(&other);
                    }
                },
            }
        }
    }

    pub(super) fn put_file(&self, path: &str, mode: u32, contents: &[u8]) -> Result<()> {
        let mut connection = self.connect(Duration::from_secs(60))?;
        let request = AgentRequest::Put { path: path.to_owned(), mode };
        wire::send_json(&mut connection, &request)?;
        wire::send(&mut connection, FrameKind::Data, contents)?;
        match wire::receive_json(&mut connection)? {
            AgentReply::Done => Ok(()),
            other @ (AgentReply::Started(_) | AgentReply::Exit(_) | AgentReply::Failed(_)) => {
                unexpected(&other)
            }
        }
    }

    pub(super) fn get(&self, path: &str) -> Result<Vec<u8>> {
        let mut connection = self.connect(Duration::from_secs(60))?;
        let request = AgentRequest::Get { path: path.to_owned() };
        wire::send_json(&mut connection, &request)?;
        match wire::receive_json(&mut connection)? {
            AgentReply::Done => Ok(wire::receive(&mut connection)?.1),
            other @ (AgentReply::Started(_) | AgentReply::Exit(_) | AgentReply::Failed(_)) => {
                unexpected(&other)
            }
        }
    }

    fn connect(&self, limit: Duration) -> Result<TcpStream> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        let connection = TcpStream::connect_timeout(&address, ATTEMPT)
            .with_context(|| format!("reach the agent of {}", self.machine))?;
        connection.set_nodelay(true)?;
        connection.set_read_timeout(Some(limit))?;
        Ok(connection)
    }
}
