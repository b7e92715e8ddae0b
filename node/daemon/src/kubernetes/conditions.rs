//! Conditions of a served Volume: reachability of its store, blocked writes, readability of its local data,
//! failed syncs of the local disk.
//!
//! Owns: reasons and messages. A condition becomes False after [`REPORT_AFTER`] and True at once;
//! `LocalDiskHealthy` becomes False at once after a failed sync, and True with the next attach.
//! `StoreReachable` exists while the volume is on the node, the others while its device accepts writes; a
//! volume owned by another writer has none. After a restart of the daemon, `StoreReachable` keeps its value
//! until the store responds.

use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use holdfast_crds::{
    ANSWERING, CHANGE_REFUSED, Condition, ConditionStatus, DELETES_REFUSED, FORCE_DETACH,
    LOCAL_DATA_READABLE, LOCAL_DISK_HEALTHY, STORE_REACHABLE, Time, WRITABLE, find_condition,
};
use holdfast_engine::event::Errno;
use holdfast_engine::settings::Durability;
use holdfast_engine::volume::{Delay, Unreadable};
use holdfast_memory::MemoryFigures;
use holdfast_objects::{Blocker, ErrorKind};
use holdfast_types::SECTOR_BYTES;
use k8s_openapi::jiff::Timestamp;

use super::facts::NodeFacts;
use crate::node::{self, StoreHealth, StoreOutage, VolumeState};

/// Reason of `Attached`: the volume is being detached.
pub(crate) const DETACHING: &str = "Detaching";
/// Reason: no device serves the volume, because an attach failed halfway, or another program removed it. Of a
/// memory volume only the latter.
pub(super) const UNSERVED: &str = "Unserved";
/// Shorter faults are not reported.
const REPORT_AFTER: Duration = Duration::from_secs(5);

/// Returns the conditions of a volume that is on this node.
pub(crate) fn of(facts: &NodeFacts, here: &node::NodeVolumeStatus, now: &Time) -> Vec<Condition> {
    if facts.spec.is_memory() {
        return here.memory.iter().map(|memory| memory_writable(facts, memory, now)).collect();
    }
    match here.state {
        VolumeState::Fenced => Vec::new(),
        VolumeState::Attaching | VolumeState::Recovering | VolumeState::Quiesced | VolumeState::Unserved => {
            store_reachable(facts, here, now).into_iter().collect()
        }
        VolumeState::Attached | VolumeState::Detaching => {
            let own = [
                writable(facts, here, now),
                local_data_readable(facts, here, now),
                local_disk_healthy(facts, here, now),
            ];
            store_reachable(facts, here, now).into_iter().chain(own).collect()
        }
    }
}

fn local_data_readable(facts: &NodeFacts, here: &node::NodeVolumeStatus, now: &Time) -> Condition {
    let found =
        here.disk.unreadable.map(|lost| (lost, UNIX_EPOCH + Duration::from_millis(lost.since_unix_ms)));
    let lasting = found.filter(|(_, since)| {
        SystemTime::from(now.0).duration_since(*since).is_ok_and(|passed| passed >= REPORT_AFTER)
    });
    let Some((Unreadable { first, bytes, .. }, since)) = lasting else {
        let message = "all data that waits to be uploaded is readable".to_owned();
        return facts.conditions(now).build(LOCAL_DATA_READABLE, ConditionStatus::True, "Reading", message);
    };
    let since = seconds(since).map_or_else(String::new, |since| format!(" since {}", since.0));
    let (at, length) = (first.start.byte_offset(), first.bytes());
    let dirty = here.commit.dirty_bytes.unwrap_or_default();
    let me = &facts.me;
    let remedy = if here.attached.is_some() {
        "Uploads are paused until they are readable, overwritten or discarded".to_owned()
    } else {
        format!(
            "The detach waits until they are readable. Or annotate the Volume with {FORCE_DETACH}={me}: the next \
             node then continues as of the last commit. Set spec.nodeName only if the Volume has no claim. \
             `holdfast-node fenced export` on node {me} exports the unuploaded data, except these bytes"
        )
    };
    let message = format!(
        "the disk of node {me}{since} cannot read {bytes} bytes that exist only there (first: {length} bytes at offset {at}). \
         {remedy}. {dirty} bytes are pending"
    );
    facts.conditions(now).build(LOCAL_DATA_READABLE, ConditionStatus::False, "DirtyUnreadable", message)
}

