//! Cuts: snapshots of the writer at the same point as those of other volumes.
//!
//! The other volumes of a cut are left out. The guarantee of a cut follows from the behaviour of each volume:
//! its snapshot has everything that had completed when its writes were released, and nothing that was begun
//! later. Any point at which all volumes of a cut are held is thus the point of all their snapshots.

use holdfast_engine::event::Event;
use holdfast_engine::snapshot::CutAnswer;
use holdfast_types::SnapshotUid;

use super::World;
use crate::expect::CapturedContent;
use crate::invariant::Invariant;

/// Bit that only the uids of cuts have.
const OF_A_CUT: u128 = 1 << 64;

impl World {
    /// Takes the next step of a cut of the volume at `host`; if `hasty`, without waiting for the last answer.
    pub(crate) fn advance_cut(&mut self, host: usize, hasty: bool) {
        if self.hosts[host].process.as_ref().is_none_or(|process| process.volume.is_none()) {
            return;
        }
        let Some((uid, answer)) = self.hosts[host].snapshots.cut else {
            self.cuts += 1;
            let uid = SnapshotUid((OF_A_CUT + u128::from(self.cuts)).to_le_bytes());
            self.hosts[host].snapshots.cut = Some((uid, None));
            let forgotten = self.store.forgotten_snapshots();
            return self.send_event(host, Event::PrepareCut { uid, forgotten });
        };
        match answer {
            None if hasty => self.send_event(host, Event::ReleaseCut { uid }),
            None => {}
            Some(CutAnswer::Prepared) => {
                self.hosts[host].snapshots.cut = Some((uid, None));
                self.send_event(host, Event::Cut { uid });
            }
            Some(CutAnswer::Held) => self.send_event(host, Event::ReleaseCut { uid }),
            Some(CutAnswer::Busy | CutAnswer::Released | CutAnswer::Lapsed) => {
                self.hosts[host].snapshots.cut = None;
                self.send_event(host, Event::AwaitCut { uid });
            }
        }
    }

    /// Checks that the registered snapshot of a cut is of the point at which its writes were released.
    pub(super) fn check_cut(&self, host: usize, uid: SnapshotUid, registered: &CapturedContent) {
        let Some(released) = self.hosts[host].snapshots.released_cuts.get(&uid) else { return };
        let sectors = released.touched().chain(registered.touched());
        for sector in sectors {
            let (held, holds) = (released.allowed(sector), registered.allowed(sector));
            Invariant::CutIsOnePoint.check(held.iter().any(|stamp| holds.contains(stamp)), || {
                format!("sector {sector} was {held:?} when the writes of a cut were released, and is {holds:?} in its snapshot")
            });
        }
    }
}
