//! The reference store: an in-memory map that behaves like S3, counts requests and fails on demand.
//!
//! Runs on: any tokio runtime (only [`Fault::Delay`] needs its timer). Clones share one map and a clock that
//! follows tokio's: in a test that pauses it, only the test's sleeps age objects.

use std::{
    collections::BTreeMap,
    ops::{Bound, Range},
    sync::Arc,
    sync::atomic::{AtomicBool, Ordering},
    time::SystemTime,
};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use crate::{
    Cause, CreateError, Created, ErrorKind, Fault, Folders, ListedObject, MAX_PAGE_ENTRIES, ObjectStore,
    Page, Parts, RequestCounts, RequestMeter, SegmentError, StoreError, Suffix, UnfinishedUpload, Verb,
    check_key, collect, fault::FaultPlan,
};

/// An object store in memory.
#[derive(Debug, Clone, Default)]
pub struct MemoryStore {
    shared: Arc<MemoryContents>,
}

#[derive(Debug)]
struct MemoryContents {
    objects: Mutex<BTreeMap<String, Object>>,
    /// Keys of unfinished uploads, and their start times.
    uploads: Mutex<Vec<(String, SystemTime)>>,
    faults: Mutex<FaultPlan>,
    /// Objects whose reads fail, with the kind of the error.
    unreadable: Mutex<BTreeMap<String, ErrorKind>>,
    requests: RequestMeter,
    /// One moment on tokio's clock and on the store's clock.
    begun: (Instant, SystemTime),
    /// True if its responses omit the time.
    hides_time: AtomicBool,
}

impl Default for MemoryContents {
    fn default() -> Self {
        let begun = (Instant::now(), SystemTime::now());
        Self {
            objects: Mutex::default(),
            uploads: Mutex::default(),
            faults: Mutex::default(),
            unreadable: Mutex::default(),
            requests: RequestMeter::default(),
            begun,
            hides_time: AtomicBool::new(false),
        }
    }
}

#[derive(Debug, Clone)]
struct Object {
    body: Bytes,
    last_modified: SystemTime,
}

/// Response to a request that took effect.
#[derive(PartialEq, Eq)]
enum ReplyFate {
    Sent,
    /// Sent; it reflects the key's state on arrival.
    Checked,
    Lost,
}

/// Outcome of a request that had no effect.
enum Stopped {
    /// The sender knows.
    Failed(StoreError),
    /// The sender cannot know.
    LostOnTheWay,
}

impl From<Stopped> for StoreError {
    fn from(stopped: Stopped) -> Self {
        match stopped {
            Stopped::Failed(error) => error,
            Stopped::LostOnTheWay => lost_reply(),
        }
    }
}

impl MemoryStore {
    /// Creates an empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an empty store whose clock starts at `time`.
    pub fn at(time: SystemTime) -> Self {
        Self {
            shared: Arc::new(MemoryContents { begun: (Instant::now(), time), ..MemoryContents::default() }),
        }
    }

    /// Omits the time from all later lists, like a proxy that removes the header `Date`.
    pub fn hide_time(&self) {
        self.shared.hides_time.store(true, Ordering::Relaxed);
    }

    /// Injects `fault` into the next request of `verb` without a planned fault. Several are used in order.
    pub fn fail_next(&self, verb: Verb, fault: Fault) {
        self.faults().push(verb, fault);
    }

    /// Injects `fault` into every request of `verb` until [`MemoryStore::heal`].
    pub fn fail_always(&self, verb: Verb, fault: Fault) {
        self.faults().set_always(verb, fault);
    }

    /// Makes the store unreachable: every request fails as unavailable until [`MemoryStore::heal`].
    pub fn go_away(&self) {
        for verb in Verb::ALL {
            self.fail_always(verb, Fault::Before(ErrorKind::Unavailable));
        }
    }

    /// Removes all faults.
    pub fn heal(&self) {
        self.faults().clear();
    }

    /// Returns the number of requests so far.
    pub fn counts(&self) -> RequestCounts {
        self.shared.requests.counts()
    }

