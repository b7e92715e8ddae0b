//! The record of a store that survives a restart.

use std::path::PathBuf;

use holdfast_s3::{S3Config, S3Credentials};
use serde::{Deserialize, Serialize};

/// An [`S3Config`] as stored in the tmpfs directory (mode 0600), so that a restarted daemon needs no other
/// source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StoreRecord {
    endpoint: Option<String>,
    region: String,
    bucket: String,
    prefix: String,
    path_style: bool,
    ca_pem: Option<String>,
    credentials: CredentialsRecord,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
enum CredentialsRecord {
    Static { access_key_id: String, secret_access_key: String, session_token: Option<String> },
    Environment,
    WebIdentity { token_file: PathBuf, role_arn: String },
}

impl std::fmt::Debug for CredentialsRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("credentials")
    }
}

impl StoreRecord {
    /// Returns the bucket and the prefix in it.
    pub(crate) fn place(&self) -> (&str, &str) {
        (&self.bucket, &self.prefix)
    }
}

impl From<&S3Config> for StoreRecord {
    fn from(config: &S3Config) -> Self {
        let credentials = match config.credentials.clone() {
            S3Credentials::Static { access_key_id, secret_access_key, session_token } => {
                CredentialsRecord::Static { access_key_id, secret_access_key, session_token }
            }
            S3Credentials::Environment => CredentialsRecord::Environment,
            S3Credentials::WebIdentity { token_file, role_arn } => {
                CredentialsRecord::WebIdentity { token_file, role_arn }
            }
        };
        Self {
            endpoint: config.endpoint.clone(),
            region: config.region.clone(),
            bucket: config.bucket.clone(),
            prefix: config.prefix.clone(),
            path_style: config.path_style,
            ca_pem: config.ca_pem.clone(),
            credentials,
        }
    }
}

impl StoreRecord {
    /// Returns true if a store of another name has the same objects, regardless of credentials.
    pub(crate) fn is_same_place(&self, other: &Self) -> bool {
        self.place() == other.place() && self.endpoint == other.endpoint
    }
}

impl From<&StoreRecord> for S3Config {
    fn from(record: &StoreRecord) -> Self {
        let credentials = match record.credentials.clone() {
            CredentialsRecord::Static { access_key_id, secret_access_key, session_token } => {
                S3Credentials::Static { access_key_id, secret_access_key, session_token }
            }
            CredentialsRecord::Environment => S3Credentials::Environment,
            CredentialsRecord::WebIdentity { token_file, role_arn } => {
                S3Credentials::WebIdentity { token_file, role_arn }
            }
        };
        Self {
            endpoint: record.endpoint.clone(),
            prefix: record.prefix.clone(),
            path_style: record.path_style,
            ca_pem: record.ca_pem.clone(),
            ..Self::new(record.bucket.clone(), record.region.clone(), credentials)
        }
    }
}
