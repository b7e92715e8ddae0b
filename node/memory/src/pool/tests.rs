use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

/// Returns the number of slabs that become free if the sparse ones of each class are merged.
fn mergeable(used: &[PageSlot]) -> u32 {
    let mut slabs: BTreeMap<(u8, u32), usize> = BTreeMap::new();
    for slot in used {
        *slabs.entry((slot.class(), slot.slab().unwrap())).or_default() += 1;
    }
    let of_class = |class: u8| {
        let slots = slots_of(class);
        let is_sparse = |used: &usize| *used < 16 || *used < slots - slots / 8;
        let in_class = slabs.iter().filter(|((of, _), _)| *of == class).map(|(_, used)| *used);
        let sparse: Vec<usize> = in_class.filter(is_sparse).collect();
        sparse.len() - sparse.iter().sum::<usize>().div_ceil(slots)
    };
    (1..=PAGE_CLASS).map(of_class).sum::<usize>() as u32
}

proptest! {
    /// After slots were taken and freed, a recovery that finds the used ones, in any order, makes the same
    /// pool. It refuses a slot that it finds twice or in a slab of another class.
    #[test]
    fn a_recovered_pool_is_the_one_before(
        steps in prop::collection::vec((1..=PAGE_CLASS, any::<u16>()), 1..400),
        classes in 1..=PAGE_CLASS,
        order in any::<u64>(),
    ) {
        let mut pool = Pool::new(8);
        let mut used: Vec<PageSlot> = Vec::new();
        for (class, chosen) in steps {
            let class = 1 + class % classes;
            let fits = pool.take(class).or_else(|| pool.next_slab().map(|_| pool.take_first(class)));
            used.extend(fits);
            if chosen % 3 == 0 && !used.is_empty() {
                pool.free(used.swap_remove(usize::from(chosen) % used.len()));
            }
            if chosen % 5 == 0 && !used.is_empty() {
                let at = usize::from(chosen) % used.len();
                if let Some(moved) = pool.take_denser(used[at]) {
                    prop_assert!(moved.class() == used[at].class() && moved.slab() != used[at].slab());
                    pool.free(std::mem::replace(&mut used[at], moved));
                }
            }
            prop_assert_eq!(pool.mergeable_slabs(), mergeable(&used));
        }
        used.sort_by_key(|slot| slot.unit().wrapping_add(order).wrapping_mul(order | 1));
        let mut recovery = PoolRecovery::new(pool.slabs());
        for slot in &used {
            prop_assert_eq!(recovery.take(*slot), Ok(()));
        }
        if let Some(slot) = used.first() {
            prop_assert_eq!(recovery.take(*slot), Err(SlotTaken::Shared));
            let other = PageSlot::at(slot.class() % PAGE_CLASS + 1, slot.unit() / SLAB_UNITS * SLAB_UNITS);
            prop_assert_eq!(recovery.take(other.unwrap()), Err(SlotTaken::OtherClass));
        }
        let recovered = recovery.finish();
        prop_assert_eq!(recovered.slabs_in_use(), pool.slabs_in_use());
        prop_assert_eq!(recovered.slot_bytes(), pool.slot_bytes());
        prop_assert_eq!(recovered.mergeable_slabs(), pool.mergeable_slabs());
        let slots = |slab| (1..=PAGE_CLASS).flat_map(move |class| {
            (0..slots_of(class)).map(move |index| PageSlot::new(class, slab, index))
        });
        for slot in (0..pool.slabs()).flat_map(slots) {
            prop_assert_eq!(recovered.has(slot), pool.has(slot), "{:?}", slot);
        }
        let rest = |mut pool: Pool| {
            let free = (1..=PAGE_CLASS).flat_map(|class| {
                std::iter::from_fn(|| pool.take(class)).collect::<Vec<_>>()
            });
            let mut units: Vec<u64> = free.map(PageSlot::unit).collect();
            units.sort_unstable();
            (units, std::iter::from_fn(|| pool.next_slab().map(|_| pool.take_first(PAGE_CLASS))).count())
        };
        prop_assert_eq!(rest(recovered), rest(pool), "what is free is given out");
    }
}