/// Returns the error with which the local disk has been failing writes of the map or the log record.
fn unkept(here: &node::NodeVolumeStatus) -> Option<Errno> {
    here.disk.unkept.filter(|(_, passed)| *passed >= REPORT_AFTER).map(|(errno, _)| errno)
}

fn local_disk_healthy(facts: &NodeFacts, here: &node::NodeVolumeStatus, now: &Time) -> Condition {
    if let Some(errno) = unkept(here).filter(|errno| *errno != Errno::ENOSPC) {
        let message = format!(
            "the disk under node.state_dir of node {} fails writes of the volume's map or log record ({}). Commits, a detach \
             and first writes of a chunk wait until they succeed. Check the disk and the node's kernel log",
            facts.me,
            io::Error::from_raw_os_error(errno.0)
        );
        return facts.conditions(now).build(
            LOCAL_DISK_HEALTHY,
            ConditionStatus::False,
            "WriteFailed",
            message,
        );
    }
    if !here.disk.sync_failed {
        let message = "no sync of the local disk failed since the volume was attached".to_owned();
        return facts.conditions(now).build(LOCAL_DISK_HEALTHY, ConditionStatus::True, "Synced", message);
    }
    let message = format!(
        "the disk of node {} failed a sync: the flush failed, and the data that it covered may be lost in a \
         power cut. Earlier successful flushes are not affected. Until the next attach, every flush waits \
         for an upload. Check the node's kernel log, then detach the volume and attach it again, on another node \
         if the disk is bad",
        facts.me
    );
    facts.conditions(now).build(LOCAL_DISK_HEALTHY, ConditionStatus::False, "SyncFailed", message)
}

/// Returns true if a condition may be about to change.
pub(crate) fn is_near(here: &node::NodeVolumeStatus) -> bool {
    let node::NodeVolumeStatus { store, delays, disk, .. } = here;
    let waits = delays.writes.is_some() || disk.unreadable.is_some() || disk.unkept.is_some();
    waits || store.health.unreachable().is_some()
}

fn store_reachable(facts: &NodeFacts, here: &node::NodeVolumeStatus, now: &Time) -> Option<Condition> {
    let store = &here.store.name;
    let said = find_condition(&facts.status.conditions, STORE_REACHABLE);
    let outage = match &here.store.health {
        StoreHealth::Unknown => return said.cloned(),
        StoreHealth::Answers => None,
        StoreHealth::Unreachable(outage) => {
            let passed = SystemTime::from(now.0).duration_since(outage.since);
            let is_lasting = passed.is_ok_and(|passed| passed >= REPORT_AFTER);
            (is_lasting || said.is_some_and(|said| said.status == "False")).then_some(outage)
        }
    };
    Some(match outage {
        None => {
            let answers = format!("ObjectStore {store} is reachable from node {}", facts.me);
            let (reason, message) = match (&here.store.change_refused, &here.store.refused_deletes.newest) {
                (Some(why), _) => (CHANGE_REFUSED, format!("{answers} with its former configuration. {why}")),
                (None, Some(why)) => (DELETES_REFUSED, format!("{answers}. {}", deletes_refused(why))),
                (None, None) => (ANSWERING, answers),
            };
            facts.conditions(now).build(STORE_REACHABLE, ConditionStatus::True, reason, message)
        }
        Some(outage) => {
            let reason = reason(outage.kind);
            let mut message = waits_for_store(facts, here, outage);
            if let Some(why) = &here.store.change_refused {
                message = format!("{message}. Its newest configuration is not in use: {why}");
            }
            facts.conditions(now).build(STORE_REACHABLE, ConditionStatus::False, reason, message)
        }
    })
}

