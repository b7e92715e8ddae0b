//! A trace collector: keeps the spans that programs under test export over OTLP, for a scenario to read.
//!
//! Owns: the server on the host's loopback; the spans, in the order of their arrival.
//! Does not own: the programs. Those started by a world after its collector export to it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, ensure};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span as SpanMessage;
use tokio::runtime::{self, Runtime};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use crate::vm::HOST;

/// A span that has ended.
#[derive(Debug, Clone)]
pub struct Span {
    /// The program.
    pub service: String,
    /// Name of the span.
    pub name: String,
    /// The trace that it belongs to, in hexadecimal, like the ids below.
    pub trace: String,
    /// Id of the span.
    pub id: String,
    /// Id of the parent span; empty for the root of a trace.
    pub parent: String,
    /// Start and end in nanoseconds since 1970, by the clock of its machine.
    pub nanos: [u64; 2],
}

/// A running collector.
#[derive(Debug)]
pub struct Collector {
    port: u16,
    spans: Arc<Mutex<Vec<Span>>>,
    _runtime: Runtime,
}

#[derive(Debug, Clone)]
struct SpanReceiver(Arc<Mutex<Vec<Span>>>);

impl Collector {
    /// Starts a collector.
    ///
    /// # Errors
    /// If the host has no free port.
    pub fn start() -> Result<Self> {
        let runtime = runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("collector")
            .enable_all()
            .build()
            .context("a runtime")?;
        let listener = runtime.block_on(tokio::net::TcpListener::bind(("127.0.0.1", 0)))?;
        let port = listener.local_addr()?.port();
        let spans = Arc::default();
        let service = TraceServiceServer::new(SpanReceiver(Arc::clone(&spans)));
        runtime.spawn(
            Server::builder().add_service(service).serve_with_incoming(TcpListenerStream::new(listener)),
        );
        Ok(Self { port, spans, _runtime: runtime })
    }

    /// Returns variables for programs that export to it, on the host or in a test machine. They export ended
    /// spans every second.
    pub fn environment(&self, in_machine: bool) -> BTreeMap<String, String> {
        let host = if in_machine { HOST } else { "127.0.0.1" };
        [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{host}:{}", self.port)),
            ("OTEL_BSP_SCHEDULE_DELAY", "1000".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }

    /// Returns the spans received so far.
    pub fn spans(&self) -> Vec<Span> {
        lock(&self.spans).clone()
    }
}

#[tonic::async_trait]
impl TraceService for SpanReceiver {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        for of_program in request.into_inner().resource_spans {
            let attributes = of_program.resource.map(|resource| resource.attributes).unwrap_or_default();
            let service = attributes.into_iter().find(|attribute| attribute.key == "service.name");
            let service = match service.and_then(|service| service.value?.value) {
                Some(Value::StringValue(service)) => service,
                _ => return Err(Status::invalid_argument("service.name: is missing")),
            };
            let spans = of_program.scope_spans.into_iter().flat_map(|scope| scope.spans);
            lock(&self.0).extend(spans.map(|span| Span::of(&service, span)));
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Span {
    fn of(service: &str, span: SpanMessage) -> Self {
        Self {
            service: service.to_owned(),
            name: span.name,
            trace: hex(&span.trace_id),
            id: hex(&span.span_id),
            parent: hex(&span.parent_span_id),
            nanos: [span.start_time_unix_nano, span.end_time_unix_nano],
        }
    }
}

/// Formats the tree of a trace, one span per line, each below its parent.
///
/// # Errors
/// If the spans do not form one tree, or one of them belongs to another trace.
pub fn tree(trace: &str, spans: &[Span]) -> Result<String> {
    let mut children: BTreeMap<&str, Vec<&Span>> = BTreeMap::new();
    for span in spans {
        ensure!(span.trace == trace, "{span:?} is of another trace");
        let is_known = span.parent.is_empty() || spans.iter().any(|other| other.id == span.parent);
        ensure!(is_known, "the span above {span:?} is missing in {spans:#?}");
        children.entry(&span.parent).or_default().push(span);
    }
    let first = children.get("").context("a first span")?;
    ensure!(first.len() == 1, "{} spans are the first: {first:#?}", first.len());
    let begin = first[0].nanos[0];
    let mut text = String::new();
    let mut open = vec![(0, first[0])];
    while let Some((depth, span)) = open.pop() {
        let [from, to] = span.nanos.map(|nanos| nanos.saturating_sub(begin) / 1_000_000);
        let program = span.service.trim_start_matches("holdfast-");
        let name = format!("{:width$}{program}: {}", "", span.name, width = 2 * depth);
        text.push_str(&format!("{from:>6} ms {:>6} ms  {name}\n", to.saturating_sub(from)));
        let mut below = children.get(span.id.as_str()).cloned().unwrap_or_default();
        below.sort_by_key(|span| std::cmp::Reverse(span.nanos[0]));
        open.extend(below.into_iter().map(|span| (depth + 1, span)));
    }
    Ok(text)
}

fn lock(spans: &Mutex<Vec<Span>>) -> MutexGuard<'_, Vec<Span>> {
    spans.lock().unwrap_or_else(PoisonError::into_inner)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
