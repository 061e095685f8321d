//! Renders the selection of a rule: per cluster if the rule varies by cluster, otherwise once for
//! all clusters.
//!
//! Clusters with the same content share one [`RulePlan`]. Between different plans equal contents
//! are one allocation. An edit of a source costs its own result in each cluster, not that of the
//! whole plan.
mod budget;

pub(crate) use budget::NAMESPACE_SHARE;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use parking_lot::Mutex;
use runnel_proto::model::{ClusterName, SetDigest, SourceRef};

use super::render::{Contents, Renderer, RevisionHasher};
use super::rendered_plan::{OutcomeKey, RenderOutcome, RenderedPlan};
use super::shape::NamedKey;
use super::{Rule, RulePlan, WatchScope};

/// The former plan of several clusters, and the new one.
type ReplacedPlans = (Arc<RenderedPlan>, Arc<RenderedPlan>);

/// The labels of a cluster.
pub type Labels = Arc<BTreeMap<String, String>>;

/// The plans of one rule by cluster.
#[derive(Clone, Default)]
pub struct ClusterPlans {
    variation: Variation,
    /// Shared with the hasher's inputs, so that no content is rendered twice.
    contents: Arc<Mutex<Contents>>,
    /// Number of plans with an entry, by source.
    entries: BTreeMap<SourceRef, u64>,
    /// Whether it needs more than the rule's budget, so that nothing of it is sent.
    exceeds: bool,
}

#[derive(Clone, Default)]
enum Variation {
    /// All clusters get the selection unchanged.
    #[default]
    Unchanged,
    /// All clusters get the same rendered plan.
    Uniform(Box<RenderedPlan>),
    /// Each cluster has its own rendered plan.
    PerCluster(BTreeMap<ClusterName, ClusterPlan>),
}

/// The plan of one cluster.
#[derive(Clone)]
struct ClusterPlan {
    labels: Labels,
    rendered_plan: Arc<RenderedPlan>,
}

impl ClusterPlans {
    /// Renders the selection for these clusters.
    pub fn new(
        rule: &Rule,
        selection: &RulePlan,
        clusters: impl Iterator<Item = (ClusterName, Labels)>,
        revision_hasher: &RevisionHasher,
    ) -> Self {
        Self::default().render(rule, selection, clusters, revision_hasher)
    }

    /// Renders the selection for these clusters. Reuses contents that the same rule has rendered.
    pub fn render(
        self,
        rule: &Rule,
        selection: &RulePlan,
        clusters: impl Iterator<Item = (ClusterName, Labels)>,
        revision_hasher: &RevisionHasher,
    ) -> Self {
        let mut cluster_plans = Self {
            contents: self.contents,
            ..Self::default()
        };
        let selected: BTreeSet<_> = selection.selected().collect();
        {
            let mut contents = cluster_plans.contents.lock();
            contents.begin();
            contents.retain(|source| selected.contains(source));
        }
        let nothing = RenderedPlan::nothing(selection, rule.source_order());
        if rule.shape.differs_by_cluster() {
            let rendered_plan = Arc::new(nothing);
            cluster_plans.variation = Variation::PerCluster(
                clusters
                    .map(|(name, labels)| {
                        (
                            name,
                            ClusterPlan {
                                labels,
                                rendered_plan: rendered_plan.clone(),
                            },
                        )
                    })
                    .collect(),
            );
        } else if rule.sends_as_selected() {
            return cluster_plans;
        } else {
            cluster_plans.variation = Variation::Uniform(nothing.into());
        }
        for source in selection.all_rendered() {
            if !cluster_plans.set(rule, selection, source, revision_hasher) {
                return cluster_plans;
            }
        }
        cluster_plans.share_equal_plans();
        cluster_plans
    }

    /// The same plans, independent of the selection from which they were rendered.
    #[must_use]
    pub fn detached(self, selection: &Arc<RulePlan>) -> Self {
        if self.is_rendered() {
            return self;
        }
        Self {
            variation: Variation::Uniform(RenderedPlan::restored(selection.clone()).into()),
            ..self
        }
    }

    /// Whether the copies of a rule must be rendered, because they differ from its selection.
    pub fn is_rendered(&self) -> bool {
        !matches!(self.variation, Variation::Unchanged)
    }

