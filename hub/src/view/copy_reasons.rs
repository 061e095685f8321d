//! Explains the state of a copy from the hub's state: the rules that select it, and why they do not
//! send it.
use std::collections::BTreeSet;

use runnel_proto::closed_list::ExplainedState;
use runnel_proto::model::{
    ClusterName, CopyMode, CopyOutcome, Inspected, NamespaceChoice, NamespaceState, Revision,
    RuleName, RuleUid, SourceRef, Terms,
};

use runnel_hub_core::index::{Directive, Index, RuleEntry};
use runnel_hub_core::plan::{ShapedField, TemplateContext};
use runnel_hub_core::status::ClusterDetail;

/// The limits of explained sources for one rule, of explanations for one copy, and of fields in one of them.
const SOURCES: usize = 4;
const RULES: usize = 64;
const FIELDS: usize = 64;

const WAVE: &str = "the cluster waits for its wave in the rollout: its copies are left unchanged";
const WIDENED: &str = "others have added fields to it, by which it can allow more than its source: with exact: true in its entry \
                       of spec.sources they are removed";
const UNKNOWN_GRANTS: &str =
    "the hub cannot read the grants now: nothing is sent or removed until it can";

/// The explanation of a copy by one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleExplanation {
    /// The uid of the rule.
    pub uid: RuleUid,
    /// The kind, namespace and name of the rule.
    pub rule: RuleName,
    /// The source.
    pub source: SourceRef,
    /// The bundle with the manifest that the source is.
    pub bundle: Option<SourceRef>,
    /// The state that the agent reports, or the reason why no copy is sent.
    pub state: ExplainedState,
    /// A sentence for users.
    pub message: String,
    /// The revision of the desired content.
    pub revision: Option<Revision>,
    /// The fields of the copy that the rule shapes, or leaves to other writers.
    pub fields: Vec<ShapedField>,
    /// What the hub has of the cluster, if its agent has not confirmed the newest plan: its silence about a copy proves
    /// nothing then.
    pub unconfirmed: Option<String>,
    /// Why there is no copy in an open namespace of the member, if its agent knows of none.
    unless_reported: String,
}

/// The state and message if a rule does not send a copy; `None` if the hub has no reason.
type Obstacle = Option<(ExplainedState, String)>;

impl RuleExplanation {
    /// Whether the rule targets the cluster at all.
    pub fn targets_cluster(&self) -> bool {
        !matches!(
            self.state,
            ExplainedState::ClusterNotChosen | ExplainedState::ClusterNotGranted
        )
    }

    /// Whether the rule targets the namespace, so that users who may read the rule may see the
    /// state of the namespace.
    pub fn has_namespace(&self) -> bool {
        self.targets_cluster()
            && !matches!(
                self.state,
                ExplainedState::NamespaceNotChosen
                    | ExplainedState::NotGranted
                    | ExplainedState::Deleted
            )
    }
}

/// Explains a copy by each of these rules that has a source for it. `read` reads the current index.
/// It is called once for each rule, so that the index is not locked for all of them.
pub fn explain_rules(
    rules: impl IntoIterator<Item = RuleUid>,
    read: impl Fn(&dyn Fn(&Index) -> Vec<RuleExplanation>) -> Vec<RuleExplanation>,
    cluster: &ClusterName,
    copy: &SourceRef,
) -> Vec<RuleExplanation> {
    rules
        .into_iter()
        .flat_map(|uid| read(&|index: &Index| of_rule(index, &uid, cluster, copy)))
        .take(RULES)
        .collect()
}

