//! A volume's planner, created outside the ring threads.
//!
//! All work that grows with the volume's size is done here, before the volume serves: the whole live map is
//! written, or read and counted. On a ring thread this would block every other device.

use holdfast_engine::action::{Action, Report};
use holdfast_engine::sector_map::LiveMapError;
use holdfast_engine::settings::{AttachState, Pending, Setup};
use holdfast_engine::volume::Volume;

use crate::clock::now;
use crate::live_map::LiveMap;

/// Start of a volume's planner.
pub enum Start {
    /// The volume was just attached.
    Attach(Box<AttachState>),
    /// The volume is taken over from a dead or retired process.
    Resume {
        /// The commit that the predecessor had begun.
        pending: Option<Pending>,
    },
}

/// A volume's planner that is not on a ring thread yet.
pub struct Planned {
    /// Maximum requests that the volume has in flight.
    pub requests: u32,
    /// The planner.
    pub volume: Volume<LiveMap>,
    /// Actions that the planner requested when it was created.
    pub actions: Vec<Action>,
}

impl Start {
    /// Creates the planner; blocks until the map is written or read.
    ///
    /// # Errors
    /// [`LiveMapError`] if the predecessor's file is not the volume's live map.
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
