//! The durable form of the map, beside the sides: a header and the map's pages, each in two slots written in turn.
//!
//! ```text
//! 0      4096  header slot 0        4096   4096  header slot 1
//! 8192 + 8192 * page       4096     slot 0 of the page
//! 8192 + 8192 * page + 4096         slot 1 of the page
//! ```
//! A slot is an envelope (see `wire`), zero to its end. A page's payload: `u64 page, u64 generation, u64 synced
//! generation, 2048 bytes`.
//! The header's payload: `u64 generation, u8 length + text volume id, u64 sectors, u64 epoch, u8 active side,
//! u8 flags (1 closed clean, 2 A void, 4 B void), u64 seq, u64 synced generation, u32 n, n x u8[16] nonce`.
//!
//! Whoever attaches syncs the file before reading it: a slot that a dead process wrote and never synced must not be the
//! reason to write over the other one.
//!
//! Invariant 13 (`docs/invariants.md`): recovery takes the newer valid slot. A slot that does not decode is either torn (a power cut interrupted its write) or
//! decayed, and only the first is harmless. They are told apart by the *synced generation*: every page and the header say
//! up to which generation all writes had been synced when they were written. A bad slot of a synced generation is decay.
//! The header is written behind every round that writes pages for the first time, so that even those are vouched for.

use holdfast_types::{Chunk, Epoch, Nonce, SectorRange, Seq, VolumeId};

use crate::limit::{MAX_SECTORS, REMEMBERED_NONCES};
use crate::sector_map::{
    LiveMapError, Nibble, PAGE_BYTES, PAGE_SECTORS, SectorMap, Side, SideSet, chunk_pages,
};
use crate::wire::{self, DecodeError, ENVELOPE_BYTES, Kind, Reader};

/// Bytes of one slot.
pub const SLOT_BYTES: usize = 4096;
const HEADER: &str = "durable map header";
const PAGE: &str = "durable map page";
/// Where a page's generation lies in its slot.
const GENERATION_AT: usize = ENVELOPE_BYTES + 8;

/// What a volume's local state says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The volume.
    pub volume: VolumeId,
    /// Its size when the map was made.
    pub sectors: u64,
    /// The local data is the volume's as of this epoch.
    pub epoch: Epoch,
    /// The nonces of this node's attaches from that epoch on, newest last; some of them never came into the log.
    pub nonces: Vec<Nonce>,
    /// The side that takes writes.
    pub active: Side,
    /// The writer detached after its last round: clean data may be trusted if the log still ends at `seq`.
    pub closed_clean: bool,
    /// What these sides hold counts no more, whatever the pages say: a commit said so (`Body::Commit`), and no round has
    /// written the pages since.
    pub void: SideSet,
    /// The log position the local data belongs to.
    pub seq: Seq,
    /// Every page written for the first time up to this generation was synced.
    pub synced_generation: u64,
}

impl Header {
    /// Remembers the nonce of an attach before its record is sent. Returns the one that the record must carry: where there
    /// is no room, the newest of those remembered, because each of their records may still come into the log, and data
    /// must not be taken for foreign then.
    pub fn intend(&mut self, nonce: Nonce) -> Nonce {
        self.closed_clean = false;
        match self.nonces.last() {
            Some(newest) if self.nonces.len() >= REMEMBERED_NONCES => *newest,
            Some(_) | None => {
                self.nonces.push(nonce);
                nonce
            }
        }
    }

    /// The local data was found to be the volume's as of `epoch`, attached as `writer`. Records of attaches intended before
    /// cannot come into the log any more: theirs was the place of an older record, or of that epoch's.
    pub fn is_ours_as_of(&mut self, epoch: Epoch, writer: Option<Nonce>) {
        if epoch > self.epoch {
            self.epoch = epoch;
            self.nonces.retain(|nonce| Some(*nonce) == writer);
        }
    }

