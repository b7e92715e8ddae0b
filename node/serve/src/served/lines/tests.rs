use holdfast_types::{Epoch, Seq};
use holdfast_ublk::{Device, DeviceInfo, DeviceState, Expected, ForeignFeatures, Transport};

use super::*;
use crate::logged::logged;

/// Makes the lines of `vol-1` on `/dev/ublkb7`, whose writer has epoch 3.
fn lines() -> Lines {
    let info = DeviceInfo {
        id: 7,
        state: DeviceState::Live,
        queues: 1,
        depth: 2,
        max_io_bytes: 4096,
        transport: Some(Transport::UserCopy),
        server_pid: -1,
        tag: 0,
        has_batches: false,
        foreign: ForeignFeatures::among(0),
    };
    let label = Label::new("vol-1".parse().unwrap(), Epoch(3));
    label.set_device(Device::of(&info, 1, &Expected { tag: 0, sectors: 1 }).unwrap());
    Lines::new(Arc::new(label))
}

/// Lines named a slot in the ring thread's table as the device, but each of two ring threads has a slot 0.
#[test]
fn every_line_names_volume_device_and_epoch() {
    let (lines, range) = (lines(), SectorRange::new(5, 2));
    let written = logged(|| {
        for report in [
            Report::Fenced,
            Report::LocalDiskFailed(Errno::EIO),
            Report::CleanUnreadable(range),
            Report::DirtyUnreadable(range),
            Report::UploadUnreadable(range),
            Report::UploadReadable,
            Report::Committed(Seq(9)),
        ] {
            lines.report(&report, 10);
        }
        lines.no_map(Unprepared::RunDir(Errno::ENOSPC), 10);
        lines.no_map(Unprepared::Disk(Errno::ENOSPC), 1010);
        lines.queue_refused(0, 1, KernelErrno::EINVAL, 10);
        lines.queue_refused(0, 2, KernelErrno::EINVAL, 10);
        lines.write(Rest::Due(1010));
    });
    assert_eq!(written.len(), 11, "{written:#?}");
    for line in &written {
        assert!(line.contains("volume{volume=vol-1 device=/dev/ublkb7 epoch=3}: "), "{line}");
    }
}

#[test]
fn lines_of_requests_are_limited_and_the_rest_counted() {
    let (lines, range) = (lines(), SectorRange::new(5, 2));
    let written = logged(|| {
        for now in 10..1010 {
            lines.report(&Report::CleanUnreadable(range), now);
            lines.report(&Report::DirtyUnreadable(range), now);
            lines.report(&Report::LocalDiskFailed(Errno::EIO), now);
            lines.no_map(Unprepared::Disk(Errno::ENOSPC), now);
            lines.queue_refused(0, 1, KernelErrno::EINVAL, now);
        }
    });
    assert_eq!(written.len(), 5, "{written:#?}");
    let written = logged(|| {
        lines.report(&Report::CleanUnreadable(range), 1010);
        lines.write(Rest::Due(1010));
    });
    let [next, rest @ ..] = &written[..] else { panic!("no line") };
    assert!(next.contains("held_back=999"), "{next}");
    assert_eq!(rest.iter().filter(|line| line.contains("times=999")).count(), 4, "{rest:#?}");
}
