//! The lab: real components for scenarios and benchmarks, started on demand.
//!
//! Test machines, a Kubernetes API, an S3 server behind a fault proxy, the programs under test, and the setup
//! of the host required for them. A user of the lab creates a [`world::World`] and requests components from
//! it.
//!
//! A program that uses the lab runs on both sides: in each test machine it is installed as `holdfast-e2e`,
//! and must implement [`inside::GuestCommand`]; one of these commands is process 1 (see [`guest`]).

pub mod architecture;
pub mod autoscaler;
pub mod cache;
pub mod chance;
pub mod churn;
pub mod cluster;
pub mod collector;
pub mod command;
pub mod control_plane;
pub mod csi;
pub mod csi_node;
pub mod display;
pub mod external_storage;
pub mod guest;
pub mod images;
pub mod inside;
pub mod limit;
pub mod node;
pub mod operator;
pub mod partition;
pub mod pins;
pub mod process;
pub mod report;
pub mod rpc;
pub mod run_dir;
pub mod s3;
pub mod setup;
pub mod sidecars;
pub mod stamp;
pub mod velero;
pub mod vm;
pub mod wait;
pub mod wire;
pub mod world;
