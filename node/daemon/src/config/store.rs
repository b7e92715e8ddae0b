//! Stores of a daemon that runs without Kubernetes: `[stores.<name>]`.

use std::fmt;
use std::path::PathBuf;

use holdfast_s3::{S3Config, S3Credentials};
use serde::Deserialize;

/// A bucket and its connection settings.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StoreSection {
    endpoint: Option<String>,
    #[serde(default = "default_region")]
    region: String,
    bucket: String,
    #[serde(default)]
    prefix: String,
    #[serde(default)]
    path_style: bool,
    ca_file: Option<PathBuf>,
    credentials: Option<KeyPair>,
}

/// A key pair; `None`: the SDK's credential chain (environment, profile files, web identity, instance role).
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyPair {
    access_key_id: String,
    secret_access_key: String,
    session_token: Option<String>,
}

impl fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyPair").field("access_key_id", &self.access_key_id).finish_non_exhaustive()
    }
}

fn default_region() -> String {
    "us-east-1".to_owned()
}

/// An invalid setting of a store, with its name within the store's section.
#[derive(Debug)]
pub(crate) struct StoreProblem {
    pub(crate) key: &'static str,
    pub(crate) problem: String,
}

impl StoreSection {
    /// Builds the configuration of the S3 client; reads the certificate file.
    pub(crate) fn into_s3(self) -> Result<S3Config, StoreProblem> {
        let Self { endpoint, region, bucket, prefix, path_style, ca_file, credentials } = self;
        let credentials = match credentials {
            None => S3Credentials::Environment,
            Some(KeyPair { access_key_id, secret_access_key, session_token }) => {
                S3Credentials::Static { access_key_id, secret_access_key, session_token }
            }
        };
        let ca_pem = match ca_file {
            None => None,
            Some(path) => Some(std::fs::read_to_string(&path).map_err(|error| StoreProblem {
                key: "ca_file",
                problem: format!(
                    "{} cannot be read ({error}); name a file of PEM certificates",
                    path.display()
                ),
            })?),
        };
        let config =
            S3Config { endpoint, prefix, path_style, ca_pem, ..S3Config::new(bucket, region, credentials) };
        match config.check() {
            Ok(()) => Ok(config),
            Err(invalid) => Err(StoreProblem {
                key: if invalid.field == "caBundle" { "ca_file" } else { invalid.field },
                problem: format!("`{}` cannot be used: {}", invalid.value, invalid.fix),
            }),
        }
    }
}
