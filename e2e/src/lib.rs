//! End-to-end harness: demo, tests and benchmarks on real parts.
//!
//! One program, on both sides: on the host it starts test machines, a Kubernetes API and an S3 server and
//! plays scenarios on them; in a test machine it is process 1 (see [`guest`]).
//!
//! A scenario gets a [`world::World`] and asks it for what it needs.

pub mod bench;
pub mod cache;
pub mod chance;
pub mod churn;
pub mod cli;
pub mod command;
pub mod control_plane;
pub mod coverage;
pub mod guest;
pub mod limit;
pub mod node;
pub mod operator;
pub mod pins;
pub mod process;
pub mod report;
pub mod run_dir;
pub mod s3;
pub mod scenario;
pub mod setup;
pub mod shell;
pub mod stamp;
pub mod suite;
pub mod vm;
pub mod wait;
pub mod wire;
pub mod world;
