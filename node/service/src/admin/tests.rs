use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::{EnvFilter, reload};

use super::*;

/// A program with these reasons not to be ready.
struct Fake(&'static [&'static str]);

impl Program for Fake {
    fn not_ready(&self) -> Vec<String> {
        self.0.iter().map(|&reason| reason.to_owned()).collect()
    }

    fn metrics(&self) -> Result<String, fmt::Error> {
        Ok("# EOF\n".to_owned())
    }
}

/// An endpoint on loopback.
struct Served {
    address: SocketAddr,
    endpoint: tokio::task::JoinHandle<()>,
    /// Without its layer, a filter does not exist.
    _subscriber: tracing::Dispatch,
}

impl Served {
    async fn new(program: Fake) -> Self {
        let (layer, level): (reload::Layer<_, _>, _) = LogLevel::new(EnvFilter::new("info"));
        let subscriber = tracing::Dispatch::new(tracing_subscriber::registry().with(layer));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let endpoint = tokio::spawn(serve(listener, program, level));
        Self { address, endpoint, _subscriber: subscriber }
    }

    /// Sends a request and returns the whole response.
    async fn ask(&self, method: &str, path: &str, body: &[u8]) -> String {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(body).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    async fn status(&self, method: &str, path: &str, body: &[u8]) -> u16 {
        self.ask(method, path, body).await.split(' ').nth(1).unwrap().parse().unwrap()
    }

    async fn text(&self, path: &str) -> String {
        self.ask("GET", path, b"").await.split_once("\r\n\r\n").unwrap().1.to_owned()
    }
}

/// Found by review: kubelets of clusters without IPv4 could not reach any probe.
#[tokio::test]
async fn the_address_of_all_is_reached_by_both_families() {
    let listener = listen("[::]:0".parse().unwrap()).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
    // A host without IPv6 listens on IPv4 only; a host may also support it without an address.
    if listener.local_addr().unwrap().is_ipv6() && TcpListener::bind("[::1]:0").await.is_ok() {
        TcpStream::connect((Ipv6Addr::LOCALHOST, port)).await.unwrap();
    }
    let taken = listen(listener.local_addr().unwrap()).await.unwrap_err();
    assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
}

#[tokio::test]
async fn each_path_answers_its_own_methods() {
    let served = Served::new(Fake(&[])).await;
    for (method, path, status) in [
        ("GET", "/healthz", 200),
        ("GET", "/readyz", 200),
        ("GET", "/metrics", 200),
        ("GET", "/log-level", 200),
        ("POST", "/metrics", 405),
        ("DELETE", "/log-level", 405),
        ("GET", "/", 404),
    ] {
        assert_eq!(served.status(method, path, b"").await, status, "{method} {path}");
    }
    let answer = served.ask("GET", "/metrics", b"").await;
    assert!(answer.contains(&format!("content-type: {OPENMETRICS}\r\n")), "{answer}");
    assert!(served.text("/").await.contains("/log-level"));
}

#[tokio::test]
async fn a_program_is_ready_without_a_reason() {
    let served = Served::new(Fake(&["it starts", "a disk is slow"])).await;
    assert_eq!(served.status("GET", "/readyz", b"").await, 503);
    assert_eq!(served.text("/readyz").await, "it starts\na disk is slow\n");
    assert_eq!(served.status("GET", "/healthz", b"").await, 200, "the process runs");
}

#[tokio::test]
async fn the_log_level_is_read_and_changed_while_running() {
    let served = Served::new(Fake(&[])).await;
    assert_eq!(served.text("/log-level").await, "info\n");
    let answer = served.ask("PUT", "/log-level", b"warn,holdfast_node=debug\n").await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let now = served.text("/log-level").await;
    assert!(now.contains("warn") && now.contains("holdfast_node=debug"), "{now}");
}

/// Regression: each connection continued for as long as its client kept it open.
#[tokio::test]
async fn connections_end_with_their_endpoint() {
    let served = Served::new(Fake(&[])).await;
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    let mut begin = [0; 12];
    stream.read_exact(&mut begin).await.unwrap();
    assert_eq!(&begin, b"HTTP/1.1 200");
    served.endpoint.abort();
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut rest)).await;
    // The connection may end with a reset.
    drop(ended.expect("the connection ends"));
}

/// Regression, found in review: a pod of the cluster could open connections until the program had no file
/// descriptor left.
#[tokio::test]
async fn connections_are_bounded_and_the_newest_is_answered() {
    let served = Served::new(Fake(&[])).await;
    let mut idle = Vec::new();
    for _ in 0..CONNECTIONS {
        idle.push(TcpStream::connect(served.address).await.unwrap());
    }
    assert_eq!(served.status("GET", "/healthz", b"").await, 200);
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(Duration::from_secs(20), idle[0].read_to_end(&mut rest)).await;
    // The connection may end with a reset.
    drop(ended.expect("the oldest ends"));
    idle[1].write_all(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    let mut begin = [0; 12];
    idle[1].read_exact(&mut begin).await.unwrap();
    assert_eq!(&begin, b"HTTP/1.1 200", "the others stay");
}

/// An invalid level could silence the log.
#[tokio::test]
async fn a_bad_log_level_changes_nothing() {
    let served = Served::new(Fake(&[])).await;
    for wrong in [&b""[..], b"inof", b"a=loud", b"\xff", &[b'a'; MAX_FILTER_BYTES + 1]] {
        assert_eq!(served.status("PUT", "/log-level", wrong).await, 400, "{wrong:?}");
    }
    let answer = served.ask("PUT", "/log-level", b"inof").await;
    assert!(
        answer.contains("`inof` is not a level; write one of off, error, warn, info, debug, trace"),
        "{answer}"
    );
    assert_eq!(served.text("/log-level").await, "info\n");
}

/// The endpoint has no authentication, and every pod of a cluster may reach it.
#[tokio::test]
async fn only_a_local_client_changes_the_log_level() {
    let own = "10.0.0.7".parse().unwrap();
    for (address, is_local) in [
        ("127.0.0.1:5", true),
        ("[::1]:5", true),
        ("[::ffff:127.0.0.1]:5", true),
        ("10.0.0.7:5", true),
        ("10.0.0.8:5", false),
        ("[fd00::8]:5", false),
    ] {
        assert_eq!(Client::new(address.parse().unwrap(), own).is_local, is_local, "{address}");
    }
    let (layer, level) = LogLevel::new(EnvFilter::new("info"));
    let _subscriber = tracing::Dispatch::new(tracing_subscriber::registry().with(layer));
    let client = Client::new("10.0.0.8:5".parse().unwrap(), own);
    let endpoint = Arc::new(AdminState { program: Fake(&[]), level: level.clone() });
    let refused = set_log_level(State(endpoint), Extension(client), Body::from("debug")).await;
    assert_eq!((refused.status(), level.current().unwrap()), (StatusCode::FORBIDDEN, "info".to_owned()));
}
