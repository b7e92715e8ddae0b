//! Create-once PUT: retried only if nothing was written; otherwise reports an unknown outcome.
//!
//! After a throttling response, nothing was written, and the same bytes are sent again. If the key then
//! exists, the object may still be this call's own, so the caller reads it back.

use std::time::Instant;

use aws_sdk_s3::primitives::ByteStream;
use bytes::Bytes;
use holdfast_objects::{CreateError, Created, Decision, ErrorKind, StoreError};

use crate::{
    attempt::BodyBytes,
    classify::{RequestFailure, WriteEffect, classify, foreign},
    request_class::RequestClass,
    store::S3Store,
};

/// The permit used by the attempts of a create.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CreatePermit {
    /// One per attempt.
    Own,
    /// One held by the caller.
    OfCaller,
}

impl S3Store {
    pub(crate) async fn create_object(&self, key: &str, body: Bytes) -> Result<Created, CreateError> {
        self.create_object_with(CreatePermit::Own, key, body).await
    }

    #[tracing::instrument(
        name = "create_object",
        skip_all,
        fields(bucket = %self.config.bucket, key, bytes = body.len())
    )]
    pub(crate) async fn create_object_with(
        &self,
        permit: CreatePermit,
        key: &str,
        body: Bytes,
    ) -> Result<Created, CreateError> {
        let full = self.full_key(key).map_err(CreateError::Failed)?;
        let limit = self.config.timeouts.attempt_for(body.len() as u64);
        let begun = Instant::now();
        let mut attempt = 1;
        loop {
            self.availability.admit(RequestClass::CREATE).await.map_err(CreateError::Failed)?;
            let put = self.create_once(key, &full, body.clone());
            let sent = match permit {
                CreatePermit::Own => self.attempt(RequestClass::CREATE, limit, put).await,
                CreatePermit::OfCaller => self.permitted_attempt(RequestClass::CREATE, limit, put).await,
            };
            let failure = match sent {
                Ok(created) => return Ok(created),
                Err(failure) => failure,
            };
            match failure.effect {
                WriteEffect::Exists if attempt == 1 => {
                    return Err(CreateError::Exists { key: key.to_owned() });
                }
                WriteEffect::Exists => {
                    return Err(CreateError::Ambiguous(StoreError::Conflict(failure.error.into())));
                }
                WriteEffect::Unknown => return Err(CreateError::Ambiguous(failure.error)),
                WriteEffect::None => {}
            }
            match self.decide(attempt, begun.elapsed(), &failure) {
                Decision::RetryAfter(wait) if failure.error.kind() == ErrorKind::Throttled => {
                    tracing::debug!(attempt, ?wait, "retrying a create that was throttled");
                    tokio::time::sleep(wait).await;
                    attempt += 1;
                }
                Decision::RetryAfter(_) | Decision::Fail => return Err(CreateError::Failed(failure.error)),
            }
        }
    }

    /// Sends the request once.
    async fn create_once(
        &self,
        key: &str,
        full: &str,
        body: Bytes,
    ) -> Result<(Created, BodyBytes), RequestFailure> {
        let body_bytes = body.len() as u64;
        let put = self.client.put_object().bucket(&self.config.bucket).key(full);
        let put = put.if_none_match("*").body(ByteStream::from(body)).customize();
        let put = if self.config.is_tls() { put.disable_payload_signing() } else { put };
        match put.send().await {
            Ok(put) if put.e_tag.is_some() => Ok((Created, body_bytes)),
            Ok(_) => Err(foreign(200, "ETag").into()),
            Err(failure) => Err(classify(failure, &self.config.bucket, key)),
        }
    }
}