    /// Returns every key in ascending order, without a request.
    pub fn keys(&self) -> Vec<String> {
        self.objects().keys().cloned().collect()
    }

    /// Changes an object's bytes directly, like a media fault.
    ///
    /// # Panics
    /// If no object has this key.
    pub fn corrupt(&self, key: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let mut objects = self.objects();
        let object = objects.get_mut(key).unwrap_or_else(|| panic!("no object {key} to corrupt"));
        let mut body = object.body.to_vec();
        change(&mut body);
        object.body = body.into();
    }

    /// Fails all reads of one object with an error of this kind, like an archived object.
    pub fn make_unreadable(&self, key: &str, kind: ErrorKind) {
        self.shared.unreadable.lock().insert(key.to_owned(), kind);
    }

    /// Adds an unfinished upload of `key` that starts now, as left behind by a killed daemon.
    pub fn leave_upload(&self, key: &str) {
        let now = self.now();
        self.shared.uploads.lock().push((key.to_owned(), now));
    }

    /// Returns the keys of the unfinished uploads.
    pub fn left_uploads(&self) -> Vec<String> {
        self.shared.uploads.lock().iter().map(|(key, _)| key.clone()).collect()
    }

    /// Returns the time by the store's clock.
    pub fn now(&self) -> SystemTime {
        let (begun, time) = self.shared.begun;
        time + begun.elapsed()
    }

    fn objects(&self) -> MutexGuard<'_, BTreeMap<String, Object>> {
        self.shared.objects.lock()
    }

    fn faults(&self) -> MutexGuard<'_, FaultPlan> {
        self.shared.faults.lock()
    }

    /// Counts a request and applies its fault up to the point where it takes effect.
    async fn arrive(&self, verb: Verb) -> Result<ReplyFate, Stopped> {
        let _metered = self.shared.requests.begin(verb);
        let fault = self.faults().take(verb);
        match fault {
            None => Ok(ReplyFate::Sent),
            Some(Fault::Before(kind)) => Err(Stopped::Failed(planned_error(kind))),
            Some(Fault::LostReply) => Ok(ReplyFate::Lost),
            Some(Fault::LostRequest) => Err(Stopped::LostOnTheWay),
            Some(Fault::Delay(wait)) => {
                tokio::time::sleep(wait).await;
                Ok(ReplyFate::Sent)
            }
            Some(Fault::Hold(gate)) => {
                gate.pass().await;
                Ok(ReplyFate::Sent)
            }
            Some(Fault::HoldChecked(gate)) => {
                gate.pass().await;
                Ok(ReplyFate::Checked)
            }
        }
    }

    async fn read(&self, key: &str) -> Result<Bytes, StoreError> {
        check_key(key)?;
        if self.arrive(Verb::Get).await? == ReplyFate::Lost {
            return Err(lost_reply());
        }
        if let Some(kind) = self.shared.unreadable.lock().get(key) {
            return Err(planned_error(*kind));
        }
        let found = self.objects().get(key).map(|object| object.body.clone());
        found.ok_or_else(|| StoreError::NotFound { key: key.to_owned() })
    }

    /// Rejects a key that a file-backed server could not store next to the existing ones.
    fn check_room(&self, key: &str) -> Result<(), StoreError> {
        let objects = self.objects();
        let below = format!("{key}/");
        let parents = key.match_indices('/').map(|(at, _)| &key[..at]);
        let child = objects.range(below.clone()..).next().is_some_and(|(other, _)| other.starts_with(&below));
        if child || parents.into_iter().any(|parent| objects.contains_key(parent)) {
            let rule = "no key may be another key followed by '/' and more";
            return Err(StoreError::Invalid { what: "key", value: key.to_owned(), rule });
        }
        Ok(())
    }

    /// Stores an object if the key is free; returns true if it was.
    fn insert(&self, key: &str, body: Bytes) -> bool {
        let mut objects = self.objects();
        let free = !objects.contains_key(key);
        if free {
            objects.insert(key.to_owned(), Object { body, last_modified: self.now() });
        }
        free
    }
}