fn of_rule(
    index: &Index,
    uid: &RuleUid,
    cluster: &ClusterName,
    copy: &SourceRef,
) -> Vec<RuleExplanation> {
    let Some(entry) = index.rules().get(uid) else {
        return vec![];
    };
    let wish = |source: SourceRef| {
        let obstacle = obstacle(index, entry, cluster, &source, copy);
        let content = entry
            .assignment(cluster)
            .and_then(|assignment| assignment.content(&source).cloned());
        let (state, message) =
            obstacle.unwrap_or_else(|| (ExplainedState::NotReported, String::new()));
        let terms = entry.target_clusters.clusters.get(cluster);
        let unless_reported =
            terms.map(|terms| unchosen_reason(terms, copy, entry.rule.runnel_namespace()));
        let (source, bundle) = (source.plain(), entry.plan.bundle_of(&source));
        RuleExplanation {
            unconfirmed: None,
            unless_reported: unless_reported.unwrap_or_default(),
            uid: uid.clone(),
            rule: entry.rule.terms.rule.clone(),
            bundle: bundle.cloned(),
            state,
            message,
            revision: content.map(|content| content.revision),
            fields: shaped_fields(index, entry, cluster, (&source, bundle)),
            source,
        }
    };
    sources(entry, cluster, copy)
        .into_iter()
        .take(SOURCES)
        .map(wish)
        .collect()
}

/// Returns the sources of a rule whose copies have this name. Sources of other namespaces are
/// included only if the rule selects the target namespaces.
fn sources(entry: &RuleEntry, cluster: &ClusterName, copy: &SourceRef) -> BTreeSet<SourceRef> {
    let sent = entry
        .assignment(cluster)
        .map(|assignment| assignment.plan().clone());
    let made = sent
        .iter()
        .flat_map(|plan| plan.intents.keys())
        .filter(|intent| intent.copy_name() == &copy.name);
    let render_errors = sent.iter().flat_map(|plan| plan.render_errors.keys());
    let plain = entry
        .plan
        .selected()
        .chain(render_errors)
        .chain(entry.unrendered_sources())
        .filter(|source| source.name == copy.name);
    // A source whose copy is renamed has no copy with its own name.
    let renamed = |source: &SourceRef| {
        sent.iter()
            .flat_map(|plan| plan.intents.keys())
            .any(|intent| intent.is_renamed() && intent.plain() == *source)
    };
    let own = |source: &SourceRef| {
        let has_namespace = !source.is_cluster_scoped();
        if !has_namespace || copy.is_cluster_scoped() {
            return !has_namespace && copy.is_cluster_scoped();
        }
        entry.rule.terms.namespaces.is_some() || source.namespace == copy.namespace
    };
    let all = made
        .cloned()
        .chain(plain.filter(|source| !renamed(source)).cloned());
    all.filter(|source| source.resource == copy.resource && own(source))
        .collect()
}

/// Returns the fields of a copy that the rule shapes in this cluster, or leaves to other writers. `bundle` has the
/// manifest that the source is.
fn shaped_fields(
    index: &Index,
    entry: &RuleEntry,
    cluster: &ClusterName,
    (source, bundle): (&SourceRef, Option<&SourceRef>),
) -> Vec<ShapedField> {
    let Some(known) = index.clusters().get(cluster) else {
        return vec![];
    };
    let shaped = entry.rule.shape.shaped_fields(TemplateContext {
        source,
        bundle,
        cluster,
        labels: &known.labels,
    });
    let ignored = entry.rule.terms.ignore_fields.iter();
    let ignored = ignored.map(|path| ShapedField::new(path.to_string(), "spec.ignoreFields"));
    let content = entry.plan.intents.get(source);
    let mode = content
        .and_then(|content| content.mode())
        .map(|mode| match mode {
            CopyMode::Exact => "spec.sources.exact",
            CopyMode::CreateOnly => "spec.sources.createOnly",
        });
    let whole = mode.map(|by| ShapedField::new("", by));
    whole
        .into_iter()
        .chain(shaped)
        .chain(ignored)
        .take(FIELDS)
        .collect()
}

