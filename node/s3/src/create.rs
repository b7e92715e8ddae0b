//! Create-once PUT: sent once, and honest about not knowing.

use std::time::Instant;

use aws_sdk_s3::primitives::ByteStream;
use bytes::Bytes;
use holdfast_objects::{CreateError, Created, Verb};

use crate::{
    attempt::{Lane, RequestAttempt},
    classify::{WriteEffect, classify, foreign},
    store::S3Store,
};

impl S3Store {
    pub(crate) async fn create_object(&self, key: &str, body: Bytes) -> Result<Created, CreateError> {
        self.create_object_in(Lane::First, key, body).await
    }

    #[tracing::instrument(skip_all, fields(bucket = %self.config.bucket, key, bytes = body.len()))]
    pub(crate) async fn create_object_in(
        &self,
        lane: Lane,
        key: &str,
        body: Bytes,
    ) -> Result<Created, CreateError> {
        let full = self.full_key(key).map_err(CreateError::Failed)?;
        self.availability.admit(Instant::now()).map_err(CreateError::Failed)?;
        let body_bytes = body.len() as u64;
        let request = async {
            let put = self
                .client
                .put_object()
                .bucket(&self.config.bucket)
                .key(full)
                .if_none_match("*")
                .body(ByteStream::from(body))
                .customize();
            let put = if self.config.is_tls() { put.disable_payload_signing() } else { put };
            match put.send().await {
                Ok(put) if put.e_tag.is_some() => Ok((Created, body_bytes)),
                Ok(_) => Err(CreateError::Ambiguous(foreign(200, "ETag"))),
                Err(failure) => {
                    let failure = classify(failure, &self.config.bucket, key);
                    Err(match failure.effect {
                        WriteEffect::Exists => CreateError::Exists { key: key.to_owned() },
                        WriteEffect::Unknown => CreateError::Ambiguous(failure.error),
                        WriteEffect::None => CreateError::Failed(failure.error),
                    })
                }
            }
        };
        let failed = |error: &CreateError| !matches!(error, CreateError::Exists { .. });
        let limit = self.config.timeouts.attempt_for(body_bytes);
        let attempt = RequestAttempt { verb: Verb::Put, lane, limit };
        self.attempt(attempt, request, CreateError::Ambiguous, failed).await
    }
}
