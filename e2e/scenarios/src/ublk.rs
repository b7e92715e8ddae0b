//! Rings and ublk devices without a volume: the `loopback` example of `holdfast-ublk`.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use holdfast_lab::report;
use holdfast_lab::setup::BuildProfile;
use holdfast_lab::vm::{Vm, bash};
use holdfast_lab::wire::Exit;
use holdfast_lab::world::World;

use super::load::Load;

/// Time limit for all device tests, and for the start or the recovery of the server, in an emulated machine.
const TESTS_LIMIT: Duration = Duration::from_secs(300);
const READY: Duration = Duration::from_secs(120);
/// Maximum run time of fio, in seconds of the machine's clock.
const LOAD_SECONDS: u32 = 600;

/// Devices of one server: more than the default of `ublks_max`, with which kernels before 6.15 limit all
/// devices of a host, and later ones those of unprivileged servers.
const MANY: usize = 70;

/// Numbers of signals.
const SIGINT: i32 = 2;
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

pub(super) fn zero_copy(world: &World) -> Result<()> {
    check_recovery_under_load(world, "zero-copy")
}

pub(super) fn user_copy(world: &World) -> Result<()> {
    check_recovery_under_load(world, "user-copy")
}

pub(super) fn kernel_copy(world: &World) -> Result<()> {
    check_recovery_under_load(world, "kernel-copy")
}

fn check_recovery_under_load(world: &World, transport: &str) -> Result<()> {
    let vm = machine(world)?;
    let options = format!("--dir /var/lib/holdfast --transport {transport}");
    let ready = serve(&vm, "first", &options)?;
    ensure!(ready.contains(transport), "not served by {transport}: {ready}");
    let device = device(&ready)?;
    vm.wait_block_device(&device, READY)?;
    let load = Load::start(&vm, &device, LOAD_SECONDS)?;
    vm.signal("first", SIGKILL)?;
    vm.wait("first", READY)?;
    serve(&vm, "second", &format!("{options} --recover"))?;

    load.wait_progress()?;
    vm.signal("second", SIGTERM)?;
    let exit = vm.wait("second", READY)?;
    ensure!(exit == Exit::Code(0), "the server ended by {exit:?} on SIGTERM");
    ensure!(vm.log("second")?.contains("LEFT"), "the server did not leave its device");
    serve(&vm, "third", &format!("{options} --recover"))?;

    load.stop()?;
    vm.signal("third", SIGINT)?;
    vm.wait("third", READY)?;
    vm.exec(&format!("! test -e {device}"))?;
    vm.power_off()
}

pub(super) fn serve_many(world: &World) -> Result<()> {
    let vm = machine(world)?;
    let mut threads = Vec::new();
    for (name, devices) in [("one", 1), ("many", MANY)] {
        let options = format!("--dir /var/lib/holdfast --size-mib 16 --devices {devices}");
        let again = format!("{name}-again");
        for (server, options) in [(name, options.clone()), (&again, format!("{options} --recover"))] {
            let ready = serve(&vm, server, &options)?;
            let served = ready.split_whitespace().filter(|word| word.starts_with("/dev/ublkb")).count();
            ensure!(served == devices, "{served} devices, not {devices}: {ready}");
            vm.exec(
                "for device in /dev/ublkb*; do head -c 4096 /dev/urandom > /run/block; \
                 dd if=/run/block of=$device bs=4096 oflag=direct status=none; \
                 dd if=$device bs=4096 count=1 iflag=direct status=none | cmp - /run/block; done",
            )?;
            let is_first = server == name;
            if is_first {
                threads.push(word_before(&ready, "threads,")?);
            }
            vm.signal(server, if is_first { SIGKILL } else { SIGINT })?;
            vm.wait(server, READY)?;
        }
    }
    ensure!(threads.first() == threads.last(), "threads with 1 and {MANY} devices: {threads:?}");
    vm.power_off()
}

/// Device tests of features that older drivers lack: the test, the first series with the feature, and what
/// earlier ones do.
const OF_NEWER_DRIVERS: [(&str, (u32, u32), &str); 8] = [
    ("requests_whose_pages_are_not_registered_are_copied", (6, 16), "no zero copy"),
    ("devices_that_share_buffers_keep_their_data", (6, 16), "no zero copy"),
    ("a_quiesced_device_has_given_its_idle_tags_back", (6, 16), "no QUIESCE_DEV"),
    ("a_device_grows_while_it_is_open", (6, 16), "no UPDATE_SIZE"),
    ("misaligned_memory_is_refused_before_the_server_sees_it", (6, 15), "takes any memory, which is copied"),
    ("memory_that_is_misaligned_in_the_middle_is_refused_too", (6, 15), "takes any memory, which is copied"),
    ("starting_a_device_reads_nothing_from_it", (7, 0), "no start without a look for partitions"),
    (
        "a_command_that_does_not_end_is_named_and_holds_up_no_other_device",
        (7, 0),
        "no start without a look for partitions, which waits for the same request",
    ),
];

/// Runs the tests of `holdfast-ublk` that need the driver, in a machine that has it.
pub(super) fn device_tests(world: &World) -> Result<()> {
    world.share(&world.toolbox().test_program("device", BuildProfile::Dev)?, "bin/device-tests")?;
    let vm = world.vm("a")?;
    let mut run = "device-tests --ignored --test-threads=1".to_owned();
    for (test, (major, minor), reason) in OF_NEWER_DRIVERS {
        if world.kernel().is_at_least(major, minor) {
            continue;
        }
        report::step(format_args!("SKIP {test} of the device tests: {reason}"));
        run += &format!(" --skip {test}");
    }
    // Its log names a hanging test.
    vm.spawn("device-tests", &bash(&format!("exec {run}")))?;
    let exit = vm.wait("device-tests", TESTS_LIMIT)?;
    let tests = vm.log("device-tests")?;
    ensure!(exit == Exit::Code(0), "the device tests ended by {exit:?}:\n{tests}");
    ensure!(tests.contains("test result: ok."), "no tests ran: {tests}");
    vm.power_off()
}

fn machine(world: &World) -> Result<std::sync::Arc<Vm>> {
    world.share(&world.programs()?.join("examples/loopback"), "bin/loopback")?;
    world.vm("a")
}

/// Starts the server and waits until its devices are up; returns its output about them.
fn serve(vm: &Vm, name: &str, options: &str) -> Result<String> {
    vm.spawn(name, &bash(&format!("exec loopback {options}")))?;
    vm.wait_log(name, "READY", READY)
}

fn device(ready: &str) -> Result<String> {
    let device = ready.split_whitespace().find(|word| word.starts_with("/dev/ublkb"));
    Ok(device.with_context(|| format!("no device in {ready:?}"))?.to_owned())
}

fn word_before(line: &str, word: &str) -> Result<String> {
    let mut last = "";
    for next in line.split_whitespace() {
        if next == word {
            return Ok(last.to_owned());
        }
        last = next;
    }
    bail!("no {word:?} in {line:?}")
}
