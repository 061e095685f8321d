//! Sources come, change, vanish, and kinds become known or unknown.
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use runnel_proto::model::{KINDS, RuleUid, SourceRef};

use super::{Effect, Index};
use crate::plan::{Body, Source};

/// What the hub can tell about a kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum KindState {
    /// No rule has needed it yet.
    #[default]
    Unwatched,
    /// Its watch has delivered a complete list.
    Known,
    /// It cannot be watched, for the reason given to people.
    Unreadable(String),
}

impl Index {
    /// Whether any rule selects an object with these labels: whether its content is needed.
    pub fn is_selected(&self, source: &SourceRef, labels: &BTreeMap<String, String>) -> bool {
        self.readers(source)
            .iter()
            .any(|uid| self.rules.get(uid).is_some_and(|entry| entry.rule.selects(source, labels)))
    }

    /// Whether the index knows the source, and with which labels.
    pub fn source(&self, source: &SourceRef) -> Option<&Source> {
        self.sources.get(source)
    }

    /// A source is there with these labels. `body` is its content if it was read; absent, what was known of its content
    /// stands (stale content is better than a gap, and the reader comes back with the new one).
    pub fn set_source(&mut self, source: SourceRef, labels: BTreeMap<String, String>, body: Option<Body>) -> Effect {
        self.vanished.remove(&source);
        let known = self.sources.get(&source).map(|known| known.body.clone());
        // Content that was read before outlives a failure to read it again.
        let body = match (body, known) {
            (None | Some(Body::Unread), Some(known @ (Body::Read(_) | Body::Stale(_)))) => known,
            (Some(Body::Unreadable), Some(Body::Read(content) | Body::Stale(content))) => Body::Stale(content),
            (Some(body), _) => body,
            (None, known) => known.unwrap_or(Body::Unread),
        };
        let mut effect = Effect::default();
        for uid in self.touched(&source) {
            let selects = self.rules.get(&uid).is_some_and(|entry| entry.rule.selects(&source, &labels));
            self.update_plan(&uid, &source, selects.then_some(&body), &mut effect);
            if selects && matches!(body, Body::Unread) {
                effect.read.insert(source.clone());
            }
        }
        // Content that no rule needs is not kept.
        let body = if self.selected_by.contains_key(&source) { body } else { Body::Unread };
        self.sources.insert(source, Source { labels, body });
        effect
    }

    /// A source vanished, or is being deleted. It counts as being there until [`Index::bury`] finds its grace over: a
    /// delete and re-create is an edit.
    pub fn vanish_source(&mut self, source: &SourceRef, now: Instant) {
        self.sightings.remove(source);
        if self.sources.contains_key(source) {
            self.vanished.entry(source.clone()).or_insert(now);
        }
    }

    /// These are all the objects of a kind that there are: the others vanish.
    pub fn retain_sources(&mut self, resource: &str, listed: &BTreeSet<SourceRef>, now: Instant) {
        let from = SourceRef::new(resource, "", "");
        let of_kind = self.sources.range(from..).take_while(|(key, _)| &*key.resource == resource);
        let gone: Vec<_> = of_kind.filter(|(key, _)| !listed.contains(*key)).map(|(key, _)| key.clone()).collect();
        for source in gone {
            self.vanish_source(&source, now);
        }
    }

    /// Removes the sources that vanished at least `grace` ago.
    pub fn bury(&mut self, now: Instant, grace: Duration) -> Effect {
        let over = |since: &Instant| now.saturating_duration_since(*since) >= grace;
        let gone: Vec<_> = self.vanished.iter().filter(|(_, since)| over(since)).map(|(key, _)| key.clone()).collect();
        let mut effect = Effect::default();
        for source in gone {
            self.vanished.remove(&source);
            self.sources.remove(&source);
            for uid in self.touched(&source) {
                self.update_plan(&uid, &source, None, &mut effect);
            }
        }
        effect
    }

    /// When the next grace is over, if a source has vanished.
    pub fn next_burial(&self, grace: Duration) -> Option<Instant> {
        self.vanished.values().min().and_then(|since| since.checked_add(grace))
    }

    /// A kind became known or unknown. Plans that need it follow.
    pub fn set_kind(&mut self, resource: &'static str, state: KindState) -> Effect {
        let mut effect = Effect::default();
        if self.kind(resource) == &state {
            return effect;
        }
        self.kinds.insert(resource, state);
        let needs = |entry: &super::RuleEntry| entry.rule.resources().any(|needed| needed == resource);
        let needing: Vec<RuleUid> =
            self.rules.iter().filter(|(_, entry)| needs(entry)).map(|(uid, _)| uid.clone()).collect();
        for uid in needing {
            self.replan(&uid, &mut effect);
            effect.rules.insert(uid);
        }
        effect
    }

    /// Kinds that some rule needs.
    pub fn needed_resources(&self) -> BTreeSet<&'static str> {
        self.rules.values().flat_map(|entry| entry.rule.resources()).collect()
    }

    pub(super) fn unknown_resources(&self) -> BTreeSet<&'static str> {
        KINDS.iter().map(|kind| kind.resource).filter(|resource| self.kind(resource) != &KindState::Known).collect()
    }

    /// Rules that read the source's namespace.
    fn readers(&self, source: &SourceRef) -> BTreeSet<RuleUid> {
        let by_name = self.reading.get(&*source.namespace).into_iter().flatten();
        by_name.chain(&self.reading_any).cloned().collect()
    }

    /// Rules that could select the source, or did.
    fn touched(&self, source: &SourceRef) -> BTreeSet<RuleUid> {
        let mut touched = self.readers(source);
        touched.extend(self.selected_by.get(source).into_iter().flatten().cloned());
        touched
    }
}
