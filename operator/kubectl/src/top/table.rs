//! The table of `kubectl holdfast top`.

use std::cmp::Ordering;
use std::fmt::Write;
use std::time::Duration;

use clap::ValueEnum;
use holdfast_crds::TimeSpan;

use super::figures::{COUNT, VolumeRow};

/// Column that the lines are sorted by: names ascending, figures descending.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SortBy {
    /// Name of the Volume.
    Name,
    /// Namespace and name of the claim.
    Claim,
    /// Name of the node.
    Node,
    /// Reads per second.
    Reads,
    /// Writes per second.
    Writes,
    /// Reads per second of blocks that only the store had.
    ColdReads,
    /// Bytes read per second.
    ReadBytes,
    /// Bytes written per second.
    WrittenBytes,
    /// Requests waiting for the store, memory or space.
    Waiting,
    /// Bytes not uploaded.
    Dirty,
    /// Age of the oldest byte not uploaded.
    Oldest,
    /// Bytes on the node's disk.
    Cached,
    /// 99th percentile of the read latency.
    ReadP99,
    /// 99th percentile of the write latency.
    WriteP99,
    /// 99th percentile of the latency of flushes and FUA writes.
    FlushP99,
}

/// Titles of the name columns.
const NAMES: [&str; 3] = ["VOLUME", "CLAIM", "NODE"];

/// A column of figures, in the order of [`super::figures::FIGURES`].
struct Column {
    title: &'static str,
    sort_by: SortBy,
    text: fn(f64) -> String,
}

const fn column(title: &'static str, sort_by: SortBy, text: fn(f64) -> String) -> Column {
    Column { title, sort_by, text }
}

const COLUMNS: [Column; COUNT] = [
    column("READS/S", SortBy::Reads, number),
    column("WRITES/S", SortBy::Writes, number),
    column("COLD/S", SortBy::ColdReads, number),
    column("READ-MIB/S", SortBy::ReadBytes, mebibytes),
    column("WRITE-MIB/S", SortBy::WrittenBytes, mebibytes),
    column("WAITING", SortBy::Waiting, |count| format!("{count:.0}")),
    column("DIRTY", SortBy::Dirty, size),
    column("OLDEST", SortBy::Oldest, age),
    column("CACHED", SortBy::Cached, size),
    column("READ-P99", SortBy::ReadP99, time),
    column("WRITE-P99", SortBy::WriteP99, time),
    column("FLUSH-P99", SortBy::FlushP99, time),
];

/// Formats the lines of the table.
pub(super) fn table(mut rows: Vec<VolumeRow>, sort_by: SortBy) -> String {
    rows.sort_by(|one, other| compare(one, other, sort_by).then_with(|| one.name.cmp(&other.name)));
    let mut lines =
        vec![cells(NAMES.map(str::to_owned), COLUMNS.iter().map(|column| column.title.to_owned()))];
    for VolumeRow { name, claim, node, figures, .. } in rows {
        let names = [name, claim.unwrap_or_else(unknown), node];
        let figure = |(column, value): (&Column, Option<f64>)| value.map_or_else(unknown, column.text);
        lines.push(cells(names, COLUMNS.iter().zip(figures).map(figure)));
    }
    let widths = lines.iter().fold(vec![0; NAMES.len() + COUNT], |widest: Vec<usize>, line| {
        widest.iter().zip(line).map(|(widest, cell)| cell.chars().count().max(*widest)).collect()
    });
    let mut text = String::new();
    for line in lines {
        for (at, (cell, width)) in line.iter().zip(&widths).enumerate() {
            let gap = if at == 0 { "" } else { "  " };
            let _ = if at < NAMES.len() {
                write!(text, "{gap}{cell:width$}")
            } else {
                write!(text, "{gap}{cell:>width$}")
            };
        }
        text.push('\n');
    }
    text
}

fn cells(names: [String; 3], figures: impl Iterator<Item = String>) -> Vec<String> {
    names.into_iter().chain(figures).collect()
}

/// Compares two lines; one without the figure sorts last.
fn compare(one: &VolumeRow, other: &VolumeRow, sort_by: SortBy) -> Ordering {
    match sort_by {
        SortBy::Name => Ordering::Equal,
        SortBy::Claim => (one.claim.is_none(), &one.claim).cmp(&(other.claim.is_none(), &other.claim)),
        SortBy::Node => one.node.cmp(&other.node),
        SortBy::Reads
        | SortBy::Writes
        | SortBy::ColdReads
        | SortBy::ReadBytes
        | SortBy::WrittenBytes
        | SortBy::Waiting
        | SortBy::Dirty
        | SortBy::Oldest
        | SortBy::Cached
        | SortBy::ReadP99
        | SortBy::WriteP99
        | SortBy::FlushP99 => {
            let at = COLUMNS.iter().position(|column| column.sort_by == sort_by);
            let figure = |row: &VolumeRow| at.and_then(|at| row.figures[at]).unwrap_or(f64::NEG_INFINITY);
            figure(other).total_cmp(&figure(one))
        }
    }
}

