//! Reads: bounded, exact, and with a clear error for missing objects.

use bytes::Bytes;

use super::{ConformanceViolation, StoreUnderTest, during, must, pattern};
use crate::{ErrorKind, StoreError};

pub(super) async fn missing(subject: &StoreUnderTest) -> Result<(), ConformanceViolation> {
    let key = subject.key("never-written");
    let store = &subject.store;
    let answers = [
        ("get", store.get(&key, 1).await.err()),
        ("get_range", store.get_range(&key, 0..1).await.err()),
        ("get_suffix", store.get_suffix(&key, 1).await.err()),
    ];
    for (verb, error) in answers {
        let kind = error.as_ref().map(StoreError::kind);
        must!(kind == Some(ErrorKind::NotFound), "{verb} of a missing object gave {error:?}");
    }
    Ok(())
}

pub(super) async fn bounded(subject: &StoreUnderTest) -> Result<(), ConformanceViolation> {
    let key = subject.key("hundred");
    subject.must_create(&key, pattern(100)).await?;
    let whole = subject.store.get(&key, 100).await.map_err(during("get up to its own size"))?;
    must!(whole == pattern(100), "get changed the bytes");
    let refused = subject.store.get(&key, 99).await;
    must!(
        matches!(refused, Err(StoreError::TooLarge { size_bytes: 100, max_bytes: 99, .. })),
        "a 100 byte object read with a bound of 99 gave {refused:?}"
    );
    Ok(())
}

pub(super) async fn ranges(subject: &StoreUnderTest) -> Result<(), ConformanceViolation> {
    const LEN: u64 = 10_000;
    let key = subject.key("ten-thousand");
    let body = pattern(LEN as usize);
    subject.must_create(&key, body.clone()).await?;
    for range in [0..1, 0..LEN, 1..2, 4096..8192, LEN - 1..LEN] {
        let got = subject.store.get_range(&key, range.clone()).await.map_err(during("a range inside"))?;
        must!(got == body.slice(range.start as usize..range.end as usize), "bytes {range:?} are wrong");
    }
    for range in [0..LEN + 1, LEN - 1..LEN + 1, LEN..LEN + 1, LEN + 5..LEN + 9] {
        let got = subject.store.get_range(&key, range.clone()).await;
        must!(
            matches!(&got, Err(StoreError::OutOfRange { end, .. }) if *end == range.end),
            "range {range:?} of {LEN} bytes gave {got:?}"
        );
    }
    let empty = subject.store.get_range(&key, 5..5).await;
    must!(
        empty.as_ref().is_err_and(|error| error.kind() == ErrorKind::Invalid),
        "an empty range gave {empty:?}"
    );
    Ok(())
}

pub(super) async fn suffixes(subject: &StoreUnderTest) -> Result<(), ConformanceViolation> {
    let body = pattern(5000);
    let key = subject.key("five-thousand");
    subject.must_create(&key, body.clone()).await?;
    for len in [1, 64, 4999, 5000, 5001, 1 << 20] {
        let suffix = subject.store.get_suffix(&key, len).await.map_err(during("a suffix"))?;
        let start = 5000usize.saturating_sub(len as usize);
        must!(suffix.size_bytes == 5000, "the size of 5000 bytes came back as {}", suffix.size_bytes);
        must!(suffix.bytes == body.slice(start..), "the last {len} bytes are wrong");
    }
    let empty = subject.key("empty");
    subject.must_create(&empty, Bytes::new()).await?;
    let suffix = subject.store.get_suffix(&empty, 10).await.map_err(during("a suffix of an empty object"))?;
    must!(suffix.bytes.is_empty() && suffix.size_bytes == 0, "an empty object ends in {suffix:?}");
    let nothing = subject.store.get_suffix(&key, 0).await;
    must!(
        nothing.as_ref().is_err_and(|error| error.kind() == ErrorKind::Invalid),
        "a suffix of length 0 gave {nothing:?}"
    );
    Ok(())
}
