//! The engine on simulated hosts around one bucket, checked sector by sector.

mod bars;
mod crash_points;
mod device;
mod disk;
mod drive;
mod expect;
mod host;
mod memory;
mod random;
mod rng;
mod store;
mod world;
