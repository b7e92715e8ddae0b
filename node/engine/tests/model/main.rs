//! The engine on simulated hosts around one bucket, checked sector by sector.

mod device;
mod disk;
mod expect;
mod host;
mod memory;
mod random;
mod rng;
mod store;
mod world;
