//! Reports of a sweep's result: status and events.

use holdfast_crds::{FORCE_DETACH, SkippedVolume, SweepStatus, Time};
use holdfast_log::LogFailure;
use holdfast_log::sweep::{ABORT_RIGHTS, Skipped, SweepReport};
use holdfast_service::chain;
use holdfast_types::VolumeId;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::events::{Event, EventType};

use super::failure::SweepFailed;
use super::trash::TrashReport;

/// Maximum number of volumes named in the status.
const NAMED_VOLUMES: usize = 10;
/// Maximum number of volumes named in an event, whose note is short.
const NOTED_VOLUMES: usize = 3;
/// Maximum length of the reason for a skipped volume, in bytes.
const REASON_BYTES: usize = 256;
/// Action of the events.
const ACTION: &str = "Sweep";

/// Returns the status of a sweep that ended at `now` and left `trashed_volumes` in the trash.
pub(crate) fn status(report: &SweepReport, trashed_volumes: u64, now: Timestamp) -> SweepStatus {
    let SweepReport { volumes, kept, garbage, deleted, oldest, snapshots: _, skipped, uploads: _ } = report;
    let skip = |Skipped { volume, error }: &Skipped| {
        let mut reason = chain(error);
        reason.truncate(reason.floor_char_boundary(REASON_BYTES));
        SkippedVolume { volume_id: volume.to_string(), reason }
    };
    SweepStatus {
        time: Time(now),
        volumes: *volumes,
        kept_bytes: kept.bytes,
        garbage_bytes: garbage.bytes,
        deleted_objects: deleted.objects,
        deleted_bytes: deleted.bytes,
        trashed_volumes,
        oldest_garbage: oldest.and_then(|oldest| Timestamp::try_from(oldest).ok()).map(Time),
        skipped: skipped.iter().take(NAMED_VOLUMES).map(skip).collect(),
    }
}

/// Returns the event about skipped volumes.
pub(crate) fn skipped(report: &SweepReport) -> Option<Event> {
    let named = report.skipped.iter().take(NOTED_VOLUMES);
    let named: Vec<String> =
        named.map(|Skipped { volume, error }| format!("{volume}: {}", chain(error))).collect();
    (!named.is_empty()).then(|| {
        let count = report.skipped.len();
        warning(
            "SweepSkippedVolumes",
            format!(
                "volumes could not be read ({count}). The sweep kept all objects that they may read. Scrub each \
                 on the node that serves it; status.sweep.skipped names them. {}",
                named.join("; ")
            ),
        )
    })
}

/// Returns the event about unfinished uploads that the store did not abort.
pub(crate) fn unfinished(report: &SweepReport) -> Option<Event> {
    report.uploads.failed.as_ref().map(|error| {
        let text = format!(
            "unfinished uploads of killed daemons stay in the bucket and are billed: {}. Everything else was \
             swept; {ABORT_RIGHTS}",
            chain(error)
        );
        warning("UploadsNotAborted", text)
    })
}

/// Returns the event about volumes that left the trash because they are in use.
pub(crate) fn used(trash: &TrashReport) -> Option<Event> {
    let named = trash.used.iter().take(NOTED_VOLUMES).map(VolumeId::as_str);
    let named: Vec<&str> = named.collect();
    (!named.is_empty()).then(|| {
        let count = trash.used.len();
        warning(
            "DeletedVolumesUsed",
            format!(
                "deleted volumes were attached or written after the deletion ({count}), and are not removed. \
                 They have no Volume here: if no other cluster has one, adopt each with spec.volumeID and \
                 spec.source.existing, and delete that. {}",
                named.join(", ")
            ),
        )
    })
}

/// Returns the event about volumes that stay in the trash beyond their time.
pub(crate) fn stuck(store: &str, trash: &TrashReport) -> Option<Event> {
    let named = trash.stuck.iter().take(NOTED_VOLUMES);
    let named: Vec<String> =
        named.map(|(volume, error)| format!("{volume}: {}{}", chain(error), way_out(store, error))).collect();
    (!named.is_empty()).then(|| {
        let count = trash.stuck.len();
        warning(
            "DeletedVolumesKept",
            format!(
                "deleted volumes stay in the trash although their retention has ended ({count}): {}",
                named.join("; ")
            ),
        )
    })
}

/// Returns the steps that get a volume out of the trash, unless its failure already names them.
fn way_out(store: &str, failure: &LogFailure) -> String {
    if let LogFailure::StillAttached { node, .. } = failure {
        // An older version trashed it without checking for a writer.
        format!(
            ". It is removed once the node has detached it. If that node is lost, adopt the volume \
             (spec.volumeID, spec.source.existing), annotate that Volume with {FORCE_DETACH}={node}, then delete \
             it"
        )
    } else if let LogFailure::HasSnapshots { .. } = failure {
        format!(
            ". It is removed once they are deleted: apply the documents that `kubectl holdfast restore {store} \
             --deleted` prints for it, which takes it out of the trash, set deletionPolicy Delete on its \
             VolumeSnapshots and the Volume, then delete them"
        )
    } else {
        String::new()
    }
}

