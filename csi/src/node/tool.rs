//! Programs that work on devices and mounts: mkfs, fsck, mount and the like.
//!
//! Owns: starting the programs, their output and their lock. Each program holds the lock file of its volume
//! while it lives, so that no other starts concurrently, even if it outlives this process.
//! Runs on: threads that may block. This process kills no program: a program that waits for a device cannot
//! be killed. In a pod, the kernel kills all programs when this process, PID 1 of its namespace, exits; a
//! waiting program ends once its device answers. `interrupted_format.rs` detects a format that ended in this
//! way.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use tonic::Status;

/// Exit code of flock(1) if another program holds the lock.
const HELD: i32 = 75;
/// Bytes of a program's output shown in a response.
const MAX_OUTPUT_BYTES: usize = 2000;

/// Starts programs. Clones share the directory.
#[derive(Clone, Debug)]
pub(super) struct Tools {
    locks: PathBuf,
}

/// A program that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EndedProgram {
    /// Its exit code; `None` if a signal ended it.
    pub(super) code: Option<i32>,
    /// Its standard output.
    pub(super) stdout: String,
    /// Its standard error.
    stderr: String,
}

impl EndedProgram {
    /// A program that ended with this exit code and standard error.
    #[cfg(test)]
    pub(super) fn for_tests(code: i32, stderr: &str) -> Self {
        Self { code: Some(code), stdout: String::new(), stderr: stderr.to_owned() }
    }

    /// Returns all of its output, truncated.
    pub(super) fn output(&self) -> String {
        let mut text = [self.stdout.trim(), self.stderr.trim()].join("\n").trim().to_owned();
        text.truncate(text.floor_char_boundary(MAX_OUTPUT_BYTES));
        text
    }
}

/// A command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CommandLine(Vec<OsString>);

impl CommandLine {
    /// Creates a command line of a program with arguments.
    pub(super) fn new<A: Into<OsString>>(words: impl IntoIterator<Item = A>) -> Self {
        Self(words.into_iter().map(Into::into).collect())
    }

    /// Appends an argument.
    pub(super) fn and(mut self, word: impl Into<OsString>) -> Self {
        self.0.push(word.into());
        self
    }

    /// Returns the words for messages.
    pub(super) fn text(&self) -> String {
        self.0.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }
}

impl Tools {
    /// Uses that directory for the lock files of programs.
    pub(super) fn new(locks: PathBuf) -> Self {
        Self { locks }
    }

    /// Runs a program for a volume to completion.
    ///
    /// # Errors
    /// `ABORTED`: another program still works on the volume. `INTERNAL`: it cannot be started.
    pub(super) async fn run(&self, volume: &str, line: CommandLine) -> Result<EndedProgram, Status> {
        fs::create_dir_all(&self.locks).map_err(|error| {
            Status::internal(format!("{} cannot be created: {error}", self.locks.display()))
        })?;
        let text = line.text();
        let mut command = Command::new("flock");
        command
            .args(["--no-fork", "--nonblock", "--conflict-exit-code", &HELD.to_string()])
            .arg(self.locks.join(file_name(volume)))
            .args(line.0)
            .stdin(Stdio::null());
        tracing::info!(volume, command = text, "program started");
        let ended = tokio::task::spawn_blocking(move || command.output()).await;
        let failed = |why: String| Status::internal(format!("{text} cannot be run: {why}"));
        let output =
            ended.map_err(|error| failed(error.to_string()))?.map_err(|error| failed(error.to_string()))?;
        let code = output.status.code();
        if code == Some(HELD) {
            return Err(Status::aborted(format!("a program still works on volume {volume}; ask again")));
        }
        let words = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let ended = EndedProgram { code, stdout: words(output.stdout), stderr: words(output.stderr) };
        tracing::info!(volume, command = text, ?code, output = ended.output(), "program ended");
        Ok(ended)
    }

    /// Removes the lock file of a volume that this node no longer uses, unless a program holds it.
    pub(super) fn forget(&self, volume: &str) {
        let path = self.locks.join(file_name(volume));
        if File::open(&path).is_ok_and(|file| file.try_lock().is_ok() && fs::remove_file(&path).is_ok()) {
            tracing::debug!(volume, "lock file removed");
        }
    }

    /// Runs a program that must succeed.
    ///
    /// # Errors
    /// Those of [`Tools::run`]; `INTERNAL` with its output if it fails.
    pub(super) async fn succeed(&self, volume: &str, line: CommandLine) -> Result<(), Status> {
        let text = line.text();
        let ended = self.run(volume, line).await?;
        if ended.code == Some(0) {
            return Ok(());
        }
        Err(Status::internal(format!("`{text}` failed ({:?}): {}", ended.code, ended.output())))
    }
}

/// Encodes a volume's id as a file name.
pub(super) fn file_name(volume: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    if volume.len() <= 128 && volume.bytes().all(plain) {
        volume.to_owned()
    } else {
        blake3::hash(volume.as_bytes()).to_hex().to_string()
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    #[tokio::test]
    async fn a_running_program_holds_the_lock_of_its_volume() {
        let directory = tempfile::tempdir().expect("a directory");
        let tools = Tools::new(directory.path().join("locks"));
        let fifo = directory.path().join("fifo");
        let made = Command::new("mkfifo").arg(&fifo).status().expect("mkfifo");
        assert!(made.success());
        let waits = CommandLine::new(["cat"]).and(&fifo);
        let running = tokio::spawn({
            let tools = tools.clone();
            async move { tools.run("a", waits).await }
        });
        // Opening the write end blocks until the program has opened the read end.
        let opened = tokio::task::spawn_blocking(move || fs::File::options().write(true).open(fifo));
        let writer = opened.await.expect("opens").expect("opens");
        let second = tools.run("a", CommandLine::new(["true"])).await.expect_err("held");
        assert_eq!(second.code(), Code::Aborted);
        let lock = directory.path().join("locks/a");
        tools.forget("a");
        assert!(lock.exists(), "a program holds it");
        tools.succeed("b", CommandLine::new(["true"])).await.expect("another volume");
        drop(writer);
        assert_eq!(running.await.expect("ends").expect("ends").code, Some(0));
        tools.succeed("a", CommandLine::new(["true"])).await.expect("free again");
        for _ in 0..2 {
            tools.forget("a");
            assert!(!lock.exists());
        }
        let failed = tools.succeed("a", CommandLine::new(["ls", "/no/such/file"])).await.expect_err("fails");
        assert!(failed.message().contains("/no/such/file"), "{}", failed.message());
    }

    #[test]
    fn any_volume_has_a_file_name() {
        assert_eq!(file_name("pvc-1"), "pvc-1");
        assert!(!file_name("../pvc").contains('/'));
    }
}
