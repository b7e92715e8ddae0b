//! An object store, its client of now, and whether it answers.
//!
//! Owns: the client, which may be replaced at any time (credentials, authorities and endpoints change under
//! attached volumes), and the memory of the last answer or failure. Every request of this node to the store
//! passes through here; the first that gets an answer ends an outage. Does not own: retries, which are those
//! of the store and of its callers.
//! Invariants: an outage begins after the last answer, whenever the requests ended that failed; a request
//! that was begun ends with the client it began with.
//! Runs on: its callers' threads; never a ring thread.

use std::error::Error;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use holdfast_objects::{
    CreateError, Created, ErrorKind, Folders, ObjectStore, Page, Parts, SegmentError, StoreError, Suffix,
};
use holdfast_service::chain;
use parking_lot::{Mutex, MutexGuard, RwLock};

use crate::node::store::client::StoreClient;

/// An outage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoreUnreachable {
    /// Time at which the first request that failed was sent.
    pub(crate) since: SystemTime,
    /// Reason why the last one failed.
    pub(crate) error: String,
    /// True if the store answers and refuses the credentials.
    pub(crate) is_denied: bool,
}

/// State of a store, as far as it is known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum StoreHealth {
    /// This process has asked it nothing yet.
    #[default]
    Unknown,
    /// It answered last.
    Answers,
    /// It does not answer.
    Unreachable(StoreUnreachable),
}

impl StoreHealth {
    /// The outage in progress.
    pub(crate) fn unreachable(&self) -> Option<&StoreUnreachable> {
        match self {
            Self::Unknown | Self::Answers => None,
            Self::Unreachable(outage) => Some(outage),
        }
    }
}

/// Deletes that a store denied. What is not deleted stays in the bucket; nothing else is held up by it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RefusedDeletes {
    /// Denied deletes of all volumes of the store, since this process connected to it.
    pub(crate) count: u64,
    /// Reason why the last delete was denied; none since one was not.
    pub(crate) newest: Option<String>,
}

/// A store whose answers are watched.
#[derive(Debug)]
pub(crate) struct WatchedStore<S = StoreClient> {
    client: RwLock<Arc<S>>,
    known: Mutex<Known>,
    /// Reason why the newest configuration is not in use.
    refused_change: Mutex<Option<String>>,
    refused_deletes: Mutex<RefusedDeletes>,
}

#[derive(Debug, Default)]
struct Known {
    health: StoreHealth,
    answered: Option<Instant>,
}

/// Time at which a request was sent.
#[derive(Debug, Clone, Copy)]
struct Sent {
    at: Instant,
    time: SystemTime,
}

impl Sent {
    fn now() -> Self {
        Self { at: Instant::now(), time: SystemTime::now() }
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

    /// The client of now.
    pub(crate) fn current(&self) -> Arc<S> {
        Arc::clone(&self.client.read())
    }

    /// Gives every request from now on to `client`.
    pub(crate) fn replace(&self, client: Arc<S>) {
        *self.client.write() = client;
    }

    /// Reason why the newest configuration is not in use.
    pub(crate) fn refused_change(&self) -> Option<String> {
        self.refused_change.lock().clone()
    }

    /// Notes how the last change of the configuration ended.
    pub(crate) fn note_change(&self, refused: Option<String>) {
        *self.refused_change.lock() = refused;
    }

    /// The deletes that were denied.
    pub(crate) fn refused_deletes(&self) -> RefusedDeletes {
        self.refused_deletes.lock().clone()
    }

    /// Returns whether the delete was denied. The permission is one of its own, so that says nothing about
    /// other requests.
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

    /// State of the store, as the last request showed it.
    pub(crate) fn health(&self) -> StoreHealth {
        self.known().health.clone()
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock()
    }

    fn note<T, E: Error>(&self, sent: Sent, kind: fn(&E) -> ErrorKind, result: Result<T, E>) -> Result<T, E> {
        let mut known = self.known();
        match &result {
            Err(error) if !is_answer(kind(error)) => {
                // An answer to a later request says more.
                if known.answered.is_none_or(|answered| answered <= sent.at) {
                    let since = known.health.unreachable().map_or(sent.time, |outage| outage.since);
                    let is_denied = kind(error) == ErrorKind::Denied;
                    known.health =
                        StoreHealth::Unreachable(StoreUnreachable { since, error: chain(error), is_denied });
                }
            }
            Ok(_) | Err(_) => {
                *known = Known { health: StoreHealth::Answers, answered: Some(Instant::now()) };
            }
        }
        result
    }
}

/// True if an error of this kind shows that the store serves this node.
fn is_answer(kind: ErrorKind) -> bool {
    match kind {
        ErrorKind::NotFound | ErrorKind::Exists | ErrorKind::Conflict | ErrorKind::Corrupt => true,
        ErrorKind::Throttled
        | ErrorKind::Unavailable
        | ErrorKind::Denied
        | ErrorKind::Invalid
        | ErrorKind::Ambiguous => false,
    }
}

#[async_trait]
impl<S: ObjectStore> ObjectStore for WatchedStore<S> {
    async fn get(&self, key: &str, max_bytes: u64) -> Result<Bytes, StoreError> {
        let sent = Sent::now();
        self.note(sent, StoreError::kind, self.current().get(key, max_bytes).await)
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        let sent = Sent::now();
        self.note(sent, StoreError::kind, self.current().get_range(key, range).await)
    }

