//! The S3 server itself.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use holdfast_lab::world::World;

pub(super) fn run(world: &World) -> Result<()> {
    let s3 = world.s3()?;
    s3.create_bucket("first")?;
    let address = s3.endpoint().replace("http://", "");
    ensure!(get(&address, "/first/nothing")?.starts_with("HTTP/1.1 403"), "an unsigned read is not refused");
    let requests = s3.requests()?;
    let counted = requests.iter().filter(|request| request.key == "nothing");
    ensure!(counted.count() == 1, "one read was counted as {requests:?}");

    s3.pause()?;
    ensure!(get(&address, "/first/frozen").is_err(), "a frozen server answers");
    s3.resume()?;
    s3.stop();
    ensure!(TcpStream::connect(&address).is_err(), "a stopped server listens");
    s3.resume()?;
    get(&address, "/first/again")?;
    ensure!(s3.requests()?.len() > requests.len(), "requests are not counted after a restart");
    ensure!(s3.keys("first", "")?.is_empty(), "the bucket is not empty");
    Ok(())
}

/// Returns the header of the response to an unsigned GET.
fn get(address: &str, target: &str) -> Result<String> {
    let mut connection = TcpStream::connect(address).context("connect")?;
    connection.set_read_timeout(Some(Duration::from_secs(2)))?;
    write!(connection, "GET {target} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut head = [0; 12];
    connection.read_exact(&mut head).context("read the answer")?;
    Ok(String::from_utf8_lossy(&head).into_owned())
}
