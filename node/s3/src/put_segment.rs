//! Segment upload: one PUT for one part, a multipart upload for several. Idempotent, because no other writer
//! uses the key.
//!
//! A part is in memory from its creation until it is stored; the producer limits their number. Its bytes are
//! kept for retries, which the retry policy bounds (`attempt.rs`); the first part that fails permanently ends
//! the upload.

use std::pin::pin;

use aws_sdk_s3::{
    primitives::ByteStream,
    types::{CompletedMultipartUpload, CompletedPart},
};
use bytes::Bytes;
use futures::stream::{FuturesUnordered, StreamExt};
use holdfast_objects::{Parts, SegmentError, StoreError, Verb};
use tokio::sync::SetOnce;

use crate::{
    classify::{classify, foreign},
    request_class::RequestClass,
    store::S3Store,
};

/// A multipart upload.
#[derive(Clone, Copy)]
struct Upload<'a> {
    key: &'a str,
    /// The key, including the bucket's prefix.
    full: &'a str,
    /// Set once the upload is started.
    id: &'a SetOnce<String>,
}

/// The stored parts of an upload, in order, and their length.
struct StoredParts {
    parts: Vec<CompletedPart>,
    bytes: u64,
}

impl S3Store {
    #[tracing::instrument(skip_all, fields(bucket = %self.config.bucket, key))]
    pub(crate) async fn put_segment_object(
        &self,
        key: &str,
        parts: &mut dyn Parts,
    ) -> Result<(), SegmentError> {
        let full = self.full_key(key)?;
        let first = parts.next().await?;
        if first.is_last {
            return Ok(self.put_whole(key, &full, first.bytes).await?);
        }
        self.put_in_parts(key, &full, first.bytes, parts).await
    }

    async fn put_whole(&self, key: &str, full: &str, body: Bytes) -> Result<(), StoreError> {
        let body_bytes = body.len() as u64;
        let class = RequestClass::segment(body.len());
        self.repeat_as(class, self.config.timeouts.attempt_for(body_bytes), || async {
            let put = self.client.put_object().bucket(&self.config.bucket).key(full);
            let put = put.body(ByteStream::from(body.clone())).customize();
            let put = if self.config.is_tls() { put.disable_payload_signing() } else { put };
            match put.send().await {
                Ok(put) if put.e_tag.is_some() => Ok(((), body_bytes)),
                Ok(_) => Err(foreign(200, "ETag").into()),
                Err(failure) => Err(classify(failure, &self.config.bucket, key)),
            }
        })
        .await
    }

    async fn put_in_parts(
        &self,
        key: &str,
        full: &str,
        first: Bytes,
        parts: &mut dyn Parts,
    ) -> Result<(), SegmentError> {
        let id = SetOnce::new();
        let upload = Upload { key, full, id: &id };
        // Parts are created while the upload is started.
        let mut start = pin!(self.start_upload(upload));
        let mut send = pin!(self.send_parts(upload, first, parts));
        let sent = tokio::select! {
            biased;
            started = &mut start => {
                started?;
                send.await
            }
            failed = &mut send => {
                start.await?;
                failed
            }
        };
        let done = match sent {
            Ok(sent) => {
                let bytes = sent.bytes;
                let completed = self.complete_upload(upload, sent).await;
                self.settle_complete(key, completed, bytes).await.map_err(SegmentError::from)
            }
            Err(error) => Err(error),
        };
        if done.is_err() {
            self.abort_failed(upload).await;
        }
        done
    }

    async fn start_upload(&self, upload: Upload<'_>) -> Result<(), StoreError> {
        let Upload { key, full, id } = upload;
        let started = self.repeat(Verb::StartUpload, self.config.timeouts.attempt_for(0), || async {
            let start = self.client.create_multipart_upload().bucket(&self.config.bucket).key(full);
            match start.send().await {
                Ok(started) => {
                    let upload = started.upload_id.ok_or_else(|| foreign(200, "UploadId"))?;
                    Ok((upload, 0))
                }
                Err(failure) => Err(classify(failure, &self.config.bucket, key)),
            }
        });
        id.set(started.await?).expect("it is started once");
        Ok(())
    }