    async fn get_suffix(&self, key: &str, len: u64) -> Result<Suffix, StoreError> {
        let sent = Sent::now();
        self.note(sent, StoreError::kind, self.current().get_suffix(key, len).await)
    }

    async fn create(&self, key: &str, body: Bytes) -> Result<Created, CreateError> {
        let sent = Sent::now();
        self.note(sent, CreateError::kind, self.current().create(key, body).await)
    }

    async fn put_segment(&self, key: &str, parts: &mut dyn Parts) -> Result<(), SegmentError> {
        let sent = Sent::now();
        match self.current().put_segment(key, parts).await {
            Ok(()) => Ok(self.note(sent, StoreError::kind, Ok(()))?),
            Err(SegmentError::Store(error)) => Ok(self.note(sent, StoreError::kind, Err(error))?),
            // That says nothing about the store.
            Err(SegmentError::Part(failed)) => Err(failed.into()),
        }
    }

    async fn list(&self, prefix: &str, start_after: Option<&str>, limit: usize) -> Result<Page, StoreError> {
        let sent = Sent::now();
        self.note(sent, StoreError::kind, self.current().list(prefix, start_after, limit).await)
    }

    async fn list_folders(
        &self,
        prefix: &str,
        start_after: Option<&str>,
        limit: usize,
    ) -> Result<Folders, StoreError> {
        let sent = Sent::now();
        self.note(sent, StoreError::kind, self.current().list_folders(prefix, start_after, limit).await)
    }

    async fn delete(&self, keys: &[&str]) -> Result<(), StoreError> {
        let sent = Sent::now();
        let deleted = self.current().delete(keys).await;
        if self.note_delete(&deleted) {
            return deleted;
        }
        self.note(sent, StoreError::kind, deleted)
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

    /// A client with credentials that were revoked stayed with a volume until its detach, which needed them.
    #[tokio::test]
    async fn a_client_that_is_replaced_is_asked_no_more() {
        let (old, new) = (Arc::new(MemoryStore::new()), Arc::new(MemoryStore::new()));
        let watched = WatchedStore::new(Arc::clone(&old));
        old.fail_always(Verb::Put, Fault::Before(ErrorKind::Denied));
        assert!(watched.put_segment("a", &mut ReadyParts::new([])).await.is_err());
        assert!(watched.health().unreachable().is_some_and(|outage| outage.is_denied));
        let asked = old.counts().total();
        watched.replace(Arc::clone(&new));
        watched.put_segment("a", &mut ReadyParts::new([])).await.expect("stored");
        assert_eq!((new.keys(), old.counts().total()), (vec!["a".to_owned()], asked));
        assert_eq!(watched.health(), StoreHealth::Answers);
    }

    /// Credentials without the right to delete made the store look unreachable now and then, and named no
    /// permission.
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

    #[tokio::test]
    async fn a_request_that_ends_late_begins_no_outage() {
        let memory = Arc::new(MemoryStore::new());
        let watched = WatchedStore::new(Arc::clone(&memory));
        let early = Sent::now();
        watched.put_segment("a", &mut ReadyParts::new([])).await.expect("stored");
        let failed = || Err::<(), _>(StoreError::Unavailable("silence".into()));
        assert!(watched.note(early, StoreError::kind, failed()).is_err());
        assert_eq!(watched.health(), StoreHealth::Answers, "it was answered after that request was sent");
        let late = Sent::now();
        assert!(watched.note(late, StoreError::kind, failed()).is_err());
        assert_eq!(watched.health().unreachable().expect("unreachable").since, late.time);
    }
}
