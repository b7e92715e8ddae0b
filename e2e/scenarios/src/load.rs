//! Verified load on a block device: fio writes, reads back and compares while the scenario injects faults.

use std::time::Duration;

use anyhow::{Result, ensure};
use holdfast_lab::vm::{Vm, bash};
use holdfast_lab::wire::Exit;

/// Name of fio among the machine's programs.
const PROGRAM: &str = "fio";
const SIGINT: i32 = 2;
/// Exit of fio after that signal.
const INTERRUPTED: Exit = Exit::Code(128);
/// Maximum time until fio exits after its run time.
const END_LIMIT: Duration = Duration::from_secs(300);

/// fio running on a device.
pub(super) struct Load<'a> {
    vm: &'a Vm,
    device: String,
}

impl<'a> Load<'a> {
    /// Starts random reads and writes of 4 KiB for `seconds` of the machine's time.
    pub(super) fn start(vm: &'a Vm, device: &str, seconds: u32) -> Result<Self> {
        let fio = format!(
            "test -b {device}; exec fio --name=verify --filename={device} --direct=1 --ioengine=io_uring \
             --iodepth=8 --rw=randrw --bs=4k --size=64M --verify=crc32c --verify_backlog=256 \
             --verify_fatal=1 --time_based --runtime={seconds}"
        );
        vm.spawn(PROGRAM, &bash(&fio))?;
        let load = Self { vm, device: device.to_owned() };
        load.wait_progress()?;
        Ok(load)
    }

    /// Checks that fio is still running: it saw no error.
    pub(super) fn check(&self) -> Result<()> {
        ensure!(self.vm.status(PROGRAM)?.is_none(), "fio ended: {}", self.vm.log(PROGRAM)?);
        Ok(())
    }

    /// Waits until the kernel has completed a thousand more writes on the device.
    pub(super) fn wait_progress(&self) -> Result<()> {
        self.wait_writes(1000)
    }

    /// Waits until the kernel has completed this many more writes on the device.
    pub(super) fn wait_writes(&self, writes: u64) -> Result<()> {
        self.check()?;
        let name = self.device.trim_start_matches("/dev/");
        let script = format!(
            "writes() {{ read -r -a stat < /sys/block/{name}/stat; echo ${{stat[4]}}; }}\n\
             from=$(writes); for _ in $(seq 600); do [ $(writes) -ge $((from + {writes})) ] && exit 0; sleep 0.1; done\n\
             echo \"$(writes) writes, began at $from\"; exit 1"
        );
        self.vm.exec(&script).map(drop)
    }

    /// Ends fio early, and checks that it saw no error and no wrong byte.
    pub(super) fn stop(self) -> Result<()> {
        self.vm.signal(PROGRAM, SIGINT)?;
        let exit = self.vm.wait(PROGRAM, END_LIMIT)?;
        let log = self.vm.log(PROGRAM)?;
        ensure!(exit == INTERRUPTED && log.contains("err= 0"), "fio ended by {exit:?}: {log}");
        self.vm.exec("! dmesg | grep -i 'I/O error'").map(drop)
    }
}
