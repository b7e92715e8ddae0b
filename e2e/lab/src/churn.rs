//! File system load in a test machine: files are written, flushed, renamed, read back and deleted,
//! continuously.
//!
//! Every printed name is durable: its file was flushed, then its directory. A file's content is derived from
//! its worker and number, so that it can be checked without any state of the run.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::chance::Chance;
use crate::report;

/// Files kept per worker; older ones are checked and deleted.
const KEPT: u64 = 32;
/// Name of a file before it is flushed.
const UNFINISHED: &str = "unfinished";
/// Maximum length of a file, in units of 8 bytes.
const MAX_WORDS: u64 = 3072;

/// Runs below `directory` until an operation fails.
///
/// # Errors
/// The failure of an operation; it never returns without one.
pub fn run(directory: &Path, workers: u64) -> Result<()> {
    std::thread::scope(|scope| {
        for worker in 0..workers {
            scope.spawn(move || {
                if let Err(error) = run_worker(directory, worker) {
                    eprintln!("worker {worker}: {error:#}");
                    std::process::exit(1);
                }
            });
        }
    });
    Ok(())
}

fn run_worker(directory: &Path, worker: u64) -> Result<()> {
    let home = directory.join(worker.to_string());
    fs::create_dir_all(&home).context("make the worker's directory")?;
    for number in 0.. {
        let unfinished = home.join(UNFINISHED);
        let mut file = File::create(&unfinished).context("create a file")?;
        file.write_all(&contents(worker, number)).context("write a file")?;
        file.sync_all().context("flush a file")?;
        fs::rename(&unfinished, home.join(number.to_string())).context("rename a file")?;
        File::open(&home).and_then(|home| home.sync_all()).context("flush the directory")?;
        report::line(format_args!("{worker} {number}"));
        if let Some(old) = number.checked_sub(KEPT) {
            check_file(&home, worker, old)?;
            fs::remove_file(home.join(old.to_string())).context("delete a file")?;
        }
    }
    Ok(())
}

/// Reads all workers' files below `directory` and prints each worker's last number.
///
/// # Errors
/// If a file is missing or its content is wrong.
pub fn check(directory: &Path) -> Result<()> {
    for home in fs::read_dir(directory).context("list the directory")? {
        let home = home?.path();
        let Some(worker) = number(&home) else { continue };
        let mut numbers = Vec::new();
        for file in fs::read_dir(&home)? {
            numbers.extend(number(&file?.path()));
        }
        numbers.sort_unstable();
        let (first, last) = (numbers.first().copied(), numbers.last().copied());
        let (first, last) = first.zip(last).with_context(|| format!("worker {worker} left no file"))?;
        ensure!((first..=last).eq(numbers.iter().copied()), "worker {worker} left {numbers:?}");
        for number in numbers {
            check_file(&home, worker, number)?;
        }
        report::line(format_args!("{worker} {last}"));
    }
    Ok(())
}

/// Checks that every file reported by the workers exists.
///
/// `reported`: the output of the workers. `found`: the output of [`check`].
///
/// # Errors
/// If one is missing, or no worker reported any.
pub fn ensure_reported_exist(reported: &str, found: &str) -> Result<()> {
    let reported = last_numbers(reported).context("read what was reported")?;
    let found_numbers = last_numbers(found)?;
    ensure!(!reported.is_empty(), "the workers reported no file");
    for (worker, number) in reported {
        let last = found_numbers.get(&worker).copied();
        ensure!(
            last >= Some(number),
            "worker {worker} reported file {number}, the last one there is {last:?}"
        );
    }
    Ok(())
}

/// Returns the last number of each worker in the output of [`run`] or [`check`].
///
/// # Errors
/// If a line has another format.
fn last_numbers(printed: &str) -> Result<BTreeMap<u64, u64>> {
    let mut last = BTreeMap::new();
    for line in printed.lines() {
        let (worker, number) =
            line.split_once(' ').with_context(|| format!("not a worker and a number: {line:?}"))?;
        last.insert(worker.parse()?, number.parse()?);
    }
    Ok(last)
}

fn number(path: &Path) -> Option<u64> {
    path.file_name()?.to_str()?.parse().ok()
}

fn check_file(home: &Path, worker: u64, number: u64) -> Result<()> {
    let path = home.join(number.to_string());
    let found = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
    ensure!(found == contents(worker, number), "{} does not hold what was written", path.display());
    Ok(())
}

fn contents(worker: u64, number: u64) -> Vec<u8> {
    let mut chance = Chance::new((worker << 48) ^ number);
    let words = 1 + chance.below(MAX_WORDS);
    let mut bytes = Vec::new();
    // Without optimization, an iterator over bytes costs more than the rest of a worker.
    (0..words).for_each(|_| bytes.extend_from_slice(&chance.draw().to_le_bytes()));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_or_missing_file_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let home = directory.path().join("3");
        fs::create_dir(&home).unwrap();
        for number in 5..8 {
            fs::write(home.join(number.to_string()), contents(3, number)).unwrap();
        }
        fs::write(home.join(UNFINISHED), "half").unwrap();
        check(directory.path()).unwrap();

        fs::write(home.join("6"), contents(3, 7)).unwrap();
        assert!(check(directory.path()).unwrap_err().to_string().contains("3/6 does not hold"));
        fs::remove_file(home.join("6")).unwrap();
        assert!(check(directory.path()).unwrap_err().to_string().contains("left [5, 7]"));
    }

    #[test]
    fn the_last_number_of_each_worker_is_read() {
        let last = last_numbers("0 1\n1 1\n0 2\n").unwrap();
        assert_eq!(last, BTreeMap::from([(0, 2), (1, 1)]));
        assert!(last_numbers("worker").is_err());
        assert!(ensure_reported_exist("0 1\n1 1\n0 2\n", "0 3\n1 1\n").is_ok());
        assert!(ensure_reported_exist("0 2\n1 1\n", "0 1\n1 1\n").is_err(), "an earlier file of a worker");
        assert!(ensure_reported_exist("0 2\n1 1\n", "0 2\n").is_err(), "none of a worker");
        assert!(ensure_reported_exist("", "0 2\n").is_err(), "nothing was reported");
    }
}
