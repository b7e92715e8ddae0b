//! Several ring threads, one of which processes no messages.

use std::sync::mpsc;

use holdfast_ring::RingError;
use holdfast_ublk::{QueueCommand, QueueError};
use tokio::sync::oneshot;

use super::*;
use holdfast_serve::OpenQueues;
use holdfast_serve::{InFlight, VolumeKey, VolumeRing};

/// Runs `act` on a volume's ring thread.
pub(super) async fn on_ring(
    present: &Present,
    act: impl FnOnce(&mut VolumeRing, VolumeKey) + Send + 'static,
) {
    let queues: OpenQueues = Box::new(move |ring, key| {
        act(ring, key);
        Err(QueueError::Ring(RingError::FilesExhausted { capacity: 0 }))
    });
    let (done, _answer) = oneshot::channel();
    let (key, device) = (present.key, present.device().unwrap());
    present.ring.send(Message::Open { key, device, queues, done }).await;
}

/// Keeps a ring thread busy until the sender is dropped, and fills its inbox.
async fn fill(present: &Present) -> mpsc::Sender<()> {
    let (release, released) = mpsc::channel();
    on_ring(present, move |_ring, _key| {
        let _ended = released.recv();
    })
    .await;
    let full = present.ring.status().full_inbox;
    while present.ring.status().full_inbox < full + 2 {
        present.ring.offer(Message::Tick);
        tokio::task::yield_now().await;
    }
    release
}

/// Regression, found in review: the ticks of all rings waited for one with a full inbox, and so did the
/// figures and limits of all volumes of the node.
#[test]
fn a_ring_with_a_full_inbox_delays_no_other() {
    run_node_test(async {
        let (dirs, bucket, kernel) = (Dirs::new(), Bucket::start().await, Arc::new(FakeKernel::new()));
        let config = NodeConfig { ring_threads: 2, ..dirs.config() };
        let node = Node::start_with(config, kernel.clone(), LIMIT).await.unwrap();
        let request_for = |name: &str| AttachRequest {
            volume: name.parse().unwrap(),
            store: bucket.config.clone(),
            ..request()
        };
        for name in ["stuck", "good"] {
            let (volume, bytes) = (name.parse().unwrap(), SECTORS * SECTOR_BYTES);
            node.create(&volume, bytes.into(), "main", &bucket.config).await.unwrap();
        }
        for name in ["stuck", "good"] {
            node.attach(request_for(name)).await.unwrap();
        }
        let stuck = node.0.volumes.present(&"stuck".parse().unwrap()).unwrap();
        let release = fill(&stuck).await;
        let meanwhile = async {
            let good: VolumeId = "good".parse().unwrap();
            let serves = node.0.volumes.present(&good).unwrap();
            // A tick publishes its delay.
            on_ring(&serves, |ring, owner| {
                ring.no_operation(InFlight::Command(QueueCommand { owner, queue_id: 9, tag: 0 }));
            })
            .await;
            while serves.ring.status().late_completions == 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            node.detach(&good).await.unwrap();
            node.attach(request_for("good")).await.unwrap();
        };
        tokio::time::timeout(LIMIT, meanwhile).await.expect("the good ring's volumes are served");
        drop(release);
        node.detach(stuck.volume()).await.unwrap();
        node.shutdown().await;
        kernel.end_process();
    });
}
