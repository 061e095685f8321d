//! Reads the manifests of a bundle.
//!
//! A manifest is what it would be were the object itself in the namespace of the bundle: the same source, the same content
//! and the same revision. An object of a kind without namespaces is in none. A manifest that cannot be sent is an error with
//! its number and name; the others are sent.
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::Arc;

use runnel_api::{BUNDLE_KIND, BundleKind, BundleKindScope, CLUSTER_KINDS, ManifestBundleSpec};
use runnel_proto::json_nodes::CONTENT_NODES;
use runnel_proto::model::{
    Content, CopyMode, Kind, Kinds, PAYLOAD_LIMIT, Revision, RevisionKey, Scope, SourceRef,
    is_privileged, is_subdomain, plain_text,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::content::{ContentRefusal, check_distributed, is_never_a_manifest, source_content};
use super::portable::{NEVER, Origin, is_controlled};
use super::stored_source::{StoredSource, named, source_of};
use super::{RenderError, RenderErrorKind, SourceContent, SourceState};

/// The metadata that a manifest may have.
pub const MANIFEST_METADATA: [&str; 3] = ["annotations", "labels", "name"];
/// The most bytes of a name or a word of a manifest in a message.
const SHOWN: usize = 80;

/// Why a DistributionRule does not send a manifest of a kind without namespaces.
const NO_NAMESPACE: &str = "it belongs to no namespace, and a DistributionRule sends only objects of namespaces: select the bundle by a \
                            ClusterDistributionRule, or move the manifest to a bundle of its own";

/// A manifest, or why it is not sent.
pub(super) type Manifest = Result<Arc<SourceContent>, RenderError>;

/// The manifests of a bundle.
pub struct Bundle {
    /// By the source that each manifest is. The errors of manifests that are none have the bundle itself as key.
    pub(super) manifests: BTreeMap<SourceRef, Manifest>,
    /// Why a DistributionRule does not send its manifests of kinds without namespaces.
    cluster_scoped: BTreeMap<SourceRef, RenderError>,
    /// Whether it has a manifest of a kind that is not known.
    has_unknown_kind: bool,
}

impl Bundle {
    /// The bundle with its manifests in a mode that a rule asks for.
    pub(super) fn in_mode(&self, mode: CopyMode) -> Self {
        let change = |(source, manifest): (&SourceRef, &Manifest)| {
            let manifest = manifest.as_ref().map(|content| content.in_mode(Some(mode)));
            (source.clone(), manifest.map_err(Clone::clone))
        };
        Self {
            manifests: self.manifests.iter().map(change).collect(),
            cluster_scoped: self.cluster_scoped.clone(),
            has_unknown_kind: self.has_unknown_kind,
        }
    }
}

/// Whether a source is a bundle.
pub fn is_bundle(source: &SourceRef) -> bool {
    *source.resource == *BUNDLE_KIND
}

impl SourceContent {
    /// Content of a bundle.
    pub(super) fn of_bundle(revision: Revision, controlled: bool, bundle: Bundle) -> Self {
        let mut content = Self::of(revision, &Content::default(), vec![]);
        content.controlled = controlled;
        content.bundle = Some(Box::new(bundle));
        content
    }

    /// Whether this is a bundle with a manifest of a kind that was not known when it was read.
    pub fn has_unknown_kind(&self) -> bool {
        self.bundle
            .as_ref()
            .is_some_and(|bundle| bundle.has_unknown_kind)
    }

    /// Returns the kinds of manifests that the author of a bundle must be allowed to create: those that carry rights, and
    /// those without namespaces (`true`), in the whole cluster.
    pub fn author_checked(&self) -> BTreeSet<(&str, bool)> {
        let manifests = self.bundle.iter().flat_map(|bundle| &bundle.manifests);
        let sent = manifests.filter(|(_, manifest)| manifest.is_ok());
        sent.map(|(intent, _)| (&*intent.resource, intent.is_cluster_scoped()))
            .filter(|(resource, is_of_cluster)| *is_of_cluster || is_privileged(resource))
            .collect()
    }

    /// The size of the content, and of the manifests of a bundle.
    pub fn size_bytes(&self) -> usize {
        let manifests = self
            .bundle
            .iter()
            .flat_map(|bundle| bundle.manifests.values());
        let contents = manifests
            .flatten()
            .map(|content| content.payload.bytes().len());
        contents.fold(self.payload.bytes().len(), usize::saturating_add)
    }
}

/// Returns the state of an object as the API server gave it. `kind` is its kind, and `kinds` are all that the API server
/// of the hub serves, for bundles.
pub fn read_source(
    kind: &Kind,
    source: &SourceRef,
    object: &Value,
    kinds: &Kinds,
    key: &RevisionKey,
) -> SourceState {
    if !is_bundle(source) {
        return match source_content(kind, object, Origin::HubCluster, key) {
            Ok(content) => SourceState::Read(Arc::new(content)),
            Err(refusal) => SourceState::Refused(refusal.into()),
        };
    }
    if let Err(refused) = check_distributed(kind, object) {
        return SourceState::Refused(refused);
    }
    let bundle = read_bundle(source, object, kinds, key);
    bundle.map_or(SourceState::Unreadable, |bundle| {
        SourceState::Read(Arc::new(bundle))
    })
}

/// Reads a bundle. `kinds` are the kinds that the API server of the hub serves. Returns `None` for an object that is no
/// bundle, which the schema refuses.
pub(crate) fn read_bundle(
    source: &SourceRef,
    object: &Value,
    kinds: &Kinds,
    key: &RevisionKey,
) -> Option<SourceContent> {
    let spec = ManifestBundleSpec::deserialize(object.get("spec")?).ok()?;
    let reader = ManifestReader {
        source,
        kinds,
        named: &spec.kinds,
        key,
    };
    let mut bundle = Bundle {
        manifests: BTreeMap::new(),
        cluster_scoped: BTreeMap::new(),
        has_unknown_kind: false,
    };
    for (number, manifest) in spec.manifests.iter().enumerate() {
        let place = ManifestPlace::new(source, number, manifest);
        let (intent, read) = match reader.identify(manifest) {
            Ok((kind, intent)) => {
                let read = reader.read(&kind, &intent.name, manifest);
                (intent, read)
            }
            Err(refused) => {
                bundle.has_unknown_kind |= matches!(refused, RefusedManifest::UnknownKind(_));
                (source.clone(), Err(refused.message()))
            }
        };
        let mut read = read.map(Arc::new).map_err(|why| place.error(&why));
        if intent != *source && bundle.manifests.contains_key(&intent) {
            read =
                Err(place.error("another manifest of the bundle is the same object: remove one"));
        }
        if intent.is_cluster_scoped() {
            let error = place.error(NO_NAMESPACE);
            bundle.cluster_scoped.insert(intent.clone(), error);
        }
        // Of several errors without an identity the first one is shown.
        if intent != *source || !bundle.manifests.contains_key(source) {
            bundle.manifests.insert(intent, read);
        }
    }
    let revision = key.revision(BUNDLE_KIND, &bundle.canonical());
    let controlled = is_controlled(object);
    Some(SourceContent::of_bundle(revision, controlled, bundle))
}

/// The parts of a bundle, as a state of a completed rollout stores them.
#[derive(Serialize, Deserialize)]
pub(super) struct BundleParts<C> {
    /// Each manifest, or the message of its error.
    manifests: Vec<(StoredSource, Result<C, String>)>,
    /// The manifests of kinds without namespaces, with the message for a DistributionRule.
    cluster_scoped: Vec<(StoredSource, String)>,
}

impl Bundle {
    /// Returns the parts. `part` gives what stands for a content.
    pub(super) fn parts<C>(
        &self,
        mut part: impl FnMut(&Arc<SourceContent>) -> C,
    ) -> BundleParts<C> {
        let manifests = self.manifests.iter().map(|(source, manifest)| {
            let manifest = manifest.as_ref().map(&mut part);
            (
                named(source),
                manifest.map_err(|error| error.message.to_string()),
            )
        });
        let manifests = manifests.collect();
        let refused = self.cluster_scoped.iter();
        BundleParts {
            manifests,
            cluster_scoped: refused
                .map(|(source, error)| (named(source), error.message.to_string()))
                .collect(),
        }
    }

    /// Returns the bundle with these parts; `None` if it has a part without content.
    pub(super) fn of_parts<C>(
        parts: BundleParts<C>,
        content: impl Fn(C) -> Option<Arc<SourceContent>>,
    ) -> Option<Self> {
        let error = |message: String| RenderError {
            why: RenderErrorKind::Object,
            message: message.into(),
        };
        let manifests = parts.manifests.into_iter().map(|(source, manifest)| {
            let manifest = match manifest {
                Ok(part) => Ok(content(part)?),
                Err(message) => Err(error(message)),
            };
            Some((source_of(&source), manifest))
        });
        let refused = parts.cluster_scoped.into_iter();
        Some(Self {
            manifests: manifests.collect::<Option<_>>()?,
            cluster_scoped: refused
                .map(|(source, message)| (source_of(&source), error(message)))
                .collect(),
            has_unknown_kind: false,
        })
    }

    /// Returns the manifests as a rule sends them. `is_namespaced`: it is a DistributionRule.
    pub(super) fn sent_by(
        &self,
        is_namespaced: bool,
    ) -> impl Iterator<Item = (&SourceRef, Manifest)> {
        self.manifests.iter().map(move |(intent, manifest)| {
            let refused = self.cluster_scoped.get(intent).filter(|_| is_namespaced);
            let sent = refused.map_or_else(|| manifest.clone(), |error| Err(error.clone()));
            (intent, sent)
        })
    }

    /// Bytes that are equal for equal manifests with equal errors.
    fn canonical(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut add = |part: &[u8]| {
            bytes.extend((part.len() as u64).to_be_bytes());
            bytes.extend(part);
        };
        for (intent, manifest) in &self.manifests {
            add(intent.to_string().as_bytes());
            match manifest {
                Ok(content) => {
                    add(&content.revision.0);
                    add(content
                        .denied
                        .as_ref()
                        .map_or(&[][..], |denied| &denied.bytes()[..]));
                }
                Err(error) => add(error.message.as_bytes()),
            }
        }
        bytes
    }
}

/// Why a manifest is not sent.
enum RefusedManifest {
    /// Its kind is not known.
    UnknownKind(String),
    /// For this reason.
    Because(String),
}

impl RefusedManifest {
    fn message(self) -> String {
        match self {
            Self::UnknownKind(message) | Self::Because(message) => message,
        }
    }
}

impl From<String> for RefusedManifest {
    fn from(message: String) -> Self {
        Self::Because(message)
    }
}

/// The place of a manifest, for messages.
struct ManifestPlace(String);

impl ManifestPlace {
    fn new(bundle: &SourceRef, number: usize, manifest: &Value) -> Self {
        let mut text = format!("spec.manifests[{number}] of {bundle}");
        let word = |value: Option<&Value>| {
            let word = value.and_then(Value::as_str).unwrap_or_default();
            plain_text(word, SHOWN)
        };
        let kind = word(manifest.get("kind"));
        let name = word(manifest.pointer("/metadata/name"));
        if !kind.is_empty() || !name.is_empty() {
            let separator = if kind.is_empty() || name.is_empty() {
                ""
            } else {
                " "
            };
            // Writing to a string cannot fail.
            let _ = write!(text, " ({kind}{separator}{name})");
        }
        Self(text)
    }

    fn error(&self, why: &str) -> RenderError {
        RenderError {
            why: RenderErrorKind::Object,
            message: format!("{}: {why}", self.0).into(),
        }
    }
}

struct ManifestReader<'a> {
    source: &'a SourceRef,
    kinds: &'a Kinds,
    named: &'a [BundleKind],
    key: &'a RevisionKey,
}

