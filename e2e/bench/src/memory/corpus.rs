//! The contents of the devices: files of the test machine.

/// Bytes of a corpus and of most devices.
pub(super) const CORPUS_BYTES: u64 = 64 << 20;

/// A kind of content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Corpus {
    Zeros,
    /// Scripts and sources.
    Text,
    /// Programs and libraries: code, tables, strings and zeros.
    Mixed,
    /// Bytes that do not compress.
    Random,
}

impl Corpus {
    pub(super) const ALL: [Self; 4] = [Self::Mixed, Self::Text, Self::Zeros, Self::Random];

    /// Returns the name of the corpus.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Zeros => "zeros",
            Self::Text => "text",
            Self::Mixed => "mixed",
            Self::Random => "random",
        }
    }

    /// Returns the path of its file in the machine.
    pub(super) fn path(self) -> String {
        format!("/corpora/{}", self.name())
    }
}

/// Returns a script that makes a corpus. It may repeat content, because devices compress pages one by one.
pub(super) fn make(corpus: Corpus) -> String {
    let path = corpus.path();
    let files = |find: &str| {
        format!(
            "find {find} -print0 | sort -z | xargs -0 cat > {path}.once; \
             while [ $(stat -c %s {path}) -lt {CORPUS_BYTES} ]; do cat {path}.once >> {path}; done; \
             rm {path}.once; truncate -s {CORPUS_BYTES} {path}"
        )
    };
    let bytes = match corpus {
        Corpus::Zeros => format!("head -c {CORPUS_BYTES} /dev/zero > {path}"),
        Corpus::Text => files("/usr/lib /usr/share -xdev -type f -name '*.p[lmy]'"),
        Corpus::Mixed => files("/usr/bin /usr/sbin -xdev -type f -size +16k"),
        Corpus::Random => format!("head -c {CORPUS_BYTES} /dev/urandom > {path}"),
    };
    format!(
        "mkdir -p /corpora; mountpoint -q /corpora || mount -t tmpfs -o size=80% corpora /corpora; \
         : > {path}; {bytes}"
    )
}
