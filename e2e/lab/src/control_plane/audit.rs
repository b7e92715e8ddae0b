//! The API server's audit log: each request of our programs, and each change by kubectl.
//!
//! Owns: the policy, which selects the logged requests, and the log.
//! Invariants: one entry per request, once it is answered; a watch is logged when it ends. Requests of
//! Kubernetes' own components are not logged, to keep the log cheap.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::operator::NAMESPACE;

/// The user of the administrator's kubeconfig.
const ADMINISTRATOR: &str = "admin";
/// Verbs of modifying requests.
const WRITES: [&str; 4] = ["create", "update", "patch", "delete"];

/// Policy and log of one API server.
#[derive(Debug)]
pub(super) struct Audit {
    policy: PathBuf,
    log: PathBuf,
}

/// An answered request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiRequest {
    /// Name of the service account; `admin` for kubectl.
    pub account: String,
    /// The verb of Kubernetes, such as `get`, `list` or `patch`.
    pub verb: String,
    /// Kind of the object, plural.
    pub resource: String,
    /// Part of the object, such as `status`; empty for the object itself.
    pub subresource: String,
    /// Name of the object; empty for all of a kind.
    pub name: String,
    /// HTTP status of the answer.
    pub status: u16,
    /// Time of the request's arrival, in microseconds since 1970.
    pub received_us: u64,
    /// Time of the response, in microseconds since 1970.
    pub answered_us: u64,
}

impl ApiRequest {
    /// Returns true if it modifies something.
    pub fn is_write(&self) -> bool {
        WRITES.contains(&self.verb.as_str())
    }
}

impl Audit {
    /// Writes the policy.
    pub(super) fn prepare(dir: &Path) -> Result<Self> {
        let policy = dir.join("audit-policy.yaml");
        let text = format!(
            "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived, ResponseStarted]\nrules:\n\
             - {{level: Metadata, userGroups: [\"system:serviceaccounts:{NAMESPACE}\"]}}\n\
             - {{level: Metadata, users: [{ADMINISTRATOR}], verbs: [{}]}}\n\
             - {{level: None}}\n",
            WRITES.join(", ")
        );
        fs::write(&policy, text).context("write the audit policy")?;
        Ok(Self { policy, log: dir.join("audit.log") })
    }

    /// Returns the arguments for the API server.
    pub(super) fn arguments(&self) -> [String; 2] {
        [
            format!("--audit-policy-file={}", self.policy.display()),
            format!("--audit-log-path={}", self.log.display()),
        ]
    }

    /// Returns all entries so far.
    pub(super) fn requests(&self) -> Result<Vec<ApiRequest>> {
        let log = fs::read_to_string(&self.log).context("read the audit log")?;
        // The last line may be incomplete.
        let whole = log.rfind('\n').map_or("", |end| &log[..end]);
        whole.lines().map(|line| parse(line).with_context(|| format!("audit log: {line}"))).collect()
    }
}

/// The fields of a log entry that are read. Source: `audit.k8s.io/v1`, `Event`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct AuditEntry {
    verb: String,
    user: User,
    #[serde(default)]
    object_ref: AuditedObject,
    #[serde(default)]
    response_status: ResponseStatus,
    request_received_timestamp: String,
    stage_timestamp: String,
}

#[derive(Debug, Deserialize)]
struct User {
    username: String,
}

#[derive(Debug, Default, Deserialize)]
struct AuditedObject {
    #[serde(default)]
    resource: String,
    #[serde(default)]
    subresource: String,
    #[serde(default)]
    name: String,
}

#[derive(Debug, Default, Deserialize)]
struct ResponseStatus {
    #[serde(default)]
    code: u16,
}

fn parse(line: &str) -> Result<ApiRequest> {
    let AuditEntry { verb, user, object_ref, response_status, request_received_timestamp, stage_timestamp } =
        serde_json::from_str(line)?;
    let AuditedObject { resource, subresource, name } = object_ref;
    let account = user.username.rsplit(':').next().unwrap_or_default().to_owned();
    Ok(ApiRequest {
        account,
        verb,
        resource,
        subresource,
        name,
        status: response_status.code,
        received_us: unix_us(&request_received_timestamp)?,
        answered_us: unix_us(&stage_timestamp)?,
    })
}

/// Converts a time such as `2026-11-24T10:35:12.123456Z` to microseconds since 1970.
///
/// # Errors
/// If the format is different.
pub fn unix_us(text: &str) -> Result<u64> {
    let read = || {
        let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
        let mut date = date.splitn(3, '-').map(|part| part.parse::<u64>().ok());
        let (mut year, month, day) = (date.next()??, date.next()??, date.next()??);
        let mut time = time.splitn(3, ':');
        let (hours, minutes) = (time.next()?.parse::<u64>().ok()?, time.next()?.parse::<u64>().ok()?);
        let (seconds, fraction) = time.next()?.split_once('.')?;
        let micros: u64 = format!("{fraction:0<6}").get(..6)?.parse().ok()?;
        // Days of the civil calendar, with years that start in March.
        year = year.checked_sub(u64::from(month <= 2))?;
        let from_march = (month + 9) % 12;
        let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * from_march + 2) / 5 + day - 1;
        let days = days.checked_sub(719_468)?;
        let seconds = seconds.parse::<u64>().ok()? + 60 * (minutes + 60 * (hours + 24 * days));
        Some(seconds * 1_000_000 + micros)
    };
    read().with_context(|| format!("{text:?} is no time"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_an_entry() {
        let line = r#"{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","auditID":"1",
            "stage":"ResponseComplete","requestURI":"/apis/storage.holdfast.dev/v1alpha1/volumes/a/status",
            "verb":"patch","user":{"username":"system:serviceaccount:holdfast-system:holdfast-operator",
            "groups":["system:authenticated"]},"sourceIPs":["127.0.0.1"],
            "objectRef":{"resource":"volumes","name":"a","apiGroup":"storage.holdfast.dev",
            "apiVersion":"v1alpha1","subresource":"status"},"responseStatus":{"metadata":{},"code":200},
            "requestReceivedTimestamp":"1970-01-02T00:00:01.000002Z",
            "stageTimestamp":"1970-01-02T00:00:01.500000Z"}"#;
        let request = parse(&line.replace('\n', "")).unwrap();
        assert_eq!(request.account, "holdfast-operator");
        assert_eq!((request.resource.as_str(), request.subresource.as_str()), ("volumes", "status"));
        assert_eq!((request.name.as_str(), request.status), ("a", 200));
        assert!(request.is_write());
        assert_eq!((request.received_us, request.answered_us), (86_401_000_002, 86_401_500_000));
    }

    #[test]
    fn times_are_read() {
        assert_eq!(unix_us("1970-01-01T00:00:00.0Z").unwrap(), 0);
        assert_eq!(unix_us("2000-02-29T12:00:00.25Z").unwrap(), 951_825_600_250_000);
        assert_eq!(unix_us("2026-11-24T10:32:00.000001Z").unwrap(), 1_795_516_320_000_001);
        assert!(unix_us("yesterday").is_err());
    }
}
