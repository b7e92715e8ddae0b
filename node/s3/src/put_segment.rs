//! Segment upload: one PUT up to the part size, a multipart upload above it. Repeatable, because nobody else ever
//! uses the key.

use aws_sdk_s3::{
    primitives::ByteStream,
    types::{CompletedMultipartUpload, CompletedPart},
};
use bytes::{Buf, Bytes, BytesMut};
use holdfast_objects::{StoreError, Verb};

use crate::{
    classify::{classify, foreign},
    store::S3Store,
};

impl S3Store {
    #[tracing::instrument(level = "debug", skip_all, fields(bucket = %self.config.bucket, key))]
    pub(crate) async fn put_segment_object(&self, key: &str, parts: Vec<Bytes>) -> Result<(), StoreError> {
        let full = self.full_key(key)?;
        let mut chunks = regroup(parts, self.config.part_bytes);
        match chunks.len() {
            0 => self.put_whole(key, &full, Bytes::new()).await,
            1 => self.put_whole(key, &full, chunks.swap_remove(0)).await,
            _ => self.put_in_parts(key, &full, &chunks).await,
        }
    }

    async fn put_whole(&self, key: &str, full: &str, body: Bytes) -> Result<(), StoreError> {
        let body_bytes = body.len() as u64;
        self.repeat(Verb::Put, self.config.timeouts.attempt_for(body_bytes), || async {
            let put = self.client.put_object().bucket(&self.config.bucket).key(full);
            let put = put.body(ByteStream::from(body.clone())).customize();
            let put = if self.config.is_tls() { put.disable_payload_signing() } else { put };
            match put.send().await {
                Ok(put) if put.e_tag.is_some() => Ok(((), body_bytes)),
                Ok(_) => Err(foreign(200, "ETag")),
                Err(failure) => Err(classify(failure, &self.config.bucket, key).error),
            }
        })
        .await
    }

    async fn put_in_parts(&self, key: &str, full: &str, chunks: &[Bytes]) -> Result<(), StoreError> {
        let upload = self.start_upload(key, full).await?;
        let sent = self.send_parts(key, full, &upload, chunks).await;
        let done = match sent {
            Ok(parts) => {
                let completed = self.complete_upload(key, full, &upload, parts).await;
                let size_bytes = chunks.iter().map(|chunk| chunk.len() as u64).sum();
                self.settle_complete(key, completed, size_bytes).await
            }
            Err(error) => Err(error),
        };
        if done.is_err() {
            self.abort_upload(key, full, &upload).await;
        }
        done
    }

    async fn start_upload(&self, key: &str, full: &str) -> Result<String, StoreError> {
        self.repeat(Verb::StartUpload, self.config.timeouts.attempt, || async {
            let start = self.client.create_multipart_upload().bucket(&self.config.bucket).key(full);
            match start.send().await {
                Ok(started) => {
                    let upload = started.upload_id.ok_or_else(|| foreign(200, "UploadId"))?;
                    Ok((upload, 0))
                }
                Err(failure) => Err(classify(failure, &self.config.bucket, key).error),
            }
        })
        .await
    }

    async fn send_parts(
        &self,
        key: &str,
        full: &str,
        upload: &str,
        chunks: &[Bytes],
    ) -> Result<Vec<CompletedPart>, StoreError> {
        let sends = (1..).zip(chunks).map(|(number, chunk)| self.send_part(key, full, upload, number, chunk));
        futures::future::try_join_all(sends).await
    }

    async fn send_part(
        &self,
        key: &str,
        full: &str,
        upload: &str,
        number: i32,
        chunk: &Bytes,
    ) -> Result<CompletedPart, StoreError> {
        let body_bytes = chunk.len() as u64;
        self.repeat(Verb::UploadPart, self.config.timeouts.attempt_for(body_bytes), || async {
            let send = self.client.upload_part().bucket(&self.config.bucket).key(full).upload_id(upload);
            let send = send.part_number(number).body(ByteStream::from(chunk.clone())).customize();
            let send = if self.config.is_tls() { send.disable_payload_signing() } else { send };
            match send.send().await {
                Ok(sent) => {
                    let tag = sent.e_tag.ok_or_else(|| foreign(200, "ETag"))?;
                    Ok((CompletedPart::builder().part_number(number).e_tag(tag).build(), body_bytes))
                }
                Err(failure) => Err(classify(failure, &self.config.bucket, key).error),
            }
        })
        .await
    }

