//! A volume's planner, made off the ring threads.
//!
//! All that grows with the size of a volume before it serves is done here: its whole live map is written, or
//! read and counted. On a ring thread every other device would stand still meanwhile.

use holdfast_engine::action::{Action, Report};
use holdfast_engine::sector_map::LiveMapError;
use holdfast_engine::settings::{AttachState, Pending, Setup};
use holdfast_engine::volume::Volume;

use crate::clock::now;
use crate::live_map::LiveMap;

/// Start of a volume's planner.
pub enum Start {
    /// Just attached.
    Attach(Box<AttachState>),
    /// Taken over from a dead or retired process.
    Resume {
        /// The commit that the predecessor had begun.
        pending: Option<Pending>,
    },
}

/// A volume's planner that is not on a ring thread yet.
pub struct Planned {
    /// Most requests that it may have in flight.
    pub requests: u32,
    /// The planner.
    pub volume: Volume<LiveMap>,
    /// Actions that it requested when it was made.
    pub actions: Vec<Action>,
}

impl Start {
    /// Makes the planner; it blocks for as long as the map takes.
    ///
    /// # Errors
    /// [`LiveMapError`] when what a predecessor left is not the volume's live map.
    pub fn make(self, setup: Setup, live_map: LiveMap) -> Result<Planned, LiveMapError> {
        let requests = setup.requests;
        let mut actions = Vec::with_capacity(64);
        let volume = match self {
            Self::Attach(state) => Volume::attach(setup, live_map, *state, now(), &mut actions),
            Self::Resume { pending } => {
                let volume = Volume::resume(setup, live_map, pending, now())?;
                if !volume.status().recovering {
                    actions.push(Action::Report(Report::Ready));
                }
                volume
            }
        };
        Ok(Planned { requests, volume, actions })
    }
}
