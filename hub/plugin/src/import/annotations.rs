//! Reads the configuration of other copiers from annotations and labels of objects.
use std::collections::{BTreeMap, BTreeSet};

use runnel_proto::model::Kind;

use super::choice::{self, Choice, NamespaceExpression, NamespaceLabels};
use super::kinds;
pub use crate::args::Copier;

const REPLICATOR: &str = "replicator.v1.mittwald.de/";
const REFLECTOR: &str = "reflector.v1.k8s.emberstack.com/";
const SYNCER: &str = "kubed.appscode.com/";

impl Copier {
    /// All that are known by their annotations.
    pub const KNOWN: [Self; 3] = [Self::Replicator, Self::Reflector, Self::ConfigSyncer];

    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Replicator => "kubernetes-replicator",
            Self::Reflector => "kubernetes-reflector",
            Self::ConfigSyncer => "config-syncer",
            Self::Label => "the copier by label",
        }
    }

    /// Returns the name prefix of its rules.
    pub fn rule_prefix(self) -> &'static str {
        match self {
            Self::Replicator => "replicator",
            Self::Reflector => "reflector",
            Self::ConfigSyncer => "config-syncer",
            Self::Label => "label",
        }
    }

    /// Returns the prefix of its annotations.
    fn prefix(self) -> Option<&'static str> {
        match self {
            Self::Replicator => Some(REPLICATOR),
            Self::Reflector => Some(REFLECTOR),
            Self::ConfigSyncer => Some(SYNCER),
            Self::Label => None,
        }
    }

    /// Whether it copies objects of this kind, `plural[.group]`.
    fn copies(self, resource: &str) -> bool {
        let is_replicated = self == Self::Replicator && kinds::replicated(resource).is_some();
        is_replicated || Kind::by_resource(resource).is_some()
    }

    /// Whether an image has the copier's name, in any registry.
    pub fn runs(self, image: &str) -> bool {
        let image = image.split('@').next().unwrap_or_default();
        let image = image.rsplit('/').next().unwrap_or_default();
        let image = image.split(':').next().unwrap_or_default();
        let words: &[&str] = match self {
            Self::Replicator => &["kubernetes-replicator"],
            Self::Reflector => &["kubernetes-reflector"],
            Self::ConfigSyncer => &["config-syncer", "kubed"],
            Self::Label => &[],
        };
        words.contains(&image)
    }
}

/// The identity of an object: `plural[.group]` of its kind, namespace and name.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Id {
    /// The kind, such as `secrets` or `roles.rbac.authorization.k8s.io`.
    pub resource: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl std::fmt::Display for Id {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(to, "{}/{}/{}", self.resource, self.namespace, self.name)
    }
}

/// The metadata of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectMetadata {
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
}

impl ObjectMetadata {
    fn annotation(&self, prefix: &str, key: &str) -> Option<&str> {
        self.annotations
            .get(&format!("{prefix}{key}"))
            .map(String::as_str)
    }

    fn allows(&self, prefix: &str, key: &str) -> bool {
        self.annotation(prefix, key)
            .is_some_and(|value| matches!(value.to_ascii_lowercase().as_str(), "true" | "1" | "t"))
    }

    /// The annotations that configure copiers, or that copiers write.
    pub fn marks(&self) -> impl Iterator<Item = &str> {
        self.annotations
            .keys()
            .map(String::as_str)
            .filter(|key| copier_of(key).is_some())
    }

    /// Returns the copier that wrote the object, by its marks.
    pub fn copy_of(&self) -> Option<Copier> {
        let replicated = self
            .annotation(REPLICATOR, "replicated-from-version")
            .is_some();
        let reflected = self.annotation(REFLECTOR, "reflected-version").is_some();
        let synced = self.annotations.contains_key("kubed.appscode.com/origin")
            || self.labels.contains_key("kubed.appscode.com/origin.name");
        match (replicated, reflected, synced) {
            (true, ..) => Some(Copier::Replicator),
            (_, true, _) => Some(Copier::Reflector),
            (.., true) => Some(Copier::ConfigSyncer),
            _ => None,
        }
    }
}

/// Returns the copier of an annotation.
pub fn copier_of(key: &str) -> Option<Copier> {
    Copier::KNOWN.into_iter().find(|copier| {
        copier
            .prefix()
            .is_some_and(|prefix| key.starts_with(prefix))
    })
}

/// All relevant objects.
pub type Objects = BTreeMap<Id, ObjectMetadata>;

