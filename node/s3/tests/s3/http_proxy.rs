//! HTTP proxies between the store and the server, as in corporate networks.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use holdfast_objects::{Created, ObjectStore};
use holdfast_s3::{Proxies, S3Config, S3Store};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::server::Server;
use crate::tls::authority_for;

const BODY: Bytes = Bytes::from_static(b"record");
/// A name that only the proxy resolves.
const NAME: &str = "s3.company.invalid";

/// A proxy that forwards all names to one server. It ends when this is dropped.
struct FakeProxy {
    address: SocketAddr,
    tunnels: Arc<AtomicUsize>,
    forwards: Arc<AtomicUsize>,
    _accept: JoinSet<()>,
}

impl FakeProxy {
    /// Starts the proxy; `login` is the required credentials, in base64.
    async fn start(server: SocketAddr, login: Option<&'static str>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (tunnels, forwards) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let mut accept = JoinSet::new();
        let counts = (Arc::clone(&tunnels), Arc::clone(&forwards));
        accept.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (client, _) = listener.accept().await.unwrap();
                connections.spawn(serve(client, server, login, counts.clone()));
            }
        });
        Self { address, tunnels, forwards, _accept: accept }
    }

    fn url(&self) -> Option<String> {
        Some(format!("http://user:word@{}", self.address))
    }

    fn counts(&self) -> (usize, usize) {
        (self.tunnels.load(Ordering::SeqCst), self.forwards.load(Ordering::SeqCst))
    }
}

async fn serve(
    mut client: TcpStream,
    server: SocketAddr,
    login: Option<&'static str>,
    (tunnels, forwards): (Arc<AtomicUsize>, Arc<AtomicUsize>),
) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        // A client that disconnects early has sent no request.
        let Ok(byte) = client.read_u8().await else { return };
        head.push(byte);
    }
    let said = String::from_utf8_lossy(&head).into_owned();
    if login.is_some_and(|login| !said.contains(&format!("Basic {login}"))) {
        let refusal = "HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n";
        return client.write_all(refusal.as_bytes()).await.unwrap_or_default();
    }
    let mut to = TcpStream::connect(server).await.unwrap();
    if said.starts_with("CONNECT ") {
        assert!(said.starts_with(&format!("CONNECT {NAME}:443 ")), "{said}");
        tunnels.fetch_add(1, Ordering::SeqCst);
        client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await.unwrap();
    } else {
        assert!(said.contains(&format!("http://{NAME}/")), "{said}");
        forwards.fetch_add(1, Ordering::SeqCst);
        to.write_all(&head).await.unwrap();
    }
    // Connections normally end with an error.
    let _ended = copy_bidirectional(&mut client, &mut to).await;
}

/// Regression: proxies were ignored, and a server behind one was never reached.
#[tokio::test]
async fn a_server_behind_a_proxy_is_reached_through_it() {
    let (ca_pem, acceptor) = authority_for(NAME);
    let server = Server::start_with(Some(acceptor)).await;
    // base64 of user:word
    let proxy = FakeProxy::start(server.address, Some("dXNlcjp3b3Jk")).await;
    let proxies = Proxies { https: proxy.url(), ..Proxies::default() };
    let endpoint = Some(format!("https://{NAME}"));
    let config = S3Config { endpoint, ca_pem: Some(ca_pem), proxies, ..server.config() };
    let store = S3Store::connect(config.clone()).await.unwrap();
    store.probe().await.unwrap();
    assert_eq!(store.create("a", BODY).await.unwrap(), Created);
    assert_eq!(store.get("a", 64).await.unwrap(), BODY);
    assert!(proxy.counts().0 > 0 && proxy.counts().1 == 0, "{:?}", proxy.counts());

    let without = Proxies { no_proxy: Some(format!("other.invalid,{NAME}")), ..config.proxies.clone() };
    let direct = S3Store::connect(S3Config { proxies: without, ..config.clone() }).await.unwrap();
    let before = proxy.counts();
    let failure = direct.probe().await.unwrap_err();
    assert_eq!((failure.reason(), proxy.counts()), ("Unreachable", before), "{failure:?}");
}

#[tokio::test]
async fn a_server_without_tls_is_asked_through_a_proxy() {
    let server = Server::start().await;
    let proxy = FakeProxy::start(server.address, None).await;
    let proxies = Proxies { http: proxy.url(), ..Proxies::default() };
    let config = S3Config { endpoint: Some(format!("http://{NAME}")), proxies, ..server.config() };
    let store = S3Store::connect(config).await.unwrap();
    store.probe().await.unwrap();
    assert!(proxy.counts().1 > 0 && proxy.counts().0 == 0, "{:?}", proxy.counts());
}

/// Regression: the message named the network policy and the server.
#[tokio::test]
async fn a_proxy_that_refuses_is_named() {
    let (ca_pem, acceptor) = authority_for(NAME);
    let server = Server::start_with(Some(acceptor)).await;
    let proxy = FakeProxy::start(server.address, Some("another")).await;
    let proxies = Proxies { https: proxy.url(), ..Proxies::default() };
    let endpoint = Some(format!("https://{NAME}"));
    let config = S3Config { endpoint, ca_pem: Some(ca_pem), proxies, ..server.config() };
    let failure = S3Store::connect(config.clone()).await.unwrap().probe().await.unwrap_err();
    let said = failure.to_string();
    assert_eq!((failure.field(), failure.reason()), ("endpoint", "ProxyFails"), "{failure:?}");
    assert!(said.contains(&format!("the proxy {} (HTTPS_PROXY)", proxy.address)), "{said}");
    assert!(said.contains("; check the proxy, or put the server's host into NO_PROXY"), "{said}");

    let proxies = Proxies { https: Some("socks5://p:1".to_owned()), ..Proxies::default() };
    let invalid = S3Store::connect(S3Config { proxies, ..config }).await.unwrap_err();
    assert_eq!(invalid.field, "HTTPS_PROXY", "{invalid}");
}
