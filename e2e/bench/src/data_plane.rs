//! Requests of volumes against the kernel's own server (`kublk`), with both transports: same ramdisk, boot,
//! jobs and number of tags; no scheduler and no writeback throttling on either side.

use anyhow::{Error, Result};
use holdfast_lab::report;
use holdfast_lab::vm::Vm;
use holdfast_lab::world::World;

use super::daemon::{DaemonBench, STATE_DIR};
use super::fio::{self, FioJob, Measured};
use super::kublk::{self, Kublk, Mode};
use super::references::{Reference, ServedFile};
use super::zerofs::{self, ZeroFs};
use super::{Bar, Figure, median};

/// Delayed uploads: no volume is sealed while it is measured.
const HELD_BACK: &str = "slab_size = \"64Mi\"\nseal_size = \"2Gi\"\nmax_dirty_age = \"1h\"";
/// Number of rounds; the figures compare the medians.
const ROUNDS: u32 = 3;
const DEVICES: u32 = 16;
/// Name of the filled volume.
const FILLED: &str = "filled";

/// A row of the comparison.
struct RequestJob {
    name: &'static str,
    job: FioJob<'static>,
    /// Minimum ratio to the kernel's server, if it has a bar.
    least: Option<f64>,
}

fn rows() -> [RequestJob; 6] {
    let of = |pattern, requests| FioJob::of(&[], pattern, requests);
    let large = |pattern| FioJob { block_bytes: 128 << 10, depth: Some(16), ..of(pattern, 2_000) };
    let in_turn = |pattern, requests, fsync| FioJob { depth: None, fsync, ..of(pattern, requests) };
    [
        RequestJob { name: "randread4k", job: of("randread", 12_000), least: Some(1.0) },
        RequestJob { name: "randwrite4k", job: of("randwrite", 12_000), least: Some(1.0) },
        RequestJob { name: "read128k", job: large("read"), least: Some(1.0) },
        RequestJob { name: "write128k", job: large("write"), least: Some(1.0) },
        RequestJob { name: "fsync4k", job: in_turn("randwrite", 1_000, true), least: Some(0.5) },
        RequestJob { name: "psync_randread4k", job: in_turn("randread", 4_000, false), least: None },
    ]
}

/// Another server of the same file, which only zero copy is compared with: it does the same for both
/// transports, or works with one only.
#[derive(Debug, Clone, Copy)]
enum OtherServer {
    /// `kublk` with its own batches; with user copy its device did not appear within 600 s.
    KublkBatches,
    Reference(Reference),
}

impl OtherServer {
    const ALL: [Self; 3] =
        [Self::KublkBatches, Self::Reference(Reference::Loop), Self::Reference(Reference::Nbd)];

    fn name(self) -> &'static str {
        match self {
            Self::KublkBatches => "kublk_batches",
            Self::Reference(Reference::Loop) => "loop",
            Self::Reference(Reference::Nbd) => "nbd",
        }
    }

    /// Returns the rows of its comparison. Sequential requests gain nothing from batches.
    fn rows(self, all: &[RequestJob]) -> &[RequestJob] {
        match self {
            Self::KublkBatches => &all[..2],
            Self::Reference(_) => all,
        }
    }

    fn measure(self, vm: &Vm, all: &[RequestJob], file: &str, results: &mut [Vec<f64>]) -> Result<()> {
        let rows = self.rows(all);
        match self {
            Self::KublkBatches => {
                let served = Kublk::serve(vm, 9, file, Mode::ZeroCopyBatches)?;
                measure(vm, rows, &served.device(), results)?;
                served.remove()
            }
            Self::Reference(kind) => {
                let served = ServedFile::open(vm, kind, file)?;
                measure(vm, rows, served.device(), results)?;
                served.close()
            }
        }
    }
}

pub(super) fn run(world: &World) -> Result<Vec<Figure>> {
    kublk::share(world)?;
    let zerofs = zerofs::share(world);
    let mut bench = DaemonBench::start(world, HELD_BACK)?;
    let mut figures = Vec::new();
    for (transport, mode, prefix) in
        [("zero-copy", Mode::ZeroCopy, ""), ("user-copy", Mode::UserCopy, "usercopy_")]
    {
        bench.restart_with(transport, HELD_BACK)?;
        report::step(format_args!("{transport}: one device"));
        figures.extend(one_device(&bench, mode, prefix)?);
        if mode == Mode::ZeroCopy {
            figures.extend(against_zerofs(&bench, &zerofs)?);
        }
        report::step(format_args!("{transport}: {DEVICES} devices"));
        figures.extend(many_devices(&bench, mode, prefix)?);
    }
    bench.vm.power_off()?;
    Ok(figures)
}

