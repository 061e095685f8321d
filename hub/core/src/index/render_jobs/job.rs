//! Render jobs beside the index.
use std::collections::BTreeSet;
use std::sync::Arc;

use runnel_proto::model::{ClusterName, RuleUid, SourceRef};

use crate::plan::{
    ClusterPlans, CompletedState, Labels, RevisionHasher, Rule, RulePlan, Scope, SourceState,
};

/// The input of a render job.
pub struct RenderJob {
    pub(super) rule: Rule,
    pub(super) number: u64,
    pub(super) revision_hasher: RevisionHasher,
    pub(super) work: Work,
}

pub(super) enum Work {
    /// The rule is another one.
    WholeRule {
        serial: u64,
        plan: Arc<RulePlan>,
        clusters: Vec<(ClusterName, Labels)>,
        known: ClusterPlans,
    },
    /// Some of its sources or clusters are.
    Changes {
        plan: Arc<RulePlan>,
        cluster_plans: ClusterPlans,
        sources: Vec<(SourceRef, Option<SourceState>, Option<SourceState>)>,
        clusters: Vec<(ClusterName, Labels)>,
        rerender: bool,
    },
    /// It is rolled back to former inputs.
    Former {
        state: Arc<CompletedState>,
        scope: Scope,
        clusters: Vec<(ClusterName, Labels)>,
    },
}

/// The result of a render job. Drop it outside the lock after it was installed.
pub struct RenderResult {
    pub(super) rule: Rule,
    pub(super) number: u64,
    pub(super) plan: Arc<RulePlan>,
    pub(super) cluster_plans: ClusterPlans,
    pub(super) part: RenderedPart,
    pub(super) garbage: Vec<ClusterPlans>,
}

pub(super) enum RenderedPart {
    /// The rule that was given so.
    Whole(u64),
    /// Sources and clusters that had changed.
    Changes(BTreeSet<SourceRef>, Vec<ClusterName>),
    /// Former inputs, with the former rule; none if the hub cannot read that.
    Former(Arc<CompletedState>, Option<Box<Rule>>),
}

impl RenderJob {
    /// Calls `pause` between the renderings of single copies, without a lock.
    pub fn paced(self, pause: impl Fn() + Send + Sync + 'static) -> Self {
        Self {
            revision_hasher: self.revision_hasher.paced(pause),
            ..self
        }
    }

    /// Renders. May take long.
    pub fn run(self) -> RenderResult {
        let Self {
            rule,
            number,
            revision_hasher,
            work,
        } = self;
        let (plan, cluster_plans, what) = match work {
            Work::WholeRule {
                serial,
                plan,
                clusters,
                known,
            } => {
                let mut cluster_plans =
                    known.render(&rule, &plan, clusters.into_iter(), &revision_hasher);
                if cluster_plans.exceeds() {
                    // Perhaps not without what the rule before has, which counts as long as it is sent.
                    cluster_plans.render_all(&rule, &plan, Vec::new(), &revision_hasher);
                }
                (plan, cluster_plans, RenderedPart::Whole(serial))
            }
            Work::Changes {
                mut plan,
                mut cluster_plans,
                sources,
                clusters,
                rerender: again,
            } => {
                let mut changed = BTreeSet::new();
                for (source, selected, secret_refs) in sources {
                    let known = Arc::make_mut(&mut plan);
                    if !known.is_unchanged_by(&source, selected.as_ref()) {
                        let touched = known.set(&source, selected.as_ref());
                        if !cluster_plans.exceeds() {
                            cluster_plans.update(&rule, known, &touched, &revision_hasher);
                        }
                    }
                    if rule.reads_secret(&source)
                        && known.set_referenced(&source, secret_refs.as_ref())
                        && !cluster_plans.exceeds()
                    {
                        cluster_plans.update_referenced(&rule, known, &source, &revision_hasher);
                    }
                    changed.insert(source);
                }
                for (name, labels) in &clusters {
                    if !cluster_plans.exceeds() {
                        cluster_plans.set_cluster(
                            &rule,
                            &plan,
                            name,
                            Some(labels),
                            &revision_hasher,
                        );
                    }
                }
                let names = clusters.iter().map(|(name, _)| name.clone()).collect();
                if cluster_plans.exceeds() || again {
                    // Perhaps not with all that has changed.
                    cluster_plans.render_all(&rule, &plan, clusters, &revision_hasher);
                }
                (plan, cluster_plans, RenderedPart::Changes(changed, names))
            }
            Work::Former {
                state,
                scope,
                clusters,
            } => {
                let former = state.rule(&rule).map(Box::new);
                let of = former.as_deref().unwrap_or(&rule);
                let plan = Arc::new(state.plan(of, &scope));
                let clusters = clusters.into_iter();
                let cluster_plans = ClusterPlans::new(of, &plan, clusters, &revision_hasher);
                let cluster_plans = cluster_plans.detached(&plan);
                (plan, cluster_plans, RenderedPart::Former(state, former))
            }
        };
        RenderResult {
            rule,
            number,
            plan,
            cluster_plans,
            part: what,
            garbage: Vec::new(),
        }
    }
}

impl RenderResult {
    /// The rule.
    pub fn uid(&self) -> &RuleUid {
        &self.rule.uid
    }
}