/// A source with its targets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyRequest {
    /// The copier of today.
    pub copier: Copier,
    /// The source.
    pub source: Id,
    /// The target namespaces.
    pub choice: Choice,
    /// The name of the copies.
    pub copy_name: String,
    /// Whether the copies were there before the copier filled them: it never deletes such.
    pub filled: bool,
    /// Whether the copies get the source's labels.
    pub labels: bool,
    /// Whether the copies get the source's annotations.
    pub annotations: bool,
}

/// The result of reading the annotations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadAnnotations {
    /// The copy requests.
    pub requests: Vec<CopyRequest>,
    /// Requests that no rule can replace: the object and the reason.
    pub notes: Vec<(Id, String)>,
}

impl ReadAnnotations {
    pub(super) fn note(&mut self, of: &Id, text: impl Into<String>) {
        self.notes.push((of.clone(), text.into()));
    }

    pub(super) fn push(&mut self, copier: Copier, source: &Id, choice: Choice) -> &mut CopyRequest {
        self.requests.push(CopyRequest {
            copier,
            source: source.clone(),
            choice,
            copy_name: source.name.clone(),
            filled: false,
            labels: true,
            annotations: false,
        });
        let last = self.requests.len() - 1;
        &mut self.requests[last]
    }
}

/// Reads the configuration of the copiers from annotations.
pub fn read(objects: &Objects, places: &NamespaceLabels, of: &[Copier]) -> ReadAnnotations {
    let mut read = ReadAnnotations::default();
    for (id, marked) in objects {
        for copier in of {
            if !copier.copies(&id.resource) {
                if marked.marks().any(|mark| copier_of(mark) == Some(*copier)) {
                    let name = copier.name();
                    let why =
                        format!("{name} copies only ConfigMaps and Secrets; no rule is created");
                    read.note(id, why);
                }
                continue;
            }
            match copier {
                Copier::Replicator => replicator(id, marked, objects, places, &mut read),
                Copier::Reflector => reflector(id, marked, objects, places, &mut read),
                Copier::ConfigSyncer => syncer(id, marked, places, &mut read),
                Copier::Label => {}
            }
        }
    }
    once_each(&mut read, places);
    read
}

fn replicator(
    id: &Id,
    marked: &ObjectMetadata,
    objects: &Objects,
    places: &NamespaceLabels,
    read: &mut ReadAnnotations,
) {
    let annotation = |key: &str| marked.annotation(REPLICATOR, key);
    if marked.allows(REPLICATOR, "keep-owner-references") {
        read.note(id, "keep-owner-references: a copy in another cluster cannot have the owner, copies get no owner");
    }
    if let Some(from) = annotation("replicate-from") {
        let allowed = |source: &ObjectMetadata| {
            let list = source
                .annotation(REPLICATOR, "replication-allowed-namespaces")
                .unwrap_or_default();
            let written = NamespaceExpression { list, selector: "" };
            let is_named =
                !list.trim().is_empty() && written.includes(&id.namespace, &BTreeMap::new());
            source.allows(REPLICATOR, "replication-allowed") && is_named
        };
        return filled(Copier::Replicator, id, from, objects, allowed, read);
    }
    let (list, selector) = (
        annotation("replicate-to"),
        annotation("replicate-to-matching"),
    );
    if list.is_none() && selector.is_none() {
        return;
    }
    if marked.allows(REPLICATOR, "replicate-once") {
        read.note(
            id,
            "replicate-once: a rule follows every edit of its source; no rule is created",
        );
        return;
    }
    let mut choice = Choice::default();
    if let Some(list) = list.filter(|list| !list.trim().is_empty()) {
        choice = choice.and(choice::chosen(
            NamespaceExpression { list, selector: "" },
            places,
        ));
    }
    if let Some(selector) = selector {
        choice = choice.and(choice::chosen(
            NamespaceExpression { list: "", selector },
            places,
        ));
    }
    let labels = !marked.allows(REPLICATOR, "strip-labels");
    read.push(Copier::Replicator, id, choice).labels = labels;
}

