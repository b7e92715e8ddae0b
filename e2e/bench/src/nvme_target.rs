//! An NVMe/TCP target of the experiment `nvme-tcp`: the namespaces of one subsystem, each a file.
//!
//! Owns: the listening socket and the connections. Each connection is a queue of a controller, the first one
//! of a controller its admin queue.
//! Does not own: a volume. It does the least that Linux asks of a target, and its I/O is that of a plain file.
//! Runs on: one thread for each connection.
//! On failure: ends the connection, which the kernel makes again; a failed read or write of a file is the
//! status of its command.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use anyhow::{Context, Result, ensure};
use rustix::fs::OFlags;

use input::Input;
use output::Output;
use queue::Queue;

mod admin;
mod command;
mod identify;
mod input;
mod output;
mod queue;

/// Name of the subsystem.
pub const NQN: &str = "nqn.2014-08.org.nvmexpress:uuid:5d0c5c62-2f0e-4c57-9d1a-8b4f0f6a1c20";
/// Block of a namespace, in bytes.
const BLOCK_BYTES: u64 = 4096;
/// The longest data of a command, in bytes: 2^8 pages.
const DATA_BYTES: usize = 1 << 20;
/// Connection PDUs: 128 bytes each, types 0 and 1. Source: NVMe/TCP transport specification 1.0, 3.6.2.
const CONNECTION_BYTES: usize = 128;

/// A namespace.
struct Namespace {
    file: File,
    blocks: u64,
}

/// Parts that all queues share.
struct Subsystem {
    namespaces: Vec<Namespace>,
    /// Number of the next controller. A controller of a target that was killed is still known to the kernel
    /// when the next target starts, so each process begins elsewhere.
    next_controller: AtomicU16,
}

/// Serves each of `files` as a namespace, on this port of the loopback. Does not end.
///
/// # Errors
/// If a file or the port cannot be opened.
pub fn run(port: u16, files: &[PathBuf]) -> Result<()> {
    let mut namespaces = Vec::new();
    for path in files {
        let direct = i32::try_from(OFlags::DIRECT.bits()).context("the flag fits")?;
        let file = OpenOptions::new().read(true).write(true).custom_flags(direct).open(path);
        let file = file.with_context(|| format!("open {}", path.display()))?;
        let blocks = file.metadata()?.len() / BLOCK_BYTES;
        namespaces.push(Namespace { file, blocks });
    }
    let first = u16::try_from(std::process::id() % 0x7fff)? * 2 + 1;
    let subsystem = Arc::new(Subsystem { namespaces, next_controller: AtomicU16::new(first) });
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).context("listen")?;
    for connection in listener.incoming() {
        let connection = connection.context("accept a connection")?;
        let subsystem = Arc::clone(&subsystem);
        std::thread::spawn(move || {
            if let Err(error) = serve(&connection, &subsystem) {
                eprintln!("a connection ended: {error:#}");
            }
        });
    }
    Ok(())
}

/// Answers the commands of a connection until the host closes it. Answers wait while whole commands have
/// come, so many of them share one system call.
fn serve(connection: &TcpStream, subsystem: &Subsystem) -> Result<()> {
    connection.set_nodelay(true)?;
    connect(connection)?;
    let mut input = Input::new();
    let mut output = Output::new(connection);
    let mut queue = Queue::new(subsystem);
    loop {
        while let Some(capsule) = input.capsule()? {
            queue.answer(&capsule, &mut output)?;
        }
        output.flush()?;
        if !input.read(connection)? {
            return Ok(());
        }
    }
}

/// Exchanges the connection PDUs: no digests, data that follows its header at once.
fn connect(mut connection: &TcpStream) -> Result<()> {
    let mut request = [0; CONNECTION_BYTES];
    connection.read_exact(&mut request).context("read the request for a connection")?;
    ensure!(request[0] == 0, "the first PDU has type {}", request[0]);
    let mut response = [0; CONNECTION_BYTES];
    response[0] = 1;
    response[2] = 128;
    response[4] = 128;
    let data_bytes = u32::try_from(DATA_BYTES)?;
    response[12..16].copy_from_slice(&data_bytes.to_le_bytes());
    connection.write_all(&response).context("answer the request for a connection")
}

impl Subsystem {
    fn namespace(&self, id: u32) -> Option<&Namespace> {
        let index = usize::try_from(id).ok()?.checked_sub(1)?;
        self.namespaces.get(index)
    }

    fn new_controller(&self) -> u16 {
        self.next_controller.fetch_add(1, Ordering::Relaxed)
    }
}
