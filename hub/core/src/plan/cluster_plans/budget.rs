//! The byte budget of a rule whose copies differ by cluster.
use std::sync::Arc;

use super::super::render::{Contents, RevisionHasher};
use super::super::rendered_plan::{RenderError, RenderErrorKind, RenderOutcome, RenderedPlan};
use super::super::{Rule, RulePlan};
use super::{ClusterPlans, Variation};

/// The rendered content of the rules of a namespace together, as a multiple of the limit of one rule.
pub(crate) const NAMESPACE_SHARE: u64 = 2;

/// The overhead of a plan's entry, in bytes.
const ENTRY: u64 = 256;

impl ClusterPlans {
    /// The rule exceeds its budget: nothing is sent, and existing copies stay.
    pub(super) fn exceed(
        &mut self,
        rule: &Rule,
        selection: &RulePlan,
        revision_hasher: &RevisionHasher,
    ) {
        let Variation::PerCluster(by_cluster) = &mut self.variation else {
            return;
        };
        let mut nothing = RenderedPlan::nothing(selection, rule.source_order());
        let (sources, clusters) = (selection.selected().count(), by_cluster.len());
        let message: Arc<str> = format!(
            "the copies differ by cluster, and those of {sources} sources for {clusters} clusters take more than the \
             {} bytes that are left for the rule (--render-budget, `renderBudget` in the chart: that much for a rule, and \
             {NAMESPACE_SHARE} times that much for the rules of a namespace), or too much work; choose fewer sources or \
             clusters, use variables with fewer values than there are clusters and smaller patches, or raise the limit",
            revision_hasher.budget()
        )
        .into();
        for source in selection.selected() {
            let body = selection.body(source);
            let why = RenderError {
                why: RenderErrorKind::Budget,
                message: message.clone(),
            };
            nothing.set(
                source,
                body.as_ref(),
                Some(RenderOutcome::Failed(None, why)),
            );
        }
        let nothing = Arc::new(nothing);
        by_cluster
            .values_mut()
            .for_each(|cluster_plan| cluster_plan.rendered_plan = nothing.clone());
        self.exceeds = true;
        *self.contents.lock() = Contents::default();
    }

    /// Returns the size in bytes.
    pub(crate) fn size_bytes(&self) -> u64 {
        let entries = self
            .entries
            .values()
            .fold(0u64, |sum, count| sum.saturating_add(*count));
        self.contents
            .lock()
            .bytes()
            .saturating_add(entries.saturating_mul(ENTRY))
    }

    /// Whether the rule is within the budget, without the deleted clusters.
    pub(super) fn is_within_budget(&self, revision_hasher: &RevisionHasher) -> bool {
        if !self.contents.lock().works_within(revision_hasher.budget()) {
            return false;
        }
        if self.size_bytes() <= revision_hasher.budget() {
            return true;
        }
        self.contents.lock().recount();
        self.size_bytes() <= revision_hasher.budget()
    }
}
