//! A quantity over time, and its growth.

use std::time::Duration;

/// Samples of which the lowest counts.
const FEW: usize = 4;

/// Values of a quantity, each with its time since the start.
#[derive(Debug)]
pub(super) struct Course {
    samples: Vec<(f64, f64)>,
    /// Start of the trend, in seconds; earlier samples are only drawn.
    trend_from: f64,
}

/// Regression line of a course.
#[derive(Debug, PartialEq)]
pub(super) struct Trend {
    /// Mean of the values.
    pub(super) mean: f64,
    /// Growth per hour.
    pub(super) an_hour: f64,
    /// Two standard errors of the growth.
    pub(super) noise: f64,
}

impl Course {
    pub(super) fn new(trend_from: Duration) -> Self {
        Self { samples: Vec::new(), trend_from: trend_from.as_secs_f64() }
    }

    pub(super) fn push(&mut self, since: Duration, value: f64) {
        self.samples.push((since.as_secs_f64(), value));
    }

    /// Returns the times in seconds with their values.
    pub(super) fn samples(&self) -> &[(f64, f64)] {
        &self.samples
    }

    /// Computes the line of least squares through the lowest value of each few samples: a leak raises them,
    /// work in progress does not. With fewer than three of them some numbers are NaN.
    pub(super) fn trend(&self) -> Trend {
        let late: Vec<_> = self.samples.iter().filter(|(at, _)| *at >= self.trend_from).collect();
        let lowest = |few: &[&(f64, f64)]| few.iter().copied().copied().min_by(|a, b| a.1.total_cmp(&b.1));
        let of: Vec<(f64, f64)> = late.chunks(FEW).filter_map(lowest).collect();
        let count = of.len() as f64;
        let mean_of = |value: fn(&(f64, f64)) -> f64| of.iter().map(value).sum::<f64>() / count;
        let (mid, mean) = (mean_of(|(at, _)| *at), mean_of(|(_, value)| *value));
        let spread: f64 = of.iter().map(|(at, _)| (at - mid).powi(2)).sum();
        let slope = of.iter().map(|(at, value)| (at - mid) * (value - mean)).sum::<f64>() / spread;
        let rest: f64 = of.iter().map(|(at, value)| (value - mean - slope * (at - mid)).powi(2)).sum();
        let error = (rest / (count - 2.0) / spread).sqrt();
        Trend { mean, an_hour: slope * 3600.0, noise: 2.0 * error * 3600.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn course(values: impl Iterator<Item = f64>) -> Course {
        let mut course = Course::new(Duration::from_secs(50));
        for (number, value) in values.enumerate() {
            course.push(Duration::from_secs(10 * number as u64), value);
        }
        course
    }

    #[test]
    fn a_leak_shows_and_noise_does_not() {
        let leak = course((0..60).map(|number| 1000.0 + f64::from(number) + f64::from(number % 2))).trend();
        assert!((leak.an_hour - 360.0).abs() < 5.0 && leak.noise < 10.0, "{leak:?}");
        let flat = course((0..60).map(|number| 1000.0 + f64::from(number % 7))).trend();
        assert!(flat.an_hour.abs() <= flat.noise, "{flat:?}");
    }

    #[test]
    fn what_comes_before_is_no_part_of_the_trend() {
        let grown_before = course((0..60).map(|number| f64::from(number.min(5)))).trend();
        assert_eq!(grown_before, Trend { mean: 5.0, an_hour: 0.0, noise: 0.0 });
    }

    #[test]
    fn too_few_samples_clear_no_bar() {
        assert!(course((0..7).map(f64::from)).trend().noise.is_nan());
    }
}
