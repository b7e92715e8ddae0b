//! Identity of a new volume in its object store.

/// Returns a random id (UUID version 4). A repeated request finds the Volume by its name, and the id in it.
pub(super) fn fresh() -> String {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("every Linux has getrandom(2)");
    (bytes[6], bytes[8]) = (bytes[6] & 0x0f | 0x40, bytes[8] & 0x3f | 0x80);
    let number = u128::from_be_bytes(bytes);
    let part = |shift: u32, digits: u32| (number >> shift) & ((1 << (4 * digits)) - 1);
    format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        part(96, 8),
        part(80, 4),
        part(64, 4),
        part(48, 4),
        part(0, 12)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_id_is_another_uuid() {
        let (first, second) = (fresh(), fresh());
        assert_ne!(first, second);
        let lengths: Vec<usize> = first.split('-').map(str::len).collect();
        assert_eq!(lengths, [8, 4, 4, 4, 12], "{first}");
        assert!(first.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit()), "{first}");
        assert_eq!((&first[14..15], first.len()), ("4", 36));
    }
}
