//! A real S3 server (versitygw over a directory) on the host's loopback.
//!
//! Owns: the process, its directory of buckets, its access log.
//! Invariants: every request it answered is in [`S3Server::requests`], in order, across all restarts; the
//! port stays the same.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::Signal;

use crate::command::output;
use crate::process::LoggedProcess;
use crate::setup::Toolbox;
use crate::vm;
use crate::vm::machine::free_port;
use crate::wait::until;

pub mod dialect;
mod http;
pub mod proxy;
pub mod seaweedfs;
mod sign;

/// The account of all tests.
pub const ACCESS_KEY: &str = "holdfast-e2e";
/// Secret of the account.
pub const SECRET_KEY: &str = "holdfast-e2e-secret";
/// Region of the server.
pub const REGION: &str = "us-east-1";

const START_LIMIT: Duration = Duration::from_secs(60);

/// A running S3 server.
#[derive(Debug)]
pub struct S3Server {
    program: PathBuf,
    dir: PathBuf,
    port: u16,
    /// Key and secret of its account.
    account: Mutex<[String; 2]>,
    process: Mutex<Option<LoggedProcess>>,
}

/// A request answered by the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct S3Request {
    /// The name of the operation in the S3 API, such as `PutObject` or `ListObjectsV2`.
    pub operation: String,
    /// The bucket.
    pub bucket: String,
    /// The key, or the prefix of a LIST; empty for other requests about a bucket.
    pub key: String,
    /// The HTTP status of the response.
    pub status: u16,
}

impl S3Server {
    /// Starts a server with a new empty directory.
    ///
    /// # Errors
    /// If it cannot be built or does not respond.
    pub fn start(toolbox: &Toolbox, dir: &Path) -> Result<Self> {
        fs::create_dir_all(dir.join("buckets")).with_context(|| format!("create {}", dir.display()))?;
        let server = Self {
            program: toolbox.versitygw()?,
            dir: dir.to_owned(),
            port: free_port()?,
            account: Mutex::new([ACCESS_KEY, SECRET_KEY].map(str::to_owned)),
            process: Mutex::new(None),
        };
        server.resume()?;
        Ok(server)
    }

    /// Returns its port on the host's loopback.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the endpoint for programs on the host.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Returns the endpoint for programs in a test machine.
    pub fn endpoint_in_vm(&self) -> String {
        format!("http://{}:{}", vm::HOST, self.port)
    }

    /// Returns the endpoint under a name that resolves to the host both on the host and in a test machine: an
    /// ObjectStore's endpoint must be valid for the operator and for the daemons.
    pub fn endpoint_everywhere(&self) -> String {
        format!("http://localhost:{}", self.port)
    }

    /// Creates an empty bucket.
    ///
    /// # Errors
    /// If it exists.
    pub fn create_bucket(&self, name: &str) -> Result<()> {
        // This server's buckets are directories.
        fs::create_dir(self.dir.join("buckets").join(name)).with_context(|| format!("create bucket {name}"))
    }

    /// Returns the keys in a bucket that begin with `prefix`, sorted, read directly from its directory (no
    /// request is counted).
    ///
    /// # Errors
    /// If the bucket's directory cannot be read.
    pub fn keys(&self, bucket: &str, prefix: &str) -> Result<Vec<String>> {
        let root = self.dir.join("buckets").join(bucket);
        let mut keys = Vec::new();
        collect_keys(&root, &root, &mut keys)?;
        keys.retain(|key| key.starts_with(prefix));
        keys.sort();
        Ok(keys)
    }

    /// Saves the current state of a bucket in the new directory `to`. Objects are never changed in place, so
    /// links are sufficient.
    ///
    /// # Errors
    /// If a link cannot be created.
    pub fn save_bucket(&self, bucket: &str, to: &Path) -> Result<()> {
        output(Command::new("cp").arg("-al").arg(self.dir.join("buckets").join(bucket)).arg(to)).map(drop)
    }

    /// Returns the path of an object's file.
    pub fn object_path(&self, bucket: &str, key: &str) -> PathBuf {
        self.dir.join("buckets").join(bucket).join(key)
    }

    /// Replaces a bucket by a saved state; the server must be idle.
    ///
    /// # Errors
    /// If it cannot be linked.
    pub fn restore_bucket(&self, bucket: &str, kept: &Path) -> Result<()> {
        let directory = self.dir.join("buckets").join(bucket);
        fs::remove_dir_all(&directory).with_context(|| format!("remove {}", directory.display()))?;
        output(Command::new("cp").arg("-al").arg(kept).arg(directory)).map(drop)
    }

    /// Inverts one byte of an object's file directly, like bit rot; a second call restores it.
    ///
    /// # Errors
    /// If the object is too short.
    pub fn flip_byte(&self, bucket: &str, key: &str, offset: u64) -> Result<()> {
        let path = self.object_path(bucket, key);
        let object = fs::File::options().read(true).write(true).open(&path);
        let object = object.with_context(|| format!("open {}", path.display()))?;
        let mut byte = [0];
        object.read_exact_at(&mut byte, offset).with_context(|| format!("read byte {offset} of {key}"))?;
        object.write_all_at(&[!byte[0]], offset).with_context(|| format!("write byte {offset} of {key}"))
    }

