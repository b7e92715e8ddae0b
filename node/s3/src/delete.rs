//! Deletes immutable keys unconditionally; a missing object counts as deleted.
//!
//! One object is one `DELETE`, up to 1,000 are one `DeleteObjects`. Some servers do not support that request,
//! or require a checksum in it that others reject: if it is rejected, the objects are deleted one by one.

use std::collections::HashSet;

use aws_sdk_s3::{
    operation::delete_objects::DeleteObjectsOutput,
    types::{Delete, ObjectIdentifier},
};
use futures::future::try_join_all;
use holdfast_objects::{ErrorKind, StoreError, Verb};

use crate::{
    classify::{classify, classify_code, foreign},
    store::S3Store,
};

/// Maximum keys in one request: <https://docs.aws.amazon.com/AmazonS3/latest/API/API_DeleteObjects.html>.
const MAX_KEYS: usize = 1000;
/// Parallel requests when deleting one by one.
const PARALLEL: usize = 16;

impl S3Store {
    pub(crate) async fn delete_objects(&self, keys: &[&str]) -> Result<(), StoreError> {
        for batch in keys.chunks(MAX_KEYS) {
            match batch {
                [key] => self.delete_object(key).await?,
                _ => self.delete_batch(batch).await?,
            }
        }
        Ok(())
    }

    #[tracing::instrument(skip_all, fields(bucket = %self.config.bucket, key))]
    pub(crate) async fn delete_object(&self, key: &str) -> Result<(), StoreError> {
        let full = self.full_key(key)?;
        let answer = self
            .repeat(Verb::Delete, self.config.timeouts.attempt_for(0), || async {
                let delete = self.client.delete_object().bucket(&self.config.bucket).key(&full);
                match delete.send().await {
                    Ok(_) => Ok(((), 0)),
                    Err(failure) => Err(classify(failure, &self.config.bucket, key)),
                }
            })
            .await;
        match answer {
            Err(StoreError::NotFound { .. }) => Ok(()),
            answer => answer,
        }
    }

    #[tracing::instrument(skip_all, fields(bucket = %self.config.bucket, keys = keys.len()))]
    async fn delete_batch(&self, keys: &[&str]) -> Result<(), StoreError> {
        let full: Vec<String> = keys.iter().map(|key| self.full_key(key)).collect::<Result<_, _>>()?;
        let identify = |key: &String| ObjectIdentifier::builder().key(key).build().expect("the key is set");
        let delete = Delete::builder().set_objects(Some(full.iter().map(identify).collect())).build();
        let delete = delete.expect("the objects are set");
        let answer = self
            .repeat(Verb::Delete, self.config.timeouts.attempt_for(0), || async {
                let request = self.client.delete_objects().bucket(&self.config.bucket).delete(delete.clone());
                match request.send().await {
                    Ok(answer) => Ok((check(&answer, &full, &self.config.bucket)?, 0)),
                    Err(failure) => Err(classify(failure, &self.config.bucket, "")),
                }
            })
            .await;
        let Err(StoreError::Refused { code, .. }) = &answer else { return answer };
        tracing::debug!(code, "a request to delete many objects was refused");
        for some in keys.chunks(PARALLEL) {
            try_join_all(some.iter().map(|key| self.delete_object(key))).await?;
        }
        Ok(())
    }
}

/// Checks that the server deleted each of `keys`: its response names them all.
fn check(answer: &DeleteObjectsOutput, keys: &[String], bucket: &str) -> Result<(), StoreError> {
    let mut unnamed: HashSet<&str> = keys.iter().map(String::as_str).collect();
    for deleted in answer.deleted() {
        unnamed.remove(deleted.key().unwrap_or_default());
    }
    for failed in answer.errors() {
        let error = classify_code(failed.code().unwrap_or_default(), failed.message(), bucket);
        if error.kind() != ErrorKind::NotFound {
            return Err(error);
        }
        unnamed.remove(failed.key().unwrap_or_default());
    }
    if unnamed.is_empty() { Ok(()) } else { Err(foreign(200, "the names of the objects that it deleted")) }
}

#[cfg(test)]
mod tests {
    use aws_sdk_s3::types::{DeletedObject, Error};

    use super::*;

    fn outcome(deleted: &[&str], failed: &[(&str, &str)]) -> Result<(), ErrorKind> {
        let keys = ["a", "b"].map(str::to_owned);
        let object = |key: &&str| DeletedObject::builder().key(*key).build();
        let error = |(key, code): &(&str, &str)| Error::builder().key(*key).code(*code).build();
        let answer = DeleteObjectsOutput::builder()
            .set_deleted(Some(deleted.iter().map(object).collect()))
            .set_errors(Some(failed.iter().map(error).collect()))
            .build();
        check(&answer, &keys, "bucket").map_err(|error| error.kind())
    }

    #[test]
    fn every_object_must_be_named_as_deleted() {
        assert_eq!(outcome(&["b", "a"], &[]), Ok(()));
        assert_eq!(outcome(&["a"], &[("b", "NoSuchKey")]), Ok(()));
        assert_eq!(outcome(&["a"], &[]), Err(ErrorKind::Unavailable));
        assert_eq!(outcome(&[], &[]), Err(ErrorKind::Unavailable));
    }

    #[test]
    fn the_error_of_one_object_has_its_own_meaning() {
        let cases = [
            ("AccessDenied", ErrorKind::Denied),
            ("SlowDown", ErrorKind::Throttled),
            ("InternalError", ErrorKind::Unavailable),
            ("ServiceUnavailable", ErrorKind::Unavailable),
            ("MalformedXML", ErrorKind::Invalid),
        ];
        for (code, kind) in cases {
            assert_eq!(outcome(&["a"], &[("b", code)]), Err(kind), "{code}");
        }
    }
}
