//! The objects of a bucket: each exists from one change until another, so that a LIST can show an older
//! state.

use std::collections::BTreeMap;
use std::time::SystemTime;

use bytes::Bytes;
use holdfast_objects::{ListedObject, Page, StoreError};

#[derive(Clone)]
struct BucketObject {
    body: Bytes,
    /// Number of changes by earlier requests when it was created.
    created_at: u64,
    /// The same for its deletion.
    deleted_at: Option<u64>,
}

/// All objects, including deleted ones.
#[derive(Clone, Default)]
pub(super) struct BucketObjects {
    objects: BTreeMap<String, BucketObject>,
    changes: u64,
}

impl BucketObjects {
    pub(super) fn get(&self, key: &str) -> Result<&Bytes, StoreError> {
        let found = self.objects.get(key).filter(|object| object.deleted_at.is_none());
        found.map(|object| &object.body).ok_or_else(|| StoreError::NotFound { key: key.to_owned() })
    }

    /// Returns an object even if it was deleted.
    pub(super) fn get_past(&self, key: &str) -> Option<&Bytes> {
        self.objects.get(key).map(|object| &object.body)
    }

    /// Returns the number of changes before the object of this key was created; `None` if it does not exist.
    pub(super) fn created_at(&self, key: &str) -> Option<u64> {
        self.objects.get(key).filter(|object| object.deleted_at.is_none()).map(|object| object.created_at)
    }

    /// Returns a LIST of the state `lag` changes ago.
    pub(super) fn list(&self, prefix: &str, start_after: Option<&str>, limit: usize, lag: u64) -> Page {
        // No decision here depends on an age: each object is as old as the store.
        let now = Some(SystemTime::UNIX_EPOCH);
        let as_of = self.changes.saturating_sub(lag);
        let from = start_after.filter(|after| *after > prefix).unwrap_or(prefix).to_owned();
        let mut entries: Vec<ListedObject> = Vec::new();
        for (key, object) in self.objects.range(from..).take_while(|(key, _)| key.starts_with(prefix)) {
            let exists =
                object.created_at <= as_of && object.deleted_at.is_none_or(|deleted_at| deleted_at > as_of);
            if !exists || start_after == Some(key) {
                continue;
            }
            if entries.len() == limit {
                return Page { entries, more: true, now };
            }
            let size_bytes = object.body.len() as u64;
            entries.push(ListedObject {
                key: key.clone(),
                size_bytes,
                last_modified: SystemTime::UNIX_EPOCH,
            });
        }
        Page { entries, more: false, now }
    }

    pub(super) fn insert(&mut self, key: &str, body: Bytes) {
        self.changes += 1;
        self.objects
            .insert(key.to_owned(), BucketObject { body, created_at: self.changes, deleted_at: None });
    }

    /// Deletes an object. Returns true if it existed.
    pub(super) fn delete(&mut self, key: &str) -> bool {
        self.changes += 1;
        let found = self.objects.get_mut(key).filter(|object| object.deleted_at.is_none());
        found.map(|object| object.deleted_at = Some(self.changes)).is_some()
    }

    /// Replaces the object `key` by `body`, or deletes it. Returns the previous body.
    pub(super) fn replace(&mut self, key: &str, body: Option<Bytes>) -> Option<Bytes> {
        let previous = self.get(key).ok().cloned();
        match body {
            Some(body) => self.insert(key, body),
            None => drop(self.objects.remove(key)),
        }
        previous
    }

    /// Returns all objects under `prefix`, in the order of their keys.
    pub(super) fn under<'a>(&'a self, prefix: &str) -> impl Iterator<Item = (&'a str, &'a Bytes)> + use<'a> {
        let (from, prefix) = (prefix.to_owned(), prefix.to_owned());
        let in_prefix = self.objects.range(from..).take_while(move |(key, _)| key.starts_with(&prefix));
        let found = in_prefix.filter(|(_, object)| object.deleted_at.is_none());
        found.map(|(key, object)| (key.as_str(), &object.body))
    }
}
