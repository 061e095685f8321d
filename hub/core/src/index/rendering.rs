//! Rendering outside the lock of the index: shaped copies take time for each source and cluster.
//!
//! A change that needs rendering is recorded ([`Effect::render`]), and the plan stays as if the
//! change had not come yet. A [`RenderJob`] contains all that is needed, runs without the index,
//! and its result is swapped in. Selection and copies change together, so that no reader sees one
//! without the other. A change that makes something unknown or removes it needs no rendering and is
//! never deferred. It is applied again to the result of a job under way.
//!
//! An index without a renderer beside it renders at once.
mod job;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use runnel_proto::model::{ClusterName, RuleUid, SourceRef, Terms};

use super::changes::record_choice;
use super::{Cluster, Effect, Index, RuleEntry};
use crate::plan::{
    ClusterPlans, NamedTerms, RemovalTerms, RevisionHasher, Rule, RulePlan, SourceState,
    TermsResolver,
};
pub use job::{RenderJob, Rendered};
use job::{What, Work};

/// A rule as it will be once its copies are rendered.
struct Awaited {
    rule: Rule,
    /// Distinguishes it from earlier and later jobs.
    serial: u64,
}

/// The state of deferred rendering.
#[derive(Default)]
pub(super) struct Rendering {
    /// Whether rendering is deferred.
    aside: bool,
    /// Rules as they will be once their copies are rendered.
    awaited: BTreeMap<RuleUid, Awaited>,
    /// Counts jobs.
    last: u64,
    /// Plans to drop after the lock of the index is released.
    garbage: Vec<ClusterPlans>,
}

impl Rendering {
    /// Whether rendering is deferred.
    pub(super) fn is_aside(&self) -> bool {
        self.aside
    }

    /// Forgets a rule that is deleted, or needs no rendering.
    pub(super) fn forget(&mut self, uid: &RuleUid) {
        self.awaited.remove(uid);
    }

    /// The rules that are to be rendered as a whole.
    pub(super) fn awaited(&self) -> impl Iterator<Item = &RuleUid> {
        self.awaited.keys()
    }

    /// Sets the removal terms of a rule.
    pub(super) fn set_removal(&mut self, uid: &RuleUid, removal: &RemovalTerms) {
        if let Some(awaited) = self.awaited.get_mut(uid) {
            awaited.rule.removal = removal.clone();
        }
    }

    /// Drops plans after the lock of the index is released.
    pub(super) fn drop_later(&mut self, cluster_plans: ClusterPlans) {
        if self.aside {
            self.garbage.push(cluster_plans);
        }
    }
}

impl RuleEntry {
    /// Whether the plan for a cluster is not rendered yet.
    pub(super) fn lacks(&self, cluster: &ClusterName) -> bool {
        self.sent().0.plan(cluster, &self.plan).is_none()
    }
}

impl Index {
    /// Defers slow work to the caller: see [`Effect::render`] and [`Effect::follow`].
    pub fn working_aside(mut self) -> Self {
        self.rendering.aside = true;
        self
    }

    /// Whether slow work is deferred.
    pub(super) fn is_aside(&self) -> bool {
        self.rendering.is_aside()
    }

    /// Returns the newest form of the rule; the index may have an older one until it is rendered.
    pub fn latest_rule(&self, uid: &RuleUid) -> Option<&Rule> {
        let awaited = self.rendering.awaited.get(uid).map(|awaited| &awaited.rule);
        awaited.or_else(|| self.rules.get(uid).map(|entry| &entry.rule))
    }

    /// Rules that are not here yet, as their copies are being rendered.
    pub(super) fn awaited_rules(&self) -> impl Iterator<Item = &Rule> {
        self.rendering.awaited.values().map(|awaited| &awaited.rule)
    }

    /// Whether the newest form of the rule is being rendered.
    pub(super) fn is_awaited(&self, uid: &RuleUid) -> bool {
        self.rendering.awaited.contains_key(uid)
    }

