//! What the watches of metadata say about objects, against what reading them says. The two race: an answer that is
//! older than what a watch has said since is void.
use std::collections::BTreeMap;

use runnel_proto::model::SourceRef;

use super::{Effect, Index};
use crate::plan::Body;

/// What a watch last said about an object that is there.
pub(super) struct Sighting {
    version: u64,
    /// The labels of an object whose content is being read: both are taken in together.
    awaited: Option<BTreeMap<String, String>>,
}

/// A resource version as the number that it is: versions of one kind are ordered (KEP-5504, Kubernetes 1.35).
pub fn version_number(version: Option<&str>) -> u64 {
    version.and_then(|version| version.parse().ok()).unwrap_or_default()
}

impl Index {
    /// A watch shows an object that may be a source. From the first sight on the plans know that it is there; a change
    /// of one that is selected waits until its content has been read, so that labels and content change together.
    pub fn saw(&mut self, source: &SourceRef, version: u64, labels: BTreeMap<String, String>) -> Effect {
        let before = self.sightings.get(source).map(|sighting| sighting.version);
        if before.is_some_and(|before| before > version) {
            return Effect::default();
        }
        // Whatever its content is, it is there.
        self.vanished.remove(source);
        let known = self.sources.get(source).map(|known| matches!(known.body, Body::Read(_) | Body::Refused(_)));
        let is_read = known == Some(true) && before == Some(version);
        let reads = known.is_some() && !is_read && self.is_selected(source, &labels);
        let awaited = reads.then(|| labels.clone());
        self.sightings.insert(source.clone(), Sighting { version, awaited });
        if reads {
            return Effect { read: [source.clone()].into(), ..Effect::default() };
        }
        self.set_source(source.clone(), labels, None)
    }

    /// An object was read. Void if a watch has said something newer since.
    pub fn read(&mut self, source: &SourceRef, version: u64, labels: BTreeMap<String, String>, body: Body) -> Effect {
        let Some(sighting) = self.sightings.get_mut(source).filter(|sighting| sighting.version <= version) else {
            return Effect::default();
        };
        *sighting = Sighting { version, awaited: None };
        self.set_source(source.clone(), labels, Some(body))
    }

    /// An object could not be read. What was read before stands.
    pub fn could_not_read(&mut self, source: &SourceRef) -> Effect {
        let Some(sighting) = self.sightings.get_mut(source) else { return Effect::default() };
        let known = self.sources.get(source).map(|known| &known.labels);
        let Some(labels) = sighting.awaited.take().or_else(|| known.cloned()) else { return Effect::default() };
        self.set_source(source.clone(), labels, Some(Body::Unreadable))
    }
}
