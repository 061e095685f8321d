//! The manifests of a folder.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;
use serde_saphyr::DuplicateKeyPolicy;

/// The namespace of manifests that name none.
pub(super) const NO_NAMESPACE: &str = "corpus";

/// When a manifest is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Namespaces: before those that the other manifests need are made.
    Namespaces,
    /// CustomResourceDefinitions, the last one of each name stays for the objects of its kind.
    Definitions,
    /// Everything else.
    Ordinary,
    /// Objects that change or refuse the writes of others.
    Intrusive,
}

impl Stage {
    /// All, in their order.
    pub(super) const ALL: [Self; 4] = [
        Self::Namespaces,
        Self::Definitions,
        Self::Ordinary,
        Self::Intrusive,
    ];

    fn of(object: &Value) -> Self {
        let text = |field: &str| object[field].as_str().unwrap_or_default();
        let (group, _) = text("apiVersion").split_once('/').unwrap_or_default();
        match (group, text("kind")) {
            ("", "Namespace") => Self::Namespaces,
            ("apiextensions.k8s.io", "CustomResourceDefinition") => Self::Definitions,
            ("", "ResourceQuota" | "LimitRange")
            | ("networking.k8s.io", "IngressClass")
            | ("storage.k8s.io", "StorageClass")
            | ("scheduling.k8s.io", "PriorityClass")
            | ("admissionregistration.k8s.io" | "apiregistration.k8s.io", _) => Self::Intrusive,
            _ => Self::Ordinary,
        }
    }

    /// The plural, for people.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Namespaces => "namespaces",
            Self::Definitions => "CustomResourceDefinitions",
            Self::Ordinary => "other manifests",
            Self::Intrusive => "manifests of quotas, classes, webhooks and API services",
        }
    }
}

/// A document of a file, or an item of a list.
#[derive(Debug)]
pub(super) struct Manifest {
    /// The number in the corpus, from 0.
    pub(super) number: usize,
    /// The file below the folder and the number of the document; of equal manifests, the first one.
    pub(super) place: String,
    /// How many manifests have exactly this text.
    pub(super) count: usize,
    /// The text, as in the file.
    pub(super) text: String,
    /// The content; null where it is no YAML.
    pub(super) object: Value,
    /// When it is tried.
    pub(super) stage: Stage,
    /// Whether the copy stays until all objects were tried.
    pub(super) is_kept: bool,
}

impl Manifest {
    /// A text of the object, by pointer.
    pub(super) fn field(&self, pointer: &str) -> &str {
        self.object
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_default()
    }

    /// The namespace of the object, if its kind has namespaces.
    pub(super) fn namespace(&self) -> &str {
        match self.field("/metadata/namespace") {
            "" => NO_NAMESPACE,
            namespace => namespace,
        }
    }

    /// Manifests of one key are not tried at the same time: those of one object, and those that claim a port of nodes.
    pub(super) fn key(&self) -> String {
        if self.text.contains("nodePort:") || self.text.contains("clusterIP: 1") {
            return "ports and addresses".to_owned();
        }
        let group = self.field("/apiVersion").split('/').next();
        let (kind, name) = (self.field("/kind"), self.field("/metadata/name"));
        format!("{group:?} {kind} {} {name}", self.namespace())
    }

    /// How the object is called in the report.
    pub(super) fn title(&self) -> String {
        let namespace = match self.field("/metadata/namespace") {
            "" => String::new(),
            namespace => format!("{namespace}/"),
        };
        let name = self.field("/metadata/name");
        format!("{} {namespace}{name}", self.field("/kind"))
    }
}

