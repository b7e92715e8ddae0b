//! An object store, its current client, and its availability.
//!
//! Owns: the client, which may be replaced at any time (credentials, authorities and endpoints change while
//! volumes are attached), and the record of the last responses and failures. All of this node's requests to
//! the store pass through here; the first response ends an outage. A rejection is a response, and concerns
//! only one kind of request: a full bucket rejects uploads but serves reads, and only a served request of the
//! same kind ends that condition. So does an upload for uploads that get no answer while other requests do,
//! for example because a proxy limits the length of bodies.
//! Does not own: retries, which are done by the store and its callers.
//! Invariants: an outage begins after the last response, regardless of when the failed requests ended; a
//! rejection begins after the last served request of its kind; a request ends with the client that it started
//! with.
//! Runs on: its callers' threads; never a ring thread.

use std::collections::BTreeMap;
use std::error::Error;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use holdfast_objects::{
    Blocker, CreateError, Created, ErrorKind, Folders, ObjectStore, Page, Parts, SegmentError, StoreError,
    Suffix, UnfinishedUpload,
};
use holdfast_service::chain;
use holdfast_types::VolumeId;
use parking_lot::{Mutex, MutexGuard, RwLock};

use crate::node::store::client::StoreClient;

/// Time after which a rejection is forgotten unless another request is rejected: pending requests are retried
/// every few seconds, so none is waiting any more.
const REFUSED_FOR: Duration = Duration::from_secs(60);

/// Time for which conflicts and overloads must recur before they are reported.
const REPEATED_FOR: Duration = Duration::from_secs(5);

/// Time for which uploads must fail without an answer before this is reported although other requests are
/// answered: a single one may time out on a slow uplink.
const SILENT_AFTER: Duration = Duration::from_secs(30);
/// Time after which their last failure is forgotten: longer than the attempts of a slow upload.
const SILENT_FOR: Duration = Duration::from_mins(10);

/// A store that does not respond, or rejects one kind of request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoreOutage {
    /// Send time of the first failed request.
    pub(crate) since: SystemTime,
    /// Error of the last one.
    pub(crate) error: String,
    /// Kind of that error; some, such as denied and blocked, are responses of the store. `Invalid` for
    /// uploads without an answer while the store answers other requests.
    pub(crate) kind: ErrorKind,
    /// The only unavailable object; `None` if the fault is not limited to one object.
    pub(crate) object: Option<String>,
}

impl StoreOutage {
    /// Returns true if `volume`, with `waiting` pending requests, is affected. A clone reads objects of its
    /// source.
    fn concerns(&self, volume: &VolumeId, waiting: usize) -> bool {
        let Some(object) = &self.object else { return true };
        waiting > 0 || object.starts_with(&format!("volumes/{volume}/"))
    }
}

/// Kinds of requests that a store may serve or reject independently, most severe first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum StoreLane {
    Upload,
    Create,
    Read,
    List,
    Delete,
    /// Reads of objects in an archive class.
    Archive,
}

/// Last known state of a store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum StoreHealth {
    /// This process has sent no request yet.
    #[default]
    Unknown,
    /// The last request got a response.
    Answers,
    /// It does not respond.
    Unreachable(StoreOutage),
}

impl StoreHealth {
    /// Returns the outage in progress.
    pub(crate) fn unreachable(&self) -> Option<&StoreOutage> {
        match self {
            Self::Unknown | Self::Answers => None,
            Self::Unreachable(outage) => Some(outage),
        }
    }

    /// Returns the store's state for one volume with `waiting` pending requests.
    pub(crate) fn of(self, volume: &VolumeId, waiting: usize) -> Self {
        match self {
            Self::Unreachable(outage) if !outage.concerns(volume, waiting) => Self::Answers,
            Self::Unknown | Self::Answers | Self::Unreachable(_) => self,
        }
    }
}

/// Deletes denied by a store. The objects stay in the bucket; nothing else is blocked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RefusedDeletes {
    /// Number of denied deletes of all volumes of the store, since this process connected to it.
    pub(crate) count: u64,
    /// Reason of the last delete, if it was denied.
    pub(crate) newest: Option<String>,
}

/// A store whose responses are monitored.
#[derive(Debug)]
pub(crate) struct WatchedStore<S = StoreClient> {
    client: RwLock<Arc<S>>,
    known: Mutex<StoreResponses>,
    /// Reason why the newest configuration is not in use.
    refused_change: Mutex<Option<String>>,
    refused_deletes: Mutex<RefusedDeletes>,
}