/// Compares a volume with a filled data file to a file on the same ramdisk, alternately in each round; then
/// an unwritten volume to the filled one.
fn one_device(bench: &DaemonBench, mode: Mode, prefix: &str) -> Result<Vec<Figure>> {
    let vm = &bench.vm;
    let name = format!("{prefix}{FILLED}").replace('_', "-");
    let volume = |round: u32| format!("{prefix}fresh-{round}").replace('_', "-");
    bench.create(&name, "256Mi")?;
    let device = bench.attach(&name, &[])?;
    let file = format!("{STATE_DIR}/kublk.img");
    vm.exec(&format!("{} {}", fill(&device, 256), fill(&file, 256)))?;
    let rows = rows();
    let (mut ours, mut theirs) = (vec![Vec::new(); rows.len()], vec![Vec::new(); rows.len()]);
    let others: &[OtherServer] = if mode == Mode::ZeroCopy { &OtherServer::ALL } else { &[] };
    let mut of_others =
        others.iter().map(|other| vec![Vec::new(); other.rows(&rows).len()]).collect::<Vec<_>>();
    let mut fresh = Vec::new();
    for round in 0..ROUNDS {
        measure(vm, &rows, &device, &mut ours)?;
        let reference = Kublk::serve(vm, 9, &file, mode)?;
        measure(vm, &rows, &reference.device(), &mut theirs)?;
        reference.remove()?;
        for (other, results) in others.iter().zip(&mut of_others) {
            other.measure(vm, &rows, &file, results)?;
        }
        bench.create(&volume(round), "256Mi")?;
        let unwritten = bench.attach(&volume(round), &[])?;
        fresh.push(fio::run(vm, &FioJob::of(&[&unwritten], "randwrite", 12_000))?.iops);
        discard_and_detach(bench, &volume(round), &unwritten)?;
    }
    vm.exec(&format!("rm {file}"))?;
    discard_and_detach(bench, &name, &device)?;
    let (filled, reference) = (median(ours[1].clone()), median(theirs[0].clone()));
    let mut against_others = Vec::new();
    for (other, theirs) in others.iter().zip(of_others) {
        against_others.extend(rows.iter().zip(ours.iter().zip(theirs)).map(|(row, (ours, theirs))| {
            let name = format!("{}_vs_{}", row.name, other.name());
            ratio(name, (median(ours.clone()), median(theirs)), "IOPS", None)
        }));
    }
    let mut figures: Vec<Figure> = rows
        .iter()
        .zip(ours.into_iter().zip(theirs))
        .map(|(row, (ours, theirs))| {
            ratio(format!("{prefix}{}_vs_kublk", row.name), (median(ours), median(theirs)), "IOPS", row.least)
        })
        .collect();
    let name = format!("{prefix}randwrite4k_fresh_vs_filled");
    figures.push(ratio(name, (median(fresh), filled), "IOPS", Some(0.7)));
    figures.extend(against_others);
    if mode == Mode::ZeroCopy {
        figures.extend(first_writes(bench, filled)?);
    }
    figures.extend(cached(bench, prefix, reference)?);
    Ok(figures)
}

