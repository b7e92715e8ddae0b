//! The structure of the source: circular imports, names of types, sizes.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "helpers of tests are tests")]

mod circles;
mod sizes;
mod source;
mod type_names;

/// Prints a figure for `cargo e2e bench house`.
fn figure(name: &str, value: usize) {
    println!("figure {name} {value}");
}