#[derive(Debug, Default)]
struct StoreResponses {
    /// Set while the store does not respond.
    outage: Option<StoreOutage>,
    /// Time of the last response.
    answered: Option<Instant>,
    lanes: BTreeMap<StoreLane, LaneState>,
    /// Uploads without an answer since the last one that got one.
    silent_uploads: Option<Refused>,
}

/// The last responses to one kind of request.
#[derive(Debug, Default)]
struct LaneState {
    /// Time of the last served request.
    served: Option<Instant>,
    refused: Option<Refused>,
}

#[derive(Debug)]
struct Refused {
    outage: StoreOutage,
    first: Instant,
    last: Instant,
}

impl Refused {
    /// Returns true if rejected requests may still be waiting. Conflicts and overloads end without action: a
    /// single one is not significant.
    fn lasts(&self, now: Instant) -> bool {
        let is_passing = matches!(self.outage.kind, ErrorKind::Conflict | ErrorKind::Throttled);
        let is_repeated = self.last.duration_since(self.first) >= REPEATED_FOR;
        now.saturating_duration_since(self.last) < REFUSED_FOR && (is_repeated || !is_passing)
    }

    /// Returns true if uploads without an answer have failed for long enough, and may still be waiting.
    fn is_silence(&self, now: Instant) -> bool {
        let is_recent = now.saturating_duration_since(self.last) < SILENT_FOR;
        is_recent && self.last.duration_since(self.first) >= SILENT_AFTER
    }
}

impl StoreResponses {
    fn health(&self, now: Instant) -> StoreHealth {
        let lasting = |lane: &LaneState| {
            lane.refused.as_ref().filter(|refused| refused.lasts(now)).map(|refused| refused.outage.clone())
        };
        let silence = || {
            self.silent_uploads.as_ref().filter(|silent| silent.is_silence(now)).map(|it| it.outage.clone())
        };
        match self.outage.clone().or_else(|| self.lanes.values().find_map(lasting)).or_else(silence) {
            Some(outage) => StoreHealth::Unreachable(outage),
            None if self.answered.is_some() => StoreHealth::Answers,
            None => StoreHealth::Unknown,
        }
    }

    /// Records an upload that failed without an answer at `now`.
    fn fail_upload(&mut self, sent: SentRequest<'_>, now: Instant, error: &str) {
        let served = self.lanes.get(&StoreLane::Upload).and_then(|lane| lane.served);
        if served.is_some_and(|served| served > sent.at) {
            return;
        }
        let before = self.silent_uploads.take();
        let before = before.filter(|silent| now.duration_since(silent.last) < SILENT_FOR);
        let (since, first) = before.map_or((sent.time, now), |silent| (silent.outage.since, silent.first));
        let error = format!("uploads get no answer of the store: {error}");
        let outage = StoreOutage { since, error, kind: ErrorKind::Invalid, object: None };
        self.silent_uploads = Some(Refused { outage, first, last: now });
    }

    /// Ends the outage in progress, which explains all uploads that failed after its start.
    fn end_outage(&mut self) {
        if let Some(outage) = self.outage.take() {
            self.silent_uploads.take_if(|silent| silent.outage.since > outage.since);
        }
    }
}

/// A request, and its send time.
#[derive(Debug, Clone, Copy)]
struct SentRequest<'a> {
    at: Instant,
    time: SystemTime,
    lane: StoreLane,
    /// The key or prefix of the request; empty for several.
    what: &'a str,
}

impl<'a> SentRequest<'a> {
    fn now(lane: StoreLane, what: &'a str) -> Self {
        Self { at: Instant::now(), time: SystemTime::now(), lane, what }
    }
}

impl<S> WatchedStore<S> {
    pub(crate) fn new(client: Arc<S>) -> Self {
        Self {
            client: RwLock::new(client),
            known: Mutex::default(),
            refused_change: Mutex::default(),
            refused_deletes: Mutex::default(),
        }
    }

    /// Returns the current client.
    pub(crate) fn current(&self) -> Arc<S> {
        Arc::clone(&self.client.read())
    }

    /// Sends all requests through `client` from now on.
    pub(crate) fn replace(&self, client: Arc<S>) {
        *self.client.write() = client;
        // The new client may have the right that the previous one lacked.
        let mut known = self.known();
        if known.lanes.values().any(|lane| lane.refused.is_some()) {
            known.lanes.clear();
            known.answered = None;
        }
        known.silent_uploads = None;
    }

