//! Configuration of a bucket: name, endpoint, credentials, timeouts.

use std::{fmt, path::PathBuf, time::Duration};

use rustls::pki_types::{CertificateDer, pem::PemObject};

use crate::invalid_config::InvalidConfig;
use crate::proxies::Proxies;

/// All settings needed to access one bucket.
#[derive(Debug, Clone)]
pub struct S3Config {
    /// Base URL of the server, such as `https://minio.storage:9000`; `None` for Amazon S3 itself.
    pub endpoint: Option<String>,
    /// Region of the bucket; servers other than Amazon's usually accept `us-east-1`.
    pub region: String,
    /// The bucket's name.
    pub bucket: String,
    /// Prefix of every key, separated by `/`; may be empty.
    pub prefix: String,
    /// True to put the bucket into the path instead of the host name.
    pub path_style: bool,
    /// CA certificates to trust exclusively, as PEM; `None` for the system's.
    pub ca_pem: Option<String>,
    /// Credentials to present.
    pub credentials: S3Credentials,
    /// HTTP proxies between this host and the server.
    pub proxies: Proxies,
    /// Time limits of requests.
    pub timeouts: Timeouts,
    /// Maximum requests in flight: half of them segment uploads, half all others; further ones wait in order.
    pub max_concurrency: usize,
}

/// Sources of credentials.
#[derive(Clone)]
pub enum S3Credentials {
    /// A fixed key pair, from a Secret.
    Static {
        /// The access key id.
        access_key_id: String,
        /// The secret access key.
        secret_access_key: String,
        /// The session token of temporary credentials.
        session_token: Option<String>,
    },
    /// The SDK's chain: environment variables, profile files, web identity, container and instance roles.
    Environment,
    /// A role assumed with a projected service-account token.
    WebIdentity {
        /// File with the token, read again whenever credentials expire.
        token_file: PathBuf,
        /// The role to assume.
        role_arn: String,
    },
}

impl fmt::Debug for S3Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Static { access_key_id, .. } => {
                f.debug_struct("Static").field("access_key_id", access_key_id).finish_non_exhaustive()
            }
            Self::Environment => f.write_str("Environment"),
            Self::WebIdentity { role_arn, .. } => {
                f.debug_struct("WebIdentity").field("role_arn", role_arn).finish_non_exhaustive()
            }
        }
    }
}

/// Time limits of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// For establishing a connection.
    pub connect: Duration,
    /// For one attempt, plus [`Timeouts::per_mib`]; up to four times as long for a slow store.
    pub attempt: Duration,
    /// Added per MiB of an attempt's body; longer for a slow store, too.
    pub per_mib: Duration,
    /// Time after the first attempt when no further one starts, except one after an upload's first timeout.
    pub deadline: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(2),
            attempt: Duration::from_secs(5),
            per_mib: Duration::from_secs(1),
            deadline: Duration::from_secs(20),
        }
    }
}

/// Maximum doublings of the time to first byte.
pub(crate) const MAX_HEAD_DOUBLINGS: u32 = 2;

/// Time limit of one attempt while the store has its usual speed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AttemptLimit {
    /// Time to the start of the response.
    pub(crate) head: Duration,
    /// Additional time for the body.
    pub(crate) body: Duration,
}

impl AttemptLimit {
    /// Returns the limit after this many doublings; the head uses at most [`MAX_HEAD_DOUBLINGS`].
    pub(crate) fn doubled(self, doublings: u32) -> Duration {
        let head = self.head.saturating_mul(1 << doublings.min(MAX_HEAD_DOUBLINGS));
        head.saturating_add(self.body.saturating_mul(1 << doublings))
    }
}

impl Timeouts {
    /// Returns the limit of one attempt with a body of `body_bytes`.
    pub(crate) fn attempt_for(&self, body_bytes: u64) -> AttemptLimit {
        AttemptLimit { head: self.attempt, body: self.body(body_bytes) }
    }

    /// Returns the limit for completing a multipart upload of `bytes`. Some servers copy all parts on their
    /// own disks, which gets a sixteenth of the time for sending them.
    pub(crate) fn completion_for(&self, bytes: u64) -> AttemptLimit {
        AttemptLimit { head: self.deadline, body: self.body(bytes) / 16 }
    }

    /// Returns the time limit for a body of `bytes`.
    pub(crate) fn body(&self, bytes: u64) -> Duration {
        self.per_mib.saturating_mul(u32::try_from(bytes.div_ceil(1 << 20)).unwrap_or(u32::MAX))
    }
}

impl S3Config {
    /// Returns a configuration with default limits and the environment's proxies.
    pub fn new(bucket: impl Into<String>, region: impl Into<String>, credentials: S3Credentials) -> Self {
        Self {
            endpoint: None,
            region: region.into(),
            bucket: bucket.into(),
            prefix: String::new(),
            path_style: false,
            ca_pem: None,
            credentials,
            proxies: Proxies::of_environment(),
            timeouts: Timeouts::default(),
            max_concurrency: 96,
        }
    }

    /// Returns the URL of the server.
    pub(crate) fn url(&self) -> String {
        self.endpoint.clone().unwrap_or_else(|| format!("https://s3.{}.amazonaws.com", self.region))
    }

