//! Render jobs: what they take from the index, and what they change in it. See [`super::rendering`].
mod job;

use std::collections::BTreeSet;
use std::sync::Arc;

use runnel_proto::model::{ClusterName, RuleUid, SourceRef, Terms};

use super::changes::record_choice;
use super::clusters::{Cluster, Clusters};
use super::planner::{PlannedRule, Planner};
use super::rendering::{RenderBacklog, has_content, set_referenced_now};
use super::rollouts::FormerPlans;
use super::sources::Sources;
use super::targets::Targets;
use super::watch_scopes::WatchScopes;
use super::{Effect, Index, RuleEntry};
use crate::guard::CauseKind;
use crate::plan::{
    CompletedState, Labels, NAMESPACE_SHARE, NamedTerms, RevisionHasher, Rule, RulePlan, is_bundle,
};
pub use job::{RenderJob, RenderResult};
use job::{RenderedPart, Work};

/// The clusters of a render job, with their labels.
fn labels_of<'a>(
    clusters: impl Iterator<Item = (&'a ClusterName, &'a Cluster)>,
) -> Vec<(ClusterName, Labels)> {
    let labels = |cluster: &Cluster| Arc::new(cluster.labels.clone());
    clusters
        .map(|(name, cluster)| (name.clone(), labels(cluster)))
        .collect()
}

impl RuleEntry {
    /// Installs the rendered plan of a cluster.
    fn take_cluster(
        &mut self,
        name: &ClusterName,
        former: Option<&Arc<RulePlan>>,
        targets: &Targets,
    ) {
        let cluster = targets.clusters.get(name);
        let Some(cluster) = cluster.filter(|known| known.is_chosen_by(&self.rule, name)) else {
            return;
        };
        let effective_terms = targets.terms(&self.rule, name, cluster);
        let former = (
            self.target_clusters.clusters.get(name).cloned(),
            former.cloned(),
        );
        self.target_clusters
            .set(&self.rule, name, Some(effective_terms), cluster.cordoned);
        if self.cluster_plans.lacks(name, &cluster.labels) {
            self.unrendered.clusters.insert(name.clone());
        }
        record_choice(self, name, former, true);
    }
}

impl Planner {
    /// Another leader may have sent what waits to be rendered here. Nothing is sent of those rules
    /// until it is rendered.
    pub(super) fn mark_unrendered_stale(&mut self) {
        let last = self.rendering.last();
        for (uid, entry) in self.rules.iter_mut() {
            let waits = !entry.unrendered.is_empty() || entry.unrendered.since.is_some();
            if waits || self.rendering.is_awaited(uid) {
                entry.unrendered.outdated = Some(last);
            }
        }
    }

    /// Returns a rule as it is deleted: with its former copies, as new content is not sent any more.
    pub(super) fn deleted_form(&mut self, rule: &Rule) -> Option<PlannedRule> {
        let former = self.rules.get(&rule.uid).filter(|_| rule.deleting)?;
        self.rendering.forget(&rule.uid);
        let terms = Terms {
            deletion_policy: rule.terms.deletion_policy,
            ..Terms::clone(&former.rule.terms)
        };
        let mut deleted = former.rule.clone();
        (deleted.deleting, deleted.generation) = (true, rule.generation);
        deleted.removal = rule.removal.clone();
        deleted.terms = NamedTerms::new(terms);
        Some(PlannedRule {
            rule: deleted,
            plan: former.plan.clone(),
            cluster_plans: former.cluster_plans.clone(),
            unrendered: RenderBacklog {
                outdated: former.unrendered.outdated,
                ..RenderBacklog::default()
            },
        })
    }

    /// Returns the hasher with the budget that the other rules of its namespace leave to a rule.
    fn hasher_of(&self, uid: &RuleUid) -> RevisionHasher {
        let hasher = self.rendering.revision_hasher.clone();
        let Some(rule) = self.latest_rule(uid) else {
            return hasher;
        };
        let namespace = &rule.terms.rule.namespace;
        // Rules without a namespace are those of administrators.
        let others = self.rules.iter().filter(|(other, entry)| {
            *other != uid && !namespace.is_empty() && entry.rule.terms.rule.namespace == *namespace
        });
        let taken = others.fold(0u64, |sum, (_, entry)| {
            sum.saturating_add(entry.cluster_plans.size_bytes())
                .saturating_add(entry.former.size_bytes())
        });
        let most = hasher.budget();
        let left = most.saturating_mul(NAMESPACE_SHARE).saturating_sub(taken);
        hasher.with_budget(left.min(most))
    }

