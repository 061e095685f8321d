//! What the hub knows about one rule, as the input of its status, and the parts of statuses that several files use.
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use runnel_proto::model::{ClusterName, LostWatch, ProofKey, RuleUid};

use super::ReportStore;
use super::report_store::{Connectivity, RuleReport, SessionFacts};
use crate::index::{Cluster, Index, RollbackPlan};
use crate::plan::{ClusterPlans, GrantedTerms, Rule, RulePlan, TargetClusters, WatchScope};
use crate::rollout::{CheckResult, Gate, LeftOut, Progress, Rollout};
use runnel_api::conditions::{ConditionStatus, Reason};
use runnel_api::{APPROVE, KeptRevision, PendingApproval, RuleStatus};

/// The state of a rule in the hub.
pub struct View<'a> {
    /// The rule.
    pub rule: &'a Rule,
    /// What it selects.
    pub plan: &'a RulePlan,
    /// The plans that are sent: of the selection, or of the rollback.
    pub cluster_plans: &'a ClusterPlans,
    /// The chosen clusters, by their grants.
    pub target_clusters: &'a TargetClusters,
    /// The member clusters of the hub.
    pub members: &'a BTreeMap<ClusterName, Cluster>,
    /// The places that it needs and that cannot be read, and why.
    pub unreadable: BTreeMap<WatchScope, String>,
    /// The kinds that it names and that the API server of the hub does not serve. Their places are unreadable, too.
    pub not_served: BTreeSet<Arc<str>>,
    /// The places that it selects in the scope that their kinds do not have. They are unreadable, too.
    pub mismatched: BTreeSet<WatchScope>,
    /// What waits for approval.
    pub pending: Option<PendingApproval>,
    /// Whether a removal that the hub decided on is blocked.
    pub blocks_removals: bool,
    /// Whether removals in namespaces that are no longer targets are blocked.
    pub blocks_prunes: bool,
    /// Number of copies that a dry run would remove by order of the hub, by cluster.
    pub planned_removals: BTreeMap<ClusterName, u64>,
    /// The states of completed rollouts that are kept, the newest first.
    pub kept: &'a [KeptRevision],
    /// The rollout of its newest change, if the rule has one.
    pub rolling: Option<Rolling<'a>>,
    /// The status that is there.
    pub previous: &'a RuleStatus,
    /// When the hub started.
    pub hub_started: Instant,
    /// Whether a change has been in progress for so long that the status should report it.
    pub overdue: bool,
}

impl<'a> View<'a> {
    /// Returns the state of a rule in the hub; `None` if it is not in the index.
    pub fn of(
        index: &'a Index,
        report_store: &ReportStore,
        uid: &RuleUid,
        previous: &'a RuleStatus,
        hub_started: Instant,
        overdue: bool,
    ) -> Option<Self> {
        let entry = index.rules().get(uid)?;
        let (cluster_plans, target_clusters) = entry.sent();
        Some(Self {
            pending: entry.guard.pending().cloned(),
            blocks_removals: entry.guard.blocks_removals(),
            blocks_prunes: entry.guard.blocks_prunes(),
            planned_removals: index.planned_removals(uid, &|rule, cluster| {
                report_store.reported_copies(rule, cluster)
            }),
            rule: &entry.rule,
            plan: &entry.plan,
            cluster_plans,
            target_clusters,
            members: index.clusters().by_name(),
            unreadable: index.scopes().unreadable(&entry.plan),
            not_served: index.scopes().not_served(&entry.plan),
            mismatched: index.scopes().mismatched(&entry.plan),
            kept: index.rules().completed().kept(uid),
            rolling: entry.rule.rollout.as_ref().map(|rollout| Rolling {
                rollout,
                target: entry.target(),
                gate: entry.gate.as_ref().map(Cow::Borrowed),
                newest: (&entry.cluster_plans, &entry.target_clusters),
                former: entry.former_state(),
                check: index.rules().check(uid),
                refused_url: index.rules().refused_url(rollout),
                was_paused: entry.was_paused,
                left_out: entry.left_out(),
                removals_wait: entry.clusters_with_waiting_removals(index.clusters()),
                progress: previous.rollout.as_ref().map(Into::into),
            }),
            previous,
            hub_started,
            overdue,
        })
    }

    /// Returns the plan for a cluster.
    pub(super) fn sent(&self, cluster: &ClusterName) -> &'a RulePlan {
        self.cluster_plans
            .plan_of(cluster)
            .map_or(self.plan, |made| made)
    }

    /// Returns the plans of the newest state, also during a rollback.
    pub(super) fn newest_plans(&self) -> &'a ClusterPlans {
        self.rolling
            .as_ref()
            .map_or(self.cluster_plans, |rolling| rolling.newest.0)
    }
}

/// A cluster of a rule with all of its state. A status reads it many times, so it is looked up
/// once.
pub(super) struct ClusterView<'a> {
    pub(super) name: &'a ClusterName,
    /// The terms of the rule there.
    pub(super) terms: Option<&'a GrantedTerms>,
    /// What is sent there.
    pub(super) sent: &'a RulePlan,
    connectivity: Option<&'a Connectivity>,
    /// The agent's last report about the rule.
    pub(super) rule_report: Option<&'a RuleReport>,
    /// The key under which agents prove their copies.
    pub(super) proof_key: Option<&'a ProofKey>,
}

