//! gRPC requests to a program's Unix socket, on the host or in a test machine.
//!
//! Owns: the transfer of bytes and of the status. Does not own: the meaning of the bytes. In a machine the
//! request passes through this program there ([`crate::inside::GuestCommand`]): its standard input is the
//! message, its standard output a line of JSON.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{Buf, BufMut};
use serde::{Deserialize, Serialize};
use tonic::client::Grpc;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

use crate::report;
use crate::vm::Vm;
use crate::wire::{Exit, GuestProgram};

/// Time beyond a request's limit after which the wait for a machine's response ends.
const GRACE: Duration = Duration::from_secs(120);

/// A socket of a gRPC server.
#[derive(Debug, Clone)]
pub enum GrpcSocket {
    /// On this host.
    Host(PathBuf),
    /// In a machine.
    Machine(Arc<Vm>, String),
}

/// The error response of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrpcError {
    /// Name of the status code, such as `NotFound`.
    pub code: String,
    /// The message.
    pub message: String,
}

/// The response of a program: the message's bytes, or its error.
type GrpcResponse = Result<Vec<u8>, GrpcError>;
/// Messages, and the error that ended them.
type Streamed = (Vec<Vec<u8>>, Option<GrpcError>);

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Granted(String),
    Refused(GrpcError),
}

impl GrpcSocket {
    /// Sends one message to a method such as `/csi.v1.Identity/Probe`.
    ///
    /// # Errors
    /// If the program was not reached at all.
    pub fn call(&self, method: &str, message: &[u8], limit: Duration) -> Result<GrpcResponse> {
        match self {
            Self::Host(socket) => call(socket, method, message, limit),
            Self::Machine(vm, socket) => {
                let seconds = limit.as_millis().to_string();
                let argv = ["holdfast-e2e", "rpc", socket, method, &seconds].map(str::to_owned).to_vec();
                let program =
                    GuestProgram { argv, stdin: STANDARD.encode(message), ..GuestProgram::default() };
                let done = vm.run(&program, limit + GRACE)?;
                ensure!(done.exit == Exit::Code(0), "{method} in {}: {}", vm.name(), done.stderr);
                match serde_json::from_str(done.stdout.trim()).context("read the answer")? {
                    Line::Granted(bytes) => Ok(Ok(STANDARD.decode(bytes).context("decode the answer")?)),
                    Line::Refused(refused) => Ok(Err(refused)),
                }
            }
        }
    }

    /// Sends one message to a method with a stream of responses. Returns them, and the error that ended them.
    ///
    /// # Errors
    /// If the program was not reached at all, or is in a machine.
    pub fn call_for_stream(&self, method: &str, message: &[u8], limit: Duration) -> Result<Streamed> {
        let Self::Host(socket) = self else { bail!("{method}: streams are read on the host only") };
        let exchange = async {
            let (mut client, path) = connected(socket, method).await?;
            let mut stream = match client.server_streaming(request(message, limit), path, Raw).await {
                Ok(stream) => stream.into_inner(),
                Err(status) => return Ok((Vec::new(), Some(refusal(&status)))),
            };
            let mut messages = Vec::new();
            loop {
                match stream.message().await {
                    Ok(Some(message)) => messages.push(message),
                    Ok(None) => return anyhow::Ok((messages, None)),
                    Err(status) => return Ok((messages, Some(refusal(&status)))),
                }
            }
        };
        block_on(limit, exchange)
    }
}

/// Implements the command in a test machine: sends the request, and prints the response.
///
/// # Errors
/// If the program was not reached.
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

fn call(socket: &Path, method: &str, message: &[u8], limit: Duration) -> Result<GrpcResponse> {
    let exchange = async {
        let (mut client, path) = connected(socket, method).await?;
        anyhow::Ok(client.unary(request(message, limit), path, Raw).await)
    };
    Ok(block_on(limit, exchange)?.map(tonic::Response::into_inner).map_err(|status| refusal(&status)))
}

async fn connected(socket: &Path, method: &str) -> Result<(Grpc<Channel>, PathAndQuery)> {
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()))?;
    let channel = endpoint.connect().await.with_context(|| format!("connect to {}", socket.display()))?;
    let mut client = Grpc::new(channel);
    client.ready().await.context("the connection ended")?;
    Ok((client, method.parse().context("a method")?))
}

fn request(message: &[u8], limit: Duration) -> Request<Vec<u8>> {
    let mut request = Request::new(message.to_vec());
    request.set_timeout(limit);
    request
}

fn refusal(status: &Status) -> GrpcError {
    GrpcError { code: format!("{:?}", status.code()), message: status.message().to_owned() }
}

/// Runs a request to completion.
fn block_on<T>(limit: Duration, exchange: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("a runtime")?;
    runtime.block_on(async { tokio::time::timeout(limit + GRACE, exchange).await }).context("no answer")?
}

/// Codec that passes messages unchanged, as bytes.
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
