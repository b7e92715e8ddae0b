//! A stopped node, and its successor in the same process.

use tokio::sync::oneshot;

use super::rings::on_ring;
use super::*;
use crate::node::local::owner::is_held;

/// Regression, found in review: the tasks of a stopped node continued on the directories of the next one.
#[test]
fn a_stopped_node_leaves_no_task() {
    run_node_test(async {
        let (dirs, kernel) = (Dirs::new(), Arc::new(FakeKernel::new()));
        dirs.leave().await;
        let metrics = tokio::runtime::Handle::current().metrics();
        let before = metrics.num_alive_tasks();
        // A recovery that is retried, and a detach that waits for its store.
        for state in [VolumeState::Quiesced, VolumeState::Detaching] {
            flip_a_bit(&dirs.record());
            let node = Node::start_with(dirs.config(), kernel.clone(), LIMIT).await.unwrap();
            wait(&node, |status| status.state == state).await;
            let begun = async {
                // Ticks, the quota, the trash, the volume.
                while metrics.num_alive_tasks() < before + 4 {
                    tokio::task::yield_now().await;
                }
            };
            tokio::time::timeout(LIMIT, begun).await.expect("the node has tasks");
            let inner = Arc::downgrade(&node.0);
            drop(node.shutdown().await);
            let ended = async {
                // The tasks of a volume end shortly after it.
                while metrics.num_alive_tasks() > before || inner.strong_count() > 0 {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            let left = tokio::time::timeout(LIMIT, ended).await.map_err(|_elapsed| metrics.num_alive_tasks());
            assert_eq!(left, Ok(()), "{before} before");
        }
        kernel.end_process();
    });
}

/// Starts a call of a node that ends when the sender is dropped.
async fn begin_call(node: &Node) -> std::sync::mpsc::Sender<()> {
    let (release, released) = std::sync::mpsc::channel::<()>();
    let (begins, begun) = oneshot::channel();
    node.0.tasks.spawn(run_blocking(move || {
        begins.send(()).unwrap();
        released.recv().unwrap_or_default();
    }));
    begun.await.unwrap();
    release
}

/// Regression: at the shutdown of a node, its devices waited for a compression, and for a name lookup.
#[test]
fn pending_calls_end_while_the_devices_are_served() {
    run_node_test(async {
        let (dirs, bucket, kernel) = (Dirs::new(), Bucket::start().await, Arc::new(FakeKernel::new()));
        let state_dir = dirs.config().state_dir;
        let node = Node::start_with(dirs.config(), kernel.clone(), LIMIT).await.unwrap();
        node.create(&volume(), (SECTORS * SECTOR_BYTES).into(), "main", &bucket.config).await.unwrap();
        node.attach(AttachRequest { store: bucket.config.clone(), ..request() }).await.unwrap();
        let present = node.0.volumes.present(&volume()).unwrap();
        let release = begin_call(&node).await;

        let ends = tokio::spawn(node.clone().leave(LIMIT));
        // It is shutting down, and its tasks are stopped.
        while node.0.tasks.run(async {}).await.is_ok() {
            tokio::task::yield_now().await;
        }
        let (answers, answered) = oneshot::channel();
        on_ring(&present, move |_ring, _key| answers.send(()).unwrap()).await;
        tokio::time::timeout(LIMIT, answered).await.expect("the ring serves").unwrap();
        assert!(!ends.is_finished() && is_held(&state_dir).unwrap());
        drop(release);
        let (owner, all_ended) = ends.await.unwrap();
        assert!(all_ended);
        owner.unwrap().into_owner().release().unwrap();
        assert!(!is_held(&state_dir).unwrap());
        kernel.end_process();
    });
}

/// Regression, found in review: the lock was dropped, and thus released, while a call was still running.
#[test]
fn a_call_that_does_not_end_keeps_the_lock() {
    run_node_test(async {
        let (dirs, kernel) = (Dirs::new(), Arc::new(FakeKernel::new()));
        let state_dir = dirs.config().state_dir;
        let node = Node::start_with(dirs.config(), kernel.clone(), LIMIT).await.unwrap();
        let release = begin_call(&node).await;
        {
            let (_dropped, all_ended) = node.leave(Duration::from_millis(20)).await;
            assert!(!all_ended);
        }
        assert!(is_held(&state_dir).unwrap(), "the call may still write");
        drop(release);
        kernel.end_process();
    });
}
