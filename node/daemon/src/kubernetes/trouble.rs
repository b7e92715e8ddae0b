//! Conditions of a Volume that is served: whether its store answers, whether writes wait.
//!
//! Owns: the words. Each turns after [`LASTING`], and back at once. The first is there while the volume is on the node, the
//! second while its device takes writes; neither says anything of a volume that another writer holds.

use std::time::{Duration, SystemTime};

use holdfast_crds::{Condition, ConditionStatus, Time, condition};
use holdfast_engine::volume::Delay;
use k8s_openapi::jiff::Timestamp;

use super::plan::Facts;
use crate::node::{self, StoreAway, VolumeState};

/// Condition: the object store answers the node.
pub(crate) const STORE_REACHABLE: &str = "StoreReachable";
/// Condition: writes do not wait.
pub(crate) const WRITABLE: &str = "Writable";
/// Shorter trouble is the ordinary course of things.
const LASTING: Duration = Duration::from_secs(5);

/// The conditions of a volume that is here.
pub(crate) fn conditions(facts: &Facts, here: &node::VolumeStatus, now: &Time) -> Vec<Condition> {
    match here.state {
        VolumeState::Fenced => Vec::new(),
        VolumeState::Attaching => vec![store_reachable(facts, here, now)],
        VolumeState::Attached | VolumeState::Detaching => {
            vec![store_reachable(facts, here, now), writable(facts, here, now)]
        }
    }
}

/// Whether a condition may be about to turn.
pub(crate) fn is_near(here: &node::VolumeStatus) -> bool {
    here.store_away.is_some() || here.delayed.is_some()
}

fn store_reachable(facts: &Facts, here: &node::VolumeStatus, now: &Time) -> Condition {
    let store = &here.store_name;
    let lasting = here.store_away.as_ref().filter(|away| {
        let now = SystemTime::from(now.0);
        now.duration_since(away.since).is_ok_and(|passed| passed >= LASTING)
    });
    match lasting {
        None => {
            let message = format!("ObjectStore {store} answers node {}", facts.me);
            make(facts, STORE_REACHABLE, ConditionStatus::True, "Answering", message, now)
        }
        Some(StoreAway { since, error }) => {
            let since = seconds(*since).map_or_else(String::new, |since| format!(" since {}", since.0));
            let waits = match here.dirty_bytes {
                0 => "nothing waits to be uploaded".to_owned(),
                bytes => format!("{bytes} bytes wait to be uploaded"),
            };
            let message = format!(
                "ObjectStore {store} has not answered node {}{since}: {error}; {waits}, requests are tried again until it does",
                facts.me
            );
            make(facts, STORE_REACHABLE, ConditionStatus::False, "StoreAway", message, now)
        }
    }
}

fn writable(facts: &Facts, here: &node::VolumeStatus, now: &Time) -> Condition {
    let Some((delay, _)) = here.delayed.filter(|(_, passed)| *passed >= LASTING) else {
        let message = "writes do not wait";
        return make(facts, WRITABLE, ConditionStatus::True, "Serving", message.to_owned(), now);
    };
    let me = &facts.me;
    let bytes = here.dirty_bytes;
    let (reason, why) = match delay {
        Delay::DirtyLimit => (
            "DirtyLimit",
            format!("the volume has {bytes} bytes to upload, as many as data.most_dirty allows"),
        ),
        Delay::CacheFull => (
            "CacheFull",
            format!(
                "the cache of node {me} is full (data.cache_size, or its disk), and {bytes} bytes of the volume are still to be uploaded"
            ),
        ),
        Delay::DiskFull => {
            ("LocalDiskFull", format!("the disk under node.state_dir of node {me} is full: make room on it"))
        }
    };
    make(facts, WRITABLE, ConditionStatus::False, reason, format!("writes wait, none fails: {why}"), now)
}

fn make(
    facts: &Facts,
    type_: &str,
    status: ConditionStatus,
    reason: &str,
    message: String,
    now: &Time,
) -> Condition {
    condition(&facts.status.conditions, type_, status, reason, message, facts.generation, now)
}

/// A time as the API server keeps it: whole seconds, never later than it was.
pub(crate) fn seconds(time: SystemTime) -> Option<Time> {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    Timestamp::from_second(i64::try_from(since.as_secs()).ok()?).ok().map(Time)
}
