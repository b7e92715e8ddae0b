//! Trace context of a span, as text that programs pass to each other.
//!
//! Text format: `traceparent` of W3C Trace Context, <https://www.w3.org/TR/trace-context/>.

use std::collections::HashMap;

use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::TraceContextExt;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

const TRACEPARENT: &str = "traceparent";

/// Returns the current span's trace context; `None` if no traces, or not this one, are exported.
pub fn current() -> Option<String> {
    let context = Span::current().context();
    if !context.span().span_context().is_sampled() {
        return None;
    }
    let mut text = HashMap::new();
    TraceContextPropagator::new().inject_context(&context, &mut text);
    text.remove(TRACEPARENT)
}

/// Makes `span`, in which no work was done yet, part of the trace of `traceparent`. Ignores invalid text.
pub fn continue_in(span: &Span, traceparent: &str) {
    let text = HashMap::from([(TRACEPARENT.to_owned(), traceparent.to_owned())]);
    let context = TraceContextPropagator::new().extract(&text);
    if context.span().span_context().is_valid()
        && let Err(error) = span.set_parent(context)
    {
        tracing::debug!(%error, "the span does not continue the trace");
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::TracerProvider;
    use opentelemetry_sdk::trace::SdkTracerProvider;
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;
    use crate::telemetry::layer;

    const OTHERS: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    /// A span is entered before the trace that it continues is known.
    #[test]
    fn a_span_continues_the_trace_it_is_given() {
        let provider = SdkTracerProvider::builder().build();
        let subscriber = tracing_subscriber::registry().with(layer(provider.tracer("test")));
        tracing::subscriber::with_default(subscriber, || {
            tracing::info_span!("request").in_scope(|| {
                continue_in(&Span::current(), OTHERS);
                let here = current().expect("it is sampled");
                assert_eq!((&here[..36], here == OTHERS), (&OTHERS[..36], false), "{here}");
                let below = tracing::info_span!("step").in_scope(current).expect("it is sampled");
                assert_eq!((&below[..36], below == here), (&OTHERS[..36], false), "{below}");
            });
            for none in ["", "00-0-0-0", "00-00000000000000000000000000000000-b7ad6b7169203331-01"] {
                let span = tracing::info_span!("request");
                continue_in(&span, none);
                assert!(span.in_scope(current).is_some_and(|own| own[..36] != OTHERS[..36]), "{none}");
            }
            let unsampled = format!("{}00", &OTHERS[..53]);
            let span = tracing::info_span!("request");
            continue_in(&span, &unsampled);
            assert_eq!(span.in_scope(current), None, "who began the trace does not export it");
        });
    }

    #[test]
    fn without_an_exporter_there_is_no_trace() {
        let span = tracing::info_span!("request");
        continue_in(&span, OTHERS);
        assert_eq!(span.in_scope(current), None);
    }
}
