//! Messages of the harness to the person who runs it.
//!
//! Progress goes to standard error, results to standard output.

use std::fmt::Display;
use std::io::Write;
use std::time::{Duration, Instant};

/// Says that something begins or has happened.
pub fn step(what: impl Display) {
    eprintln!("== {what}");
}

/// Prints one line of result on standard output. A closed standard output is not an error: nothing reads it.
pub fn line(what: impl Display) {
    let mut out = std::io::stdout().lock();
    let written = writeln!(out, "{what}").and_then(|()| out.flush());
    drop(written);
}

/// Announces work that takes a while, runs it, and says how long it took.
///
/// # Errors
/// The error of `work`.
pub fn timed<T, E>(what: &str, expected: Duration, work: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    step(format_args!("{what} (about {} s)", expected.as_secs()));
    let started = Instant::now();
    let result = work();
    let seconds = started.elapsed().as_secs_f64();
    match &result {
        Ok(_) => step(format_args!("{what}: done in {seconds:.1} s")),
        Err(_) => step(format_args!("{what}: failed after {seconds:.1} s")),
    }
    result
}
