//! An attach, step by step, with a death after each.

use holdfast_engine::action::MapWrite;
use holdfast_engine::attach::{AttachRefused, Claim, LocalData, plan_attach};
use holdfast_engine::durable_map::{
    FoundPage, Header, header_offset, holds_dirty, newest_pages, page_offset,
};
use holdfast_engine::event::CreateAnswer;
use holdfast_engine::limit::REMEMBERED_NONCES;
use holdfast_engine::manifest::Manifest;
use holdfast_engine::record::{Body, Record};
use holdfast_engine::sector_map::{PAGE_SECTORS, Side, map_bytes};
use holdfast_engine::volume::{Setup, Volume};
use holdfast_types::{Epoch, Nonce, Seq};

use super::{Attach, AttachStep, DEPTH, World};
use crate::device::Device;
use crate::invariant::Invariant;

impl World {
    /// Attaches the volume at `host`. With `dies`, the process or the whole host dies after that step.
    pub fn attach(&mut self, host: usize, take_over: bool, dies: Option<AttachStep>) -> Attach {
        loop {
            let here = &mut self.hosts[host];
            assert!(here.process.is_none() && !here.tmpfs.holds_a_map(), "attached already");
            // What a dead process wrote and did not sync is no ground to write the other slot on.
            here.disk.map.sync(here.disk.map.mark());
            let found = match Header::newest(&here.disk.map.read(0, 2 * 4096)) {
                Ok(found) => found,
                Err(error) => Invariant::SyncedIsWhole.broken(&error.to_string()),
            };
            let manifest = self.store.manifest();
            let claim = Claim {
                node: host.to_string(),
                nonce: Nonce(self.rng.bytes()),
                unix_ms: self.now,
                grow_to: None,
                take_over,
            };
            let plan = match plan_attach(&manifest, found.as_ref().map(|(_, header)| header), &claim) {
                Ok(plan) => plan,
                Err(AttachRefused::AttachedElsewhere { .. }) => {
                    assert_ne!(self.last_writer, Some(host));
                    return Attach::Refused;
                }
                Err(refused) => panic!("{refused}"),
            };
            let mut pages = Vec::new();
            if let Some((_, header)) = &found {
                let count = header.sectors.div_ceil(PAGE_SECTORS);
                let pairs: Vec<_> =
                    (0..count).map(|page| (page, here.disk.map.read(page_offset(page, 0), 8192))).collect();
                pages = match newest_pages(header, &pairs) {
                    Ok(pages) => pages,
                    Err(damaged) => Invariant::SyncedIsWhole.broken(&damaged.to_string()),
                };
            }
            let mut generation = found.as_ref().map_or(0, |(generation, _)| *generation);
            if plan.local == LocalData::Foreign {
                Invariant::FencedIsKept
                    .check(self.last_writer != Some(host), || "own data is called foreign".into());
                self.set_aside += u32::from(holds_dirty(&pages));
                here.disk = Default::default();
                pages.clear();
                generation = 0;
            }
            generation += 1;
            let keeps = self.last_writer == Some(host) && plan.local != LocalData::Absent;
            if !keeps && matches!(plan.local, LocalData::Ours { .. }) {
                // An attach was intended here and never won: there is nothing yet.
                Invariant::FencedIsKept
                    .check(!holds_dirty(&pages), || "dirty data of nobody's is called own".into());
            }
            self.claims.push((claim.nonce, host, keeps));

            let slot = u8::from(generation % 2 == 1);
            let write = MapWrite { offset: header_offset(slot), bytes: plan.header.encode(generation) };
            here.disk.map.write(&write, || true);
            if dies == Some(AttachStep::HeaderWritten) {
                return Attach::Died;
            }
            here.disk.map.sync(here.disk.map.mark());
            if dies == Some(AttachStep::HeaderSynced) {
                return Attach::Died;
            }
            self.trace.befalls(host, 67, "attaches");
            let won = self.create_attach(&plan.record);
            self.take_note();
            if dies == Some(AttachStep::RecordSent) {
                return Attach::Died;
            }
            if !won {
                continue;
            }
            let trust_clean = plan.local == LocalData::Ours { trust_clean: true };
            let mut header = plan.header;
            header.epoch = plan.record.epoch;
            return self.serve(host, header, generation, &pages, trust_clean);
        }
    }

    /// Each host attached this volume so often, without writing, that its header is longer than one 512-byte unit.
    pub fn age_headers(&mut self) {
        for host in &mut self.hosts {
            let header = Header {
                volume: self.store.manifest().volume().clone(),
                sectors: self.sectors,
                epoch: Epoch(0),
                nonces: (0..REMEMBERED_NONCES).map(|_| Nonce(self.rng.bytes())).collect(),
                active: Side::A,
                closed_clean: false,
                seq: Seq(0),
                synced_generation: 0,
            };
            let write = MapWrite { offset: header_offset(1), bytes: header.encode(1) };
            host.disk.map.write(&write, || true);
            host.disk.map.sync(host.disk.map.mark());
        }
    }

    /// Fills the log with records of writers that came and went.
    pub fn age_log(&mut self, records: u64) {
        for count in 0..records {
            let manifest = self.store.manifest();
            let (epoch, body) = if manifest.is_attached() {
                (manifest.epoch(), Body::Detach)
            } else {
                (manifest.epoch().next(), Body::Attach { sectors: self.sectors, node: String::new() })
            };
            let nonce =
                manifest.writer().filter(|_| manifest.is_attached()).unwrap_or(Nonce([count as u8; 16]));
            let volume = manifest.volume().clone();
            let record = Record { volume, seq: manifest.seq().next(), epoch, nonce, unix_ms: 0, body };
            assert!(self.store.create(record.seq, &record.encode()));
        }
        self.store.landed.clear();
    }

    /// Creates the attach record; whether this writer's is the one that stands there.
    fn create_attach(&mut self, record: &Record) -> bool {
        let bytes = record.encode();
        if self.rng.once_in(4) {
            self.land_late();
        }
        loop {
            if self.create(record.seq, &bytes) == CreateAnswer::Created {
                return true;
            }
            match self.store.record(record.seq) {
                Some(there) => {
                    return Record::decode(&there).expect("nobody damages records").nonce == record.nonce;
                }
                None => continue,
            }
        }
    }

    fn serve(
        &mut self,
        host: usize,
        header: Header,
        header_generation: u64,
        pages: &[FoundPage],
        trust_clean: bool,
    ) -> Attach {
        let manifest: Manifest = self.store.manifest();
        let now = self.now;
        let limits = self.limits;
        let here = &mut self.hosts[host];
        let durability = self.durability;
        let setup =
            Setup { requests: DEPTH, limits, durability, header, header_generation, unix_ms_at_zero: 0 };
        let memory = here.tmpfs.map(map_bytes(self.sectors), here.killed_after.clone());
        let mut out = Vec::new();
        here.sealed = None;
        let volume = here.run(|_| Volume::attach(setup, memory, manifest, pages, trust_clean, now, &mut out));
        here.device = Some(Device::new(DEPTH));
        match volume {
            Some(volume) => {
                here.begin(volume, out, false, &mut self.trace);
                Attach::Won
            }
            None => Attach::Died,
        }
    }
}