fn obstacle(
    index: &Index,
    entry: &RuleEntry,
    cluster: &ClusterName,
    source: &SourceRef,
    copy: &SourceRef,
) -> Obstacle {
    let because = |state: ExplainedState, message: &str| Some((state, message.to_owned()));
    let Some(terms) = entry.target_clusters.clusters.get(cluster) else {
        let known = index.clusters().get(cluster);
        let labels = known.map(|known| known.labels.clone());
        return if !entry.rule.chooses(cluster, &labels.unwrap_or_default()) {
            because(
                ExplainedState::ClusterNotChosen,
                "spec.clusters does not choose this cluster",
            )
        } else if entry.target_clusters.unknown {
            because(ExplainedState::NotConfirmed, UNKNOWN_GRANTS)
        } else if known.is_some_and(|known| !known.is_eligible()) {
            because(
                ExplainedState::ClusterNotGranted,
                "the cluster is leaving, or is not accepted",
            )
        } else {
            because(
                ExplainedState::ClusterNotGranted,
                "no DistributionGrant allows the rule to send to this cluster",
            )
        };
    };
    if entry.rule.deleting {
        return because(ExplainedState::Deleted, "the rule is being deleted");
    }
    if entry.target_clusters.unknown {
        return because(ExplainedState::NotConfirmed, UNKNOWN_GRANTS);
    }
    let runnel = entry.rule.runnel_namespace();
    if let Some(obstacle) = namespace(terms, copy, runnel) {
        return Some(obstacle);
    }
    if !terms.grants_kind(&copy.resource) {
        return because(
            ExplainedState::NotGranted,
            "no DistributionGrant allows the rule to send this kind to this cluster",
        );
    }
    let plans = [
        Some(entry.plan.clone()),
        entry
            .assignment(cluster)
            .map(|assignment| assignment.plan().clone()),
    ];
    let plain = source.plain();
    for plan in plans.iter().flatten() {
        if let Some(render_errors) = plan.render_errors.get(&plain) {
            return because(ExplainedState::RenderError, &render_errors.message);
        }
        if let Some(refused) = plan.refused.get(&plain) {
            return because(ExplainedState::Refused, refused.reason());
        }
        if plan.unread.contains(&plain) || plan.unreadable.contains(&plain) {
            return because(
                ExplainedState::Unread,
                "the hub cannot read the source, or has not read it yet; its copies are left unchanged",
            );
        }
    }
    if terms.suspend {
        because(
            ExplainedState::Suspended,
            "spec.suspend is true: nothing is created, corrected or removed",
        )
    } else if terms.is_dry_run() {
        because(
            ExplainedState::DryRun,
            "spec.enforcement is DryRun: agents report what they would do and write nothing",
        )
    } else if entry.target_clusters.cordoned.contains(cluster) {
        because(
            ExplainedState::Cordoned,
            "the cluster is cordoned: its copies are left unchanged, and nothing new is sent",
        )
    } else if entry.awaits(cluster) {
        because(ExplainedState::RollingOut, WAVE)
    } else if entry.rollback().is_some() {
        because(
            ExplainedState::Reverted,
            "the rollout of the newest failed, and the cluster gets what the last completed rollout sent; \
             kubectl runnel status RULE shows what failed. An edit of the source or the rule begins a new rollout; to try \
             this one again once the failures are fixed set spec.rollout.paused to true and to false again",
        )
    } else {
        match index.directive(&entry.rule.uid, cluster) {
            Directive::AwaitingWave(_) => because(ExplainedState::RollingOut, WAVE),
            Directive::Assigned(_) if !entry.is_unrendered(source) => None,
            _ => because(
                ExplainedState::NotConfirmed,
                "the copy is being rendered, and is left unchanged until then",
            ),
        }
    }
}

