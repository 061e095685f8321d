//! The manifests of the bundles that a rule selects: each is an intent of the rule.
//!
//! Several bundles may have one manifest, and the rule may select the object itself as well. Then none of them is sent, as
//! for two sources with one copy.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use runnel_api::BUNDLE_KIND;
use runnel_proto::model::{Revision, SourceRef};

use super::bundle::{Manifest, is_bundle};
use super::{
    CowSortedMap, RenderError, RenderErrorKind, Rule, RulePlan, SourceContent, WatchScope,
};

/// The manifests of the selected bundles.
#[derive(Clone, Default)]
pub(super) struct Manifests {
    /// The bundles with known content.
    bundles: CowSortedMap<SourceRef, Arc<SourceContent>>,
    /// The bundles that have a manifest, by the intent, and the object itself if the rule selects it too.
    origins: CowSortedMap<SourceRef, BTreeMap<SourceRef, Manifest>>,
    /// Whether the rule is a DistributionRule, which sends no object without a namespace.
    is_namespaced: bool,
}

impl Manifests {
    /// Creates an empty set for a rule.
    pub(super) fn of(rule: &Rule) -> Self {
        Self {
            is_namespaced: !rule.terms.rule.is_cluster_scoped(),
            ..Self::default()
        }
    }

    /// Whether nothing of a bundle is known.
    fn is_empty(&self) -> bool {
        self.bundles.is_empty() && self.origins.is_empty()
    }

    /// Whether two have the same bundles with the same content.
    pub(super) fn has_equal_content(&self, other: &Self) -> bool {
        self.revisions().eq(other.revisions())
    }

    /// The revision of each bundle.
    fn revisions(&self) -> impl Iterator<Item = (&SourceRef, Revision)> {
        let bundles = self.bundles.iter();
        bundles.map(|(bundle, content)| (bundle, content.revision))
    }

    /// Whether this is a bundle with known content, or a manifest.
    pub(super) fn has(&self, source: &SourceRef) -> bool {
        self.bundles.contains_key(source) || self.origins.contains_key(source)
    }

    /// The number of manifests that are not sent.
    pub(super) fn refused(&self) -> usize {
        let is_refused = |origins: &BTreeMap<SourceRef, Manifest>| {
            origins.len() > 1 || origins.values().any(Result::is_err)
        };
        self.origins
            .iter()
            .filter(|(_, origins)| is_refused(origins))
            .count()
    }
}

impl RulePlan {
    /// Sets the content of a selected object; `None`: it is not selected, or not known. Returns the intents that may have
    /// changed, and the object.
    pub(super) fn set_content(
        &mut self,
        object: &SourceRef,
        content: Option<&Arc<SourceContent>>,
    ) -> BTreeSet<SourceRef> {
        let mut touched = BTreeSet::from([object.clone()]);
        if is_bundle(object) {
            let former = self.manifests.bundles.remove(object);
            for intent in intents_of(former.as_ref()) {
                if let Some(origins) = self.manifests.origins.get_mut(intent) {
                    origins.remove(object);
                }
                touched.insert(intent.clone());
            }
            let is_namespaced = self.manifests.is_namespaced;
            let bundle = content.and_then(|content| content.bundle.as_ref());
            for (intent, manifest) in bundle
                .iter()
                .flat_map(|bundle| bundle.sent_by(is_namespaced))
            {
                self.add_origin(intent, object, manifest);
                touched.insert(intent.clone());
            }
            if let Some(content) = content {
                self.manifests
                    .bundles
                    .insert(object.clone(), content.clone());
            }
            touched.iter().for_each(|intent| self.settle(intent));
        } else if let Some(origins) = self.manifests.origins.get_mut(object) {
            match content {
                Some(content) => drop(origins.insert(object.clone(), Ok(content.clone()))),
                None => drop(origins.remove(object)),
            }
            self.settle(object);
        } else {
            self.remove_content(object);
            if let Some(content) = content {
                self.put_in(object.clone(), content.clone());
            }
        }
        touched
    }

    fn add_origin(&mut self, intent: &SourceRef, bundle: &SourceRef, manifest: Manifest) {
        let own = self.intents.get(intent).cloned();
        let is_new = !self.manifests.origins.contains_key(intent);
        if let Some(origins) = self.manifests.origins.get_or_default(intent) {
            if let Some(own) = own.filter(|_| is_new) {
                origins.insert(intent.clone(), Ok(own));
            }
            origins.insert(bundle.clone(), manifest);
        }
    }

    fn is_unread(&self, source: &SourceRef) -> bool {
        self.unread.contains(source) || self.unreadable.contains(source)
    }

    /// Sends a manifest, if it has one origin.
    fn settle(&mut self, intent: &SourceRef) {
        let Some(origins) = self.manifests.origins.get(intent).cloned() else {
            return;
        };
        self.remove_content(intent);
        self.render_errors.remove(intent);
        let mut all = origins.iter();
        match (all.next(), all.next()) {
            (Some((first, _)), Some((second, _))) => {
                let error = ambiguous(intent, first, second);
                self.render_errors.insert(intent.clone(), error);
                return;
            }
            (Some((_, Err(error))), None) => {
                self.render_errors.insert(intent.clone(), error.clone());
            }
            // Whether the object itself is selected with other content is not known.
            (Some((origin, Ok(_))), None) if origin != intent && self.is_unread(intent) => {}
            (Some((_, Ok(content))), None) => self.put_in(intent.clone(), content.clone()),
            (None, _) => {}
        }
        if origins
            .keys()
            .all(|origin| origin == intent && !is_bundle(origin))
        {
            // The object itself, or nothing.
            self.manifests.origins.remove(intent);
        }
    }