    /// Returns the reason why the newest configuration is not in use.
    pub(crate) fn refused_change(&self) -> Option<String> {
        self.refused_change.lock().clone()
    }

    /// Records the outcome of the last change of the configuration.
    pub(crate) fn note_change(&self, refused: Option<String>) {
        *self.refused_change.lock() = refused;
    }

    /// Returns the denied deletes.
    pub(crate) fn refused_deletes(&self) -> RefusedDeletes {
        self.refused_deletes.lock().clone()
    }

    /// Returns true if the delete was denied. Deletes have a separate permission, so this is not significant
    /// for other requests.
    fn note_delete(&self, deleted: &Result<(), StoreError>) -> bool {
        let mut refused = self.refused_deletes.lock();
        match deleted {
            Ok(()) => refused.newest = None,
            Err(error) if error.kind() == ErrorKind::Denied => {
                refused.count += 1;
                refused.newest = Some(error.to_string());
                return true;
            }
            Err(_) => {}
        }
        false
    }

    /// Returns the store's state according to the last requests.
    pub(crate) fn health(&self) -> StoreHealth {
        self.known().health(Instant::now())
    }

    fn known(&self) -> MutexGuard<'_, StoreResponses> {
        self.known.lock()
    }

    fn note<T, E: Error>(
        &self,
        sent: SentRequest<'_>,
        kind: fn(&E) -> ErrorKind,
        result: Result<T, E>,
    ) -> Result<T, E> {
        let mut known = self.known();
        let now = Instant::now();
        let (lane, refusal) = match &result {
            Err(error) if !is_answer(kind(error)) => {
                if sent.lane == StoreLane::Upload {
                    known.fail_upload(sent, now, &chain(error));
                }
                // The response to a later request takes precedence.
                if known.answered.is_none_or(|answered| answered <= sent.at) {
                    let since = known.outage.as_ref().map_or(sent.time, |outage| outage.since);
                    let (error, kind) = (chain(error), kind(error));
                    known.outage = Some(StoreOutage { since, error, kind, object: None });
                }
                return result;
            }
            Err(error) if kind(error) == ErrorKind::Blocked(Blocker::Archived) => {
                (StoreLane::Archive, Some((kind(error), format!("object {}: {}", sent.what, chain(error)))))
            }
            Err(error) if !is_served(kind(error)) => (sent.lane, Some((kind(error), chain(error)))),
            Ok(_) | Err(_) => (sent.lane, None),
        };
        known.end_outage();
        known.answered = Some(now);
        if lane == StoreLane::Upload {
            known.silent_uploads = None;
        }
        let state = known.lanes.entry(lane).or_default();
        match refusal {
            None => {
                *state = LaneState { served: Some(now), refused: None };
                let archive = known.lanes.entry(StoreLane::Archive).or_default();
                archive.refused.take_if(|refused| refused.outage.object.as_deref() == Some(sent.what));
            }
            // A later request of this kind was served.
            Some(_) if state.served.is_some_and(|served| served > sent.at) => {}
            Some((kind, error)) => {
                let before = state.refused.take();
                let before = before.filter(|refused| now.duration_since(refused.last) < REFUSED_FOR);
                let (since, first) =
                    before.map_or((sent.time, now), |refused| (refused.outage.since, refused.first));
                let object = (lane == StoreLane::Archive).then(|| sent.what.to_owned());
                let outage = StoreOutage { since, error, kind, object };
                state.refused = Some(Refused { outage, first, last: now });
            }
        }
        result
    }
}

/// Returns the kind of the store's own error.
fn of_create(error: &CreateError) -> ErrorKind {
    match error {
        CreateError::Exists { .. } => ErrorKind::Exists,
        CreateError::Ambiguous(error) | CreateError::Failed(error) => error.kind(),
    }
}

/// Returns true if an error of this kind is a response of the store.
fn is_answer(kind: ErrorKind) -> bool {
    match kind {
        ErrorKind::Unavailable | ErrorKind::Ambiguous | ErrorKind::Blocked(Blocker::NoCredentials) => false,
        ErrorKind::NotFound
        | ErrorKind::Exists
        | ErrorKind::Conflict
        | ErrorKind::Corrupt
        | ErrorKind::Throttled
        | ErrorKind::Denied
        | ErrorKind::Blocked(_)
        | ErrorKind::Invalid => true,
    }
}