/// Reads the manifests of all files below a folder.
///
/// # Errors
/// When a folder or file cannot be read. A document that is no YAML is a manifest without content.
pub(super) fn read(folder: &Path) -> Result<Vec<Manifest>> {
    let mut files = Vec::new();
    collect(folder, &mut files)?;
    let mut found: Vec<Manifest> = Vec::new();
    let mut numbers: BTreeMap<String, usize> = BTreeMap::new();
    for file in files {
        let text = std::fs::read_to_string(&file)
            .with_context(|| format!("cannot read {}", file.display()))?;
        let shown = file.strip_prefix(folder).unwrap_or(&file).display();
        for (at, document) in (1..).zip(documents(&text)) {
            for (text, object, item) in items(document) {
                if let Some(number) = numbers.get(&text) {
                    found[*number].count += 1;
                    continue;
                }
                numbers.insert(text.clone(), found.len());
                found.push(Manifest {
                    number: found.len(),
                    place: format!("{shown}, document {at}{item}"),
                    count: 1,
                    stage: Stage::of(&object),
                    text,
                    object,
                    is_kept: false,
                });
            }
        }
    }
    keep_definitions(&mut found);
    Ok(found)
}

/// The longest definition of each name has the most versions and fields. It is the last one of its name, and stays.
fn keep_definitions(manifests: &mut [Manifest]) {
    manifests.sort_by_key(|manifest| (manifest.stage == Stage::Definitions, manifest.text.len()));
    let mut last: BTreeMap<String, usize> = BTreeMap::new();
    for (at, manifest) in manifests.iter_mut().enumerate() {
        manifest.number = at;
        if manifest.stage == Stage::Definitions {
            last.insert(manifest.key(), at);
        }
    }
    for at in last.into_values() {
        manifests[at].is_kept = true;
    }
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let entries = std::fs::read_dir(folder)
        .with_context(|| format!("cannot read the folder {}", folder.display()))?;
    let mut entries = entries.collect::<Result<Vec<_>, _>>()?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        let extension = path.extension().and_then(|extension| extension.to_str());
        if entry.file_type()?.is_dir() {
            collect(&path, files)?;
        } else if matches!(extension, Some("json" | "yaml" | "yml")) {
            files.push(path);
        }
    }
    Ok(())
}

/// The documents of a file that are not empty, as they are written.
fn documents(text: &str) -> Vec<String> {
    let mut all = vec![String::new()];
    for line in text.lines() {
        let is_separator = line
            .strip_prefix("---")
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace));
        if is_separator {
            all.push(String::new());
        } else if let Some(document) = all.last_mut() {
            document.extend([line, "\n"]);
        }
    }
    let is_content = |line: &str| !line.trim().is_empty() && !line.trim_start().starts_with('#');
    all.retain(|document| document.lines().any(is_content));
    all
}

/// The text and content of a document, or of each item of a list, with the number of the item.
fn items(text: String) -> Vec<(String, Value, String)> {
    // As kubectl reads it, the last one of equal keys holds.
    let options = serde_saphyr::options! {
        legacy_octal_numbers: true,
        duplicate_keys: DuplicateKeyPolicy::LastWins,
    };
    let object: Value = serde_saphyr::from_str_with_options(&text, options).unwrap_or(Value::Null);
    let is_list = object["kind"]
        .as_str()
        .is_some_and(|kind| kind.ends_with("List"));
    match object["items"].as_array().filter(|_| is_list) {
        Some(items) => (1..)
            .zip(items)
            .map(|(at, item)| (item.to_string(), item.clone(), format!(", item {at}")))
            .collect(),
        None => vec![(text, object, String::new())],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_split_as_kubectl_splits_them() {
        let text = "# comment\n---\na: 1\n--- # b\nb: |\n  ---\n---\n\n---- \n";
        assert_eq!(documents(text), ["a: 1\n", "b: |\n  ---\n", "\n---- \n"]);
    }

    #[test]
    fn lists_are_split_into_items() {
        let text = "kind: RoleList\nitems: [{kind: Role}, {kind: Role, x: 1}]";
        let split = items(text.to_owned());
        assert_eq!(split.len(), 2);
        assert_eq!(split[1].0, r#"{"kind":"Role","x":1}"#);
        assert_eq!(items("a: [".to_owned())[0].1, Value::Null);
        assert_eq!(items("a: 1\na: 2".to_owned())[0].1["a"], 2);
    }
}