    /// The content of a selected object, a bundle included.
    pub(super) fn object_content(&self, object: &SourceRef) -> Option<&Arc<SourceContent>> {
        if self.manifests.is_empty() {
            return self.intents.get(object);
        }
        if is_bundle(object) {
            return self.manifests.bundles.get(object);
        }
        match self.manifests.origins.get(object) {
            Some(origins) => origins.get(object)?.as_ref().ok(),
            None => self.intents.get(object),
        }
    }

    /// The selected objects with known content, and not the manifests of bundles.
    pub(super) fn objects_with_content(&self) -> impl Iterator<Item = &SourceRef> {
        let is_object = move |intent: &&SourceRef| {
            self.manifests.is_empty() || !self.manifests.origins.contains_key(*intent)
        };
        let both = self.manifests.origins.iter();
        let both =
            both.filter(|(intent, origins)| !is_bundle(intent) && origins.contains_key(*intent));
        self.intents
            .keys()
            .filter(is_object)
            .chain(both.map(|(intent, _)| intent))
            .chain(self.manifests.bundles.keys())
    }

    /// The intents of an object, as far as the rule selects it: the manifests of a bundle, or the object itself.
    pub fn selected_intents(&self, object: &SourceRef) -> Vec<SourceRef> {
        if is_bundle(object) {
            let intents = intents_of(self.manifests.bundles.get(object));
            return intents
                .filter(|intent| *intent != object)
                .cloned()
                .collect();
        }
        let is_selected = self.selects(object).then(|| object.clone());
        is_selected.into_iter().collect()
    }

    /// The kinds that the rule names, and those of the manifests of its bundles.
    pub fn kinds<'a>(&'a self, rule: &'a Rule) -> BTreeSet<&'a str> {
        let of_intents = self.digests.keys().map(|kind| &**kind);
        rule.resources().chain(of_intents).collect()
    }

    /// Whether it has manifests of bundles.
    pub fn has_manifests(&self) -> bool {
        !self.manifests.origins.is_empty()
    }

    /// The bundle that has a manifest; `None` for other sources.
    pub fn bundle_of(&self, intent: &SourceRef) -> Option<&SourceRef> {
        let origins = &self.manifests.origins;
        if origins.is_empty() {
            return None;
        }
        let mut origins = origins.get(&intent.plain())?.keys();
        origins.find(|origin| is_bundle(origin))
    }

    /// Whether the rule selects bundles, and one of them is being read for the first time.
    pub(crate) fn awaits_bundle(&self) -> bool {
        let first = SourceRef::new(BUNDLE_KIND, "", "");
        let mut unread = self.unread.range(first..);
        self.selects_bundles && unread.next().is_some_and(is_bundle)
    }

    /// Whether the rule selects bundles.
    pub(crate) fn selects_bundles(&self) -> bool {
        self.selects_bundles
    }

    /// Whether a bundle of the namespace is not known completely, so that any source there may be one of its manifests.
    /// Without a namespace (empty): whether any bundle is not, as each may have manifests of kinds without namespaces.
    pub(super) fn has_unknown_bundle(&self, namespace: &str) -> bool {
        let is_all_known = self.unread.is_empty()
            && self.unreadable.is_empty()
            && self.render_errors.is_empty()
            && self.unknown.is_empty();
        if !self.selects_bundles || is_all_known {
            return false;
        }
        let first = SourceRef::new(BUNDLE_KIND, namespace, "");
        let is_place = |place: &str| namespace.is_empty() || place == namespace;
        let is_here = |source: Option<&SourceRef>| {
            source.is_some_and(|source| is_bundle(source) && is_place(&source.namespace))
        };
        let is_scope = |scope: &WatchScope| {
            *scope.resource == *BUNDLE_KIND && scope.namespace.as_deref().is_none_or(is_place)
        };
        let error = self.render_errors.range(first.clone()..).next();
        is_here(self.unread.range(first.clone()..).next())
            || is_here(self.unreadable.range(first.clone()..).next())
            || is_here(error.map(|(source, _)| source))
            || self.unknown.iter().any(is_scope)
    }
}

/// The intents of a bundle, and the bundle itself for manifests that are no source.
fn intents_of(content: Option<&Arc<SourceContent>>) -> impl Iterator<Item = &SourceRef> {
    let bundle = content.and_then(|content| content.bundle.as_ref());
    bundle
        .into_iter()
        .flat_map(|bundle| bundle.manifests.keys())
}

fn ambiguous(intent: &SourceRef, first: &SourceRef, second: &SourceRef) -> RenderError {
    let origin = |origin: &SourceRef| {
        if origin == intent {
            "the object itself".to_owned()
        } else {
            origin.to_string()
        }
    };
    let message = format!(
        "{intent} comes from {} and from {}, so neither is sent; remove it from one, or narrow spec.sources",
        origin(first),
        origin(second)
    );
    RenderError {
        why: RenderErrorKind::Ambiguous,
        message: message.into(),
    }
}

#[cfg(test)]
#[path = "manifests_tests.rs"]
mod tests;