    /// Another leader may have sent what waits to be rendered here. Nothing is sent of those rules
    /// until it is rendered.
    pub(super) fn mark_unrendered_stale(&mut self) {
        let last = self.rendering.last;
        for (uid, entry) in &mut self.rules {
            let waits = !entry.unrendered.is_empty() || entry.unrendered.since.is_some();
            if waits || self.rendering.awaited.contains_key(uid) {
                entry.unrendered.outdated = Some(last);
            }
        }
    }

    /// Updates a rule whose copies differ from its sources.
    pub(super) fn set_rendered_rule(&mut self, rule: Rule) -> Effect {
        let uid = rule.uid.clone();
        let mut effect = Effect::default();
        if rule.deleting
            && let Some(former) = self.rules.get(&uid)
        {
            // New content of it is not sent any more.
            self.rendering.awaited.remove(&uid);
            let terms = Terms {
                deletion_policy: rule.terms.deletion_policy,
                ..Terms::clone(&former.rule.terms)
            };
            let (plan, cluster_plans) = (former.plan.clone(), former.cluster_plans.clone());
            let unrendered = Unrendered {
                outdated: former.unrendered.outdated,
                ..Unrendered::default()
            };
            let mut going = former.rule.clone();
            (going.deleting, going.generation, going.removal) =
                (true, rule.generation, rule.removal);
            going.terms = NamedTerms::new(terms);
            let rule = going;
            return self.put_rule(rule, plan, cluster_plans, unrendered);
        }
        self.rendering.last += 1;
        let awaited = Awaited {
            rule,
            serial: self.rendering.last,
        };
        self.rendering.awaited.insert(uid.clone(), awaited);
        effect.render.insert(uid);
        self.render_here(&mut effect);
        effect
    }

    /// Renders the effect of an event at once, unless rendering is deferred.
    pub(super) fn render_here(&mut self, effect: &mut Effect) {
        while !self.rendering.aside
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
        self.rendering.last += 1;
        let number = self.rendering.last;
        let revision_hasher = self.revision_hasher.clone();
        if let Some(Awaited { rule, serial }) = self.rendering.awaited.get(uid) {
            let (rule, serial) = (rule.clone(), *serial);
            let known = self
                .rules
                .get(uid)
                .filter(|former| is_rendered_alike(&former.rule, &rule));
            let known = known
                .map(|former| former.cluster_plans.clone())
                .unwrap_or_default();
            let plan = Arc::new(self.plan_of(&rule));
            let chosen = self
                .clusters
                .iter()
                .filter(|(name, cluster)| cluster.is_chosen_by(&rule, name));
            let clusters = chosen
                .map(|(name, cluster)| (name.clone(), Arc::new(cluster.labels.clone())))
                .collect();
            return Some(RenderJob {
                rule,
                number,
                revision_hasher,
                work: Work::Whole {
                    serial,
                    plan,
                    clusters,
                    known,
                },
            });
        }
        let (sources, clusters) = (&self.sources, &self.clusters);
        let lacks =
            |entry: &&mut RuleEntry| !entry.unrendered.is_empty() || entry.unrendered.is_outdated();
        let entry = self.rules.get_mut(uid).filter(lacks)?;
        let rule = &entry.rule;
        let changed = entry.unrendered.sources.iter().map(|source| {
            let known = sources.get(source);
            let selected = known.filter(|known| rule.selects(source, &known.labels));
            let secret_refs = known.filter(|_| rule.reads_secret(source));
            (
                source.clone(),
                selected.map(|known| known.body.clone()),
                secret_refs.map(|known| known.body.clone()),
            )
        });
        let changed = changed.collect();
        let chosen = entry
            .unrendered
            .clusters
            .iter()
            .filter_map(|name| Some((name, clusters.get(name)?)));
        let chosen = chosen.filter(|(name, cluster)| cluster.is_chosen_by(rule, name));
        let chosen = chosen
            .map(|(name, cluster)| (name.clone(), Arc::new(cluster.labels.clone())))
            .collect();
        let (plan, cluster_plans) = (entry.plan.clone(), entry.cluster_plans.clone());
        let work = Work::Changes {
            plan,
            cluster_plans,
            sources: changed,
            clusters: chosen,
            again: entry.unrendered.again,
        };
        let job = RenderJob {
            rule: rule.clone(),
            number,
            revision_hasher,
            work,
        };
        (entry.unrendered.sources, entry.unrendered.clusters) = (BTreeSet::new(), BTreeSet::new());
        entry.unrendered.again = false;
        entry.unrendered.since = Some((number, BTreeSet::new()));
        Some(job)
    }

