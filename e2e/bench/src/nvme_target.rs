//! The NVMe/TCP target of the experiment `nvme-tcp`: one subsystem, each namespace a file.
//!
//! *Owns*: the listening socket and the connections. Each is a queue of a controller, the first its admin
//! queue.
//! *Does not own*: a volume. It implements the minimum that Linux requires, with the I/O of a plain file.
//! *Runs on*: one thread per connection.
//! *On failure*: ends the connection, and the kernel reconnects; a failed read or write of a file is the
//! status of its command.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::fs::OFlags;

use input::CapsuleInput;
use output::AnswerOutput;
use queue::NvmeQueue;

mod admin;
mod command;
mod identify;
mod input;
mod output;
mod queue;

/// Name of the subsystem.
pub const NQN: &str = "nqn.2014-08.org.nvmexpress:uuid:5d0c5c62-2f0e-4c57-9d1a-8b4f0f6a1c20";
/// Bytes per block of a namespace.
const BLOCK_BYTES: u64 = 4096;
/// Maximum bytes of data of a command: 2^8 pages.
const DATA_BYTES: usize = 1 << 20;
/// Connection PDUs: 128 bytes each, types 0 and 1. Source: NVMe/TCP transport specification 1.0, 3.6.2.
const CONNECTION_BYTES: usize = 128;

/// Time between two attempts to get the port.
const PORT_POLL: Duration = Duration::from_millis(1);

/// A namespace.
struct Namespace {
    file: File,
    blocks: u64,
}

/// State shared by all queues.
struct Subsystem {
    namespaces: Vec<Namespace>,
    /// Number of the next controller. The kernel still knows the controllers of a killed target when the next
    /// one starts, so each process begins with another number.
    next_controller: AtomicU16,
}

/// Serves each of `files` as a namespace, on this port of the loopback. Does not return.
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
    let listener = listen(port)?;
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

/// Waits for the port and binds it: a killed process keeps it until its last write has ended.
fn listen(port: u16) -> Result<TcpListener> {
    loop {
        match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => std::thread::sleep(PORT_POLL),
            bound => return bound.context("listen"),
        }
    }
}

/// Answers the commands of a connection until the host closes it. Sends answers after the last complete
/// command received, so that many of them share one system call.
fn serve(connection: &TcpStream, subsystem: &Subsystem) -> Result<()> {
    connection.set_nodelay(true)?;
    connect(connection)?;
    let mut input = CapsuleInput::new();
    let mut output = AnswerOutput::new(connection);
    let mut queue = NvmeQueue::new(subsystem);
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

/// Exchanges the connection PDUs: no digests, data directly after its header.
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

#[cfg(test)]
mod tests {
    use super::command::COMMAND_BYTES;
    use super::*;

    /// The host's end of a queue.
    struct Host(TcpStream);

    impl Host {
        /// Connects to a target of one namespace with two blocks.
        fn new(queue: u16) -> Self {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let host = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            std::thread::spawn(move || {
                let file = tempfile::tempfile().unwrap();
                file.set_len(2 * BLOCK_BYTES).unwrap();
                let namespaces = vec![Namespace { file, blocks: 2 }];
                let subsystem = Subsystem { namespaces, next_controller: AtomicU16::new(7) };
                serve(&listener.accept().unwrap().0, &subsystem)
            });
            let mut host = Self(host);
            host.0.write_all(&[0; CONNECTION_BYTES]).unwrap();
            let mut response = [0; CONNECTION_BYTES];
            host.0.read_exact(&mut response).unwrap();
            assert_eq!(response[0], 1);
            let mut connect = [0; COMMAND_BYTES];
            connect[..5].copy_from_slice(&[0x7f, 0, 0, 0, 1]);
            connect[42..44].copy_from_slice(&queue.to_le_bytes());
            let mut data = [0xff; 1024];
            data[16..18].copy_from_slice(&7_u16.to_le_bytes());
            assert_eq!(host.ask(&connect, &data), Ok(vec![7, 0, 0, 0, 0, 0, 0, 0]));
            host
        }

        /// Sends a command. Returns the data, or the result of a command without data, or the status.
        fn ask(&mut self, command: &[u8; COMMAND_BYTES], data: &[u8]) -> Result<Vec<u8>, u16> {
            let length = u32::try_from(8 + COMMAND_BYTES + data.len()).unwrap();
            let mut pdu = vec![4, 0, 72, if data.is_empty() { 0 } else { 72 }];
            pdu.extend(length.to_le_bytes());
            pdu.extend(command);
            pdu.extend(data);
            // In two pieces, so that the target must wait for the second.
            self.0.write_all(&pdu[..20]).unwrap();
            self.0.write_all(&pdu[20..]).unwrap();
            let mut header = [0; 24];
            self.0.read_exact(&mut header).unwrap();
            let length = usize::from(u16::from_le_bytes([header[4], header[5]]));
            if header[0] == 7 {
                let mut data = vec![0; length - 24];
                self.0.read_exact(&mut data).unwrap();
                return Ok(data);
            }
            let status = u16::from_le_bytes([header[22], header[23]]) >> 1;
            if status == 0 { Ok(header[8..16].to_vec()) } else { Err(status) }
        }
    }

    /// Makes a command for one block of the namespace.
    fn block(opcode: u8, block: u8) -> [u8; COMMAND_BYTES] {
        let mut command = [0; COMMAND_BYTES];
        command[0] = opcode;
        command[4] = 1;
        command[33] = 16;
        command[40] = block;
        command
    }

    #[test]
    fn a_block_is_read_as_it_was_written() {
        let mut host = Host::new(1);
        let written = vec![0xa5; 4096];
        host.ask(&block(1, 1), &written).unwrap();
        assert_eq!(host.ask(&block(2, 1), &[]), Ok(written));
        assert_eq!(host.ask(&block(2, 0), &[]), Ok(vec![0; 4096]));
        assert_eq!(host.ask(&block(2, 2), &[]), Err(0x4080), "it has two blocks");
        host.ask(&block(8, 1), &[]).unwrap();
        assert_eq!(host.ask(&block(2, 1), &[]), Ok(vec![0; 4096]));
    }

    #[test]
    fn a_controller_becomes_ready_and_says_what_it_has() {
        let mut host = Host::new(0);
        let mut get_status = [0; COMMAND_BYTES];
        get_status[0] = 0x7f;
        get_status[4] = 4;
        get_status[44] = 0x1c;
        assert_eq!(host.ask(&get_status, &[]).unwrap()[0], 0);
        let mut enable = get_status;
        enable[4] = 0;
        enable[44] = 0x14;
        enable[48] = 1;
        host.ask(&enable, &[]).unwrap();
        assert_eq!(host.ask(&get_status, &[]).unwrap()[0], 1);
        let page = |number| block(6, number);
        assert_eq!(host.ask(&page(1), &[]).unwrap()[78..80], [7, 0]);
        assert_eq!(host.ask(&page(0), &[]).unwrap()[..8], 2_u64.to_le_bytes());
        assert_eq!(host.ask(&page(99), &[]), Err(0x4002));
    }
}
