//! Chance that repeats: the same seed gives the same numbers. Source: SplitMix64,
//! <https://prng.di.unimi.it/splitmix64.c>.

/// A source of numbers.
#[derive(Debug, Clone)]
pub struct Chance(u64);

impl Chance {
    /// A source that repeats for this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.draw() % bound
    }
}
