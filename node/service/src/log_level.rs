//! The filter of logs and traces, readable and changeable while the process runs.
//!
//! Invariants: an invalid filter changes nothing. A restart uses `RUST_LOG` again.

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::{EnvFilter, Registry, reload};

/// Levels from silent to most verbose. Source: `tracing::level_filters`.
const LEVELS: &str = "off, error, warn, info, debug, trace";

/// An invalid filter.
#[derive(Debug, thiserror::Error)]
pub enum InvalidFilter {
    /// It has no directive.
    #[error("the filter is empty; write one of {LEVELS}")]
    Empty,
    /// A single word that is not a level. (As a target it would silence everything else.)
    #[error("`{0}` is not a level; write one of {LEVELS}, or target=level; separate several by commas")]
    NotALevel(String),
    /// A directive cannot be parsed.
    #[error("`{filter}`: {problem}; write one of {LEVELS}, or target=level; separate several by commas")]
    Directive {
        /// The whole filter.
        filter: String,
        /// The parser's error.
        problem: ParseError,
    },
}

/// The subscriber of the filter was dropped.
#[derive(Debug, thiserror::Error)]
#[error("the log is closed: the process ends")]
pub struct Closed(#[source] reload::Error);

/// The filter of this process, shared by everything that changes it.
#[derive(Clone, Debug)]
pub struct LogLevel(reload::Handle<EnvFilter, Registry>);

impl LogLevel {
    /// Returns the layer to install, and the handle that changes its filter.
    pub(crate) fn new(filter: EnvFilter) -> (reload::Layer<EnvFilter, Registry>, Self) {
        let (layer, handle) = reload::Layer::new(filter);
        (layer, Self(handle))
    }

    /// Returns the current filter, in the syntax of `RUST_LOG`.
    ///
    /// # Errors
    /// The process is ending.
    pub fn current(&self) -> Result<String, Closed> {
        self.0.with_current(ToString::to_string).map_err(Closed)
    }

    /// Replaces the filter.
    ///
    /// # Errors
    /// The process is ending.
    pub fn replace(&self, filter: EnvFilter) -> Result<(), Closed> {
        self.0.reload(filter).map_err(Closed)
    }
}

/// Parses a filter: a level, or directives such as `info,holdfast_node=debug`.
///
/// # Errors
/// [`InvalidFilter`] lists the accepted values.
pub fn parse(filter: &str) -> Result<EnvFilter, InvalidFilter> {
    let filter = filter.trim();
    if filter.split(',').all(|directive| directive.trim().is_empty()) {
        return Err(InvalidFilter::Empty);
    }
    let words = filter.split(',').filter(|directive| !directive.contains(['=', '[', ']', '{', '}']));
    for word in words.map(str::trim) {
        if word.parse::<LevelFilter>().is_err() {
            return Err(InvalidFilter::NotALevel(word.to_owned()));
        }
    }
    EnvFilter::try_new(filter)
        .map_err(|problem| InvalidFilter::Directive { filter: filter.to_owned(), problem })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `EnvFilter` mistakes a misspelt level for a target, and then logs nothing else.
    #[test]
    fn a_misspelt_level_is_refused() {
        for wrong in ["", " ", "inof", "info,debgu", ",", "holdfast_node=loud", "info,a=b=c"] {
            let refused = parse(wrong).expect_err(wrong).to_string();
            assert!(refused.contains("off, error, warn, info, debug, trace"), "{wrong}: {refused}");
        }
        for right in [
            "info",
            "OFF",
            " debug\n",
            "info,holdfast_node=debug",
            "warn,holdfast_node[attach{volume=a}]=trace",
        ] {
            assert!(parse(right).is_ok(), "{right}: {:?}", parse(right));
        }
    }

    #[test]
    fn a_change_of_the_filter_shows_at_once() {
        use tracing_subscriber::layer::SubscriberExt;

        let (layer, level) = LogLevel::new(EnvFilter::new("info"));
        let _installed = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));
        let is_logged = || tracing::enabled!(tracing::Level::DEBUG);
        assert!(!is_logged());
        level.replace(parse("debug").unwrap()).unwrap();
        assert!(is_logged());
        assert_eq!(level.current().unwrap(), "debug");
    }
}
