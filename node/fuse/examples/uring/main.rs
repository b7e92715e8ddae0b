//! FUSE over io_uring with a ring that outlives the server: the experiment of
//! `docs/adr/0035-fuse-over-io-uring-with-a-keeper.md`. The benchmark `fuse-uring` runs it in a test machine;
//! no volume uses it.
//!
//! A keeper submits to the ring, so the kernel's commands belong to it; the server only writes and reads the
//! ring's memory, and can be killed. It serves one file, with the data of another.

use std::fmt;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use keeper::Way;

mod classic;
mod connection;
mod keeper;
mod load;
mod memory;
mod ring;
mod server;

const USAGE: &str = "uring run WAY DISK DIRECTORY | uring load FILE SECONDS THREADS
WAY is classic, or who submits (own, keeper, kernel) and how data moves (copy, zero): keeper-zero";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["run", name, disk, directory] => way(name).and_then(|way| keeper::run(name, way, disk, directory)),
        ["server", name, disk, connection, memory, wake, ring] => {
            way(name).and_then(|way| keeper::serve(way, disk, [connection, memory, wake, ring]))
        }
        ["keeper", name, disk, connection, memory, wake, ring] => {
            way(name).and_then(|way| keeper::keep(way, disk, [connection, memory, wake, ring]))
        }
        ["load", file, seconds, threads] => number(seconds).and_then(|seconds| {
            load::run(Path::new(file), seconds, usize::try_from(number(threads)?).map_err(io::Error::other)?)
        }),
        _ => Err(io::Error::other(USAGE)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(format_args!("{}: {error}", words.first().unwrap_or(&"uring")));
            ExitCode::FAILURE
        }
    }
}

fn number(word: &str) -> io::Result<u64> {
    word.parse().map_err(io::Error::other)
}

fn way(name: &str) -> io::Result<Way> {
    Way::of(name).ok_or_else(|| io::Error::other(USAGE))
}

/// Writes a line to the log.
fn say(line: fmt::Arguments<'_>) {
    drop(writeln!(io::stderr(), "{line}"));
}
