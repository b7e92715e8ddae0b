//! `holdfast-node gc`: asks the daemon to sweep a store, and shows the garbage found and deleted.

use std::time::{Duration, SystemTime};

use holdfast_proto::node::v1::{
    Amount, SkipCause, SkippedVolume, SnapshotSpace, SweepRequest, SweepResponse,
};
use serde_json::{Value, json};

use super::Gc;
use super::client::{connect, refused, show};
use super::output::{Render, table};
use crate::failure::Failure;
use crate::node::FailureKind;

/// Sweeps the store; the answer goes to `out`.
///
/// # Errors
/// [`FailureKind::Invalid`] if the grace period is too long; [`FailureKind::Corrupt`] if volumes were skipped
/// because of their stored state; the daemon's rejection, or the reason it was not reached.
pub(super) async fn run(gc: Gc, out: &mut String) -> Result<(), Failure> {
    let Gc { store, dry_run, grace, most, target } = gc;
    let grace = grace.0.try_into().map_err(|_range| Failure {
        kind: FailureKind::Invalid,
        message: "--grace: is too long; give a duration such as 24h".to_owned(),
    })?;
    let request = SweepRequest { store, dry_run, grace: Some(grace), most };
    let answer = connect(&target).await?.sweep(request).await.map_err(refused)?.into_inner();
    show(&answer, &target, out);
    verdict(&answer)
}

fn verdict(answer: &SweepResponse) -> Result<(), Failure> {
    let is_damaged = |skipped: &&SkippedVolume| skipped.cause() != SkipCause::Changing;
    match answer.skipped.iter().filter(is_damaged).count() {
        0 => Ok(()),
        count => {
            let message = format!(
                "damaged volumes were skipped (volumes: {count}). All objects that they may read were kept. The \
                 lines above have the next step for each"
            );
            Err(Failure { kind: FailureKind::Corrupt, message })
        }
    }
}

impl Render for SweepResponse {
    fn text(&self) -> String {
        let Self { store, volumes, kept, garbage, deleted, oldest, skipped, snapshots } = self;
        let rows =
            [("kept", *kept), ("garbage", *garbage), ("deleted", *deleted), ("left", Some(left(self)))];
        let row = |(what, amount): (&str, Option<Amount>)| {
            let Amount { objects, bytes } = amount.unwrap_or_default();
            [what.to_owned(), objects.to_string(), bytes.to_string()]
        };
        let mut text = format!("store {store}, volumes: {volumes}\n");
        text.push_str(&table(["", "OBJECTS", "BYTES"], rows.into_iter().map(row)));
        if let Some(stored) = oldest.and_then(|oldest| SystemTime::try_from(oldest).ok()) {
            // The store's clock may be ahead.
            let age = SystemTime::now().duration_since(stored).unwrap_or_default();
            text.push_str(&format!("the oldest garbage left is {} old\n", hours(age)));
        }
        if !snapshots.is_empty() {
            let row = |space: &SnapshotSpace| [space.name.clone(), space.bytes.to_string()];
            text.push_str(&table(["SNAPSHOT", "EXCLUSIVE BYTES"], snapshots.iter().map(row)));
        }
        for skipped in skipped {
            let SkippedVolume { volume_id, error, cause: _ } = skipped;
            text.push_str(&format!("volume {volume_id} was skipped: {error}\n{}", remedy(skipped, store)));
        }
        text
    }

    fn json(&self) -> Value {
        let Self { store, volumes, kept, garbage, deleted, oldest, skipped, snapshots } = self;
        let amount = |amount: &Option<Amount>| {
            let Amount { objects, bytes } = amount.unwrap_or_default();
            json!({ "objects": objects, "bytes": bytes })
        };
        let one = |skipped: &SkippedVolume| {
            let SkippedVolume { volume_id, error, cause: _ } = skipped;
            json!({ "volume_id": volume_id, "error": error, "cause": cause_name(skipped.cause()) })
        };
        let space = |space: &SnapshotSpace| json!({ "name": space.name, "bytes": space.bytes });
        json!({
            "store": store,
            "volumes": volumes,
            "kept": amount(kept),
            "garbage": amount(garbage),
            "deleted": amount(deleted),
            "left": amount(&Some(left(self))),
            "oldest": oldest.map(|time| time.to_string()),
            "snapshots": snapshots.iter().map(space).collect::<Vec<_>>(),
            "skipped": skipped.iter().map(one).collect::<Vec<_>>(),
        })
    }
}

/// Returns the amount of garbage that was not deleted.
fn left(answer: &SweepResponse) -> Amount {
    let (garbage, deleted) = (answer.garbage.unwrap_or_default(), answer.deleted.unwrap_or_default());
    Amount {
        objects: garbage.objects.saturating_sub(deleted.objects),
        bytes: garbage.bytes.saturating_sub(deleted.bytes),
    }
}

/// Returns the action to take for a skipped volume.
fn remedy(skipped: &SkippedVolume, store: &str) -> String {
    let SkippedVolume { volume_id, error: _, cause: _ } = skipped;
    match skipped.cause() {
        SkipCause::Damaged => format!(
            "  all objects that {volume_id} may read were kept; find the damage: `holdfast-node scrub {volume_id} \
             --store {store}`, with --repair on the node that has it attached\n"
        ),
        SkipCause::NoLog => format!(
            "  the objects of {volume_id} were kept, and those of every volume that had snapshots or was removed; \
             restore its log from a copy of the bucket, or delete them\n"
        ),
        SkipCause::Changing => {
            format!("  all objects that {volume_id} may read were kept; the next sweep reads it again\n")
        }
        SkipCause::Unspecified => {
            format!(
                "  all objects that {volume_id} may read were kept; this program is older than the daemon: upgrade it\n"
            )
        }
    }
}

fn cause_name(cause: SkipCause) -> &'static str {
    match cause {
        SkipCause::Unspecified => "unknown",
        SkipCause::Damaged => "damaged",
        SkipCause::NoLog => "no-log",
        SkipCause::Changing => "changing",
    }
}

/// Formats an age in its two largest units.
fn hours(age: Duration) -> String {
    let minutes = age.as_secs() / 60;
    match (minutes / 60, minutes % 60) {
        (0, 0) => format!("{}s", age.as_secs()),
        (0, minutes) => format!("{minutes}m"),
        (hours, minutes) => format!("{hours}h{minutes}m"),
    }
}
