//! `ObjectStore`: a bucket, its access settings, and its suitability for volumes.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::FieldError;
use crate::quantity::duration_within;

/// Lower bound of `spec.sweep.interval`.
const MIN_SWEEP_INTERVAL: Duration = Duration::from_mins(10);
/// Lower bound of `spec.sweep.grace`: every upload must finish within the grace.
const MIN_SWEEP_GRACE: Duration = Duration::from_hours(1);
/// Upper bound of both, and of `spec.keepDeleted`: one year.
const MAX_SWEEP_SPAN: Duration = Duration::from_hours(8760);

/// A bucket on Amazon S3 or on a server that speaks the S3 protocol.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Deserialize, Serialize)]
#[kube(
    group = "storage.holdfast.dev",
    version = "v1alpha1",
    kind = "ObjectStore",
    plural = "objectstores",
    shortname = "hfos",
    category = "holdfast",
    doc = "A bucket that holds volumes: its access settings, and its fitness for volumes.",
    status = "ObjectStoreStatus",
    derive = "PartialEq",
    validation = kube::core::Rule::new("self.metadata.name.size() <= 63")
        .message("metadata.name must have at most 63 characters: choose a shorter name"),
    validation = kube::core::Rule::new("self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')")
        .message("metadata.name must consist of lower-case letters, digits and '-' and begin and end with a letter or digit: remove other characters such as '.'"),
    printcolumn(name = "Bucket", type_ = "string", json_path = ".spec.bucket"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].status"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].reason"),
    printcolumn(name = "Endpoint", type_ = "string", json_path = ".spec.endpoint", priority = 1),
    printcolumn(name = "Prefix", type_ = "string", json_path = ".spec.prefix", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[x_kube(validation = kube::core::Rule::new("!has(self.caBundle) || !has(self.caBundleRef)")
    .message("spec.caBundle and spec.caBundleRef exclude each other: remove one of them"))]
#[serde(rename_all = "camelCase")]
pub struct ObjectStoreSpec {
    /// URL of the server. Absent: Amazon S3 in `region`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    #[x_kube(validation = kube::core::Rule::new("self.matches('^https?://[^/ ]+/?$')")
        .message("spec.endpoint must be a URL without a path: write for example `https://s3.example.com:9000`"))]
    pub endpoint: Option<String>,
    /// Region for request signing.
    #[serde(default = "default_region")]
    #[schemars(length(min = 1, max = 64))]
    pub region: String,
    /// Name of the bucket. Immutable.
    #[schemars(length(max = 255))]
    #[x_kube(
        validation = kube::core::Rule::new("self.matches('^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$')")
            .message("spec.bucket must be a bucket name: 3 to 63 lower-case letters, digits, '.' or '-'"),
        validation = kube::core::Rule::new("self == oldSelf")
            .message("spec.bucket is immutable: create another ObjectStore"),
    )]
    pub bucket: String,
    /// Prefix of every key, without a slash at either end. Immutable.
    #[serde(default)]
    #[schemars(length(max = 512))]
    #[x_kube(
        validation = kube::core::Rule::new("self == '' || self.matches('^[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*$')")
            .message("spec.prefix must consist of letters, digits, '_', '.', '-' and single slashes between them: write for example `clusters/one`"),
        validation = kube::core::Rule::new("self == oldSelf")
            .message("spec.prefix is immutable: create another ObjectStore"),
    )]
    pub prefix: String,
    /// Puts the bucket into the URL's path instead of its host name. Most servers other than Amazon S3 require this.
    #[serde(default)]
    pub path_style: bool,
    /// CA certificates (PEM) trusted for `endpoint`, inline. Absent: the system's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 131072))]
    pub ca_bundle: Option<String>,
    /// CA certificates (PEM) trusted for `endpoint`, from a Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_bundle_ref: Option<SecretKeyRef>,
    /// Source of the credentials.
    pub credentials: Credentials,
    /// Deletion of objects in the bucket that no volume or snapshot needs any more.
    #[serde(default)]
    pub sweep: Sweep,
    /// Retention time for the objects of a deleted Volume. Until it ends, `spec.source.existing` can adopt the volume again; the next sweep then deletes the objects. `0s`: deletes them immediately, except those of a volume that ever had a snapshot or a clone: the next sweep deletes them after its grace.
    #[serde(default = "default_day")]
    #[schemars(length(max = 16))]
    #[x_kube(
        validation = kube::core::Rule::new("self.matches('^([0-9]{1,9}(ms|s|m|h))+$')")
            .message("spec.keepDeleted must be a duration: write for example `24h`, or `0s` to keep nothing"),
        validation = kube::core::Rule::new("!self.matches('^([0-9]{1,9}(ms|s|m|h))+$') || duration(self) <= duration('8760h')")
            .message("spec.keepDeleted must be at most 8760h: write for example `24h`, or `0s` to keep nothing"),
    )]
    pub keep_deleted: String,
}

