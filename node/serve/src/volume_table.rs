//! The volumes of a ring thread, by key.
//!
//! Invariants: a key names one stay of one volume. A late message or completion for a released volume finds
//! nothing, even if another volume has its index.

use super::operation::VolumeKey;

pub(super) struct VolumeTable<V> {
    places: Vec<Option<(u32, V)>>,
    next_serial: u32,
}

impl<V> VolumeTable<V> {
    pub(super) const fn new() -> Self {
        Self { places: Vec::new(), next_serial: 0 }
    }

    /// Inserts the volume that `make` creates from its key.
    pub(super) fn insert(&mut self, make: impl FnOnce(VolumeKey) -> V) -> VolumeKey {
        let free = self.places.iter().position(Option::is_none).unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        let index = u16::try_from(free).expect("the table of fixed files is full long before");
        let key = VolumeKey { index, serial: self.next_serial };
        self.next_serial = (self.next_serial + 1) & VolumeKey::SERIAL;
        self.places[free] = Some((key.serial, make(key)));
        key
    }

    #[inline]
    pub(super) fn get_mut(&mut self, key: VolumeKey) -> Option<&mut V> {
        let (serial, volume) = self.places.get_mut(usize::from(key.index))?.as_mut()?;
        (*serial == key.serial).then_some(volume)
    }

    /// Removes a volume if `may` returns true.
    pub(super) fn remove_if(&mut self, key: VolumeKey, may: impl FnOnce(&V) -> bool) -> Option<V> {
        let place = self.places.get_mut(usize::from(key.index))?;
        let taken = place.take_if(|(serial, volume)| *serial == key.serial && may(volume));
        taken.map(|(_, volume)| volume)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &V> {
        self.places.iter().flatten().map(|(_, volume)| volume)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.places.iter_mut().flatten().map(|(_, volume)| volume)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use holdfast_ring::RingOptions;

    use super::super::operation::{FileOperation, InFlight, VolumeRing};
    use super::*;

    /// A completion named only a place in the table: a late one would reach the next volume there.
    #[test]
    fn a_late_completion_reaches_no_other_volume() {
        let options = RingOptions { submission_entries: 8, completion_entries: 8, files: 8, buffers: 0 };
        let mut ring = VolumeRing::new(&options).unwrap();
        let mut volumes = VolumeTable::new();
        let first = volumes.insert(|_| "first");
        ring.no_operation(InFlight::File { volume: first, operation: FileOperation::NextTurn });
        assert_eq!(volumes.remove_if(first, |_| true), Some("first"));
        let second = volumes.insert(|_| "second");
        assert_eq!(second.index, first.index, "the place is used again");
        let mut completions = Vec::new();
        ring.submit_and_wait(Some(Duration::from_secs(20)), &mut completions).unwrap();
        let ended = ring.end(completions[0]).unwrap();
        let InFlight::File { volume, operation: FileOperation::NextTurn } = ended.operation else {
            panic!("{:?}", ended.operation)
        };
        assert_eq!(volume, first);
        assert_eq!(volumes.get_mut(volume), None);
        assert_eq!(volumes.remove_if(volume, |_| true), None);
        assert_eq!(volumes.get_mut(second), Some(&mut "second"));
    }
}
