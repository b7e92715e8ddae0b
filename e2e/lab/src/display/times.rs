//! The times of steps at their last success: a file in the cache, one line per step.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result};

/// Maximum time of a step: a line with a longer one is damaged.
const MAX_TIME: Duration = Duration::from_secs(86_400);

/// Times of earlier runs, and of this one.
#[derive(Debug, Default)]
pub struct Times {
    file: Option<PathBuf>,
    previous: BTreeMap<String, Duration>,
    current: Mutex<BTreeMap<String, Duration>>,
}

impl Times {
    /// Reads the times. A missing file, or a line without a time, counts as a step that never ran.
    pub fn read(file: PathBuf) -> Self {
        let previous = fs::read_to_string(&file).map(|text| parse(&text)).unwrap_or_default();
        Self { file: Some(file), previous, current: Mutex::default() }
    }

    /// Returns the time of a step in an earlier run.
    pub fn of(&self, name: &str) -> Option<Duration> {
        self.previous.get(name).copied()
    }

    /// Records the time of a successful step.
    pub fn record(&self, name: &str, duration: Duration) {
        self.current
            .lock()
            .expect("nothing panics while it holds this lock")
            .insert(name.to_owned(), duration);
    }

    /// Writes them for the next run. Concurrent changes of another harness are kept.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn save(&self) -> Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let mut all = fs::read_to_string(file).map(|text| parse(&text)).unwrap_or_default();
        all.extend(self.current.lock().expect("nothing panics while it holds this lock").clone());
        let text: String =
            all.iter().map(|(name, duration)| format!("{} {name}\n", duration.as_secs_f64())).collect();
        let scratch = file.with_extension(std::process::id().to_string());
        fs::write(&scratch, text)
            .and_then(|()| fs::rename(&scratch, file))
            .with_context(|| format!("write {}", file.display()))
    }
}

fn parse(text: &str) -> BTreeMap<String, Duration> {
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    lines
        .filter_map(|(duration, name)| {
            let duration = Duration::try_from_secs_f64(duration.parse().ok()?).ok()?;
            (duration <= MAX_TIME).then(|| (name.to_owned(), duration))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_known_to_the_next_run() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("times");
        fs::write(&file, "2.5 s3\nnot a time\n7 smoke\n-1 chart\n1.8e19 drain\n").unwrap();
        let times = Times::read(file.clone());
        assert_eq!(times.of("s3"), Some(Duration::from_millis(2500)));
        assert_eq!([times.of("chart"), times.of("drain")], [None; 2]);
        times.record("host tests", Duration::from_secs(250));
        times.record("s3", Duration::from_secs(3));
        times.save().unwrap();
        let next = Times::read(file);
        assert_eq!(next.of("host tests"), Some(Duration::from_secs(250)));
        assert_eq!(next.of("s3"), Some(Duration::from_secs(3)));
        assert_eq!(next.of("smoke"), Some(Duration::from_secs(7)));
    }
}
