//! Objects that the volumes of a store need, both their own and each other's.
//!
//! The segments of all readable volumes number in the millions, one per seal. An id is therefore stored as a
//! [`IdFingerprint`]: about 27 bytes per needed segment during a sweep, and 8 bytes per segment named by a
//! merged run until the next sweep. Two ids with the same fingerprint keep each other's object: a sweep may
//! miss garbage, but never deletes a needed object.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::mem;
use std::sync::Arc;

use holdfast_format::index::{Run, RunHead, RunRef};
use holdfast_format::manifest::Manifest;
use holdfast_format::record::{Body, Record};
use holdfast_format::safeguard::{
    Safeguard::{ForksKeepObjects, SweepKeepsSnapshots},
    safeguard,
};
use holdfast_format::snapshot::Snapshot;
use holdfast_objects::{ObjectStore, StoreError};
use holdfast_types::key::ObjectKey;
use holdfast_types::{Lineage, PlacedId, RunId, SegmentId, Seq, SnapshotName, VolumeId};

use super::{Skipped, SweptVolume};
use crate::error::{LogFailure, or_damage, store};
use crate::read::read_record;
use crate::snapshot::read_snapshot;

/// Immutable objects read by earlier sweeps: heads of merged runs, and roots of snapshots. Only those needed
/// by the last sweep are kept.
#[derive(Debug, Default)]
pub(super) struct Heads {
    /// The segments named by a run, by the run's key.
    runs: BTreeMap<String, Arc<[NamedSegments]>>,
    /// By volume and snapshot: in a restored bucket, another root may take the key.
    roots: HashMap<(VolumeId, Snapshot), Arc<Names>>,
}

/// 64 bits of an id, independent of its number of forks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct IdFingerprint(u64);

impl IdFingerprint {
    fn of(id: PlacedId) -> Self {
        let mut hasher = DefaultHasher::new();
        PlacedId { owner: 0, ..id }.hash(&mut hasher);
        Self(hasher.finish())
    }
}

/// Segments of one owner that a run names.
#[derive(Debug)]
struct NamedSegments {
    /// Number of forks between the run's owner and the segments' owner.
    forks: u8,
    segments: Box<[IdFingerprint]>,
}

impl NamedSegments {
    fn all(segments: impl Iterator<Item = SegmentId>) -> Arc<[Self]> {
        let mut by_owner = BTreeMap::<u8, Vec<IdFingerprint>>::new();
        for segment in segments {
            by_owner.entry(segment.0.owner).or_default().push(IdFingerprint::of(segment.0));
        }
        by_owner.into_iter().map(|(forks, segments)| Self { forks, segments: segments.into() }).collect()
    }
}

/// The objects that a manifest names, without the rest of it: a root also lists all older snapshots.
#[derive(Debug)]
struct Names {
    lineage: Arc<Lineage>,
    /// The segments that the manifest itself names.
    segments: Arc<[NamedSegments]>,
    /// Its merged runs, whose heads name further segments.
    runs: Box<[Arc<RunRef>]>,
}

impl Names {
    /// Returns the objects named by `manifest`. `lineage` is that of its volume, which they share in memory.
    fn of(manifest: &Manifest, lineage: &Arc<Lineage>) -> Self {
        let shared = (**lineage == *manifest.lineage()).then(|| Arc::clone(lineage));
        let (mut segments, mut runs) = (Vec::new(), Vec::new());
        for run in manifest.runs().iter() {
            match run {
                Run::Segment(segment) => segments.push(segment.id),
                Run::Merged(run) => runs.push(Arc::clone(run)),
            }
        }
        Self {
            lineage: shared.unwrap_or_else(|| Arc::new(manifest.lineage().clone())),
            segments: NamedSegments::all(segments.into_iter()),
            runs: runs.into(),
        }
    }
}

/// Needed objects of one volume.
#[derive(Debug, Default)]
struct Own {
    segments: HashMap<IdFingerprint, ObjectHolder>,
    runs: HashMap<IdFingerprint, ObjectHolder>,
}

/// Volumes and snapshots that need an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ObjectHolder {
    /// Only this snapshot: its index in [`Needed::snapshots`].
    Snapshot(u32),
    /// One or more volumes, or several snapshots.
    Others,
}

