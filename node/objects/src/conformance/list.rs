//! Lists: ordered, complete across pages, fresh; and deletions, which lists must reflect.

use std::time::Duration;

use bytes::Bytes;

use super::{ConformanceViolation, StoreUnderTest, during, must};
use crate::{ErrorKind, Page};

const BODY: Bytes = Bytes::from_static(b"x");

fn names(page: &Page) -> Vec<&str> {
    page.entries.iter().map(|entry| entry.key.as_str()).collect()
}

pub(super) async fn pages(subject: &StoreUnderTest) -> Result<(), ConformanceViolation> {
    let prefix = subject.key("log/");
    let mut due = Vec::new();
    // Unordered: the store must sort.
    for seq in [7, 3, 0, 9, 1, 8, 2, 6, 4, 5] {
        let key = format!("{prefix}{seq:020}");
        subject.must_create(&key, Bytes::from(vec![0; seq])).await?;
        due.push((key, seq as u64));
    }
    subject.must_create(&subject.key("logx"), BODY).await?;
    due.sort();
    for limit in [1, 3, 10, 5000] {
        let mut seen = Vec::new();
        let mut after: Option<String> = None;
        loop {
            let page =
                subject.store.list(&prefix, after.as_deref(), limit).await.map_err(during("a page"))?;
            must!(page.entries.len() <= limit, "a page of {limit} has {} entries", page.entries.len());
            for entry in &page.entries {
                // Both times come from one clock; servers show whole seconds.
                let age =
                    page.now.map(|now| (now + Duration::from_secs(2)).duration_since(entry.last_modified));
                must!(age.as_ref().is_some_and(Result::is_ok), "{entry:?} was listed at {:?}", page.now);
            }
            seen.extend(page.entries.iter().map(|entry| (entry.key.clone(), entry.size_bytes)));
            if !page.more {
                break;
            }
            must!(seen.len() <= due.len(), "paging with limit {limit} does not end");
            after = page.entries.last().map(|entry| entry.key.clone());
        }
        must!(seen == due, "pages of {limit} gave {seen:?}");
    }
    let nothing = subject.store.list(&prefix, None, 0).await;
    must!(
        nothing.as_ref().is_err_and(|error| error.kind() == ErrorKind::Invalid),
        "a list with limit 0 gave {nothing:?}"
    );
    Ok(())
}

pub(super) async fn start_after(subject: &StoreUnderTest) -> Result<(), ConformanceViolation> {
    let key = |name: &str| subject.key(&format!("log/{name}"));
    for name in ["a", "c", "e"] {
        subject.must_create(&key(name), BODY).await?;
    }
    let prefix = subject.key("log/");
    let cases: [(String, &[&str]); 6] = [
        (subject.key("a-before-the-prefix"), &["a", "c", "e"]),
        (key("a"), &["c", "e"]),
        (key("b-not-there"), &["c", "e"]),
        (key("d"), &["e"]),
        (key("e"), &[]),
        (subject.key("z-after-the-prefix"), &[]),
    ];
    for (after, due) in cases {
        let page = subject.store.list(&prefix, Some(&after), 10).await.map_err(during("start after"))?;
        let due: Vec<String> = due.iter().map(|name| key(name)).collect();
        must!(names(&page) == due && !page.more, "after {after} came {:?}", names(&page));
    }
    Ok(())
}

