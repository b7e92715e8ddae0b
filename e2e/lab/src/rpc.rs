//! Unary gRPC requests to a program's Unix socket, on the host or in a test machine.
//!
//! Owns: the passage of bytes and of the status. Does not own: what the bytes mean. In a machine the request
//! goes through this program there ([`crate::inside::Inside`]): its standard input is the message, its
//! standard output a line of JSON.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{Buf, BufMut};
use serde::{Deserialize, Serialize};
use tonic::client::Grpc;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Endpoint;
use tonic::{Request, Status};

use crate::report;
use crate::vm::Vm;
use crate::wire::{Exit, Program};

/// Time beyond a request's limit after which a machine's answer is not waited for any more.
const GRACE: Duration = Duration::from_secs(120);

/// A socket that answers gRPC.
#[derive(Debug, Clone)]
pub enum Socket {
    /// Of this host.
    Host(PathBuf),
    /// In a machine.
    Machine(Arc<Vm>, String),
}

/// The refusal of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// Name of the status code, such as `NotFound`.
    pub code: String,
    /// The message.
    pub message: String,
}

/// The answer of a program: the message's bytes, or its refusal.
type Answer = Result<Vec<u8>, Refused>;

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Granted(String),
    Refused(Refused),
}

impl Socket {
    /// Sends one message to a method such as `/csi.v1.Identity/Probe`.
    ///
    /// # Errors
    /// If the program could not be asked at all.
    pub fn call(&self, method: &str, message: &[u8], limit: Duration) -> Result<Answer> {
        match self {
            Self::Host(socket) => call(socket, method, message, limit),
            Self::Machine(vm, socket) => {
                let seconds = limit.as_millis().to_string();
                let argv = ["holdfast-e2e", "rpc", socket, method, &seconds].map(str::to_owned).to_vec();
                let program = Program { argv, stdin: STANDARD.encode(message), ..Program::default() };
                let done = vm.run(&program, limit + GRACE)?;
                ensure!(done.exit == Exit::Code(0), "{method} in {}: {}", vm.name(), done.stderr);
                match serde_json::from_str(done.stdout.trim()).context("read the answer")? {
                    Line::Granted(bytes) => Ok(Ok(STANDARD.decode(bytes).context("decode the answer")?)),
                    Line::Refused(refused) => Ok(Err(refused)),
                }
            }
        }
    }
}

/// The command in a test machine: asks, and prints the answer.
///
/// # Errors
/// If the program could not be asked.
pub fn print(socket: &Path, method: &str, limit_ms: u64) -> Result<()> {
    let encoded = std::io::read_to_string(std::io::stdin()).context("read the message")?;
    let message = STANDARD.decode(encoded.trim()).context("decode the message")?;
    let line = match call(socket, method, &message, Duration::from_millis(limit_ms))? {
        Ok(bytes) => Line::Granted(STANDARD.encode(bytes)),
        Err(refused) => Line::Refused(refused),
    };
    report::line(serde_json::to_string(&line)?);
    Ok(())
}

fn call(socket: &Path, method: &str, message: &[u8], limit: Duration) -> Result<Answer> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("a runtime")?;
    let asked = async {
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()))?;
        let channel = endpoint.connect().await.with_context(|| format!("connect to {}", socket.display()))?;
        let mut client = Grpc::new(channel);
        client.ready().await.context("the connection ended")?;
        let mut request = Request::new(message.to_vec());
        request.set_timeout(limit);
        let path: PathAndQuery = method.parse().context("a method")?;
        anyhow::Ok(client.unary(request, path, Raw).await)
    };
    let answer = runtime
        .block_on(async { tokio::time::timeout(limit + GRACE, asked).await })
        .context("no answer")??;
    Ok(answer.map(tonic::Response::into_inner).map_err(|status| Refused {
        code: format!("{:?}", status.code()),
        message: status.message().to_owned(),
    }))
}

/// Passes messages on as bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put_slice(&item);
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::default()
    }
}

impl Decoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining()).to_vec()))
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::default()
    }
}
