//! The lab: real parts for scenarios and benchmarks, started when they are asked for.
//!
//! Test machines, a Kubernetes API, an S3 server with a fault proxy before it, the programs under test, and
//! the set-up of the host that all of these need. A user of the lab makes a [`world::World`] and asks it for
//! what it needs.
//!
//! A program that uses the lab is on both sides: the lab puts it into each test machine as `holdfast-e2e`,
//! where it must answer the commands of [`inside::Inside`]; one of them is process 1 (see [`guest`]).

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
