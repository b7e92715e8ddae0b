//! End-to-end harness: demo, tests and benchmarks on real parts.

fn main() {}