    /// Sources have become something else to the rule: those that [`RulePlan::set`] returned.
    pub fn update(
        &mut self,
        rule: &Rule,
        selection: &RulePlan,
        sources: &BTreeSet<SourceRef>,
        revision_hasher: &RevisionHasher,
    ) {
        if self.exceeds {
            return self.render_all(rule, selection, Vec::new(), revision_hasher);
        }
        if !self.is_rendered() {
            return;
        }
        self.contents.lock().begin();
        for source in sources {
            if !self.set(rule, selection, source, revision_hasher) {
                return;
            }
        }
        self.share_equal_plans();
    }

    /// Updates a referenced Secret, and the Secrets that use its values.
    pub fn update_referenced(
        &mut self,
        rule: &Rule,
        selection: &RulePlan,
        secret: &SourceRef,
        revision_hasher: &RevisionHasher,
    ) {
        if self.exceeds {
            return self.render_all(rule, selection, Vec::new(), revision_hasher);
        }
        if !self.is_rendered() {
            return;
        }
        for source in other_secrets(selection, secret) {
            self.contents.lock().forget(source);
            if !self.set(rule, selection, source, revision_hasher) {
                return;
            }
        }
        self.share_equal_plans();
    }

    /// The content of a source is not known any more.
    fn set_unread(
        &mut self,
        rule: &Rule,
        selection: &RulePlan,
        source: &SourceRef,
        revision_hasher: &RevisionHasher,
    ) {
        let body = selection.body(source);
        let renderer = Renderer::new(rule, source, body.as_ref(), selection, revision_hasher);
        self.set_in_each_cluster(
            source,
            body.as_ref(),
            || {},
            |cluster, labels, _| renderer.awaited(cluster, labels),
        );
    }

    /// Marks the contents of all other Secrets from which values are taken as unknown. Until they
    /// are known, nothing of them is sent or removed. Costs no time for contents. Beyond the budget
    /// nothing is sent anyway.
    pub fn set_referenced_unread(
        &mut self,
        rule: &Rule,
        selection: &RulePlan,
        secret: &SourceRef,
        revision_hasher: &RevisionHasher,
    ) {
        if self.exceeds {
            return;
        }
        for source in other_secrets(selection, secret) {
            self.contents.lock().forget(source);
            self.set_unread(rule, selection, source, revision_hasher);
        }
        self.share_equal_plans();
    }

    /// Sets the scopes of the rule's sources that are not listed now.
    pub fn set_unknown(&mut self, unknown: &BTreeSet<WatchScope>) {
        match &mut self.variation {
            Variation::Unchanged => {}
            Variation::Uniform(rendered_plan) => rendered_plan.set_unknown(unknown),
            Variation::PerCluster(by_cluster) => {
                let mut known: BTreeMap<*const RenderedPlan, Arc<RenderedPlan>> = BTreeMap::new();
                let mut former = Vec::new();
                for cluster_plan in by_cluster.values_mut() {
                    let now = known
                        .entry(Arc::as_ptr(&cluster_plan.rendered_plan))
                        .or_insert_with(|| {
                            let mut now = RenderedPlan::clone(&cluster_plan.rendered_plan);
                            now.set_unknown(unknown);
                            now.into()
                        });
                    // Its address stays taken until all are done.
                    former.push(std::mem::replace(
                        &mut cluster_plan.rendered_plan,
                        now.clone(),
                    ));
                }
            }
        }
    }

    /// Whether something is to be rendered for a cluster with these labels.
    pub fn lacks(&self, cluster: &ClusterName, labels: &BTreeMap<String, String>) -> bool {
        match &self.variation {
            Variation::Unchanged | Variation::Uniform(_) => false,
            Variation::PerCluster(by_cluster) => by_cluster
                .get(cluster)
                .is_none_or(|cluster_plan| *cluster_plan.labels != *labels),
        }
    }

    /// Returns the clusters with plans of their own.
    pub fn clusters(&self) -> impl Iterator<Item = &ClusterName> {
        let by_cluster = match &self.variation {
            Variation::Unchanged | Variation::Uniform(_) => None,
            Variation::PerCluster(by_cluster) => Some(by_cluster.keys()),
        };
        by_cluster.into_iter().flatten()
    }

