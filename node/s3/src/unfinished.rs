//! Unfinished multipart uploads: listed and aborted.
//!
//! Their parts appear in no object list, and are billed until the upload is aborted. A list page that could
//! attribute an upload to the wrong owner is an error.

use std::time::SystemTime;

use aws_sdk_s3::{operation::list_multipart_uploads::ListMultipartUploadsOutput, types::MultipartUpload};
use holdfast_objects::{MAX_UNFINISHED, StoreError, UnfinishedUpload, Verb};

use crate::{classify::classify, clock::AnswerDate, store::S3Store};

/// The uploads of one page, and the start of the next one.
type UploadPage = (Vec<UnfinishedUpload>, Option<(String, Option<String>)>);

impl S3Store {
    #[tracing::instrument(skip_all, fields(bucket = %self.config.bucket, prefix))]
    pub(crate) async fn list_unfinished(&self, prefix: &str) -> Result<Vec<UnfinishedUpload>, StoreError> {
        let full_prefix = format!("{}{prefix}", self.root());
        let (mut uploads, mut after) = (Vec::new(), None);
        loop {
            let (page, next) = self.unfinished_page(&full_prefix, after.as_ref()).await?;
            uploads.extend(page);
            if next.is_none() || next == after || uploads.len() >= MAX_UNFINISHED {
                return Ok(uploads);
            }
            after = next;
        }
    }

    async fn unfinished_page(
        &self,
        prefix: &str,
        after: Option<&(String, Option<String>)>,
    ) -> Result<UploadPage, StoreError> {
        self.repeat(Verb::List, self.config.timeouts.attempt_for(0), || async {
            let date = AnswerDate::default();
            let list = self
                .client
                .list_multipart_uploads()
                .bucket(&self.config.bucket)
                .prefix(prefix)
                .set_key_marker(after.map(|(key, _)| key.clone()))
                .set_upload_id_marker(after.and_then(|(_, id)| id.clone()))
                .customize()
                .interceptor(date.clone());
            match list.send().await {
                Ok(answer) => Ok((page(answer, self.root(), prefix, date.get())?, 0)),
                Err(failure) => Err(classify(failure, &self.config.bucket, "")),
            }
        })
        .await
    }

    /// Aborts an upload. A missing one counts as aborted.
    #[tracing::instrument(skip_all, fields(bucket = %self.config.bucket, key = upload.key))]
    pub(crate) async fn abort_unfinished(&self, upload: &UnfinishedUpload) -> Result<(), StoreError> {
        let full = self.full_key(&upload.key)?;
        let aborted = self
            .repeat(Verb::AbortUpload, self.config.timeouts.attempt_for(0), || async {
                let abort = self.client.abort_multipart_upload().bucket(&self.config.bucket).key(&full);
                match abort.upload_id(&upload.id).send().await {
                    Ok(_) => Ok(((), 0)),
                    Err(failure) => Err(classify(failure, &self.config.bucket, &upload.key)),
                }
            })
            .await;
        match aborted {
            Err(StoreError::Refused { code, .. }) if code == "NoSuchUpload" => Ok(()),
            aborted => aborted,
        }
    }
}

fn page(
    answer: ListMultipartUploadsOutput,
    root: &str,
    prefix: &str,
    now: Option<SystemTime>,
) -> Result<UploadPage, StoreError> {
    let next = match (answer.is_truncated, answer.next_key_marker) {
        (Some(true), Some(key)) => Some((key, answer.next_upload_id_marker)),
        (Some(true), None) => return Err(StoreError::BadAnswer { field: "NextKeyMarker" }),
        (Some(false) | None, _) => None,
    };
    let uploads = answer.uploads.unwrap_or_default().into_iter();
    // Some servers ignore the prefix.
    let ours = uploads.filter(|upload| upload.key().is_none_or(|key| key.starts_with(prefix)));
    let uploads = ours.map(|upload| unfinished(upload, root, now)).collect::<Result<_, _>>()?;
    Ok((uploads, next))
}

fn unfinished(
    upload: MultipartUpload,
    root: &str,
    now: Option<SystemTime>,
) -> Result<UnfinishedUpload, StoreError> {
    let missing = |field| StoreError::BadAnswer { field };
    let full = upload.key.ok_or(missing("Key"))?;
    let key = full.strip_prefix(root).ok_or(missing("Key"))?.to_owned();
    let id = upload.upload_id.ok_or(missing("UploadId"))?;
    let begun = upload.initiated.and_then(|at| SystemTime::try_from(at).ok());
    let age = begun.zip(now).and_then(|(begun, now)| now.duration_since(begun).ok());
    Ok(UnfinishedUpload { key, id, age: age.unwrap_or_default() })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use aws_sdk_s3::primitives::DateTime;

    use super::*;

    fn answer(keys: &[&str], next: Option<&str>) -> ListMultipartUploadsOutput {
        let upload = |key: &&str| {
            MultipartUpload::builder().key(*key).upload_id("u").initiated(DateTime::from_secs(100)).build()
        };
        ListMultipartUploadsOutput::builder()
            .set_uploads(Some(keys.iter().map(upload).collect()))
            .is_truncated(next.is_some())
            .set_next_key_marker(next.map(str::to_owned))
            .build()
    }

    #[test]
    fn an_upload_is_as_old_as_the_store_says() {
        let at = |seconds| Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        for (now, age) in [(at(160), 60), (at(99), 0), (None, 0)] {
            let (uploads, next) = page(answer(&["r/v/a", "other/v/b"], None), "r/", "r/v/", now).unwrap();
            let expected =
                UnfinishedUpload { key: "v/a".to_owned(), id: "u".to_owned(), age: Duration::from_secs(age) };
            assert_eq!((uploads, next), (vec![expected], None));
        }
        let (_, next) = page(answer(&["r/v/a"], Some("r/v/a")), "r/", "r/v/", None).unwrap();
        assert_eq!(next, Some(("r/v/a".to_owned(), None)));
    }

    #[test]
    fn an_upload_without_an_id_is_refused() {
        let nameless = MultipartUpload::builder().key("r/v/a").build();
        let answer = ListMultipartUploadsOutput::builder().uploads(nameless).build();
        let refused = page(answer, "r/", "r/v/", None).expect_err("nothing names it");
        assert!(matches!(refused, StoreError::BadAnswer { field: "UploadId" }), "{refused:?}");
        let cut = ListMultipartUploadsOutput::builder().is_truncated(true).build();
        assert!(page(cut, "r/", "r/v/", None).is_err());
    }
}