    /// Returns the next render job of a rule.
    fn render_job(
        &mut self,
        uid: &RuleUid,
        sources: &Sources,
        scopes: &WatchScopes,
        clusters: &Clusters,
    ) -> Option<RenderJob> {
        let number = self.rendering.next_number();
        let revision_hasher = self.hasher_of(uid);
        if let Some((rule, serial)) = self.rendering.awaited_with_serial(uid) {
            let rule = rule.clone();
            let known = self
                .rules
                .get(uid)
                .filter(|former| has_same_rendering(&former.rule, &rule));
            let known = known
                .map(|former| former.cluster_plans.clone())
                .unwrap_or_default();
            let plan = Arc::new(sources.plan(&rule, scopes));
            let clusters = labels_of(clusters.chosen_by(&rule));
            return Some(RenderJob {
                rule,
                number,
                revision_hasher,
                work: Work::WholeRule {
                    serial,
                    plan,
                    clusters,
                    known,
                },
            });
        }
        let lacks =
            |entry: &RuleEntry| !entry.unrendered.is_empty() || entry.unrendered.is_outdated();
        let entry = self.rules.get_mut(uid)?;
        if !lacks(entry) {
            let state = entry.unrendered_state(clusters)?.clone();
            let (rule, scope) = (entry.rule.clone(), entry.plan.scope.clone());
            let clusters = labels_of(clusters.chosen_by(&rule));
            return Some(RenderJob {
                rule,
                number,
                revision_hasher,
                work: Work::Former {
                    state,
                    scope,
                    clusters,
                },
            });
        }
        let rule = &entry.rule;
        let changed = entry.unrendered.sources.iter().map(|source| {
            let known = sources.get(source);
            let selected =
                known.and_then(|known| rule.selected_state(source, &known.labels, &known.body));
            let secret_refs = known.filter(|_| rule.reads_secret(source));
            (
                source.clone(),
                selected,
                secret_refs.map(|known| known.body.clone()),
            )
        });
        let changed = changed.collect();
        let chosen = entry
            .unrendered
            .clusters
            .iter()
            .filter_map(|name| Some((name, clusters.get(name)?)));
        let chosen = labels_of(chosen.filter(|(name, cluster)| cluster.is_chosen_by(rule, name)));
        let (plan, cluster_plans) = (entry.plan.clone(), entry.cluster_plans.clone());
        let work = Work::Changes {
            plan,
            cluster_plans,
            sources: changed,
            clusters: chosen,
            rerender: entry.unrendered.rerender,
        };
        let job = RenderJob {
            rule: rule.clone(),
            number,
            revision_hasher,
            work,
        };
        (entry.unrendered.sources, entry.unrendered.clusters) = (BTreeSet::new(), BTreeSet::new());
        entry.unrendered.rerender = false;
        entry.unrendered.since = Some((number, BTreeSet::new()));
        Some(job)
    }

    /// Updates a rendered rule by what has changed while it was rendered: `now` is its plan.
    fn catch_up(
        &self,
        rule: Rule,
        rendered: &mut RenderResult,
        now: &RulePlan,
        clusters: &Clusters,
    ) -> PlannedRule {
        let hasher = &self.rendering.revision_hasher;
        let (mut plan, mut cluster_plans) = (
            rendered.plan.clone(),
            std::mem::take(&mut rendered.cluster_plans),
        );
        let mut unrendered = RenderBacklog::default();
        for source in now.changed_since(&plan) {
            let body = now.object_state(&source);
            if has_content(body.as_ref()) {
                unrendered.sources.insert(source);
            } else {
                let plan = Arc::make_mut(&mut plan);
                let touched = plan.set(&source, body.as_ref());
                if cluster_plans.exceeds() {
                    unrendered.rerender = true;
                } else {
                    cluster_plans.update(&rule, plan, &touched, hasher);
                }
            }
        }
        for secret in now.referenced_since(&plan) {
            let plan = Arc::make_mut(&mut plan);
            set_referenced_now(
                &rule,
                plan,
                &mut cluster_plans,
                &secret,
                now.secret_refs.get(&secret),
                &mut unrendered,
                hasher,
            );
        }
        if plan.unknown != now.unknown {
            Arc::make_mut(&mut plan).unknown.clone_from(&now.unknown);
            cluster_plans.set_unknown(&now.unknown);
            // Whether a referenced Secret is missing must be determined again.
            unrendered.rerender |= rule.shape.secrets_read().next().is_some();
        }
        unrendered.rerender |= clusters.drop_unchosen(&rule, &plan, &mut cluster_plans, hasher)
            && cluster_plans.exceeds();
        for (name, cluster) in clusters.chosen_by(&rule) {
            if cluster_plans.lacks(name, &cluster.labels) {
                unrendered.clusters.insert(name.clone());
            }
        }
        let outdated = self
            .rules
            .get(&rule.uid)
            .and_then(|former| former.unrendered.outdated);
        unrendered.outdated = outdated.filter(|last| rendered.number <= *last);
        PlannedRule {
            rule,
            plan,
            cluster_plans,
            unrendered,
        }
    }