#[test]
fn a_slab_gives_each_slot_once() {
    for class in 1..=PAGE_CLASS {
        let mut pool = Pool::new(2);
        let mut taken = vec![pool.take_first(class)];
        while let Some(slot) = pool.take(class) {
            taken.push(slot);
        }
        assert_eq!(taken.len(), slots_of(class), "class {class}");
        taken.sort_by_key(|slot| slot.unit());
        for pair in taken.windows(2) {
            assert!(pair[0].unit() + u64::from(class) <= pair[1].unit());
        }
        assert!(taken.iter().all(|slot| PageSlot::at(slot.class(), slot.unit()) == Some(*slot)));
        assert_eq!((pool.slabs_in_use(), pool.next_slab()), (1, Some(1)));
        let last = taken.pop().unwrap();
        assert!(taken.into_iter().all(|slot| pool.free(slot).is_none()));
        assert_eq!(pool.free(last), Some(0), "the last one frees the slab");
        assert_eq!((pool.slabs_in_use(), pool.slot_bytes()), (0, 0));
    }
}

/// The next slab may have its memory already, so it must stay the next.
#[test]
fn a_pool_that_grew_gives_each_slab_once() {
    for (from, to) in [(0, 1), (1, 1), (1, 3), (255, 256), (3, 256), (200, 700), (256, 512), (300, 301)] {
        let mut pool = Pool::new(from);
        let mut taken = BTreeSet::new();
        if from > 1 {
            taken.insert(pool.take_first(PAGE_CLASS).slab().unwrap());
        }
        let next = pool.next_slab();
        pool.grow(PoolExtension::new(from, to));
        assert_eq!(pool.slabs(), to);
        assert!(next.is_none() || pool.next_slab() == next, "{from} {to}");
        while let Some(slab) = pool.next_slab() {
            assert!(taken.insert(pool.take_first(PAGE_CLASS).slab().unwrap()), "{slab} twice");
        }
        assert!(taken.into_iter().eq(0..to), "{from} {to}");
    }
}

/// The words of a recovery have a bit for each slot, in both forms of a slab.
#[test]
fn a_recovered_slab_has_a_bit_for_each_slot() {
    let least = RecoveredSlab::LEAST_WITH_BITS;
    assert_eq!([least - 1, least].map(slots_of), [60, 56]);
    for class in 1..=PAGE_CLASS {
        let mut recovery = PoolRecovery::new(2);
        let slots = || (0..slots_of(class)).map(|index| PageSlot::new(class, 1, index));
        slots().for_each(|slot| recovery.take(slot).unwrap());
        assert!(slots().all(|slot| recovery.take(slot) == Err(SlotTaken::Shared)), "class {class}");
        let mut pool = recovery.finish();
        assert_eq!((pool.take(class), pool.next_slab()), (None, Some(0)), "class {class}");
        assert!(slots().filter_map(|slot| pool.free(slot)).eq([1]), "class {class}");
    }
}

/// Slots that a damaged table may name.
#[test]
fn a_slot_that_cannot_be_is_refused() {
    let at = |class, unit| PageSlot::at(class, unit).unwrap();
    let mut recovery = PoolRecovery::new(1);
    recovery.take(at(3, 6)).unwrap();
    assert_eq!(recovery.take(at(4, 8)), Err(SlotTaken::OtherClass));
    assert_eq!(recovery.take(at(3, SLAB_UNITS)), Err(SlotTaken::Beyond));
    assert_eq!(recovery.take(at(3, 1 << 47)), Err(SlotTaken::Beyond));
    assert_eq!(recovery.take(at(3, 6)), Err(SlotTaken::Shared));
    let mut pool = recovery.finish();
    let has = |class, unit| pool.has(PageSlot::at(class, unit).unwrap());
    assert!(has(3, 6), "it is used");
    assert!(
        ![(3, 9), (6, 6), (4, 8), (3, SLAB_UNITS), (3, 1 << 47)]
            .map(|(class, unit)| has(class, unit))
            .contains(&true)
    );
    assert_eq!(pool.take(3).map(PageSlot::unit), Some(0), "the free ones are given out");
    assert_eq!([3, 9].map(|unit| pool.take(3).map(PageSlot::unit) == Some(unit)), [true; 2]);
}

#[test]
fn a_class_holds_its_bytes_and_costs_no_slot() {
    let classes = [1, 64, 65, 3072, 3073, 3584, 4096].map(class_of);
    assert_eq!(classes, [1, 1, 2, 48, 51, 56, 64]);
    let all: BTreeSet<u8> = (1..=4096).map(class_of).collect();
    for len_bytes in 1..=4096_usize {
        let (class, smallest) = (class_of(len_bytes), u8::try_from(len_bytes.div_ceil(CLASS_BYTES)).unwrap());
        assert!(class >= smallest && slots_of(class) == slots_of(smallest), "{len_bytes}");
    }
    let slots: BTreeSet<usize> = all.iter().map(|class| slots_of(*class)).collect();
    assert_eq!(slots.len(), all.len(), "no two classes have as many slots");
    assert_eq!(all.len(), 48, "one of them is of lengths that are stored as they are");
}