    /// The slot to write as `generation`.
    pub fn encode(&self, generation: u64) -> Vec<u8> {
        let mut out = generation.to_le_bytes().to_vec();
        wire::put_text(&mut out, self.volume.as_str());
        out.extend_from_slice(&self.sectors.to_le_bytes());
        out.extend_from_slice(&self.epoch.0.to_le_bytes());
        out.push(self.active as u8);
        out.push(u8::from(self.closed_clean) | (self.void.bits() << 1));
        out.extend_from_slice(&self.seq.0.to_le_bytes());
        out.extend_from_slice(&self.synced_generation.to_le_bytes());
        out.extend_from_slice(
            &u32::try_from(self.nonces.len()).expect("REMEMBERED_NONCES fits").to_le_bytes(),
        );
        for nonce in &self.nonces {
            out.extend_from_slice(&nonce.0);
        }
        slot(Kind::MapHeader, &out)
    }

    fn decode(bytes: &[u8]) -> Result<(u64, Self), DecodeError> {
        let mut fields = Reader::new(HEADER, wire::open(Kind::MapHeader, HEADER, bytes)?);
        let generation = fields.u64()?;
        let name = fields.text()?;
        let volume =
            VolumeId::try_from(name).map_err(|bad| fields.bad("volume id length", bad.0.len() as u64))?;
        let sectors = fields.u64()?;
        if sectors > MAX_SECTORS {
            return Err(fields.bad("sectors", sectors));
        }
        let epoch = Epoch(fields.u64()?);
        let active = if fields.u8()? == 0 { Side::A } else { Side::B };
        let flags = fields.u8()?;
        let closed_clean = flags & 1 != 0;
        let void = SideSet::from_bits(flags >> 1).ok_or_else(|| fields.bad("flags", u64::from(flags)))?;
        let seq = Seq(fields.u64()?);
        let synced_generation = fields.u64()?;
        let mut nonces = Vec::new();
        for _ in 0..fields.count(16)? {
            nonces.push(Nonce(fields.array()?));
        }
        fields.end()?;
        Ok((
            generation,
            Self { volume, sectors, epoch, nonces, active, closed_clean, void, seq, synced_generation },
        ))
    }

    /// The newer valid header of the file's first 8192 bytes, with its generation; `None` when none was ever written.
    ///
    /// # Errors
    /// [`DecodeError`] when something was written there and neither slot is whole.
    pub fn newest(slots: &[u8]) -> Result<Option<(u64, Self)>, DecodeError> {
        let (first, second) = halves(HEADER, slots)?;
        match (Self::decode(first), Self::decode(second)) {
            (Ok(a), Ok(b)) => Ok(Some(if a.0 > b.0 { a } else { b })),
            (Ok(whole), Err(_)) | (Err(_), Ok(whole)) => Ok(Some(whole)),
            (Err(_), Err(_)) if is_blank(first) && is_blank(second) => Ok(None),
            (Err(error), Err(other)) => Err(if is_blank(first) { other } else { error }),
        }
    }
}

/// Where slot `slot` of the header lies.
pub const fn header_offset(slot: u8) -> u64 {
    slot as u64 * SLOT_BYTES as u64
}

/// Where slot `slot` of `page` lies.
pub const fn page_offset(page: u64, slot: u8) -> u64 {
    2 * SLOT_BYTES as u64 + (page * 2 + slot as u64) * SLOT_BYTES as u64
}

/// The bytes of the file for the pages of `chunk`: `(offset, length)`.
pub fn chunk_extent(sectors: u64, chunk: Chunk) -> (u64, u64) {
    let pages = chunk_pages(chunk);
    let end = pages.end.min(sectors.div_ceil(PAGE_SECTORS));
    (page_offset(pages.start, 0), page_offset(end, 0) - page_offset(pages.start, 0))
}

/// Length of the file for a map of `pages` pages.
pub const fn file_bytes(pages: u64) -> u64 {
    page_offset(pages, 0)
}

fn slot(kind: Kind, payload: &[u8]) -> Vec<u8> {
    let mut out = wire::enclose(kind, payload);
    assert!(out.len() <= SLOT_BYTES, "a slot holds the structure");
    out.resize(SLOT_BYTES, 0);
    out
}