#[async_trait]
impl ObjectStore for MemoryStore {
    async fn get(&self, key: &str, max_bytes: u64) -> Result<Bytes, StoreError> {
        let body = self.read(key).await?;
        let size_bytes = body.len() as u64;
        if size_bytes > max_bytes {
            return Err(StoreError::TooLarge { key: key.to_owned(), size_bytes, max_bytes });
        }
        Ok(body)
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        if range.is_empty() {
            return Err(empty_range(&range));
        }
        let body = self.read(key).await?;
        if range.end > body.len() as u64 {
            return Err(StoreError::OutOfRange { key: key.to_owned(), end: range.end });
        }
        Ok(body.slice(range.start as usize..range.end as usize))
    }

    async fn get_suffix(&self, key: &str, len: u64) -> Result<Suffix, StoreError> {
        if len == 0 {
            return Err(empty_range(&(0..0)));
        }
        let body = self.read(key).await?;
        let size_bytes = body.len() as u64;
        let start = size_bytes.saturating_sub(len) as usize;
        Ok(Suffix { bytes: body.slice(start..), size_bytes })
    }

    async fn create(&self, key: &str, body: Bytes) -> Result<Created, CreateError> {
        check_key(key).and_then(|()| self.check_room(key)).map_err(CreateError::Failed)?;
        let was_free = !self.objects().contains_key(key);
        let reply = match self.arrive(Verb::Put).await {
            Ok(ReplyFate::Checked) if was_free => {
                let object = Object { body, last_modified: self.now() };
                self.objects().insert(key.to_owned(), object);
                return Ok(Created);
            }
            Ok(reply) => reply,
            Err(Stopped::Failed(error)) => return Err(CreateError::Failed(error)),
            Err(Stopped::LostOnTheWay) => return Err(CreateError::Ambiguous(lost_reply())),
        };
        let created = self.insert(key, body);
        match (reply, created) {
            (ReplyFate::Lost, _) => Err(CreateError::Ambiguous(lost_reply())),
            (ReplyFate::Sent | ReplyFate::Checked, true) => Ok(Created),
            (ReplyFate::Sent | ReplyFate::Checked, false) => Err(CreateError::Exists { key: key.to_owned() }),
        }
    }

    async fn put_segment(&self, key: &str, parts: &mut dyn Parts) -> Result<(), SegmentError> {
        check_key(key)?;
        self.check_room(key)?;
        let body = collect(parts).await?;
        let reply = self.arrive(Verb::Put).await.map_err(StoreError::from)?;
        let object = Object { body, last_modified: self.now() };
        self.objects().insert(key.to_owned(), object);
        if reply == ReplyFate::Lost { Err(lost_reply().into()) } else { Ok(()) }
    }

    async fn list(&self, prefix: &str, start_after: Option<&str>, limit: usize) -> Result<Page, StoreError> {
        if limit == 0 {
            return Err(no_limit());
        }
        if self.arrive(Verb::List).await? == ReplyFate::Lost {
            return Err(lost_reply());
        }
        let from = match start_after {
            Some(key) if key >= prefix => Bound::Excluded(key),
            Some(_) | None => Bound::Included(prefix),
        };
        let objects = self.objects();
        let mut rest = objects
            .range::<str, _>((from, Bound::Unbounded))
            .take_while(|(key, _)| key.starts_with(prefix))
            .map(|(key, object)| ListedObject {
                key: key.clone(),
                size_bytes: object.body.len() as u64,
                last_modified: object.last_modified,
            });
        let entries = rest.by_ref().take(limit.min(MAX_PAGE_ENTRIES)).collect();
        let more = rest.next().is_some();
        let now = (!self.shared.hides_time.load(Ordering::Relaxed)).then(|| self.now());
        Ok(Page { entries, more, now })
    }