    /// Returns all requests answered so far.
    ///
    /// # Errors
    /// If the access log cannot be read.
    pub fn requests(&self) -> Result<Vec<S3Request>> {
        let log = fs::read_to_string(self.access_log()).context("read the S3 access log")?;
        Ok(log.lines().filter_map(parse).collect())
    }

    /// Kills the server: connections break, the port refuses.
    pub fn stop(&self) {
        self.lock().take();
    }

    /// Replaces the account's key and secret: requests with the previous ones are denied from now on.
    /// Requests in progress break.
    ///
    /// # Errors
    /// If the server does not respond afterwards.
    pub fn replace_key(&self, key: &str, secret: &str) -> Result<()> {
        self.stop();
        *self.account.lock().expect("nothing panics while it holds this lock") =
            [key, secret].map(str::to_owned);
        self.resume()
    }

    /// Freezes the server: connections hang.
    ///
    /// # Errors
    /// If it is stopped.
    pub fn pause(&self) -> Result<()> {
        let process = self.lock();
        process.as_ref().context("the S3 server is stopped")?.freeze()
    }

    /// Resumes a frozen server, or restarts a stopped one with the same port and buckets.
    ///
    /// # Errors
    /// If it does not respond.
    pub fn resume(&self) -> Result<()> {
        if let Some(process) = self.lock().as_ref() {
            return process.signal(Signal::CONT);
        }
        let [key, secret] = self.account.lock().expect("nothing panics while it holds this lock").clone();
        let mut command = Command::new(&self.program);
        command
            .args(["--port", &format!("127.0.0.1:{}", self.port)])
            .args(["--access", &key, "--secret", &secret])
            .args(["--region", REGION, "--health", "/health", "--keep-alive", "--quiet"])
            .arg("--access-log")
            .arg(self.access_log())
            .arg("posix")
            .arg(self.dir.join("buckets"));
        let mut process = LoggedProcess::spawn("versitygw", &command, &self.dir.join("versitygw.log"))?;
        until("the S3 server to answer", START_LIMIT, || {
            process.check_running()?;
            Ok(std::net::TcpStream::connect(("127.0.0.1", self.port)).ok())
        })?;
        *self.lock() = Some(process);
        Ok(())
    }

    fn access_log(&self) -> PathBuf {
        self.dir.join("access.log")
    }

    fn lock(&self) -> MutexGuard<'_, Option<LoggedProcess>> {
        self.process.lock().expect("nothing panics while it holds this lock")
    }
}

/// Parses a line of the access log. Its fields follow S3's format, but are not quoted: owner, bucket, time
/// (two words), address, requester, id, operation, key, target, status, and more.
fn parse(line: &str) -> Option<S3Request> {
    let mut words = line.split(' ');
    let bucket = words.nth(1)?;
    let operation = words.nth(5)?.strip_prefix("s3_")?;
    let key = words.next()?;
    let target = words.next()?;
    let status = words.next()?.parse().ok()?;
    Some(S3Request {
        operation: operation.to_owned(),
        bucket: bucket.to_owned(),
        key: if key == "-" { prefix(target) } else { key.to_owned() },
        status,
    })
}

/// Returns the prefix in the target of a LIST; empty without one.
fn prefix(target: &str) -> String {
    let mut options = target.split(['?', '&']).skip(1);
    options.find_map(|option| option.strip_prefix("prefix=")).unwrap_or_default().replace("%2F", "/")
}

fn collect_keys(root: &Path, dir: &Path, keys: &mut Vec<String>) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))? {
        let path = entry?.path();
        // The server keeps uploads in progress in a separate directory.
        let inside = path.strip_prefix(root).context("a path below its root")?;
        if inside.starts_with(".sgwtmp") {
            continue;
        }
        if path.is_dir() {
            collect_keys(root, &path, keys)?;
        } else {
            keys.push(inside.to_string_lossy().into_owned());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_an_access_log_line() {
        let line = "- buck [21/November/2026:02:27:12 +0000] 127.0.0.1 me 26E3 s3_PutObject a/b \
            /buck/a/b?x-id=PutObject 200 - 0 0 0 0 - agent - host SigV4 -";
        let request = parse(line).unwrap();
        assert_eq!(request.operation, "PutObject");
        assert_eq!((request.bucket.as_str(), request.key.as_str()), ("buck", "a/b"));
        assert_eq!(request.status, 200);
        let list = "- buck [t +0000] ::1 me 1 s3_ListObjectsV2 - /buck?list-type=2 403 AccessDenied";
        assert_eq!(parse(list).unwrap().key, "");
        let list = list.replace("type=2", "type=2&max-keys=9&prefix=volumes%2Fa%2F");
        assert_eq!(parse(&list).unwrap().key, "volumes/a/");
        assert_eq!(parse("log starts 2026-11-21 02:27:11.07 +0000 UTC m=+0.01"), None);
    }
}
