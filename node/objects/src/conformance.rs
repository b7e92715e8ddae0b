//! Requirements of every store: a list of named cases that run against any [`ObjectStore`].
//!
//! Each case uses its own keys, so that cases can run in parallel in one bucket, and deletes its objects. A
//! case returns the violated requirement; it never panics.

mod create;
mod list;
mod read;
mod segment;

use std::{fmt, future::Future, pin::Pin, sync::Arc};

use bytes::Bytes;

use crate::ObjectStore;

/// The store under test, and the key range for the cases.
#[derive(Debug, Clone)]
pub struct StoreUnderTest {
    /// The store.
    pub store: Arc<dyn ObjectStore>,
    /// A prefix without trailing `/`, for exclusive use; each case adds its name.
    pub scope: String,
    /// Length of a segment that the store uploads in several requests, in bytes.
    pub large_bytes: usize,
}

/// A requirement that the store violated.
#[derive(Debug)]
pub struct ConformanceViolation(String);

impl fmt::Display for ConformanceViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ConformanceViolation {}

type PendingVerdict<'a> = Pin<Box<dyn Future<Output = Result<(), ConformanceViolation>> + Send + 'a>>;

/// One requirement of every store.
#[derive(Debug, Clone, Copy)]
pub struct ConformanceCase {
    /// The requirement as a kebab-case phrase.
    pub name: &'static str,
    check: for<'a> fn(&'a StoreUnderTest) -> PendingVerdict<'a>,
}

/// All requirements.
pub const CASES: &[ConformanceCase] = &[
    ConformanceCase { name: "create-then-read", check: |subject| Box::pin(create::then_read(subject)) },
    ConformanceCase { name: "second-create-loses", check: |subject| Box::pin(create::second_loses(subject)) },
    ConformanceCase {
        name: "one-of-many-creates-wins",
        check: |subject| Box::pin(create::one_of_many_wins(subject)),
    },
    ConformanceCase { name: "bad-keys-are-refused", check: |subject| Box::pin(create::bad_keys(subject)) },
    ConformanceCase { name: "missing-is-not-found", check: |subject| Box::pin(read::missing(subject)) },
    ConformanceCase { name: "get-is-bounded", check: |subject| Box::pin(read::bounded(subject)) },
    ConformanceCase { name: "ranges-are-exact", check: |subject| Box::pin(read::ranges(subject)) },
    ConformanceCase { name: "suffixes-know-the-size", check: |subject| Box::pin(read::suffixes(subject)) },
    ConformanceCase { name: "lists-are-ordered-pages", check: |subject| Box::pin(list::pages(subject)) },
    ConformanceCase {
        name: "lists-start-after-any-key",
        check: |subject| Box::pin(list::start_after(subject)),
    },
    ConformanceCase { name: "lists-of-folders", check: |subject| Box::pin(list::folders(subject)) },
    ConformanceCase {
        name: "lists-see-creates-and-deletes",
        check: |subject| Box::pin(list::fresh(subject)),
    },
    ConformanceCase { name: "delete-of-many", check: |subject| Box::pin(list::delete_many(subject)) },
    ConformanceCase { name: "delete-is-repeatable", check: |subject| Box::pin(list::delete_twice(subject)) },
    ConformanceCase { name: "segment-in-one-request", check: |subject| Box::pin(segment::small(subject)) },
    ConformanceCase { name: "segment-in-parts", check: |subject| Box::pin(segment::large(subject)) },
];

impl ConformanceCase {
    /// Runs the case in its own part of `subject.scope`.
    ///
    /// # Errors
    /// The violated requirement, with the case's name.
    pub async fn run(&self, subject: &StoreUnderTest) -> Result<(), ConformanceViolation> {
        let own = StoreUnderTest { scope: format!("{}/{}", subject.scope, self.name), ..subject.clone() };
        let verdict = (self.check)(&own).await;
        let swept = own.sweep().await;
        verdict.and(swept).map_err(|violation| ConformanceViolation(format!("{}: {violation}", self.name)))
    }
}

/// Runs every case sequentially.
///
/// # Errors
/// All violated requirements, one line per case.
pub async fn run_all(subject: &StoreUnderTest) -> Result<(), ConformanceViolation> {
    let mut wrong = Vec::new();
    for case in CASES {
        if let Err(violation) = case.run(subject).await {
            wrong.push(violation.0);
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(ConformanceViolation(wrong.join("\n"))) }
}

impl StoreUnderTest {
    fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.scope)
    }

    async fn must_create(&self, key: &str, body: Bytes) -> Result<(), ConformanceViolation> {
        match self.store.create(key, body).await {
            Ok(_created) => Ok(()),
            Err(error) => Err(ConformanceViolation(format!("creating {key}: {}", chain(&error)))),
        }
    }

    /// Deletes everything under the scope.
    async fn sweep(&self) -> Result<(), ConformanceViolation> {
        let prefix = format!("{}/", self.scope);
        loop {
            let page = self.store.list(&prefix, None, 1000).await.map_err(during("sweeping"))?;
            for entry in &page.entries {
                self.store.delete(&[&entry.key]).await.map_err(during("sweeping"))?;
            }
            if !page.more {
                return Ok(());
            }
        }
    }
}

/// Names the operation during which the store failed.
fn during<E: std::error::Error + 'static>(what: &str) -> impl FnOnce(E) -> ConformanceViolation {
    move |error| ConformanceViolation(format!("{what}: {}", chain(&error)))
}

/// Formats an error with its causes.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut at = error.source();
    while let Some(cause) = at {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        at = cause.source();
    }
    text
}

/// Returns bytes that reveal mixed-up offsets.
fn pattern(len: usize) -> Bytes {
    (0..len).map(|at| ((at * 31) ^ (at >> 8) ^ (at >> 16)) as u8).collect::<Vec<u8>>().into()
}

/// Ends the case with a violation unless the condition holds.
macro_rules! must {
    ($holds:expr, $($text:tt)+) => {
        if !$holds {
            return Err($crate::conformance::ConformanceViolation(format!($($text)+)));
        }
    };
}
use must;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Fault, Gate, MemoryStore, Verb};

    fn subject(store: &MemoryStore) -> StoreUnderTest {
        StoreUnderTest {
            store: Arc::new(store.clone()),
            scope: "conformance".to_owned(),
            large_bytes: 1 << 20,
        }
    }

    #[tokio::test]
    async fn the_reference_store_passes_and_nothing_is_left() {
        let store = MemoryStore::new();
        run_all(&subject(&store)).await.unwrap_or_else(|wrong| panic!("{wrong}"));
        assert_eq!(store.keys(), Vec::<String>::new());
    }

    /// Sequential creates work on such a store.
    #[tokio::test]
    async fn a_store_without_atomic_creates_breaks_one_case() {
        let (store, gate) = (MemoryStore::new(), Gate::new());
        store.fail_always(Verb::Put, Fault::HoldChecked(gate.clone()));
        let opens = async {
            loop {
                gate.arrival().await;
                gate.release();
            }
        };
        let subject = subject(&store);
        let wrong = tokio::select! {
            ran = run_all(&subject) => ran.unwrap_err().to_string(),
            () = opens => unreachable!("a loop"),
        };
        assert!(wrong.starts_with("one-of-many-creates-wins: ") && wrong.lines().count() == 1, "{wrong}");
    }
}
