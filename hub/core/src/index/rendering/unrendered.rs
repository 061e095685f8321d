//! What of a rule waits to be rendered.
use std::collections::BTreeSet;

use runnel_proto::model::{ClusterName, SourceRef};

/// What of a rule has changed and waits to be rendered.
#[derive(Default)]
pub(in crate::index) struct Unrendered {
    pub(super) sources: BTreeSet<SourceRef>,
    pub(super) clusters: BTreeSet<ClusterName>,
    /// Everything is to be rendered again: it exceeded the budget of the rule, or its references
    /// were unknown.
    pub(super) again: bool,
    /// Changes that the running job does not include, because they were rendered at once.
    pub(super) since: Option<(u64, BTreeSet<SourceRef>)>,
    /// The last job at the time when agents may have been sent newer content by another leader:
    /// until a later one is done, nothing is sent of the rule.
    pub(super) outdated: Option<u64>,
}

impl Unrendered {
    pub(in crate::index) fn is_empty(&self) -> bool {
        self.sources.is_empty() && self.clusters.is_empty() && !self.again
    }

    /// Returns the changes that the job of this number does not include, if that job is running.
    pub(super) fn ends(&mut self, number: u64) -> Option<BTreeSet<SourceRef>> {
        self.since
            .take_if(|(under_way, _)| *under_way == number)
            .map(|(_, since)| since)
    }

    /// Whether agents may have newer content than the index.
    pub(in crate::index) fn is_outdated(&self) -> bool {
        self.outdated.is_some()
    }

    /// All of it is to be rendered again.
    pub(in crate::index) fn set_again(&mut self) {
        self.again = true;
    }

    /// The sources that wait to be rendered.
    pub(in crate::index) fn sources(&self) -> impl Iterator<Item = &SourceRef> {
        self.sources.iter()
    }

    /// A source changes at once.
    pub(in crate::index) fn set_at_once(&mut self, source: &SourceRef) {
        self.sources.remove(source);
        self.note(source);
    }

    pub(super) fn note(&mut self, source: &SourceRef) {
        if let Some((_, since)) = &mut self.since {
            since.insert(source.clone());
        }
    }
}