impl ManifestReader<'_> {
    /// Returns the kind of a manifest, and the source that it is.
    fn identify(&self, manifest: &Value) -> Result<(Kind, SourceRef), RefusedManifest> {
        let text = |pointer: &str| manifest.pointer(pointer).and_then(Value::as_str);
        let filled = |pointer: &str| text(pointer).filter(|text| !text.is_empty());
        let api_version =
            filled("/apiVersion").ok_or_else(|| "apiVersion is missing".to_owned())?;
        let word = filled("/kind").ok_or_else(|| "kind is missing".to_owned())?;
        let name = filled("/metadata/name").ok_or_else(|| "metadata.name is missing".to_owned())?;
        let kind = self.kind(api_version, word)?;
        if *kind.resource == *BUNDLE_KIND {
            return Err(
                "a bundle in a bundle is not distributed: write its manifests"
                    .to_owned()
                    .into(),
            );
        }
        let namespace = match kind.scope {
            Scope::Namespaced => &*self.source.namespace,
            Scope::Cluster => "",
        };
        let intent = SourceRef::checked(&kind.resource, namespace, name);
        let intent = intent.ok_or_else(|| {
            "metadata.name is no name of an object: it has up to 253 lowercase letters, digits, '-' and '.', with a letter \
             or digit at both ends"
                .to_owned()
        })?;
        Ok((kind, intent))
    }

    /// Returns the kind of a manifest, in its version.
    fn kind(&self, api_version: &str, word: &str) -> Result<Kind, RefusedManifest> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let is_it = |kind: &&Kind| *kind.group == *group && *kind.kind == *word;
        if let Some(kind) = self.kinds.iter().find(is_it) {
            return Ok(Kind::new(group, version, word, &kind.plural, kind.scope));
        }
        let named = self
            .named
            .iter()
            .find(|kind| kind.api_version == api_version && kind.kind == word);
        let Some(named) = named else {
            return Err(RefusedManifest::UnknownKind(format!(
                "the API server of the hub does not serve {} {}: correct apiVersion and kind, or name the kind with its \
                 plural in spec.kinds of the bundle",
                plain_text(api_version, SHOWN),
                plain_text(word, SHOWN)
            )));
        };
        let scope = match named.scope {
            BundleKindScope::Namespaced => Scope::Namespaced,
            BundleKindScope::Cluster => Scope::Cluster,
        };
        let kind = Kind::new(group, version, word, &named.plural, scope);
        if !is_subdomain(&kind.resource) || named.plural.contains('.') {
            return Err(RefusedManifest::Because(format!(
                "spec.kinds names {word} with the plural `{}`, which is none: write it as in the name of the \
                 CustomResourceDefinition before the first dot",
                plain_text(&named.plural, SHOWN)
            )));
        }
        // Otherwise the name of the kind would hide what is sent.
        if let Some(served) = self.kinds.preferred(&kind.resource) {
            return Err(RefusedManifest::Because(format!(
                "spec.kinds names {} as the plural of {word}, and on the hub it is that of {}: correct it",
                kind.resource, served.kind
            )));
        }
        Ok(kind)
    }

    /// Whether the admission policy of the hub checks that the author of the bundle may create objects of a kind without
    /// namespaces. It does not know the scope and the plural of custom kinds.
    fn is_author_checked(&self, kind: &Kind) -> bool {
        let is_built_in = || {
            CLUSTER_KINDS
                .iter()
                .any(|(group, word)| *kind.group == **group && *kind.kind == **word)
        };
        let is_it = |named: &BundleKind| {
            named.api_version == *kind.api_version
                && named.kind == *kind.kind
                && named.plural == *kind.plural
                && named.scope == BundleKindScope::Cluster
        };
        is_privileged(&kind.resource) || is_built_in() || self.named.iter().any(is_it)
    }

    /// Returns the content of a manifest, or why it is not sent.
    fn read(&self, kind: &Kind, name: &str, manifest: &Value) -> Result<SourceContent, String> {
        if kind.content.sensitive {
            return Err(format!(
                "readers of bundles would see the values: distribute the {} itself, by spec.sources of the rule",
                kind.kind
            ));
        }
        if kind.scope == Scope::Cluster && !self.is_author_checked(kind) {
            return Err(format!(
                "{} belong to no namespace: name the kind in spec.kinds of the bundle, with plural {} and scope Cluster, so \
                 that the API server checks what its author may create",
                kind.resource, kind.plural
            ));
        }
        let metadata = manifest.get("metadata").and_then(Value::as_object);
        let is_set = |(key, value): &(&String, &Value)| {
            !MANIFEST_METADATA.contains(&key.as_str()) && !value.is_null()
        };
        if let Some((key, _)) = metadata.into_iter().flatten().find(is_set) {
            let key = plain_text(key, SHOWN);
            return Err(if key == "namespace" {
                "metadata.namespace is not allowed: remove it, and name target namespaces in spec.namespaces of the rule"
                    .to_owned()
            } else {
                format!("metadata.{key} is not for a manifest: remove it")
            });
        }
        let fields = &kind.content.fields;
        let is_unknown = |key: &&String| {
            !fields.is_empty() && !fields.contains(&key.as_str()) && !NEVER.contains(&key.as_str())
        };
        let keys = manifest.as_object().into_iter().flat_map(Map::keys);
        if let Some(key) = keys.into_iter().find(is_unknown) {
            let key = plain_text(key, SHOWN);
            return Err(format!(
                "{} have no field {key}: correct or remove it",
                kind.resource
            ));
        }
        let labels: BTreeMap<String, String> = metadata
            .and_then(|metadata| metadata.get("labels"))
            .and_then(|labels| BTreeMap::deserialize(labels).ok())
            .unwrap_or_default();
        if is_never_a_manifest(kind, name, &labels) {
            return Err(
                "every cluster makes such an object itself, or it is one of Runnel's own: remove it"
                    .to_owned(),
            );
        }
        source_content(kind, manifest, Origin::Manifest, self.key).map_err(
            |refusal| match refusal {
                ContentRefusal::Unsupported(refused) => refused.reason().to_owned(),
                ContentRefusal::TooLarge(bytes) => {
                    format!("it has {bytes} bytes, and an agent accepts {PAYLOAD_LIMIT}: divide it")
                }
                ContentRefusal::TooManyNodes(nodes) => format!(
                    "it has {nodes} JSON values, and an agent accepts {CONTENT_NODES}: divide it"
                ),
            },
        )
    }
}

#[cfg(test)]
#[path = "bundle_tests.rs"]
mod tests;
