//! Checks before a handoff: a successor asks for the devices of a node only once it can recover them, because
//! the daemon that serves them ends then.
//!
//! Nothing is changed: the owner still uses the files.

use std::fs::OpenOptions;
use std::io::ErrorKind;

use holdfast_ring::{Ring, RingOptions, raise_open_file_limit};

use crate::node::NodeConfig;
use crate::node::device::tag::Installation;
use crate::node::error::{NodeError, file};
use crate::node::local::live_map;
use crate::node::local::owner::check_records;
use crate::node::local::volume_files::{LocalDirs, attached_volumes};
use crate::node::memory;
use crate::node::ring::placement::check_room;
use crate::node::store::block_cache::slab_path;

/// Checks that this process can create a ring, has room for all volumes on its rings, and can write to the
/// slab's file: its pod may have other rights, limits and settings than the owner's, and the state directory
/// may have been remounted read-only. Reads the records of the two directories, and each attached volume's
/// recovery data: checks that this version can read them, and that the data belongs to the state directory of
/// this process. Another file system may have been mounted there since the owner started.
///
/// # Errors
/// The unusable file; [`NodeError::RingSetup`]; [`NodeError::RingsFull`]; [`NodeError::OtherInstallation`].
pub(crate) fn check_attached(config: &NodeConfig) -> Result<(), NodeError> {
    drop(Ring::<()>::new(&RingOptions::default()).map_err(NodeError::RingSetup)?);
    let slab = slab_path(&config.state_dir);
    match OpenOptions::new().read(true).write(true).open(&slab) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(file(&slab, "opened")(error)),
    }
    check_records(config)?;
    let dirs = LocalDirs { state: config.state_dir.clone(), run: config.run_dir.clone() };
    let installation = Installation::read(&config.state_dir)?;
    let volumes = attached_volumes(&dirs)?;
    check_room(config.ring_threads, raise_open_file_limit().unwrap_or(u64::MAX), volumes.len())?;
    for volume in volumes {
        let local = dirs.of(&volume);
        local.check_layout()?;
        let Some(record) = local.read_record()? else { continue };
        if installation.is_none_or(|ours| ours.tag(&volume, record.epoch).0 != record.tag) {
            return Err(NodeError::OtherInstallation(volume));
        }
        let header = local.read_header()?;
        local.read_pending()?;
        // Without a device, an attach may be creating the map.
        if record.device_id.is_some() {
            if header.is_none() {
                return Err(file(&local.map_path(), "read")(ErrorKind::NotFound.into()));
            }
            live_map::check(&local.live_map_path(), &volume)?;
        }
    }
    memory::check_attached(&dirs, installation)
}
