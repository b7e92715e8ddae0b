//! Signature of a request changed by a proxy (AWS Signature Version 4, in the `Authorization` header).

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use super::SECRET_KEY;
use super::http::Head;

/// Bytes of a block of SHA-256.
const BLOCK_BYTES: usize = 64;

/// Signs a request again with its account, scope and date. Removed headers are also removed from the
/// signature.
pub(super) fn sign_again(head: &mut Head) -> Result<()> {
    let authorization = head.get("authorization").context("a request without a signature")?;
    let part = |name: &str| {
        let rest = authorization.split_once(name).map(|(_, rest)| rest);
        rest.and_then(|rest| rest.split([',', ' ']).next())
            .with_context(|| format!("no {name} in a signature"))
    };
    let (credential, signed) = (part("Credential=")?.to_owned(), part("SignedHeaders=")?.to_owned());
    let scope = credential.split_once('/').context("a credential without a scope")?.1;
    let signed: Vec<&str> = signed.split(';').filter(|name| head.get(name).is_some()).collect();
    let headers: String =
        signed.iter().map(|name| format!("{name}:{}\n", head.get(name).unwrap_or_default().trim())).collect();
    let (path, query) = head.word(1).split_once('?').unwrap_or((head.word(1), ""));
    let mut query: Vec<String> = query
        .split('&')
        .filter(|word| !word.is_empty())
        .map(|word| if word.contains('=') { word.to_owned() } else { format!("{word}=") })
        .collect();
    query.sort();
    let payload = head.get("x-amz-content-sha256").context("a request without the hash of its body")?;
    let names = signed.join(";");
    let canonical = format!("{}\n{path}\n{}\n{headers}\n{names}\n{payload}", head.word(0), query.join("&"));
    let date = head.get("x-amz-date").context("a request without a date")?;
    let text = format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{}", hex(&Sha256::digest(canonical)));
    let mut key = format!("AWS4{SECRET_KEY}").into_bytes();
    for word in scope.split('/') {
        key = hmac(&key, word.as_bytes());
    }
    let signature = hex(&hmac(&key, text.as_bytes()));
    let authorization =
        format!("AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={names}, Signature={signature}");
    head.set("authorization", &authorization);
    Ok(())
}

/// Computes the HMAC (RFC 2104) with SHA-256.
fn hmac(key: &[u8], text: &[u8]) -> Vec<u8> {
    let mut block = [0; BLOCK_BYTES];
    if key.len() > BLOCK_BYTES {
        block[..32].copy_from_slice(&Sha256::digest(key));
    } else {
        block[..key.len()].copy_from_slice(key);
    }
    let inner = block.map(|byte| byte ^ 0x36);
    let outer = block.map(|byte| byte ^ 0x5c);
    let inside = Sha256::new().chain_update(inner).chain_update(text).finalize();
    Sha256::new().chain_update(outer).chain_update(inside).finalize().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 4231, test cases 2 and 6.
    #[test]
    fn the_hmac_is_that_of_the_standard() {
        assert_eq!(
            hex(&hmac(b"Jefe", b"what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
        assert_eq!(
            hex(&hmac(&[0xaa; 131], b"Test Using Larger Than Block-Size Key - Hash Key First")),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"
        );
    }
}