impl ObjectStoreSpec {
    /// Returns the retention time for the objects of a deleted Volume.
    ///
    /// # Errors
    /// A [`FieldError`] naming `spec.keepDeleted`.
    pub fn keep_deleted(&self) -> Result<Duration, FieldError> {
        duration_within("spec.keepDeleted", &self.keep_deleted, Duration::ZERO..=MAX_SWEEP_SPAN, "24h")
    }
}

fn default_region() -> String {
    "us-east-1".to_owned()
}

/// Schedule of the sweeps, which delete objects that no volume or snapshot needs any more.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Sweep {
    /// Time from the end of one sweep to the start of the next: `24h` or `1h30m`.
    #[serde(default = "default_day")]
    #[schemars(length(max = 16))]
    #[x_kube(
        validation = kube::core::Rule::new("self.matches('^([0-9]{1,9}(ms|s|m|h))+$')")
            .message("spec.sweep.interval must be a duration: write for example `24h`"),
        validation = kube::core::Rule::new("!self.matches('^([0-9]{1,9}(ms|s|m|h))+$') || (duration(self) >= duration('10m') && duration(self) <= duration('8760h'))")
            .message("spec.sweep.interval must lie between 10m and 8760h: write for example `24h`, or set spec.sweep.suspend"),
    )]
    pub interval: String,
    /// Minimum age of an object before a sweep deletes it, by the server's clock.
    #[serde(default = "default_day")]
    #[schemars(length(max = 16))]
    #[x_kube(
        validation = kube::core::Rule::new("self.matches('^([0-9]{1,9}(ms|s|m|h))+$')")
            .message("spec.sweep.grace must be a duration: write for example `24h`"),
        validation = kube::core::Rule::new("!self.matches('^([0-9]{1,9}(ms|s|m|h))+$') || (duration(self) >= duration('1h') && duration(self) <= duration('8760h'))")
            .message("spec.sweep.grace must lie between 1h and 8760h: write for example `24h`"),
    )]
    pub grace: String,
    /// Starts no further sweep, and ends a running one within a minute.
    #[serde(default)]
    pub suspend: bool,
    /// Only reports in `status.sweep` what a sweep would delete. Does not empty the trash.
    #[serde(default)]
    pub dry_run: bool,
    /// Maximum number of objects that one sweep deletes; the next one begins with the next volume. Absent: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i64>", range(min = 1))]
    pub max_objects: Option<u64>,
}

fn default_day() -> String {
    "24h".to_owned()
}

impl Default for Sweep {
    fn default() -> Self {
        Self {
            interval: default_day(),
            grace: default_day(),
            suspend: false,
            dry_run: false,
            max_objects: None,
        }
    }
}

impl Sweep {
    /// Returns the time between two sweeps.
    ///
    /// # Errors
    /// A [`FieldError`] naming `spec.sweep.interval`.
    pub fn interval(&self) -> Result<Duration, FieldError> {
        duration_within("spec.sweep.interval", &self.interval, MIN_SWEEP_INTERVAL..=MAX_SWEEP_SPAN, "24h")
    }

    /// Returns the minimum age of an object before a sweep deletes it.
    ///
    /// # Errors
    /// A [`FieldError`] naming `spec.sweep.grace`.
    pub fn grace(&self) -> Result<Duration, FieldError> {
        duration_within("spec.sweep.grace", &self.grace, MIN_SWEEP_GRACE..=MAX_SWEEP_SPAN, "24h")
    }
}

/// Source of credentials: exactly one of the fields.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Credentials {
    /// From a Secret with the keys `accessKeyId`, `secretAccessKey` and, optionally, `sessionToken`.
    SecretRef(SecretRef),
    /// From the AWS SDK's default chain: environment variables of the process (`AWS_ACCESS_KEY_ID`,
    /// `AWS_SECRET_ACCESS_KEY`), EKS Pod Identity, or the instance role.
    Environment(EnvironmentCredentials),
    /// From a web identity token mounted into the pod (IRSA: `AWS_ROLE_ARN`, `AWS_WEB_IDENTITY_TOKEN_FILE`; set the chart's
    /// `storeCredentials.serviceAccountAnnotations` to get them).
    WebIdentity(WebIdentity),
    /// A value that only a later release knows. The API server rejects it.
    #[serde(untagged)]
    #[schemars(skip, !untagged)]
    Unknown(serde_json::Value),
}