    /// Installs rendered changes. Returns also the sources that the rule does not select any more.
    fn take_changes(
        &mut self,
        rendered: &mut RenderResult,
        sources: &BTreeSet<SourceRef>,
        clusters: &[ClusterName],
        targets: &Targets,
    ) -> (Effect, Vec<SourceRef>) {
        let (mut effect, uid) = (Effect::default(), rendered.rule.uid.clone());
        let mut unselected = Vec::new();
        let Some(since) = self
            .rules
            .get_mut(&uid)
            .and_then(|entry| entry.unrendered.ends(rendered.number))
        else {
            return (effect, unselected);
        };
        let Some(mut entry) = self.rules.take(&uid) else {
            return (effect, unselected);
        };
        let (mut plan, mut cluster_plans) = (
            rendered.plan.clone(),
            std::mem::take(&mut rendered.cluster_plans),
        );
        for source in &since {
            let known = Arc::make_mut(&mut plan);
            let body = entry.plan.object_state(source);
            let touched = known.set(source, body.as_ref());
            if has_content(body.as_ref()) {
                // The source lost its content at once, and has it again.
                entry.unrendered.sources.insert(source.clone());
            } else if cluster_plans.exceeds() {
                entry.unrendered.rerender = true;
            } else {
                cluster_plans.update(
                    &entry.rule,
                    known,
                    &touched,
                    &self.rendering.revision_hasher,
                );
            }
            if entry.rule.reads_secret(source) {
                let body = entry.plan.secret_refs.get(source);
                set_referenced_now(
                    &entry.rule,
                    known,
                    &mut cluster_plans,
                    source,
                    body,
                    &mut entry.unrendered,
                    &self.rendering.revision_hasher,
                );
            }
        }
        if plan.unknown != entry.plan.unknown {
            Arc::make_mut(&mut plan)
                .unknown
                .clone_from(&entry.plan.unknown);
            cluster_plans.set_unknown(&entry.plan.unknown);
        }
        let former = std::mem::replace(&mut entry.cluster_plans, cluster_plans);
        let former_plan = std::mem::replace(&mut entry.plan, plan);
        let objects = sources.iter().chain(&since);
        let intents = objects.flat_map(|source| entry.plan.selected_intents(source));
        let gained = intents.filter(|intent| !former_plan.selects(intent));
        entry.guard.record_gained(gained);
        for source in sources.iter().chain(&since) {
            if is_bundle(source) {
                let wanted = former_plan.selected_intents(source);
                entry.record_left(wanted, source, &CauseKind::Deleted.of(""));
            }
            if entry.plan.names(source) || entry.unrendered.sources.contains(source) {
                self.selection.select(source, &uid);
            } else {
                self.selection.unselect(source, &uid);
                unselected.push(source.clone());
            }
            if entry.plan.awaits(source) {
                effect.read.insert(source.clone());
            }
        }
        entry.unrendered.outdated = entry
            .unrendered
            .outdated
            .filter(|last| rendered.number <= *last);
        for name in clusters {
            entry.take_cluster(name, former.plan(name, &former_plan), targets);
        }
        let has_left = targets.clusters.drop_unchosen(
            &entry.rule,
            &entry.plan,
            &mut entry.cluster_plans,
            &self.rendering.revision_hasher,
        );
        entry.unrendered.rerender |= has_left && entry.cluster_plans.exceeds();
        entry.keep_selected();
        if entry.guard.is_open() {
            effect.judge.insert(uid.clone());
        }
        self.rendering.drop_unlocked(former);
        self.rules.insert(uid.clone(), entry);
        self.rules.touch(&uid, &mut effect);
        (effect, unselected)
    }