/// Returns the event about a store whose responses carry no time.
pub(crate) fn undated(trash: &TrashReport) -> Option<Event> {
    trash.is_undated.then(|| {
        warning(
            "StoreSaysNoTime",
            "the responses of the store have no valid `Date` header, so the age of its objects is unknown: no \
             volume leaves the trash, no garbage is deleted, and both are billed. Let the server, or the proxy \
             in front of it, send the header"
                .to_owned(),
        )
    })
}

/// Returns the event about a failed sweep.
pub(crate) fn failed(error: &SweepFailed) -> Event {
    let text = format!(
        "the sweep failed: {}. Garbage stays in the bucket. The operator tries again; fix the named cause, or \
         set spec.sweep.suspend",
        chain(error)
    );
    warning("SweepFailed", text)
}

fn warning(reason: &str, note: String) -> Event {
    Event {
        type_: EventType::Warning,
        reason: reason.to_owned(),
        note: Some(note),
        action: ACTION.to_owned(),
        secondary: None,
    }
}

#[cfg(test)]
mod tests {
    use holdfast_log::sweep::Amount;

    use super::*;

    /// Regression: an entry from an older version, whose writer is lost, never left the trash, and no message
    /// gave the remedy.
    #[test]
    fn a_volume_that_waits_for_a_lost_writer_names_the_way_out() {
        let id = || -> VolumeId { "v".parse().expect("an id") };
        let epoch = holdfast_types::Epoch(3);
        let attached = LogFailure::StillAttached { volume: id(), node: "a".to_owned(), epoch };
        let trash = TrashReport { stuck: vec![(id(), attached)], ..TrashReport::default() };
        let note = stuck("main", &trash).and_then(|event| event.note).expect("a note");
        for words in ["adopt the volume", "holdfast.dev/force-detach=a", "then delete it"] {
            assert!(note.contains(words), "{note}");
        }
        assert!(note.len() < 1024, "{}", note.len());
    }

    /// Regression: the message named a command without the store, whose documents retain their snapshots.
    #[test]
    fn a_volume_that_waits_for_its_snapshots_names_the_way_out() {
        let id: VolumeId = "v".parse().expect("an id");
        let failure = LogFailure::HasSnapshots { volume: id.clone(), seqs: vec![holdfast_types::Seq(7)] };
        let trash = TrashReport { stuck: vec![(id, failure)], ..TrashReport::default() };
        let note = stuck("main", &trash).and_then(|event| event.note).expect("a note");
        for words in
            ["`kubectl holdfast restore main --deleted`", "apply", "set deletionPolicy Delete", "delete them"]
        {
            assert!(note.contains(words), "{note}");
        }
        assert!(note.len() < 1024, "{}", note.len());
    }

    #[test]
    fn skipped_volumes_are_named_shortly_and_a_clean_sweep_is_no_event() {
        let now: Timestamp = "2026-01-02T00:00:00Z".parse().expect("a timestamp");
        let clean = SweepReport {
            volumes: 12,
            kept: Amount { objects: 9, bytes: 900 },
            garbage: Amount { objects: 3, bytes: 30 },
            deleted: Amount { objects: 2, bytes: 20 },
            oldest: Some(now.into()),
            ..SweepReport::default()
        };
        let told = status(&clean, 0, now);
        assert_eq!(
            (told.kept_bytes, told.garbage_bytes, told.deleted_objects, told.deleted_bytes),
            (900, 30, 2, 20)
        );
        assert_eq!((told.time, told.oldest_garbage, told.skipped.len()), (Time(now), Some(Time(now)), 0));
        assert!(skipped(&clean).is_none());

        let skip = |number| {
            let volume: holdfast_types::VolumeId = format!("v{number}").parse().expect("an id");
            Skipped { error: LogFailure::NoLog(volume.clone()), volume }
        };
        let some = SweepReport { skipped: (0..12).map(skip).collect(), ..SweepReport::default() };
        let told = status(&some, 3, now);
        assert_eq!((told.skipped.len(), told.skipped[9].volume_id.as_str()), (10, "v9"));
        assert!(told.skipped[0].reason.contains("has no log"), "{:?}", told.skipped[0]);
        let event = skipped(&some).expect("an event");
        let note = event.note.expect("a note");
        assert_eq!((event.type_, event.reason.as_str()), (EventType::Warning, "SweepSkippedVolumes"));
        assert!(note.starts_with("volumes could not be read (12).") && note.contains("; v2: "), "{note}");
        assert!(!note.contains("v3"), "{note}");
    }
}