fn reflector(
    id: &Id,
    marked: &ObjectMetadata,
    objects: &Objects,
    places: &NamespaceLabels,
    read: &mut ReadAnnotations,
) {
    let annotation = |key: &str| marked.annotation(REFLECTOR, key).unwrap_or_default();
    if !annotation("reflects").is_empty() {
        if marked.allows(REFLECTOR, "auto-reflects") {
            return; // The source says it.
        }
        let labels = places.get(&id.namespace).cloned().unwrap_or_default();
        let allowed = |source: &ObjectMetadata| {
            let annotation = |key: &str| source.annotation(REFLECTOR, key).unwrap_or_default();
            let written = NamespaceExpression {
                list: annotation("reflection-allowed-namespaces"),
                selector: annotation("reflection-allowed-namespaces-selector"),
            };
            source.allows(REFLECTOR, "reflection-allowed")
                && written.includes(&id.namespace, &labels)
        };
        return filled(
            Copier::Reflector,
            id,
            annotation("reflects"),
            objects,
            allowed,
            read,
        );
    }
    if !marked.allows(REFLECTOR, "reflection-auto-enabled") {
        return;
    }
    if !marked.allows(REFLECTOR, "reflection-allowed") {
        read.note(
            id,
            "reflection-auto-enabled without reflection-allowed: the reflector copies nothing of it, nor does a rule",
        );
        return;
    }
    let written = |list: &str, selector: &str| -> (String, String) {
        (annotation(list).to_owned(), annotation(selector).to_owned())
    };
    let allowed = written(
        "reflection-allowed-namespaces",
        "reflection-allowed-namespaces-selector",
    );
    let asked = written(
        "reflection-auto-namespaces",
        "reflection-auto-namespaces-selector",
    );
    let choice = choice::chosen_by_both(
        NamespaceExpression {
            list: &allowed.0,
            selector: &allowed.1,
        },
        NamespaceExpression {
            list: &asked.0,
            selector: &asked.1,
        },
        places,
    );
    read.push(Copier::Reflector, id, choice).labels = false;
}

/// An object that names the one it is filled from.
fn filled(
    copier: Copier,
    copy: &Id,
    from: &str,
    objects: &Objects,
    allowed: impl Fn(&ObjectMetadata) -> bool,
    read: &mut ReadAnnotations,
) {
    let (namespace, name) = from.split_once('/').unwrap_or((&copy.namespace, from));
    let source = Id {
        resource: copy.resource.clone(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    };
    let Some(found) = objects.get(&source) else {
        read.note(
            copy,
            format!("is filled from {from}, which does not exist; no rule is created"),
        );
        return;
    };
    if !allowed(found) {
        read.note(
            copy,
            format!("is filled from {from}, whose annotations do not allow it; no rule is created"),
        );
        return;
    }
    if source.namespace == copy.namespace && source.name == copy.name {
        read.note(copy, "is filled from itself; no rule is created");
        return;
    }
    let choice = Choice {
        names: BTreeSet::from([copy.namespace.clone()]),
        ..Choice::default()
    };
    let request = read.push(copier, &source, choice);
    request.copy_name.clone_from(&copy.name);
    request.filled = true;
    request.labels = false;
}

fn syncer(id: &Id, marked: &ObjectMetadata, places: &NamespaceLabels, read: &mut ReadAnnotations) {
    let Some(sync) = marked.annotation(SYNCER, "sync") else {
        return;
    };
    if let Some(contexts) = marked.annotation(SYNCER, "sync-contexts") {
        read.note(
            id,
            format!(
                "sync-contexts {contexts}: join those clusters, and add them to the rule's clusters"
            ),
        );
    }
    let selector = if sync == "true" { "" } else { sync };
    read.push(
        Copier::ConfigSyncer,
        id,
        choice::chosen(NamespaceExpression { list: "", selector }, places),
    )
    .annotations = true;
}

/// A copy that is both pulled into a namespace and pushed there counts once. Copies of one name and
/// source that are pulled into several namespaces are one request.
fn once_each(read: &mut ReadAnnotations, places: &NamespaceLabels) {
    let pushed: BTreeSet<(Id, String)> = (read.requests.iter().filter(|request| !request.filled))
        .flat_map(|request| {
            request
                .choice
                .reaches(places)
                .into_iter()
                .map(|place| (request.source.clone(), place))
        })
        .collect();
    let mut merged: BTreeMap<(Id, String), CopyRequest> = BTreeMap::new();
    let (mut kept, all) = (Vec::new(), std::mem::take(&mut read.requests));
    for mut wish in all {
        if !wish.filled {
            kept.push(wish);
            continue;
        }
        if wish.copy_name == wish.source.name {
            wish.choice
                .names
                .retain(|place| !pushed.contains(&(wish.source.clone(), place.clone())));
        }
        let key = (wish.source.clone(), wish.copy_name.clone());
        match merged.get_mut(&key) {
            Some(first) => first.choice.names.extend(wish.choice.names),
            None => drop(merged.insert(key, wish)),
        }
    }
    kept.extend(
        merged
            .into_values()
            .filter(|request| !request.choice.is_empty()),
    );
    read.requests = kept;
}