/// Returns the condition's reason for a store that does not serve the volume.
fn reason(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Denied => "AccessDenied",
        ErrorKind::Blocked(blocker) => blocker.reason(),
        ErrorKind::Throttled => "Throttled",
        ErrorKind::Conflict => "BucketBusy",
        ErrorKind::Invalid => "RequestRefused",
        ErrorKind::NotFound
        | ErrorKind::Unavailable
        | ErrorKind::Corrupt
        | ErrorKind::Ambiguous
        | ErrorKind::Exists => "StoreUnreachable",
    }
}

fn deletes_refused(why: &str) -> String {
    format!(
        "It denies deletes ({why}): nothing is lost, but old log records and checkpoints stay in the bucket and \
         are billed. Allow `s3:DeleteObject` in the bucket's policy or the role"
    )
}

/// Returns the action that gives the store valid credentials.
fn denied(facts: &NodeFacts) -> String {
    match &facts.secret {
        Some(secret) => format!(
            "Put valid credentials into Secret {secret}, or allow the requests in the bucket's policy: they are used within 90 \
             seconds, without a detach"
        ),
        None => {
            "Correct the role or the environment of the node daemon's pod, or the bucket's policy".to_owned()
        }
    }
}

fn waits_for_store(facts: &NodeFacts, here: &node::NodeVolumeStatus, outage: &StoreOutage) -> String {
    let since = seconds(outage.since).map_or_else(String::new, |since| format!(" since {}", since.0));
    let waits = match (here.commit.dirty_bytes, here.durability) {
        (None, _) => "The amount of data that waits to be uploaded is not known yet".to_owned(),
        (Some(0), _) => "Nothing waits to be uploaded".to_owned(),
        (Some(bytes), None | Some(Durability::Local)) => format!("{bytes} bytes wait to be uploaded"),
        (Some(bytes), Some(Durability::Object)) => {
            format!("{bytes} bytes wait to be uploaded, and flushes for them")
        }
    };
    let (store, me, error) = (&here.store.name, &facts.me, &outage.error);
    match outage.kind {
        ErrorKind::Denied => format!(
            "ObjectStore {store} denies the requests of node {me}{since}. {waits}; reads of data that is not on the node wait. {}. \
             Last error: {error}",
            denied(facts)
        ),
        ErrorKind::Blocked(Blocker::Archived) => format!(
            "ObjectStore {store} has archived an object that node {me} needs{since}. Reads of it wait, and none fails; they \
             continue within 10 seconds once it is restored. {waits}. Last error: {error}"
        ),
        ErrorKind::Blocked(_) | ErrorKind::Throttled | ErrorKind::Conflict | ErrorKind::Invalid => format!(
            "ObjectStore {store} answers, but does not serve all requests of node {me}{since}. {waits}; nothing \
             is lost, and waiting requests continue within 30 seconds once the cause is fixed, without a detach. \
             Last error: {error}"
        ),
        ErrorKind::NotFound
        | ErrorKind::Unavailable
        | ErrorKind::Corrupt
        | ErrorKind::Ambiguous
        | ErrorKind::Exists => format!(
            "ObjectStore {store} has served no request of node {me}{since}. {waits}; reads of data that is not on the node wait. \
             Uploads resume automatically once the store is reachable. Last error: {error}"
        ),
    }
}