/// A folder is one entry regardless of its content, and distinct from one that shares its prefix.
pub(super) async fn folders(subject: &StoreUnderTest) -> Result<(), ConformanceViolation> {
    for name in ["b/1", "b/2", "b/c/3", "a/1", "b-1/1", "b.x/1", "b0/1", "ba/1", "key", "z/1"] {
        subject.must_create(&subject.key(&format!("volumes/{name}")), BODY).await?;
    }
    subject.must_create(&subject.key("volumesx/1"), BODY).await?;
    let prefix = subject.key("volumes/");
    let due = ["a", "b-1", "b.x", "b", "b0", "ba", "z"];
    for limit in [1, 2, 3, 10, 5000] {
        let (mut seen, mut after): (Vec<String>, Option<String>) = (Vec::new(), None);
        for _ in 0..2 * due.len() {
            let page = subject.store.list_folders(&prefix, after.as_deref(), limit).await;
            let page = page.map_err(during("a page of folders"))?;
            must!(page.names.len() <= limit, "a page of {limit} has {:?}", page.names);
            seen.extend(page.names);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        must!(seen == due && after.is_none(), "pages of {limit} gave {seen:?}, and then {after:?}");
    }
    let nothing = subject.store.list_folders(&prefix, None, 0).await;
    must!(
        nothing.as_ref().is_err_and(|error| error.kind() == ErrorKind::Invalid),
        "a list with limit 0 gave {nothing:?}"
    );
    let empty = subject.store.list_folders(&subject.key("nothing/"), None, 10).await;
    let empty = empty.map_err(during("listing nothing"))?;
    must!(empty.names.is_empty() && empty.next.is_none(), "an empty prefix was listed as {empty:?}");
    Ok(())
}

pub(super) async fn fresh(subject: &StoreUnderTest) -> Result<(), ConformanceViolation> {
    let prefix = format!("{}/", subject.scope);
    let empty = subject.store.list(&prefix, None, 10).await.map_err(during("listing nothing"))?;
    must!(empty.entries.is_empty() && !empty.more, "an empty prefix was listed as {empty:?}");
    let key = subject.key("comes-and-goes");
    subject.must_create(&key, BODY).await?;
    let there = subject.store.list(&prefix, None, 10).await.map_err(during("listing one"))?;
    must!(names(&there) == [key.as_str()], "after its create, {key} was listed as {:?}", names(&there));
    subject.store.delete(&[&key]).await.map_err(during("deleting"))?;
    let gone = subject.store.list(&prefix, None, 10).await.map_err(during("listing none"))?;
    must!(gone.entries.is_empty(), "after its delete, {:?} was listed", names(&gone));
    Ok(())
}

/// Covers an empty list, and more keys than fit into one request, few of which exist.
pub(super) async fn delete_many(subject: &StoreUnderTest) -> Result<(), ConformanceViolation> {
    let there: Vec<String> = [0, 500, 999, 1000, 1100].map(|n| subject.key(&format!("many/{n:04}"))).into();
    for key in &there {
        subject.must_create(key, BODY).await?;
    }
    subject.must_create(&subject.key("many/other"), BODY).await?;
    subject.store.delete(&[]).await.map_err(during("deleting nothing"))?;
    let prefix = subject.key("many/");
    let page = subject.store.list(&prefix, None, 10).await.map_err(during("listing all"))?;
    must!(page.entries.len() == there.len() + 1, "before the delete, {:?} was listed", names(&page));
    let keys: Vec<String> = (0..=1100).map(|n| subject.key(&format!("many/{n:04}"))).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    subject.store.delete(&keys).await.map_err(during("deleting many"))?;
    let left = subject.store.list(&prefix, None, 10).await.map_err(during("listing the rest"))?;
    let due = [subject.key("many/other")];
    must!(names(&left) == due, "after the delete, {:?} was listed", names(&left));
    Ok(())
}

pub(super) async fn delete_twice(subject: &StoreUnderTest) -> Result<(), ConformanceViolation> {
    let key = subject.key("object");
    subject.must_create(&key, BODY).await?;
    subject.must_create(&subject.key("object-sibling"), BODY).await?;
    for time in ["first", "second"] {
        subject.store.delete(&[&key]).await.map_err(during(&format!("the {time} delete")))?;
    }
    let read = subject.store.get(&key, 1).await;
    must!(
        read.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound),
        "a deleted object gave {read:?}"
    );
    subject.store.get(&subject.key("object-sibling"), 1).await.map_err(during("reading the sibling"))?;
    Ok(())
}