impl View<'_> {
    /// Returns a current or former cluster of the rule.
    pub(super) fn cluster<'s>(
        &'s self,
        report_store: &'s ReportStore,
        name: &'s ClusterName,
    ) -> ClusterView<'s> {
        self.cluster_on(report_store, name, self.target_clusters.clusters.get(name))
    }

    /// The clusters of the rule.
    pub(super) fn clusters<'s>(
        &'s self,
        report_store: &'s ReportStore,
    ) -> impl Iterator<Item = ClusterView<'s>> {
        self.target_clusters
            .clusters
            .iter()
            .map(move |(name, terms)| self.cluster_on(report_store, name, Some(terms)))
    }

    fn cluster_on<'s>(
        &'s self,
        report_store: &'s ReportStore,
        name: &'s ClusterName,
        terms: Option<&'s GrantedTerms>,
    ) -> ClusterView<'s> {
        let connectivity = report_store.connectivity(name);
        let rule_report =
            connectivity.and_then(|connectivity| connectivity.rule_report(&self.rule.uid));
        ClusterView {
            name,
            terms,
            sent: self.sent(name),
            connectivity,
            rule_report,
            proof_key: report_store.proof_key.as_ref(),
        }
    }
}

impl<'a> ClusterView<'a> {
    /// The session of its agent, while that counts as connected.
    pub(super) fn session(&self, now: Instant) -> Option<&'a SessionFacts> {
        self.connectivity?.session(now)
    }

    pub(super) fn is_connected(&self, now: Instant) -> bool {
        self.session(now).is_some()
    }

    /// Whether it has connected since the hub started.
    pub(super) fn has_connected(&self) -> bool {
        self.connectivity.is_some_and(Connectivity::has_connected)
    }

    /// Whether messages to it about the rule are restricted until an administrator confirms.
    pub(super) fn is_unconfirmed(&self, view: &View<'_>) -> bool {
        self.connectivity
            .is_some_and(|connectivity| connectivity.is_unconfirmed_for(&view.rule.uid))
    }

    /// Whether the rule is not sent to it, because the agent has its maximum of rules.
    pub(super) fn is_over_limit(&self, view: &View<'_>) -> bool {
        self.connectivity
            .is_some_and(|connectivity| connectivity.is_over_limit(&view.rule.uid))
    }

    /// The number of rules that are not sent to it, because the agent has its maximum.
    pub(super) fn rules_over_limit(&self) -> usize {
        self.connectivity.map_or(0, Connectivity::rules_over_limit)
    }

    /// The watch of the member's API that its agent has lost and without which nothing is known of the rule's copies.
    pub(super) fn lost_watch(&self, view: &View<'_>) -> Option<LostWatch> {
        // Bundles have manifests of other kinds.
        let kinds = view.plan.kinds(view.rule);
        self.connectivity?.lost_watch(kinds.into_iter())
    }
}

/// Returns the command that approves what has this digest.
pub(super) fn approve_command(rule: &Rule, digest: &str) -> String {
    annotate_command(rule, &format!("--overwrite {APPROVE}={digest}"))
}

/// Returns the command that changes an annotation of a rule.
pub(super) fn annotate_command(rule: &Rule, change: &str) -> String {
    let name = &rule.terms.rule;
    let (kind, namespace) = if name.is_cluster_scoped() {
        ("cdrule", String::new())
    } else {
        ("drule", format!(" -n {}", name.namespace))
    };
    format!("kubectl annotate {kind} {}{namespace} {change}", name.name)
}

/// The value of a condition.
pub(super) struct ConditionValue {
    pub(super) status: ConditionStatus,
    pub(super) reason: Reason,
    pub(super) message: String,
}

impl ConditionValue {
    pub(super) fn new(
        status: ConditionStatus,
        reason: impl Into<Reason>,
        message: impl Into<String>,
    ) -> Self {
        Self {
            status,
            reason: reason.into(),
            message: message.into(),
        }
    }
}

/// A rollout as it is.
pub struct Rolling<'a> {
    /// The rollout settings of the rule.
    pub rollout: &'a Rollout,
    /// What is rolled out.
    pub target: &'a str,
    /// The clusters that may have the target.
    pub gate: Option<Cow<'a, Gate>>,
    /// How far it has come.
    pub progress: Option<Progress>,
    /// The plans and clusters of the target.
    pub newest: (&'a ClusterPlans, &'a TargetClusters),
    /// The state for a rollback.
    pub former: &'a RollbackPlan,
    /// The last result of its analysis.
    pub check: Option<&'a CheckResult>,
    /// The URL of its analysis, if the hub may not request it.
    pub refused_url: Option<String>,
    /// Whether it was paused since its last step.
    pub was_paused: bool,
    /// What the removal guard has decided about the copies that the target leaves out.
    pub left_out: LeftOut,
    /// The clusters that are no longer selected and whose copies wait for their removal.
    pub removals_wait: BTreeSet<ClusterName>,
}

/// A number with its noun.
pub(crate) fn counted(number: impl Into<i128>, one: &str, more: &str) -> String {
    let number = number.into();
    format!("{number} {}", if number == 1 { one } else { more })
}

/// Returns the message about a removal that waits for approval: its size, its cause and the command.
pub(super) fn describe_pending(rule: &Rule, pending: &PendingApproval) -> String {
    let (what, it) = if pending.copies == 1 {
        ("this one", "it")
    } else {
        ("these", "them")
    };
    let copies = counted(pending.copies, "copy", "copies");
    let clusters = counted(pending.clusters, "cluster", "clusters");
    let names = match pending.names.as_slice() {
        [] => String::new(),
        names => format!(" ({})", names.join(", ")),
    };
    let undo = if rule.deleting {
        format!("the rule is kept until then; to keep {it}, set deletionPolicy to Retain")
    } else {
        format!("to keep {it}, undo the change")
    };
    format!(
        "the removal of {copies} in {clusters} needs approval: {}{names}. To remove exactly {what}: {}; {undo}",
        pending.why(),
        approve_command(rule, &pending.digest),
    )
}