/// All needed objects.
#[derive(Debug, Default)]
pub(crate) struct Needed {
    by_owner: BTreeMap<VolumeId, Own>,
    /// The snapshots that count, ascending.
    pub(super) snapshots: Vec<SnapshotName>,
    /// Volumes whose objects must all be kept: unreadable volumes may read them.
    kept_whole: BTreeSet<VolumeId>,
    /// True if the ancestors of an unreadable volume are unknown.
    any_may_be_read: bool,
}

impl Needed {
    /// Collects everything that `known` and `skipped` need. Adds volumes with unreadable runs to `skipped`.
    pub(super) async fn of(
        objects: &dyn ObjectStore,
        heads: &mut Heads,
        known: &BTreeMap<VolumeId, SweptVolume>,
        skipped: &mut Vec<Skipped>,
    ) -> Result<Self, LogFailure> {
        let mut needed = Self::default();
        for Skipped { volume, .. } in &*skipped {
            needed.keep_all_behind(objects, volume).await?;
        }
        let mut reader = HeadReader { before: mem::take(heads), now: Heads::default() };
        let read = needed.add_volumes(objects, &mut reader, known, skipped).await;
        *heads = reader.end(read.is_ok());
        read.map(|()| needed)
    }

    /// Collects the objects that the volume of `manifest` alone needs, as far as its runs can be read.
    pub(crate) async fn of_one(objects: &dyn ObjectStore, manifest: &Manifest) -> Result<Self, LogFailure> {
        let mut needed = Self::default();
        let mut reader = HeadReader { before: Heads::default(), now: Heads::default() };
        let names = Names::of(manifest, &Arc::new(manifest.lineage().clone()));
        needed.add_segments(&names, ObjectHolder::Others);
        for run in &names.runs {
            let (Ok(()) | Err(_)) =
                or_damage(needed.add_run(objects, &mut reader, &names.lineage, run, ObjectHolder::Others))
                    .await?;
        }
        Ok(needed)
    }

    /// Returns true if the object with this key is needed.
    pub(crate) fn has(&self, key: &str) -> bool {
        match ObjectKey::parse(key) {
            Some(ObjectKey::Segment(owner, id)) => self.has_segment(&owner, id),
            Some(ObjectKey::Run(owner, id)) => self.has_run(&owner, id),
            Some(
                ObjectKey::Log(..)
                | ObjectKey::Checkpoint(..)
                | ObjectKey::TruncationMarker(..)
                | ObjectKey::Snapshot(..)
                | ObjectKey::Forgotten(..)
                | ObjectKey::Origin(..)
                | ObjectKey::PrefetchList(..),
            )
            | None => true,
        }
    }

    async fn add_volumes(
        &mut self,
        objects: &dyn ObjectStore,
        reader: &mut HeadReader,
        known: &BTreeMap<VolumeId, SweptVolume>,
        skipped: &mut Vec<Skipped>,
    ) -> Result<(), LogFailure> {
        for (volume, known) in known {
            if let Err(error) = or_damage(self.add_volume(objects, reader, known)).await? {
                self.keep(known.manifest.lineage());
                skipped.push(Skipped { volume: volume.clone(), error });
            }
        }
        Ok(())
    }

    /// Returns true if all objects of the volume must be kept.
    pub(super) fn is_kept_whole(&self, volume: &VolumeId, known: &SweptVolume) -> bool {
        let may_have_forks = known.manifest.is_deleted() || known.manifest.had_snapshots();
        self.kept_whole.contains(volume) || (self.any_may_be_read && may_have_forks)
    }

    pub(super) fn has_segment(&self, owner: &VolumeId, id: SegmentId) -> bool {
        self.by_owner.get(owner).is_some_and(|own| own.segments.contains_key(&IdFingerprint::of(id.0)))
    }

    pub(super) fn has_run(&self, owner: &VolumeId, id: RunId) -> bool {
        self.by_owner.get(owner).is_some_and(|own| own.runs.contains_key(&IdFingerprint::of(id.0)))
    }

    /// Returns the index of the only snapshot that needs the object with this key.
    pub(super) fn only_snapshot(&self, key: &ObjectKey) -> Option<usize> {
        let held = match key {
            ObjectKey::Segment(owner, id) => self.by_owner.get(owner)?.segments.get(&IdFingerprint::of(id.0)),
            ObjectKey::Run(owner, id) => self.by_owner.get(owner)?.runs.get(&IdFingerprint::of(id.0)),
            ObjectKey::Snapshot(volume, seq) => {
                let name = SnapshotName { volume: volume.clone(), seq: *seq };
                return self.snapshots.binary_search(&name).ok();
            }
            ObjectKey::Log(..)
            | ObjectKey::Checkpoint(..)
            | ObjectKey::TruncationMarker(..)
            | ObjectKey::Forgotten(..)
            | ObjectKey::Origin(..)
            | ObjectKey::PrefetchList(..) => None,
        };
        match held? {
            ObjectHolder::Snapshot(number) => Some(*number as usize),
            ObjectHolder::Others => None,
        }
    }

