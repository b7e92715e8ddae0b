//! Runs by name or by rotation, with day and commit of each one's last success: a table in docs/testing.md.

/// The page that has the table.
const PAGE: &str = include_str!("../../docs/testing.md");
/// Header of the table.
const HEAD: &str = "| run | last passed | with commit |";

/// A successful run by name, or by rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SuccessfulRun {
    /// Name on the command line.
    pub name: &'static str,
    /// Day of the commit, such as 2026-11-27; `never` if it has not passed completely.
    pub day: &'static str,
    /// The tested commit, abbreviated.
    pub commit: &'static str,
}

/// Returns all rows of the table.
pub fn all() -> impl Iterator<Item = SuccessfulRun> {
    let rows = PAGE.lines().skip_while(|line| *line != HEAD).skip(2).take_while(|line| line.starts_with('|'));
    rows.filter_map(|row| {
        let mut cells = row.split('|').map(|cell| cell.trim().trim_matches('`')).skip(1);
        Some(SuccessfulRun { name: cells.next()?, day: cells.next()?, commit: cells.next()? })
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::process::Command;

    use super::*;

    /// Returns the number of months since year 0.
    fn month(day: &str) -> u32 {
        let mut numbers = day.split('-').map(|number| number.parse::<u32>().unwrap());
        numbers.next().unwrap() * 12 + numbers.next().unwrap()
    }

    /// Regression: `failover` failed for weeks on a bare machine, because it was never run.
    #[test]
    fn each_run_by_name_passed_recently() {
        let rows: Vec<SuccessfulRun> = all().collect();
        let named: BTreeSet<&str> = rows.iter().map(|row| row.name).collect();
        let benchmarks = holdfast_bench::BY_NAME.iter().map(|benchmark| benchmark.name);
        let scenarios = holdfast_scenarios::IN_TURN.iter().chain(holdfast_scenarios::WITH_A_PROGRAM);
        let expected: BTreeSet<&str> = scenarios.copied().chain(benchmarks).collect();
        assert_eq!(named, expected);
        assert_eq!(rows.len(), named.len(), "a name has two rows");
        let git = Command::new("git").args(["log", "-1", "--format=%cs"]).output();
        let Some(newest) = git.ok().filter(|git| git.status.success()) else { return };
        let newest = String::from_utf8(newest.stdout).unwrap();
        for row in rows.iter().filter(|row| row.day != "never") {
            assert!(
                month(newest.trim()) <= month(row.day) + 2,
                "{}: last passed on {}: run it again, and write its day and commit into docs/testing.md",
                row.name,
                row.day
            );
        }
    }
}
