//! Order of requests to a volume while some of them have disk operations.
//!
//! A request that needs no disk is served at once, and leaves no state here. One that needs the disk locks
//! its pages until its last operation has ended: reads share the lock, other requests queue for it. So the
//! disk never has two operations for a page unless both read, a hole is never made under a read or over a
//! later write, and only one request at a time replaces a word.
//!
//! Owns: the requests with disk operations, and those that wait for them.
//! Runs on: the ring thread that serves the volume's queue. Allocates only when more requests than ever
//! before are held at once.
//! Bounds: each list holds at most the requests of the device.

use std::collections::VecDeque;

use holdfast_format::safeguard::{Safeguard, safeguard};

/// A request and its pages.
#[derive(Debug)]
pub struct SpillRequest<R> {
    /// The request.
    pub request: R,
    /// First page.
    pub first: u64,
    /// Number of pages; 0 for a request without pages.
    pub pages: u64,
    /// True for a read.
    pub is_read: bool,
}

impl<R> SpillRequest<R> {
    /// Returns true if the two must not be served at the same time.
    const fn excludes<S>(&self, other: &SpillRequest<S>) -> bool {
        let overlap = self.first < other.first + other.pages && other.first < self.first + self.pages;
        overlap && !(self.is_read && other.is_read)
    }
}

/// A request whose last operation ended.
#[derive(Debug)]
pub struct SpillEnd<R, E> {
    /// The request.
    pub request: R,
    /// Its result: the first failure, if any.
    pub result: Result<(), E>,
}

#[derive(Debug)]
struct RunningRequest<R, E> {
    request: SpillRequest<R>,
    operations: u32,
    result: Result<(), E>,
}

/// The requests of a volume with disk operations, and those that wait for them.
#[derive(Debug)]
pub struct SpillRequests<R, E> {
    running: Vec<Option<RunningRequest<R, E>>>,
    number: usize,
    waiting: VecDeque<SpillRequest<R>>,
}

impl<R, E> Default for SpillRequests<R, E> {
    fn default() -> Self {
        Self { running: Vec::new(), number: 0, waiting: VecDeque::new() }
    }
}

impl<R, E> SpillRequests<R, E> {
    /// Returns the request if it may be served now; otherwise keeps it until it may.
    #[inline]
    pub fn admit(&mut self, request: SpillRequest<R>) -> Option<SpillRequest<R>> {
        if self.number == 0 || !self.excludes(&request, self.waiting.len()) {
            return Some(request);
        }
        self.waiting.push_back(request);
        None
    }

    /// Keeps a request and its result so far until its `operations` disk operations have ended. Returns its
    /// number.
    ///
    /// # Panics
    /// If `operations` is 0.
    pub fn begin(&mut self, request: SpillRequest<R>, operations: u32, result: Result<(), E>) -> u16 {
        assert!(operations > 0, "it is answered at once");
        let running = Some(RunningRequest { request, operations, result });
        self.number += 1;
        let free = self.running.iter().position(Option::is_none);
        let place = free.unwrap_or_else(|| {
            self.running.push(None);
            self.running.len() - 1
        });
        self.running[place] = running;
        u16::try_from(place).expect("a device has fewer requests")
    }

    /// Returns a request by its number.
    ///
    /// # Panics
    /// If all its operations have ended.
    #[must_use]
    pub fn request(&self, number: u16) -> &R {
        let running = self.running[usize::from(number)].as_ref();
        &running.expect("an operation of it has not ended").request.request
    }

    /// Records the end of an operation of a request and the start of `more` others. Returns the request if
    /// none is left.
    ///
    /// # Panics
    /// As for [`request`](Self::request).
    pub fn end(&mut self, number: u16, outcome: Result<(), E>, more: u32) -> Option<SpillEnd<R, E>> {
        let place = &mut self.running[usize::from(number)];
        let running = place.as_mut().expect("an operation of it has not ended");
        if running.result.is_ok() {
            running.result = outcome;
        }
        running.operations = running.operations - 1 + more;
        if running.operations > 0 {
            return None;
        }
        self.number -= 1;
        let RunningRequest { request, result, .. } = place.take()?;
        Some(SpillEnd { request: request.request, result })
    }

    /// Returns the next waiting request that may be served now.
    pub fn next_ready(&mut self) -> Option<SpillRequest<R>> {
        let ready = (0..self.waiting.len()).find(|at| !self.excludes(&self.waiting[*at], *at))?;
        self.waiting.remove(ready)
    }

    /// Returns true if no request has disk operations.
    #[must_use]
    pub const fn is_idle(&self) -> bool {
        self.number == 0
    }

    /// Takes all requests, before the process ends. Returns those with disk operations and those that wait.
    pub fn leave(&mut self) -> (impl Iterator<Item = R> + '_, impl Iterator<Item = R> + '_) {
        self.number = 0;
        let running = self.running.drain(..).flatten().map(|running| running.request.request);
        (running, self.waiting.drain(..).map(|waiting| waiting.request))
    }

    /// Returns true if a request with disk operations, or one of the first `before` waiting ones, excludes
    /// this one.
    fn excludes(&self, request: &SpillRequest<R>, before: usize) -> bool {
        safeguard(Safeguard::WaitForDisk)
            && (self.running.iter().flatten().any(|running| running.request.excludes(request))
                || self.waiting.iter().take(before).any(|waiting| waiting.excludes(request)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(request: char, pages: std::ops::Range<u64>, is_read: bool) -> SpillRequest<char> {
        SpillRequest { request, first: pages.start, pages: pages.end - pages.start, is_read }
    }

    /// Requests to other pages and reads of the same pages are served; a request does not overtake a waiting
    /// one.
    #[test]
    fn requests_to_the_same_pages_are_served_in_order() {
        let mut requests = SpillRequests::<char, ()>::default();
        let is_admitted = |requests: &mut SpillRequests<char, ()>, one| requests.admit(one).is_some();
        let read = requests.admit(request('a', 0..8, true)).unwrap();
        let number = requests.begin(read, 2, Ok(()));
        assert!(is_admitted(&mut requests, request('b', 4..12, true)), "reads share");
        assert!(is_admitted(&mut requests, request('c', 8..9, false)), "other pages");
        assert!(is_admitted(&mut requests, request('d', 0..0, false)), "no pages");
        assert!(!is_admitted(&mut requests, request('e', 7..9, false)));
        assert!(!is_admitted(&mut requests, request('f', 8..9, true)), "behind the write that waits");
        assert!(is_admitted(&mut requests, request('g', 0..7, true)));
        assert_eq!(*requests.request(number), 'a');
        assert!(requests.end(number, Err(()), 0).is_none());
        assert!(requests.next_ready().is_none());
        let ended = requests.end(number, Ok(()), 0).unwrap();
        assert_eq!((ended.request, ended.result), ('a', Err(())));
        let write = requests.next_ready().unwrap();
        assert_eq!(write.request, 'e');
        let number = requests.begin(write, 1, Ok(()));
        assert!(requests.next_ready().is_none());
        assert!(requests.end(number, Ok(()), 1).is_none(), "it was given another one");
        assert!(requests.end(number, Ok(()), 0).is_some());
        assert_eq!(requests.next_ready().map(|ready| ready.request), Some('f'));
        assert!(requests.is_idle() && requests.next_ready().is_none());
    }
}
