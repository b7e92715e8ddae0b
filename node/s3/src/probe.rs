//! Probe of a bucket: checks that it is fit for volumes, before an object store becomes Ready and
//! periodically afterwards.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures::future::join_all;
use holdfast_objects::{Blocker, CreateError, Created, ErrorKind, StoreError};

use crate::{
    classify::{BrokenAnswer, ForeignAnswer, LateCredentials, ServerFault, any_cause},
    clock::ServerClock,
    create::CreatePermit,
    proxies::Proxy,
    store::S3Store,
};

/// The requirement that a bucket fails, and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum ProbeFailure {
    /// The server is unreachable or does not answer.
    #[error("endpoint: the server cannot be reached; check the address, the network policy and the server")]
    Unreachable(#[source] StoreError),
    /// The proxy does not reach the server.
    #[error(
        "endpoint: the server cannot be reached through the proxy {proxy} ({variable}); check the proxy, or put the \
         server's host into NO_PROXY of the node daemons and the operator"
    )]
    ProxyFails {
        /// The proxy's host and port.
        proxy: String,
        /// The variable that names it.
        variable: &'static str,
        /// The failure.
        #[source]
        source: StoreError,
    },
    /// The server answers, but is throttling.
    #[error("endpoint: the server throttles requests; the check is retried")]
    Throttled(#[source] StoreError),
    /// The server reports an internal failure.
    #[error(
        "endpoint: the server reports an internal error (HTTP {status} {code}); check the server, or wait if it is \
         a provider's"
    )]
    ServerFails {
        /// HTTP status of the response.
        status: u16,
        /// The server's error code.
        code: String,
        /// The server's response.
        #[source]
        source: StoreError,
    },
    /// A different service answers at the address.
    #[error(
        "endpoint: a response does not come from an S3 server (HTTP {status} without {lacks}); check the address and the \
         proxies, portals and gateways in front of it"
    )]
    NotS3 {
        /// HTTP status of the response.
        status: u16,
        /// The missing part, which S3 always sends.
        lacks: &'static str,
        /// The response.
        #[source]
        source: StoreError,
    },
    /// Responses end prematurely.
    #[error(
        "endpoint: the server's responses end prematurely; check the server, and the network and proxies in \
         front of it"
    )]
    AnswersBreakOff(#[source] StoreError),
    /// Another operation on the bucket is in progress.
    #[error(
        "bucket: the server is still processing another operation on it, such as its creation or deletion; the \
         check is retried"
    )]
    Busy(#[source] StoreError),
    /// The server's certificate is not trusted.
    #[error("caBundle: the server's certificate is not trusted; provide the authority that signed it")]
    Untrusted(#[source] StoreError),
    /// No bucket has this name.
    #[error("bucket: {bucket} does not exist; create it or correct the name")]
    NoBucket {
        /// The bucket's name.
        bucket: String,
    },
    /// The bucket is in another region.
    #[error(
        "region: the bucket is not in {region}, or not behind this endpoint; set the bucket's own region, and the \
         endpoint of that region"
    )]
    WrongRegion {
        /// The configured region.
        region: String,
        /// The server's response.
        #[source]
        source: StoreError,
    },
    /// The server does not know the credentials.
    #[error("credentials: the server does not accept them ({code}); check the key pair or role")]
    BadCredentials {
        /// The server's error code.
        code: String,
        /// The server's response.
        #[source]
        source: StoreError,
    },
    /// The source of the credentials does not answer.
    #[error(
        "credentials: the token service (AWS STS, or the metadata service of the node) does not answer; check it, \
         and the network policies and proxies in front of it"
    )]
    LateCredentials(#[source] StoreError),
    /// The server does not tell a missing object from one that the credentials may not read.
    #[error(
        "credentials: the server answers {code}, not 404, for a missing object; allow s3:ListBucket on the bucket, \
         without a condition that requires a prefix"
    )]
    MissingDenied {
        /// The server's error code.
        code: String,
        /// The server's response.
        #[source]
        source: StoreError,
    },
    /// A cause other than missing rights blocks the request.
    #[error("{}: {} ({code}, to {action}); {}", blocker.field(), blocker.state(), blocker.fix())]
    Blocked {
        /// The cause.
        blocker: Blocker,
        /// The operation.
        action: &'static str,
        /// The server's error code.
        code: String,
        /// The server's response.
        #[source]
        source: StoreError,
    },
    /// The credentials are known, but lack the permission.
    #[error("credentials: not allowed to {action} ({code}); extend the bucket policy or role")]
    NotAllowed {
        /// The operation.
        action: &'static str,
        /// The server's error code.
        code: String,
        /// The server's response.
        #[source]
        source: StoreError,
    },
    /// A second create of the same key succeeded or replaced the object: two writers could own one volume.
    #[error(
        "bucket: the server accepts If-None-Match but ignores it, so two nodes could write one volume; \
         use a server with conditional writes"
    )]
    CreateOnceIgnored,
    /// Several concurrent creates of one key succeeded, or the object is not the winner's: two writers could
    /// own one volume.
    #[error(
        "endpoint: the server lets several creates of one key at once succeed (If-None-Match is not atomic), \
         so two nodes could write one volume; use a server with atomic conditional writes, without a proxy \
         that imitates them"
    )]
    CreateOnceNotAtomic,
    /// The server rejects create-once requests.
    #[error("bucket: the server does not support conditional writes (If-None-Match); use one that does")]
    CreateOnceUnsupported(#[source] StoreError),
    /// An object is not read back as written.
    #[error(
        "bucket: an object read back differs from the written one; check the server and the proxies in front of it"
    )]
    BadRead(#[source] StoreError),
    /// The server rejected another request.
    #[error(
        "bucket: the server refused to {action} ({code}); use a server that supports all requests that Holdfast sends"
    )]
    Refused {
        /// The operation.
        action: &'static str,
        /// The server's error code.
        code: String,
        /// The server's response.
        #[source]
        source: StoreError,
    },
}

