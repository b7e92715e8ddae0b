//! Messages of the harness to the person who runs it.
//!
//! Progress goes to standard error, or into the file of a step of the display ([`into`]); results go to
//! standard output.

use std::cell::RefCell;
use std::fmt::Display;
use std::fs::File;
use std::io::Write;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

thread_local! {
    /// File of this thread's progress, which else goes to standard error.
    static PROGRESS: RefCell<Option<File>> = const { RefCell::new(None) };
}

/// Does `work` while this thread's progress goes into `file`.
///
/// # Errors
/// If the file's descriptor cannot be duplicated.
pub fn into<T>(file: &File, work: impl FnOnce() -> T) -> Result<T> {
    let file = file.try_clone().context("duplicate the descriptor of a step's file")?;
    let outer = PROGRESS.replace(Some(file));
    let done = work();
    PROGRESS.set(outer);
    Ok(done)
}

/// The place of this thread's progress, for a program that it starts.
///
/// # Errors
/// If the file's descriptor cannot be duplicated.
pub fn progress() -> Result<Stdio> {
    PROGRESS.with_borrow(|file| match file {
        Some(file) => Ok(file.try_clone().context("duplicate the descriptor of a step's file")?.into()),
        None => Ok(std::io::stderr().into()),
    })
}

/// Says that something begins or has happened.
pub fn step(what: impl Display) {
    PROGRESS.with_borrow_mut(|file| match file {
        // A full disk is what the next write of the step fails with.
        Some(file) => drop(writeln!(file, "== {what}")),
        None => eprintln!("== {what}"),
    });
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