    async fn list_folders(
        &self,
        prefix: &str,
        from: Option<&str>,
        limit: usize,
    ) -> Result<Folders, StoreError> {
        if limit == 0 {
            return Err(no_limit());
        }
        if self.arrive(Verb::List).await? == ReplyFate::Lost {
            return Err(lost_reply());
        }
        let mut from = match from {
            Some(key) if key >= prefix => Bound::Excluded(key.to_owned()),
            Some(_) | None => Bound::Included(prefix.to_owned()),
        };
        let (objects, mut names) = (self.objects(), Vec::new());
        loop {
            let mut rest = objects.range((from.clone(), Bound::Unbounded));
            let Some(found) = rest.next().and_then(|(key, _)| key.strip_prefix(prefix)) else {
                return Ok(Folders { names, next: None });
            };
            let Some((name, _)) = found.split_once('/') else {
                from = Bound::Excluded(format!("{prefix}{found}"));
                continue;
            };
            if names.len() == limit.min(MAX_PAGE_ENTRIES) {
                let next = names.last().map(|last: &String| Folders::end_of(prefix, last));
                return Ok(Folders { names, next });
            }
            names.push(name.to_owned());
            from = Bound::Excluded(Folders::end_of(prefix, name));
        }
    }

    async fn delete(&self, keys: &[&str]) -> Result<(), StoreError> {
        keys.iter().try_for_each(|key| check_key(key))?;
        for batch in keys.chunks(MAX_PAGE_ENTRIES) {
            let reply = self.arrive(Verb::Delete).await?;
            let mut objects = self.objects();
            batch.iter().for_each(|key| drop(objects.remove(*key)));
            if reply == ReplyFate::Lost {
                return Err(lost_reply());
            }
        }
        Ok(())
    }

    async fn unfinished_uploads(&self, prefix: &str) -> Result<Vec<UnfinishedUpload>, StoreError> {
        if self.arrive(Verb::List).await? == ReplyFate::Lost {
            return Err(lost_reply());
        }
        let now = self.now();
        let unfinished = |(key, begun): &(String, SystemTime)| {
            let age = now.duration_since(*begun).unwrap_or_default();
            UnfinishedUpload { key: key.clone(), id: key.clone(), age }
        };
        let uploads = self.shared.uploads.lock();
        Ok(uploads.iter().filter(|(key, _)| key.starts_with(prefix)).map(unfinished).collect())
    }

    async fn abort_upload(&self, upload: &UnfinishedUpload) -> Result<(), StoreError> {
        let reply = self.arrive(Verb::AbortUpload).await?;
        self.shared.uploads.lock().retain(|(key, _)| *key != upload.id);
        if reply == ReplyFate::Lost { Err(lost_reply()) } else { Ok(()) }
    }
}

fn empty_range(range: &Range<u64>) -> StoreError {
    StoreError::Invalid { what: "range", value: format!("{range:?}"), rule: "ask for at least one byte" }
}

fn no_limit() -> StoreError {
    StoreError::Invalid { what: "limit", value: "0".to_owned(), rule: "ask for at least one entry" }
}

fn lost_reply() -> StoreError {
    StoreError::Unavailable("planned fault: the reply was lost".into())
}

fn planned_error(kind: ErrorKind) -> StoreError {
    let cause = || Cause::from("planned fault");
    match kind {
        ErrorKind::Throttled => StoreError::Throttled(cause()),
        ErrorKind::Conflict => StoreError::Conflict(cause()),
        ErrorKind::Denied => StoreError::Denied { code: "AccessDenied".to_owned(), source: cause() },
        ErrorKind::Blocked(blocker) => {
            StoreError::Blocked { blocker, code: blocker.reason().to_owned(), source: cause() }
        }
        ErrorKind::Invalid => StoreError::Refused { code: "InvalidRequest".to_owned(), source: cause() },
        ErrorKind::Corrupt => StoreError::BadAnswer { field: "planned fault" },
        ErrorKind::NotFound => StoreError::NotFound { key: "planned fault".to_owned() },
        ErrorKind::Unavailable | ErrorKind::Ambiguous | ErrorKind::Exists => StoreError::Unavailable(cause()),
    }
}

#[cfg(test)]
mod tests;
