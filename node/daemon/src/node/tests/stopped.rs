//! A node that was stopped, and another one after it in the same process.

use super::*;

/// Found by reading: the tasks of a stopped node ran on, over the directories of the next one.
#[test]
fn a_stopped_node_leaves_no_task() {
    alone(async {
        let (dirs, kernel) = (Dirs::new(), Arc::new(FakeKernel::new()));
        dirs.leave().await;
        let metrics = tokio::runtime::Handle::current().metrics();
        let before = metrics.num_alive_tasks();
        // A recovery that is retried, then a detach that waits for its store.
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
                // Pieces of a volume's work end soon after it.
                while metrics.num_alive_tasks() > before || inner.strong_count() > 0 {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            let left = tokio::time::timeout(LIMIT, ended).await.map_err(|_elapsed| metrics.num_alive_tasks());
            assert_eq!(left, Ok(()), "{before} before");
        }
        kernel.bury();
    });
}
