//! The S3 store against servers: one in this process that fails on demand, and a real one.

#![allow(clippy::unwrap_used, reason = "tests panic where they fail")]

mod answers;
mod backend;
mod behind_faults;
mod commits;
mod conformance;
mod credentials;
mod faults;
mod health;
mod http_proxy;
mod late_reads;
mod proxy;
mod server;
mod slow_uplink;
mod tls;
mod two_stores;
mod versitygw;
