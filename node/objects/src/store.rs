//! The interface of an object store.
//!
//! Keys are `/`-separated paths relative to the store's own prefix. Objects are immutable; create-once is the
//! compare-and-swap on which everything else is based.

use std::{
    fmt,
    ops::Range,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use bytes::Bytes;

use crate::{CreateError, Parts, SegmentError, StoreError};

/// Maximum key length that [`check_key`] accepts, in bytes. S3 allows 1024 for prefix and key together; see
/// <https://docs.aws.amazon.com/AmazonS3/latest/userguide/object-keys.html>.
pub const MAX_KEY_BYTES: usize = 512;

/// Maximum entries per page of a list, regardless of the request (S3's own limit).
pub const MAX_PAGE_ENTRIES: usize = 1000;

/// Maximum unfinished uploads listed at once; later calls list the others.
pub const MAX_UNFINISHED: usize = 10_000;

/// A multipart upload that was neither completed nor aborted: its parts are billed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnfinishedUpload {
    /// Key of its object, relative to the store's prefix.
    pub key: String,
    /// The store's upload id.
    pub id: String,
    /// Time since its start by the store's clock; zero if the store does not return both times.
    pub age: Duration,
}

/// Proof that this create-once PUT, and no other writer's, created the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct Created;

/// The end of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Suffix {
    /// The last bytes; fewer than requested if the object is shorter.
    pub bytes: Bytes,
    /// Length of the whole object in bytes.
    pub size_bytes: u64,
}

/// One object in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedObject {
    /// Key relative to the store's prefix.
    pub key: String,
    /// Length in bytes.
    pub size_bytes: u64,
    /// Time at which the store completed the write, by the store's clock.
    pub last_modified: SystemTime,
}

/// Consecutive entries of a list, in ascending byte order of their keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The entries.
    pub entries: Vec<ListedObject>,
    /// True if more keys follow; continue with `start_after` set to the last entry's key.
    pub more: bool,
    /// Time of the response by the store's clock; `None` if the store does not return it.
    pub now: Option<SystemTime>,
}

impl Page {
    /// Returns the age of an entry of this page by the store's clock. Returns zero if the store's time is
    /// missing or before the entry's: actions that depend on an age then wait.
    #[must_use]
    pub fn age(&self, entry: &ListedObject) -> Duration {
        self.now.and_then(|now| now.duration_since(entry.last_modified).ok()).unwrap_or_default()
    }
}

/// Consecutive folders of a list, in ascending byte order of their names including the `/`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Folders {
    /// Names without prefix and `/`.
    pub names: Vec<String>,
    /// Start of the next page (`from`); `None` if no folder remains.
    pub next: Option<String>,
}

impl Folders {
    /// Returns the key after all keys of a folder and before those of any later one: `0` is the character
    /// after `/`.
    pub fn end_of(prefix: &str, name: &str) -> String {
        format!("{prefix}{name}0")
    }
}

/// A store of immutable objects.
///
/// Methods retry idempotent requests within their own deadline; [`ObjectStore::create`] is sent exactly once.
/// Dropping a future leaves a write's outcome unknown.
#[async_trait]
pub trait ObjectStore: Send + Sync + fmt::Debug {
    /// Reads a whole object of at most `max_bytes`.
    ///
    /// # Errors
    /// [`StoreError::NotFound`]; [`StoreError::TooLarge`] before reading a larger body; otherwise the reason
    /// why the store did not answer.
    async fn get(&self, key: &str, max_bytes: u64) -> Result<Bytes, StoreError>;

    /// Reads exactly the bytes `range` of an object.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] for an empty range; [`StoreError::OutOfRange`] if the object ends before the
    /// range.
    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError>;

    /// Reads the last `len` bytes of an object, or all of a shorter one, and returns its size.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] if `len` is 0; [`StoreError::NotFound`]; or the store did not answer.
    async fn get_suffix(&self, key: &str, len: u64) -> Result<Suffix, StoreError>;

    /// Creates an object if no object has that key: one PUT with `If-None-Match: *`. It is retried only after
    /// a throttling response, which means that nothing was written.
    ///
    /// # Errors
    /// [`CreateError::Exists`]: another object existed (possibly from an earlier attempt of the caller).
    /// [`CreateError::Ambiguous`]: it may or may not have been written; read the key back and compare.
    /// [`CreateError::Failed`]: nothing was written.
    async fn create(&self, key: &str, body: Bytes) -> Result<Created, CreateError>;