impl ProbeFailure {
    /// Returns the related field of the `ObjectStore` resource.
    pub const fn field(&self) -> &'static str {
        match self {
            Self::Unreachable(_)
            | Self::ProxyFails { .. }
            | Self::Throttled(_)
            | Self::ServerFails { .. }
            | Self::NotS3 { .. }
            | Self::AnswersBreakOff(_)
            | Self::CreateOnceNotAtomic => "endpoint",
            Self::Blocked { blocker, .. } => blocker.field(),
            Self::Untrusted(_) => "caBundle",
            Self::WrongRegion { .. } => "region",
            Self::BadCredentials { .. }
            | Self::LateCredentials(_)
            | Self::NotAllowed { .. }
            | Self::MissingDenied { .. } => "credentials",
            Self::NoBucket { .. }
            | Self::Busy(_)
            | Self::CreateOnceIgnored
            | Self::CreateOnceUnsupported(_)
            | Self::BadRead(_)
            | Self::Refused { .. } => "bucket",
        }
    }

    /// Returns the failure as a condition's reason.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Unreachable(_) => "Unreachable",
            Self::ProxyFails { .. } => "ProxyFails",
            Self::Throttled(_) => "Throttled",
            Self::ServerFails { .. } => "ServerFails",
            Self::NotS3 { .. } => "NotS3",
            Self::AnswersBreakOff(_) => "AnswersBreakOff",
            Self::Busy(_) => "BucketBusy",
            Self::Blocked { blocker, .. } => blocker.reason(),
            Self::LateCredentials(_) => Blocker::NoCredentials.reason(),
            Self::Untrusted(_) => "CertificateNotTrusted",
            Self::NoBucket { .. } => "BucketNotFound",
            Self::WrongRegion { .. } => "WrongRegion",
            Self::BadCredentials { .. } => "CredentialsRejected",
            Self::NotAllowed { .. } | Self::MissingDenied { .. } => "AccessDenied",
            Self::CreateOnceIgnored => "CreateOnceIgnored",
            Self::CreateOnceNotAtomic => "CreateOnceNotAtomic",
            Self::CreateOnceUnsupported(_) => "CreateOnceUnsupported",
            Self::BadRead(_) => "ReadBackFailed",
            Self::Refused { .. } => "Refused",
        }
    }

    /// Reasons for which a server could let two nodes write one volume, so no attach may rely on it.
    pub const UNFENCED: [&str; 2] = ["CreateOnceIgnored", "CreateOnceNotAtomic"];

    /// Returns true if a later attempt may succeed without user action.
    pub const fn is_passing(&self) -> bool {
        matches!(
            self,
            Self::Unreachable(_)
                | Self::ProxyFails { .. }
                | Self::Throttled(_)
                | Self::ServerFails { .. }
                | Self::NotS3 { .. }
                | Self::AnswersBreakOff(_)
                | Self::LateCredentials(_)
                | Self::Busy(_)
        )
    }
}

/// Findings of a successful probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probed {
    /// The server's clock.
    pub clock: ServerClock,
}

/// Age from which a probe object counts as left behind by a killed process.
const ABANDONED_AFTER: Duration = Duration::from_secs(3600);
/// Maximum number of such objects that a probe deletes.
const MAX_ABANDONED: usize = 16;
const PREFIX: &str = "probe/";
/// Sequential probe keys. The first creates also open the connections, so that later creates are sent at the
/// same time.
const ROUNDS: usize = 3;
/// Concurrent creates of a key.
const RACERS: usize = 4;

