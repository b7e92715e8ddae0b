//! Delete: plain, for immutable keys; a missing object counts as deleted.

use holdfast_objects::{StoreError, Verb};

use crate::{classify::classify, store::S3Store};

impl S3Store {
    #[tracing::instrument(skip_all, fields(bucket = %self.config.bucket, key))]
    pub(crate) async fn delete_object(&self, key: &str) -> Result<(), StoreError> {
        let full = self.full_key(key)?;
        let answer = self
            .repeat(Verb::Delete, self.config.timeouts.attempt, || async {
                let delete = self.client.delete_object().bucket(&self.config.bucket).key(&full);
                match delete.send().await {
                    Ok(_) => Ok(((), 0)),
                    Err(failure) => Err(classify(failure, &self.config.bucket, key).error),
                }
            })
            .await;
        match answer {
            Err(StoreError::NotFound { .. }) => Ok(()),
            answer => answer,
        }
    }
}
