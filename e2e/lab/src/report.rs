//! Messages of the harness to its user.
//!
//! Progress goes to standard error, or to the file of a displayed step ([`into`]); results go to standard
//! output.

use std::cell::RefCell;
use std::fmt::Display;
use std::fs::File;
use std::io::Write;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

thread_local! {
    /// File of this thread's progress; `None`: standard error.
    static PROGRESS: RefCell<Option<File>> = const { RefCell::new(None) };
}

/// Runs `work` with this thread's progress redirected to `file`.
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

/// Returns the destination of this thread's progress, for a program that it starts.
///
/// # Errors
/// If the file's descriptor cannot be duplicated.
pub fn progress() -> Result<Stdio> {
    PROGRESS.with_borrow(|file| match file {
        Some(file) => Ok(file.try_clone().context("duplicate the descriptor of a step's file")?.into()),
        None => Ok(std::io::stderr().into()),
    })
}

/// Reports that something starts or has happened.
pub fn step(text: impl Display) {
    PROGRESS.with_borrow_mut(|file| match file {
        // If the disk is full, the next write of the step fails.
        Some(file) => drop(writeln!(file, "== {text}")),
        None => eprintln!("== {text}"),
    });
}

/// Prints a result line to standard output. A closed standard output is not an error: no process reads it.
pub fn line(text: impl Display) {
    let mut out = std::io::stdout().lock();
    let written = writeln!(out, "{text}").and_then(|()| out.flush());
    drop(written);
}

/// Announces lengthy work, runs it, and reports its duration.
///
/// # Errors
/// The error of `work`.
pub fn timed<T, E>(text: &str, expected: Duration, work: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    step(format_args!("{text} (about {} s)", expected.as_secs()));
    let started = Instant::now();
    let result = work();
    let seconds = started.elapsed().as_secs_f64();
    match &result {
        Ok(_) => step(format_args!("{text}: done in {seconds:.1} s")),
        Err(_) => step(format_args!("{text}: failed after {seconds:.1} s")),
    }
    result
}