/// Returns the state of a rule in a cluster as a sentence, if the agent has not confirmed that it has the newest plan.
/// `None` for `detail`: the rule has no state there.
pub fn unconfirmed(detail: Option<ClusterDetail>) -> Option<String> {
    let detail = detail.filter(|detail| !detail.has_plan)?;
    let (reason, message) = (detail.reason.as_str(), detail.message);
    Some(format!(
        "the agent has not confirmed that it has the newest state of the rule. {reason}: {message}"
    ))
}

/// Returns why the rule does not target the namespace. Only the agent has the labels of the
/// namespace, so they are not checked.
fn namespace(terms: &Terms, copy: &SourceRef, runnel: &str) -> Obstacle {
    let choice = terms.namespaces.as_ref();
    let choice = choice.filter(|_| !copy.is_cluster_scoped())?;
    let closed = runnel_proto::model::is_closed_namespace(&copy.namespace);
    let open = choice.selector.is_some() && !closed && &*copy.namespace != runnel;
    let excluded = runnel_proto::model::matches_any(&choice.exclude, &copy.namespace);
    let chosen = choice.includes_name(&copy.namespace, None, runnel) || (open && !excluded);
    (!chosen).then(|| {
        (
            ExplainedState::NamespaceNotChosen,
            "spec.namespaces does not choose this namespace".to_owned(),
        )
    })
}

/// Merges the answer of the agent, which has priority over the conclusions of the hub.
pub fn with_answer(explanations: &mut [RuleExplanation], answer: &Inspected) {
    for wish in explanations {
        let because = answer.states.iter().find(|state| state.rule == wish.uid);
        if let Some(because) = because {
            let reverted =
                (wish.state == ExplainedState::Reverted).then(|| std::mem::take(&mut wish.message));
            wish.state = state_of(because.outcome);
            wish.message = match (&because.copy_error, because.outcome) {
                (Some((reason, message)), _) => format!("{}: {message}", reason.as_str()),
                (None, CopyOutcome::Waiting) => "its namespace does not exist".to_owned(),
                (None, CopyOutcome::PruneRequested) => {
                    "its namespace is no longer a target; blocked by removalLimit".to_owned()
                }
                (None, CopyOutcome::Applied) if answer.live.is_none() => {
                    "it has finished, and its object was deleted: it is created again when its source changes".to_owned()
                }
                (None, _) => std::mem::take(&mut wish.message),
            };
            let is_widened = answer.live.as_ref().is_some_and(|live| live.widened);
            if because.outcome == CopyOutcome::Applied && is_widened {
                add_message(wish, WIDENED);
            }
            if let Some(why) = reverted {
                with_rollback(wish, &why);
            }
        } else if wish.state == ExplainedState::NotReported {
            let unless_reported = std::mem::take(&mut wish.unless_reported);
            (wish.state, wish.message) = match wish.unconfirmed.take() {
                Some(why) => (ExplainedState::NotConfirmed, why),
                None => missing_copy_reason(answer.namespace, unless_reported),
            };
        }
    }
}

/// Adds the rollback to the agent's report, which is about the content that the rollback sent.
fn with_rollback(wish: &mut RuleExplanation, why: &str) {
    if wish.state == state_of(CopyOutcome::Applied) {
        wish.state = ExplainedState::Reverted;
    }
    add_message(wish, why);
}

fn add_message(wish: &mut RuleExplanation, more: &str) {
    wish.message = match wish.message.as_str() {
        "" => more.to_owned(),
        message => format!("{message}. Besides: {more}"),
    };
}

/// Returns why the agent does not have a copy that the hub would send. `otherwise` is the reason in
/// an open namespace.
fn missing_copy_reason(namespace: NamespaceState, otherwise: String) -> (ExplainedState, String) {
    let why = match namespace {
        NamespaceState::Missing => {
            "the namespace does not exist there, and the rule does not name it literally".to_owned()
        }
        NamespaceState::Terminating => "the namespace is being deleted there".to_owned(),
        NamespaceState::Closed => {
            "the member's policy, or the namespace's own annotation, takes no copies there"
                .to_owned()
        }
        NamespaceState::Ready | NamespaceState::Unknown => otherwise,
    };
    (ExplainedState::NamespaceNotChosen, why)
}