fn halves<'a>(what: &'static str, pair: &'a [u8]) -> Result<(&'a [u8], &'a [u8]), DecodeError> {
    let short = DecodeError::Short { what, have: pair.len(), need: 2 * SLOT_BYTES };
    let (first, rest) = pair.split_at_checked(SLOT_BYTES).ok_or(short.clone())?;
    Ok((first, rest.get(..SLOT_BYTES).ok_or(short)?))
}

/// A power cut before the first 512 bytes were written leaves them zero.
fn is_blank(slot: &[u8]) -> bool {
    slot[..512].iter().all(|byte| *byte == 0)
}

/// The slot to write for `page` as `generation`, when everything up to `synced` was synced.
pub(crate) fn encode_page(page: u64, generation: u64, synced: u64, nibbles: &[u8]) -> Vec<u8> {
    let mut payload = Vec::with_capacity(24 + PAGE_BYTES);
    payload.extend_from_slice(&page.to_le_bytes());
    payload.extend_from_slice(&generation.to_le_bytes());
    payload.extend_from_slice(&synced.to_le_bytes());
    payload.extend_from_slice(nibbles);
    slot(Kind::MapPage, &payload)
}

/// A page as recovery finds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundPage {
    /// Its number.
    pub page: u64,
    pub(crate) slot: u8,
    pub(crate) generation: u64,
    synced: u64,
    pub(crate) nibbles: Vec<u8>,
}

impl FoundPage {
    /// Forgets what these sides hold.
    pub fn forget(&mut self, void: SideSet) {
        for byte in &mut self.nibbles {
            *byte = Nibble(*byte & 15).without(void).0 | (Nibble(*byte >> 4).without(void).0 << 4);
        }
    }

    /// The runs of sectors whose newest bytes were never committed and the side that holds them, lowest first: what the
    /// loss of the host leaves of the page.
    pub fn dirty_runs(&self) -> impl Iterator<Item = (SectorRange, Side)> {
        let first = self.page * PAGE_SECTORS;
        let side = |sector: u64| {
            let nibble = Nibble((self.nibbles[(sector / 2) as usize] >> ((sector % 2) * 4)) & 15);
            nibble.after_host_loss(false).newest()
        };
        let mut at = 0;
        std::iter::from_fn(move || {
            let (start, found) = (at..PAGE_SECTORS).find_map(|sector| Some((sector, side(sector)?)))?;
            at = (start..PAGE_SECTORS).find(|sector| side(*sector) != Some(found)).unwrap_or(PAGE_SECTORS);
            Some((SectorRange::new(first + start, at - start), found))
        })
    }
}

/// A page whose synced bytes are lost; no data of its 16 MiB of volume can be told clean from stale.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("durable map page {page} (its 16 MiB begin at sector {first}) is damaged", first = page * PAGE_SECTORS)]
pub struct DamagedPage {
    /// The page.
    pub page: u64,
    /// What is wrong with it.
    #[source]
    pub source: DecodeError,
}

