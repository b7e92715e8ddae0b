//! A proxy in front of the S3 server that injects the faults of networks and servers.
//!
//! Owns: a port of the loopback, the rules that select the affected requests, the record of all requests.
//! Runs on: one thread per connection.
//! Invariants: a request without a matching rule is forwarded unchanged; a response is never forwarded while
//! responses are held.
//! On failure: an unreachable server is visible through the proxy: the connection is refused or breaks.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{BufReader, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::net::sockopt::set_socket_linger;

use super::http::{Head, ServerResponse, read_body};
use crate::vm;
use crate::wait::until;

/// Interval of checks if a held or black-holed request has ended.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// Maximum wait for the server's pending responses once no more requests are forwarded.
const QUIET_LIMIT: Duration = Duration::from_secs(30);

/// A fault of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProxyFault {
    /// The request is forwarded late.
    Delay(Duration),
    /// The connection is reset before any of it is forwarded.
    ResetBefore,
    /// The connection is reset in the middle: of the request's body, or of the response to a request without
    /// one.
    ResetInside,
    /// The request gets a 503 SlowDown and is not forwarded.
    SlowDown,
    /// The request is forwarded and executed, and the connection ends without a response.
    LostReply,
    /// The request never gets a response.
    BlackHole,
}

/// Selects requests for a fault.
#[derive(Debug, Clone)]
pub struct Rule {
    /// The HTTP method; `None`: any.
    pub method: Option<&'static str>,
    /// A part of the request's target; for list requests it includes the prefix, with `%2F` for `/`.
    pub target: String,
    /// True for only the first request of each method and target: a repetition is forwarded.
    pub first_only: bool,
    /// The fault.
    pub fault: ProxyFault,
}

/// A request received by the proxy.
#[derive(Debug, Clone)]
pub struct ReceivedRequest {
    /// Time at which its header was received.
    pub at: Instant,
    /// Its HTTP method.
    pub method: String,
    /// Its target.
    pub target: String,
    /// The fault applied to it.
    pub fault: Option<ProxyFault>,
    /// Requests in flight at that time, including itself.
    pub in_flight: usize,
}

/// A running proxy. Dropping it ends its connections.
#[derive(Debug)]
pub struct FaultProxy {
    port: u16,
    shared: Arc<SharedProxy>,
}

#[derive(Debug)]
struct SharedProxy {
    server: SocketAddr,
    state: Mutex<ProxyState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct ProxyState {
    rules: Vec<Rule>,
    /// Method and target of requests since the rules were set.
    seen: HashSet<(String, String)>,
    received: Vec<ReceivedRequest>,
    connections: HashMap<u64, TcpStream>,
    next_connection: u64,
    in_flight: usize,
    at_server: usize,
    answers_held: bool,
    requests_held: bool,
    is_unreachable: bool,
    reset_connections: usize,
    is_ended: bool,
}

impl FaultProxy {
    /// Starts a proxy to the server on this port of the loopback.
    ///
    /// # Errors
    /// If no port is free.
    pub fn start(server_port: u16) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("find a port for the proxy")?;
        let port = listener.local_addr().context("read the proxy's port")?.port();
        let shared = Arc::new(SharedProxy {
            server: SocketAddr::from((Ipv4Addr::LOCALHOST, server_port)),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || accepting.accept(&listener));
        Ok(Self { port, shared })
    }

    /// Returns the endpoint for programs on the host.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Returns the endpoint for programs in a test machine.
    pub fn endpoint_in_vm(&self) -> String {
        format!("http://{}:{}", vm::HOST, self.port)
    }

    /// Returns the endpoint under the name that resolves to the host everywhere.
    pub fn endpoint_everywhere(&self) -> String {
        format!("http://localhost:{}", self.port)
    }

    /// Replaces the rules; the first matching one applies.
    pub fn set_rules(&self, rules: Vec<Rule>) {
        let mut state = self.shared.lock();
        state.rules = rules;
        state.seen.clear();
    }

