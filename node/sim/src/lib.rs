//! Deterministic simulation of the real engine on simulated hosts around one bucket, checked sector by
//! sector.
//!
//! Owns: simulated disks, memory, store, clients and their deaths; the model of each sector's allowed
//! content; the invariants (`docs/invariants.md`). Does not own: any part of the engine; it runs the
//! shipped one.
//! Runs on: one thread per run. Invariant: the same seed gives the same run, on every machine.
//!
//! [`case::Case`] is a random run; [`find::search`] searches for a planted bug; [`crash::campaign`] ends
//! scenarios at every crash point; [`world::World`] with [`drive`] is for tests that choose each step
//! themselves.

mod attempt;
pub mod bug;
mod calls;
pub mod case;
mod clock;
mod content;
pub mod crash;
mod device;
mod disk;
mod disk_past;
pub mod drive;
mod expect;
mod failures;
pub mod find;
pub mod fleet;
mod host;
mod invariant;
mod lag;
mod memory;
pub mod memory_volume;
mod process;
mod profile;
mod rng;
mod schedule;
mod shared;
mod slab;
mod store;
pub mod strike;
mod surroundings;
mod tasks;
mod terms;
pub mod tiers;
mod trace;
mod violation;
pub mod world;
mod writers;

pub use disk::Fate;
pub use host::use_direct_path;
pub use invariant::Invariant;
pub use profile::Profile;
pub use rng::Rng;
pub use violation::Violation;
