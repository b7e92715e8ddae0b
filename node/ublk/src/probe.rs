//! Queries of the running kernel for the features of its driver.

use std::fs::OpenOptions;
use std::io::{self, ErrorKind};
use std::time::Duration;

use holdfast_ring::KernelErrno;
use libublk::sys;

use crate::command::{self, ControlCommand};
use crate::control_thread::CommandSubject;
use crate::{CONTROL_PATH, ControlError, Features, KernelRelease, Unsupported};

/// Maximum wait for the driver's answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

impl Features {
    /// Queries the running kernel, unless a device can crash it.
    ///
    /// # Errors
    /// Any [`Unsupported`] that is not about FUSE or a transport's name.
    pub fn probe() -> Result<Self, Unsupported> {
        let release = KernelRelease::running().map_err(Unsupported::Release)?;
        match release.crash() {
            Some(crash) => Err(Unsupported::BrokenKernel { release, crash }),
            None => Self::of_running(release),
        }
    }

    /// Queries the kernel for existing devices: they are served and removed even on a kernel that
    /// [`probe`](Self::probe) refuses.
    ///
    /// # Errors
    /// Those of [`probe`](Self::probe), but [`Unsupported::BrokenKernel`].
    pub fn of_existing_devices() -> Result<Self, Unsupported> {
        Self::of_running(KernelRelease::running().map_err(Unsupported::Release)?)
    }

    fn of_running(release: KernelRelease) -> Result<Self, Unsupported> {
        if let Err(error) = OpenOptions::new().read(true).write(true).open(CONTROL_PATH) {
            let absent = error.kind() == ErrorKind::NotFound;
            return Err(if absent { Unsupported::NoDriver } else { Unsupported::NoAccess(error) });
        }
        let command = ControlCommand {
            name: "GET_FEATURES",
            code: sys::UBLK_U_CMD_GET_FEATURES,
            device: u32::MAX,
            data: 0,
        };
        let answer =
            command::exchange(CommandSubject::Description(u32::MAX), command, 0_u64, ANSWER_WITHIN, drop);
        Self::answered(release, answer)
    }

    /// Returns the features of a driver that gave this answer to GET_FEATURES. An older driver refuses the
    /// command as unknown (`EOPNOTSUPP`, `EINVAL`), or because no device has this number (`ENODEV`).
    fn answered(release: KernelRelease, answer: Result<u64, ControlError>) -> Result<Self, Unsupported> {
        match answer {
            Ok(bits) => Self::of(release, bits),
            Err(ControlError::Command {
                source: KernelErrno::EOPNOTSUPP | KernelErrno::EINVAL | KernelErrno::ENODEV,
                ..
            }) => Err(Unsupported::NoFeatures { release }),
            Err(ControlError::Command { source, .. }) => {
                Err(Unsupported::NoAccess(io::Error::from_raw_os_error(source.number())))
            }
            Err(ControlError::Channel(error)) => Err(Unsupported::NoAccess(error)),
            Err(other) => Err(Unsupported::NoAccess(io::Error::other(other))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression, found in review: any failure of the command counted as an old driver, and the daemon chose
    /// FUSE without a word: for example if a security module refuses commands.
    #[test]
    fn only_an_unknown_command_shows_an_old_driver() {
        let answered = |answer| Features::answered(KernelRelease::new("6.4.0"), answer).unwrap_err();
        let refused = |number| {
            let source = KernelErrno::new(number);
            answered(Err(ControlError::Command { id: u32::MAX, command: "GET_FEATURES", source }))
        };
        for number in [libc::EOPNOTSUPP, libc::EINVAL, libc::ENODEV] {
            let old = refused(number);
            assert!(matches!(old, Unsupported::NoFeatures { .. }) && old.is_without_ublk(), "{old}");
        }
        for number in [libc::EACCES, libc::EPERM, libc::ENOMEM] {
            let Unsupported::NoAccess(error) = refused(number) else { panic!("{number}") };
            assert_eq!(error.raw_os_error(), Some(number));
            assert!(!refused(number).is_without_ublk());
        }
        let no_ring = answered(Err(ControlError::Channel(io::Error::from_raw_os_error(libc::EPERM))));
        assert!(matches!(no_ring, Unsupported::NoAccess(_)) && !no_ring.is_without_ublk(), "{no_ring}");
    }
}