/// The newest synced form of each page of the file, without what the header calls void.
///
/// `pages` are page numbers with the 8192 bytes of both slots; pages never written may be left out.
///
/// # Errors
/// [`DamagedPage`] when a slot that was synced does not decode.
pub fn newest_pages(header: &Header, pages: &[(u64, Vec<u8>)]) -> Result<Vec<FoundPage>, DamagedPage> {
    let mut synced = header.synced_generation;
    let mut decoded = Vec::with_capacity(pages.len());
    for (page, pair) in pages {
        let damaged = |source| DamagedPage { page: *page, source };
        let (first, second) = halves(PAGE, pair).map_err(damaged)?;
        let slots = [(first, decode_page(*page, 0, first)), (second, decode_page(*page, 1, second))];
        for (_, slot) in &slots {
            synced = synced.max(slot.as_ref().map_or(0, |found| found.synced));
        }
        decoded.push((*page, slots));
    }
    let mut newest = Vec::new();
    for (page, slots) in decoded {
        let [(first, one), (second, other)] = slots;
        let best = match (one, other) {
            (Ok(one), Ok(other)) => Some(if one.generation > other.generation { one } else { other }),
            (Ok(whole), Err(source)) | (Err(source), Ok(whole)) => {
                let bad = if whole.slot == 0 { second } else { first };
                // The older slot is the one that is overwritten: part of it may still be the older form.
                if !is_torn(bad, synced) && generation_of(bad) > whole.generation {
                    return Err(DamagedPage { page, source });
                }
                Some(whole)
            }
            (Err(_), Err(_)) if is_blank(first) && is_blank(second) => None,
            // Its first write was torn. It counts as found, empty, so that the next round writes over the torn slot:
            // a later one would take it for decay.
            (Err(_), Err(_)) if is_torn(first, synced) && is_torn(second, synced) => {
                let slot = u8::from(is_blank(second));
                Some(FoundPage { page, slot, generation: 0, synced: 0, nibbles: vec![0; PAGE_BYTES] })
            }
            (Err(source), Err(other)) => {
                let source = if is_torn(first, synced) { other } else { source };
                return Err(DamagedPage { page, source });
            }
        };
        newest.extend(best);
    }
    for page in &mut newest {
        page.forget(header.void);
    }
    Ok(newest)
}

/// The pages as a live map has them, for a host where the durable one could not be brought up to date.
///
/// # Errors
/// [`LiveMapError`] when `memory` is not the live map of the header's volume.
pub fn live_pages(header: &Header, memory: Vec<u8>) -> Result<Vec<FoundPage>, LiveMapError> {
    let map = SectorMap::open(memory, header.sectors, &header.volume)?;
    let page = |page| FoundPage { page, slot: 0, generation: 0, synced: 0, nibbles: map.page(page).to_vec() };
    Ok(map.prepared_pages().map(page).collect())
}

/// Whether any sector of the pages is dirty in the side that holds its newest bytes.
pub fn holds_dirty(pages: &[FoundPage]) -> bool {
    pages.iter().any(|page| page.dirty_runs().next().is_some())
}

/// Whether no completed round vouches for a slot that does not decode.
fn is_torn(slot: &[u8], synced: u64) -> bool {
    is_blank(slot) || generation_of(slot) > synced
}

/// What stands where a slot's generation does, whatever the rest of it is worth.
fn generation_of(slot: &[u8]) -> u64 {
    let mut raw = [0; 8];
    raw.copy_from_slice(&slot[GENERATION_AT..GENERATION_AT + 8]);
    u64::from_le_bytes(raw)
}

