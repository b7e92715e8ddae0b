//! Serves one request of the harness.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::programs::{Programs, pump, raw_pid};
use crate::wait::until;
use crate::wire::{self, AgentReply, AgentRequest, Exit, FrameKind, GuestProgram};

/// Time for late output after a program's exit: a child left behind may hold the pipe.
const STRAGGLERS: Duration = Duration::from_secs(2);

pub(super) fn serve(mut connection: TcpStream, programs: &Arc<Programs>) -> Result<()> {
    connection.set_nodelay(true).context("set TCP_NODELAY")?;
    let request: AgentRequest = wire::receive_json(&mut connection)?;
    let mut contents = None;
    let reply = answer(request, &mut connection, programs, &mut contents)
        .unwrap_or_else(|error| AgentReply::Failed(format!("{error:#}")));
    wire::send_json(&mut connection, &reply)?;
    if let Some(contents) = contents {
        wire::send(&mut connection, FrameKind::Data, &contents)?;
    }
    Ok(())
}

fn answer(
    request: AgentRequest,
    connection: &mut TcpStream,
    programs: &Arc<Programs>,
    contents: &mut Option<Vec<u8>>,
) -> Result<AgentReply> {
    match request {
        AgentRequest::Ping => Ok(AgentReply::Done),
        AgentRequest::Exec(program) => Ok(AgentReply::Exit(Some(exec(&program, connection, programs)?))),
        AgentRequest::Spawn { name, program } => Ok(AgentReply::Started(programs.spawn(&name, &program)?)),
        AgentRequest::Signal { name, signal } => {
            programs.signal(&name, signal)?;
            Ok(AgentReply::Done)
        }
        AgentRequest::Wait { name, limit_ms } => {
            let exit = programs.wait_named(&name, Duration::from_millis(limit_ms))?;
            Ok(AgentReply::Exit(Some(exit)))
        }
        AgentRequest::Status { name } => Ok(AgentReply::Exit(programs.status(&name)?)),
        AgentRequest::Put { path, mode } => {
            let (FrameKind::Data, bytes) = wire::receive(connection)? else {
                bail!("the file's bytes did not follow");
            };
            put_file(Path::new(&path), mode, &bytes)?;
            Ok(AgentReply::Done)
        }
        AgentRequest::Get { path } => {
            *contents = Some(fs::read(&path).with_context(|| format!("read {path}"))?);
            Ok(AgentReply::Done)
        }
        AgentRequest::WaitBlockDevice { path, limit_ms } => {
            let description = format!("{path} to be a block device");
            until(&description, Duration::from_millis(limit_ms), || {
                let found = fs::metadata(&path);
                Ok(found.is_ok_and(|found| found.file_type().is_block_device()).then_some(()))
            })?;
            Ok(AgentReply::Done)
        }
        AgentRequest::PowerOff => {
            wire::send_json(connection, &AgentReply::Done)?;
            connection.shutdown(Shutdown::Write).context("say goodbye")?;
            super::power_off()?;
            Ok(AgentReply::Done)
        }
        AgentRequest::ShutDown => {
            wire::send_json(connection, &AgentReply::Done)?;
            connection.shutdown(Shutdown::Write).context("say goodbye")?;
            super::shut_down::run()?;
            Ok(AgentReply::Done)
        }
    }
}

fn put_file(path: &Path, mode: u32, bytes: &[u8]) -> Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).with_context(|| format!("create {}", parent.display()))?;
    }
    let written = File::create(path).and_then(|mut file| {
        file.write_all(bytes)?;
        // Data on the state disk must survive a reset.
        file.sync_all()
    });
    written.with_context(|| format!("write {}", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .with_context(|| format!("set the mode of {}", path.display()))
}

/// Runs a program and streams its output. Returns once it has exited and its output is read.
fn exec(program: &GuestProgram, connection: &TcpStream, programs: &Arc<Programs>) -> Result<Exit> {
    let mut child = programs.start(program)?;
    let pid = raw_pid(&child);
    let (sent, all_sent) = std::sync::mpsc::channel::<()>();
    let stream = connection.try_clone().context("share the connection")?;
    let shared = Arc::new(Mutex::new(Some(stream)));
    let mut stdin = child.stdin.take().context("standard input is a pipe")?;
    let input = program.stdin.clone();
    std::thread::spawn(move || {
        // A program may ignore its input.
        drop(stdin.write_all(input.as_bytes()));
    });
    let out = child.stdout.take().context("standard output is a pipe")?;
    let err = child.stderr.take().context("standard error is a pipe")?;
    let streams: [(FrameKind, Box<dyn Read + Send>); 2] =
        [(FrameKind::Stdout, Box::new(out)), (FrameKind::Stderr, Box::new(err))];
    for (kind, mut stream) in streams {
        let (shared, sent) = (Arc::clone(&shared), sent.clone());
        std::thread::spawn(move || {
            let copied = pump(&mut stream, |bytes| {
                let mut to = shared.lock().expect("nothing panics while it holds this lock");
                match to.as_mut() {
                    Some(to) => wire::send(to, kind, bytes),
                    None => Err(std::io::ErrorKind::BrokenPipe.into()),
                }
            });
            // The watcher below detects a disconnected harness.
            drop((copied, sent));
        });
    }
    drop(sent);
    let mut watched = connection.try_clone().context("watch the connection")?;
    let watcher = Arc::clone(programs);
    std::thread::spawn(move || {
        // The harness sends nothing more: an end of the stream means that it stopped waiting. After the reply
        // it closes the connection, too; by then the group is gone.
        let mut byte = [0];
        if !matches!(watched.read(&mut byte), Ok(1)) && watcher.wait_for(pid, Some(Duration::ZERO)).is_none()
        {
            watcher.kill_group(pid);
        }
    });
    let exit = programs.wait_for(pid, None).context("waiting without a limit ends with an exit")?;
    // Both senders are dropped at the end of their streams; an error means that end.
    all_sent.recv_timeout(STRAGGLERS).ok();
    // From here on only the reply is written to the connection: late output must not interfere.
    drop(shared.lock().expect("nothing panics while it holds this lock").take());
    Ok(exit)
}