    /// Whether it needs more than the rule's budget, so that nothing of it is sent.
    pub fn exceeds(&self) -> bool {
        self.exceeds
    }

    /// Returns the number of sources with stored rendered contents.
    #[cfg(test)]
    pub fn rendered_sources(&self) -> usize {
        self.contents.lock().sources()
    }

    /// Renders everything from the beginning, for the clusters that there are and these.
    pub fn render_all(
        &mut self,
        rule: &Rule,
        selection: &RulePlan,
        more: Vec<(ClusterName, Labels)>,
        revision_hasher: &RevisionHasher,
    ) {
        // The earlier rendering did not depend on the current references.
        self.contents = Arc::default();
        if !self.differs_by_cluster() {
            *self =
                std::mem::take(self).render(rule, selection, std::iter::empty(), revision_hasher);
            return;
        }
        let Variation::PerCluster(by_cluster) = std::mem::take(&mut self.variation) else {
            return;
        };
        let mut clusters: BTreeMap<_, _> = by_cluster
            .into_iter()
            .map(|(name, cluster_plan)| (name, cluster_plan.labels))
            .collect();
        clusters.extend(more);
        *self = std::mem::take(self).render(rule, selection, clusters.into_iter(), revision_hasher);
    }

    /// A cluster has these labels now, or (`None`) gets nothing any more. Returns whether it gets something else.
    pub fn set_cluster(
        &mut self,
        rule: &Rule,
        selection: &RulePlan,
        cluster: &ClusterName,
        labels: Option<&BTreeMap<String, String>>,
        revision_hasher: &RevisionHasher,
    ) -> bool {
        let Variation::PerCluster(by_cluster) = &mut self.variation else {
            return false;
        };
        let Some(labels) = labels else {
            return by_cluster.remove(cluster).is_some();
        };
        let former = by_cluster.get(cluster);
        if former.is_some_and(|former| *former.labels == *labels) {
            return false;
        }
        let labels: Labels = Arc::new(labels.clone());
        if self.exceeds {
            let before = former.map(|former| former.rendered_plan.clone());
            self.render_all(
                rule,
                selection,
                vec![(cluster.clone(), labels)],
                revision_hasher,
            );
            let now = self.cluster_plan(cluster);
            return before.is_none_or(|before| {
                now.is_none_or(|now| !before.has_equal_content(&now.rendered_plan))
            });
        }
        let mut rendered_plan = RenderedPlan::nothing(selection, rule.source_order());
        self.contents.lock().begin();
        for source in selection.all_rendered() {
            revision_hasher.pause();
            let body = selection.body(source);
            let renderer = Renderer::new(rule, source, body.as_ref(), selection, revision_hasher);
            rendered_plan.set(
                source,
                body.as_ref(),
                renderer.outcome(cluster, &labels, &mut self.contents.lock()),
            );
        }
        let changed =
            former.is_none_or(|former| !former.rendered_plan.has_equal_content(&rendered_plan));
        let rendered_plan = former.filter(|_| !changed).map_or_else(
            || Arc::new(rendered_plan),
            |former| former.rendered_plan.clone(),
        );
        by_cluster.insert(
            cluster.clone(),
            ClusterPlan {
                labels,
                rendered_plan,
            },
        );
        if self.is_within_budget(revision_hasher) {
            self.share_equal_plans();
        } else {
            self.exceed(rule, selection, revision_hasher);
        }
        changed
    }

