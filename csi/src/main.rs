//! The Holdfast CSI driver.

fn main() {}