    /// Returns true if requests use TLS.
    pub(crate) fn is_tls(&self) -> bool {
        self.endpoint.as_ref().is_none_or(|url| url.starts_with("https://"))
    }

    /// Checks every field, without a request.
    ///
    /// # Errors
    /// The first invalid field, and the fix.
    pub fn check(&self) -> Result<(), InvalidConfig> {
        let invalid = |field, value: &str, fix| Err(InvalidConfig { field, value: value.to_owned(), fix });
        if let Some(url) = &self.endpoint {
            let host = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
            let host = host.map(|rest| rest.strip_suffix('/').unwrap_or(rest));
            if host.is_none_or(|host| host.is_empty() || host.contains(['/', '?', '#', '@', ' '])) {
                return invalid("endpoint", url, "use http:// or https://, a host and optionally :port");
            }
        }
        if self.region.is_empty() || !self.region.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
            return invalid("region", &self.region, "set the bucket's region, such as us-east-1");
        }
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        let bucket = self.bucket.as_bytes();
        if !(3..=63).contains(&bucket.len())
            || !bucket.iter().all(|b| plain(*b) || matches!(b, b'.' | b'-'))
            || !bucket.first().is_some_and(|b| plain(*b))
            || !bucket.last().is_some_and(|b| plain(*b))
        {
            return invalid(
                "bucket",
                &self.bucket,
                "use 3 to 63 of a-z, 0-9, '-' and '.', letters or digits at both ends",
            );
        }
        if self.prefix.len() > 256
            || (!self.prefix.is_empty() && holdfast_objects::check_key(&self.prefix).is_err())
        {
            return invalid(
                "prefix",
                &self.prefix,
                "use at most 256 of A-Z, a-z, 0-9, '.', '_', '-' with single slashes between parts",
            );
        }
        if let Some(pem) = &self.ca_pem {
            if !self.is_tls() {
                return invalid("caBundle", "(set)", "remove it, or use an https:// endpoint");
            }
            if !readable_authorities(pem) {
                return invalid("caBundle", "(set)", "provide one or more PEM certificates");
            }
        }
        if let S3Credentials::Static { access_key_id, secret_access_key, .. } = &self.credentials
            && (access_key_id.is_empty() || secret_access_key.is_empty())
        {
            return invalid("credentials", access_key_id, "provide both an access key id and its secret");
        }
        if self.max_concurrency == 0 {
            return invalid("maxConcurrency", "0", "allow at least one request at a time");
        }
        Ok(())
    }
}

/// Returns true if `pem` has at least one certificate and the TLS library can trust all of them.
fn readable_authorities(pem: &str) -> bool {
    let mut roots = rustls::RootCertStore::empty();
    let added = CertificateDer::pem_slice_iter(pem.as_bytes())
        .all(|certificate| certificate.is_ok_and(|certificate| roots.add(certificate).is_ok()));
    added && !roots.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> S3Config {
        let credentials = S3Credentials::Static {
            access_key_id: "id".to_owned(),
            secret_access_key: "hush".to_owned(),
            session_token: None,
        };
        S3Config {
            endpoint: Some("http://127.0.0.1:9".to_owned()),
            ..S3Config::new("buck", "r-1", credentials)
        }
    }

    #[test]
    fn a_bad_value_is_refused_with_field_and_remedy() {
        config().check().unwrap();
        let cases = [
            ("endpoint", S3Config { endpoint: Some("127.0.0.1:9".to_owned()), ..config() }),
            ("endpoint", S3Config { endpoint: Some("http://".to_owned()), ..config() }),
            ("endpoint", S3Config { endpoint: Some("http://h/bucket".to_owned()), ..config() }),
            ("region", S3Config { region: String::new(), ..config() }),
            ("bucket", S3Config { bucket: "UPPER".to_owned(), ..config() }),
            ("bucket", S3Config { bucket: "b".to_owned(), ..config() }),
            ("prefix", S3Config { prefix: "/a".to_owned(), ..config() }),
            ("prefix", S3Config { prefix: "a//b".to_owned(), ..config() }),
            ("caBundle", S3Config { ca_pem: Some("x".to_owned()), ..config() }),
            (
                "caBundle",
                S3Config { ca_pem: Some("x".to_owned()), endpoint: Some("https://h".to_owned()), ..config() },
            ),
            ("maxConcurrency", S3Config { max_concurrency: 0, ..config() }),
        ];
        for (field, config) in cases {
            let refused = config.check().expect_err(field);
            assert_eq!(refused.field, field);
            assert!(!refused.fix.is_empty());
        }
    }

    #[test]
    fn a_secret_is_not_in_the_debug_text() {
        let text = format!("{:?}", config());
        assert!(text.contains("\"id\"") && !text.contains("hush"), "{text}");
    }

    #[test]
    fn a_large_body_gets_more_time() {
        let limit = |bytes, doublings| Timeouts::default().attempt_for(bytes).doubled(doublings).as_secs();
        assert_eq!([limit(0, 0), limit((16 << 20) + 1, 0)], [5, 22]);
        assert_eq!([limit(0, 1), limit(16 << 20, 1)], [10, 42]);
        assert_eq!([limit(0, 6), limit(16 << 20, 6)], [20, 20 + 16 * 64], "the head has its own bound");
    }
}
