//! Proxy in this process for the API server's connections to kubelets and pods: the host has no route to
//! pods.
//!
//! Owns: a Unix socket, the routes to pods' addresses.
//! Runs on: one thread that accepts until the process exits, and two per connection.
//! Invariants: no connection leaves the loopback.
//! On failure: an address without a route, and a port without a listener, get a response with status 502.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::{fs, io, thread};

use anyhow::{Context, Result};

/// Maximum length of a request's header, in lines.
const MAX_LINES: usize = 16;

/// The proxy of one API server.
#[derive(Debug)]
pub(super) struct Egress {
    config: PathBuf,
    routes: Arc<Mutex<Routes>>,
}

/// Ports of the loopback that replace other addresses.
type Routes = BTreeMap<SocketAddr, u16>;

impl Egress {
    /// Starts the proxy.
    pub(super) fn start(dir: &Path) -> Result<Self> {
        let socket = dir.join("egress.sock");
        let listener =
            UnixListener::bind(&socket).with_context(|| format!("listen at {}", socket.display()))?;
        let config = dir.join("egress.yaml");
        let text = format!(
            "apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\negressSelections:\n\
             - name: cluster\n  connection:\n    proxyProtocol: HTTPConnect\n    transport: {{uds: {{udsName: {}}}}}\n",
            socket.display()
        );
        fs::write(&config, text).context("write the egress configuration")?;
        let routes = Arc::<Mutex<Routes>>::default();
        let known = Arc::clone(&routes);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let known = Arc::clone(&known);
                // The API server detects a broken connection itself.
                thread::spawn(move || drop(serve(client, &known)));
            }
        });
        Ok(Self { config, routes })
    }

    /// Returns the argument for the API server.
    pub(super) fn argument(&self) -> String {
        format!("--egress-selector-config-file={}", self.config.display())
    }

    /// Routes connections to `address` to this port of the loopback.
    pub(super) fn route(&self, address: SocketAddr, port: u16) {
        lock(&self.routes).insert(address, port);
    }
}

/// Connects `client` to the requested address, and copies in both directions until both have ended.
fn serve(mut client: UnixStream, routes: &Mutex<Routes>) -> io::Result<()> {
    let head = BufReader::new(client.try_clone()?).lines();
    let head: Vec<String> = head
        .take(MAX_LINES)
        .take_while(|line| !matches!(line, Ok(line) if line.is_empty()))
        .collect::<io::Result<_>>()?;
    let target = head.first().and_then(|line| line.strip_prefix("CONNECT ")?.split(' ').next()?.parse().ok());
    let server = target.and_then(|target| loopback_address(routes, target)).map(TcpStream::connect);
    let Some(Ok(mut server)) = server else {
        return client.write_all(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n");
    };
    client.write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
    let (mut from_server, mut to_client) = (server.try_clone()?, client.try_clone()?);
    let back = thread::spawn(move || {
        let copied = io::copy(&mut from_server, &mut to_client);
        to_client.shutdown(Shutdown::Write).and(copied)
    });
    let copied = io::copy(&mut client, &mut server);
    server.shutdown(Shutdown::Write)?;
    back.join().map_err(|_panic| io::Error::other("the other direction failed"))??;
    copied.map(drop)
}

/// Returns the address on the loopback for `target`.
fn loopback_address(routes: &Mutex<Routes>, target: SocketAddr) -> Option<SocketAddr> {
    if target.ip().is_loopback() {
        return Some(target);
    }
    let port = *lock(routes).get(&target)?;
    Some((Ipv4Addr::LOCALHOST, port).into())
}

fn lock(routes: &Mutex<Routes>) -> MutexGuard<'_, Routes> {
    routes.lock().expect("nothing panics while it holds this lock")
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpListener;

    use super::*;

    fn connect(dir: &Path, target: &str) -> (UnixStream, String) {
        let mut stream = UnixStream::connect(dir.join("egress.sock")).unwrap();
        write!(stream, "CONNECT {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            head.extend(byte);
        }
        (stream, String::from_utf8(head).unwrap())
    }

    #[test]
    fn the_address_of_a_pod_leads_to_its_port() {
        let dir = tempfile::tempdir().unwrap();
        let egress = Egress::start(dir.path()).unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let echo = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut all = String::new();
            stream.read_to_string(&mut all).unwrap();
            stream.write_all(all.to_uppercase().as_bytes()).unwrap();
        });
        let pod = "10.244.0.5:9181";
        assert!(connect(dir.path(), pod).1.starts_with("HTTP/1.1 502"), "no route");
        egress.route(pod.parse().unwrap(), port);
        let (mut stream, head) = connect(dir.path(), pod);
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        stream.write_all(b"metrics").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "METRICS");
        echo.join().unwrap();
        assert!(connect(dir.path(), pod).1.starts_with("HTTP/1.1 502"), "nothing listens");
    }
}
