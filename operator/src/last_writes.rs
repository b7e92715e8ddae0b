//! Versions of the objects this operator wrote last, which its watch caches may not show yet.
//!
//! A plan made from an outdated version repeats earlier steps, and its own write then fails.

use std::collections::HashMap;
use std::time::Duration;

use kube::{Resource, ResourceExt};
use parking_lot::Mutex;
use tokio::time::Instant;

/// Time after which an unobserved write is forgotten: for a deleted object, the watch shows no newer version.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(10 * 60);

/// Resource version and time of each write that was not observed yet, by the object's uid.
#[derive(Debug, Default)]
pub(crate) struct LastWrites(Mutex<HashMap<String, (u64, Instant)>>);

impl LastWrites {
    /// Records the API server's answer to a write.
    pub(crate) fn note(&self, object: &impl Resource) {
        let (Some(uid), Some(version)) = (object.uid(), version(object)) else { return };
        let now = Instant::now();
        let mut written = self.0.lock();
        written.retain(|_, (_, at)| now.duration_since(*at) < FORGOTTEN_AFTER);
        written.insert(uid, (version, now));
    }

    /// Returns true if `object` is older than the last write: the watch will show the newer version.
    pub(crate) fn is_old(&self, object: &impl Resource) -> bool {
        let (Some(uid), Some(seen)) = (object.uid(), version(object)) else { return false };
        let mut written = self.0.lock();
        // A restored etcd may show older versions without end.
        let counts = |at: &Instant| Instant::now().duration_since(*at) < FORGOTTEN_AFTER;
        let is_old = written.get(&uid).is_some_and(|(written, at)| seen < *written && counts(at));
        if !is_old {
            written.remove(&uid);
        }
        is_old
    }
}

/// An API server over etcd orders the versions of one kind of objects; other servers guarantee nothing.
fn version(object: &impl Resource) -> Option<u64> {
    object.resource_version()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use holdfast_crds::Volume;
    use k8s_openapi::jiff::Timestamp;

    use super::*;

    fn volume(version: &str) -> Volume {
        let spec = serde_json::json!({ "size": "1Gi", "objectStore": "main" });
        let mut volume = Volume::new("data", serde_json::from_value(spec).expect("a spec"));
        volume.metadata.uid = Some("uid".to_owned());
        volume.metadata.resource_version = Some(version.to_owned());
        volume
    }

    /// Regression: a volume was created with two PUTs, because the second plan did not see the first write.
    #[test]
    fn an_object_is_old_until_the_last_write_of_it_is_seen() {
        let writes = LastWrites::default();
        assert!(!writes.is_old(&volume("7")));
        writes.note(&volume("9"));
        assert!(writes.is_old(&volume("8")));
        assert!(!writes.is_old(&volume("10")));
        assert!(!writes.is_old(&volume("8")), "a write that was seen is forgotten: the watch began again");
        writes.note(&volume("none"));
        assert!(!writes.is_old(&volume("8")), "nothing is known");
    }

    /// Found by review: after a restore of etcd, the watch shows older versions without end, and nothing else
    /// had to be written.
    #[tokio::test(start_paused = true)]
    async fn an_old_write_is_forgotten_without_another_write() {
        let writes = LastWrites::default();
        writes.note(&volume("11"));
        assert!(writes.is_old(&volume("10")));
        tokio::time::advance(FORGOTTEN_AFTER).await;
        assert!(!writes.is_old(&volume("10")));
    }

    /// Found by review: the plan of a deletion was made again from the object before its finalizer was
    /// removed.
    #[tokio::test(start_paused = true)]
    async fn an_object_that_is_gone_is_old_until_it_is_forgotten() {
        let writes = LastWrites::default();
        let mut gone = volume("11");
        gone.metadata.deletion_timestamp = Some(holdfast_crds::Time(Timestamp::now()));
        writes.note(&gone);
        assert!(writes.is_old(&volume("10")));
        tokio::time::advance(FORGOTTEN_AFTER).await;
        let mut other = volume("12");
        other.metadata.uid = Some("other".to_owned());
        writes.note(&other);
        assert!(!writes.is_old(&volume("10")));
    }
}
