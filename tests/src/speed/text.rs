//! Texts that do not compress: what is sent of them is their length. Pure.

use data_encoding::BASE64;

/// So many characters of base64 that look random, other ones for each seed, the same in every run. They shrink to three
/// quarters at best: each stands for six bits.
#[must_use]
pub fn noise(seed: u64, length: usize) -> String {
    let mut state = seed;
    let mut bytes = Vec::with_capacity(length);
    while bytes.len() * 4 < length * 3 + 4 {
        bytes.extend(next(&mut state).to_le_bytes());
    }
    let mut text = BASE64.encode(&bytes);
    text.truncate(length);
    text
}

/// SplitMix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// A seed for a text that is another one in every run.
///
/// # Errors
/// When the system has no random numbers.
pub fn any_seed() -> anyhow::Result<u64> {
    use anyhow::Context;
    use ring::rand::{SecureRandom, SystemRandom};
    let mut seed = [0; 8];
    SystemRandom::new().fill(&mut seed).ok().context("no random numbers")?;
    Ok(u64::from_le_bytes(seed))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn texts_are_of_their_length_differ_and_hardly_shrink() {
        for length in [1, 1000, 1024, 500 * 1024] {
            assert_eq!(noise(7, length).len(), length);
        }
        let texts: BTreeSet<String> = (0..10_000).map(|seed| noise(seed, 1024)).collect();
        assert_eq!(texts.len(), 10_000);
        for text in texts.iter().take(100) {
            let content = vec![("value".to_owned(), text.clone().into_bytes())];
            let shrunk = zstd::bulk::compress(format!("{content:?}").as_bytes(), 3).map(|bytes| bytes.len());
            assert!(text.bytes().collect::<BTreeSet<u8>>().len() > 50, "{text}");
            assert!(shrunk.is_ok_and(|length| length > 700), "{text}");
        }
    }
}
