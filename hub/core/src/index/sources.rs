//! Changes of sources: each one updates the plans of the rules that select the source.
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use runnel_proto::model::{RuleUid, SourceRef};

use super::rule_lookup::Selection;
use super::source_cache::Observation;
use super::{Effect, Index, RuleEntry};
use crate::guard::CauseKind;
use crate::plan::{Source, SourceState, WatchScope};

impl Index {
    /// Whether a rule selects an object with these labels, or takes values from it: whether its content is needed.
    pub fn is_selected(&self, source: &SourceRef, labels: &BTreeMap<String, String>) -> bool {
        is_selected(&self.selection, &self.rules, source, labels)
    }

    /// Returns a source with its labels.
    pub fn source(&self, source: &SourceRef) -> Option<&Source> {
        self.sources.get(source)
    }

    /// The number of the sources of a kind in a namespace, selected or not.
    pub fn sources_in(&self, resource: &str, namespace: &str) -> usize {
        self.sources.count_in(resource, namespace)
    }

    /// Whether the content of the last observed version is known.
    pub fn is_read(&self, source: &SourceRef) -> bool {
        self.sources.is_read(source)
    }

    /// A watch has delivered an object that may be a source. The plans contain it at once; a change of a selected object waits
    /// until its content has been read, so that labels and content change together.
    pub fn observe(
        &mut self,
        source: &SourceRef,
        version: u64,
        labels: BTreeMap<String, String>,
    ) -> Effect {
        let labels = self.selection.kept_labels(source, labels);
        let (selection, rules) = (&self.selection, &self.rules);
        let is_selected = |labels: &_| is_selected(selection, rules, source, labels);
        match self.sources.observe(source, version, labels, is_selected) {
            Observation::Old => Effect::default(),
            Observation::ToRead => Effect {
                read: [source.clone()].into(),
                ..Effect::default()
            },
            Observation::Labels(labels) => self.set_source(source.clone(), labels, None),
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
        let labels = self.selection.kept_labels(source, labels);
        if !self.sources.record_read(source, version) {
            return Effect::default();
        }
        self.set_source(source.clone(), labels, Some(body))
    }

    /// An object could not be read. Content that was read before stays.
    pub fn could_not_read(&mut self, source: &SourceRef) -> Effect {
        let Some(labels) = self.sources.record_unreadable(source) else {
            return Effect::default();
        };
        self.set_source(source.clone(), labels, Some(SourceState::Unreadable))
    }

    /// Marks the versions of a watch as stale until its next list: the watch may have been behind while another replica
    /// led, and the agents may have newer content.
    pub fn mark_stale(&mut self, place: &WatchScope) {
        self.sources.mark_stale(place);
    }

    /// A watch was refused, so no list will confirm its stale objects: their content is unknown until the watch is back.
    pub fn invalidate_stale(&mut self, place: &WatchScope) -> Effect {
        let mut effect = Effect::default();
        for (source, labels) in self.sources.invalidate_stale(place) {
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
        let mut effect = Effect::default();
        for uid in self.selection.concerned(&source, &labels) {
            let selects = self
                .rules
                .get(&uid)
                .is_some_and(|entry| entry.rule.selects(&source, &labels));
            // A refused source has the effect of a deleted one.
            let cause = if matches!(body, SourceState::Refused(_)) {
                CauseKind::Deleted.of("")
            } else {
                CauseKind::SourceLabels.of(source.namespace.clone())
            };
            self.update_plan(&uid, &source, selects.then_some(&body), cause, &mut effect);
            let is_referenced = self.update_referenced(&uid, &source, Some(&body), &mut effect);
            if (selects || is_referenced) && matches!(body, SourceState::Unread) {
                effect.read.insert(source.clone());
            }
        }
        // The cache has no content that no rule needs.
        let body = if self.selection.has(&source) {
            body
        } else {
            SourceState::Unread
        };
        self.sources.insert(source, Source { labels, body });
        effect
    }

    /// A source is deleted or terminating. It counts as existing until [`Index::expire_deleted`] finds its grace period over:
    /// a delete and a create within it are an edit.
    pub fn mark_source_deleted(&mut self, source: &SourceRef, now: Instant) {
        self.sources.mark_deleted(source, now);
    }

    /// A watch has delivered a complete list: the other objects of its scope are deleted.
    pub fn retain_sources(
        &mut self,
        place: &WatchScope,
        listed: &BTreeSet<SourceRef>,
        now: Instant,
    ) {
        self.sources.retain(place, listed, now);
    }

    /// Removes the sources that were deleted at least `grace` ago.
    pub fn expire_deleted(&mut self, now: Instant, grace: Duration) -> Effect {
        let mut effect = Effect::default();
        for (source, labels) in self.sources.take_expired(now, grace) {
            self.selection.release_labels(&source);
            for uid in self.selection.concerned(&source, &labels) {
                self.update_plan(&uid, &source, None, CauseKind::Deleted.of(""), &mut effect);
                self.update_referenced(&uid, &source, None, &mut effect);
            }
        }
        effect
    }

    /// Returns the end of the next grace period.
    pub fn next_expiry(&self, grace: Duration) -> Option<Instant> {
        self.sources.next_expiry(grace)
    }
}

fn is_selected(
    selection: &Selection,
    rules: &BTreeMap<RuleUid, RuleEntry>,
    source: &SourceRef,
    labels: &BTreeMap<String, String>,
) -> bool {
    let candidates = selection.candidates(source, labels);
    candidates.iter().any(|uid| {
        rules
            .get(uid)
            .is_some_and(|entry| entry.rule.needs(source, labels))
    })
}