/// Returns true if an error of this kind shows that the store serves requests of this kind.
fn is_served(kind: ErrorKind) -> bool {
    match kind {
        ErrorKind::NotFound | ErrorKind::Exists | ErrorKind::Corrupt => true,
        ErrorKind::Conflict
        | ErrorKind::Throttled
        | ErrorKind::Unavailable
        | ErrorKind::Denied
        | ErrorKind::Blocked(_)
        | ErrorKind::Invalid
        | ErrorKind::Ambiguous => false,
    }
}

#[async_trait]
impl<S: ObjectStore> ObjectStore for WatchedStore<S> {
    async fn get(&self, key: &str, max_bytes: u64) -> Result<Bytes, StoreError> {
        let sent = SentRequest::now(StoreLane::Read, key);
        self.note(sent, StoreError::kind, self.current().get(key, max_bytes).await)
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        let sent = SentRequest::now(StoreLane::Read, key);
        self.note(sent, StoreError::kind, self.current().get_range(key, range).await)
    }

    async fn get_suffix(&self, key: &str, len: u64) -> Result<Suffix, StoreError> {
        let sent = SentRequest::now(StoreLane::Read, key);
        self.note(sent, StoreError::kind, self.current().get_suffix(key, len).await)
    }

    async fn create(&self, key: &str, body: Bytes) -> Result<Created, CreateError> {
        let sent = SentRequest::now(StoreLane::Create, key);
        self.note(sent, of_create, self.current().create(key, body).await)
    }

    async fn put_segment(&self, key: &str, parts: &mut dyn Parts) -> Result<(), SegmentError> {
        let sent = SentRequest::now(StoreLane::Upload, key);
        match self.current().put_segment(key, parts).await {
            Ok(()) => Ok(self.note(sent, StoreError::kind, Ok(()))?),
            Err(SegmentError::Store(error)) => Ok(self.note(sent, StoreError::kind, Err(error))?),
            // This is not significant for the store's state.
            Err(SegmentError::Part(failed)) => Err(failed.into()),
        }
    }

    async fn list(&self, prefix: &str, start_after: Option<&str>, limit: usize) -> Result<Page, StoreError> {
        let sent = SentRequest::now(StoreLane::List, prefix);
        self.note(sent, StoreError::kind, self.current().list(prefix, start_after, limit).await)
    }

    async fn list_folders(
        &self,
        prefix: &str,
        from: Option<&str>,
        limit: usize,
    ) -> Result<Folders, StoreError> {
        let sent = SentRequest::now(StoreLane::List, prefix);
        self.note(sent, StoreError::kind, self.current().list_folders(prefix, from, limit).await)
    }

    async fn delete(&self, keys: &[&str]) -> Result<(), StoreError> {
        let sent = SentRequest::now(StoreLane::Delete, "");
        let deleted = self.current().delete(keys).await;
        if self.note_delete(&deleted) {
            return deleted;
        }
        self.note(sent, StoreError::kind, deleted)
    }

    // Only sweeps send the following two, and report a rejection: they need rights that volumes do not need.
    async fn unfinished_uploads(&self, prefix: &str) -> Result<Vec<UnfinishedUpload>, StoreError> {
        self.current().unfinished_uploads(prefix).await
    }

    async fn abort_upload(&self, upload: &UnfinishedUpload) -> Result<(), StoreError> {
        self.current().abort_upload(upload).await
    }
}

#[cfg(test)]
mod tests {
    use holdfast_objects::{Fault, MemoryStore, ReadyParts, Verb};

    use super::*;

    #[tokio::test]
    async fn an_outage_lasts_from_first_failure_to_first_answer() {
        let memory = Arc::new(MemoryStore::new());
        let watched = WatchedStore::new(Arc::clone(&memory));
        assert_eq!(watched.health(), StoreHealth::Unknown);
        assert!(watched.get("a", 10).await.is_err());
        assert_eq!(watched.health(), StoreHealth::Answers, "that there is no such object");
        let before = SystemTime::now();
        memory.go_away();
        assert!(watched.put_segment("a", &mut ReadyParts::new([])).await.is_err());
        let first = watched.health().unreachable().cloned().expect("unreachable");
        assert!(first.since >= before && !first.error.is_empty());
        assert!(watched.create("b", Bytes::new()).await.is_err());
        assert_eq!(watched.health().unreachable().expect("still").since, first.since);
        memory.heal();
        watched.put_segment("a", &mut ReadyParts::new([])).await.expect("stored");
        assert_eq!(watched.health(), StoreHealth::Answers);
    }

