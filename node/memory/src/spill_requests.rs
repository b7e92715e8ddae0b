//! The order of requests to a volume while the disk works for some of them.
//!
//! A request that needs no disk is served at once, and none of it is left. One that does has its pages until
//! its last operation has ended: reads share theirs, and any other request to them waits, behind those that
//! wait for the same pages. So the disk never has two operations for a page unless both read, a hole is never
//! made under a read or over a later write, and a word is replaced by one request at a time.
//!
//! Owns: the requests that the disk works for, and those that wait for them.
//! Runs on: the ring thread that has the volume's queue. No allocation for a request once there were as many
//! at once.
//! Bounds: both are at most the requests that the device has.

use std::collections::VecDeque;

use holdfast_format::safeguard::{Safeguard, safeguard};

/// A request and its pages.
#[derive(Debug)]
pub struct SpillRequest<R> {
    /// The request.
    pub request: R,
    /// Its first page.
    pub first: u64,
    /// Number of its pages; 0 for one that is about none.
    pub pages: u64,
    /// It reads them.
    pub is_read: bool,
}

impl<R> SpillRequest<R> {
    /// True if both may not be served at the same time.
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
    /// Its result: the first failure, if there was one.
    pub result: Result<(), E>,
}

#[derive(Debug)]
struct RunningRequest<R, E> {
    request: SpillRequest<R>,
    operations: u32,
    result: Result<(), E>,
}

/// The requests of a volume that the disk works for, and those that wait for them.
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
    /// Hands a request back that may be served now, and keeps one that has to wait.
    #[inline]
    pub fn admit(&mut self, request: SpillRequest<R>) -> Option<SpillRequest<R>> {
        if self.number == 0 || !self.excludes(&request, self.waiting.len()) {
            return Some(request);
        }
        self.waiting.push_back(request);
        None
    }

    /// Keeps a request that was served as far as it can be, with what that came to, until so many operations
    /// of the disk have ended. Returns its number.
    ///
    /// # Panics
    /// If it has no operation.
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

    /// A request by its number.
    ///
    /// # Panics
    /// If it has no operation any more.
    #[must_use]
    pub fn request(&self, number: u16) -> &R {
        let running = self.running[usize::from(number)].as_ref();
        &running.expect("an operation of it has not ended").request.request
    }

    /// An operation of a request ended, and so many more were begun for it. Returns the request if that was
    /// the last one.
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

    /// The next request that waited and may be served now.
    pub fn next_ready(&mut self) -> Option<SpillRequest<R>> {
        let ready = (0..self.waiting.len()).find(|at| !self.excludes(&self.waiting[*at], *at))?;
        self.waiting.remove(ready)
    }

    /// True if the disk works for no request.
    #[must_use]
    pub const fn is_idle(&self) -> bool {
        self.number == 0
    }

    /// Takes all requests, for a process that is about to end. Returns those that the disk does not work for.
    pub fn leave(&mut self) -> (impl Iterator<Item = R> + '_, impl Iterator<Item = R> + '_) {
        self.number = 0;
        let running = self.running.drain(..).flatten().map(|running| running.request.request);
        (running, self.waiting.drain(..).map(|waiting| waiting.request))
    }

    /// True if the disk works for a request that excludes this one, or one of the first `before` that wait
    /// does.
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

    /// Requests to other pages and reads of the same ones are served; one behind a waiting one does not pass
    /// it.
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
