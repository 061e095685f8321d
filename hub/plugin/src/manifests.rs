//! Files and directories of manifests, as `kubectl -f` and `-R` read them, within bounds.
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use serde_json::Value;
use serde_saphyr::options::DuplicateKeyPolicy;

/// The most files, and entries of directories, that are read.
const FILES: usize = 1000;
const ENTRIES: usize = 20_000;
/// The largest file, and the most bytes of all files.
const FILE_BYTES: u64 = 4 << 20;
const ALL_BYTES: u64 = 32 << 20;
/// The most objects in JSON that follow one another in a file.
const OBJECTS: usize = 10_000;
/// Names of files that directories are searched for.
const EXTENSIONS: [&str; 3] = ["json", "yaml", "yml"];

/// A file with its documents.
pub struct ManifestFile {
    /// The path as given or found; `-` is standard input.
    pub name: String,
    /// The documents; an empty one is null.
    pub documents: Vec<Value>,
}

/// Reads files and directories in the given order, the files of a directory in that of their names.
///
/// # Errors
/// A file that cannot be read or is no YAML or JSON, a directory without manifests, or more than the bounds allow; the
/// error names the path.
pub fn read_all(paths: &[String], recursive: bool) -> anyhow::Result<Vec<ManifestFile>> {
    let (mut files, mut room) = (Vec::new(), ALL_BYTES);
    for path in paths {
        for name in expand(path, recursive)? {
            ensure!(
                files.len() < FILES,
                "{name}: more than {FILES} files; give fewer files or directories"
            );
            let text = read(&name, &mut room)?;
            let documents =
                documents(&name, &text).with_context(|| format!("{name} is no YAML or JSON"))?;
            files.push(ManifestFile { name, documents });
        }
    }
    Ok(files)
}

/// Reads YAML 1.1 as kubectl does: a file mode such as 0400 is octal, and the last value of a key counts. A key that is there
/// twice is noted. Objects in JSON may follow one another, as `jq -c` prints them.
fn documents(name: &str, text: &str) -> Result<Vec<Value>, serde_saphyr::Error> {
    let read = |duplicate_keys| {
        let options = serde_saphyr::options! {
            legacy_octal_numbers: true,
            duplicate_keys: duplicate_keys,
            // The lines around an error may have values of Secrets.
            with_snippet: false,
        };
        serde_saphyr::from_multiple_with_options(text, options)
    };
    match read(DuplicateKeyPolicy::Error) {
        Ok(documents) => Ok(documents),
        Err(refused) => match read(DuplicateKeyPolicy::LastWins) {
            Ok(documents) => {
                crate::note(&format!(
                    "{name}: a key is there twice, and its last value counts: {refused}"
                ));
                Ok(documents)
            }
            Err(error) => json_objects(text).ok_or(error),
        },
    }
}

/// Returns several objects in JSON that follow one another.
fn json_objects(text: &str) -> Option<Vec<Value>> {
    let objects = serde_json::Deserializer::from_str(text).into_iter();
    let objects: Vec<_> = objects.take(OBJECTS + 1).collect::<Result<_, _>>().ok()?;
    (2..=OBJECTS).contains(&objects.len()).then_some(objects)
}

/// Returns the files of a path.
fn expand(path: &str, recursive: bool) -> anyhow::Result<Vec<String>> {
    if path == "-" || !Path::new(path).is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let (mut found, mut entries) = (Vec::new(), 0);
    collect(Path::new(path), recursive, &mut entries, &mut found)?;
    ensure!(
        !found.is_empty(),
        "{path}: no files *.json, *.yaml or *.yml{}",
        if recursive {
            ""
        } else {
            "; -R searches its subdirectories"
        }
    );
    Ok(found
        .iter()
        .map(|file| file.to_string_lossy().into_owned())
        .collect())
}

/// Directories that are symbolic links are not entered, as `kubectl` does not, so no search goes in circles.
fn collect(
    folder: &Path,
    recursive: bool,
    entries: &mut usize,
    found: &mut Vec<PathBuf>,
) -> anyhow::Result<()> {
    let shown = folder.display();
    let mut inside = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| format!("cannot read {shown}"))? {
        *entries += 1;
        ensure!(
            *entries <= ENTRIES,
            "{shown}: more than {ENTRIES} files and directories; use a smaller directory"
        );
        inside.push(entry.with_context(|| format!("cannot read {shown}"))?);
    }
    inside.sort_by_key(std::fs::DirEntry::file_name);
    for entry in inside {
        let path = entry.path();
        let kind = entry
            .file_type()
            .with_context(|| format!("cannot read {}", path.display()))?;
        let has_extension = || {
            path.extension()
                .is_some_and(|is| EXTENSIONS.iter().any(|one| is == *one))
        };
        if kind.is_dir() {
            if recursive {
                collect(&path, recursive, entries, found)?;
            }
        } else if has_extension() && path.is_file() {
            ensure!(
                found.len() < FILES,
                "{shown}: more than {FILES} files; use a smaller directory"
            );
            found.push(path);
        }
    }
    Ok(())
}

