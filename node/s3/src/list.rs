//! One validated page of a list: skipped, repeated or disordered keys are an error. A server may answer with
//! pages without keys before one that has some.

use std::time::SystemTime;

use aws_sdk_s3::{operation::list_objects_v2::ListObjectsV2Output, types::Object};
use holdfast_objects::{Folders, ListedObject, MAX_PAGE_ENTRIES, Page, StoreError, Verb};

use crate::{classify::classify, clock::AnswerDate, store::S3Store};

/// Maximum pages without keys in a row.
const MAX_EMPTY_PAGES: usize = 1000;

/// Start of a page.
enum Begin<'a> {
    /// After a key.
    After(Option<&'a str>),
    /// At the server's continuation token from the previous page; `None` for the first page.
    Page(Option<&'a str>),
}

impl S3Store {
    #[tracing::instrument(skip_all, fields(bucket = %self.config.bucket, prefix, start_after, limit))]
    pub(crate) async fn list_objects(
        &self,
        prefix: &str,
        start_after: Option<&str>,
        limit: usize,
    ) -> Result<Page, StoreError> {
        let mut token: Option<String> = None;
        for _ in 0..MAX_EMPTY_PAGES {
            let begin = match &token {
                None => Begin::After(start_after),
                Some(token) => Begin::Page(Some(token)),
            };
            let listed = self
                .list_with(prefix, begin, limit, None, |answer, now| {
                    page(answer, self.root(), prefix, start_after, now)
                })
                .await?;
            match listed {
                KeyPage::Keys(page) => return Ok(page),
                KeyPage::Empty { next } if token.as_ref() == Some(&next) => break,
                KeyPage::Empty { next } => token = Some(next),
            }
        }
        Err(without_keys())
    }

    #[tracing::instrument(skip_all, fields(bucket = %self.config.bucket, prefix, from, limit))]
    pub(crate) async fn list_common_prefixes(
        &self,
        prefix: &str,
        from: Option<&str>,
        limit: usize,
    ) -> Result<Folders, StoreError> {
        self.list_with(prefix, Begin::Page(from), limit, Some("/"), |answer, _now| {
            folders(&answer, self.root(), prefix)
        })
        .await
    }

    async fn list_with<T>(
        &self,
        prefix: &str,
        begin: Begin<'_>,
        limit: usize,
        delimiter: Option<&str>,
        read: impl Fn(ListObjectsV2Output, Option<SystemTime>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        if limit == 0 {
            let rule = "ask for at least one entry";
            return Err(StoreError::Invalid { what: "limit", value: "0".to_owned(), rule });
        }
        let limit = limit.min(MAX_PAGE_ENTRIES) as i32;
        let full_prefix = format!("{}{prefix}", self.root());
        let (full_start, token) = match begin {
            Begin::After(key) => (key.map(|key| format!("{}{key}", self.root())), None),
            Begin::Page(token) => (None, token.map(str::to_owned)),
        };
        self.repeat(Verb::List, self.config.timeouts.attempt_for(0), || async {
            let date = AnswerDate::default();
            let list = self
                .client
                .list_objects_v2()
                .bucket(&self.config.bucket)
                .prefix(&full_prefix)
                .set_start_after(full_start.clone())
                .set_continuation_token(token.clone())
                .set_delimiter(delimiter.map(str::to_owned))
                .max_keys(limit)
                .customize()
                .interceptor(date.clone());
            match list.send().await {
                Ok(answer) => Ok((read(answer, date.get())?, 0)),
                Err(failure) => Err(classify(failure, &self.config.bucket, "")),
            }
        })
        .await
    }
}

/// Returns the common prefixes of a page, in ascending order. Servers may order them differently within a
/// page, SeaweedFS by names without the `/`, so the next page uses the server's own token: no folder is lost
/// between two pages.
fn folders(answer: &ListObjectsV2Output, root: &str, prefix: &str) -> Result<Folders, StoreError> {
    let missing = |field| StoreError::BadAnswer { field };
    let mut folders: Vec<&str> = Vec::new();
    for folder in answer.common_prefixes() {
        let full = folder.prefix().and_then(|full| full.strip_prefix(root)).ok_or(missing("Prefix"))?;
        folders.push(full.strip_prefix(prefix).filter(|rest| rest.ends_with('/')).ok_or(missing("Prefix"))?);
    }
    folders.sort_unstable();
    if folders.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(missing("different prefixes in a list"));
    }
    let names = folders.iter().map(|name| name.trim_end_matches('/').to_owned()).collect();
    let token = answer.next_continuation_token().filter(|token| !token.is_empty());
    let next = match (answer.is_truncated.unwrap_or(false), token) {
        (true, None) => return Err(missing("NextContinuationToken in a truncated list")),
        (false, Some(_more)) => {
            return Err(missing("IsTruncated in a list that has a NextContinuationToken"));
        }
        (_, token) => token.map(str::to_owned),
    };
    Ok(Folders { names, next })
}

/// Returns the error of a list that is truncated, but has no keys.
fn without_keys() -> StoreError {
    StoreError::BadAnswer { field: "Contents in a truncated list" }
}

/// An answer to a list of keys.
#[derive(Debug)]
enum KeyPage {
    Keys(Page),
    /// The page has no keys, but more may follow at this token.
    Empty {
        next: String,
    },
}

fn page(
    answer: ListObjectsV2Output,
    root: &str,
    prefix: &str,
    start_after: Option<&str>,
    now: Option<SystemTime>,
) -> Result<KeyPage, StoreError> {
    let more = answer.is_truncated.unwrap_or(false);
    let mut entries: Vec<ListedObject> = Vec::with_capacity(answer.contents().len());
    let token = answer.next_continuation_token.filter(|token| !token.is_empty());
    for object in answer.contents.unwrap_or_default() {
        let entry = entry(object, root)?;
        let after = entries.last().map(|last| last.key.as_str()).or(start_after);
        if !entry.key.starts_with(prefix) || after.is_some_and(|after| entry.key.as_str() <= after) {
            return Err(StoreError::BadAnswer { field: "order of keys in a list" });
        }
        entries.push(entry);
    }
    if more && entries.is_empty() {
        return token.map(|next| KeyPage::Empty { next }).ok_or_else(without_keys);
    }
    Ok(KeyPage::Keys(Page { entries, more, now }))
}

fn entry(object: Object, root: &str) -> Result<ListedObject, StoreError> {
    let missing = |field| StoreError::BadAnswer { field };
    let full = object.key.ok_or(missing("Key"))?;
    let key = full.strip_prefix(root).ok_or(missing("Key"))?.to_owned();
    let size_bytes = object.size.and_then(|size| u64::try_from(size).ok()).ok_or(missing("Size"))?;
    let modified = object.last_modified.ok_or(missing("LastModified"))?;
    let last_modified = SystemTime::try_from(modified).map_err(|_before_1970| missing("LastModified"))?;
    Ok(ListedObject { key, size_bytes, last_modified })
}

#[cfg(test)]
mod tests {
    use aws_sdk_s3::primitives::DateTime;
    use aws_sdk_s3::types::CommonPrefix;

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
        let now = Some(SystemTime::UNIX_EPOCH);
        let listed = page(answer(&["r/log/1", "r/log/2"], true), "r/", "log/", Some("log/0"), now);
        let Ok(KeyPage::Keys(page)) = listed else { panic!("{listed:?}") };
        assert_eq!(
            page.entries.iter().map(|entry| entry.key.as_str()).collect::<Vec<_>>(),
            ["log/1", "log/2"]
        );
        assert_eq!((page.more, page.now), (true, now));
    }

    #[test]
    fn folders_are_ascending_and_continue_where_the_server_says() {
        let grouped = |prefixes: &[&str], more: bool, token: Option<&str>| {
            let prefix = |name: &&str| CommonPrefix::builder().prefix(*name).build();
            let answer = ListObjectsV2Output::builder()
                .set_common_prefixes(Some(prefixes.iter().map(prefix).collect()))
                .is_truncated(more)
                .set_next_continuation_token(token.map(str::to_owned))
                .build();
            folders(&answer, "r/", "v/")
        };
        let found = |names: &[&str], next: Option<&str>| {
            let names = names.iter().map(|name| (*name).to_owned()).collect();
            Folders { names, next: next.map(str::to_owned) }
        };
        assert_eq!(grouped(&["r/v/b-1/", "r/v/b/"], false, None).unwrap(), found(&["b-1", "b"], None));
        // In the order of SeaweedFS 4.53.
        assert_eq!(
            grouped(&["r/v/b/", "r/v/b-1/"], true, Some("t")).unwrap(),
            found(&["b-1", "b"], Some("t"))
        );
        assert_eq!(grouped(&[], true, Some("t")).unwrap(), found(&[], Some("t")));
        for (prefixes, more, token) in [
            (&["r/v/b/", "r/v/a/", "r/v/b/"][..], false, None),
            (&["r/w/b/"], false, None),
            (&["v/b/"], false, None),
            (&["r/v/b"], false, None),
            (&["r/v/b/"], true, None),
            (&["r/v/b/"], true, Some("")),
            (&["r/v/b/"], false, Some("t")),
        ] {
            let refused = grouped(prefixes, more, token).expect_err("misleading");
            assert_eq!(refused.kind(), holdfast_objects::ErrorKind::Corrupt, "{prefixes:?}");
        }
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
            let refused =
                page(answer(keys, more), "r/", "log/", Some("log/0"), None).expect_err("misleading");
            assert_eq!(refused.kind(), holdfast_objects::ErrorKind::Corrupt, "{keys:?}");
        }
    }
}
