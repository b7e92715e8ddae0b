//! A network between a test machine and a server of the host, on which all packets can be dropped.
//!
//! Owns: a port of the loopback; forwards its connections to the server.
//! Runs on: two threads for each connection.
//! Invariants: while packets are dropped, nothing is forwarded and connections stay open without any notice.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use anyhow::{Context, Result};

/// A running network. Its threads end with the process.
#[derive(Debug)]
pub struct Partition {
    port: u16,
    link: Arc<Link>,
}

#[derive(Debug, Default)]
struct Link {
    loses_packets: Mutex<bool>,
    changed: Condvar,
}

impl Partition {
    /// Creates a working network to the server on this port of the loopback.
    ///
    /// # Errors
    /// If no port is free.
    pub fn of(server_port: u16) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("find a port for the network")?;
        let port = listener.local_addr().context("read the network's port")?.port();
        let link = Arc::new(Link::default());
        let accepting = Arc::clone(&link);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let link = Arc::clone(&accepting);
                std::thread::spawn(move || link.connect(client, server_port));
            }
        });
        Ok(Self { port, link })
    }

    /// Returns its port, to be used instead of the server's.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Drops all packets from now on.
    pub fn start_loss(&self) {
        self.link.set(true);
    }

    /// Forwards packets again, starting with those sent in the meantime.
    pub fn end_loss(&self) {
        self.link.set(false);
    }
}

impl Link {
    fn set(&self, loses_packets: bool) {
        *self.loses_packets.lock().unwrap_or_else(PoisonError::into_inner) = loses_packets;
        self.changed.notify_all();
    }

    fn wait_forwarding(&self) {
        let loses = self.loses_packets.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.changed.wait_while(loses, |loses| *loses));
    }

    fn connect(self: Arc<Self>, client: TcpStream, server_port: u16) {
        self.wait_forwarding();
        let Ok(server) = TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, server_port))) else {
            return;
        };
        let (Ok(to_client), Ok(to_server)) = (client.try_clone(), server.try_clone()) else { return };
        let requests = Arc::clone(&self);
        std::thread::spawn(move || requests.forward(client, to_server));
        self.forward(server, to_client);
    }

    /// Forwards bytes until either end closes the connection.
    fn forward(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut bytes = [0; 16 << 10];
        while let Ok(read @ 1..) = from.read(&mut bytes) {
            self.wait_forwarding();
            if to.write_all(&bytes[..read]).is_err() {
                break;
            }
        }
        self.wait_forwarding();
        let _closed = to.shutdown(Shutdown::Write);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn nothing_passes_until_the_partition_ends() {
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let network = Partition::of(server.local_addr().expect("an address").port()).expect("a network");
        let mut client = TcpStream::connect((Ipv4Addr::LOCALHOST, network.port())).expect("connects");
        let (mut served, _) = server.accept().expect("a client");
        client.write_all(b"one").expect("sent");
        let mut bytes = [0; 3];
        served.read_exact(&mut bytes).expect("received");
        network.start_loss();
        client.write_all(b"two").expect("sent");
        served.set_read_timeout(Some(Duration::from_millis(200))).expect("a limit");
        assert!(served.read(&mut bytes).is_err(), "it passed: {bytes:?}");
        network.end_loss();
        served.set_read_timeout(None).expect("no limit");
        served.read_exact(&mut bytes).expect("received");
        assert_eq!(&bytes, b"two");
    }
}
