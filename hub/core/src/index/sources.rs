//! Sources come, change and vanish.
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use runnel_proto::model::{RuleUid, SourceRef};

use super::{Effect, Index};
use crate::guard::Cause;
use crate::plan::{Source, SourceState, WatchScope};

impl Index {
    /// Whether any rule selects an object with these labels, or takes values from it: whether its content is needed.
    pub fn is_selected(&self, source: &SourceRef, labels: &BTreeMap<String, String>) -> bool {
        self.readers
            .of(source, labels)
            .iter()
            .any(|uid| self.rules.get(uid).is_some_and(|entry| entry.rule.needs(source, labels)))
    }

    /// Whether the index knows the source, and with which labels.
    pub fn source(&self, source: &SourceRef) -> Option<&Source> {
        self.sources.get(source)
    }

    /// How many sources of this kind are known in this namespace, selected or not.
    pub fn sources_in(&self, resource: &str, namespace: &str) -> usize {
        let from = SourceRef::new(resource, namespace, "");
        let is_here = |source: &SourceRef| (&*source.resource, &*source.namespace) == (resource, namespace);
        self.sources.range(from..).take_while(|(source, _)| is_here(source)).count()
    }

    /// A source is there with these labels. `body` is its content if it was read; absent, what was known of its content
    /// stands (stale content is better than a gap, and the reader comes back with the new one).
    pub fn set_source(
        &mut self,
        source: SourceRef,
        labels: BTreeMap<String, String>,
        body: Option<SourceState>,
    ) -> Effect {
        self.deleted.remove(&source);
        let known = self.sources.get(&source).map(|known| known.body.clone());
        // Content that was read before outlives a failure to read it again.
        let body = match (body, known) {
            (None | Some(SourceState::Unread), Some(known @ (SourceState::Read(_) | SourceState::Stale(_)))) => known,
            (Some(SourceState::Unreadable), Some(SourceState::Read(content) | SourceState::Stale(content))) => {
                SourceState::Stale(content)
            }
            (Some(body), _) => body,
            (None, known) => known.unwrap_or(SourceState::Unread),
        };
        let mut effect = Effect::default();
        for uid in self.touched(&source, &labels) {
            let selects = self.rules.get(&uid).is_some_and(|entry| entry.rule.selects(&source, &labels));
            // A source that refuses is as one that is deleted.
            let cause = if matches!(body, SourceState::Refused(_)) { Cause::Deleted } else { Cause::SourceLabels };
            self.update_plan(&uid, &source, selects.then_some(&body), cause, &mut effect);
            let lends = self.update_referenced(&uid, &source, Some(&body), &mut effect);
            if (selects || lends) && matches!(body, SourceState::Unread) {
                effect.read.insert(source.clone());
            }
        }
        // Content that no rule needs is not kept.
        let body = if self.selected_by.contains_key(&source) { body } else { SourceState::Unread };
        self.sources.insert(source, Source { labels, body });
        effect
    }

    /// A source vanished, or is being deleted. It counts as being there until [`Index::expire_deleted`] finds its grace over: a
    /// delete and re-create is an edit.
    pub fn mark_source_deleted(&mut self, source: &SourceRef, now: Instant) {
        self.versions.remove(source);
        if self.sources.contains_key(source) {
            self.deleted.entry(source.clone()).or_insert(now);
        }
    }

    /// These are all the objects that there are in a place: the others vanish.
    pub fn retain_sources(&mut self, place: &WatchScope, listed: &BTreeSet<SourceRef>, now: Instant) {
        let from = SourceRef::new(place.resource, place.namespace.as_deref().unwrap_or_default(), "");
        let here = self.sources.range(from..).take_while(|(key, _)| place.holds(key));
        let gone: Vec<_> = here.filter(|(key, _)| !listed.contains(*key)).map(|(key, _)| key.clone()).collect();
        for source in gone {
            self.mark_source_deleted(&source, now);
        }
    }

    /// Removes the sources that vanished at least `grace` ago.
    pub fn expire_deleted(&mut self, now: Instant, grace: Duration) -> Effect {
        let over = |since: &Instant| now.saturating_duration_since(*since) >= grace;
        let gone: Vec<_> = self.deleted.iter().filter(|(_, since)| over(since)).map(|(key, _)| key.clone()).collect();
        let mut effect = Effect::default();
        for source in gone {
            self.deleted.remove(&source);
            self.labels.release(&source);
            let labels = self.sources.remove(&source).map(|known| known.labels).unwrap_or_default();
            for uid in self.touched(&source, &labels) {
                self.update_plan(&uid, &source, None, Cause::Deleted, &mut effect);
                self.update_referenced(&uid, &source, None, &mut effect);
            }
        }
        effect
    }

    /// When the next grace is over, if a source has vanished.
    pub fn next_expiry(&self, grace: Duration) -> Option<Instant> {
        self.deleted.values().min().and_then(|since| since.checked_add(grace))
    }

    /// Rules that could select the source with these labels, or did.
    fn touched(&self, source: &SourceRef, labels: &BTreeMap<String, String>) -> BTreeSet<RuleUid> {
        let mut touched = self.readers.of(source, labels);
        touched.extend(self.selected_by.get(source).into_iter().flatten().cloned());
        touched
    }
}
