//! A long run: 16 volumes under verified load for half an hour per transport. First the daemon is repeatedly
//! killed, terminated and replaced; then it runs undisturbed, and its resource use must not grow. Draws a
//! picture of the course of each quantity.

use std::fs;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use holdfast_lab::node::{ControlInterface, METRICS_PORT, NodeDaemon};
use holdfast_lab::report;
use holdfast_lab::vm::{Vm, bash};
use holdfast_lab::wait::until;
use holdfast_lab::wire::Exit;
use holdfast_lab::world::World;

use super::{Bar, Figure};

mod course;
mod picture;

use course::Course;

const BUCKET: &str = "soak";
/// Continuous uploads.
const DATA: &str = "slab_size = \"64Mi\"\nseal_size = \"16Mi\"\nmax_dirty_age = \"5s\"";
const DEVICES: u32 = 16;
const SIZE: &str = "64Mi";
/// Time per transport, unless `HOLDFAST_SOAK_MINUTES` sets the total time.
const EACH: Duration = Duration::from_secs(1800);
/// The daemon is ended in the first of this many parts of the time.
const ENDS_PART: u32 = 3;
const BETWEEN_ENDS: Duration = Duration::from_secs(40);
/// Minimum number of ends per transport: one of each kind.
const LEAST_ENDS: u32 = 3;
const BETWEEN_SAMPLES: Duration = Duration::from_secs(10);
/// The first of this many parts of the time without ends is ignored: caches and connection pools fill.
const WARM_UP_PART: u32 = 4;
/// Tolerated growth per hour in percent of the mean, and the maximum noise tolerated in addition.
const FLAT_PERCENT: f64 = 5.0;
const DEVICE_LIMIT: Duration = Duration::from_secs(60);
const FIO_END: Duration = Duration::from_secs(300);
const FIO: &str = "fio";
const SIGINT: i32 = 2;
/// Exit status of fio after that signal.
const INTERRUPTED: Exit = Exit::Code(128);

/// Maximum time until the daemon has uploaded all data of a load that pauses.
const IDLE_LIMIT: Duration = Duration::from_secs(120);
const SIGCONT: i32 = 18;
const SIGSTOP: i32 = 19;

/// Prints the daemon's resource use: anonymous memory in KiB, open files, threads, and the run directory in
/// KiB. The cache of indexes, which reaches its limit after hours, is not counted.
const SAMPLE: &str = r#"for process in /proc/[0-9]*; do
  if [ "$(cat "$process/comm" 2> /dev/null)" = holdfast-node ]; then daemon=$process; fi
done
rss=$(awk '/^RssAnon/ { print $2 }' "$daemon/status")
exec 3<>/dev/tcp/127.0.0.1/METRICS_PORT
printf 'GET /metrics HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n' >&3
known=$(awk '/^holdfast_index_cache_bytes/ { print int($2 / 1024) }' <&3)
echo "$((rss - known)) $(ls "$daemon/fd" | wc -l) $(ls "$daemon/task" | wc -l) $(du -sk /run/holdfast | cut -f 1)""#;

/// Quantities of a sample, in order.
const QUANTITIES: [(&str, &str); 4] =
    [("rss", "KiB"), ("fd", "files"), ("threads", "threads"), ("tmpfs", "KiB")];

pub(super) fn run(world: &World) -> Result<Vec<Figure>> {
    let each = each()?;
    let s3 = world.s3()?;
    s3.create_bucket(BUCKET)?;
    let control = ControlInterface::standalone(&s3, BUCKET);
    let vm = world.vm("a")?;
    let (mut figures, mut courses) = (Vec::new(), Vec::new());
    for (transport, prefix) in [("zero-copy", ""), ("user-copy", "usercopy_")] {
        report::step(format_args!("{transport}: {DEVICES} volumes for {} s", each.as_secs()));
        let node = NodeDaemon::start(Arc::clone(&vm), &control, transport, DATA)?;
        let soaked = soak(&node, prefix, each)?;
        node.terminate()?;
        for ((name, unit), course) in QUANTITIES.into_iter().zip(soaked) {
            figures.push(growth(&format!("{prefix}soak_{name}_slope"), unit, &course));
            courses.push((format!("{prefix}{name}, {unit}"), course));
        }
    }
    vm.power_off()?;
    let picture = world.toolbox().target().join("e2e/soak.svg");
    fs::write(&picture, picture::of(&courses)).with_context(|| format!("write {}", picture.display()))?;
    report::step(format_args!("the courses are drawn in {}", picture.display()));
    Ok(figures)
}

/// Returns the time per transport.
fn each() -> Result<Duration> {
    let Some(minutes) = std::env::var_os("HOLDFAST_SOAK_MINUTES") else { return Ok(EACH) };
    let minutes = minutes.to_str().and_then(|text| text.parse::<u64>().ok());
    let minutes = minutes.filter(|minutes| (20..=24 * 60).contains(minutes));
    let minutes = minutes.context("HOLDFAST_SOAK_MINUTES: write a number of minutes, 20 to 1440")?;
    Ok(Duration::from_secs(minutes * 60 / 2))
}

