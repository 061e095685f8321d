//! The known sources: what the watches of metadata delivered, and what reading the objects returned.
//!
//! The two race: an answer that is older than the last version of the watch is void. A change of a
//! source updates the plans of the rules that select it.
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use runnel_proto::model::SourceRef;

use super::planner::Planner;
use super::watch_scopes::WatchScopes;
use super::{Effect, Index};
use crate::plan::{Rule, RulePlan, Source, SourceState, WatchScope, is_bundle, plan};
use runnel_api::BUNDLE_KIND;

/// The last version of an existing object that a watch delivered.
struct ObservedVersion {
    version: u64,
    /// The labels of an object whose content is being read. Labels and content change together.
    awaited: Option<BTreeMap<String, String>>,
    /// The version is of an earlier list, and may be long out of date.
    is_stale: bool,
}

/// A resource version as the number that it is: versions of one kind are ordered (KEP-5504, Kubernetes 1.35).
pub fn version_number(version: Option<&str>) -> u64 {
    version
        .and_then(|version| version.parse().ok())
        .unwrap_or_default()
}

/// What follows from a version that a watch delivered.
enum VersionEffect {
    /// The version is older than a known one: no effect.
    Old,
    /// The object is to be read before its labels change in the plans.
    ToRead,
    /// The labels change in the plans.
    Labels(BTreeMap<String, String>),
}

/// The known sources.
#[derive(Default)]
pub struct Sources {
    sources: BTreeMap<SourceRef, Source>,
    versions: BTreeMap<SourceRef, ObservedVersion>,
    /// Deleted sources with the time of deletion: they count as existing until the grace period
    /// ends.
    deleted: BTreeMap<SourceRef, Instant>,
    /// Sources that went with their kind, which the API server did not serve. They count as existing until they are
    /// observed or deleted again.
    lost: BTreeSet<SourceRef>,
}

impl Sources {
    /// Returns a source with its labels.
    pub fn get(&self, source: &SourceRef) -> Option<&Source> {
        self.sources.get(source)
    }

    /// Returns the version of an existing object that the watch or a read delivered last.
    pub fn version(&self, source: &SourceRef) -> Option<u64> {
        self.versions.get(source).map(|observed| observed.version)
    }

    /// Returns the version that a read of the object must at least have; `None` if its content may be newer than the last
    /// version that the watch delivered.
    pub fn min_version(&self, source: &SourceRef) -> Option<u64> {
        let observed = self.versions.get(source)?;
        (!observed.is_stale && observed.version > 0).then_some(observed.version)
    }

