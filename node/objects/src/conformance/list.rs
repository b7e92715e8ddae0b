//! Lists: ordered, complete across pages, fresh; and deletions, which lists must reflect.

use std::time::Duration;

use bytes::Bytes;

use super::{Ground, Violation, during, must};
use crate::{ErrorKind, Page};

const BODY: Bytes = Bytes::from_static(b"x");

fn names(page: &Page) -> Vec<&str> {
    page.entries.iter().map(|entry| entry.key.as_str()).collect()
}

pub(super) async fn pages(ground: &Ground) -> Result<(), Violation> {
    let prefix = ground.key("log/");
    let mut due = Vec::new();
    // Unordered: the store must sort.
    for seq in [7, 3, 0, 9, 1, 8, 2, 6, 4, 5] {
        let key = format!("{prefix}{seq:020}");
        ground.must_create(&key, Bytes::from(vec![0; seq])).await?;
        due.push((key, seq as u64));
    }
    ground.must_create(&ground.key("logx"), BODY).await?;
    due.sort();
    for limit in [1, 3, 10, 5000] {
        let mut seen = Vec::new();
        let mut after: Option<String> = None;
        loop {
            let page = ground.store.list(&prefix, after.as_deref(), limit).await.map_err(during("a page"))?;
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
    let nothing = ground.store.list(&prefix, None, 0).await;
    must!(
        nothing.as_ref().is_err_and(|error| error.kind() == ErrorKind::Invalid),
        "a page of nothing gave {nothing:?}"
    );
    Ok(())
}

pub(super) async fn start_after(ground: &Ground) -> Result<(), Violation> {
    let key = |name: &str| ground.key(&format!("log/{name}"));
    for name in ["a", "c", "e"] {
        ground.must_create(&key(name), BODY).await?;
    }
    let prefix = ground.key("log/");
    let cases: [(String, &[&str]); 6] = [
        (ground.key("a-before-the-prefix"), &["a", "c", "e"]),
        (key("a"), &["c", "e"]),
        (key("b-not-there"), &["c", "e"]),
        (key("d"), &["e"]),
        (key("e"), &[]),
        (ground.key("z-after-the-prefix"), &[]),
    ];
    for (after, due) in cases {
        let page = ground.store.list(&prefix, Some(&after), 10).await.map_err(during("start after"))?;
        let due: Vec<String> = due.iter().map(|name| key(name)).collect();
        must!(names(&page) == due && !page.more, "after {after} came {:?}", names(&page));
    }
    Ok(())
}

/// A folder is one entry regardless of its content, and distinct from one that shares its prefix.
pub(super) async fn folders(ground: &Ground) -> Result<(), Violation> {
    for name in ["b/1", "b/2", "b/c/3", "a/1", "b-1/1", "b.x/1", "b0/1", "ba/1", "key", "z/1"] {
        ground.must_create(&ground.key(&format!("volumes/{name}")), BODY).await?;
    }
    ground.must_create(&ground.key("volumesx/1"), BODY).await?;
    let prefix = ground.key("volumes/");
    let due = ["a", "b-1", "b.x", "b", "b0", "ba", "z"];
    for limit in [1, 2, 3, 10, 5000] {
        let (mut seen, mut after): (Vec<String>, Option<String>) = (Vec::new(), None);
        for _ in 0..2 * due.len() {
            let page = ground.store.list_folders(&prefix, after.as_deref(), limit).await;
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
    let nothing = ground.store.list_folders(&prefix, None, 0).await;
    must!(
        nothing.as_ref().is_err_and(|error| error.kind() == ErrorKind::Invalid),
        "a page of nothing gave {nothing:?}"
    );
    let empty = ground.store.list_folders(&ground.key("nothing/"), None, 10).await;
    let empty = empty.map_err(during("listing nothing"))?;
    must!(empty.names.is_empty() && empty.next.is_none(), "nothing was listed as {empty:?}");
    Ok(())
}

pub(super) async fn fresh(ground: &Ground) -> Result<(), Violation> {
    let prefix = format!("{}/", ground.scope);
    let empty = ground.store.list(&prefix, None, 10).await.map_err(during("listing nothing"))?;
    must!(empty.entries.is_empty() && !empty.more, "nothing was listed as {empty:?}");
    let key = ground.key("comes-and-goes");
    ground.must_create(&key, BODY).await?;
    let there = ground.store.list(&prefix, None, 10).await.map_err(during("listing one"))?;
    must!(names(&there) == [key.as_str()], "after its create, {key} was listed as {:?}", names(&there));
    ground.store.delete(&[&key]).await.map_err(during("deleting"))?;
    let gone = ground.store.list(&prefix, None, 10).await.map_err(during("listing none"))?;
    must!(gone.entries.is_empty(), "after its delete, {:?} was listed", names(&gone));
    Ok(())
}

/// Covers an empty list, and more keys than fit into one request, few of which exist.
pub(super) async fn delete_many(ground: &Ground) -> Result<(), Violation> {
    let there: Vec<String> = [0, 500, 999, 1000, 1100].map(|n| ground.key(&format!("many/{n:04}"))).into();
    for key in &there {
        ground.must_create(key, BODY).await?;
    }
    ground.must_create(&ground.key("many/other"), BODY).await?;
    ground.store.delete(&[]).await.map_err(during("deleting nothing"))?;
    let prefix = ground.key("many/");
    let page = ground.store.list(&prefix, None, 10).await.map_err(during("listing all"))?;
    must!(page.entries.len() == there.len() + 1, "before the delete, {:?} was listed", names(&page));
    let keys: Vec<String> = (0..=1100).map(|n| ground.key(&format!("many/{n:04}"))).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    ground.store.delete(&keys).await.map_err(during("deleting many"))?;
    let left = ground.store.list(&prefix, None, 10).await.map_err(during("listing the rest"))?;
    let due = [ground.key("many/other")];
    must!(names(&left) == due, "after the delete, {:?} was listed", names(&left));
    Ok(())
}

pub(super) async fn delete_twice(ground: &Ground) -> Result<(), Violation> {
    let key = ground.key("object");
    ground.must_create(&key, BODY).await?;
    ground.must_create(&ground.key("object-sibling"), BODY).await?;
    for time in ["first", "second"] {
        ground.store.delete(&[&key]).await.map_err(during(&format!("the {time} delete")))?;
    }
    let read = ground.store.get(&key, 1).await;
    must!(
        read.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound),
        "a deleted object gave {read:?}"
    );
    ground.store.get(&ground.key("object-sibling"), 1).await.map_err(during("reading the sibling"))?;
    Ok(())
}
