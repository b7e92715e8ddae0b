//! `ObjectStore`: a bucket, how to reach it, and whether it is fit for volumes.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A bucket on Amazon S3 or a server that speaks its protocol.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Deserialize, Serialize)]
#[kube(
    group = "storage.holdfast.dev",
    version = "v1alpha1",
    kind = "ObjectStore",
    plural = "objectstores",
    shortname = "hfos",
    category = "holdfast",
    doc = "A bucket that holds volumes, how to reach it, and whether it is fit for them.",
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
    /// Region the requests are signed for.
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
    /// Put the bucket into the path of the URL instead of its host name. Most servers other than Amazon S3 want this.
    #[serde(default)]
    pub path_style: bool,
    /// Certificates (PEM) to trust for `endpoint`, inline. Absent: the system's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 131072))]
    pub ca_bundle: Option<String>,
    /// Certificates (PEM) to trust for `endpoint`, from a Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_bundle_ref: Option<SecretKeyRef>,
    /// Source of the credentials.
    pub credentials: Credentials,
}

fn default_region() -> String {
    "us-east-1".to_owned()
}

/// Source of credentials: exactly one of the fields.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Credentials {
    /// From a Secret with the keys `accessKeyId`, `secretAccessKey` and, optionally, `sessionToken`.
    SecretRef(SecretRef),
    /// From the environment variables of the process (`AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`).
    Environment(EnvironmentCredentials),
    /// From a web identity token mounted into the pod (IRSA: `AWS_ROLE_ARN`, `AWS_WEB_IDENTITY_TOKEN_FILE`).
    WebIdentity(WebIdentity),
}

/// A Secret.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct SecretRef {
    /// Name of the Secret.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Namespace of the Secret.
    #[schemars(length(min = 1, max = 63))]
    pub namespace: String,
}

/// One key of a Secret.
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

/// No parameters: the pod's service account says which role.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct WebIdentity {}

/// Observed state of an object store.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectStoreStatus {
    /// Generation of the spec this status refers to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Time of the last probe of the bucket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_probe_time: Option<Time>,
    /// Changes when a Secret that the spec names changes: their uids and resource versions. Node daemons read them again then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credentials_version: Option<String>,
    /// `Ready`: the bucket answers, can be listed, and creates a key once only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = kube::core::ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}
