//! Counts and latencies of the requests sent to a store, for limits and billing.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// Kind of a request, as in a store's price list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verb {
    /// A read of all or part of an object.
    Get,
    /// A write of an object in one request: a create-once PUT or a small segment.
    Put,
    /// One page of a list.
    List,
    /// A deletion.
    Delete,
    /// The start of a multipart upload.
    StartUpload,
    /// One part of a multipart upload.
    UploadPart,
    /// The completion of a multipart upload, which makes the object visible.
    CompleteUpload,
    /// The abort of a multipart upload.
    AbortUpload,
}

impl Verb {
    /// Every verb, in the order of the counters.
    pub const ALL: [Self; 8] = [
        Self::Get,
        Self::Put,
        Self::List,
        Self::Delete,
        Self::StartUpload,
        Self::UploadPart,
        Self::CompleteUpload,
        Self::AbortUpload,
    ];

    /// Returns the verb as a metric label.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Put => "put",
            Self::List => "list",
            Self::Delete => "delete",
            Self::StartUpload => "start_upload",
            Self::UploadPart => "upload_part",
            Self::CompleteUpload => "complete_upload",
            Self::AbortUpload => "abort_upload",
        }
    }
}

/// Requests sent, by verb. Counts every attempt, because a store bills each one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RequestCounts {
    /// Reads.
    pub get: u64,
    /// Objects written in one request.
    pub put: u64,
    /// Pages of lists.
    pub list: u64,
    /// Deletions.
    pub delete: u64,
    /// Multipart uploads started.
    pub start_upload: u64,
    /// Parts uploaded.
    pub upload_part: u64,
    /// Multipart uploads completed.
    pub complete_upload: u64,
    /// Multipart uploads aborted.
    pub abort_upload: u64,
}

impl RequestCounts {
    /// Returns the requests of one kind.
    pub const fn of(&self, verb: Verb) -> u64 {
        match verb {
            Verb::Get => self.get,
            Verb::Put => self.put,
            Verb::List => self.list,
            Verb::Delete => self.delete,
            Verb::StartUpload => self.start_upload,
            Verb::UploadPart => self.upload_part,
            Verb::CompleteUpload => self.complete_upload,
            Verb::AbortUpload => self.abort_upload,
        }
    }

    /// Returns the total number of requests.
    pub const fn total(&self) -> u64 {
        let Self { get, put, list, delete, start_upload, upload_part, complete_upload, abort_upload } = *self;
        get + put + list + delete + start_upload + upload_part + complete_upload + abort_upload
    }

    /// Returns the requests sent since `earlier`, a previous reading of the same meter.
    pub const fn since(&self, earlier: &Self) -> Self {
        Self {
            get: self.get - earlier.get,
            put: self.put - earlier.put,
            list: self.list - earlier.list,
            delete: self.delete - earlier.delete,
            start_upload: self.start_upload - earlier.start_upload,
            upload_part: self.upload_part - earlier.upload_part,
            complete_upload: self.complete_upload - earlier.complete_upload,
            abort_upload: self.abort_upload - earlier.abort_upload,
        }
    }
}

/// Counters of one verb, which only increase.
#[derive(Debug, Default)]
pub struct VerbMeter {
    /// Attempts started.
    pub requests: AtomicU64,
    /// Attempts that ended in an error other than "does not exist" or "already exists".
    pub errors: AtomicU64,
    /// Total duration of all ended attempts, in microseconds.
    pub micros: AtomicU64,
    /// Body bytes sent and received.
    pub body_bytes: AtomicU64,
    /// Attempts by duration: [`RequestMeter::BUCKETS_MS`], and a last one for longer attempts.
    pub buckets: [AtomicU64; RequestMeter::BUCKETS_MS.len() + 1],
}

/// Requests and bytes by verb.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoreTraffic {
    /// Requests sent.
    pub requests: RequestCounts,
    /// Body bytes sent and received, in the order of [`Verb::ALL`].
    pub body_bytes: [u64; Verb::ALL.len()],
}

tokio::task_local! {
    static OF_TASK: Arc<RequestMeter>;
}

/// Runs `work`, and counts the requests that it sends in `meter` too, whichever store's meter counts them.
/// Requests of tasks that it spawns are not included.
pub async fn metered<T>(meter: Arc<RequestMeter>, work: impl Future<Output = T>) -> T {
    OF_TASK.scope(meter, work).await
}

/// Counters of every verb; shared freely between threads.
#[derive(Debug, Default)]
pub struct RequestMeter {
    verbs: [VerbMeter; Verb::ALL.len()],
}

