//! Segments: whether uploaded in one request or several, the object is the concatenation of its parts.

use super::{Ground, Violation, during, must, pattern};
use crate::ReadyParts;

/// Minimum size of S3's non-final parts. <https://docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html>
const PART_BYTES: usize = 5 << 20;

pub(super) async fn small(ground: &Ground) -> Result<(), Violation> {
    let key = ground.key("small");
    let body = pattern(10_000);
    for time in ["once", "again"] {
        ground.store.put_segment(&key, &mut ReadyParts::from(body.clone())).await.map_err(during(time))?;
        let read = ground.store.get(&key, 10_000).await.map_err(during("reading it"))?;
        must!(read == body, "written {time}, the segment is not what was written");
    }
    let key = ground.key("empty");
    ground.store.put_segment(&key, &mut ReadyParts::new([])).await.map_err(during("writing nothing"))?;
    must!(ground.store.get(&key, 1).await.map_err(during("reading it"))?.is_empty(), "it has bytes");
    Ok(())
}

pub(super) async fn large(ground: &Ground) -> Result<(), Violation> {
    let key = ground.key("large");
    let len = ground.large_bytes;
    let body = pattern(len);
    let parts = (0..len).step_by(PART_BYTES).map(|from| body.slice(from..len.min(from + PART_BYTES)));
    ground.store.put_segment(&key, &mut ReadyParts::new(parts)).await.map_err(during("uploading"))?;
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
