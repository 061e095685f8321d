//! `kubectl runnel bundle`: puts manifests into one ManifestBundle, or into several, for `kubectl apply`. It reads no cluster.
use std::collections::{BTreeMap, BTreeSet};
use std::io::{IsTerminal, Write};
use std::path::Path;

use runnel_api::{
    BUNDLE_KIND, BundleKind, BundleKindScope, ManifestBundle, ManifestBundleSpec, SERVER_METADATA,
    limits,
};
use runnel_hub_core::plan::{
    LAST_APPLIED, LeftOutByKind, MANIFEST_METADATA, Origin, content_of, left_out,
};
use runnel_proto::model::{Kind, Scope, is_subdomain, plain_text};
use serde_json::{Map, Value, json};

use super::args::{BundleArgs, BundleOutput};
use super::manifests::{self, ManifestFile};
use super::{CommandContext, note, print, usage};

/// The most bytes of a bundle: what etcd stores, with room for the metadata that the API server adds.
const BUNDLE_BYTES: usize = 1_400_000;
/// The most bytes that `kubectl apply` repeats in an annotation.
const ANNOTATION_BYTES: usize = 250_000;
/// Number of manifests that an error about the size names.
const LARGEST: usize = 5;
/// Prints a bundle.
pub(super) fn run(session: &CommandContext<'_>, options: &BundleArgs) -> anyhow::Result<()> {
    let name = match &options.name {
        Some(name) => name.clone(),
        None => name_of(&options.files).map_err(usage)?,
    };
    if !is_subdomain(&name) {
        return Err(usage(format!(
            "`{}` is no name of an object: give --name, with lowercase letters, digits, `-` and `.`",
            plain_text(&name, 80)
        )));
    }
    let files = manifests::read_all(&options.files, options.recursive)?;
    let mut collected = collected(files, options.split).map_err(usage)?;
    let parts = if options.split {
        collected.split(session.namespace).map_err(usage)?
    } else {
        let spec = collected.whole().map_err(usage)?;
        vec![(session.namespace.map(str::to_owned), spec)]
    };
    for line in &collected.notes {
        note(line);
    }
    if parts.len() > 1 {
        note(&format!(
            "{} bundles: a ClusterDistributionRule selects them by names: [{name}-*] and by their namespaces",
            parts.len()
        ));
    }
    let text = printed(&name, parts, options.output)?;
    let mut out = std::io::stdout();
    if out.is_terminal() {
        return print(&text);
    }
    // Exactly, for `kubectl apply`.
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Returns bundles as text, the only one under the given name.
fn printed(
    name: &str,
    parts: Vec<(Option<String>, ManifestBundleSpec)>,
    output: BundleOutput,
) -> anyhow::Result<String> {
    let is_only = parts.len() == 1;
    let object = |(number, (namespace, spec)): (usize, (Option<String>, ManifestBundleSpec))| {
        let name = if is_only {
            name.to_owned()
        } else {
            format!("{name}-{}", number + 1)
        };
        let mut object = ManifestBundle::new(&name, spec);
        object.metadata.namespace = namespace;
        object
    };
    let objects: Vec<_> = parts.into_iter().enumerate().map(object).collect();
    Ok(match (output, objects.as_slice()) {
        (BundleOutput::Json, [object]) => serde_json::to_string_pretty(object)? + "\n",
        (BundleOutput::Json, objects) => {
            let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
            serde_json::to_string_pretty(&list)? + "\n"
        }
        (BundleOutput::Yaml, objects) => {
            let texts = objects.iter().map(serde_saphyr::to_string);
            texts.collect::<Result<Vec<_>, _>>()?.join("---\n")
        }
    })
}

/// Returns the name of the only file or directory, without its extension.
fn name_of(files: &[String]) -> Result<String, String> {
    let [file] = files else {
        return Err("give --name: there is more than one file or directory".to_owned());
    };
    let path = Path::new(file).canonicalize().unwrap_or_default();
    let name = if path.is_dir() {
        path.file_name()
    } else {
        path.file_stem()
    };
    match name.and_then(|name| name.to_str()) {
        Some(name) if file != "-" => Ok(name.to_owned()),
        _ => Err("give --name: the input has no name".to_owned()),
    }
}

/// The content of a bundle, and what a person should know about it.
pub(super) struct Bundled {
    /// The content.
    pub(super) spec: ManifestBundleSpec,
    /// Sentences about what was left out, and what to do.
    pub(super) notes: Vec<String>,
}

/// Puts the manifests of files into a bundle.
///
/// # Errors
/// A sentence that names the manifest.
pub(super) fn bundled(files: Vec<ManifestFile>) -> Result<Bundled, String> {
    let mut collected = collected(files, false)?;
    Ok(Bundled {
        spec: collected.whole()?,
        notes: collected.notes,
    })
}

/// Reads the manifests of files. `splits`: for several bundles.
fn collected(files: Vec<ManifestFile>, splits: bool) -> Result<Collected, String> {
    let mut collected = Collected {
        splits,
        ..Collected::default()
    };
    for file in files {
        for (number, document) in file.documents.into_iter().enumerate() {
            let place = format!("{}, document {}", plain_text(&file.name, 200), number + 1);
            collected.add(document, &place)?;
        }
    }
    let secrets = (!collected.secrets.is_empty()).then(|| {
        format!(
            "readers of bundles would see the values of Secrets: create these on the hub, and name them in spec.sources of the rule: {}",
            collected.secrets.join(", ")
        )
    });
    if collected.manifests.is_empty() {
        return Err(secrets.unwrap_or_else(|| "the input has no manifests".to_owned()));
    }
    collected.notes.extend(collected.left_out.notes());
    collected.notes.extend(secrets);
    Ok(collected)
}

#[derive(Default)]
struct Collected {
    /// Whether the manifests go into several bundles, as their namespaces and sizes ask for.
    splits: bool,
    /// The manifests, each with the namespace that it had.
    manifests: Vec<(Option<String>, Value)>,
    /// Group, kind, namespace and name of each manifest, with its place.
    known: BTreeMap<[String; 4], String>,
    /// The Secrets that no bundle has, for several bundles.
    secrets: Vec<String>,
    /// The kinds that CustomResourceDefinitions of the input define.
    defined: Vec<BundleKind>,
    /// What the hub leaves out of the manifests.
    left_out: LeftOutByKind,
    notes: Vec<String>,
}

impl Collected {
    fn add(&mut self, document: Value, place: &str) -> Result<(), String> {
        let mut object = match document {
            Value::Null => return Ok(()),
            Value::Object(object) if object.is_empty() => return Ok(()),
            Value::Object(object) => object,
            _ => return Err(format!("{place} is no object of Kubernetes")),
        };
        let text = |key: &str| {
            let text = object.get(key).and_then(Value::as_str);
            let text = text.filter(|text| !text.is_empty());
            text.map(str::to_owned)
                .ok_or_else(|| format!("{place} has no {key}"))
        };
        let (api_version, kind) = (text("apiVersion")?, text("kind")?);
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        if kind.ends_with("List")
            && let Some(Value::Array(items)) = object.remove("items")
        {
            for (number, item) in items.into_iter().enumerate() {
                self.add(item, &format!("{place}, item {}", number + 1))?;
            }
            return Ok(());
        }
        let metadata = object.get_mut("metadata").and_then(Value::as_object_mut);
        let Some(metadata) = metadata else {
            return Err(format!("{place} ({kind}) has no metadata"));
        };
        let name = metadata.get("name").and_then(Value::as_str);
        let Some(name) = name.filter(|name| !name.is_empty()).map(str::to_owned) else {
            return Err(format!("{place} ({kind}) has no metadata.name"));
        };
        let shown = format!("{kind} {name}");
        let namespace = match metadata.remove("namespace") {
            Some(Value::String(namespace)) if !namespace.is_empty() => Some(namespace),
            _ => None,
        };
        if group.is_empty() && kind == "Secret" {
            if self.splits {
                let place = namespace
                    .map(|namespace| namespace + "/")
                    .unwrap_or_default();
                self.secrets.push(plain_text(&(place + &name), 200));
                return Ok(());
            }
            return Err(format!(
                "{place} ({shown}): readers of bundles would see the values; create the Secret on the hub, and name it in \
                 spec.sources of the rule"
            ));
        }
        if format!("{}s.{group}", kind.to_lowercase()) == BUNDLE_KIND {
            return Err(format!(
                "{place} ({shown}): a bundle in a bundle is not distributed; give the files of its manifests"
            ));
        }
        self.tidy(metadata, &shown);
        object.remove("status");
        if kind == "CustomResourceDefinition" {
            self.defined.extend(defined_kinds(&object));
        }
        let object = Value::Object(object);
        self.note_left_out(&api_version, &kind, &object);
        let key = [
            group.to_owned(),
            kind,
            namespace.clone().unwrap_or_default(),
            name,
        ];
        if let Some(other) = self.known.insert(key, place.to_owned()) {
            return Err(format!(
                "{place} ({shown}) is there twice: it is also in {other}"
            ));
        }
        self.manifests.push((namespace, object));
        Ok(())
    }

    /// Collects what the hub leaves out of a manifest. The kinds that have such fields have regular plurals.
    fn note_left_out(&mut self, api_version: &str, kind: &str, manifest: &Value) {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let plural = format!("{}s", kind.to_lowercase());
        let read = Kind::new(group, version, kind, &plural, Scope::Namespaced);
        if let Ok(content) = content_of(&read, manifest, Origin::Manifest) {
            let paths = left_out(manifest, &content).into_iter();
            let paths = paths.map(|path| plain_text(&path, 400));
            self.left_out.add(&plain_text(kind, 80), paths);
        }
    }

    /// Removes the metadata that a bundle does not have.
    fn tidy(&mut self, metadata: &mut Map<String, Value>, shown: &str) {
        metadata.retain(|key, value| !SERVER_METADATA.contains(&key.as_str()) && !value.is_null());
        if let Some(Value::Object(annotations)) = metadata.get_mut("annotations") {
            annotations.remove(LAST_APPLIED);
            if annotations.contains_key("helm.sh/hook") {
                self.notes.push(format!(
                    "{shown} is a hook of Helm, and becomes an ordinary object: helm template --no-hooks leaves hooks out"
                ));
            }
            if annotations.is_empty() {
                metadata.remove("annotations");
            }
        }
        let is_kept = |key: &String| MANIFEST_METADATA.contains(&key.as_str());
        let removed: Vec<_> = metadata
            .keys()
            .filter(|key| !is_kept(key))
            .cloned()
            .collect();
        for key in removed {
            metadata.remove(&key);
            let key = plain_text(&key, 80);
            self.notes
                .push(format!("metadata.{key} of {shown} is left out"));
        }
    }

    /// Puts all manifests into one bundle.
    fn whole(&mut self) -> Result<ManifestBundleSpec, String> {
        let manifests = std::mem::take(&mut self.manifests);
        if manifests.len() > limits::MANIFESTS {
            return Err(format!(
                "{} manifests: a bundle has at most {}; --split makes several bundles",
                manifests.len(),
                limits::MANIFESTS
            ));
        }
        let namespaces: BTreeSet<_> = manifests
            .iter()
            .filter_map(|(namespace, _)| namespace.as_deref())
            .collect();
        let namespaces: Vec<_> = namespaces.into_iter().collect();
        match namespaces.as_slice() {
            [] => {}
            [one] => self.notes.push(format!(
                "metadata.namespace: {one} is left out: spec.namespaces of the rule names the target namespaces"
            )),
            several => {
                return Err(format!(
                    "the manifests are for several namespaces ({}), and the rule that selects a bundle names the target namespaces: \
                     --split makes a bundle for each",
                    several.join(", ")
                ));
            }
        }
        let manifests: Vec<_> = manifests
            .into_iter()
            .map(|(_, manifest)| manifest)
            .collect();
        let total: usize = manifests.iter().map(size).sum();
        if total > BUNDLE_BYTES {
            return Err(format!(
                "the manifests have {total} bytes, and a bundle at most {BUNDLE_BYTES}: --split makes several bundles; the largest: {}",
                largest(&manifests)
            ));
        }
        self.note_size(total);
        Ok(self.spec(manifests))
    }

    /// Puts the manifests into as many bundles as needed: of one namespace each, which is that of the bundle, and within the
    /// bounds. `namespace` is that of manifests without one.
    fn split(
        &mut self,
        namespace: Option<&str>,
    ) -> Result<Vec<(Option<String>, ManifestBundleSpec)>, String> {
        let mut places: BTreeMap<Option<String>, Vec<Value>> = BTreeMap::new();
        for (place, manifest) in std::mem::take(&mut self.manifests) {
            let place = place.or_else(|| namespace.map(str::to_owned));
            places.entry(place).or_default().push(manifest);
        }
        let (mut parts, mut most) = (Vec::new(), 0);
        for (place, manifests) in places {
            let (mut part, mut bytes) = (Vec::new(), 0);
            for manifest in manifests {
                let size = size(&manifest);
                if size > BUNDLE_BYTES {
                    let name = largest(std::slice::from_ref(&manifest));
                    return Err(format!(
                        "a manifest has more bytes than a bundle, which has at most {BUNDLE_BYTES}: {name}"
                    ));
                }
                if part.len() == limits::MANIFESTS || bytes + size > BUNDLE_BYTES {
                    parts.push((place.clone(), self.spec(std::mem::take(&mut part))));
                    bytes = 0;
                }
                bytes += size;
                most = most.max(bytes);
                part.push(manifest);
            }
            parts.push((place, self.spec(part)));
        }
        self.note_size(most);
        Ok(parts)
    }

    fn note_size(&mut self, bytes: usize) {
        if bytes > ANNOTATION_BYTES {
            self.notes.push(
                "a bundle is too large for the annotation of kubectl apply: use kubectl apply --server-side".to_owned(),
            );
        }
    }

    /// Returns a bundle with the kinds of its manifests that the input defines.
    fn spec(&self, manifests: Vec<Value>) -> ManifestBundleSpec {
        let is_used = |kind: &&BundleKind| {
            let is_it = |manifest: &Value| {
                manifest["apiVersion"] == *kind.api_version && manifest["kind"] == *kind.kind
            };
            manifests.iter().any(is_it)
        };
        let kinds = self.defined.iter().filter(is_used);
        let kinds = kinds.take(limits::MANIFESTS).cloned().collect();
        ManifestBundleSpec { manifests, kinds }
    }
}

fn size(manifest: &Value) -> usize {
    manifest.to_string().len()
}

/// Returns the bytes and names of the largest manifests.
fn largest(manifests: &[Value]) -> String {
    let sized = |manifest: &Value| {
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let name = word(&manifest["metadata"]["name"]);
        (
            size(manifest),
            format!("{} {name}", word(&manifest["kind"])),
        )
    };
    let mut sizes: Vec<_> = manifests.iter().map(sized).collect();
    sizes.sort_by(|one, two| two.cmp(one));
    let largest = sizes.iter().take(LARGEST);
    let largest = largest.map(|(bytes, name)| format!("{name} {bytes}"));
    largest.collect::<Vec<_>>().join(", ")
}

/// Returns the kinds of a CustomResourceDefinition, one for each version.
fn defined_kinds(definition: &Map<String, Value>) -> Vec<BundleKind> {
    let Some(spec) = definition.get("spec") else {
        return Vec::new();
    };
    let text = |pointer: &str| spec.pointer(pointer).and_then(Value::as_str);
    let (Some(group), Some(kind), Some(plural)) =
        (text("/group"), text("/names/kind"), text("/names/plural"))
    else {
        return Vec::new();
    };
    let scope = match text("/scope") {
        Some("Cluster") => BundleKindScope::Cluster,
        _ => BundleKindScope::Namespaced,
    };
    let versions = spec.get("versions").and_then(Value::as_array);
    let names = versions.into_iter().flatten();
    let names = names.filter_map(|version| version["name"].as_str());
    names
        .map(|version| BundleKind {
            api_version: format!("{group}/{version}"),
            kind: kind.to_owned(),
            plural: plural.to_owned(),
            scope,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(documents: Vec<Value>) -> Result<Bundled, String> {
        bundled(vec![ManifestFile {
            name: "all.yaml".to_owned(),
            documents,
        }])
    }

    fn error(documents: Vec<Value>) -> String {
        of(documents).err().expect("it is refused")
    }

    fn map(name: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"k": "v"}})
    }

    #[test]
    fn lists_are_split_and_fields_of_a_server_removed() {
        let mut live = map("live");
        live["status"] = json!({"phase": "x"});
        live["metadata"] = json!({
            "name": "live", "uid": "u", "resourceVersion": "1", "creationTimestamp": null, "labels": {"a": "b"},
            "annotations": {LAST_APPLIED: "{}"}, "ownerReferences": [{"name": "o"}],
        });
        let list = json!({"apiVersion": "v1", "kind": "List", "items": [live, map("other")]});
        let made = of(vec![Value::Null, list, map("last")]).unwrap();
        let expected = json!([
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "live", "labels": {"a": "b"}}, "data": {"k": "v"}},
            map("other"), map("last"),
        ]);
        assert_eq!(json!(made.spec.manifests), expected);
        assert_eq!(
            made.notes,
            ["metadata.ownerReferences of ConfigMap live is left out"]
        );
        assert!(made.spec.kinds.is_empty());
    }

    #[test]
    fn namespace_is_left_out_and_several_are_refused() {
        let within = |name: &str, namespace: &str| {
            let mut map = map(name);
            map["metadata"]["namespace"] = json!(namespace);
            map
        };
        let made = of(vec![within("a", "shop"), within("b", "shop"), map("c")]).unwrap();
        assert!(
            made.notes[0].contains("metadata.namespace: shop"),
            "{:?}",
            made.notes
        );
        assert!(
            made.spec
                .manifests
                .iter()
                .all(|one| one["metadata"]["namespace"].is_null())
        );
        let error = error(vec![within("a", "shop"), within("b", "pay")]);
        assert!(error.contains("pay, shop"), "{error}");
    }

    #[test]
    fn what_no_bundle_has_is_refused_with_its_place() {
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"k": "hunter2"},
        });
        let message = error(vec![map("a"), secret]);
        assert!(
            message.starts_with("all.yaml, document 2 (Secret s)"),
            "{message}"
        );
        assert!(!message.contains("hunter2"));
        let bundle = json!({"apiVersion": "runnel.dev/v1alpha1", "kind": "ManifestBundle", "metadata": {"name": "b"}});
        assert!(error(vec![bundle]).contains("a bundle in a bundle"));
        assert!(
            error(vec![map("a"), map("a")]).contains("twice: it is also in all.yaml, document 1")
        );
        assert!(error(vec![json!([1])]).contains("no object"));
        assert!(error(vec![json!({"kind": "X"})]).contains("no apiVersion"));
        assert!(error(vec![json!({"apiVersion": "v1", "kind": "X"})]).contains("no metadata"));
        assert!(
            error(vec![
                json!({"apiVersion": "v1", "kind": "X", "metadata": {}})
            ])
            .contains("no metadata.name")
        );
        assert!(error(vec![Value::Null]).contains("no manifests"));
    }

    #[test]
    fn bundle_is_bounded_in_number_and_bytes() {
        let many = |count: usize| {
            (0..count)
                .map(|number| map(&format!("m{number}")))
                .collect()
        };
        assert!(of(many(limits::MANIFESTS)).is_ok());
        assert!(error(many(limits::MANIFESTS + 1)).contains("101 manifests"));
        let large = |name: &str, bytes: usize| {
            let mut map = map(name);
            map["data"]["k"] = json!("x".repeat(bytes));
            map
        };
        let made = of(vec![large("a", ANNOTATION_BYTES)]).unwrap();
        assert!(made.notes[0].contains("--server-side"));
        let rest = BUNDLE_BYTES - map("a").to_string().len() - map("b").to_string().len() + 2;
        assert!(of(vec![large("a", rest / 2), large("b", rest - rest / 2)]).is_ok());
        let message = error(vec![large("a", rest / 2), large("b", rest - rest / 2 + 1)]);
        assert!(message.contains("the largest: ConfigMap b"), "{message}");
    }

    #[test]
    fn whole_chart_is_split_by_namespace_and_size() {
        let within = |kind: &str, name: &str, namespace: &str| json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": namespace}, "data": {}});
        let mut documents: Vec<_> = (0..limits::MANIFESTS + 1)
            .map(|number| map(&format!("m{number}")))
            .collect();
        // The same name in two namespaces is no manifest that is there twice.
        documents.extend([
            within("ConfigMap", "a", "shop"),
            within("ConfigMap", "a", "pay"),
            within("Secret", "key", "pay"),
        ]);
        let file = ManifestFile {
            name: "chart.yaml".to_owned(),
            documents,
        };
        let mut all = collected(vec![file], true).unwrap();
        let parts = all.split(Some("system")).unwrap();
        let found: Vec<_> = parts
            .iter()
            .map(|(place, spec)| (place.as_deref().unwrap(), spec.manifests.len()))
            .collect();
        assert_eq!(
            found,
            [("pay", 1), ("shop", 1), ("system", 100), ("system", 1)]
        );
        assert!(
            all.notes.iter().any(|note| note.ends_with(": pay/key")),
            "{:?}",
            all.notes
        );
        let text = printed("web", parts.clone(), BundleOutput::Yaml).unwrap();
        let read: Vec<ManifestBundle> = serde_saphyr::from_multiple(&text).unwrap();
        let names: Vec<_> = read
            .iter()
            .map(|bundle| bundle.metadata.name.as_deref().unwrap())
            .collect();
        assert_eq!(names, ["web-1", "web-2", "web-3", "web-4"]);
        assert_eq!(read[0].metadata.namespace.as_deref(), Some("pay"));
        let text = printed("web", parts[..1].to_vec(), BundleOutput::Json).unwrap();
        let read: ManifestBundle = serde_json::from_str(&text).unwrap();
        assert_eq!(read.metadata.name.as_deref(), Some("web"));
    }

    #[test]
    fn kinds_that_the_input_defines_are_named() {
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "widgets.example.org"},
            "spec": {
                "group": "example.org", "scope": "Namespaced", "names": {"kind": "Widget", "plural": "widgets"},
                "versions": [{"name": "v1"}, {"name": "v2"}],
            },
        });
        let widget =
            json!({"apiVersion": "example.org/v2", "kind": "Widget", "metadata": {"name": "w"}});
        let made = of(vec![definition, widget]).unwrap();
        let expected = BundleKind {
            api_version: "example.org/v2".to_owned(),
            kind: "Widget".to_owned(),
            plural: "widgets".to_owned(),
            scope: BundleKindScope::Namespaced,
        };
        assert_eq!(made.spec.kinds, [expected]);
    }

    #[test]
    fn parts_of_manifests_that_are_not_sent_are_named() {
        let mut one = map("a");
        one["metadata"]["labels"] = json!({"app.kubernetes.io/managed-by": "Helm", "app": "a"});
        let mut job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}});
        job["spec"] = json!({"selector": {"matchLabels": {"a": "b"}}});
        let made = of(vec![one, job, map("b")]).unwrap();
        let expected = [
            "copies of ConfigMap do not get /metadata/labels/app.kubernetes.io~1managed-by",
            "copies of Job do not get /spec/selector/matchLabels/a",
        ];
        assert_eq!(made.notes, expected);
    }

    #[test]
    fn hook_of_helm_is_noted() {
        let mut hook = map("test");
        hook["metadata"]["annotations"] = json!({"helm.sh/hook": "test"});
        assert!(of(vec![hook]).unwrap().notes[0].contains("--no-hooks"));
    }

    #[test]
    fn yaml_of_a_bundle_is_read_back_exactly() {
        let tricky = json!({
            "bool": "yes", "number": "0123", "null": "null", "empty": "", "lines": "a\n  b\n\n", "tab": "\ta", "colon": "a: b # c",
            "control": "\u{1b}[31m\u{202e}", "dash": "- x", "quote": "'\"", "date": "2020-01-01", "e": "1e3", "space": " x ",
        });
        let mut one = map("a");
        one["data"] = tricky;
        let made = of(vec![one]).unwrap();
        let object = ManifestBundle::new("b", made.spec);
        let text = serde_saphyr::to_string(&object).unwrap();
        let read: ManifestBundle = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(read, object);
    }

    #[test]
    fn bundle_is_called_as_its_only_file() {
        let folder = std::env::temp_dir().join(format!("runnel-bundle-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("web")).unwrap();
        let path = |name: &str| folder.join(name).display().to_string();
        std::fs::write(path("app.yaml"), "").unwrap();
        assert_eq!(name_of(&[path("app.yaml")]).unwrap(), "app");
        assert_eq!(name_of(&[path("web")]).unwrap(), "web");
        assert!(
            name_of(&[path("web"), path("app.yaml")])
                .unwrap_err()
                .contains("--name")
        );
        assert!(name_of(&["-".to_owned()]).unwrap_err().contains("--name"));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
