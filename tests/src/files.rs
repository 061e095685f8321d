//! The files of the repository that checks read.
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

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

/// Compares a generated page of the repository with what its sources give, or writes it if `RUNNEL_UPDATE` is set. `again` is
/// the command that writes it.
///
/// # Errors
/// A page that differs, with the command.
pub fn is_generated(page: &str, text: &str, again: &str) -> Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(page);
    if std::env::var_os("RUNNEL_UPDATE").is_some() {
        fs::write(&path, text)?;
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    ensure!(
        found == text,
        "{page} differs from its sources; write it again with\n  RUNNEL_UPDATE=1 {again}"
    );
    Ok(())
}
