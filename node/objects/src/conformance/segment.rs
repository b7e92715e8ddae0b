//! Segments: whether uploaded in one request or several, the object is the concatenation of its parts.

use super::{ConformanceViolation, StoreUnderTest, during, must, pattern};
use crate::ReadyParts;

/// Minimum size of S3's non-final parts. <https://docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html>
const PART_BYTES: usize = 5 << 20;

pub(super) async fn small(subject: &StoreUnderTest) -> Result<(), ConformanceViolation> {
    let key = subject.key("small");
    let body = pattern(10_000);
    for time in ["once", "again"] {
        subject.store.put_segment(&key, &mut ReadyParts::from(body.clone())).await.map_err(during(time))?;
        let read = subject.store.get(&key, 10_000).await.map_err(during("reading it"))?;
        must!(read == body, "written {time}, the segment differs from its parts");
    }
    let key = subject.key("empty");
    subject.store.put_segment(&key, &mut ReadyParts::new([])).await.map_err(during("writing nothing"))?;
    must!(
        subject.store.get(&key, 1).await.map_err(during("reading it"))?.is_empty(),
        "an empty segment has bytes"
    );
    Ok(())
}

pub(super) async fn large(subject: &StoreUnderTest) -> Result<(), ConformanceViolation> {
    let key = subject.key("large");
    let len = subject.large_bytes;
    let body = pattern(len);
    let parts = (0..len).step_by(PART_BYTES).map(|from| body.slice(from..len.min(from + PART_BYTES)));
    subject.store.put_segment(&key, &mut ReadyParts::new(parts)).await.map_err(during("uploading"))?;
    let suffix = subject.store.get_suffix(&key, 4096).await.map_err(during("reading its footer"))?;
    must!(suffix.size_bytes == len as u64, "{len} bytes became {}", suffix.size_bytes);
    must!(suffix.bytes == body.slice(len - 4096..), "the footer is wrong");
    let read = subject.store.get(&key, len as u64).await.map_err(during("reading it"))?;
    must!(read == body, "the segment is not the concatenation of its parts");
    let middle = (len / 2) as u64;
    let range = subject.store.get_range(&key, middle..middle + 4096).await.map_err(during("a range"))?;
    must!(range == body.slice(len / 2..len / 2 + 4096), "a range of the segment is wrong");
    Ok(())
}
