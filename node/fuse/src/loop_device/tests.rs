use super::*;

#[test]
fn structures_are_as_long_as_the_kernels() {
    assert_eq!((size_of::<kernel::LoopInfo>(), size_of::<kernel::LoopConfig>()), (232, 304));
}

#[test]
fn only_a_file_with_a_tag_is_ours() {
    let devices = tempfile::tempdir().unwrap();
    let tag = 0xb1_23_45_67_89_ab_cd_ef;
    for (number, file) in [
        (0, format!("/{}\n", file_name(tag))),
        (1, "/images/holdfast-disk\n".to_owned()),
        (2, "/holdfast-12\n".to_owned()),
        (3, format!("/images/{}\n", file_name(tag))),
    ] {
        let dir = devices.path().join(format!("loop{number}/loop"));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("backing_file"), file).unwrap();
    }
    fs::create_dir_all(devices.path().join("loop9")).unwrap();
    assert_eq!(LoopDevice::list_in(devices.path()).unwrap(), [LoopDevice { number: 0, tag }]);
}

/// Regression: an unreadable device counted as not ours, so its connection was closed or its detach
/// continued.
#[test]
fn a_device_that_cannot_be_read_is_an_error() {
    let devices = tempfile::tempdir().unwrap();
    fs::create_dir_all(devices.path().join("loop0/loop/backing_file")).unwrap();
    assert!(LoopDevice::list_in(devices.path()).is_err());
    assert!(LoopDevice::find_in(devices.path(), 0).is_err());
    assert_eq!(LoopDevice::find_in(devices.path(), 1).unwrap(), None);
}

/// Regression, found in review: one such device of another program made the list fail, and with it each
/// attach and recovery of the host.
#[test]
fn a_foreign_file_may_have_any_name() {
    let devices = tempfile::tempdir().unwrap();
    let names: [(u32, &[u8]); 3] = [
        (0, b"/images/\xff\xfe\n"),
        (1, b"/holdfast-00000000000000\xff7\n"),
        (2, b"/holdfast-0000000000000007\n"),
    ];
    for (number, name) in names {
        let dir = devices.path().join(format!("loop{number}/loop"));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("backing_file"), name).unwrap();
    }
    assert_eq!(LoopDevice::list_in(devices.path()).unwrap(), [LoopDevice { number: 2, tag: 7 }]);
    let long = name_of(Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG))).unwrap().unwrap();
    assert!(!long.trim().is_empty() && tag_of(&long).is_none(), "it has a file, which is not ours");
    assert!(name_of(Err(io::Error::from_raw_os_error(libc::EIO))).is_err());
}

#[test]
fn a_pending_clear_is_seen() {
    let devices = tempfile::tempdir().unwrap();
    let device = LoopDevice { number: 3, tag: 7 };
    assert!(!device.awaits_clear_in(devices.path()).unwrap(), "it has no file");
    let dir = devices.path().join("loop3/loop");
    fs::create_dir_all(&dir).unwrap();
    for (shown, awaits) in [("0\n", false), ("1\n", true)] {
        fs::write(dir.join("autoclear"), shown).unwrap();
        assert_eq!(device.awaits_clear_in(devices.path()).unwrap(), awaits);
    }
}

/// Regression, found in review: if the kernel refused one attribute, the device kept the others.
#[test]
fn a_device_that_is_not_bound_gets_its_attributes_back() {
    let devices = tempfile::tempdir().unwrap();
    let queue = queue_of(devices.path(), 3);
    fs::create_dir_all(&queue).unwrap();
    fs::write(queue.join(WRITEBACK), "2000\n").unwrap();
    // It can be read, and not written.
    std::os::unix::fs::symlink("/proc/version", queue.join(REQUEST_KIB)).unwrap();
    let shown = || fs::read_to_string(queue.join(WRITEBACK)).unwrap();
    assert!(TunedQueue::of(devices.path(), 3).is_err());
    assert_eq!(shown(), "-1", "the kernel's default");
    fs::remove_file(queue.join(REQUEST_KIB)).unwrap();
    let tuned = TunedQueue::of(devices.path(), 3).unwrap();
    assert_eq!(shown(), "0");
    drop(tuned);
    assert_eq!(shown(), "-1", "the kernel did not bind it");
    TunedQueue::of(devices.path(), 3).unwrap().keep();
    assert_eq!(shown(), "0");
}

