//! Space in the bucket of a randomly overwritten volume, and its uploads.

use std::fs;

use anyhow::{Context, Result};

use super::{BUCKET, IndexBench, MIB, figure};
use crate::{Bar, Figure};

const VOLUME: &str = "overwritten";
/// Several times 64 MiB, the overwritten data that any volume may keep.
const SIZE_MIB: u32 = 256;
/// 4 KiB sectors of the volume.
const SECTORS: u32 = SIZE_MIB << 8;
/// Average number of overwrites of the whole volume.
const TIMES: u32 = 10;

pub(super) fn measure(bench: &IndexBench) -> Result<Vec<Figure>> {
    bench.create(VOLUME, &format!("{SIZE_MIB}Mi"))?;
    let device = bench.attach(VOLUME, &[])?;
    let live = f64::from(SIZE_MIB) * MIB;
    let fill =
        format!("dd if=/dev/urandom of={device} bs=1M count={SIZE_MIB} oflag=direct conv=fsync status=none");
    bench.vm.exec(&fill)?;
    bench.let_merges_end()?;
    let overwrite = |pass: u32, order: &str| {
        let options = format!("--ioengine=io_uring --iodepth=16 --randseed={pass} {order}");
        bench.write_random(&device, SECTORS, &options)?;
        bench.let_merges_end()
    };
    let ((), once) = bench.costs(|| overwrite(0, ""))?;
    let mut sent = 0.0;
    for pass in 1..TIMES {
        let ((), more) = bench.costs(|| overwrite(pass, "--norandommap"))?;
        sent += more.sent_bytes;
    }
    bench.detach(VOLUME)?;
    bench.node.cli(&["gc", "--store", "store", "--grace", "0s"])?;
    let stored = stored_bytes(bench)?;
    Ok(vec![
        figure(
            "upload_amplification_once",
            once.sent_bytes / live,
            "ratio",
            Bar::AtMost(1.10),
            format!(
                "bytes sent for each byte of {SIZE_MIB} MiB in 4 KiB, each once in random order, over a volume that was filled in order"
            ),
        ),
        figure(
            "upload_amplification_steady",
            sent / (f64::from(TIMES - 1) * live),
            "ratio",
            Bar::AtMost(1.45),
            format!("bytes sent for each byte of {} passes of random 4 KiB after it", TIMES - 1),
        ),
        figure(
            "stored_over_live_steady",
            stored / live,
            "ratio",
            Bar::AtMost(2.3),
            format!("all objects of the volume after {TIMES} passes and a sweep"),
        ),
    ])
}

/// Returns the size of all objects of the volume in bytes.
fn stored_bytes(bench: &IndexBench) -> Result<f64> {
    let mut bytes = 0;
    for key in bench.s3.keys(BUCKET, &format!("volumes/{VOLUME}/"))? {
        let path = bench.s3.object_path(BUCKET, &key);
        bytes += fs::metadata(&path).with_context(|| format!("read {}", path.display()))?.len();
    }
    Ok(bytes as f64)
}