/// Attaches the volumes, runs the load, and returns the course of each quantity.
fn soak(node: &NodeDaemon, prefix: &str, each: Duration) -> Result<[Course; QUANTITIES.len()]> {
    let vm = node.vm();
    let volumes: Vec<String> =
        (0..DEVICES).map(|number| format!("{prefix}soak-{number}").replace('_', "-")).collect();
    let mut devices = Vec::new();
    for volume in &volumes {
        node.cli(&["create", volume, "--size", SIZE, "--store", "store"])?;
        let device = node.cli(&["attach", volume, "--store", "store"])?.trim().to_owned();
        vm.wait_block_device(&device, DEVICE_LIMIT)?;
        devices.push(device);
    }
    load(vm, &devices, each)?;
    let ends = each / ENDS_PART;
    let quiet_from = ends + (each - ends) / WARM_UP_PART;
    let mut courses = [(); QUANTITIES.len()].map(|()| Course::new(quiet_from));
    let (begun, mut ended, mut next_end) = (Instant::now(), 0_u32, BETWEEN_ENDS);
    while begun.elapsed() < each {
        ensure!(vm.status(FIO)?.is_none(), "fio ended after {ended} ends of the daemon: {}", vm.log(FIO)?);
        if begun.elapsed() >= next_end && begun.elapsed() < ends {
            end(node, ended)?;
            ended += 1;
            next_end = begun.elapsed() + BETWEEN_ENDS;
        }
        if begun.elapsed() >= ends {
            ensure!(ended >= LEAST_ENDS, "{ended} of at least {LEAST_ENDS} ends of the daemon had time");
        }
        // Buffers and threads of uploads follow the load; without it, only lasting use is left.
        let values = if begun.elapsed() < ends { sample(vm)? } else { sample_idle(node)? };
        for (course, value) in courses.iter_mut().zip(values) {
            course.push(begun.elapsed(), value);
        }
        sleep(BETWEEN_SAMPLES);
    }
    report::step(format_args!("the daemon was ended {ended} times"));
    vm.signal(FIO, SIGINT)?;
    let exit = vm.wait(FIO, FIO_END)?;
    let log = vm.log(FIO)?;
    let is_right = log.contains("err= 0") && log.matches("err=").count() == log.matches("err= 0").count();
    ensure!(exit == INTERRUPTED && is_right, "fio ended by {exit:?}: {log}");
    volumes.iter().try_for_each(|volume| node.cli(&["detach", volume]).map(drop))?;
    Ok(courses)
}

/// Starts verified random reads and writes on all devices, at a rate that the emulator sustains.
fn load(vm: &Vm, devices: &[String], each: Duration) -> Result<()> {
    let jobs: String = devices.iter().map(|device| format!(" --name={device} --filename={device}")).collect();
    let seconds = each.as_secs() + 3600;
    let fio = format!(
        "exec fio --thread --direct=1 --ioengine=io_uring --iodepth=4 --rw=randrw --bs=4k --size=32M --rate_iops=20 \
         --verify=crc32c --verify_backlog=64 --verify_fatal=1 --time_based --runtime={seconds}{jobs}"
    );
    vm.spawn(FIO, &bash(&fio)).map(drop)
}

/// Ends the daemon by a kill, by SIGTERM or by a successor, in rotation.
fn end(node: &NodeDaemon, number: u32) -> Result<()> {
    match number % 3 {
        0 => node.kill().and_then(|()| node.restart()),
        1 => node.terminate().and_then(|()| node.restart()),
        _ => node.hand_over(),
    }
}

/// Takes a sample while the load pauses and nothing is uploaded.
fn sample_idle(node: &NodeDaemon) -> Result<[f64; QUANTITIES.len()]> {
    let vm = node.vm();
    vm.signal(FIO, SIGSTOP)?;
    let idle = || {
        let metrics = node.metrics()?;
        let has_none = |name: &str| {
            let of = |line: &&str| line.starts_with(name) && line[name.len()..].starts_with(['{', ' ']);
            let mut lines = metrics.lines().filter(of).peekable();
            lines.peek().is_some() && lines.all(|line| line.ends_with(" 0") || line.ends_with(" 0.0"))
        };
        let is_idle = has_none("holdfast_upload_memory_bytes") && has_none("holdfast_volume_dirty_bytes");
        Ok(is_idle.then_some(()))
    };
    until("the end of the uploads", IDLE_LIMIT, idle)?;
    let values = sample(vm)?;
    vm.signal(FIO, SIGCONT)?;
    Ok(values)
}

fn sample(vm: &Vm) -> Result<[f64; QUANTITIES.len()]> {
    let said = vm.exec(&SAMPLE.replace("METRICS_PORT", &METRICS_PORT.to_string()))?;
    let values: Vec<f64> = said.split_whitespace().filter_map(|value| value.parse().ok()).collect();
    values.try_into().ok().with_context(|| format!("a sample of the daemon: {said:?}"))
}

/// Makes the figure of a quantity's growth, which must be zero within its noise.
fn growth(name: &str, unit: &str, course: &Course) -> Figure {
    let trend = course.trend();
    // NaN misses any bar.
    let most =
        trend.noise.is_finite().then(|| FLAT_PERCENT + (100.0 * trend.noise / trend.mean).min(FLAT_PERCENT));
    let percent = |value: f64| 100.0 * value / trend.mean;
    Figure {
        name: name.to_owned(),
        value: percent(trend.an_hour),
        unit: "% an hour",
        against: format!("mean {:.0} {unit}, noise {:.2} % an hour", trend.mean, percent(trend.noise)),
        bar: Some(Bar::AtMost(most.unwrap_or(f64::NEG_INFINITY))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grown(samples: u64, each: f64) -> Figure {
        let mut course = Course::new(Duration::ZERO);
        for number in 0..samples {
            course.push(Duration::from_secs(10 * number), 1000.0 + each * number as f64);
        }
        growth("soak_rss_slope", "KiB", &course)
    }

    #[test]
    fn only_a_course_that_is_flat_and_long_enough_clears_its_bar() {
        let clears = |figure: &Figure| figure.bar.is_some_and(|bar| bar.is_cleared(figure.value));
        assert!(clears(&grown(60, 0.0)));
        assert!(!clears(&grown(60, 1.0)), "36 % an hour");
        assert!(!clears(&grown(2, 0.0)), "two samples are always a line");
    }
}