    async fn complete_upload(
        &self,
        key: &str,
        full: &str,
        upload: &str,
        parts: Vec<CompletedPart>,
    ) -> Result<(), StoreError> {
        let parts = CompletedMultipartUpload::builder().set_parts(Some(parts)).build();
        let limit = self.config.timeouts.deadline;
        self.repeat(Verb::CompleteUpload, limit, || async {
            let complete = self.client.complete_multipart_upload().bucket(&self.config.bucket).key(full);
            match complete.upload_id(upload).multipart_upload(parts.clone()).send().await {
                Ok(done) if done.e_tag.is_some() => Ok(((), 0)),
                Ok(_) => Err(foreign(200, "ETag")),
                Err(failure) => Err(classify(failure, &self.config.bucket, key).error),
            }
        })
        .await
    }

    /// A completion that is tried again after its answer was lost finds no upload: then the object tells.
    async fn settle_complete(
        &self,
        key: &str,
        completed: Result<(), StoreError>,
        size_bytes: u64,
    ) -> Result<(), StoreError> {
        let gone = matches!(&completed, Err(StoreError::Refused { code, .. }) if code == "NoSuchUpload");
        if gone && self.get_object_suffix(key, 1).await.is_ok_and(|end| end.size_bytes == size_bytes) {
            return Ok(());
        }
        completed
    }

    /// Frees what an upload that failed left behind. The bucket's lifecycle rule is the fallback, so an error is
    /// only told.
    async fn abort_upload(&self, key: &str, full: &str, upload: &str) {
        let aborted = self
            .repeat(Verb::AbortUpload, self.config.timeouts.attempt, || async {
                let abort = self.client.abort_multipart_upload().bucket(&self.config.bucket).key(full);
                match abort.upload_id(upload).send().await {
                    Ok(_) => Ok(((), 0)),
                    Err(failure) => Err(classify(failure, &self.config.bucket, key).error),
                }
            })
            .await;
        if let Err(error) = aborted {
            tracing::debug!(key, %error, "the parts of a failed upload remain until the bucket expires them");
        }
    }
}

/// Cuts the concatenation of `parts` into pieces of `part_bytes`, the last one shorter; copies only where a piece
/// spans several parts.
fn regroup(parts: Vec<Bytes>, part_bytes: usize) -> Vec<Bytes> {
    let mut pieces = Vec::new();
    let mut open = BytesMut::new();
    for mut part in parts {
        while part.has_remaining() {
            let take = part.len().min(part_bytes - open.len());
            let cut = part.split_to(take);
            if open.is_empty() && take == part_bytes {
                pieces.push(cut);
                continue;
            }
            open.extend_from_slice(&cut);
            if open.len() == part_bytes {
                pieces.push(open.split().freeze());
            }
        }
    }
    if !open.is_empty() {
        pieces.push(open.freeze());
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_have_the_part_size_and_keep_every_byte_in_order() {
        let whole: Vec<u8> = (0..=200).collect();
        let cuts: [&[usize]; 5] = [&[], &[201], &[10, 10, 10], &[1, 99], &[64, 0, 64, 3]];
        for cut in cuts {
            let mut rest = Bytes::from(whole.clone());
            let mut parts: Vec<Bytes> = cut.iter().map(|len| rest.split_to(*len)).collect();
            parts.push(rest);
            let pieces = regroup(parts, 64);
            assert_eq!(pieces.iter().map(Bytes::len).collect::<Vec<_>>(), [64, 64, 64, 9], "{cut:?}");
            assert_eq!(pieces.concat(), whole, "{cut:?}");
        }
        assert!(regroup(vec![Bytes::new()], 64).is_empty());
    }
}
