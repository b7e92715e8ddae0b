//! ZeroFS, a file system in an object store whose files can be block devices: its NBD server runs in the
//! machine of the daemon, stores into the same S3 server, and caches on the same ramdisk.

use std::time::Duration;

use anyhow::{Context, Result};
use holdfast_lab::node::SIGTERM;
use holdfast_lab::s3::{ACCESS_KEY, REGION, SECRET_KEY};
use holdfast_lab::vm::bash;
use holdfast_lab::world::World;

use super::daemon::{DEVICE_LIMIT, DaemonBench, STATE_DIR};
use super::fio::{self, FioJob};
use super::references::equalize_queue;

/// Its bucket.
const BUCKET: &str = "zerofs";
/// Name of its process.
const PROCESS: &str = "zerofs";
/// Its configuration. The caches are larger than the device.
const CONFIG: &str = "/etc/zerofs.toml";
const SOCKET: &str = "/run/zerofs.nbd.sock";
const DEVICE: &str = "/dev/nbd0";
const MIB: u32 = 256;
/// Number of requests of a job; each costs as much as hundreds of requests to a volume.
const REQUESTS: u32 = 500;
/// Maximum wait for its end: it uploads what is not in the bucket yet.
const END_LIMIT: Duration = Duration::from_secs(300);

/// A running ZeroFS with one device, filled and read once.
pub(super) struct ZeroFs<'a> {
    bench: &'a DaemonBench,
}

/// Installs ZeroFS in test machines that boot later.
///
/// # Errors
/// If it cannot be built.
pub(super) fn share(world: &World) -> Result<()> {
    world.share(&world.toolbox().zerofs()?, "bin/zerofs")
}

impl<'a> ZeroFs<'a> {
    /// Starts it and fills the device. Its bytes cannot be compressed: ZeroFS compresses.
    ///
    /// # Errors
    /// If the device does not appear, or an I/O error occurs.
    pub(super) fn start(bench: &'a DaemonBench) -> Result<Self> {
        bench.s3.create_bucket(BUCKET)?;
        let vm = &bench.vm;
        vm.put_file(CONFIG, 0o600, config(&bench.s3.endpoint_in_vm()).as_bytes())?;
        vm.spawn(PROCESS, &bash(&format!("exec zerofs run --config {CONFIG}")))?;
        vm.wait_log(PROCESS, "NBD server listening", DEVICE_LIMIT)?;
        // A device is a file, and files are made through NFS. The client has one connection: with one
        // processor, the kernel uses one queue.
        let options = "vers=3,proto=tcp,port=2049,mountproto=tcp,mountport=2049,nolock,addr=127.0.0.1";
        vm.exec(&format!(
            "mkdir -p /mnt/zerofs; modprobe nfsv3; \
             mount -i -t nfs -o {options} 127.0.0.1:/ /mnt/zerofs; \
             truncate --size {MIB}M /mnt/zerofs/.nbd/device; umount /mnt/zerofs; \
             modprobe nbd nbds_max=1 max_part=0; \
             nbd-client -unix {SOCKET} {DEVICE} -name device -block-size 4096"
        ))
        .with_context(|| format!("log of ZeroFS:\n{}", vm.log(PROCESS).unwrap_or_default()))?;
        equalize_queue(vm, DEVICE)?;
        let filled = FioJob { block_bytes: 1 << 20, ..FioJob::of(&[DEVICE], "write", MIB) };
        fio::run(vm, &filled)?;
        vm.exec(&format!("sync {DEVICE}; dd if={DEVICE} of=/dev/null bs=1M iflag=direct status=none"))?;
        Ok(Self { bench })
    }

    /// Returns the requests of a job per second, of which only the first ones are sent.
    ///
    /// # Errors
    /// If fio fails.
    pub(super) fn measure(&self, job: &FioJob<'_>) -> Result<f64> {
        Ok(fio::run(&self.bench.vm, &FioJob { targets: &[DEVICE], requests: REQUESTS, ..job.clone() })?.iops)
    }

    /// Ends it.
    ///
    /// # Errors
    /// If it does not end.
    pub(super) fn end(self) -> Result<()> {
        let vm = &self.bench.vm;
        vm.exec(&format!("nbd-client -disconnect {DEVICE}; modprobe --remove nbd"))?;
        vm.signal(PROCESS, SIGTERM)?;
        vm.wait(PROCESS, END_LIMIT)?;
        vm.exec(&format!("rm -r {STATE_DIR}/zerofs")).map(drop)
    }
}

fn config(endpoint: &str) -> String {
    format!(
        "[cache]\ndir = \"{STATE_DIR}/zerofs\"\ndisk_size_gb = 0.6\nmemory_size_gb = 0.5\n\
         [storage]\nurl = \"s3://{BUCKET}/data\"\nencryption_password = \"of the benchmark\"\n\
         [servers.nfs]\naddresses = [\"127.0.0.1:2049\"]\n\
         [servers.nbd]\nunix_socket = \"{SOCKET}\"\n\
         [aws]\naccess_key_id = \"{ACCESS_KEY}\"\nsecret_access_key = \"{SECRET_KEY}\"\n\
         endpoint = \"{endpoint}\"\ndefault_region = \"{REGION}\"\nallow_http = \"true\"\n"
    )
}
