//! The texts of objects: incompressible ones, and ones written by people.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use data_encoding::BASE64;

/// The sources of text by people, those most like configuration first.
const CORPUS: [&str; 5] = ["deploy", "proto", "tests", "hub", "agent"];
/// Files with these endings are text.
const TEXTS: [&str; 6] = ["yaml", "md", "json", "proto", "toml", "rs"];

/// Returns this many pseudo-random characters of base64, different ones for each seed, the same in
/// every run. They compress to three quarters at best: each has six bits.
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

/// Returns texts of one length, cut from the files of this repository without overlap, each with
/// its number.
///
/// # Errors
/// If the repository has not enough text.
pub fn corpus(count: usize, length: usize) -> Result<Vec<String>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let number = |number: usize| format!("{number:05}\n");
    let each = length - number(0).len();
    let mut whole: Vec<u8> = Vec::new();
    for folder in CORPUS {
        for file in files(&root.join(folder))? {
            if whole.len() >= count * each {
                break;
            }
            let text =
                std::fs::read_to_string(&file).with_context(|| format!("no {}", file.display()))?;
            whole.extend(text.bytes().filter(u8::is_ascii));
        }
    }
    ensure!(
        whole.len() >= count * each,
        "the corpus has {} bytes",
        whole.len()
    );
    let cuts = whole.chunks_exact(each).take(count).enumerate();
    Ok(cuts
        .map(|(place, cut)| number(place) + &String::from_utf8_lossy(cut))
        .collect())
}

/// The texts in a folder; the charts' copies of other files are left out.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("no {}", folder.display()))?;
    let mut entries: Vec<PathBuf> = entries
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    entries.sort();
    let mut all = Vec::new();
    for path in entries {
        let is_text = path
            .extension()
            .is_some_and(|end| TEXTS.iter().any(|text| end == *text));
        if path.is_dir() {
            if !path.ends_with("files") {
                all.extend(files(&path)?);
            }
        } else if is_text {
            all.push(path);
        }
    }
    Ok(all)
}

/// A seed for a text that is another one in every run.
///
/// # Errors
/// When the system has no random numbers.
pub fn any_seed() -> Result<u64> {
    use ring::rand::{SecureRandom, SystemRandom};
    let mut seed = [0; 8];
    SystemRandom::new()
        .fill(&mut seed)
        .ok()
        .context("no random numbers")?;
    Ok(u64::from_le_bytes(seed))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn as_many_texts_as_needed_are_distinct() {
        let texts = corpus(1000, 1024).unwrap_or_default();
        assert_eq!(texts.iter().collect::<BTreeSet<_>>().len(), 1000);
        assert!(texts.iter().all(|text| text.len() == 1024));
    }

    #[test]
    fn texts_are_of_their_length_differ_and_hardly_shrink() {
        for length in [1, 1000, 1024, 500 * 1024] {
            assert_eq!(noise(7, length).len(), length);
        }
        let texts: BTreeSet<String> = (0..10_000).map(|seed| noise(seed, 1024)).collect();
        assert_eq!(texts.len(), 10_000);
        for text in texts.iter().take(100) {
            let content = vec![("value".to_owned(), text.clone().into_bytes())];
            let shrunk =
                zstd::bulk::compress(format!("{content:?}").as_bytes(), 3).map(|bytes| bytes.len());
            assert!(text.bytes().collect::<BTreeSet<u8>>().len() > 50, "{text}");
            assert!(shrunk.is_ok_and(|length| length > 700), "{text}");
        }
    }
}