impl RequestMeter {
    /// Upper bounds of the latency buckets, in milliseconds.
    pub const BUCKETS_MS: [u64; 12] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000];

    /// Returns the counters of one verb.
    pub fn verb(&self, verb: Verb) -> &VerbMeter {
        &self.verbs[verb as usize]
    }

    /// Counts the start of an attempt, also in the meter of the task ([`metered`]).
    pub fn begin(&self, verb: Verb) -> MeteredAttempt<'_> {
        let of_task = OF_TASK.try_with(Arc::clone).ok();
        for meter in [Some(self), of_task.as_deref()].into_iter().flatten() {
            meter.verb(verb).requests.fetch_add(1, Ordering::Relaxed);
        }
        MeteredAttempt { meter: self, of_task, verb, begun: Instant::now(), body_bytes: 0, failed: false }
    }

    /// Counts the end of an attempt: its duration, body bytes and failure.
    fn end(&self, verb: Verb, took: Duration, body_bytes: u64, failed: bool) {
        let meter = self.verb(verb);
        let bucket = Self::BUCKETS_MS
            .iter()
            .position(|bound| took <= Duration::from_millis(*bound))
            .unwrap_or(Self::BUCKETS_MS.len());
        meter.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        meter.micros.fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
        meter.body_bytes.fetch_add(body_bytes, Ordering::Relaxed);
        if failed {
            meter.errors.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the total duration of all ended attempts.
    pub fn time(&self) -> Duration {
        Duration::from_micros(self.verbs.iter().map(|verb| verb.micros.load(Ordering::Relaxed)).sum())
    }

    /// Returns a reading of the counters of requests and bytes.
    pub fn traffic(&self) -> StoreTraffic {
        let body_bytes = Verb::ALL.map(|verb| self.verb(verb).body_bytes.load(Ordering::Relaxed));
        StoreTraffic { requests: self.counts(), body_bytes }
    }

    /// Returns a reading of the request counters.
    pub fn counts(&self) -> RequestCounts {
        let read = |verb| self.verb(verb).requests.load(Ordering::Relaxed);
        RequestCounts {
            get: read(Verb::Get),
            put: read(Verb::Put),
            list: read(Verb::List),
            delete: read(Verb::Delete),
            start_upload: read(Verb::StartUpload),
            upload_part: read(Verb::UploadPart),
            complete_upload: read(Verb::CompleteUpload),
            abort_upload: read(Verb::AbortUpload),
        }
    }
}

/// A started attempt. Dropping it counts its end: without an error if the caller no longer waits for the
/// response.
#[derive(Debug)]
#[must_use = "an attempt that is dropped has ended"]
pub struct MeteredAttempt<'a> {
    meter: &'a RequestMeter,
    /// The meter of the task that sends it.
    of_task: Option<Arc<RequestMeter>>,
    verb: Verb,
    begun: Instant,
    body_bytes: u64,
    failed: bool,
}

impl MeteredAttempt<'_> {
    /// Counts the end of the attempt: its body bytes and failure.
    pub fn end(mut self, body_bytes: u64, failed: bool) {
        (self.body_bytes, self.failed) = (body_bytes, failed);
    }
}

impl Drop for MeteredAttempt<'_> {
    fn drop(&mut self) {
        let took = self.begun.elapsed();
        for meter in [Some(self.meter), self.of_task.as_deref()].into_iter().flatten() {
            meter.end(self.verb, took, self.body_bytes, self.failed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a dropped request left an attempt that never ended.
    #[test]
    fn an_attempt_that_is_dropped_has_ended() {
        let meter = RequestMeter::default();
        drop(meter.begin(Verb::Get));
        meter.begin(Verb::Get).end(7, true);
        let get = meter.verb(Verb::Get);
        let ended: u64 = get.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).sum();
        assert_eq!((meter.counts().get, ended), (2, 2));
        assert_eq!((get.errors.load(Ordering::Relaxed), get.body_bytes.load(Ordering::Relaxed)), (1, 7));
    }

    #[tokio::test]
    async fn a_task_counts_its_own_requests() {
        let (store, volume) = (RequestMeter::default(), Arc::new(RequestMeter::default()));
        let work = async {
            store.begin(Verb::Get).end(7, false);
            tokio::task::yield_now().await;
            store.begin(Verb::Put).end(5, true);
        };
        metered(Arc::clone(&volume), work).await;
        store.begin(Verb::Get).end(9, false);
        let RequestCounts { get, put, .. } = volume.counts();
        assert_eq!((get, put, volume.traffic().body_bytes[..2].to_vec()), (1, 1, vec![7, 5]));
        assert_eq!((store.counts().get, store.traffic().body_bytes[0]), (2, 16));
        assert_eq!(volume.verb(Verb::Put).errors.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn every_verb_has_its_own_counter() {
        let meter = RequestMeter::default();
        for (times, verb) in Verb::ALL.into_iter().enumerate() {
            for _ in 0..=times {
                drop(meter.begin(verb));
            }
        }
        let before = RequestCounts { get: 1, ..RequestCounts::default() };
        let counts = meter.counts();
        assert_eq!((counts.get, counts.put, counts.list, counts.delete), (1, 2, 3, 4));
        assert_eq!((counts.start_upload, counts.upload_part), (5, 6));
        assert_eq!((counts.complete_upload, counts.abort_upload), (7, 8));
        assert_eq!(counts.total(), 36);
        assert_eq!(counts.since(&before).total(), 35);
    }

    #[test]
    fn a_slow_attempt_lands_in_the_last_bucket() {
        let meter = RequestMeter::default();
        meter.end(Verb::Get, Duration::from_millis(1), 4096, false);
        meter.end(Verb::Get, Duration::from_secs(60), 0, true);
        let get = meter.verb(Verb::Get);
        assert_eq!(get.buckets[0].load(Ordering::Relaxed), 1);
        assert_eq!(get.buckets[12].load(Ordering::Relaxed), 1);
        assert_eq!(get.errors.load(Ordering::Relaxed), 1);
        assert_eq!(get.body_bytes.load(Ordering::Relaxed), 4096);
        assert_eq!(get.micros.load(Ordering::Relaxed), 60_001_000);
        meter.end(Verb::Put, Duration::from_millis(9), 0, false);
        assert_eq!(meter.time(), Duration::from_millis(60_010));
    }
}