    /// Installs the rendered plans of former inputs.
    fn take_former(
        &mut self,
        rendered: &mut RenderResult,
        state: &Arc<CompletedState>,
        rule: Option<Box<Rule>>,
    ) -> Effect {
        let (mut effect, uid) = (Effect::default(), rendered.rule.uid.clone());
        let former = rule.map(|rule| FormerPlans {
            rule: *rule,
            cluster_plans: std::mem::take(&mut rendered.cluster_plans),
        });
        if let Some(entry) = self.rules.get_mut(&uid) {
            if let Some(former) = entry.former.set_rendered(state, former) {
                self.rendering.drop_unlocked(former.cluster_plans);
            }
            self.rules.touch(&uid, &mut effect);
        }
        effect
    }

    /// Ends a job: the rule is rendered again if something else waits, and former plans are dropped outside the lock.
    fn end_job(&mut self, rendered: &mut RenderResult, effect: &mut Effect) {
        let uid = &rendered.rule.uid;
        if self.rendering.is_awaited(uid) || self.rules.get(uid).is_some_and(RuleEntry::waits) {
            effect.render.insert(uid.clone());
        }
        rendered.garbage = self.rendering.take_garbage();
    }
}

impl Index {
    /// Renders the effect of an event at once, unless rendering is deferred.
    pub(super) fn render_here(&mut self, effect: &mut Effect) {
        while !self.planner.rendering.defers_rendering()
            && let Some(uid) = effect.render.pop_first()
        {
            if let Some(job) = self.render_job(&uid) {
                let mut rendered = job.run();
                effect.merge(self.take_rendered(&mut rendered));
            }
        }
    }

    /// Returns the next render job of a rule.
    pub fn render_job(&mut self, uid: &RuleUid) -> Option<RenderJob> {
        let clusters = &self.targets.clusters;
        self.planner
            .render_job(uid, &self.sources, &self.scopes, clusters)
    }

    /// Installs a render result, if the rule has not changed meanwhile.
    pub fn take_rendered(&mut self, rendered: &mut RenderResult) -> Effect {
        let mut effect = match std::mem::replace(&mut rendered.part, RenderedPart::Whole(0)) {
            RenderedPart::Whole(serial) => self.apply_rendered_rule(rendered, serial),
            RenderedPart::Former(state, rule) => self.planner.take_former(rendered, &state, rule),
            RenderedPart::Changes(sources, clusters) => {
                let taken = self
                    .planner
                    .take_changes(rendered, &sources, &clusters, &self.targets);
                self.sources.drop_unselected(&taken.1, &self.planner);
                taken.0
            }
        };
        self.planner.end_job(rendered, &mut effect);
        self.render_former_of(&rendered.rule.uid, &mut effect);
        effect
    }

    /// A render job ended without a result, and the changes that it took are not rendered: the rule is rendered as a whole.
    pub fn render_failed(&mut self, uid: &RuleUid) -> Effect {
        if !self.planner.rendering.is_awaited(uid)
            && let Some(entry) = self.rules().get(uid).filter(|entry| !entry.rule.deleting)
        {
            let rule = entry.rule.clone();
            self.planner.rendering.await_rule(rule);
        }
        Effect {
            render: [uid.clone()].into(),
            ..Effect::default()
        }
    }

    fn apply_rendered_rule(&mut self, rendered: &mut RenderResult, serial: u64) -> Effect {
        let uid = rendered.rule.uid.clone();
        let Some(rule) = self.planner.rendering.take_awaited(&uid, serial) else {
            return Effect::default();
        };
        let now = self.sources.plan(&rule, &self.scopes);
        let clusters = &self.targets.clusters;
        let planned = self.planner.catch_up(rule, rendered, &now, clusters);
        let former = self.planner.rules.get(&uid);
        let was_outdated = former.is_some_and(|former| former.unrendered.is_outdated());
        let mut effect = self.put_rule(planned);
        if was_outdated {
            self.planner.rules.touch(&uid, &mut effect);
        }
        effect
    }
}

/// Whether both rules have the same rendering.
fn has_same_rendering(one: &Rule, two: &Rule) -> bool {
    one.shape == two.shape && one.shape.secrets_read().next().is_none()
}
