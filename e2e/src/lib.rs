//! `cargo e2e`: demo, tests and benchmarks on real parts.
//!
//! Contains only the command line, the suite that runs scenarios, and the shell; scenarios, benchmarks and
//! the lab that they use are separate crates below `e2e`.

pub mod cli;
pub mod cluster;
pub mod host_tests;
pub mod images;
pub mod last_runs;
pub mod run_time;
pub mod shell;
pub mod suite;
