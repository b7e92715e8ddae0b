//! Messages between the harness and the agent in a test machine.
//!
//! One TCP connection carries one request and its reply, in frames:
//!
//! ```text
//! +--------+----------------+-----------------+
//! | kind 1 | length 4 (LE)  | payload, length |
//! +--------+----------------+-----------------+
//! ```
//!
//! The request is one [`FrameKind::Json`] frame, followed by a [`FrameKind::Data`] frame for
//! [`AgentRequest::Put`]. The reply is any number of [`FrameKind::Stdout`] and [`FrameKind::Stderr`] frames
//! and then one [`FrameKind::Json`] frame with an [`AgentReply`], followed by a [`FrameKind::Data`] frame for
//! [`AgentRequest::Get`].

use std::collections::BTreeMap;
use std::io::{self, Read, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// TCP port the agent listens on in the test machine.
pub const PORT: u16 = 7000;
/// Line that the agent prints on the console once it listens.
pub const READY: &str = "HOLDFAST-AGENT-READY";
/// Maximum payload of a frame, in bytes: transferred files are small, and a larger length is garbage.
const MAX_PAYLOAD_BYTES: u32 = 64 << 20;

/// Kinds of frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameKind {
    /// An [`AgentRequest`] or an [`AgentReply`].
    Json,
    /// Bytes that a command wrote to standard output.
    Stdout,
    /// Bytes that a command wrote to standard error.
    Stderr,
    /// The contents of a file.
    Data,
}

/// Requests of the harness.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentRequest {
    /// Check that the agent is running.
    Ping,
    /// Run a program to completion; its output is streamed. Its process group is killed if the connection
    /// ends first.
    Exec(GuestProgram),
    /// Start a program that keeps running; its output goes to [`log_of`] its name. A name is free again once
    /// its program has exited.
    Spawn {
        /// Name of the program in later requests.
        name: String,
        /// The program.
        program: GuestProgram,
    },
    /// Send a signal, by number, to a spawned program (not to its group).
    Signal {
        /// The name given at the spawn.
        name: String,
        /// Signal number.
        signal: i32,
    },
    /// Wait until a spawned program has exited.
    Wait {
        /// The name given at the spawn.
        name: String,
        /// Maximum wait, in milliseconds of the machine's clock.
        limit_ms: u64,
    },
    /// Query the exit of a spawned program; the reply has none while it is running.
    Status {
        /// The name given at the spawn.
        name: String,
    },
    /// Write a file; its bytes follow.
    Put {
        /// Absolute path; missing directories are created.
        path: String,
        /// Permission bits.
        mode: u32,
    },
    /// Read a file; its bytes follow the reply.
    Get {
        /// Absolute path.
        path: String,
    },
    /// Wait until a path is a block device. (A program that opens a device too early would create a regular
    /// file in its place and seem to work.)
    WaitBlockDevice {
        /// Absolute path.
        path: String,
        /// Maximum wait, in milliseconds of the machine's clock.
        limit_ms: u64,
    },
    /// Write all data to disk and power the machine off.
    PowerOff,
    /// End all processes, unmount file systems on ublk devices, and power the machine off.
    ShutDown,
}

/// A program with its arguments.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct GuestProgram {
    /// The program and its arguments; looked up on the PATH if it has no slash.
    pub argv: Vec<String>,
    /// Variables added to the environment.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Its standard input.
    #[serde(default)]
    pub stdin: String,
}

/// The reply to a request.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentReply {
    /// The request succeeded.
    Done,
    /// A program was started under this process id.
    Started(i32),
    /// Exit of a program; `None` while it runs.
    Exit(Option<Exit>),
    /// The request failed for this reason.
    Failed(String),
}

/// Exit of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// Exit code.
    Code(i32),
    /// Signal that killed it.
    Signal(i32),
}

/// Returns the log file of a spawned program in the test machine. It survives a reset.
pub fn log_of(name: &str) -> String {
    format!("/var/log/holdfast/{name}.log")
}

/// Writes one frame.
///
/// # Errors
/// If the payload is too long or the connection is closed.
pub fn send(to: &mut impl Write, kind: FrameKind, payload: &[u8]) -> io::Result<()> {
    let length = u32::try_from(payload.len())
        .ok()
        .filter(|length| *length <= MAX_PAYLOAD_BYTES)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "payload over 64 MiB"))?;
    let tag = match kind {
        FrameKind::Json => b'j',
        FrameKind::Stdout => b'o',
        FrameKind::Stderr => b'e',
        FrameKind::Data => b'd',
    };
    let mut frame = Vec::with_capacity(payload.len() + 5);
    frame.push(tag);
    frame.extend_from_slice(&length.to_le_bytes());
    frame.extend_from_slice(payload);
    to.write_all(&frame)?;
    to.flush()
}

/// Reads one frame.
///
/// # Errors
/// If the connection is closed or the bytes are not a frame.
pub fn receive(from: &mut impl Read) -> io::Result<(FrameKind, Vec<u8>)> {
    let garbage = |what| io::Error::new(io::ErrorKind::InvalidData, what);
    let mut head = [0; 5];
    from.read_exact(&mut head)?;
    let [tag, length @ ..] = head;
    let kind = match tag {
        b'j' => FrameKind::Json,
        b'o' => FrameKind::Stdout,
        b'e' => FrameKind::Stderr,
        b'd' => FrameKind::Data,
        _ => return Err(garbage("unknown kind of frame")),
    };
    let length = u32::from_le_bytes(length);
    if length > MAX_PAYLOAD_BYTES {
        return Err(garbage("frame over 64 MiB"));
    }
    let length = usize::try_from(length).map_err(io::Error::other)?;
    let mut payload = vec![0; length];
    from.read_exact(&mut payload)?;
    Ok((kind, payload))
}

/// Sends a value as a [`FrameKind::Json`] frame.
///
/// # Errors
/// If the connection is closed.
pub fn send_json(to: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    send(to, FrameKind::Json, &serde_json::to_vec(value)?)
}

/// Reads a frame that must be JSON.
///
/// # Errors
/// If the connection is closed or the frame has another kind.
pub fn receive_json<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<T> {
    match receive(from)? {
        (FrameKind::Json, payload) => Ok(serde_json::from_slice(&payload)?),
        (FrameKind::Stdout | FrameKind::Stderr | FrameKind::Data, _) => {
            Err(io::Error::new(io::ErrorKind::InvalidData, "a JSON frame was due"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_comes_back_as_it_was_sent() {
        let mut bytes = Vec::new();
        send(&mut bytes, FrameKind::Stderr, b"hello").unwrap();
        send_json(&mut bytes, &AgentReply::Exit(Some(Exit::Signal(9)))).unwrap();
        let mut from = bytes.as_slice();
        assert_eq!(receive(&mut from).unwrap(), (FrameKind::Stderr, b"hello".to_vec()));
        let reply: AgentReply = receive_json(&mut from).unwrap();
        assert_eq!(reply, AgentReply::Exit(Some(Exit::Signal(9))));
        assert!(receive(&mut from).is_err());
    }

    #[test]
    fn a_length_out_of_bounds_is_refused_before_allocation() {
        let mut garbage: &[u8] = &[b'd', 0xff, 0xff, 0xff, 0xff];
        assert!(receive(&mut garbage).is_err());
    }
}