    /// Makes the store unreachable at the network level: connections break, new ones are reset.
    pub fn make_unreachable(&self) {
        let mut state = self.shared.lock();
        state.is_unreachable = true;
        state.break_connections();
    }

    /// Makes the store reachable again.
    pub fn make_reachable(&self) {
        self.shared.lock().is_unreachable = false;
    }

    /// Holds the server's responses from now on; requests are still forwarded.
    pub fn hold_answers(&self) {
        self.shared.lock().answers_held = true;
    }

    /// Holds requests, too, from now on. Returns once the server has answered all forwarded ones, so that its
    /// buckets no longer change.
    ///
    /// # Errors
    /// If the server does not respond.
    pub fn hold_requests(&self) -> Result<()> {
        {
            let mut state = self.shared.lock();
            state.answers_held = true;
            state.requests_held = true;
        }
        until("the server to be quiet", QUIET_LIMIT, || Ok((self.shared.lock().at_server == 0).then_some(())))
    }

    /// Releases all held requests and responses.
    pub fn release(&self) {
        let mut state = self.shared.lock();
        state.answers_held = false;
        state.requests_held = false;
        self.shared.changed.notify_all();
    }

    /// Returns all requests received so far.
    pub fn received(&self) -> Vec<ReceivedRequest> {
        self.shared.lock().received.clone()
    }

    /// Returns the number of connections reset so far because the store was unreachable.
    pub fn reset_connections(&self) -> usize {
        self.shared.lock().reset_connections
    }

    /// Returns the number of times that each fault was applied so far.
    pub fn faults(&self) -> BTreeMap<ProxyFault, usize> {
        let mut counts = BTreeMap::new();
        for fault in self.shared.lock().received.iter().filter_map(|passed| passed.fault) {
            *counts.entry(fault).or_default() += 1;
        }
        counts
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.is_ended = true;
        state.break_connections();
        self.shared.changed.notify_all();
        drop(state);
        // Wakes the accepting thread; fails only if that thread is gone.
        drop(TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)));
    }
}

impl ProxyState {
    fn break_connections(&mut self) {
        for (_, connection) in self.connections.drain() {
            reset(&connection);
        }
    }

    /// Records a request and returns its fault.
    fn record(&mut self, head: &Head) -> Option<ProxyFault> {
        let (method, target) = (head.word(0).to_owned(), head.word(1).to_owned());
        let is_repeated = !self.seen.insert((method.clone(), target.clone()));
        let rule = self
            .rules
            .iter()
            .find(|rule| target.contains(&rule.target) && rule.method.is_none_or(|only| only == method));
        let fault = rule.filter(|rule| !(rule.first_only && is_repeated)).map(|rule| rule.fault);
        self.in_flight += 1;
        let in_flight = self.in_flight;
        self.received.push(ReceivedRequest { at: Instant::now(), method, target, fault, in_flight });
        fault
    }
}

