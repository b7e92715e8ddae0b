//! Frames of stored segments, each unpacked once.
//!
//! A run reads the same frames again and again: for each snapshot, after each commit. Unpacking and its
//! checksum would be half of the run's time.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Bytes;
use holdfast_engine::segment::{Frame, unpack};
use holdfast_types::SegmentId;

/// Frames unpacked so far. A frame whose segment was replaced is unpacked again.
#[derive(Clone, Default)]
pub(super) struct UnpackedFrames(RefCell<BTreeMap<(SegmentId, u64), Unpacked>>);

#[derive(Clone)]
struct Unpacked {
    /// The object that it was unpacked from.
    object: Bytes,
    content: Rc<[u8]>,
}

impl UnpackedFrames {
    /// Content of a frame of `segment`, whose object is `object`.
    ///
    /// # Panics
    /// If the frame is damaged.
    pub(super) fn unpack(&self, segment: SegmentId, frame: &Frame, object: &Bytes) -> Rc<[u8]> {
        let mut known = self.0.borrow_mut();
        let there =
            known.get(&(segment, frame.offset)).filter(|known| known.object.as_ptr() == object.as_ptr());
        if let Some(unpacked) = there {
            return Rc::clone(&unpacked.content);
        }
        let stored = &object[frame.offset as usize..][..frame.stored as usize];
        let content: Rc<[u8]> = unpack(frame, stored).expect("segments are not damaged").into();
        let unpacked = Unpacked { object: object.clone(), content: Rc::clone(&content) };
        known.insert((segment, frame.offset), unpacked);
        content
    }
}
