//! Page codecs: lz4 and zstd, with contexts that are created once per thread.

use std::io;

use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size};
use zstd::bulk::{Compressor, Decompressor};

use crate::PAGE_BYTES;
use crate::word::Form;

/// zstd level, the same as in the kernel's zram. With level 1, a write takes a fifth less time, and text
/// takes 3 % more memory.
const ZSTD_LEVEL: i32 = 3;

/// Codec of the pages that a volume writes. It reads pages of both codecs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PageCodec {
    /// lz4.
    #[default]
    Lz4,
    /// zstd: smaller, and slower.
    Zstd,
}

impl PageCodec {
    /// Returns the form of its compressed pages.
    pub(crate) const fn form(self) -> Form {
        match self {
            Self::Lz4 => Form::Lz4,
            Self::Zstd => Form::Zstd,
        }
    }
}

/// Codec contexts of a thread.
pub struct Codecs {
    lz4: CompressTable,
    zstd: Option<(Compressor<'static>, Decompressor<'static>)>,
    out: Box<[u8]>,
    /// Copy of a compressed page.
    compressed: Box<[u8; PAGE_BYTES]>,
}

impl Default for Codecs {
    fn default() -> Self {
        let most = get_maximum_output_size(PAGE_BYTES).max(zstd::zstd_safe::compress_bound(PAGE_BYTES));
        Self {
            lz4: CompressTable::small(),
            zstd: None,
            out: vec![0; most].into(),
            compressed: Box::new([0; PAGE_BYTES]),
        }
    }
}

impl std::fmt::Debug for Codecs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Codecs").field("has_zstd", &self.zstd.is_some()).finish_non_exhaustive()
    }
}

impl Codecs {
    /// Creates the contexts of a codec before its first page.
    ///
    /// # Errors
    /// The system is out of memory.
    pub fn prepare(&mut self, codec: PageCodec) -> io::Result<()> {
        if codec == PageCodec::Zstd && self.zstd.is_none() {
            let mut compressor = Compressor::new(ZSTD_LEVEL)?;
            compressor.include_contentsize(false)?;
            self.zstd = Some((compressor, Decompressor::new()?));
        }
        Ok(())
    }

    /// Compresses a page. Returns `None` if the result takes more than `most` bytes.
    ///
    /// # Panics
    /// If the codec was not [prepared](Self::prepare).
    pub(crate) fn compress(&mut self, codec: PageCodec, page: &[u8], most: usize) -> Option<&[u8]> {
        let Self { lz4, zstd, out, .. } = self;
        let len = match codec {
            PageCodec::Lz4 => compress_into_with_table(page, out, lz4).ok(),
            PageCodec::Zstd => {
                let (compressor, _) = zstd.as_mut().expect("the codec was prepared");
                compressor.compress_to_buffer(page, &mut out[..]).ok()
            }
        };
        Some(&out[..len.filter(|len| *len <= most)?])
    }

    /// Returns the buffer for the compressed page of [`decompress_copy`](Self::decompress_copy).
    pub(crate) fn compressed(&mut self) -> &mut [u8; PAGE_BYTES] {
        &mut self.compressed
    }

    /// Decompresses the first `len` bytes of [`compressed`](Self::compressed). Returns false if they are
    /// damaged, or of a codec that was not prepared: no volume of this thread writes with it.
    pub(crate) fn decompress_copy(&mut self, codec: PageCodec, len: usize, page: &mut [u8]) -> bool {
        let Self { zstd, compressed, .. } = self;
        let bytes = &compressed[..len];
        let len = match codec {
            PageCodec::Lz4 => decompress_into(bytes, page).ok(),
            PageCodec::Zstd => zstd
                .as_mut()
                .and_then(|(_, decompressor)| decompressor.decompress_to_buffer(bytes, page).ok()),
        };
        len == Some(PAGE_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The default level of zram is 3.
    #[test]
    fn zstd_compresses_as_well_as_zram() {
        let page = &include_bytes!("../../../LICENSE")[..PAGE_BYTES];
        let len = |level| Compressor::new(level).unwrap().compress(page).unwrap().len();
        let mut codecs = Codecs::default();
        codecs.prepare(PageCodec::Zstd).unwrap();
        let ours = codecs.compress(PageCodec::Zstd, page, PAGE_BYTES).unwrap().len();
        assert!(ours <= len(3) && ours < len(1) - 2, "{ours}, level 1: {}, level 3: {}", len(1), len(3));
    }
}