impl SharedProxy {
    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        for connection in listener.incoming() {
            let mut state = self.lock();
            if state.is_ended {
                return;
            }
            let Ok(connection) = connection else { continue };
            if state.is_unreachable {
                state.reset_connections += 1;
                reset(&connection);
                continue;
            }
            let Ok(known) = connection.try_clone() else { continue };
            let number = state.next_connection;
            state.next_connection += 1;
            state.connections.insert(number, known);
            drop(state);
            let shared = Arc::clone(self);
            std::thread::spawn(move || {
                // In any case, the client sees a broken connection.
                if shared.serve(&connection).is_err() {
                    reset(&connection);
                }
                shared.lock().connections.remove(&number);
            });
        }
    }

    /// Serves one connection until it ends.
    fn serve(&self, connection: &TcpStream) -> Result<()> {
        connection.set_nodelay(true)?;
        let mut client = BufReader::new(connection);
        while let Some(head) = Head::read(&mut client)? {
            let fault = self.lock().record(&head);
            let answer = self.answer(head, fault, &mut client);
            self.lock().in_flight -= 1;
            let Some(answer) = answer? else {
                reset(connection);
                return Ok(());
            };
            let mut to = connection;
            to.write_all(&answer)?;
        }
        Ok(())
    }

    /// Returns the bytes to send; `None`: the connection is reset.
    fn answer(
        &self,
        head: Head,
        fault: Option<ProxyFault>,
        client: &mut BufReader<&TcpStream>,
    ) -> Result<Option<Vec<u8>>> {
        let length = head.body_bytes()?;
        match fault {
            Some(ProxyFault::ResetBefore) => return Ok(None),
            Some(ProxyFault::BlackHole) => {
                self.wait_while(|_| true);
                return Ok(None);
            }
            Some(ProxyFault::ResetInside) if length > 0 => {
                read_body(client, length / 2)?;
                return Ok(None);
            }
            Some(
                ProxyFault::Delay(_) | ProxyFault::ResetInside | ProxyFault::SlowDown | ProxyFault::LostReply,
            )
            | None => {}
        }
        if head.get("expect").is_some() {
            let mut to = *client.get_ref();
            to.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        }
        let body = read_body(client, length)?;
        match fault {
            Some(ProxyFault::SlowDown) => {
                return Ok(Some(ServerResponse::error("503 Slow Down", "SlowDown").bytes()));
            }
            Some(ProxyFault::Delay(time)) => std::thread::sleep(time),
            Some(
                ProxyFault::ResetBefore
                | ProxyFault::ResetInside
                | ProxyFault::LostReply
                | ProxyFault::BlackHole,
            )
            | None => {}
        }
        let answer = self.forward(head, &body)?;
        let bytes = answer.bytes();
        match fault {
            Some(ProxyFault::LostReply) => Ok(None),
            Some(ProxyFault::ResetInside) => {
                let mut to = *client.get_ref();
                to.write_all(&bytes[..bytes.len() / 2])?;
                Ok(None)
            }
            Some(
                ProxyFault::Delay(_) | ProxyFault::ResetBefore | ProxyFault::SlowDown | ProxyFault::BlackHole,
            )
            | None => {
                self.wait_while(|state| state.answers_held);
                Ok((!self.lock().is_ended).then_some(bytes))
            }
        }
    }

    /// Forwards a request on a separate connection.
    fn forward(&self, mut head: Head, body: &[u8]) -> Result<ServerResponse> {
        let mut state = self.lock();
        while state.requests_held && !state.is_ended {
            state = self.changed.wait(state).expect("nothing panics while it holds this lock");
        }
        state.at_server += 1;
        drop(state);
        head.set("Connection", "close");
        let forwarded = TcpStream::connect(self.server).context("reach the server").and_then(|mut server| {
            server.write_all(&head.bytes())?;
            server.write_all(body)?;
            ServerResponse::read(&mut BufReader::new(server))
        });
        self.lock().at_server -= 1;
        forwarded
    }

    /// Waits while the condition holds and the proxy runs.
    fn wait_while(&self, holds: impl Fn(&ProxyState) -> bool) {
        let mut state = self.lock();
        while holds(&state) && !state.is_ended && !state.is_unreachable {
            (state, _) = self
                .changed
                .wait_timeout(state, CHECK_INTERVAL)
                .expect("nothing panics while it holds this lock");
        }
    }

    fn lock(&self) -> MutexGuard<'_, ProxyState> {
        self.state.lock().expect("nothing panics while it holds this lock")
    }
}

/// Makes a connection end by RST, not cleanly, once its thread drops it; wakes that thread.
fn reset(connection: &TcpStream) {
    // Errors mean that it is already broken.
    set_socket_linger(connection, Some(Duration::ZERO)).ok();
    connection.shutdown(Shutdown::Read).ok();
}
