//! Live-map memory: it outlives the process that maps it, and a process can die between any two changes of
//! it.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

/// Payload with which a process that was killed inside the engine unwinds.
pub(crate) struct Killed;

/// Changes of the live map after which the process dies; unset if it survives.
#[derive(Clone, Default)]
pub(crate) struct DeathCounter(Rc<RefCell<Option<u32>>>);

impl DeathCounter {
    /// Makes the process die after that many more changes.
    pub(crate) fn set(&self, changes: Option<u32>) {
        *self.0.borrow_mut() = changes;
    }

    /// Counts a change that is about to be made.
    fn count_change(&self) {
        let mut left = self.0.borrow_mut();
        match &mut *left {
            Some(0) => {
                *left = None;
                drop(left);
                std::panic::panic_any(Killed);
            }
            Some(count) => *count -= 1,
            None => {}
        }
    }
}

/// The tmpfs file.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tmpfs(Rc<RefCell<TmpfsFile>>);

#[derive(Debug, Default)]
struct TmpfsFile {
    /// Its bytes, while no process maps it.
    bytes: Option<Vec<u8>>,
    /// Holes punched while a process maps it: its next change shows them.
    holes: Vec<Range<usize>>,
}

impl Tmpfs {
    /// Maps the existing or new zeroed memory, for a process whose death `death_counter` decides.
    pub(crate) fn map(&self, bytes: u64, death_counter: DeathCounter) -> LiveMemory {
        let found = self.0.borrow_mut().bytes.take();
        let bytes = found.unwrap_or_else(|| vec![0; usize::try_from(bytes).expect("a map fits")]);
        LiveMemory { bytes, home: self.clone(), death_counter }
    }

    pub(crate) fn has_map(&self) -> bool {
        self.0.borrow().bytes.is_some()
    }

    /// Returns a copy of its bytes.
    pub(crate) fn bytes(&self) -> Option<Vec<u8>> {
        self.0.borrow().bytes.clone()
    }

    /// Makes a hole of `length` bytes at `offset`, also in a process's mapping.
    pub(crate) fn punch(&self, (offset, length): (u64, u64)) {
        let start = usize::try_from(offset).expect("a map fits");
        let hole = start..start + usize::try_from(length).expect("a map fits");
        let file = &mut *self.0.borrow_mut();
        match &mut file.bytes {
            Some(bytes) => bytes[hole].fill(0),
            None => file.holes.push(hole),
        }
    }

    /// Removes the file. No process maps it.
    pub(crate) fn remove(&self) {
        self.0.borrow_mut().bytes = None;
    }
}

/// The mapping of one process.
pub(crate) struct LiveMemory {
    bytes: Vec<u8>,
    home: Tmpfs,
    death_counter: DeathCounter,
}

impl LiveMemory {
    /// Maps `bytes` of the file, which is extended to that length if it is shorter.
    pub(crate) fn extend_to(&mut self, bytes: u64) {
        let bytes = usize::try_from(bytes).expect("a map fits");
        self.bytes.resize(bytes.max(self.bytes.len()), 0);
    }

    fn show_holes(&mut self) {
        for hole in self.home.0.borrow_mut().holes.drain(..) {
            self.bytes[hole].fill(0);
        }
    }
}

impl AsRef<[u8]> for LiveMemory {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsMut<[u8]> for LiveMemory {
    fn as_mut(&mut self) -> &mut [u8] {
        self.death_counter.count_change();
        self.show_holes();
        &mut self.bytes
    }
}

impl Drop for LiveMemory {
    fn drop(&mut self) {
        self.show_holes();
        self.home.0.borrow_mut().bytes = Some(std::mem::take(&mut self.bytes));
    }
}