/// Compares random requests to a filled volume to those to ZeroFS, alternately in each round.
fn against_zerofs(bench: &DaemonBench, built: &Result<()>) -> Result<[Figure; 2]> {
    const VOLUME: &str = "against-zerofs";
    let jobs = ["randread", "randwrite"].map(|pattern| FioJob::of(&[], pattern, 12_000));
    let names = ["randread4k_vs_zerofs", "randwrite4k_vs_zerofs"];
    if let Err(error) = built {
        let figure = |name: &str| Figure {
            name: name.to_owned(),
            value: f64::NAN,
            unit: "ratio",
            against: format!("not run: {error:#}"),
            bar: None,
        };
        return Ok(names.map(figure));
    }
    bench.create(VOLUME, "256Mi")?;
    let device = bench.attach(VOLUME, &[])?;
    bench.vm.exec(&fill(&device, 256))?;
    let zerofs = ZeroFs::start(bench)?;
    let (mut ours, mut theirs) = ([const { Vec::new() }; 2], [const { Vec::new() }; 2]);
    for _ in 0..ROUNDS {
        for (job, (ours, theirs)) in jobs.iter().zip(ours.iter_mut().zip(&mut theirs)) {
            ours.push(fio::run(&bench.vm, &FioJob { targets: &[&device], ..job.clone() })?.iops);
            theirs.push(zerofs.measure(job)?);
        }
    }
    zerofs.end()?;
    discard_and_detach(bench, VOLUME, &device)?;
    let [[read, write], [their_read, their_write]] = [ours, theirs].map(|rates| rates.map(median));
    let [read, write] = [(read, their_read), (write, their_write)];
    Ok([(names[0], read), (names[1], write)].map(|(name, pair)| ratio(name.to_owned(), pair, "IOPS", None)))
}

/// Compares first writes with writes to filled space, without a volume and with a side that is allocated and
/// unwritten: the costs of the file system in such writes. `filled` is the rate of a filled volume.
fn first_writes(bench: &DaemonBench, filled: f64) -> Result<Vec<Figure>> {
    const SIZE: &str = "256M";
    let vm = &bench.vm;
    let file = format!("{STATE_DIR}/first-writes.img");
    let rate = |target: &str| Ok::<_, Error>(fio::run(vm, &FioJob::of(&[target], "randwrite", 12_000))?.iops);
    let of_kublk = || {
        let reference = Kublk::serve(vm, 9, &file, Mode::ZeroCopy)?;
        let iops = rate(&reference.device())?;
        reference.remove()?;
        Ok::<_, Error>(iops)
    };
    vm.exec(&fill(&file, 256))?;
    let (of_file, of_server) = (rate(&file)?, of_kublk()?);
    let figure = |name: &str, fresh, filled| ratio(name.to_owned(), (fresh, filled), "IOPS", None);
    let mut figures = Vec::new();
    for (name, make) in [("sparse", "truncate --size"), ("unwritten", "fallocate --length")] {
        let make = format!("rm {file}; {make} {SIZE} {file}; sync");
        vm.exec(&make)?;
        figures.push(figure(&format!("file_randwrite4k_{name}_vs_filled"), rate(&file)?, of_file));
        vm.exec(&make)?;
        figures.push(figure(&format!("kublk_randwrite4k_{name}_vs_filled"), of_kublk()?, of_server));
    }
    vm.exec(&format!("rm {file}"))?;
    let volume = "unwritten";
    bench.create(volume, "256Mi")?;
    let device = bench.attach(volume, &[])?;
    vm.exec(&format!(
        "for side in a b; do fallocate --keep-size --length {SIZE} {STATE_DIR}/volumes/{volume}/$side.data; done; sync"
    ))?;
    figures.push(figure("randwrite4k_unwritten_vs_filled", rate(&device)?, filled));
    discard_and_detach(bench, volume, &device)?;
    Ok(figures)
}

/// Compares random reads of a volume that is completely in the bucket and in the node's cache to those of
/// `kublk` from a file, `reference` per second. First each block once, which a task of the daemon looks up;
/// then reads that the ring thread answers.
fn cached(bench: &DaemonBench, prefix: &str, reference: f64) -> Result<[Figure; 3]> {
    const MIB: u32 = 32;
    let (vm, name) = (&bench.vm, format!("{prefix}cached").replace('_', "-"));
    bench.create(&name, &format!("{MIB}Mi"))?;
    let device = bench.attach(&name, &[])?;
    vm.exec(&format!("dd if=/dev/urandom of={device} bs=1M count={MIB} oflag=direct status=none"))?;
    bench.detach(&name)?;
    // One attach fills the cache; after another one the ring thread knows none of its blocks.
    let device = bench.attach(&name, &[])?;
    vm.exec(&format!("dd if={device} of=/dev/null bs=1M iflag=direct status=none"))?;
    bench.detach(&name)?;
    let device = bench.attach(&name, &[])?;
    let targets = [device.as_str()];
    // One request per block, never two adjacent ones.
    let first = fio::run(vm, &FioJob::of(&targets, "read:124k", 8 * MIB))?.iops;
    let mut later = Vec::new();
    for _ in 0..ROUNDS {
        later.push(fio::run(vm, &FioJob::of(&targets, "randread", 12_000))?.iops);
    }
    bench.detach(&name)?;
    let later = median(later);
    let overhead = |name: &str, iops: f64, bar| Figure {
        name: format!("{prefix}{name}"),
        value: 1e6 / iops - 1e6 / reference,
        unit: "us",
        against: format!("{:.1} less {:.1} us a read", 1e6 / iops, 1e6 / reference),
        bar,
    };
    Ok([
        ratio(format!("{prefix}cached_randread4k_vs_kublk"), (later, reference), "IOPS", None),
        overhead("slab_hit_overhead_us", later, Some(Bar::AtMost(1.5))),
        overhead("first_hit_overhead_us", first, None),
    ])
}

