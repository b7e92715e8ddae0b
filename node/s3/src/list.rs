//! One page of a list, checked: a page with skipped, repeated or disordered keys is an error.

use std::time::SystemTime;

use aws_sdk_s3::{operation::list_objects_v2::ListObjectsV2Output, types::Object};
use holdfast_objects::{Entry, MAX_PAGE_ENTRIES, Page, StoreError, Verb};

use crate::{classify::classify, store::S3Store};

impl S3Store {
    #[tracing::instrument(skip_all, fields(bucket = %self.config.bucket, prefix, start_after, limit))]
    pub(crate) async fn list_objects(
        &self,
        prefix: &str,
        start_after: Option<&str>,
        limit: usize,
    ) -> Result<Page, StoreError> {
        if limit == 0 {
            let rule = "ask for at least one entry";
            return Err(StoreError::Invalid { what: "limit", value: "0".to_owned(), rule });
        }
        let limit = limit.min(MAX_PAGE_ENTRIES) as i32;
        let full_prefix = format!("{}{prefix}", self.root());
        let full_start = start_after.map(|key| format!("{}{key}", self.root()));
        self.repeat(Verb::List, self.config.timeouts.attempt, || async {
            let list = self
                .client
                .list_objects_v2()
                .bucket(&self.config.bucket)
                .prefix(&full_prefix)
                .set_start_after(full_start.clone())
                .max_keys(limit);
            match list.send().await {
                Ok(answer) => Ok((page(answer, self.root(), prefix, start_after)?, 0)),
                Err(failure) => Err(classify(failure, &self.config.bucket, "").error),
            }
        })
        .await
    }
}

fn page(
    answer: ListObjectsV2Output,
    root: &str,
    prefix: &str,
    start_after: Option<&str>,
) -> Result<Page, StoreError> {
    let more = answer.is_truncated.unwrap_or(false);
    let mut entries: Vec<Entry> = Vec::with_capacity(answer.contents().len());
    for object in answer.contents.unwrap_or_default() {
        let entry = entry(object, root)?;
        let after = entries.last().map(|last| last.key.as_str()).or(start_after);
        if !entry.key.starts_with(prefix) || after.is_some_and(|after| entry.key.as_str() <= after) {
            return Err(StoreError::BadAnswer { field: "order of keys in a list" });
        }
        entries.push(entry);
    }
    if more && entries.is_empty() {
        return Err(StoreError::BadAnswer { field: "Contents in a truncated list" });
    }
    Ok(Page { entries, more })
}

fn entry(object: Object, root: &str) -> Result<Entry, StoreError> {
    let missing = |field| StoreError::BadAnswer { field };
    let full = object.key.ok_or(missing("Key"))?;
    let key = full.strip_prefix(root).ok_or(missing("Key"))?.to_owned();
    let size_bytes = object.size.and_then(|size| u64::try_from(size).ok()).ok_or(missing("Size"))?;
    let modified = object.last_modified.ok_or(missing("LastModified"))?;
    let last_modified = SystemTime::try_from(modified).map_err(|_before_1970| missing("LastModified"))?;
    Ok(Entry { key, size_bytes, last_modified })
}

#[cfg(test)]
mod tests {
    use aws_sdk_s3::primitives::DateTime;

    use super::*;

    fn answer(keys: &[&str], more: bool) -> ListObjectsV2Output {
        let object =
            |key: &&str| Object::builder().key(*key).size(1).last_modified(DateTime::from_secs(1)).build();
        ListObjectsV2Output::builder()
            .set_contents(Some(keys.iter().map(object).collect()))
            .is_truncated(more)
            .build()
    }

    #[test]
    fn an_ordered_list_is_accepted_without_its_root() {
        let page = page(answer(&["r/log/1", "r/log/2"], true), "r/", "log/", Some("log/0")).unwrap();
        assert_eq!(
            page.entries.iter().map(|entry| entry.key.as_str()).collect::<Vec<_>>(),
            ["log/1", "log/2"]
        );
        assert!(page.more);
    }

    #[test]
    fn a_list_that_would_mislead_is_refused() {
        let cases: [(&[&str], bool); 6] = [
            (&["r/log/2", "r/log/1"], false),
            (&["r/log/1", "r/log/1"], false),
            (&["r/log/0"], false),
            (&["r/other/1"], false),
            (&["log/1"], false),
            (&[], true),
        ];
        for (keys, more) in cases {
            let refused = page(answer(keys, more), "r/", "log/", Some("log/0")).expect_err("misleading");
            assert_eq!(refused.kind(), holdfast_objects::ErrorKind::Corrupt, "{keys:?}");
        }
    }
}
