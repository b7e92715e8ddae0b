//! The interface of an object store.
//!
//! Keys are `/`-separated paths relative to the store's own prefix. Every object is written once and never
//! changed; creating a key once is the compare-and-swap that everything else rests on.

use std::{
    fmt,
    ops::Range,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use bytes::Bytes;

use crate::{CreateError, Parts, SegmentError, StoreError};

/// The longest key that [`check_key`] lets pass, in bytes. S3 allows 1024 for prefix and key together; see
/// <https://docs.aws.amazon.com/AmazonS3/latest/userguide/object-keys.html>.
pub const MAX_KEY_BYTES: usize = 512;

/// The most entries one page of a list holds, whatever was asked for (S3's own limit).
pub const MAX_PAGE_ENTRIES: usize = 1000;

/// The most unfinished uploads that are listed at once; the others come after these.
pub const MAX_UNFINISHED: usize = 10_000;

/// A multipart upload that was begun, and neither completed nor aborted: its parts are paid for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnfinishedUpload {
    /// Key relative to the store's prefix that its object would have.
    pub key: String,
    /// The store's name of it.
    pub id: String,
    /// Time since its beginning, both by the store's clock; zero if the store does not say one of the times.
    pub age: Duration,
}

/// Proof that this create-once PUT, and no other writer's, made the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct Created;

/// The end of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Suffix {
    /// The last bytes; fewer than asked for if the object is shorter.
    pub bytes: Bytes,
    /// Length of the whole object in bytes.
    pub size_bytes: u64,
}

/// One object in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Key relative to the store's prefix.
    pub key: String,
    /// Length in bytes.
    pub size_bytes: u64,
    /// Time at which the store finished writing it, by the store's clock.
    pub last_modified: SystemTime,
}

/// Consecutive entries of a list, ascending by the bytes of their keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The entries.
    pub entries: Vec<Entry>,
    /// True if keys remain after the last entry; continue with `start_after` set to that entry's key.
    pub more: bool,
    /// Time of the answer by the store's clock; none if the store does not say it.
    pub now: Option<SystemTime>,
}

impl Page {
    /// Age of an entry of this page: both times are the store's. Zero if the store does not say the time, or
    /// says one before the entry's: what depends on an age waits.
    #[must_use]
    pub fn age(&self, entry: &Entry) -> Duration {
        self.now.and_then(|now| now.duration_since(entry.last_modified).ok()).unwrap_or_default()
    }
}

/// Consecutive folders of a list, ascending by the bytes of their names with the `/` behind them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Folders {
    /// Their names, without prefix and `/`.
    pub names: Vec<String>,
    /// Beginning of the next page (`from`); none if no folder remains.
    pub next: Option<String>,
}

impl Folders {
    /// The key behind all keys of a folder, and before those of any later one: `0` is the character after
    /// `/`.
    pub fn end_of(prefix: &str, name: &str) -> String {
        format!("{prefix}{name}0")
    }
}

/// A place that keeps immutable objects.
///
/// Methods retry inside their own deadline where repeating is harmless; [`ObjectStore::create`] is sent
/// exactly once. Dropping a future leaves a write's outcome unknown.
#[async_trait]
pub trait ObjectStore: Send + Sync + fmt::Debug {
    /// Reads a whole object of at most `max_bytes`.
    ///
    /// # Errors
    /// [`StoreError::NotFound`]; [`StoreError::TooLarge`] before any of a larger body is kept; else why the
    /// store did not answer.
    async fn get(&self, key: &str, max_bytes: u64) -> Result<Bytes, StoreError>;

    /// Reads exactly the bytes `range` of an object.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] for an empty range; [`StoreError::OutOfRange`] if the object ends before the
    /// range does.
    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError>;

    /// Reads the last `len` bytes of an object, or all of a shorter one, and learns its size.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] if `len` is 0; [`StoreError::NotFound`]; else why the store did not answer.
    async fn get_suffix(&self, key: &str, len: u64) -> Result<Suffix, StoreError>;

    /// Creates an object if no object has that key: one PUT with `If-None-Match: *`. It is sent
    /// again only after an answer that nothing was written because there are too many requests.
    ///
    /// # Errors
    /// [`CreateError::Exists`]: another object was there (perhaps by an earlier attempt of the caller's own).
    /// [`CreateError::Ambiguous`]: it may or may not have been written; read the key back and compare.
    /// [`CreateError::Failed`]: nothing was written.
    async fn create(&self, key: &str, body: Bytes) -> Result<Created, CreateError>;

    /// Writes a segment, the concatenation of `parts`, under a key that no other writer uses. One part is one
    /// PUT, several are a multipart upload; parts are made while earlier ones are sent. Safe to repeat with
    /// the same bytes.
    ///
    /// # Errors
    /// [`SegmentError`]. The first part that fails ends the upload.
    async fn put_segment(&self, key: &str, parts: &mut dyn Parts) -> Result<(), SegmentError>;

    /// Lists at most `limit` (and [`MAX_PAGE_ENTRIES`]) keys that begin with `prefix` and sort after
    /// `start_after`.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] if `limit` is 0; else why the store did not answer.
    async fn list(&self, prefix: &str, start_after: Option<&str>, limit: usize) -> Result<Page, StoreError>;

    /// Lists at most `limit` (and [`MAX_PAGE_ENTRIES`]) folders: the parts behind `prefix`, up to the next
    /// `/`, of keys that begin with it, each once, from the beginning or `from` the `next` of the page
    /// before. Keys without that `/` are passed over. A page may have fewer than there are, also none; `next`
    /// says if any remain.
    ///
    /// A store that cannot group its keys is asked for each folder's first key.
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

    /// Deletes objects, in any order, 1,000 with a request; one that is not there counts as deleted. Only for
    /// keys that are never created again.
    ///
    /// # Errors
    /// The reason for which the store did not delete one of them; any of them may be gone.
    async fn delete(&self, keys: &[&str]) -> Result<(), StoreError>;

    /// Lists multipart uploads under `prefix` that were begun and neither completed nor aborted, at least
    /// [`MAX_UNFINISHED`] of them if there are as many. A store that makes no object of parts has none.
    ///
    /// # Errors
    /// The reason for which the store did not answer.
    async fn unfinished_uploads(&self, _prefix: &str) -> Result<Vec<UnfinishedUpload>, StoreError> {
        Ok(Vec::new())
    }

    /// Aborts an upload: the store frees its parts. One that is gone counts as aborted. Its writer, if it
    /// still sends parts, begins another one.
    ///
    /// # Errors
    /// The reason for which the store did not abort it.
    async fn abort_upload(&self, _upload: &UnfinishedUpload) -> Result<(), StoreError> {
        Ok(())
    }
}

/// Checks that `key` can name an object in every store: relative, no empty, `.` or `..` part, and only
/// `A-Z a-z 0-9 . _ -` between the slashes.
///
/// # Errors
/// [`StoreError::Invalid`] with the rule that is broken.
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
        let entry = Entry { key: "k".to_owned(), size_bytes: 1, last_modified: at(100) };
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