fn writable(facts: &NodeFacts, here: &node::NodeVolumeStatus, now: &Time) -> Condition {
    let Some((delay, _)) = here.delays.writes.filter(|(_, passed)| *passed >= REPORT_AFTER) else {
        if unkept(here) == Some(Errno::ENOSPC) {
            let message = format!(
                "commits, a detach, and flushes that need a commit wait: the disk under node.state_dir of node \
                 {} is full: free space on it",
                facts.me
            );
            return facts.conditions(now).build(WRITABLE, ConditionStatus::False, "LocalDiskFull", message);
        }
        let message = "writes do not wait";
        return facts.conditions(now).build(WRITABLE, ConditionStatus::True, "Serving", message.to_owned());
    };
    let me = &facts.me;
    let bytes = here.commit.dirty_bytes.unwrap_or_default();
    let (reason, why) = match delay {
        Delay::DirtyLimit => (
            "DirtyLimit",
            format!(
                "the volume has {bytes} bytes to upload, and data.max_dirty allows no more. Writes resume as these are \
                 uploaded. If that is too slow, raise data.max_dirty or check ObjectStore {}",
                here.store.name
            ),
        ),
        Delay::CacheFull => (
            "CacheFull",
            format!(
                "the cache of node {me} is full (data.cache_size, or its disk), and {bytes} bytes of the volume \
                 are still to be uploaded. Writes resume when space is free. Enlarge data.cache_size or the \
                 disk, or move volumes to other nodes"
            ),
        ),
        Delay::Unreadable => (
            "DirtyUnreadable",
            format!(
                "the disk of node {me} cannot read data that must be uploaded next (LocalDataReadable), and \
                 {bytes} bytes wait"
            ),
        ),
        Delay::RunDirFull => (
            "RunDirectoryFull",
            format!(
                "the tmpfs of node.run_dir on node {me} is full. Detaches still work. Remove other files from \
                 it, or enlarge it (mount -o remount,size=...)"
            ),
        ),
        Delay::DiskFull => {
            ("LocalDiskFull", format!("the disk under node.state_dir of node {me} is full: free space on it"))
        }
    };
    facts.conditions(now).build(
        WRITABLE,
        ConditionStatus::False,
        reason,
        format!("writes wait, none fails: {why}"),
    )
}

/// Reports whether a memory volume has memory for new content.
fn memory_writable(facts: &NodeFacts, memory: &MemoryFigures, now: &Time) -> Condition {
    let [spilled_bytes, spill_limit_bytes] =
        [memory.spilled_pages, memory.spill_limit_pages].map(|pages| pages * SECTOR_BYTES);
    let is_at_limit = memory.slab_bytes >= memory.limit_bytes && spilled_bytes >= spill_limit_bytes;
    let pages = memory.refused_pages;
    if !is_at_limit || pages == 0 {
        // Only the next write shows whether the run directory or the disk is still full.
        let message = match (pages, spilled_bytes, spill_limit_bytes) {
            (0, 0, _) => "writes do not wait".to_owned(),
            (0, 1.., _) => format!(
                "writes do not wait; {spilled_bytes} bytes (limit {spill_limit_bytes}) are spilled to the disk of node {}",
                facts.me
            ),
            (1.., _, 0) => format!(
                "writes do not wait; since the attach {pages} pages were not written (ENOSPC), because the volume was at its limit \
                 or the run directory of the node was full"
            ),
            (1.., _, 1..) => format!(
                "writes do not wait; since the attach {pages} pages were not written (ENOSPC): memory was full, \
                 and the spill file was at its limit or the disk of the node was full"
            ),
        };
        return facts.conditions(now).build(WRITABLE, ConditionStatus::True, "Serving", message);
    }
    let (of_disk, or_more) = match spill_limit_bytes {
        0 => (String::new(), ""),
        1.. => (format!(" and all {spill_limit_bytes} bytes of the node's disk"), " or spec.memory.spill"),
    };
    let message = format!(
        "writes fail with ENOSPC: the content uses all {} bytes of memory{of_disk} that the volume may use, and \
         {pages} pages were not written. Raise spec.memory.limit{or_more}, or delete files and trim the file \
         system",
        memory.limit_bytes
    );
    facts.conditions(now).build(WRITABLE, ConditionStatus::False, "MemoryFull", message)
}

/// Converts a time to the API server's precision: whole seconds, rounded down.
pub(crate) fn seconds(time: SystemTime) -> Option<Time> {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    Timestamp::from_second(i64::try_from(since.as_secs()).ok()?).ok().map(Time)
}
