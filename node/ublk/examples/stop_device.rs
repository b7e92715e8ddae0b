//! Stops a ublk device that another program serves, and deletes it on request: any program with the rights
//! may do that, and the server must cope.
//!
//! `stop_device ID [--delete]`
#![allow(clippy::print_stdout)] // its output is for people and scripts

use anyhow::Result;
use clap::Parser;
use holdfast_ublk::{ControlError, Device, Expected};

#[derive(Parser)]
struct Options {
    /// Number of the device.
    id: u32,
    /// Also delete it. The kernel keeps it until its server closes it.
    #[arg(long)]
    delete: bool,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let info = Device::look(options.id)?;
    let device = Device::find(options.id, &Expected { tag: info.tag, sectors: u64::MAX })?;
    device.stop()?;
    if options.delete {
        match device.delete() {
            Ok(()) | Err(ControlError::TimedOut { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    println!("STOPPED");
    Ok(())
}
