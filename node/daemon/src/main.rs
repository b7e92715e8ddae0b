//! The Holdfast node daemon.

fn main() {}