/// Returns why an agent has no copy in an open namespace: by its labels, which only the agent has,
/// rule or grants do not choose it. If both choose it by name, the source itself may be there.
fn unchosen_reason(terms: &Terms, copy: &SourceRef, runnel: &str) -> String {
    let by_name = |choice: &NamespaceChoice| {
        copy.is_cluster_scoped() || choice.includes_name(&copy.namespace, None, runnel)
    };
    let labels = |choice: &NamespaceChoice| {
        let selector = choice.selector.as_ref();
        selector.map_or_else(String::new, |selector| format!(" ({selector})"))
    };
    let mut unmet = Vec::new();
    if let Some(choice) = terms.namespaces.as_ref().filter(|choice| !by_name(choice)) {
        unmet.push(format!("spec.namespaces.selector{}", labels(choice)));
    }
    let grants = terms.grants.iter().flatten();
    let mut grants = grants.filter(|grant| {
        let resource = &*copy.resource;
        grant.resources.iter().any(|granted| granted == resource)
    });
    let is_granted = terms.grants.is_none()
        || grants
            .clone()
            .any(|grant| grant.namespaces.as_ref().is_none_or(by_name));
    if !is_granted {
        let choices = grants
            .by_ref()
            .filter_map(|grant| grant.namespaces.as_ref());
        let choices: String = choices.map(labels).collect();
        unmet.push(format!("a DistributionGrant{choices}"));
    }
    match unmet.as_slice() {
        [] => "its agent has the rule, and makes no copy there: so it does where the source itself is, in a cluster that \
               is the hub's own"
            .to_owned(),
        unmet => format!(
            "the namespace does not have the labels there that {} requires",
            unmet.join(" or ")
        ),
    }
}

fn state_of(outcome: CopyOutcome) -> ExplainedState {
    match outcome {
        CopyOutcome::UnderWay => ExplainedState::UnderWay,
        CopyOutcome::Applied => ExplainedState::Applied,
        CopyOutcome::Failed => ExplainedState::Failed,
        CopyOutcome::Waiting => ExplainedState::Waiting,
        CopyOutcome::Drifted => ExplainedState::Drifted,
        CopyOutcome::Removing => ExplainedState::Removing,
        CopyOutcome::PruneRequested => ExplainedState::PruneRequested,
    }
}