/// Returns the body of a create, different for each create of a key.
fn body(number: usize) -> Bytes {
    format!("holdfast probe: {number}").into()
}

/// Returns true for the name of a probe object; other programs may use the prefix, too.
fn is_probe_key(key: &str) -> bool {
    let name = key.strip_prefix(PREFIX).unwrap_or_default();
    name.len() == 32 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

impl S3Store {
    /// Checks all requirements of volumes: list, create-once (one of several concurrent creates wins, and a
    /// later one fails), read, delete, and "not found" for a missing object. Costs 15 PUTs, one LIST, four
    /// GETs and three DELETEs, and another DELETE for each listed object of a killed process's probe.
    ///
    /// # Errors
    /// The first requirement that the bucket fails.
    #[tracing::instrument(skip_all, fields(bucket = %self.config.bucket))]
    pub async fn probe(&self) -> Result<Probed, ProbeFailure> {
        self.availability.forget();
        let listed = self
            .list_objects(PREFIX, None, MAX_ABANDONED)
            .await
            .map_err(|error| self.explain("list objects", error))?;
        let new_key = || format!("{PREFIX}{:032x}", fastrand::u128(..));
        let mut keys = Vec::new();
        let mut probed = Ok(ServerClock::Unknown);
        while keys.len() < ROUNDS && probed.is_ok() {
            let key = new_key();
            probed = self.probe_create_once(&key).await;
            keys.push(key);
        }
        let deleted = join_all(keys.iter().map(|key| self.delete_object(key))).await;
        let clock = probed?;
        let deleted: Result<(), StoreError> = deleted.into_iter().collect();
        deleted.map_err(|error| self.explain("delete objects", error))?;
        self.probe_missing(&new_key()).await?;
        for abandoned in &listed.entries {
            if listed.age(abandoned) >= ABANDONED_AFTER
                && is_probe_key(&abandoned.key)
                && let Err(error) = self.delete_object(&abandoned.key).await
            {
                // The bucket meets every requirement; a later probe retries.
                tracing::warn!(
                    key = abandoned.key,
                    error = &error as &dyn std::error::Error,
                    "an object of an earlier probe was not deleted"
                );
            }
        }
        Ok(Probed { clock })
    }

    /// Checks that a probed bucket still answers, and accepts the credentials. Costs one LIST.
    ///
    /// # Errors
    /// Those of [`Self::probe`].
    #[tracing::instrument(skip_all, fields(bucket = %self.config.bucket))]
    pub async fn ping(&self) -> Result<(), ProbeFailure> {
        self.availability.forget();
        let listed = self.list_objects(PREFIX, None, 1).await;
        listed.map(drop).map_err(|error| self.explain("list objects", error))
    }

    /// Creates one key several times concurrently, and once more after that; the object must then be that of
    /// the only successful create. A server that checks the key first, and stores the object later, confirms
    /// two of them, unless its gap between check and store is shorter than the time between any two arrivals.
    async fn probe_create_once(&self, key: &str) -> Result<ServerClock, ProbeFailure> {
        let begun = SystemTime::now();
        let answers = {
            // No racer waits for a permit behind other requests.
            let _permits = self.permits.acquire_first(RACERS).await;
            join_all(
                (0..RACERS).map(|racer| self.create_object_with(CreatePermit::OfCaller, key, body(racer))),
            )
            .await
        };
        let ended = SystemTime::now();
        let (mut winners, mut in_doubt, mut failed) = (Vec::new(), Vec::new(), None);
        for (racer, answer) in answers.into_iter().enumerate() {
            match answer {
                Ok(Created) => winners.push(racer),
                Err(CreateError::Exists { .. }) => {}
                // Amazon's response to some of several concurrent creates: the object shows which one won.
                Err(CreateError::Ambiguous(StoreError::Conflict(_))) => in_doubt.push(racer),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        if let Some(error) = failed.filter(|_| winners.len() < 2) {
            return Err(self.explain_create(error));
        }
        match (winners.len(), self.create_object(key, body(RACERS)).await) {
            (0, Ok(Created)) => winners.push(RACERS),
            (_, Ok(Created)) => return Err(ProbeFailure::CreateOnceIgnored),
            (2.., Err(_)) => return Err(ProbeFailure::CreateOnceNotAtomic),
            (1, Err(CreateError::Exists { .. })) => {}
            (0, Err(CreateError::Exists { .. })) if !in_doubt.is_empty() => winners = in_doubt,
            (_, Err(error)) => return Err(self.explain_create(error)),
        }
        let read = self.get_dated_object(key, body(RACERS).len() as u64).await;
        let (body_read, stored) = read.map_err(|error| self.explain("read objects", error))?;
        if winners.iter().any(|winner| body_read == body(*winner)) {
            Ok(ServerClock::of(stored, begun, ended))
        } else if body_read == body(RACERS) {
            Err(ProbeFailure::CreateOnceIgnored)
        } else if (0..RACERS).any(|racer| body_read == body(racer)) {
            Err(ProbeFailure::CreateOnceNotAtomic)
        } else {
            Err(ProbeFailure::BadRead(StoreError::BadAnswer { field: "body" }))
        }
    }

    /// Reads an object that does not exist.
    async fn probe_missing(&self, key: &str) -> Result<(), ProbeFailure> {
        match self.get_dated_object(key, 1).await {
            Ok(_) => Err(ProbeFailure::BadRead(StoreError::BadAnswer { field: "body" })),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => {
                let failure = self.explain("read objects", error);
                if let ProbeFailure::NotAllowed { code, source, .. } = failure {
                    return Err(ProbeFailure::MissingDenied { code, source });
                }
                Err(failure)
            }
        }
    }

    fn explain_create(&self, error: CreateError) -> ProbeFailure {
        match error {
            CreateError::Failed(StoreError::Refused { code, source })
                if matches!(code.as_str(), "NotImplemented" | "HTTP 501" | "InvalidArgument") =>
            {
                ProbeFailure::CreateOnceUnsupported(StoreError::Refused { code, source })
            }
            CreateError::Failed(error) | CreateError::Ambiguous(error) => {
                self.explain("create objects", error)
            }
            // A fresh random key exists: the server answers every create with 412.
            CreateError::Exists { key } => ProbeFailure::CreateOnceUnsupported(StoreError::Conflict(
                format!("{key} did not exist").into(),
            )),
        }
    }

    fn explain(&self, action: &'static str, error: StoreError) -> ProbeFailure {
        // Servers other than Amazon's report "not signed up" for a key that they do not know.
        const UNKNOWN_CALLER: [&str; 6] = [
            "InvalidAccessKeyId",
            "SignatureDoesNotMatch",
            "InvalidToken",
            "ExpiredToken",
            "InvalidClientTokenId",
            "NotSignedUp",
        ];
        if let StoreError::NoBucket { bucket } = error {
            return ProbeFailure::NoBucket { bucket };
        }
        if let StoreError::Denied { code, .. } = &error {
            let code = code.clone();
            return if UNKNOWN_CALLER.contains(&code.as_str()) {
                ProbeFailure::BadCredentials { code, source: error }
            } else {
                ProbeFailure::NotAllowed { action, code, source: error }
            };
        }
        if let StoreError::Blocked { blocker, code, .. } = &error {
            if *blocker == Blocker::Region {
                return ProbeFailure::WrongRegion { region: self.config.region.clone(), source: error };
            }
            return ProbeFailure::Blocked { blocker: *blocker, action, code: code.clone(), source: error };
        }
        if let StoreError::Unavailable(cause) = &error {
            if names_certificate(cause.as_ref()) {
                return ProbeFailure::Untrusted(error);
            }
            if let Some(ForeignAnswer { status, lacks }) = cause.downcast_ref() {
                return ProbeFailure::NotS3 { status: *status, lacks, source: error };
            }
            if cause.is::<LateCredentials>() {
                return ProbeFailure::LateCredentials(error);
            }
            if cause.is::<BrokenAnswer>() {
                return ProbeFailure::AnswersBreakOff(error);
            }
            if let Some(ServerFault { status, code, .. }) = cause.downcast_ref() {
                return ProbeFailure::ServerFails { status: *status, code: code.clone(), source: error };
            }
        }
        match error.kind() {
            ErrorKind::Throttled => ProbeFailure::Throttled(error),
            ErrorKind::Conflict => ProbeFailure::Busy(error),
            ErrorKind::Unavailable | ErrorKind::Ambiguous => match &self.proxy {
                Some(Proxy { host, variable, .. }) => {
                    ProbeFailure::ProxyFails { proxy: host.clone(), variable, source: error }
                }
                None => ProbeFailure::Unreachable(error),
            },
            ErrorKind::NotFound | ErrorKind::Corrupt => ProbeFailure::BadRead(error),
            ErrorKind::Denied | ErrorKind::Blocked(_) | ErrorKind::Invalid | ErrorKind::Exists => {
                let code = if let StoreError::Refused { code, .. } = &error {
                    code.clone()
                } else {
                    error.to_string()
                };
                ProbeFailure::Refused { action, code, source: error }
            }
        }
    }
}

/// Returns true if a connection failed for lack of trust, not because of the network.
fn names_certificate(cause: &(dyn std::error::Error + 'static)) -> bool {
    any_cause(cause, &|cause| {
        let tls = cause.downcast_ref::<rustls::Error>();
        tls.is_some_and(|tls| matches!(tls, rustls::Error::InvalidCertificate(_)))
    })
}