/// Placeholder for an unknown figure or name.
fn unknown() -> String {
    "-".to_owned()
}

/// Formats a rate, with one decimal where it is significant.
fn number(rate: f64) -> String {
    if rate >= 100.0 {
        format!("{rate:.0}")
    } else if rate > 0.0 && rate < 0.05 {
        "<0.1".to_owned()
    } else {
        format!("{rate:.1}")
    }
}

fn mebibytes(bytes: f64) -> String {
    number(bytes / f64::from(1 << 20))
}

/// Formats bytes in a unit that leaves at most four digits.
fn size(bytes: f64) -> String {
    if bytes < 1024.0 {
        return format!("{bytes:.0}B");
    }
    let (mut amount, mut unit) = (bytes, "");
    for next in ["Ki", "Mi", "Gi", "Ti", "Pi"] {
        if amount < 1024.0 {
            break;
        }
        (amount, unit) = (amount / 1024.0, next);
    }
    format!("{amount:.1}{unit}B")
}

/// Formats a bucket bound given in seconds; beyond the last bucket the time is unknown.
fn time(bound: f64) -> String {
    match Duration::try_from_secs_f64(bound) {
        Ok(bound) => format!("{bound:.0?}"),
        Err(_) => ">8s".to_owned(),
    }
}

/// Formats a number of seconds.
fn age(seconds: f64) -> String {
    TimeSpan(Duration::from_secs(Duration::try_from_secs_f64(seconds).unwrap_or_default().as_secs()))
        .to_string()
}

#[cfg(test)]
mod tests {
    use super::super::figures::tests::{TEXT, later, rows};
    use super::*;

    #[test]
    fn a_volume_has_a_line_with_its_figures() {
        let text = table(rows(TEXT, &later(), Duration::from_millis(2500)), SortBy::Name);
        assert_eq!(
            text,
            "VOLUME  CLAIM      NODE  READS/S  WRITES/S  COLD/S  READ-MIB/S  WRITE-MIB/S  WAITING    DIRTY  OLDEST  CACHED  READ-P99  WRITE-P99  FLUSH-P99\n\
             pvc-1   shop/data  a         800      40.0     0.0         3.1         20.0        3  64.0MiB   1m30s  1.5GiB     128µs        >8s          -\n"
        );
    }

    #[test]
    fn an_unknown_figure_is_a_dash() {
        let text = table(rows("# EOF", TEXT, Duration::from_secs(2)), SortBy::Name);
        let line = text.lines().nth(1).unwrap();
        let cells: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(
            cells[3..],
            ["-", "-", "-", "-", "-", "3", "64.0MiB", "1m30s", "1.5GiB", "-", "-", "-"],
            "{line}"
        );
    }

    fn order(sort_by: SortBy) -> Vec<String> {
        let row = |name: &str, claim: Option<&str>, node: &str, dirty, reads| {
            let mut figures = [None; COUNT];
            (figures[0], figures[6]) = (reads, dirty);
            let (id, name, node) = (format!("id-{name}"), name.to_owned(), node.to_owned());
            VolumeRow { id, name, claim: claim.map(str::to_owned), node, figures, is_new: false }
        };
        let rows = vec![
            row("c", None, "x", Some(1.0), Some(9.0)),
            row("a", Some("shop/z"), "y", Some(5.0), None),
            row("b", Some("shop/b"), "x", Some(5.0), Some(10.0)),
        ];
        let text = table(rows, sort_by);
        text.lines().skip(1).map(|line| line[..1].to_owned()).collect()
    }

    #[test]
    fn lines_are_in_the_order_that_is_asked_for() {
        assert_eq!(order(SortBy::Name), ["a", "b", "c"]);
        assert_eq!(order(SortBy::Claim), ["b", "a", "c"]);
        assert_eq!(order(SortBy::Node), ["b", "c", "a"]);
        assert_eq!(order(SortBy::Dirty), ["a", "b", "c"], "equal figures are in the order of names");
        assert_eq!(order(SortBy::Reads), ["b", "c", "a"], "the unknown one is the last");
    }

    #[test]
    fn figures_are_short() {
        assert_eq!([0.0, 0.01, 0.05, 99.9, 12_345.6].map(number), ["0.0", "<0.1", "0.1", "99.9", "12346"]);
        let sizes = [0.0, 1023.0, 1024.0, 1_572_864.0, 5.0 * 1024.0_f64.powi(5)].map(size);
        assert_eq!(sizes, ["0B", "1023B", "1.0KiB", "1.5MiB", "5.0PiB"]);
        assert_eq!([0.0, 0.9, 3600.0, f64::NAN].map(age), ["0s", "0s", "1h", "0s"]);
    }

    #[test]
    fn every_column_of_figures_can_be_asked_for() {
        let named = SortBy::value_variants().len() - NAMES.len();
        assert_eq!(named, COUNT);
        for sort_by in &SortBy::value_variants()[NAMES.len()..] {
            assert!(COLUMNS.iter().any(|column| column.sort_by == *sort_by), "{sort_by:?}");
        }
    }
}