    /// Installs a render result, if the rule has not changed meanwhile.
    pub fn take_rendered(&mut self, rendered: &mut Rendered) -> Effect {
        let mut effect = match std::mem::replace(&mut rendered.what, What::Whole(0)) {
            What::Whole(serial) => self.take_whole(rendered, serial),
            What::Changes(sources, clusters) => self.take_changes(rendered, &sources, &clusters),
        };
        let uid = rendered.rule.uid.clone();
        let lacks =
            |entry: &RuleEntry| !entry.unrendered.is_empty() || entry.unrendered.is_outdated();
        if self.is_awaited(&uid) || self.rules.get(&uid).is_some_and(lacks) {
            effect.render.insert(uid);
        }
        rendered.garbage = std::mem::take(&mut self.rendering.garbage);
        effect
    }

    fn take_whole(&mut self, rendered: &mut Rendered, serial: u64) -> Effect {
        let uid = rendered.rule.uid.clone();
        if self
            .rendering
            .awaited
            .get(&uid)
            .is_none_or(|awaited| awaited.serial != serial)
        {
            return Effect::default();
        }
        let Some(Awaited { rule, .. }) = self.rendering.awaited.remove(&uid) else {
            return Effect::default();
        };
        let (mut plan, mut cluster_plans) = (
            rendered.plan.clone(),
            std::mem::take(&mut rendered.cluster_plans),
        );
        let mut unrendered = Unrendered::default();
        let now = self.plan_of(&rule);
        for source in now.changed_since(&plan) {
            let body = now.body(&source);
            if has_content(body.as_ref()) {
                unrendered.sources.insert(source);
            } else {
                let plan = Arc::make_mut(&mut plan);
                plan.set(&source, body.as_ref());
                if cluster_plans.exceeds() {
                    unrendered.again = true;
                } else {
                    cluster_plans.update(&rule, plan, &source, &self.revision_hasher);
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
                &self.revision_hasher,
            );
        }
        if plan.unknown != now.unknown {
            Arc::make_mut(&mut plan).unknown.clone_from(&now.unknown);
            cluster_plans.set_unknown(&now.unknown);
            // Whether a referenced Secret is missing must be determined again.
            unrendered.again |= rule.shape.secrets_read().next().is_some();
        }
        unrendered.again |=
            self.drop_unchosen(&rule, &plan, &mut cluster_plans) && cluster_plans.exceeds();
        for (name, cluster) in self
            .clusters
            .iter()
            .filter(|(name, cluster)| cluster.is_chosen_by(&rule, name))
        {
            if cluster_plans.lacks(name, &cluster.labels) {
                unrendered.clusters.insert(name.clone());
            }
        }
        let outdated = self
            .rules
            .get(&uid)
            .and_then(|former| former.unrendered.outdated);
        unrendered.outdated = outdated.filter(|last| rendered.number <= *last);
        let was_outdated = outdated.is_some();
        let waiting = unrendered.sources.clone();
        let mut effect = self.put_rule(rule, plan, cluster_plans, unrendered);
        for source in waiting {
            self.selection.select(&source, &uid);
        }
        if was_outdated {
            self.touch(&uid, &mut effect);
        }
        effect
    }

    fn take_changes(
        &mut self,
        rendered: &mut Rendered,
        sources: &BTreeSet<SourceRef>,
        clusters: &[ClusterName],
    ) -> Effect {
        let (mut effect, uid) = (Effect::default(), rendered.rule.uid.clone());
        let Some(since) = self
            .rules
            .get_mut(&uid)
            .and_then(|entry| entry.unrendered.ends(rendered.number))
        else {
            return effect;
        };
        let Some(mut entry) = self.rules.remove(&uid) else {
            return effect;
        };
        let (mut plan, mut cluster_plans) = (
            rendered.plan.clone(),
            std::mem::take(&mut rendered.cluster_plans),
        );
        for source in &since {
            let known = Arc::make_mut(&mut plan);
            let body = entry.plan.body(source);
            known.set(source, body.as_ref());
            if has_content(body.as_ref()) {
                // The source lost its content at once, and has it again.
                entry.unrendered.sources.insert(source.clone());
            } else if cluster_plans.exceeds() {
                entry.unrendered.again = true;
            } else {
                cluster_plans.update(&entry.rule, known, source, &self.revision_hasher);
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
                    &self.revision_hasher,
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
        for source in sources.iter().chain(&since) {
            if entry.plan.names(source) || entry.unrendered.sources.contains(source) {
                self.selection.select(source, &uid);
            } else {
                self.selection.unselect(source, &uid);
                self.drop_unselected([source]);
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
            self.take_cluster(&mut entry, name, former.plan(name, &former_plan));
        }
        let has_left =
            self.drop_unchosen(&entry.rule, &entry.plan.clone(), &mut entry.cluster_plans);
        entry.unrendered.again |= has_left && entry.cluster_plans.exceeds();
        entry.keep_wanted();
        if entry.guard.is_open() {
            effect.judge.insert(uid.clone());
        }
        self.rendering.drop_later(former);
        self.rules.insert(uid.clone(), entry);
        self.touch(&uid, &mut effect);
        effect
    }

    /// Installs the rendered plan of a cluster.
    fn take_cluster(
        &self,
        entry: &mut RuleEntry,
        name: &ClusterName,
        former: Option<&Arc<RulePlan>>,
    ) {
        let Some(cluster) = self
            .clusters
            .get(name)
            .filter(|cluster| cluster.is_chosen_by(&entry.rule, name))
        else {
            return;
        };
        let effective_terms =
            TermsResolver::new(&entry.rule, self.grants.of(&entry.rule)).of(name, &cluster.labels);
        let former = (
            entry.target_clusters.clusters.get(name).cloned(),
            former.cloned(),
        );
        entry
            .target_clusters
            .set(&entry.rule, name, Some(effective_terms), cluster.cordoned);
        if entry.cluster_plans.lacks(name, &cluster.labels) {
            entry.unrendered.clusters.insert(name.clone());
        }
        record_choice(entry, name, former, true);
    }

    /// Drops clusters that a rule has left while its copies were rendered. Returns whether there were any.
    fn drop_unchosen(
        &self,
        rule: &Rule,
        plan: &RulePlan,
        cluster_plans: &mut ClusterPlans,
    ) -> bool {
        let chosen = |name: &&ClusterName| {
            self.clusters
                .get(*name)
                .is_some_and(|known| known.is_chosen_by(rule, name))
        };
        let gone: Vec<_> = cluster_plans
            .clusters()
            .filter(|name| !chosen(name))
            .cloned()
            .collect();
        for name in &gone {
            cluster_plans.set_cluster(rule, plan, name, None, &self.revision_hasher);
        }
        !gone.is_empty()
    }
}

/// Sets a Secret whose values are used; dependent copies are rendered, or unknown until it is read.
fn set_referenced_now(
    rule: &Rule,
    plan: &mut RulePlan,
    cluster_plans: &mut ClusterPlans,
    secret: &SourceRef,
    body: Option<&SourceState>,
    unrendered: &mut Unrendered,
    revision_hasher: &RevisionHasher,
) {
    if !matches!(body, Some(SourceState::Unread)) {
        unrendered.sources.insert(secret.clone());
        return;
    }
    if plan.set_referenced(secret, body) {
        cluster_plans.set_referenced_unread(rule, plan, secret, revision_hasher);
    }
}

fn has_content(body: Option<&SourceState>) -> bool {
    matches!(body, Some(SourceState::Read(_) | SourceState::Stale(_)))
}

/// Whether both rules have the same rendering.
fn is_rendered_alike(one: &Rule, two: &Rule) -> bool {
    one.shape == two.shape && one.shape.secrets_read().next().is_none()
}

impl Index {
    /// Whether what one source is to a rule now waits to be rendered.
    pub(super) fn defer_source(
        &mut self,
        uid: &RuleUid,
        source: &SourceRef,
        selected: Option<&SourceState>,
        effect: &mut Effect,
    ) -> bool {
        let Some(entry) = self
            .rules
            .get_mut(uid)
            .filter(|entry| self.rendering.aside && entry.cluster_plans.is_rendered())
        else {
            return false;
        };
        if !has_content(selected) {
            return false;
        }
        if !entry.plan.is_unchanged_by(source, selected) || entry.unrendered.since.is_some() {
            self.selection.select(source, uid);
            entry.unrendered.sources.insert(source.clone());
            effect.render.insert(uid.clone());
        }
        true
    }

    /// Defers the change of a referenced Secret until it is rendered, or makes the values unknown.
    /// Returns `None` if the caller must handle it; otherwise whether the rule uses the Secret.
    pub(super) fn defer_references(
        &mut self,
        uid: &RuleUid,
        secret: &SourceRef,
        body: Option<&SourceState>,
        effect: &mut Effect,
    ) -> Option<bool> {
        let aside = self.rendering.aside;
        let entry = self
            .rules
            .get_mut(uid)
            .filter(|entry| aside && entry.cluster_plans.is_rendered())?;
        if !entry.rule.reads_secret(secret) {
            return Some(false);
        }
        self.selection.select(secret, uid);
        if matches!(body, Some(SourceState::Unread)) {
            entry.unrendered.note(secret);
            let plan = Arc::make_mut(&mut entry.plan);
            set_referenced_now(
                &entry.rule,
                plan,
                &mut entry.cluster_plans,
                secret,
                body,
                &mut entry.unrendered,
                &self.revision_hasher,
            );
            self.touch(uid, effect);
        } else {
            entry.unrendered.sources.insert(secret.clone());
        }
        effect.render.insert(uid.clone());
        Some(true)
    }

    /// Whether a selected cluster waits until its content is rendered. Returns whether it has the
    /// rule already.
    pub(super) fn defer_cluster(
        &mut self,
        uid: &RuleUid,
        name: &ClusterName,
        effect: &mut Effect,
    ) -> Option<bool> {
        let Cluster { labels, .. } = self.clusters.get(name)?;
        let aside = self.rendering.aside;
        let entry = self
            .rules
            .get_mut(uid)
            .filter(|entry| aside && entry.cluster_plans.lacks(name, labels))?;
        entry.unrendered.clusters.insert(name.clone());
        effect.render.insert(uid.clone());
        Some(!entry.lacks(name))
    }
}

/// The changes of a rule that wait to be rendered.
#[derive(Default)]
pub(super) struct Unrendered {
    sources: BTreeSet<SourceRef>,
    clusters: BTreeSet<ClusterName>,
    /// Everything is to be rendered again: it exceeded the budget of the rule, or its references
    /// were unknown.
    again: bool,
    /// Changes that the running job does not include, because they were rendered at once.
    since: Option<(u64, BTreeSet<SourceRef>)>,
    /// The last job at the time when agents may have been sent newer content by another leader:
    /// until a later one is done, nothing is sent of the rule.
    outdated: Option<u64>,
}

impl Unrendered {
    pub(super) fn is_empty(&self) -> bool {
        self.sources.is_empty() && self.clusters.is_empty() && !self.again
    }

    /// Returns the changes that the job of this number does not include, if that job is running.
    fn ends(&mut self, number: u64) -> Option<BTreeSet<SourceRef>> {
        self.since
            .take_if(|(under_way, _)| *under_way == number)
            .map(|(_, since)| since)
    }

    /// Whether agents may have newer content than the index.
    pub(super) fn is_outdated(&self) -> bool {
        self.outdated.is_some()
    }

    /// All of it is to be rendered again.
    pub(super) fn set_again(&mut self) {
        self.again = true;
    }

    /// The sources that wait to be rendered.
    pub(super) fn sources(&self) -> impl Iterator<Item = &SourceRef> {
        self.sources.iter()
    }

    /// A source changes at once.
    pub(super) fn set_at_once(&mut self, source: &SourceRef) {
        self.sources.remove(source);
        self.note(source);
    }

    fn note(&mut self, source: &SourceRef) {
        if let Some((_, since)) = &mut self.since {
            since.insert(source.clone());
        }
    }
}
