//! Scheduling of a node's merges.

use std::collections::BTreeMap;
use std::sync::Arc;

use holdfast_format::index::policy::MergeKind;
use tokio::sync::Mutex;

use crate::upload_memory::StoreKey;

/// A queue of merges that run sequentially.
type MergeQueue = Arc<Mutex<()>>;

/// Queues of a node's merges, first come, first served. A merge into the base may take hours: those of levels
/// do not wait for it, nor do stores wait for another store's hanging requests (25).
#[derive(Debug, Default)]
pub struct MergeTurns {
    levels: parking_lot::Mutex<BTreeMap<StoreKey, MergeQueue>>,
    base: parking_lot::Mutex<BTreeMap<StoreKey, MergeQueue>>,
}

impl MergeTurns {
    pub(crate) fn of(&self, kind: MergeKind, store: StoreKey) -> MergeQueue {
        let turns = match kind {
            MergeKind::Level => &self.levels,
            MergeKind::Base => &self.base,
        };
        let mut turns = turns.lock();
        turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        Arc::clone(turns.entry(store).or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The turn goes to the waiter with the lowest number, and a free number is reused: while others arrive,
    /// a volume may wait without end.
    #[tokio::test]
    async fn merges_into_the_base_take_turns() {
        use tokio::sync::oneshot;
        let local = tokio::task::LocalSet::new();
        local
            .run_until(async {
                let (turns, order) =
                    (std::rc::Rc::new(MergeTurns::default()), std::rc::Rc::new(Mutex::new(vec![])));
                let begin = |name: u32| {
                    let (end, ended) = oneshot::channel::<()>();
                    let (turns, order) = (std::rc::Rc::clone(&turns), std::rc::Rc::clone(&order));
                    tokio::task::spawn_local(async move {
                        let _turn = turns.of(MergeKind::Base, StoreKey(0)).lock_owned().await;
                        order.lock().await.push(name);
                        let _ = ended.await;
                    });
                    end
                };
                let settle = || async {
                    for _ in 0..20 {
                        tokio::task::yield_now().await;
                    }
                };
                let mut running = begin(0);
                settle().await;
                let mut next = begin(1);
                settle().await;
                let _waits = begin(2);
                settle().await;
                assert_eq!(*order.lock().await, [0], "one at a time");
                // Each one that ends is replaced: volume 2 is never the only waiter.
                for name in 3..20 {
                    drop(std::mem::replace(&mut running, next));
                    settle().await;
                    next = begin(name);
                    settle().await;
                }
                let order = order.lock().await.clone();
                assert!(order.contains(&2), "volume 2 has no turn: {order:?}");
            })
            .await;
    }
}