    async fn add_volume(
        &mut self,
        objects: &dyn ObjectStore,
        reader: &mut HeadReader,
        known: &SweptVolume,
    ) -> Result<(), LogFailure> {
        let lineage = Arc::new(known.manifest.lineage().clone());
        self.add(objects, reader, &Names::of(&known.manifest, &lineage), ObjectHolder::Others).await?;
        for snapshot in known.manifest.snapshots() {
            if !known.forgotten.contains(&snapshot.seq) && safeguard(SweepKeepsSnapshots) {
                let root = reader.root(objects, &lineage, *snapshot).await?;
                let (volume, seq) = (known.manifest.volume().clone(), snapshot.seq);
                let holder =
                    u32::try_from(self.snapshots.len()).map_or(ObjectHolder::Others, ObjectHolder::Snapshot);
                self.snapshots.push(SnapshotName { volume, seq });
                self.add(objects, reader, &root, holder).await?;
            }
        }
        for seq in &known.held {
            match read_snapshot(objects, known.manifest.volume(), *seq).await {
                Ok(root) => {
                    self.add(objects, reader, &Names::of(&root, &lineage), ObjectHolder::Others).await?;
                }
                // A concurrent sweep deleted it first.
                Err(LogFailure::Store { source: StoreError::NotFound { .. }, .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Adds everything that `names` contains, and the segments that its runs name.
    async fn add(
        &mut self,
        objects: &dyn ObjectStore,
        reader: &mut HeadReader,
        names: &Names,
        holder: ObjectHolder,
    ) -> Result<(), LogFailure> {
        self.add_segments(names, holder);
        for run in &names.runs {
            self.add_run(objects, reader, &names.lineage, run, holder).await?;
        }
        Ok(())
    }

    fn add_segments(&mut self, names: &Names, holder: ObjectHolder) {
        for NamedSegments { forks, segments } in &*names.segments {
            self.insert(&names.lineage, *forks, segments, holder, |own| &mut own.segments);
        }
    }

    async fn add_run(
        &mut self,
        objects: &dyn ObjectStore,
        reader: &mut HeadReader,
        lineage: &Lineage,
        run: &RunRef,
        holder: ObjectHolder,
    ) -> Result<(), LogFailure> {
        let forks = run.id.0.owner;
        self.insert(lineage, forks, &[IdFingerprint::of(run.id.0)], holder, |own| &mut own.runs);
        for named in &*reader.segments(objects, lineage, run).await? {
            let forks = forks.saturating_add(named.forks);
            self.insert(lineage, forks, &named.segments, holder, |own| &mut own.segments);
        }
        Ok(())
    }

    fn insert(
        &mut self,
        lineage: &Lineage,
        forks: u8,
        ids: &[IdFingerprint],
        holder: ObjectHolder,
        kind: impl Fn(&mut Own) -> &mut HashMap<IdFingerprint, ObjectHolder>,
    ) {
        if forks > 0 && !safeguard(ForksKeepObjects) {
            return;
        }
        let known = kind(self.by_owner.entry(lineage.owner(forks).clone()).or_default());
        for id in ids {
            let known = known.entry(*id).or_insert(holder);
            if *known != holder {
                *known = ObjectHolder::Others;
            }
        }
    }

    fn keep(&mut self, lineage: &Lineage) {
        self.kept_whole.insert(lineage.volume().clone());
        self.kept_whole.extend(lineage.ancestors().iter().cloned());
    }

    /// Keeps everything that a volume with an unreadable log may read.
    async fn keep_all_behind(
        &mut self,
        objects: &dyn ObjectStore,
        volume: &VolumeId,
    ) -> Result<(), LogFailure> {
        match or_damage(read_record(objects, volume, Seq::FIRST)).await? {
            Ok(Record { volume: named, body: Body::Create { source, .. }, .. }) if named == *volume => {
                self.kept_whole.extend(source.iter().flat_map(|fork| fork.ancestors()).cloned());
            }
            // Only the volume's first record names its ancestors.
            Ok(_) | Err(_) => self.any_may_be_read = true,
        }
        Ok(())
    }
}

/// Reads heads and roots that are not in the memory yet.
struct HeadReader {
    before: Heads,
    now: Heads,
}

impl HeadReader {
    /// Returns the state for the next sweep. A failed sweep has not reached all needed heads and roots.
    fn end(self, is_complete: bool) -> Heads {
        let Self { before, now: mut heads } = self;
        if !is_complete {
            heads.runs.extend(before.runs);
            heads.roots.extend(before.roots);
        }
        heads
    }

    /// Returns the segments that `run` names.
    async fn segments(
        &mut self,
        objects: &dyn ObjectStore,
        lineage: &Lineage,
        run: &RunRef,
    ) -> Result<Arc<[NamedSegments]>, LogFailure> {
        let key = lineage.run_key(run.id);
        if let Some(read) = self.now.runs.get(&key) {
            return Ok(Arc::clone(read));
        }
        let segments = match self.before.runs.remove(&key) {
            Some(read) => read,
            None => {
                let bytes = objects.get_range(&key, run.head_range()).await;
                let bytes = bytes.map_err(store("read an index run", lineage.volume()))?;
                let damaged = |source| LogFailure::Damaged { key: key.clone(), source };
                let own = RunRef { id: RunId(PlacedId { owner: 0, ..run.id.0 }), ..run.clone() };
                let head = RunHead::decode(&own, &bytes).map_err(damaged)?;
                NamedSegments::all(head.segments().iter().map(|segment| segment.id))
            }
        };
        self.now.runs.insert(key, Arc::clone(&segments));
        Ok(segments)
    }

    /// Returns what a snapshot of the volume with this lineage names.
    async fn root(
        &mut self,
        objects: &dyn ObjectStore,
        lineage: &Arc<Lineage>,
        snapshot: Snapshot,
    ) -> Result<Arc<Names>, LogFailure> {
        let volume = lineage.volume();
        let name = (volume.clone(), snapshot);
        let root = match self.before.roots.remove(&name) {
            Some(read) => read,
            None => Arc::new(Names::of(&read_snapshot(objects, volume, snapshot.seq).await?, lineage)),
        };
        self.now.roots.insert(name, Arc::clone(&root));
        Ok(root)
    }
}

#[cfg(test)]
mod tests {
    use holdfast_types::Place;

    use super::*;

    /// Regression: the operator of a bucket with millions of segments exceeded its memory limit.
    #[test]
    fn a_needed_segment_takes_little_memory() {
        assert_eq!(size_of::<(IdFingerprint, ObjectHolder)>(), 16, "an entry of the map");
        assert_eq!(size_of::<IdFingerprint>(), 8, "what is remembered");
        assert_eq!(size_of::<Names>(), 40, "what is remembered of a root, besides those");
    }

    #[test]
    fn a_fingerprint_is_of_the_place_and_the_ulid() {
        let id = |seq, unix_ms, random| SegmentId::new(Place::until(Seq(seq)), unix_ms, [random; 10]);
        let ids = [id(1, 7, 9), id(2, 7, 9), id(1, 8, 9), id(1, 7, 8)];
        for (number, one) in ids.iter().enumerate() {
            for other in &ids[number + 1..] {
                assert_ne!(IdFingerprint::of(one.0), IdFingerprint::of(other.0), "{one:?} {other:?}");
            }
            let of_a_fork = PlacedId { owner: 3, ..one.0 };
            assert_eq!(IdFingerprint::of(of_a_fork), IdFingerprint::of(one.0));
        }
    }

    #[test]
    fn segments_of_a_run_are_kept_by_owner() {
        let id = |owner, seq| {
            SegmentId(PlacedId { owner, ..SegmentId::new(Place::until(Seq(seq)), 7, [9; 10]).0 })
        };
        let named = NamedSegments::all([id(0, 1), id(2, 5), id(0, 3)].into_iter());
        let found: Vec<(u8, Vec<IdFingerprint>)> =
            named.iter().map(|named| (named.forks, named.segments.to_vec())).collect();
        let of = |owner, seq| IdFingerprint::of(id(owner, seq).0);
        assert_eq!(found, [(0, vec![of(0, 1), of(0, 3)]), (2, vec![of(2, 5)])]);
    }
}
