//! Segments: in one request or in many, the object is the concatenation of its parts.

use bytes::Bytes;

use super::{Ground, Violation, during, must, pattern};

pub(super) async fn small(ground: &Ground) -> Result<(), Violation> {
    let key = ground.key("small");
    let body = pattern(10_000);
    let parts = vec![body.slice(..1), Bytes::new(), body.slice(1..4097), body.slice(4097..)];
    for time in ["once", "again"] {
        ground.store.put_segment(&key, parts.clone()).await.map_err(during(time))?;
        let read = ground.store.get(&key, 10_000).await.map_err(during("reading it"))?;
        must!(read == body, "written {time}, the segment is not the concatenation of its parts");
    }
    Ok(())
}

pub(super) async fn large(ground: &Ground) -> Result<(), Violation> {
    let key = ground.key("large");
    let len = ground.large_bytes;
    let body = pattern(len);
    // Parts that never end where an upload's parts do.
    let cut = len / 3 + 1;
    let parts = vec![body.slice(..cut), body.slice(cut..2 * cut), body.slice(2 * cut..)];
    ground.store.put_segment(&key, parts).await.map_err(during("uploading"))?;
    let suffix = ground.store.get_suffix(&key, 4096).await.map_err(during("reading its footer"))?;
    must!(suffix.size_bytes == len as u64, "{len} bytes became {}", suffix.size_bytes);
    must!(suffix.bytes == body.slice(len - 4096..), "the footer is wrong");
    let read = ground.store.get(&key, len as u64).await.map_err(during("reading it"))?;
    must!(read == body, "the segment is not the concatenation of its parts");
    let middle = (len / 2) as u64;
    let range = ground.store.get_range(&key, middle..middle + 4096).await.map_err(during("a range"))?;
    must!(range == body.slice(len / 2..len / 2 + 4096), "a range of the segment is wrong");
    Ok(())
}
