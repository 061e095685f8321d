//! What is no longer wanted, and whether it may go: see [`crate::brake`].
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use kube::CustomResourceExt;
use runnel_proto::model::{Asked, ClusterName, ConflictPolicy, DeletionPolicy, RuleName, RuleUid, SourceRef};

use super::{Effect, Index, RuleEntry};
use crate::brake::{Cause, Circumstances, DELIBERATE, Item, Judged, Limit, Matter, Memory, Named, WINDOW, Waiting};
use runnel_api::{ClusterDistributionRule, DistributionRule};

/// What an agent said that it holds of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holding {
    /// Copies, those in namespaces given up too.
    pub copies: u64,
    /// Intents.
    pub intents: u64,
    /// What is to be overwritten.
    pub takeovers: Option<Asked>,
    /// The copies in namespaces given up that are to go.
    pub given_up: Option<Asked>,
}

/// What is known of what agents hold.
pub type Holdings<'a> = &'a dyn Fn(&RuleUid, &ClusterName) -> Option<Holding>;

/// How many there are, and the first of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Several<T> {
    /// The first, at most [`NAMED`].
    pub first: Vec<T>,
    /// How many.
    pub all: usize,
}

/// How many of several are named.
pub const NAMED: usize = 5;

impl<T> Default for Several<T> {
    fn default() -> Self {
        Self { first: Vec::new(), all: 0 }
    }
}

impl<T: Clone> Several<T> {
    fn add(&mut self, one: &T) {
        if self.all < NAMED {
            self.first.push(one.clone());
        }
        self.all += 1;
    }
}

/// What of a rule is held, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockedRemovals {
    /// What the status remembers.
    pub memory: Memory,
    /// The sources that are no longer selected.
    pub sources: Several<SourceRef>,
    /// The intents whose copies have another name now.
    pub names: Several<SourceRef>,
    /// The clusters that are no longer chosen.
    pub clusters: Several<ClusterName>,
    /// The clusters in which nothing is granted any more.
    pub ungranted: Several<ClusterName>,
    /// The kinds that are no longer granted in a cluster.
    pub kinds: Several<(ClusterName, Arc<str>)>,
    /// Whether the rule is to go.
    pub rule: bool,
}

/// What agents ask for and do not get, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockedAgentWork {
    /// What the status remembers.
    pub memory: Memory,
    /// Where, and how many in each.
    pub clusters: Several<(ClusterName, u32)>,
}

/// What defines the kind of a rule.
fn definition_of(rule: &RuleName) -> &'static str {
    if rule.is_cluster_scoped() { ClusterDistributionRule::crd_name() } else { DistributionRule::crd_name() }
}

impl Index {
    /// The index, with a limit that no rule can raise.
    pub fn with_ceiling(self, ceiling: Limit) -> Self {
        Self { ceiling: Some(ceiling), ..self }
    }

    /// Forgets what was judged, and who was let in: from now on this process decides, and rules' statuses say what is held
    /// and how far rollouts have come.
    pub fn reset_removal_guards(&mut self) {
        self.deletions.clear();
        self.undated_deletions = 0;
        self.doubt_unrendered();
        let uids: Vec<_> = self.rules.keys().cloned().collect();
        for uid in uids {
            if let Some(entry) = self.rules.get_mut(&uid) {
                entry.brake = entry.rule.removal.brake();
                entry.gate = None;
                if entry.rule.deleting {
                    entry.brake.remove(Item::Rule, Cause::Deleted);
                }
            }
        }
    }

    /// A namespace is being deleted, or no longer is there.
    pub fn set_dying(&mut self, namespace: &str, dying: bool) {
        if dying {
            self.dying.insert(namespace.to_owned())
        } else {
            self.dying.remove(namespace)
        };
    }

    /// The definition of a kind of rules is being deleted, or no longer is there: nobody has deleted its rules one by one.
    pub fn set_definition(&mut self, name: &str, dying: Option<bool>) -> Effect {
        if dying.unwrap_or(true) {
            self.dying_definitions.insert(name.to_owned())
        } else {
            self.dying_definitions.remove(name)
        };
        Effect::default()
    }

    /// The same of several. What cannot be read (`None`) is as it was.
    pub fn set_definitions(&mut self, all: Option<BTreeMap<String, bool>>) -> Effect {
        for (name, dying) in all.into_iter().flatten() {
            self.set_definition(&name, Some(dying));
        }
        Effect::default()
    }

