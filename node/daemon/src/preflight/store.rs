//! An object store of the configuration: the probe that a daemon runs before it uses the bucket.

use std::error::Error;
use std::time::Duration;

use holdfast_crds::TimeSpan;
use holdfast_s3::{InvalidConfig, ProbeFailure, Probed, S3Config, S3Store, ServerClock};
use holdfast_service::chain;

use super::Check;

/// Clock difference above which it is reported. S3 rejects requests from 15 minutes on.
const MUCH: Duration = Duration::from_secs(60);

/// Reason why a store is unusable.
#[derive(Debug, thiserror::Error)]
pub(super) enum UnusableStore {
    #[error(transparent)]
    Config(#[from] InvalidConfig),
    #[error(transparent)]
    Probe(#[from] ProbeFailure),
}

pub(super) async fn check(name: &str, store: &S3Config) -> Check {
    verdict(name, &store.bucket, probe(store).await)
}

async fn probe(store: &S3Config) -> Result<Probed, UnusableStore> {
    Ok(S3Store::connect(store.clone()).await?.probe().await?)
}

pub(super) fn verdict(name: &str, bucket: &str, probed: Result<Probed, UnusableStore>) -> Check {
    let name = format!("store {name}");
    let clock = match probed {
        Ok(Probed { clock }) => clock,
        Err(UnusableStore::Config(InvalidConfig { field, value, fix })) => {
            return Check::fail(&name, format!("{field}: {value:?} is not valid"), fix);
        }
        Err(UnusableStore::Probe(failure)) => return unfit(&name, &failure),
    };
    let found = format!("bucket {bucket} accepts the credentials and enforces create-once PUTs");
    let side = match clock {
        ServerClock::Ahead(_) => "ahead of",
        ServerClock::Behind(_) => "behind",
        ServerClock::Agrees | ServerClock::Unknown => return Check::pass(&name, found),
    };
    let difference = clock.difference();
    if difference < MUCH {
        return Check::pass(&name, found);
    }
    let found = format!(
        "{found}. The server's clock is {} {side} this host's; S3 rejects requests from a difference of 15 minutes",
        TimeSpan(Duration::from_secs(difference.as_secs()))
    );
    Check::warn(&name, found, "synchronize the clock of this host (NTP)")
}

/// Formats the failure of a probe, whose text has the state and, after a semicolon, the fix.
fn unfit(name: &str, failure: &ProbeFailure) -> Check {
    let said = failure.to_string();
    let (state, fix) =
        said.split_once("; ").unwrap_or((&said, "correct the store's section of the configuration"));
    let cause = failure.source().map(|cause| format!(" ({})", chain(cause))).unwrap_or_default();
    let is_left = matches!(failure, ProbeFailure::NotAllowed { action: "delete objects", .. });
    let left = if is_left { ". Test objects remain below probe/; a later probe deletes them" } else { "" };
    Check::fail(name, format!("{state}{cause}{left}"), fix)
}
