//! Metrics of the requests to object stores, of each volume and of each store.

use std::collections::BTreeMap;
use std::fmt;

use holdfast_objects::{RequestCounts, Verb};
use holdfast_s3::StoreAdaptation;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

use super::MetricKind;
use crate::node::{NodeVolumeStatus, StoreStatus};

/// Name of the metric of requests to stores; the label `operation` distinguishes them, because their prices
/// differ.
const STORE_REQUESTS: &str = "holdfast_store_requests";
/// Names of the metrics of a volume's requests to its store, and of their bytes; with the label `operation`
/// too.
const VOLUME_STORE_REQUESTS: &str = "holdfast_volume_store_requests";
const VOLUME_STORE_TRAFFIC: &str = "holdfast_volume_store";
/// Operations whose requests or responses have a body.
const WITH_BODY: [Verb; 3] = [Verb::Get, Verb::Put, Verb::UploadPart];
/// Name of the metric of the requests that may be in flight to a store.
const STORE_IN_FLIGHT_LIMIT: &str = "holdfast_store_in_flight_limit";
/// Name of the metric of reads sent a second time.
const STORE_HEDGED_READS: &str = "holdfast_store_hedged_reads";
/// Name of the metric of deletes denied by stores.
const STORE_REFUSED_DELETES: &str = "holdfast_store_refused_deletes";

/// Encodes the requests of each volume with a store, and their bytes.
pub(super) fn encode_store_traffic(
    encoder: &mut DescriptorEncoder<'_>,
    volumes: &[NodeVolumeStatus],
) -> Result<(), fmt::Error> {
    let with_store = || volumes.iter().filter(|volume| volume.store.requests.is_some());
    let help = "Requests that the volume's reads, uploads, commits and merges sent to the object store, including retries";
    let kind = MetricKind::Counter.of();
    let mut family = encoder.encode_descriptor(VOLUME_STORE_REQUESTS, help, None, kind)?;
    for volume in with_store() {
        for verb in Verb::ALL {
            let labels = [("volume", volume.volume.as_str()), ("operation", verb.name())];
            let count = volume.store.of_volume.requests.of(verb);
            ConstCounter::new(count as f64).encode(family.encode_family(&labels)?)?;
        }
    }
    let help = "Bytes of objects that these requests read or wrote";
    let mut family = encoder.encode_descriptor(VOLUME_STORE_TRAFFIC, help, Some(&Unit::Bytes), kind)?;
    for volume in with_store() {
        for verb in WITH_BODY {
            let labels = [("volume", volume.volume.as_str()), ("operation", verb.name())];
            let bytes = volume.store.of_volume.body_bytes[verb as usize];
            ConstCounter::new(bytes as f64).encode(family.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

/// Encodes the requests to each store, and how the node adapted them.
pub(super) fn encode_stores(
    encoder: &mut DescriptorEncoder<'_>,
    volumes: &[NodeVolumeStatus],
) -> fmt::Result {
    // The volumes of a store share one connection, so each has the same figures.
    let stores: BTreeMap<&str, (&RequestCounts, &StoreStatus)> = volumes
        .iter()
        .filter_map(|v| Some((v.store.name.as_str(), (v.store.requests.as_ref()?, &v.store))))
        .collect();
    let help = "Requests sent to the object store for all volumes of this node, including retries and second requests of late reads";
    let kind = ConstCounter::new(0.0).metric_type();
    let mut family = encoder.encode_descriptor(STORE_REQUESTS, help, None, kind)?;
    for (store, (counts, _)) in &stores {
        for verb in Verb::ALL {
            let labels = [("store", *store), ("operation", verb.name())];
            ConstCounter::new(counts.of(verb) as f64).encode(family.encode_family(&labels)?)?;
        }
    }
    let help = "Delete requests that the object store denied to this node for lack of permission";
    let mut family = encoder.encode_descriptor(STORE_REFUSED_DELETES, help, None, kind)?;
    for (name, (_, store)) in &stores {
        let count = store.refused_deletes.count;
        ConstCounter::new(count as f64).encode(family.encode_family(&[("store", *name)])?)?;
    }
    let help =
        "Reads of parts of objects sent to the object store a second time because the response was late";
    let mut family = encoder.encode_descriptor(STORE_HEDGED_READS, help, None, kind)?;
    for (name, (_, store)) in &stores {
        let Some(StoreAdaptation { hedged_reads: count, .. }) = store.adaptation else { continue };
        ConstCounter::new(count as f64).encode(family.encode_family(&[("store", *name)])?)?;
    }
    let help = "Requests that this node may have in flight to the object store; fewer while the store throttles or large uploads time out";
    let mut family = encoder.encode_descriptor(STORE_IN_FLIGHT_LIMIT, help, None, MetricKind::Gauge.of())?;
    for (name, (_, store)) in &stores {
        let Some(StoreAdaptation { max_in_flight: limit, .. }) = store.adaptation else { continue };
        ConstGauge::new(limit as f64).encode(family.encode_family(&[("store", *name)])?)?;
    }
    Ok(())
}