    /// Returns the exact keys of `spec.substitute` and `spec.overrides` that no selected source has. Empty while that is
    /// not known.
    pub fn missing_keys<'r>(&self, rule: &'r Rule, selection: &RulePlan) -> Vec<NamedKey<'r>> {
        let named = rule.shape.named_keys();
        if named.is_empty() {
            return named;
        }
        let sources = selection.intents.keys();
        let missing = self.contents.lock().missing_keys(named.len(), sources);
        missing
            .into_iter()
            .flatten()
            .map(|position| named[position])
            .collect()
    }

    fn cluster_plan(&self, cluster: &ClusterName) -> Option<&ClusterPlan> {
        match &self.variation {
            Variation::Unchanged | Variation::Uniform(_) => None,
            Variation::PerCluster(by_cluster) => by_cluster.get(cluster),
        }
    }

    /// Returns the plan of a chosen cluster.
    pub fn plan<'a>(
        &'a self,
        cluster: &ClusterName,
        selection: &'a Arc<RulePlan>,
    ) -> Option<&'a Arc<RulePlan>> {
        match &self.variation {
            Variation::Unchanged => Some(selection),
            _ => self.plan_of(cluster),
        }
    }

    /// Returns the plan of all clusters, or each cluster's plan with its name.
    pub fn plans<'a>(
        &'a self,
        selection: &'a RulePlan,
    ) -> Box<dyn Iterator<Item = (Option<&'a ClusterName>, &'a RulePlan)> + 'a> {
        match &self.variation {
            Variation::Unchanged => Box::new(std::iter::once((None, selection))),
            Variation::Uniform(rendered_plan) => {
                Box::new(std::iter::once((None, &*rendered_plan.plan)))
            }
            Variation::PerCluster(by_cluster) => Box::new(
                by_cluster
                    .iter()
                    .map(|(name, cluster_plan)| (Some(name), &*cluster_plan.rendered_plan.plan)),
            ),
        }
    }

    /// Returns the rendered plan of a cluster; `None` if it equals the selection.
    pub fn plan_of(&self, cluster: &ClusterName) -> Option<&Arc<RulePlan>> {
        match &self.variation {
            Variation::Unchanged => None,
            Variation::Uniform(rendered_plan) => Some(&rendered_plan.plan),
            Variation::PerCluster(by_cluster) => by_cluster
                .get(cluster)
                .map(|cluster_plan| &cluster_plan.rendered_plan.plan),
        }
    }

    /// Whether plans may differ between clusters.
    pub fn differs_by_cluster(&self) -> bool {
        matches!(self.variation, Variation::PerCluster(_))
    }

    /// Returns the number of different plans.
    pub fn outcomes(&self) -> usize {
        match &self.variation {
            Variation::Unchanged | Variation::Uniform(_) => 1,
            Variation::PerCluster(by_cluster) => by_cluster
                .values()
                .map(|cluster_plan| Arc::as_ptr(&cluster_plan.rendered_plan))
                .collect::<BTreeSet<_>>()
                .len(),
        }
    }

    /// Whether two send the same everywhere.
    pub fn has_equal_content(&self, other: &ClusterPlans) -> bool {
        match (&self.variation, &other.variation) {
            (Variation::Unchanged, Variation::Unchanged) => true,
            (Variation::Uniform(one), Variation::Uniform(two)) => one.has_equal_content(two),
            (Variation::PerCluster(one), Variation::PerCluster(two)) => {
                let same = |(name, cluster_plan): (&ClusterName, &ClusterPlan)| {
                    two.get(name).is_some_and(|other| {
                        Arc::ptr_eq(&cluster_plan.rendered_plan, &other.rendered_plan)
                            || cluster_plan
                                .rendered_plan
                                .has_equal_content(&other.rendered_plan)
                    })
                };
                one.len() == two.len() && one.iter().all(same)
            }
            _ => false,
        }
    }

    /// Sets a source. Returns whether the rule is within its budget.
    fn set(
        &mut self,
        rule: &Rule,
        selection: &RulePlan,
        source: &SourceRef,
        revision_hasher: &RevisionHasher,
    ) -> bool {
        if revision_hasher.is_stopped() {
            return false;
        }
        let body = selection.body(source);
        let renderer = Renderer::new(rule, source, body.as_ref(), selection, revision_hasher);
        if body.is_none() {
            self.contents.lock().forget(source);
        }
        let by_cluster = self.differs_by_cluster();
        let mut within = true;
        let pause = || revision_hasher.pause();
        self.set_in_each_cluster(source, body.as_ref(), pause, |cluster, labels, contents| {
            // Content beyond the budget is not rendered completely.
            if !within {
                return renderer.awaited(cluster, labels);
            }
            let outcome = renderer.outcome(cluster, labels, contents);
            within = !by_cluster
                || contents.bytes() <= revision_hasher.budget()
                    && contents.works_within(revision_hasher.budget());
            outcome
        });
        if within {
            if !by_cluster || self.is_within_budget(revision_hasher) {
                return true;
            }
            self.exceed(rule, selection, revision_hasher);
            return false;
        }
        // The count may include clusters that are deleted.
        if self.is_within_budget(revision_hasher) {
            self.set_in_each_cluster(source, body.as_ref(), pause, |cluster, labels, contents| {
                renderer.outcome(cluster, labels, contents)
            });
        }
        if self.is_within_budget(revision_hasher) {
            return true;
        }
        self.exceed(rule, selection, revision_hasher);
        false
    }

    /// Sets the state of a source in each cluster, with a `pause` before each.
    fn set_in_each_cluster(
        &mut self,
        source: &SourceRef,
        body: Option<&super::SourceState>,
        pause: impl Fn(),
        mut outcome: impl FnMut(
            &ClusterName,
            &BTreeMap<String, String>,
            &mut Contents,
        ) -> Option<RenderOutcome>,
    ) {
        // Locked for one cluster at a time: the index may wait for it while a job renders.
        let contents = self.contents.clone();
        match &mut self.variation {
            Variation::Unchanged => {}
            Variation::Uniform(rendered_plan) => {
                pause();
                let outcome = outcome(&"".into(), &BTreeMap::new(), &mut contents.lock());
                rendered_plan.set(source, body, outcome);
            }
            Variation::PerCluster(by_cluster) => {
                // Clusters that shared a plan and get equal content share one again. The former
                // plans are kept until then, because their addresses identify them.
                let mut made_of =
                    BTreeMap::<(*const RenderedPlan, Option<OutcomeKey>), ReplacedPlans>::new();
                let mut alone = 0;
                for (cluster, cluster_plan) in by_cluster.iter_mut() {
                    pause();
                    let outcome = outcome(cluster, &cluster_plan.labels, &mut contents.lock());
                    if let Some(rendered_plan) = Arc::get_mut(&mut cluster_plan.rendered_plan) {
                        rendered_plan.set(source, body, outcome);
                        alone += 1;
                        continue;
                    }
                    let key = (
                        Arc::as_ptr(&cluster_plan.rendered_plan),
                        outcome.as_ref().map(RenderOutcome::key),
                    );
                    let (_, now) = made_of.entry(key).or_insert_with(|| {
                        let mut now = RenderedPlan::clone(&cluster_plan.rendered_plan);
                        now.set(source, body, outcome);
                        (cluster_plan.rendered_plan.clone(), now.into())
                    });
                    cluster_plan.rendered_plan = now.clone();
                }
                match body {
                    Some(_) => drop(
                        self.entries
                            .insert(source.clone(), alone + made_of.len() as u64),
                    ),
                    None => drop(self.entries.remove(source)),
                }
            }
        }
    }

    /// Lets clusters with equal plans share one.
    fn share_equal_plans(&mut self) {
        let Variation::PerCluster(by_cluster) = &mut self.variation else {
            return;
        };
        let mut known: BTreeMap<([u8; 16], u64), Vec<Arc<RenderedPlan>>> = BTreeMap::new();
        for cluster_plan in by_cluster.values_mut() {
            let plan = &cluster_plan.rendered_plan.plan;
            let mut rest = DefaultHasher::new();
            (plan.intents.len(), &plan.unread, &plan.unreadable).hash(&mut rest);
            plan.render_errors
                .iter()
                .for_each(|(source, why)| (source, &why.message).hash(&mut rest));
            let uniform_plans = known
                .entry((SetDigest::to_bytes(plan.digest), rest.finish()))
                .or_default();
            let equal_plan = uniform_plans.iter().find(|rendered_plan| {
                Arc::ptr_eq(rendered_plan, &cluster_plan.rendered_plan)
                    || rendered_plan.has_equal_content(&cluster_plan.rendered_plan)
            });
            match equal_plan {
                Some(twin) => cluster_plan.rendered_plan = twin.clone(),
                None => uniform_plans.push(cluster_plan.rendered_plan.clone()),
            }
        }
    }
}

/// Returns the other Secrets whose values may be used in copies of one.
fn other_secrets<'a>(
    selection: &'a RulePlan,
    secret: &'a SourceRef,
) -> impl Iterator<Item = &'a SourceRef> {
    let beside = |source: &&SourceRef| {
        source.resource == secret.resource && source.namespace == secret.namespace
    };
    selection.selected().filter(beside)
}