fn decode_page(page: u64, slot: u8, bytes: &[u8]) -> Result<FoundPage, DecodeError> {
    let mut fields = Reader::new(PAGE, wire::open(Kind::MapPage, PAGE, bytes)?);
    let number = fields.u64()?;
    if number != page {
        return Err(fields.bad("page number", number));
    }
    let generation = fields.u64()?;
    let synced = fields.u64()?;
    let nibbles = fields.take(PAGE_BYTES)?.to_vec();
    fields.end()?;
    Ok(FoundPage { page, slot, generation, synced, nibbles })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            volume: "v".parse().unwrap(),
            sectors: 10,
            epoch: Epoch(3),
            nonces: vec![Nonce([1; 16])],
            active: Side::B,
            closed_clean: true,
            void: SideSet::NONE,
            seq: Seq(4),
            synced_generation: 5,
        }
    }

    #[test]
    fn the_newer_valid_header_wins_and_a_torn_one_falls_back() {
        let mut newer = header();
        newer.intend(Nonce([2; 16]));
        let mut file = [header().encode(1), newer.encode(2)].concat();
        assert_eq!(Header::newest(&file), Ok(Some((2, newer))));
        file[SLOT_BYTES + 50] ^= 1;
        assert_eq!(Header::newest(&file), Ok(Some((1, header()))));
        file[50] ^= 1;
        assert_eq!(Header::newest(&file), Err(DecodeError::Checksum(HEADER)));
        assert_eq!(Header::newest(&[0; 2 * SLOT_BYTES]), Ok(None));
    }

    #[test]
    fn a_header_remembers_only_the_newest_nonces() {
        let mut long = header();
        for round in 0..200u8 {
            long.intend(Nonce([round; 16]));
        }
        assert_eq!(long.nonces.len(), REMEMBERED_NONCES);
        assert_eq!(long.nonces.last(), Some(&Nonce([199; 16])));
        assert_eq!(long.encode(1).len(), SLOT_BYTES);
    }

    #[test]
    fn a_page_tells_which_side_holds_what_was_never_committed() {
        let mut nibbles = vec![0; PAGE_BYTES];
        // Sectors 0 to 7: A dirty, A dirty, B dirty (and dirty in A too), B clean, remote, A clean but dirty in B, B dirty, -.
        nibbles[..4].copy_from_slice(&[0x55, 0x2e, 0x90, 0x0a]);
        nibbles[PAGE_BYTES - 1] = 0xa0;
        let page = FoundPage { page: 2, slot: 0, generation: 1, synced: 1, nibbles };
        let first = 2 * PAGE_SECTORS;
        assert_eq!(
            page.dirty_runs().collect::<Vec<_>>(),
            [
                (SectorRange::new(first, 2), Side::A),
                (SectorRange::new(first + 2, 1), Side::B),
                (SectorRange::new(first + 6, 1), Side::B),
                (SectorRange::new(first + PAGE_SECTORS - 1, 1), Side::B),
            ]
        );
    }

    #[test]
    fn decay_is_told_from_a_torn_write() {
        let blank = vec![0; SLOT_BYTES];
        let pair = |first: &[u8], second: &[u8]| [first, second].concat();
        let find = |pages: &[(u64, Vec<u8>)], synced_generation| {
            newest_pages(&Header { synced_generation, ..header() }, pages)
                .map(|found| found.iter().map(|page| (page.slot, page.generation)).collect::<Vec<_>>())
                .map_err(|damaged| damaged.page)
        };
        let first = encode_page(7, 4, 3, &[0x55; PAGE_BYTES]);
        let second = encode_page(7, 5, 4, &[0xaa; PAGE_BYTES]);
        let bent = |slot: &[u8]| {
            let mut bent = slot.to_vec();
            bent[1000] ^= 1;
            bent
        };
        assert_eq!(find(&[(7, pair(&first, &blank))], 4), Ok(vec![(0, 4)]));
        assert_eq!(find(&[(8, pair(&first, &blank))], 4), Err(8), "another page's slot");
        assert_eq!(find(&[(7, pair(&bent(&first), &blank))], 4), Err(7), "synced, then decayed");
        let torn_at_first = find(&[(7, pair(&bent(&first), &blank))], 3);
        assert_eq!(torn_at_first, Ok(vec![(1, 0)]), "an empty page, next written over the torn slot");
        assert_eq!(find(&[(7, pair(&blank, &blank))], 3), Ok(vec![]), "never written");
        assert_eq!(find(&[(7, pair(&first, &second))], 4), Ok(vec![(1, 5)]));
        assert_eq!(
            find(&[(7, pair(&first, &bent(&second)))], 4),
            Ok(vec![(0, 4)]),
            "the last round was torn"
        );
        // Generation 6 replaces generation 4 and only its last sectors get there.
        let sixth = encode_page(7, 6, 5, &[0x33; PAGE_BYTES]);
        let half = [&first[..512], &sixth[512..]].concat();
        assert_eq!(find(&[(7, pair(&half, &second))], 5), Ok(vec![(1, 5)]), "half of the older form is left");
        assert_eq!(find(&[(7, pair(&first, &bent(&second)))], 5), Err(7), "the newest form decayed");
        let later = encode_page(9, 6, 5, &[0; PAGE_BYTES]);
        let pages = [(7, pair(&first, &bent(&second))), (9, pair(&later, &blank))];
        assert_eq!(
            find(&pages, 4),
            Err(7),
            "a later round vouches for the lost one: the older slot is stale"
        );
    }
}