    /// Regression: a volume kept a client with revoked credentials until its detach, which needed valid ones.
    #[tokio::test]
    async fn a_client_that_is_replaced_is_asked_no_more() {
        let (old, new) = (Arc::new(MemoryStore::new()), Arc::new(MemoryStore::new()));
        let watched = WatchedStore::new(Arc::clone(&old));
        old.fail_always(Verb::Put, Fault::Before(ErrorKind::Denied));
        assert!(watched.put_segment("a", &mut ReadyParts::new([])).await.is_err());
        assert!(watched.health().unreachable().is_some_and(|outage| outage.kind == ErrorKind::Denied));
        let asked = old.counts().total();
        watched.replace(Arc::clone(&new));
        watched.put_segment("a", &mut ReadyParts::new([])).await.expect("stored");
        assert_eq!((new.keys(), old.counts().total()), (vec!["a".to_owned()], asked));
        assert_eq!(watched.health(), StoreHealth::Answers);
    }

    /// Regression: credentials without the right to delete made the store seem unreachable at times, and
    /// named no permission.
    #[tokio::test]
    async fn denied_deletes_are_counted_and_are_no_outage() {
        let memory = Arc::new(MemoryStore::new());
        let watched = WatchedStore::new(Arc::clone(&memory));
        watched.put_segment("a", &mut ReadyParts::new([])).await.expect("stored");
        memory.fail_always(Verb::Delete, Fault::Before(ErrorKind::Denied));
        for _ in 0..2 {
            watched.delete(&["a"]).await.expect_err("denied");
        }
        let refused = watched.refused_deletes();
        assert!(refused.count == 2 && refused.newest.is_some_and(|why| why.contains("AccessDenied")));
        assert_eq!(watched.health(), StoreHealth::Answers);
        memory.heal();
        memory.fail_next(Verb::Delete, Fault::Before(ErrorKind::Unavailable));
        watched.delete(&["a"]).await.expect_err("unreachable");
        assert!(watched.health().unreachable().is_some() && watched.refused_deletes().newest.is_some());
        watched.delete(&["a"]).await.expect("deleted");
        assert_eq!(watched.refused_deletes(), RefusedDeletes { count: 2, newest: None });
    }

    /// Regression: uploads rejected by a full bucket were hidden by each served read, and reported as an
    /// outage after each one that failed.
    #[tokio::test]
    async fn a_refused_kind_of_requests_is_shown_until_one_is_served() {
        let memory = Arc::new(MemoryStore::new());
        let watched = WatchedStore::new(Arc::clone(&memory));
        watched.put_segment("a", &mut ReadyParts::new([])).await.expect("stored");
        let quota = ErrorKind::Blocked(Blocker::Quota);
        memory.fail_always(Verb::Put, Fault::Before(quota));
        let before = SystemTime::now();
        for _ in 0..2 {
            watched.put_segment("b", &mut ReadyParts::new([])).await.expect_err("over quota");
            watched.get("a", 10).await.expect("read");
        }
        let refused = watched.health().unreachable().cloned().expect("refused");
        assert_eq!(refused.kind, quota);
        assert!(refused.since >= before && refused.error.contains("; raise the quota"), "{refused:?}");
        memory.heal();
        watched.put_segment("b", &mut ReadyParts::new([])).await.expect("stored");
        assert_eq!(watched.health(), StoreHealth::Answers);
    }