/// Returns the name of the state of a member's namespace.
pub fn namespace_text(namespace: NamespaceState) -> &'static str {
    match namespace {
        NamespaceState::Unknown => "",
        NamespaceState::Ready => "Ready",
        NamespaceState::Missing => "Missing",
        NamespaceState::Terminating => "Terminating",
        NamespaceState::Closed => "Closed",
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::time::Instant;

    use runnel_proto::model::{CopyState, LiveObject, Payload, Reason};
    use serde_json::{Value, json};

    use super::*;
    use runnel_hub_core::index::{Cluster, ScopeState, StoredState};
    use runnel_hub_core::plan::{Rule, RuleGrant, SourceContent, SourceState, WatchScope};
    use runnel_hub_core::rollout::{AdmittedClusters, Gate};

    fn rule(name: &str, more: Value) -> Rule {
        let mut spec = json!({"sources": [{"resources": ["configmaps"], "names": ["*"]}], "clusters": {"all": true}});
        for (key, value) in more.as_object().unwrap() {
            spec[key] = value.clone();
        }
        let object = json!({
            "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionRule", "spec": spec,
            "metadata": {"name": name, "namespace": "home", "uid": name, "generation": 1},
        });
        Rule::namespaced(&serde_json::from_value(object).unwrap(), "runnel-system").unwrap()
    }

    fn index(rules: Vec<Rule>, granted: Value) -> Index {
        let mut index = Index::default();
        let grant = json!({
            "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionGrant", "metadata": {"name": "g"},
            "spec": {
                "rules": {"namespaces": {"all": true}}, "resources": ["configmaps"], "clusters": {"all": true},
                "namespaces": granted,
            },
        });
        let grant = RuleGrant::read(&serde_json::from_value(grant).unwrap());
        index.set_grants(Some(BTreeMap::from([("g".to_owned(), grant)])));
        index.set_scope(WatchScope::everywhere("configmaps"), ScopeState::Known);
        let cluster = Cluster {
            uid: "u".into(),
            accepted: true,
            ..Cluster::default()
        };
        index.set_cluster("one".into(), cluster);
        for rule in rules {
            index.set_rule(rule);
        }
        let body = SourceState::Read(Arc::new(SourceContent::new(
            Revision([7; 16]),
            Payload::encode(vec![]),
        )));
        index.set_source(
            SourceRef::new("configmaps", "home", "s"),
            BTreeMap::new(),
            Some(body),
        );
        index
    }

    fn all(index: &Index, cluster: &str, copy: &SourceRef) -> Vec<RuleExplanation> {
        let rules: Vec<RuleUid> = index.rules().uids().cloned().collect();
        explain_rules(rules, |read| read(index), &ClusterName::from(cluster), copy)
    }

    fn states(
        index: &Index,
        cluster: &str,
        namespace: &str,
        name: &str,
    ) -> Vec<(String, &'static str)> {
        let copy = SourceRef::new("configmaps", namespace, name);
        let explanations = all(index, cluster, &copy);
        explanations
            .into_iter()
            .map(|wish| (wish.rule.name, wish.state.as_str()))
            .collect()
    }

    fn because(all: &[(&str, &'static str)]) -> Vec<(String, &'static str)> {
        all.iter()
            .map(|(name, state)| ((*name).to_owned(), *state))
            .collect()
    }

    #[test]
    fn every_rule_with_a_source_for_the_copy_names_its_obstacle() {
        let labels = json!({"namespaces": {"selector": {"matchLabels": {"team": "a"}}}});
        let rules = vec![
            rule("a-named", json!({"namespaces": {"names": ["x"]}})),
            rule("b-labels", labels),
            rule(
                "c-elsewhere",
                json!({"clusters": {"names": ["two"]}, "namespaces": {"names": ["x"]}}),
            ),
            rule("d-own", json!({})),
            rule(
                "e-rests",
                json!({"suspend": true, "namespaces": {"names": ["x"]}}),
            ),
            rule(
                "f-renamed",
                json!({"namespaces": {"names": ["x"]}, "transform": {"name": "other"}}),
            ),
        ];
        let index = index(rules, json!({"all": true}));
        let common = [
            ("b-labels", "NotReported"),
            ("c-elsewhere", "ClusterNotChosen"),
        ];
        let mut expected = because(&[("a-named", "NotReported")]);
        expected.extend(because(&common));
        expected.extend(because(&[("e-rests", "Suspended")]));
        assert_eq!(states(&index, "one", "x", "s"), expected);
        let own = states(&index, "one", "home", "s");
        assert!(
            own.contains(&("d-own".to_owned(), "NotReported")),
            "{own:?}"
        );
        assert!(
            own.contains(&("a-named".to_owned(), "NamespaceNotChosen")),
            "{own:?}"
        );
        assert_eq!(
            states(&index, "one", "x", "other"),
            because(&[("f-renamed", "NotReported")])
        );
        assert_eq!(states(&index, "one", "x", "nothing"), because(&[]));
        // No selector matches kube-*.
        assert!(
            states(&index, "one", "kube-system", "s")
                .contains(&("b-labels".to_owned(), "NamespaceNotChosen"))
        );
    }

    #[test]
    fn index_is_locked_once_per_rule() {
        let named = |name: &str| rule(name, json!({"namespaces": {"names": ["x"]}}));
        let index = index(
            (0..RULES + 9)
                .map(|number| named(&format!("r{number:03}")))
                .collect(),
            json!({"all": true}),
        );
        let copy = SourceRef::new("configmaps", "x", "s");
        let reads = Cell::new(0);
        let read = |one: &dyn Fn(&Index) -> Vec<RuleExplanation>| {
            reads.set(reads.get() + 1);
            let found = one(&index);
            assert!(
                found.iter().all(|wish| wish.uid == found[0].uid),
                "several rules in one read: {found:?}"
            );
            found
        };
        // One rule does not exist any more when it is read. No more rules are read than explained.
        let rules = ["gone".into()]
            .into_iter()
            .chain(index.rules().uids().cloned());
        assert_eq!(
            (
                explain_rules(rules, read, &"one".into(), &copy).len(),
                reads.get()
            ),
            (RULES, RULES + 1)
        );
    }

    /// State and message of the first explanation after this answer of the agent.
    fn answered(
        index: &Index,
        copy: &SourceRef,
        namespace: NamespaceState,
        states: Vec<CopyState>,
        live: Option<LiveObject>,
    ) -> (&'static str, String) {
        let mut explanations = all(index, "one", copy);
        let answer = Inspected {
            question: 1,
            namespace,
            states,
            live,
        };
        with_answer(&mut explanations, &answer);
        let first = &explanations[0];
        (first.state.as_str(), first.message.clone())
    }

    #[test]
    fn report_of_the_agent_comes_first() {
        let index = index(
            vec![rule("r", json!({"namespaces": {"names": ["x"]}}))],
            json!({"all": true}),
        );
        let copy = SourceRef::new("configmaps", "x", "s");
        let of = |states| answered(&index, &copy, NamespaceState::Missing, states, None);
        let failed = CopyState {
            rule: "r".into(),
            outcome: CopyOutcome::Failed,
            copy_error: Some((Reason::Conflict, "not Runnel's".to_owned())),
        };
        assert_eq!(
            of(vec![failed]),
            ("Failed", "Conflict: not Runnel's".to_owned())
        );
        assert_eq!(of(vec![]).0, "NamespaceNotChosen");
        assert!(of(vec![]).1.contains("does not exist"));
    }

    #[test]
    fn applied_copy_with_additions_names_the_remedy() {
        let index = index(
            vec![rule("r", json!({"namespaces": {"names": ["x"]}}))],
            json!({"all": true}),
        );
        let copy = SourceRef::new("configmaps", "x", "s");
        let message = |outcome, widened| {
            let live = LiveObject {
                ours: true,
                intact: true,
                sealed: None,
                applied_at: 0,
                uid: String::new(),
                health: None,
                feedback: vec![],
                widened,
            };
            let state = CopyState {
                rule: "r".into(),
                outcome,
                copy_error: None,
            };
            answered(
                &index,
                &copy,
                NamespaceState::Ready,
                vec![state],
                Some(live),
            )
            .1
        };
        assert!(message(CopyOutcome::Applied, true).contains("exact: true"));
        assert_eq!(message(CopyOutcome::Applied, false), "");
        assert_eq!(message(CopyOutcome::Removing, true), "");
    }

    #[test]
    fn silence_of_an_unconfirmed_agent_proves_nothing() {
        let rules = vec![rule("r", json!({"namespaces": {"names": ["x"]}}))];
        let index = index(rules, json!({"all": true}));
        let copy = SourceRef::new("configmaps", "x", "s");
        let mut explanations = all(&index, "one", &copy);
        explanations[0].unconfirmed = Some("RuleLimit: too many rules".to_owned());
        let answer = Inspected {
            question: 1,
            namespace: NamespaceState::Ready,
            states: vec![],
            live: None,
        };
        with_answer(&mut explanations, &answer);
        let RuleExplanation { state, message, .. } = &explanations[0];
        assert_eq!(
            (state.as_str(), message.as_str()),
            ("NotConfirmed", "RuleLimit: too many rules")
        );
    }

    #[test]
    fn unreadable_grants_are_no_missing_grant() {
        let rules = vec![rule("r", json!({"namespaces": {"names": ["x"]}}))];
        let mut index = index(rules, json!({"all": true}));
        index.set_grants(None);
        index.follow(&"r".into());
        let expected = because(&[("r", "NotConfirmed")]);
        assert_eq!(states(&index, "one", "x", "s"), expected);
    }

    #[test]
    fn copy_that_is_being_rendered_is_not_confirmed() {
        let mut index = index(vec![], json!({"all": true})).with_deferred_rendering();
        let set = json!({"mergePatch": {"data": {"a": "b"}}, "clusters": {"all": true}});
        let more = json!({"namespaces": {"names": ["x"]}, "overrides": [set]});
        let uid = index.set_rule(rule("r", more)).render.pop_first().unwrap();
        let render = |index: &mut Index| {
            let mut rendered = index.render_job(&uid).unwrap().run();
            index.take_rendered(&mut rendered);
        };
        render(&mut index);
        let set = |index: &mut Index| {
            let content = SourceContent::new(Revision([8; 16]), Payload::encode(vec![]));
            let body = SourceState::Read(Arc::new(content));
            let source = SourceRef::new("configmaps", "home", "new");
            index.set_source(source, BTreeMap::new(), Some(body));
        };
        set(&mut index);
        let expected = because(&[("r", "NotConfirmed")]);
        assert_eq!(states(&index, "one", "x", "new"), expected);
        render(&mut index);
        assert_ne!(states(&index, "one", "x", "new"), expected);
    }

    #[test]
    fn copy_in_a_rollout_or_rollback_is_explained() {
        let more = json!({"rollout": {"onFailure": "Revert"}, "namespaces": {"names": ["x"]}});
        let mut index = index(vec![rule("r", more)], json!({"all": true}));
        assert_eq!(
            states(&index, "one", "x", "s"),
            because(&[("r", "RollingOut")])
        );
        let uid = RuleUid::from("r");
        let revision = index.rules().get(&uid).unwrap().target().to_owned();
        let reach = AdmittedClusters::Only(BTreeMap::from([("one".into(), Instant::now())]));
        let state = index
            .rules()
            .get(&uid)
            .unwrap()
            .completed_state(None)
            .ok()
            .unwrap();
        let back_to = Some(state.revision.clone());
        index.set_completed_state(
            &uid,
            Some(StoredState {
                revision: revision.clone(),
                state: Ok(state),
            }),
        );
        index.set_gate(
            &uid,
            Gate {
                revision,
                reach,
                is_settled: true,
                wakes_at: None,
                back_to,
                healthy: Default::default(),
                newly_chosen: Default::default(),
                is_blocked: false,
                is_paused: false,
            },
        );
        assert_eq!(
            states(&index, "one", "x", "s"),
            because(&[("r", "Reverted")]),
            "without the agent's word"
        );

        let copy = SourceRef::new("configmaps", "x", "s");
        let of = |outcome: CopyOutcome, copy_error: Option<(Reason, String)>| {
            let states = vec![CopyState {
                rule: "r".into(),
                outcome,
                copy_error,
            }];
            answered(&index, &copy, NamespaceState::Ready, states, None)
        };
        let (state, message) = of(CopyOutcome::Applied, None);
        assert!(
            state == "Reverted" && message.contains("set spec.rollout.paused"),
            "{state}: {message}"
        );
        let (state, message) = of(
            CopyOutcome::Failed,
            Some((Reason::Forbidden, "no right".to_owned())),
        );
        let expected = "Forbidden: no right. Besides: the rollout of the newest failed";
        assert!(
            state == "Failed" && message.starts_with(expected),
            "{state}: {message}"
        );
    }
}
