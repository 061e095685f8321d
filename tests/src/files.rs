//! The files of the repository that checks read.
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// All files with this extension in a folder and the folders below it, sorted by path.
///
/// # Errors
/// A folder that cannot be read.
pub fn files_below(folder: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(files_below(&path, extension)?);
        } else if path.extension().is_some_and(|kind| kind == extension) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}
