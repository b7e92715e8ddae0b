//! The Holdfast node daemon.

mod node;

fn main() {}