    /// Judges what a rule no longer wants.
    pub fn judge(&mut self, uid: &RuleUid, holdings: Holdings<'_>, now: Instant) -> Effect {
        let mut effect = Effect::default();
        self.deletions.extend(std::iter::repeat_n(now, std::mem::take(&mut self.undated_deletions)));
        self.deletions.retain(|at| now.saturating_duration_since(*at) < WINDOW);
        let Some(entry) = self.rules.get_mut(uid) else { return effect };
        let mut brake = std::mem::take(&mut entry.brake);
        let before = (brake.judged().clone(), brake.leaving());
        let changed =
            self.with_circumstances(uid, &before, holdings, |known| brake.judge(known, now)).unwrap_or_default();
        let (before, _) = before;
        let now = brake.judged().clone();
        if let Some(entry) = self.rules.get_mut(uid) {
            entry.brake = brake;
        }
        effect.rules.insert(uid.clone());
        if !now.removes_the_same(&before) {
            self.touch(uid, &mut effect);
        } else if changed {
            // What one cluster is permitted is of no interest to the others.
            self.renew(uid);
            effect.clusters = now.permits_otherwise(&before);
        }
        if now.differs_elsewhere(&before) {
            // Whoever is no longer chosen hears of it, too.
            effect.clusters.extend(self.clusters.keys().cloned());
        }
        effect
    }

    /// When the deletion of some rule is to be judged, and which.
    pub fn next_judgement(&self) -> Option<(Instant, RuleUid)> {
        self.rules.iter().filter_map(|(uid, entry)| Some((entry.brake.due()?, uid.clone()))).min()
    }

    /// What a rule's status says of its brake, and, if something is held, what.
    pub fn brake_of(&self, uid: &RuleUid, holdings: Holdings<'_>) -> (Option<Memory>, Option<BlockedRemovals>) {
        let Some(entry) = self.rules.get(uid) else { return (None, None) };
        // A status is looked at far more often than something is held, and only then has a cluster to be asked.
        let memory = if entry.brake.is_holding() {
            let now = (entry.brake.judged().clone(), entry.brake.leaving());
            self.with_circumstances(uid, &now, holdings, |known| entry.brake.memory(known)).flatten()
        } else {
            entry.brake.released()
        };
        let held = memory.clone().filter(|memory| !memory.released).map(|memory| {
            let mut said = BlockedRemovals { memory, ..BlockedRemovals::default() };
            for item in entry.brake.held() {
                match item {
                    Item::Rule => said.rule = true,
                    Item::Cluster(cluster) if entry.target_clusters.not_granted.contains(cluster) => {
                        said.ungranted.add(cluster)
                    }
                    Item::Cluster(cluster) => said.clusters.add(cluster),
                    Item::Kind(cluster, kind) => said.kinds.add(&(cluster.clone(), kind.clone())),
                    Item::Copy(_, intent) | Item::Name(intent) => said.names.add(intent),
                    Item::Source(source) => said.sources.add(source),
                }
            }
            said
        });
        (memory, held)
    }

    /// What a rule's status says of its takeovers: what is held, or what was released last.
    pub fn takeovers_of(&self, uid: &RuleUid) -> Option<BlockedAgentWork> {
        said_of(uid, self.rules.get(uid)?.brake.takeovers())
    }

    /// What a rule's status says of its copies in namespaces given up: what is held, or what was released last.
    pub fn given_up_of(&self, uid: &RuleUid) -> Option<BlockedAgentWork> {
        said_of(uid, self.rules.get(uid)?.brake.given_up())
    }

    /// A cluster's agent asks again for what it was let overwrite, or let go: that is judged anew.
    pub fn has_used_up(&mut self, uid: &RuleUid, matter: Matter, cluster: &ClusterName) {
        if let Some(entry) = self.rules.get_mut(uid) {
            entry.brake.has_used_up(matter, cluster);
        }
    }

    /// Whether a cluster's agent asks for something else than what was judged.
    pub fn asks_anew(&self, uid: &RuleUid, cluster: &ClusterName, holding: Holding) -> bool {
        let brake = self.rules.get(uid).map(|entry| &entry.brake);
        brake.is_some_and(|brake| brake.asks_anew(cluster, holding.takeovers, holding.given_up))
    }

    /// What waits to be overwritten where the rule goes, if it is to overwrite anything; and what waits to be removed there,
    /// if not all of the rule is. What the rule does not go to any more is braked as a whole.
    fn asked(&self, entry: &RuleEntry, holdings: Holdings<'_>) -> (Option<Waiting>, Option<Waiting>) {
        if entry.rule.deleting {
            return (None, None);
        }
        let mut asked = (Waiting::new(), Waiting::new());
        for cluster in entry.target_clusters.clusters.keys() {
            let Some(holding) = holdings(&entry.rule.uid, cluster) else { continue };
            asked.0.extend(holding.takeovers.map(|asked| (cluster.clone(), asked)));
            asked.1.extend(holding.given_up.map(|asked| (cluster.clone(), asked)));
        }
        let overwrites = entry.rule.terms.conflict_policy == ConflictPolicy::Overwrite;
        (Some(asked.0).filter(|_| overwrites), Some(asked.1))
    }