    /// The sources of a scope, deleted ones too until their grace period ends.
    pub(super) fn in_scope<'a>(
        &'a self,
        scope: &'a WatchScope,
    ) -> impl Iterator<Item = (&'a SourceRef, &'a Source)> + 'a {
        let namespace = scope.namespace.as_deref().unwrap_or_default();
        let from = SourceRef::new(&scope.resource, namespace, "");
        self.sources
            .range(from..)
            .take_while(move |(source, _)| scope.contains(source))
    }

    /// The state of a source after a change: content that was read before outlives a failure to read it again. `body` is the
    /// content if it was read.
    fn state_after(&self, source: &SourceRef, body: Option<SourceState>) -> SourceState {
        let known = self.sources.get(source).map(|known| known.body.clone());
        match (body, known) {
            (
                None | Some(SourceState::Unread),
                Some(known @ (SourceState::Read(_) | SourceState::Stale(_))),
            ) => known,
            (
                Some(SourceState::Unreadable),
                Some(SourceState::Read(content) | SourceState::Stale(content)),
            ) => SourceState::Stale(content),
            (Some(body), _) => body,
            (None, known) => known.unwrap_or(SourceState::Unread),
        }
    }

    /// Removes all sources of a scope, and returns them.
    pub(super) fn take_scope(&mut self, scope: &WatchScope) -> Vec<SourceRef> {
        let here: Vec<_> = self
            .in_scope(scope)
            .map(|(source, _)| source.clone())
            .collect();
        for source in &here {
            self.sources.remove(source);
            self.versions.remove(source);
            self.deleted.remove(source);
            self.lost.remove(source);
        }
        here
    }

    /// The API server does not serve the kind of a scope any more. No list tells whether its sources were deleted, and a
    /// deletion whose grace period has not ended may have been the first of all.
    pub fn mark_lost(&mut self, scope: &WatchScope) {
        let here: Vec<_> = self
            .in_scope(scope)
            .map(|(source, _)| source.clone())
            .collect();
        self.deleted.retain(|source, _| !scope.contains(source));
        self.lost.extend(here);
    }

    /// Stores an existing source.
    fn insert(&mut self, source: SourceRef, known: Source) {
        self.deleted.remove(&source);
        self.sources.insert(source, known);
    }

    fn drop_content(&mut self, source: &SourceRef) {
        if let Some(known) = self.sources.get_mut(source) {
            known.body = SourceState::Unread;
        }
    }

    /// Drops the content of the sources that no rule selects any more.
    pub(super) fn drop_unselected<'a>(
        &mut self,
        former: impl IntoIterator<Item = &'a SourceRef>,
        planner: &Planner,
    ) {
        for source in former {
            if !planner.selection.has(source) {
                self.drop_content(source);
            }
        }
    }

    /// Plans a rule from scratch.
    pub(super) fn plan(&self, rule: &Rule, scopes: &WatchScopes) -> RulePlan {
        if let Some(state) = rule.reverted_to() {
            return state.plan(rule, scopes.watched());
        }
        plan(rule, self.candidates(rule), scopes.watched(), |scope| {
            scopes.is_known(scope)
        })
    }

    /// Returns the bundles with manifests of kinds that were not known when they were read.
    pub fn with_unknown_kinds(&self) -> BTreeSet<SourceRef> {
        let from = SourceRef::new(BUNDLE_KIND, "", "");
        let bundles = self
            .sources
            .range(from..)
            .take_while(|(source, _)| is_bundle(source));
        let is_incomplete = |(_, known): &(&SourceRef, &Source)| match &known.body {
            SourceState::Read(content) | SourceState::Stale(content) => content.has_unknown_kind(),
            _ => false,
        };
        bundles
            .filter(is_incomplete)
            .map(|(source, _)| source.clone())
            .collect()
    }

    /// The number of the sources of a kind in a namespace, selected or not.
    pub fn count_in(&self, resource: &str, namespace: &str) -> usize {
        self.in_namespace(resource, namespace).count()
    }

    fn in_namespace<'a>(
        &'a self,
        resource: &'a str,
        namespace: &'a str,
    ) -> impl Iterator<Item = (&'a SourceRef, &'a Source)> + 'a {
        let from = SourceRef::new(resource, namespace, "");
        let is_here = move |source: &SourceRef| {
            (&*source.resource, &*source.namespace) == (resource, namespace)
        };
        self.sources
            .range(from..)
            .take_while(move |(source, _)| is_here(source))
    }

    /// The sources that a rule could select.
    fn candidates<'a>(
        &'a self,
        rule: &'a Rule,
    ) -> Box<dyn Iterator<Item = (&'a SourceRef, &'a Source)> + 'a> {
        let Some(namespaces) = rule.literal_namespaces() else {
            return Box::new(self.sources.iter());
        };
        let unique: BTreeSet<_> = namespaces.into_iter().collect();
        Box::new(rule.resources().flat_map(move |resource| {
            let unique = unique.clone();
            unique
                .into_iter()
                .flat_map(move |namespace| self.in_namespace(resource, namespace))
        }))
    }

    /// Records the version of an object that a watch delivered.
    fn observe(
        &mut self,
        source: &SourceRef,
        version: u64,
        labels: BTreeMap<String, String>,
        is_selected: impl FnOnce(&BTreeMap<String, String>) -> bool,
    ) -> VersionEffect {
        let is_stale = self
            .versions
            .get(source)
            .is_some_and(|observed| observed.is_stale);
        let before = self.versions.get(source).map(|observed| observed.version);
        if !is_stale && before.is_some_and(|before| before > version) {
            return VersionEffect::Old;
        }
        // Records that the object exists.
        self.deleted.remove(source);
        self.lost.remove(source);
        let known = self
            .sources
            .get(source)
            .map(|known| matches!(known.body, SourceState::Read(_) | SourceState::Refused(_)));
        let is_read = known == Some(true) && before == Some(version);
        if is_stale && !is_read {
            // The agents may have newer content than the known one, so it is unknown until it has been read.
            self.drop_content(source);
            self.versions.insert(
                source.clone(),
                ObservedVersion {
                    version,
                    awaited: None,
                    is_stale: false,
                },
            );
            return VersionEffect::Labels(labels);
        }
        let reads = known.is_some() && !is_read && is_selected(&labels);
        let awaited = reads.then(|| labels.clone());
        self.versions.insert(
            source.clone(),
            ObservedVersion {
                version,
                awaited,
                is_stale: false,
            },
        );
        if reads {
            VersionEffect::ToRead
        } else {
            VersionEffect::Labels(labels)
        }
    }

    /// An object was read. Returns whether the answer counts: no watch has delivered a newer version since.
    fn record_read(&mut self, source: &SourceRef, version: u64) -> bool {
        let Some(observed) = self
            .versions
            .get_mut(source)
            .filter(|observed| observed.version <= version)
        else {
            return false;
        };
        // The object may have been read before its version became stale.
        *observed = ObservedVersion {
            version,
            awaited: None,
            is_stale: observed.is_stale,
        };
        true
    }

    /// An object could not be read. Returns the labels that it has now, if it is known.
    fn record_unreadable(&mut self, source: &SourceRef) -> Option<BTreeMap<String, String>> {
        let observed = self.versions.get_mut(source)?;
        let known = self.sources.get(source).map(|known| &known.labels);
        observed.awaited.take().or_else(|| known.cloned())
    }

    /// Whether the content of the last observed version is known.
    pub fn is_read(&self, source: &SourceRef) -> bool {
        let is_awaited = self
            .versions
            .get(source)
            .is_some_and(|observed| observed.awaited.is_some());
        let known = self.sources.get(source);
        !is_awaited
            && known.is_some_and(|known| {
                matches!(known.body, SourceState::Read(_) | SourceState::Refused(_))
            })
    }

    /// Marks the versions of a watch as stale until its next list: the watch may have been behind while another replica
    /// led, and the agents may have newer content.
    pub fn mark_stale(&mut self, scope: &WatchScope) {
        let here = self
            .versions
            .iter_mut()
            .filter(|(source, _)| scope.contains(source));
        here.for_each(|(_, observed)| observed.is_stale = true);
    }

    /// Drops the content of all stale sources of a watch. Returns these sources, with their labels.
    fn invalidate_stale(
        &mut self,
        scope: &WatchScope,
    ) -> Vec<(SourceRef, BTreeMap<String, String>)> {
        let here = self
            .versions
            .iter()
            .filter(|(source, observed)| observed.is_stale && scope.contains(source));
        let mut invalidated = vec![];
        for (source, _) in here {
            let Some(known) = self.sources.get_mut(source) else {
                continue;
            };
            if !matches!(known.body, SourceState::Unread | SourceState::Unreadable) {
                known.body = SourceState::Unread;
                invalidated.push((source.clone(), known.labels.clone()));
            }
        }
        invalidated
    }

    /// Marks a source as deleted or terminating. It counts as existing until [`Index::expire_deleted`] finds its grace
    /// period over: a delete and a create within it are an edit.
    pub fn mark_deleted(&mut self, source: &SourceRef, now: Instant) {
        self.versions.remove(source);
        self.lost.remove(source);
        if self.sources.contains_key(source) {
            self.deleted.entry(source.clone()).or_insert(now);
        }
    }

    /// A watch has delivered a complete list: the other objects of its scope are deleted, except those that are lost.
    pub fn retain(&mut self, scope: &WatchScope, listed: &BTreeSet<SourceRef>, now: Instant) {
        let gone: Vec<_> = self
            .in_scope(scope)
            .filter(|(key, _)| !listed.contains(*key) && !self.lost.contains(*key))
            .map(|(key, _)| key.clone())
            .collect();
        for source in gone {
            self.mark_deleted(&source, now);
        }
    }

    /// Removes the sources that were deleted at least `grace` ago. Returns them with their labels.
    fn take_expired(
        &mut self,
        now: Instant,
        grace: Duration,
    ) -> Vec<(SourceRef, BTreeMap<String, String>)> {
        let is_over = |since: &Instant| now.saturating_duration_since(*since) >= grace;
        let expired = self.deleted.iter().filter(|(_, since)| is_over(since));
        let expired: Vec<_> = expired.map(|(source, _)| source.clone()).collect();
        self.deleted.retain(|_, since| !is_over(since));
        let sources = &mut self.sources;
        let with_labels = expired.into_iter().map(|source| {
            let labels = sources
                .remove(&source)
                .map(|known| known.labels)
                .unwrap_or_default();
            (source, labels)
        });
        with_labels.collect()
    }

    /// Returns the end of the next grace period.
    pub fn next_expiry(&self, grace: Duration) -> Option<Instant> {
        self.deleted
            .values()
            .min()
            .and_then(|since| since.checked_add(grace))
    }

    /// The sources that rules need, for an index of these rules alone.
    pub(super) fn for_rules<'a>(&self, rules: impl Iterator<Item = &'a Rule>) -> Self {
        let mut sources = BTreeMap::new();
        for rule in rules {
            for (source, known) in self
                .candidates(rule)
                .filter(|(source, known)| rule.needs(source, &known.labels))
            {
                sources
                    .entry(source.clone())
                    .or_insert_with(|| known.clone());
            }
        }
        let deleted = self
            .deleted
            .iter()
            .filter(|(source, _)| sources.contains_key(*source));
        let deleted = deleted.map(|(source, at)| (source.clone(), *at)).collect();
        Self {
            sources,
            versions: BTreeMap::new(),
            deleted,
            lost: BTreeSet::new(),
        }
    }

    /// All sources.
    pub(super) fn names(&self) -> impl Iterator<Item = &SourceRef> {
        self.sources.keys()
    }
}