    /// Writes a segment, the concatenation of `parts`, under a key that no other writer uses. One part
    /// becomes one PUT, several a multipart upload; parts are created while earlier ones are sent. Idempotent
    /// with the same bytes.
    ///
    /// # Errors
    /// [`SegmentError`]. The first failed part ends the upload.
    async fn put_segment(&self, key: &str, parts: &mut dyn Parts) -> Result<(), SegmentError>;

    /// Lists at most `limit` (and [`MAX_PAGE_ENTRIES`]) keys that begin with `prefix` and sort after
    /// `start_after`.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] if `limit` is 0; otherwise the reason why the store did not answer.
    async fn list(&self, prefix: &str, start_after: Option<&str>, limit: usize) -> Result<Page, StoreError>;

    /// Lists at most `limit` (and [`MAX_PAGE_ENTRIES`]) folders, each once: the parts after `prefix`, up to
    /// the next `/`, of keys that begin with it. Starts at the beginning, or at `from`, the `next` of the
    /// previous page. Skips keys without that `/`. A page may be short or empty although more folders follow,
    /// in which case it has a `next`.
    ///
    /// For a store that cannot group its keys, requests the first key of each folder.
    ///
    /// # Errors
    /// As [`ObjectStore::list`].
    async fn list_folders(
        &self,
        prefix: &str,
        from: Option<&str>,
        limit: usize,
    ) -> Result<Folders, StoreError> {
        let (mut names, mut after) = (Vec::new(), from.map(str::to_owned));
        loop {
            let page = self.list(prefix, after.as_deref(), limit.min(1)).await?;
            let Some(entry) = page.entries.first() else { return Ok(Folders { names, next: None }) };
            let rest = entry.key.strip_prefix(prefix).unwrap_or_default();
            after = Some(match rest.split_once('/') {
                Some((name, _)) => {
                    names.push(name.to_owned());
                    Folders::end_of(prefix, name)
                }
                None => entry.key.clone(),
            });
            if names.len() == limit.min(MAX_PAGE_ENTRIES) {
                return Ok(Folders { names, next: after });
            }
        }
    }

    /// Deletes objects in any order, 1,000 per request; a missing one counts as deleted. Only for keys that
    /// are never created again.
    ///
    /// # Errors
    /// Reason why the store may not have deleted one of them; any of them may be deleted.
    async fn delete(&self, keys: &[&str]) -> Result<(), StoreError>;

    /// Lists unfinished multipart uploads under `prefix`, at least [`MAX_UNFINISHED`] of them if that many
    /// exist. Returns none for a store without multipart uploads.
    ///
    /// # Errors
    /// Reason why the store did not answer.
    async fn unfinished_uploads(&self, prefix: &str) -> Result<Vec<UnfinishedUpload>, StoreError>;

    /// Aborts an upload: the store frees its parts. A missing one counts as aborted. A writer that still
    /// sends parts starts another upload.
    ///
    /// # Errors
    /// Reason why the store did not abort it.
    async fn abort_upload(&self, upload: &UnfinishedUpload) -> Result<(), StoreError>;
}

/// Checks that `key` is valid in every store: relative, no empty, `.` or `..` part, and only
/// `A-Z a-z 0-9 . _ -` between the slashes.
///
/// # Errors
/// [`StoreError::Invalid`] with the violated rule.
pub fn check_key(key: &str) -> Result<(), StoreError> {
    let broken = |rule| StoreError::Invalid { what: "key", value: key.to_owned(), rule };
    if key.is_empty() || key.len() > MAX_KEY_BYTES {
        return Err(broken("use 1 to 512 bytes"));
    }
    if key.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return Err(broken("no part between slashes may be empty, '.' or '..'"));
    }
    if !key.bytes().all(|b| b.is_ascii_alphanumeric() || b"/._-".contains(&b)) {
        return Err(broken("use only A-Z, a-z, 0-9, '.', '_', '-' and '/'"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_is_by_the_clock_of_the_store_alone() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let entry = ListedObject { key: "k".to_owned(), size_bytes: 1, last_modified: at(100) };
        for (now, age) in [(None, 0), (Some(at(99)), 0), (Some(at(100)), 0), (Some(at(160)), 60)] {
            let page = Page { entries: Vec::new(), more: false, now };
            assert_eq!(page.age(&entry), Duration::from_secs(age), "{now:?}");
        }
    }

    #[test]
    fn a_key_is_refused_with_the_rule_it_breaks() {
        for bad in ["", "/a", "a/", "a//b", "a/../b", "a b", "a?b", &"x".repeat(513)] {
            let refused = check_key(bad).expect_err(bad);
            assert!(refused.to_string().starts_with("key "), "{refused}");
        }
        assert!(check_key("volumes/v1/log/00000000000000000001").is_ok());
    }
}
