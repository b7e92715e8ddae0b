//! Number of map pages that a round handles in one turn of the ring thread. Only a simulation reduces it, so
//! that rounds of its small volumes have several groups and several writes; without the feature `simulation`
//! nothing can.

use crate::limit::{MAP_WRITE_PAGES, ROUND_PAGES};

#[cfg(feature = "simulation")]
thread_local! {
    static SCALED: std::cell::Cell<(usize, usize)> = const { std::cell::Cell::new((ROUND_PAGES, MAP_WRITE_PAGES)) };
}

/// From now on rounds of this thread copy `copied` pages at a time and write `written`; `None` is what
/// programs do.
#[cfg(feature = "simulation")]
pub fn scale(pages: Option<(usize, usize)>) {
    SCALED.set(pages.unwrap_or((ROUND_PAGES, MAP_WRITE_PAGES)));
}

#[cfg(feature = "simulation")]
pub(crate) fn round_pages() -> usize {
    SCALED.get().0
}

#[cfg(feature = "simulation")]
pub(crate) fn map_write_pages() -> usize {
    SCALED.get().1
}

#[cfg(not(feature = "simulation"))]
pub(crate) const fn round_pages() -> usize {
    ROUND_PAGES
}

#[cfg(not(feature = "simulation"))]
pub(crate) const fn map_write_pages() -> usize {
    MAP_WRITE_PAGES
}