/// Reference to a Secret.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct SecretRef {
    /// Name of the Secret.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Namespace of the Secret.
    #[schemars(length(min = 1, max = 63))]
    pub namespace: String,
}

/// Reference to one key of a Secret.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct SecretKeyRef {
    /// Name of the Secret.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Namespace of the Secret.
    #[schemars(length(min = 1, max = 63))]
    pub namespace: String,
    /// Key within the Secret.
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
}

/// No parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct EnvironmentCredentials {}

/// No parameters: the pod's service account determines the role.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct WebIdentity {}

/// Observed state of an object store.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectStoreStatus {
    /// Generation of the spec that this status refers to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Time of the last probe of the bucket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_probe_time: Option<Time>,
    /// Changes when a Secret named in the spec changes: the Secrets' uids and resource versions. Node daemons then read the Secrets again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credentials_version: Option<String>,
    /// Result of the last completed sweep.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sweep: Option<SweepStatus>,
    /// `Ready`: the bucket answers, can be listed, and rejects a second create of the same key.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = kube::core::ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// Result of a sweep.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SweepStatus {
    /// Time at which the sweep ended.
    pub time: Time,
    /// Number of volumes found, including deleted ones.
    #[schemars(with = "i64", range(min = 0))]
    pub volumes: u64,
    /// Bytes of the retained objects.
    #[schemars(with = "i64", range(min = 0))]
    pub kept_bytes: u64,
    /// Bytes of the garbage, including the objects that were deleted.
    #[schemars(with = "i64", range(min = 0))]
    pub garbage_bytes: u64,
    /// Number of deleted objects.
    #[schemars(with = "i64", range(min = 0))]
    pub deleted_objects: u64,
    /// Bytes of the deleted objects.
    #[schemars(with = "i64", range(min = 0))]
    pub deleted_bytes: u64,
    /// Time at which the oldest remaining garbage was stored. Absent: no garbage remains.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest_garbage: Option<Time>,
    /// Number of deleted volumes in the trash. Their objects count as retained.
    #[serde(default)]
    #[schemars(with = "i64", range(min = 0))]
    pub trashed_volumes: u64,
    /// The first ten volumes that could not be read. All objects that they may reference were retained.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10))]
    pub skipped: Vec<SkippedVolume>,
}

/// A volume that a sweep could not read.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SkippedVolume {
    /// The volume's identity in the object store.
    pub volume_id: String,
    /// The error, truncated.
    pub reason: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_spans_of_sweeps_name_field_and_fix() {
        let sweep = |interval: &str, grace: &str| Sweep {
            interval: interval.to_owned(),
            grace: grace.to_owned(),
            ..Sweep::default()
        };
        let day = Duration::from_hours(24);
        assert_eq!((Sweep::default().interval(), Sweep::default().grace()), (Ok(day), Ok(day)));
        let least = sweep("10m", "60m");
        assert_eq!(least.interval().map(|it| it.as_secs()), Ok(600));
        assert_eq!(least.grace().map(|it| it.as_secs()), Ok(3600));
        for bad in ["", "1", "daily", "9m59s", "8761h"] {
            let error = sweep(bad, "24h").interval().expect_err(bad).to_string();
            assert!(error.starts_with("spec.sweep.interval: ") && error.contains("; write "), "{error}");
            let error = sweep("24h", bad).grace().expect_err(bad).to_string();
            assert!(error.starts_with("spec.sweep.grace: ") && error.contains("; write "), "{error}");
        }
    }

    #[test]
    fn what_is_left_out_has_its_default() {
        let spec = serde_json::json!({ "bucket": "bucket", "credentials": { "environment": {} } });
        let spec: ObjectStoreSpec = serde_json::from_value(spec).expect("a spec");
        assert_eq!(spec.sweep, Sweep::default());
        let sweep: Sweep = serde_json::from_value(serde_json::json!({ "grace": "48h" })).expect("a sweep");
        assert_eq!(sweep, Sweep { grace: "48h".to_owned(), ..Sweep::default() });
    }
}
