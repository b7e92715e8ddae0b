//! The harness's side: records reports with their times, and checks if later contents are possible.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use anyhow::{Context, Result, ensure};

use super::write::ACKNOWLEDGED;
use super::{LANE_SECTORS, round};
use crate::vm;

/// Maximum number of wrong sectors that are named.
const MAX_NAMED: usize = 8;

/// Records reports, with the current position of a record.
pub struct Reports {
    port: u16,
    seed: u64,
    lanes: u32,
    shared: Arc<SharedReports>,
}

struct SharedReports {
    position: Box<dyn Fn() -> usize + Send + Sync>,
    state: Mutex<ReportsState>,
}

#[derive(Default)]
struct ReportsState {
    reports: Vec<RoundReport>,
    connections: Vec<TcpStream>,
    is_ended: bool,
}

struct RoundReport {
    lane: u32,
    round: u32,
    position: usize,
}

impl Reports {
    /// Listens for the writers of `lanes` lanes; `position` is called at each report.
    ///
    /// # Errors
    /// If no port is free.
    pub fn listen(
        seed: u64,
        lanes: u32,
        position: impl Fn() -> usize + Send + Sync + 'static,
    ) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("find a port for reports")?;
        let port = listener.local_addr().context("read the port")?.port();
        let shared = Arc::new(SharedReports { position: Box::new(position), state: Mutex::default() });
        let listening = Arc::clone(&shared);
        std::thread::spawn(move || {
            for writer in listener.incoming().flatten() {
                let mut state = listening.lock();
                if state.is_ended {
                    return;
                }
                state.connections.extend(writer.try_clone());
                drop(state);
                let shared = Arc::clone(&listening);
                // It ends with the writer.
                std::thread::spawn(move || drop(shared.record_reports(&writer)));
            }
        });
        Ok(Self { port, seed, lanes, shared })
    }

    /// Returns the address to which writers in a test machine report.
    pub fn address_in_vm(&self) -> String {
        format!("{}:{}", vm::HOST, self.port)
    }

    /// Returns the number of rounds reported so far, over all lanes.
    pub fn rounds(&self) -> usize {
        self.shared.lock().reports.len()
    }

    /// Returns the positions within `range` at which rounds were reported.
    pub fn positions(&self, range: &Range<usize>) -> Vec<usize> {
        let state = self.shared.lock();
        state
            .reports
            .iter()
            .map(|report| report.position)
            .filter(|position| range.contains(position))
            .collect()
    }

    /// Checks that lanes that read as `text` (see [`super::write::read`]) are in a possible state after a
    /// power failure at `position`: everything reported by then, and later only changes of the next round.
    ///
    /// # Errors
    /// Names lanes and sectors in an impossible state.
    pub fn check(&self, position: usize, text: &str) -> Result<()> {
        let lines: Vec<&str> = text.lines().collect();
        ensure!(lines.len() == self.lanes as usize, "{} lanes were read, not {}", lines.len(), self.lanes);
        let mut wrong = Vec::new();
        for (lane, line) in (0..).zip(lines) {
            let done = self.last_reported(lane, position);
            let found: Vec<&str> = line.split(' ').collect();
            for (sector, (allowed, found)) in self.allowed(lane, done).iter().zip(&found).enumerate() {
                let right = found.parse().is_ok_and(|round: u32| allowed.contains(&round));
                if !right {
                    wrong.push(format!("lane {lane} sector {sector}: {found}, not one of {allowed:?}"));
                }
            }
            ensure!(found.len() == LANE_SECTORS as usize, "lane {lane} has {} sectors", found.len());
        }
        let named = wrong.iter().take(MAX_NAMED).map(String::as_str).collect::<Vec<_>>().join("\n");
        ensure!(wrong.is_empty(), "{} sectors are not what they may be:\n{named}", wrong.len());
        Ok(())
    }

    /// Returns the last round of a lane reported by then.
    fn last_reported(&self, lane: u32, position: usize) -> u32 {
        let state = self.shared.lock();
        let reported =
            state.reports.iter().filter(|report| report.lane == lane && report.position <= position);
        reported.map(|report| report.round).max().unwrap_or(0)
    }

    /// Returns the permitted contents of each sector: those after round `done`, or after the next round.
    fn allowed(&self, lane: u32, done: u32) -> Vec<Vec<u32>> {
        let mut allowed = vec![vec![0]; LANE_SECTORS as usize];
        for number in 1..=done + 1 {
            for change in round(self.seed, lane, number) {
                let holds = if change.zero { 0 } else { number };
                let last = change.first + change.sectors;
                for sector in &mut allowed[change.first as usize..last as usize] {
                    if number <= done {
                        sector.clear();
                    }
                    sector.push(holds);
                }
            }
        }
        allowed
    }
}

impl Drop for Reports {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.is_ended = true;
        for writer in &state.connections {
            // An error means that it is already gone.
            writer.shutdown(Shutdown::Both).ok();
        }
        drop(state);
        // Wakes the listening thread.
        drop(TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)));
    }
}

impl SharedReports {
    fn record_reports(&self, writer: &TcpStream) -> Result<()> {
        writer.set_nodelay(true)?;
        let mut answers = writer;
        for line in BufReader::new(writer).lines() {
            let line = line.context("read a report")?;
            let (lane, round) = line.split_once(' ').context("a report of lane and round")?;
            let position = (self.position)();
            let report = RoundReport { lane: lane.parse()?, round: round.parse()?, position };
            self.lock().reports.push(report);
            writeln!(answers, "{ACKNOWLEDGED}").context("answer a report")?;
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, ReportsState> {
        self.state.lock().expect("nothing panics while it holds this lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stamp::Change;

    fn reports() -> Reports {
        let reports = Reports::listen(3, 1, || 0).unwrap();
        for (round, position) in [(1, 10), (2, 20)] {
            reports.shared.lock().reports.push(RoundReport { lane: 0, round, position });
        }
        reports
    }

    /// Returns the lane after these rounds.
    fn lane(rounds: impl IntoIterator<Item = u32>) -> Vec<String> {
        let mut lane = vec!["0".to_owned(); LANE_SECTORS as usize];
        for number in rounds {
            for Change { first, sectors, zero } in round(3, 0, number) {
                lane[first as usize..(first + sectors) as usize]
                    .fill(if zero { 0 } else { number }.to_string());
            }
        }
        lane
    }

    #[test]
    fn reported_rounds_are_required_and_the_next_is_permitted() {
        let reports = reports();
        let check = |position, lane: &[String]| reports.check(position, &lane.join(" "));
        check(20, &lane([1, 2])).unwrap();
        check(20, &lane([1, 2, 3])).unwrap();
        check(19, &lane([1])).unwrap();
        assert!(check(20, &lane([1])).is_err(), "round 2 was lost");
        assert!(check(19, &lane([1, 2, 3])).is_err(), "round 3 was not begun");
        let mut foreign = lane([1, 2]);
        foreign[0] = "x".to_owned();
        assert!(check(20, &foreign).unwrap_err().to_string().contains("lane 0 sector 0"));
    }
}