fn read(name: &str, room: &mut u64) -> anyhow::Result<String> {
    let mut text = String::new();
    let limit = FILE_BYTES.min(*room) + 1;
    let read = if name == "-" {
        std::io::stdin()
            .take(limit)
            .read_to_string(&mut text)
            .context("cannot read standard input")?
    } else {
        let file = std::fs::File::open(name).with_context(|| format!("cannot read {name}"))?;
        file.take(limit)
            .read_to_string(&mut text)
            .with_context(|| format!("cannot read {name}"))?
    } as u64;
    if read > FILE_BYTES {
        bail!("{name} is larger than {} MiB", FILE_BYTES >> 20);
    }
    ensure!(
        read <= *room,
        "{name}: all files together are larger than {} MiB",
        ALL_BYTES >> 20
    );
    *room -= read;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder =
            std::env::temp_dir().join(format!("runnel-manifests-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(folder.join("sub")).unwrap();
        folder
    }

    fn names(folder: &Path, recursive: bool) -> Vec<String> {
        let files = read_all(&[folder.display().to_string()], recursive).unwrap();
        let short = |file: ManifestFile| {
            Path::new(&file.name)
                .strip_prefix(folder)
                .unwrap()
                .display()
                .to_string()
        };
        files.into_iter().map(short).collect()
    }

    #[test]
    fn directory_is_read_as_kubectl_reads_it() {
        let folder = folder("read");
        for file in ["b.yaml", "a.json", "c.yml", "d.txt", "sub/e.yaml"] {
            std::fs::write(folder.join(file), "{}").unwrap();
        }
        std::os::unix::fs::symlink(&folder, folder.join("loop.yaml")).unwrap();
        std::os::unix::fs::symlink(&folder, folder.join("loop")).unwrap();
        assert_eq!(names(&folder, false), ["a.json", "b.yaml", "c.yml"]);
        assert_eq!(
            names(&folder, true),
            ["a.json", "b.yaml", "c.yml", "sub/e.yaml"]
        );
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn numbers_are_read_as_kubectl_reads_them() {
        let folder = folder("numbers");
        let file = folder.join("modes.yaml");
        std::fs::write(&file, "[0400, 0755, 0o17, 0x1F, 10, 0, '0400']").unwrap();
        let read = read_all(&[file.display().to_string()], false).unwrap();
        let expected = serde_json::json!([0o400, 0o755, 15, 31, 10, 0, "0400"]);
        assert_eq!(read[0].documents, [expected]);
    }

    #[test]
    fn objects_in_json_may_follow_one_another() {
        let folder = folder("json");
        let file = folder.join("all.json");
        let read = || {
            read_all(&[file.display().to_string()], false)
                .unwrap()
                .remove(0)
                .documents
        };
        std::fs::write(&file, "{\"a\": 1}\n{\"b\": 2}\n").unwrap();
        assert_eq!(
            read(),
            [serde_json::json!({"a": 1}), serde_json::json!({"b": 2})]
        );
        std::fs::write(&file, "{\"a\": 1}").unwrap();
        assert_eq!(read(), [serde_json::json!({"a": 1})]);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn last_value_of_a_key_counts_and_errors_show_no_content() {
        let folder = folder("twice");
        let file = folder.join("twice.yaml");
        std::fs::write(&file, "a: 1\nb: 2\na: 3\n").unwrap();
        let read = |path: &Path| read_all(&[path.display().to_string()], false);
        let expected = serde_json::json!({"a": 3, "b": 2});
        assert_eq!(read(&file).unwrap()[0].documents, [expected]);
        std::fs::write(&file, "data:\n  password: c2VjcmV0\n\ttab: x\n").unwrap();
        let error = format!("{:#}", read(&file).err().unwrap());
        assert!(
            error.contains("line 2") && !error.contains("c2Vj"),
            "{error}"
        );
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn directory_without_manifests_and_bad_files_are_named() {
        let folder = folder("bad");
        let read =
            |path: &Path| read_all(&[path.display().to_string()], false).map(|files| files.len());
        let error = read(&folder).unwrap_err().to_string();
        assert!(error.contains("bad") && error.contains("-R"), "{error}");
        let file = folder.join("x.yaml");
        std::fs::write(&file, "a: [").unwrap();
        assert!(read(&folder).unwrap_err().to_string().contains("x.yaml"));
        assert!(
            read(&folder.join("none.yaml"))
                .unwrap_err()
                .to_string()
                .contains("none.yaml")
        );
        std::fs::write(&file, "#".repeat(FILE_BYTES as usize)).unwrap();
        assert!(read(&file).is_ok());
        std::fs::write(&file, "#".repeat(FILE_BYTES as usize + 1)).unwrap();
        assert!(
            read(&file)
                .unwrap_err()
                .to_string()
                .contains("larger than 4 MiB")
        );
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn files_beyond_the_bound_are_refused() {
        let folder = folder("many");
        for number in 0..FILES {
            std::fs::write(folder.join(format!("{number}.yaml")), "").unwrap();
        }
        assert_eq!(names(&folder, false).len(), FILES);
        std::fs::write(folder.join("one-more.yaml"), "").unwrap();
        let error = read_all(&[folder.display().to_string()], false)
            .map(drop)
            .unwrap_err()
            .to_string();
        assert!(error.contains("more than 1000 files"), "{error}");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
