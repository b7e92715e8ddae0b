//! Uploads over an uplink that is too slow for all their parts at once.

use std::{sync::atomic::Ordering, time::Duration};

use bytes::Bytes;
use holdfast_objects::{ObjectStore, Part, PartFailed, Parts};
use holdfast_s3::{S3Store, Timeouts};

use crate::server::Server;

const KEY: &str = "volumes/v1/segments/a";
const PARTS: usize = 8;
const PART_BYTES: usize = 64 << 10;

/// The parts of an upload. After a failed one, the first is sent alone, as by a node's uploads.
struct TrialParts {
    made: usize,
    is_trial: bool,
}

#[async_trait::async_trait]
impl Parts for TrialParts {
    async fn next(&mut self) -> Result<Part, PartFailed> {
        self.made += 1;
        self.is_trial &= self.made == 1;
        Ok(Part { bytes: Bytes::from(vec![7; PART_BYTES]), is_last: self.made == PARTS })
    }

    fn max_at_once(&self) -> usize {
        if self.is_trial { 1 } else { PARTS }
    }
}

/// Regression, found in review: no upload of several parts ever completed. A part alone takes 0.1 s, and
/// eight at once 0.8 s. All timed out after 0.26 and 0.52 s. In each later upload the quick first part halved
/// the limit from 1.04 to 0.52 s again, and the other parts were not retried, because the deadline had
/// passed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_over_a_slow_uplink_completes() {
    let server = Server::start().await;
    let mut config = server.config();
    config.timeouts = Timeouts {
        attempt: Duration::from_millis(100),
        per_mib: Duration::from_millis(160),
        deadline: Duration::from_millis(400),
        ..config.timeouts
    };
    let store = S3Store::connect(config).await.unwrap();
    server.uplink.bytes_per_ms.store(640, Ordering::Relaxed);
    let mut uploads = 0;
    loop {
        let mut parts = TrialParts { made: 0, is_trial: uploads > 0 };
        uploads += 1;
        match store.put_segment(KEY, &mut parts).await {
            Ok(()) => break,
            Err(error) => assert!(uploads < 4, "no upload completes: {error}"),
        }
    }
    let stored = store.get_suffix(KEY, 1).await.unwrap();
    assert_eq!(stored.size_bytes, (PARTS * PART_BYTES) as u64);
}
