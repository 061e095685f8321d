//! What the watches of metadata say about objects, against what reading them says. The two race: an answer that is
//! older than what a watch has said since is void.
use std::collections::BTreeMap;

use runnel_proto::model::SourceRef;

use super::{Effect, Index};
use crate::plan::{SourceState, WatchScope};

/// What a watch last said about an object that is there.
pub(super) struct ObservedVersion {
    version: u64,
    /// The labels of an object whose content is being read: both are taken in together.
    awaited: Option<BTreeMap<String, String>>,
    /// Whether it was said in a round of lists before this one: it may be long out of date.
    doubtful: bool,
}

/// A resource version as the number that it is: versions of one kind are ordered (KEP-5504, Kubernetes 1.35).
pub fn version_number(version: Option<&str>) -> u64 {
    version.and_then(|version| version.parse().ok()).unwrap_or_default()
}

impl Index {
    /// The labels of an object that are kept. Where there is no room for unusually many, those by which some rule chooses.
    fn kept(&mut self, source: &SourceRef, mut labels: BTreeMap<String, String>) -> BTreeMap<String, String> {
        if !self.labels.admits(source, &labels) {
            labels.retain(|key, _| self.readers.keeps(key));
        }
        labels
    }

    /// A watch shows an object that may be a source. From the first sight on the plans know that it is there; a change
    /// of one that is selected waits until its content has been read, so that labels and content change together.
    pub fn observe(&mut self, source: &SourceRef, version: u64, labels: BTreeMap<String, String>) -> Effect {
        let labels = self.kept(source, labels);
        let doubtful = self.versions.get(source).is_some_and(|observed| observed.doubtful);
        let before = self.versions.get(source).map(|observed| observed.version);
        if !doubtful && before.is_some_and(|before| before > version) {
            return Effect::default();
        }
        // Whatever its content is, it is there.
        self.deleted.remove(source);
        let known =
            self.sources.get(source).map(|known| matches!(known.body, SourceState::Read(_) | SourceState::Refused(_)));
        let is_read = known == Some(true) && before == Some(version);
        if doubtful && !is_read {
            return self.forget_content(source, version, labels);
        }
        let reads = known.is_some() && !is_read && self.is_selected(source, &labels);
        let awaited = reads.then(|| labels.clone());
        self.versions.insert(source.clone(), ObservedVersion { version, awaited, doubtful: false });
        if reads {
            return Effect { read: [source.clone()].into(), ..Effect::default() };
        }
        self.set_source(source.clone(), labels, None)
    }

    /// What the watch of this place has said so far is doubtful until its next list: it may have been behind while
    /// another replica led, and the agents may hold newer content.
    pub fn mark_stale(&mut self, place: &WatchScope) {
        let here = self.versions.iter_mut().filter(|(source, _)| place.holds(source));
        here.for_each(|(_, observed)| observed.doubtful = true);
    }

    /// The watch of this place was refused, so nothing takes its doubts away: what is known of a doubtful object may be
    /// older than what the agents hold, and is unknown until the watch is back.
    pub fn invalidate_stale(&mut self, place: &WatchScope) -> Effect {
        let here = self.versions.iter().filter(|(source, observed)| observed.doubtful && place.holds(source));
        let doubtful: Vec<_> = here.map(|(source, _)| source.clone()).collect();
        let mut effect = Effect::default();
        for source in doubtful {
            let Some(known) = self.sources.get_mut(&source) else { continue };
            if matches!(known.body, SourceState::Unread | SourceState::Unreadable) {
                continue;
            }
            known.body = SourceState::Unread;
            let labels = known.labels.clone();
            effect.merge(self.set_source(source, labels, Some(SourceState::Unreadable)));
        }
        effect
    }

    /// The content that is known is an older one than the agents may hold, so it is unknown until it has been read.
    fn forget_content(&mut self, source: &SourceRef, version: u64, labels: BTreeMap<String, String>) -> Effect {
        if let Some(known) = self.sources.get_mut(source) {
            known.body = SourceState::Unread;
        }
        self.versions.insert(source.clone(), ObservedVersion { version, awaited: None, doubtful: false });
        self.set_source(source.clone(), labels, None)
    }

    /// An object was read. Void if a watch has said something newer since.
    pub fn read(
        &mut self,
        source: &SourceRef,
        version: u64,
        labels: BTreeMap<String, String>,
        body: SourceState,
    ) -> Effect {
        let labels = self.kept(source, labels);
        let Some(observed) = self.versions.get_mut(source).filter(|observed| observed.version <= version) else {
            return Effect::default();
        };
        // What was read may have been read before the doubt arose.
        *observed = ObservedVersion { version, awaited: None, doubtful: observed.doubtful };
        self.set_source(source.clone(), labels, Some(body))
    }

    /// Whether the content of an object is known as it was last seen.
    pub fn is_read(&self, source: &SourceRef) -> bool {
        let is_awaited = self.versions.get(source).is_some_and(|observed| observed.awaited.is_some());
        let known = self.sources.get(source);
        !is_awaited && known.is_some_and(|known| matches!(known.body, SourceState::Read(_) | SourceState::Refused(_)))
    }

    /// An object could not be read. What was read before stands.
    pub fn could_not_read(&mut self, source: &SourceRef) -> Effect {
        let Some(observed) = self.versions.get_mut(source) else { return Effect::default() };
        let known = self.sources.get(source).map(|known| &known.labels);
        let Some(labels) = observed.awaited.take().or_else(|| known.cloned()) else { return Effect::default() };
        self.set_source(source.clone(), labels, Some(SourceState::Unreadable))
    }
}