    /// Whether a rule that is being deleted may go: what it has did pass the brake.
    pub fn may_go(&self, uid: &RuleUid) -> bool {
        self.rules.get(uid).is_none_or(|entry| entry.brake.judged().passes(&Item::Rule))
    }

    /// Whether something of a rule is held.
    pub fn is_held(&self, uid: &RuleUid) -> bool {
        let brake = self.rules.get(uid).map(|entry| &entry.brake);
        brake.is_some_and(|brake| brake.is_holding() || brake.takeovers().is_holding() || brake.given_up().is_holding())
    }

    fn with_circumstances<T>(
        &self,
        uid: &RuleUid,
        (judged, leaving): &(Arc<Judged>, u64),
        holdings: Holdings<'_>,
        ask: impl FnOnce(&Circumstances<'_>) -> T,
    ) -> Option<T> {
        let entry = self.rules.get(uid)?;
        let removal = &entry.rule.removal;
        // What is only left without marks is not removed.
        let takeovers_limit = self.ceiling.map_or(removal.limit, |ceiling| removal.limit.under(ceiling));
        let limit = match entry.rule.terms.deletion_policy {
            DeletionPolicy::Retain => Limit::NONE,
            DeletionPolicy::Delete => takeovers_limit,
        };
        let (takeovers, given_up) = self.asked(entry, holdings);
        let weigh = |items: &BTreeSet<Item>| self.weigh(entry, items, holdings);
        let doubtful = |item: &Item| self.is_doubtful(entry, item);
        // Nobody knows what a cluster holds that has not connected to this process.
        let is_away = |item: &Item| match item {
            Item::Cluster(cluster) | Item::Kind(cluster, _) | Item::Copy(cluster, _) => {
                holdings(uid, cluster).is_none() && self.may_hold(cluster)
            }
            Item::Rule | Item::Name(_) | Item::Source(_) => false,
        };
        let wanted = || entry.wanted_digest();
        let release = removal.release.as_deref();
        let known = Circumstances {
            uid: uid.as_str(),
            limit,
            all: self.all_copies(entry, judged, *leaving, holdings),
            weigh: &weigh,
            doubtful: &doubtful,
            is_away: &is_away,
            wanted: &wanted,
            release,
            takeovers,
            takeovers_limit,
            given_up,
        };
        Some(ask(&known))
    }

    /// Whether a deletion cannot count as a deliberate one.
    fn is_doubtful(&self, entry: &RuleEntry, item: &Item) -> bool {
        let waiting = self.vanished.keys().filter(|source| self.selected_by.contains_key(*source)).count();
        let many = self.deletions.len() + waiting > DELIBERATE;
        match item {
            Item::Rule => {
                many || entry.rule.removal.on_rule_delete
                    || self.dying.contains(&entry.rule.terms.rule.namespace)
                    || self.dying_definitions.contains(definition_of(&entry.rule.terms.rule))
                    || self.deleted_with(entry) > DELIBERATE
            }
            Item::Source(source) => many || self.dying.contains(&*source.namespace),
            Item::Cluster(_) | Item::Kind(..) | Item::Copy(..) | Item::Name(_) => true,
        }
    }

    /// How many rules were deleted within a minute of this one, as they themselves say: a process that just began has
    /// not seen them go.
    fn deleted_with(&self, entry: &RuleEntry) -> usize {
        let Some(at) = entry.rule.removal.deleted_at else { return 0 };
        let near = |other: Timestamp| at.duration_since(other).unsigned_abs() < WINDOW;
        self.rules.values().filter(|other| other.rule.removal.deleted_at.is_some_and(near)).count()
    }

    pub(super) fn record_deletion(&mut self, now: Instant) {
        self.deletions.push_back(now);
    }

    /// Something was deleted, or is refused from now on, and is judged next.
    pub(super) fn record_deliberate_removal(&mut self) {
        self.undated_deletions += 1;
    }
}

fn said_of(uid: &RuleUid, named: &Named) -> Option<BlockedAgentWork> {
    let mut said = BlockedAgentWork { memory: named.memory(uid.as_str())?, ..BlockedAgentWork::default() };
    for (cluster, asked) in named.held() {
        said.clusters.add(&(cluster.clone(), asked.objects));
    }
    Some(said)
}
