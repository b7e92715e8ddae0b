//! The target in a test machine, and the controller that connects the kernel to it.

use std::time::Duration;

use anyhow::{Context, Result};
use holdfast_lab::vm::Vm;

use crate::nvme_target::NQN;

/// Functions of the scripts. The kernel connects when a script writes the options to `/dev/nvme-fabrics`; it
/// answers in the same open file.
const FUNCTIONS: &str = "/run/nvme.sh";
const PORT: u16 = 4420;
/// Maximum wait for a device.
const APPEAR: Duration = Duration::from_secs(30);

/// A target with two namespaces, one raw and one for a file system.
pub(super) struct RunningTarget<'a> {
    pub(super) vm: &'a Vm,
}

impl<'a> RunningTarget<'a> {
    /// Creates the target's files below `directory`, starts it and connects the kernel.
    pub(super) fn start(vm: &'a Vm, directory: &str) -> Result<Self> {
        vm.put_file(FUNCTIONS, 0o644, functions(directory).as_bytes())?;
        let target = Self { vm };
        target.script(&format!(
            "for file in raw ext4; do dd if=/dev/zero of={directory}/nvme-$file bs=1M count=256 status=none; done\n\
             sync; start; until connect; do sleep 0.01; done"
        ))?;
        vm.wait_block_device(&target.raw()?, APPEAR)?;
        vm.wait_block_device(&target.for_file_system()?, APPEAR)?;
        Ok(target)
    }

    /// Runs a script with the functions.
    pub(super) fn script(&self, script: &str) -> Result<String> {
        self.vm.exec(&format!(". {FUNCTIONS}\n{script}"))
    }

    /// Returns the raw device.
    pub(super) fn raw(&self) -> Result<String> {
        self.device(1)
    }

    /// Returns the device of the file system.
    pub(super) fn for_file_system(&self) -> Result<String> {
        self.device(2)
    }

    /// Finds the device of a namespace by its identity, because the kernel chooses the number.
    fn device(&self, namespace: u8) -> Result<String> {
        let found = self.script(&format!("device {namespace}"))?;
        let name = found.trim();
        (!name.is_empty()).then(|| format!("/dev/{name}")).context("the namespace has no device")
    }

    /// Removes the kernel's controllers.
    pub(super) fn disconnect(&self) -> Result<()> {
        self.script("for old in $(controllers); do echo 1 > /sys/class/nvme/$old/delete_controller; done")
            .map(drop)
    }
}

fn functions(directory: &str) -> String {
    format!(
        r#"
start() {{
  setsid holdfast-e2e nvme-target {PORT} {directory}/nvme-raw {directory}/nvme-ext4 \
    >> /var/log/holdfast/nvme-target.log 2>&1 < /dev/null &
  echo $! > /run/nvme-target.pid
}}
stop() {{ kill -9 $(cat /run/nvme-target.pid); }}
connect() {{
  exec 3<>/dev/nvme-fabrics
  if printf %s "transport=tcp,traddr=127.0.0.1,trsvcid={PORT},nqn={NQN},ctrl_loss_tmo=-1,reconnect_delay=1${{1:-}}" >&3; then
    cat <&3; exec 3>&-
  else
    exec 3>&-; return 1
  fi 2> /dev/null
}}
controllers() {{ ls /sys/class/nvme; }}
device() {{
  for name in $(ls /sys/block | grep -x 'nvme[0-9]*n[0-9]*'); do
    if grep -q "000$1$" /sys/block/$name/wwid; then echo $name; fi
  done
}}
"#
    )
}
