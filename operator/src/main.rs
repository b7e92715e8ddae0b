//! The Holdfast control-plane operator.

fn main() {}