impl Index {
    /// A watch has delivered an object that may be a source. The plans contain it at once; a change of a selected object waits
    /// until its content has been read, so that labels and content change together.
    pub fn observe(
        &mut self,
        source: &SourceRef,
        version: u64,
        labels: BTreeMap<String, String>,
    ) -> Effect {
        let labels = self.planner.selection.stored_labels(source, labels);
        let is_needed = |labels: &_| self.planner.needs(source, labels);
        match self.sources.observe(source, version, labels, is_needed) {
            VersionEffect::Old => Effect::default(),
            VersionEffect::ToRead => Effect {
                read: [source.clone()].into(),
                ..Effect::default()
            },
            VersionEffect::Labels(labels) => self.set_source(source.clone(), labels, None),
        }
    }

    /// An object was read. The answer is void if a watch has delivered a newer version since.
    pub fn read(
        &mut self,
        source: &SourceRef,
        version: u64,
        labels: BTreeMap<String, String>,
        body: SourceState,
    ) -> Effect {
        let labels = self.planner.selection.stored_labels(source, labels);
        if !self.sources.record_read(source, version) {
            return Effect::default();
        }
        self.set_source(source.clone(), labels, Some(body))
    }

    /// An object could not be read. Content that was read before stays.
    pub fn record_read_failure(&mut self, source: &SourceRef) -> Effect {
        let Some(labels) = self.sources.record_unreadable(source) else {
            return Effect::default();
        };
        self.set_source(source.clone(), labels, Some(SourceState::Unreadable))
    }

