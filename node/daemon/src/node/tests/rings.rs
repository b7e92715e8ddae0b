//! Several ring threads, one of which takes no messages.

use std::sync::mpsc;

use holdfast_ring::RingError;
use holdfast_ublk::QueueError;

use super::*;
use crate::node::ring::handle::RingHandle;
use crate::node::ring::message::OpenQueues;

/// Keeps a ring thread busy until the sender is dropped, and fills its inbox.
async fn fill(present: &Present) -> mpsc::Sender<()> {
    let ring: &RingHandle = &present.ring;
    let (release, released) = mpsc::channel();
    let queues: OpenQueues = Box::new(move |_ring, _key| {
        let _ended = released.recv();
        Err(QueueError::Ring(RingError::FilesExhausted { capacity: 0 }))
    });
    let (done, _answer) = tokio::sync::oneshot::channel();
    let device = present.device().unwrap();
    ring.send(Message::Open { key: present.key, device, queues, done }).await;
    let full = ring.status().full_inbox;
    while ring.status().full_inbox < full + 2 {
        ring.offer(Message::Tick);
        tokio::task::yield_now().await;
    }
    release
}

/// Found by reading: the ticks of all rings waited for one whose inbox was full, and with them the figures
/// and limits of every volume of the node.
#[test]
fn a_ring_with_a_full_inbox_holds_up_no_other() {
    alone(async {
        let (dirs, bucket, kernel) = (Dirs::new(), Bucket::start().await, Arc::new(FakeKernel::new()));
        let config = NodeConfig { ring_threads: 2, ..dirs.config() };
        let node = Node::start_with(config, kernel.clone(), LIMIT).await.unwrap();
        let asked = |name: &str| AttachRequest {
            volume: name.parse().unwrap(),
            store: bucket.config.clone(),
            ..request()
        };
        for name in ["stuck", "good"] {
            let (volume, bytes) = (name.parse().unwrap(), SECTORS * SECTOR_BYTES);
            node.create(&volume, bytes, "main", &bucket.config).await.unwrap();
        }
        for name in ["stuck", "good"] {
            node.attach(asked(name)).await.unwrap();
        }
        let stuck = node.present(&"stuck".parse().unwrap()).unwrap();
        let release = fill(&stuck).await;
        let full_before = stuck.ring.status().full_inbox;

        let meanwhile = async {
            // Each round of ticks meets the full inbox.
            while stuck.ring.status().full_inbox < full_before + 3 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            let good: VolumeId = "good".parse().unwrap();
            node.detach(&good).await.unwrap();
            node.attach(asked("good")).await.unwrap();
        };
        tokio::time::timeout(LIMIT, meanwhile).await.expect("the good ring's volumes are served");
        drop(release);
        node.detach(stuck.volume()).await.unwrap();
        node.shutdown().await;
        kernel.bury();
    });
}