    /// Regression, found in review: a proxy rejected large bodies (413), which each answer to another request
    /// hid.
    #[tokio::test]
    async fn uploads_without_an_answer_are_shown_until_one_is_served() {
        let memory = Arc::new(MemoryStore::new());
        let watched = WatchedStore::new(Arc::clone(&memory));
        watched.put_segment("a", &mut ReadyParts::new([])).await.expect("stored");
        for _ in 0..2 {
            memory.fail_next(Verb::Put, Fault::Before(ErrorKind::Unavailable));
            watched.put_segment("b", &mut ReadyParts::new([])).await.expect_err("no answer");
            watched.get("a", 10).await.expect("read");
            assert_eq!(watched.health(), StoreHealth::Answers, "it may pass");
        }
        watched.known().silent_uploads.as_mut().expect("recorded").first -= SILENT_AFTER;
        let shown = watched.health().unreachable().cloned().expect("shown");
        assert!(shown.error.starts_with("uploads get no answer of the store: "), "{shown:?}");
        watched.put_segment("b", &mut ReadyParts::new([])).await.expect("stored");
        assert_eq!(watched.health(), StoreHealth::Answers);
        // An outage explains them.
        memory.go_away();
        watched.get("a", 10).await.expect_err("away");
        // The outage began before the failed upload.
        let away = SystemTime::now();
        while SystemTime::now() == away {}
        watched.put_segment("b", &mut ReadyParts::new([])).await.expect_err("away");
        memory.heal();
        watched.get("a", 10).await.expect("read");
        assert!(watched.known().silent_uploads.is_none());
    }

    /// Regression: reads of it waited indefinitely, without a report.
    #[tokio::test]
    async fn an_archived_object_is_shown_to_the_volumes_that_need_it() {
        let memory = Arc::new(MemoryStore::new());
        let watched = WatchedStore::new(Arc::clone(&memory));
        let archived = ErrorKind::Blocked(Blocker::Archived);
        memory.fail_next(Verb::Get, Fault::Before(archived));
        watched.get("volumes/v1/segments/a", 10).await.expect_err("archived");
        watched.put_segment("volumes/v1/segments/b", &mut ReadyParts::new([])).await.expect("stored");
        watched.get("volumes/v1/segments/b", 10).await.expect("another object");
        let [v1, v2] = ["v1", "v2"].map(|volume| volume.parse::<VolumeId>().expect("a volume id"));
        let said = |volume, waiting| watched.health().of(volume, waiting).unreachable().cloned();
        let refused = said(&v1, 0).expect("its object");
        assert_eq!(refused.kind, archived);
        assert!(refused.error.starts_with("object volumes/v1/segments/a: "), "{refused:?}");
        assert!(refused.error.contains("archive class"), "{refused:?}");
        assert_eq!(said(&v2, 0), None);
        assert!(said(&v2, 1).is_some(), "a clone of v1 that waits");
        memory.fail_next(Verb::Get, Fault::LostRequest);
        watched.get("volumes/v1/segments/a", 10).await.expect_err("unreachable");
        watched.put_segment("volumes/v1/segments/a", &mut ReadyParts::new([])).await.expect("restored");
        watched.get("volumes/v1/segments/a", 10).await.expect("restored");
        assert_eq!(watched.health(), StoreHealth::Answers);
    }

    /// Amazon responds this way to one of two creates of a key.
    #[tokio::test]
    async fn a_single_conflict_is_not_shown() {
        let memory = Arc::new(MemoryStore::new());
        let watched = WatchedStore::new(Arc::clone(&memory));
        memory.fail_next(Verb::Put, Fault::Before(ErrorKind::Conflict));
        watched.create("a", Bytes::new()).await.expect_err("conflict");
        assert_eq!(watched.health(), StoreHealth::Answers);
        let repeated = |kind, seconds| {
            let since = SystemTime::now();
            let outage = StoreOutage { since, error: String::new(), kind, object: None };
            let last = Instant::now();
            Refused { outage, first: last - Duration::from_secs(seconds), last }.lasts(last)
        };
        assert!(repeated(ErrorKind::Conflict, 5) && !repeated(ErrorKind::Conflict, 4));
        assert!(repeated(ErrorKind::Denied, 0));
    }

    #[tokio::test]
    async fn a_request_that_ends_late_begins_no_outage() {
        let memory = Arc::new(MemoryStore::new());
        let watched = WatchedStore::new(Arc::clone(&memory));
        let early = SentRequest::now(StoreLane::Upload, "a");
        watched.put_segment("a", &mut ReadyParts::new([])).await.expect("stored");
        let failed = || Err::<(), _>(StoreError::Unavailable("silence".into()));
        assert!(watched.note(early, StoreError::kind, failed()).is_err());
        assert_eq!(watched.health(), StoreHealth::Answers, "it was answered after that request was sent");
        let late = SentRequest::now(StoreLane::Upload, "a");
        assert!(watched.note(late, StoreError::kind, failed()).is_err());
        assert_eq!(watched.health().unreachable().expect("unreachable").since, late.time);
    }
}