    /// A watch was refused, so no list will confirm its stale objects: their content is unknown until the watch is back.
    pub fn invalidate_stale(&mut self, scope: &WatchScope) -> Effect {
        let mut effect = Effect::default();
        for (source, labels) in self.sources.invalidate_stale(scope) {
            effect.merge(self.set_source(source, labels, Some(SourceState::Unreadable)));
        }
        effect
    }

    /// The kind of a scope is served again: the content of the sources that are lost cannot be read.
    pub fn keep_lost(&mut self, scope: &WatchScope) -> Effect {
        let mut effect = Effect::default();
        let lost = self.sources.lost.iter();
        let here: Vec<_> = lost
            .filter(|source| scope.contains(source))
            .filter_map(|source| Some((source.clone(), self.sources.get(source)?.labels.clone())))
            .collect();
        for (source, labels) in here {
            effect.merge(self.set_source(source, labels, Some(SourceState::Unreadable)));
        }
        effect
    }

    /// A source exists with these labels. `body` is its content if it was read; otherwise the known content stays, as
    /// stale content is better than none until the object was read again.
    pub fn set_source(
        &mut self,
        source: SourceRef,
        labels: BTreeMap<String, String>,
        body: Option<SourceState>,
    ) -> Effect {
        let body = self.sources.state_after(&source, body);
        let effect = self.planner.set_source(&source, &labels, &body);
        // The cache has no content that no rule needs.
        let body = if self.planner.selection.has(&source) {
            body
        } else {
            SourceState::Unread
        };
        self.sources.insert(source, Source { labels, body });
        effect
    }

    /// Removes a source at once, in a preview.
    pub(super) fn remove_source(&mut self, source: &SourceRef) -> Effect {
        let mut effect = Effect::default();
        if let Some(known) = self.sources.sources.remove(source) {
            self.planner
                .remove_source(source, &known.labels, &mut effect);
        }
        effect
    }

    /// Removes the sources that were deleted at least `grace` ago.
    pub fn expire_deleted(&mut self, now: Instant, grace: Duration) -> Effect {
        let mut effect = Effect::default();
        for (source, labels) in self.sources.take_expired(now, grace) {
            self.planner.remove_source(&source, &labels, &mut effect);
        }
        effect
    }
}
