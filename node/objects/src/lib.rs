//! Object-store vocabulary, retry policy, reference store and conformance suite.
//!
//! Owns: the [`ObjectStore`] trait and the meaning of its results, the errors and their kinds, the retry
//! policy, the request counters. Also the in-memory reference store with its faults, and the conformance
//! suite for every store.
//! Does not own: object names (`holdfast_types::key`), network protocols, volume policies.
//! Invariants: objects are immutable; the only conditional request is a create-once PUT.

mod blocker;
pub mod conformance;
mod error;
mod fault;
mod memory;
mod parts;
mod requests;
mod retry;
mod store;

pub use blocker::Blocker;
pub use error::{Cause, CreateError, ErrorKind, StoreError};
pub use fault::{Fault, Gate};
pub use memory::MemoryStore;
pub use parts::{MAX_PARTS, Part, PartFailed, Parts, ReadyParts, SegmentError, collect, part_length};
pub use requests::{MeteredAttempt, RequestCounts, RequestMeter, StoreTraffic, Verb, VerbMeter, metered};
pub use retry::{Decision, RetryPolicy};
pub use store::{
    Created, Folders, ListedObject, MAX_KEY_BYTES, MAX_PAGE_ENTRIES, MAX_UNFINISHED, ObjectStore, Page,
    Suffix, UnfinishedUpload, check_key,
};