/// Compares random reads of all devices at once, on either side: total requests per second, and the 99th
/// percentile.
fn many_devices(bench: &DaemonBench, mode: Mode, prefix: &str) -> Result<Vec<Figure>> {
    let vm = &bench.vm;
    let volumes: Vec<String> =
        (0..DEVICES).map(|number| format!("{prefix}of-many-{number}").replace('_', "-")).collect();
    let (mut devices, mut files) = (Vec::new(), Vec::new());
    for (number, volume) in volumes.iter().enumerate() {
        bench.create(volume, "16Mi")?;
        let device = bench.attach(volume, &[])?;
        let file = format!("{STATE_DIR}/kublk-{number}.img");
        vm.exec(&format!("{} {}", fill(&device, 16), fill(&file, 16)))?;
        devices.push(device);
        files.push(file);
    }
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        ours.push(read_all(vm, &devices)?);
        let references = (100..).zip(&files).map(|(id, file)| Kublk::serve(vm, id, file, mode));
        let references = references.collect::<Result<Vec<_>>>()?;
        theirs.push(read_all(vm, &references.iter().map(Kublk::device).collect::<Vec<_>>())?);
        references.into_iter().try_for_each(Kublk::remove)?;
    }
    for (volume, device) in volumes.iter().zip(&devices) {
        discard_and_detach(bench, volume, device)?;
    }
    vm.exec(&format!("rm {}", files.join(" ")))?;
    let pair = |value: fn(&Measured) -> f64| {
        let of = |side: &[Measured]| median(side.iter().map(value).collect());
        (of(&ours), of(&theirs))
    };
    let name = |figure| format!("{prefix}devices{DEVICES}_{figure}_vs_kublk");
    let p99 = ratio(name("p99"), pair(|done| done.p99_us), "us, 99th percentile", None);
    let p99 = Figure { bar: Some(Bar::AtMost(1.0)), ..p99 };
    Ok(vec![ratio(name("randread4k"), pair(|done| done.iops), "IOPS", Some(0.97)), p99])
}

fn read_all(vm: &Vm, devices: &[String]) -> Result<Measured> {
    let targets: Vec<&str> = devices.iter().map(String::as_str).collect();
    fio::run(vm, &FioJob::of(&targets, "randread", 32_000))
}

fn measure(vm: &Vm, rows: &[RequestJob], device: &str, results: &mut [Vec<f64>]) -> Result<()> {
    for (row, result) in rows.iter().zip(results) {
        result.push(fio::run(vm, &FioJob { targets: &[device], ..row.job.clone() })?.iops);
    }
    Ok(())
}

/// Returns a script that fills a file or device with zeros.
fn fill(target: &str, mib: u32) -> String {
    format!("dd if=/dev/zero of={target} bs=1M count={mib} oflag=direct status=none; sync;")
}

/// Detaches a volume after discarding its data, so that the upload contains only holes.
fn discard_and_detach(bench: &DaemonBench, volume: &str, device: &str) -> Result<()> {
    bench.vm.exec(&format!("blkdiscard {device}"))?;
    bench.detach(volume)
}

fn ratio(name: String, (ours, theirs): (f64, f64), unit: &str, least: Option<f64>) -> Figure {
    Figure {
        name,
        value: ours / theirs,
        unit: "ratio",
        against: format!("{ours:.0} to {theirs:.0} {unit}"),
        bar: least.map(Bar::AtLeast),
    }
}