    /// Creates and sends parts, several in parallel; the first failure ends the upload.
    async fn send_parts(
        &self,
        upload: Upload<'_>,
        first: Bytes,
        parts: &mut dyn Parts,
    ) -> Result<StoredParts, SegmentError> {
        let mut bytes = first.len() as u64;
        let mut numbers = 1..;
        let mut send = |chunk| {
            let number = numbers.next().expect("MAX_PARTS bounds their number");
            self.send_part(upload, number, chunk)
        };
        let mut sending = FuturesUnordered::from_iter([send(first)]);
        let mut sent = Vec::new();
        let mut is_last = false;
        loop {
            if is_last || sending.len() >= parts.max_at_once().max(1) {
                match sending.next().await {
                    Some(part) => sent.push(part?),
                    None => break,
                }
                continue;
            }
            let mut next_part = parts.next();
            let part = loop {
                tokio::select! {
                    Some(part) = sending.next() => sent.push(part?),
                    part = &mut next_part => break part?,
                }
            };
            bytes += part.bytes.len() as u64;
            is_last = part.is_last;
            sending.push(send(part.bytes));
        }
        sent.sort_unstable_by_key(CompletedPart::part_number);
        Ok(StoredParts { parts: sent, bytes })
    }

    async fn send_part(
        &self,
        upload: Upload<'_>,
        number: i32,
        chunk: Bytes,
    ) -> Result<CompletedPart, StoreError> {
        let Upload { key, full, id } = upload;
        let body_bytes = chunk.len() as u64;
        let id = id.wait().await;
        self.repeat(Verb::UploadPart, self.config.timeouts.attempt_for(body_bytes), || async {
            let send = self.client.upload_part().bucket(&self.config.bucket).key(full).upload_id(id);
            let send = send.part_number(number).body(ByteStream::from(chunk.clone())).customize();
            let send = if self.config.is_tls() { send.disable_payload_signing() } else { send };
            match send.send().await {
                Ok(sent) => {
                    let tag = sent.e_tag.ok_or_else(|| foreign(200, "ETag"))?;
                    Ok((CompletedPart::builder().part_number(number).e_tag(tag).build(), body_bytes))
                }
                Err(failure) => Err(classify(failure, &self.config.bucket, key)),
            }
        })
        .await
    }

    async fn complete_upload(&self, upload: Upload<'_>, sent: StoredParts) -> Result<(), StoreError> {
        let Upload { key, full, id } = upload;
        let id = id.wait().await;
        let parts = CompletedMultipartUpload::builder().set_parts(Some(sent.parts)).build();
        let limit = self.config.timeouts.completion_for(sent.bytes);
        self.repeat(Verb::CompleteUpload, limit, || async {
            let complete = self.client.complete_multipart_upload().bucket(&self.config.bucket).key(full);
            match complete.upload_id(id).multipart_upload(parts.clone()).send().await {
                Ok(done) if done.e_tag.is_some() => Ok(((), 0)),
                Ok(_) => Err(foreign(200, "ETag").into()),
                Err(failure) => Err(classify(failure, &self.config.bucket, key)),
            }
        })
        .await
    }

    /// Resolves a completion that finds no upload when retried after a lost response: looks up the object
    /// itself.
    async fn settle_complete(
        &self,
        key: &str,
        completed: Result<(), StoreError>,
        size_bytes: u64,
    ) -> Result<(), StoreError> {
        let is_missing =
            matches!(&completed, Err(StoreError::Refused { code, .. }) if code == "NoSuchUpload");
        if is_missing && self.get_object_suffix(key, 1).await.is_ok_and(|end| end.size_bytes == size_bytes) {
            return Ok(());
        }
        completed
    }

    /// Frees the parts of a failed upload. Sweeps abort remaining uploads, so an error is only logged.
    async fn abort_failed(&self, upload: Upload<'_>) {
        let Upload { key, full, id } = upload;
        let id = id.wait().await;
        let aborted = self
            .repeat(Verb::AbortUpload, self.config.timeouts.attempt_for(0), || async {
                let abort = self.client.abort_multipart_upload().bucket(&self.config.bucket).key(full);
                match abort.upload_id(id).send().await {
                    Ok(_) => Ok(((), 0)),
                    Err(failure) => Err(classify(failure, &self.config.bucket, key)),
                }
            })
            .await;
        if let Err(error) = aborted {
            tracing::debug!(key, %error, "the parts of a failed upload remain until a sweep aborts it");
        }
    }
}