#[test]
fn an_unbound_device_has_the_attributes_of_the_kernel() {
    let devices = tempfile::tempdir().unwrap();
    let queue = queue_of(devices.path(), 3);
    fs::create_dir_all(&queue).unwrap();
    fs::create_dir_all(devices.path().join("loop3/loop")).unwrap();
    for (attribute, value) in [(WRITEBACK, "2000\n"), (REQUEST_KIB, "512\n")] {
        fs::write(queue.join(attribute), value).unwrap();
    }
    let shown = || [WRITEBACK, REQUEST_KIB].map(|name| fs::read_to_string(queue.join(name)).unwrap());
    untune(devices.path(), 3);
    assert_eq!(shown(), ["2000\n", "512\n"], "another program has bound it");
    fs::remove_dir(devices.path().join("loop3/loop")).unwrap();
    untune(devices.path(), 3);
    assert_eq!(shown(), ["2000\n", "0"], "only what was ours is changed");
}

/// Regression: the kernel removes the name first; the device still looked bound and kept our attributes.
#[test]
fn a_device_is_cleared_once_the_kernel_has_released_its_file() {
    let devices = tempfile::tempdir().unwrap();
    let (device, file) = (LoopDevice { number: 3, tag: 7 }, devices.path().join("loop3/loop/backing_file"));
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    for (name, binding) in [
        (format!("/{}\n", file_name(7)), LoopBinding::Bound),
        (String::new(), LoopBinding::Releases),
        ("/images/other\n".to_owned(), LoopBinding::Gone),
    ] {
        fs::write(&file, &name).unwrap();
        assert_eq!(device.binding_in(devices.path()).unwrap(), binding, "{name:?}");
    }
    fs::remove_dir_all(file.parent().unwrap()).unwrap();
    assert_eq!(device.binding_in(devices.path()).unwrap(), LoopBinding::Gone);
}

/// Regression: the process continued to run, or stayed a zombie.
#[test]
fn a_process_that_takes_too_long_is_killed() {
    let child = Command::new("sleep").arg("1000").spawn().unwrap();
    let process = PathBuf::from(format!("/proc/{}", child.id()));
    assert_eq!(wait(child, Duration::ZERO).unwrap_err().kind(), io::ErrorKind::TimedOut);
    let begun = Instant::now();
    while process.exists() {
        assert!(begun.elapsed() < WITHIN, "it was killed and waited for");
        std::thread::sleep(LOOK_EVERY);
    }
}

#[test]
fn a_command_is_its_arguments() {
    let of = |words: &[&str]| LoopCommand::of(&words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>());
    assert_eq!(of(&[BIND, "x"]), Some(LoopCommand::Bind("x".to_owned())));
    let clear = LoopCommand::Clear { number: 3, name: "x".to_owned(), unless_used: true };
    assert_eq!(of(&[CLEAR_UNUSED, "3", "x"]), Some(clear));
    let keep = LoopCommand::Keep { number: 3, name: "x".to_owned() };
    assert_eq!(of(&[KEEP, "3", "x"]), Some(keep));
    let grow = LoopCommand::Grow { number: 3, name: "x".to_owned() };
    assert_eq!(of(&[GROW, "3", "x"]), Some(grow));
    assert_eq!(of(&[RESTORE, "3"]), Some(LoopCommand::Restore(3)));
    assert_eq!((of(&[CLEAR, "x", "x"]), of(&[])), (None, None));
}
