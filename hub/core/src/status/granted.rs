//! The condition `Granted`: the requests of a rule without a grant.
use std::collections::{BTreeMap, BTreeSet};

use runnel_proto::model::{ClusterName, ConflictPolicy, Grant, Terms};

use super::view::{ConditionValue, View};
use runnel_api::BUNDLE_KIND;
use runnel_api::conditions::{ConditionStatus, Reason};

/// The number of names that a sentence lists.
const LISTED: usize = 5;

/// Missing grants, each with its clusters.
#[derive(Default)]
struct Missing<'a> {
    /// Clusters without any grant for the kinds of the rule.
    whole: BTreeSet<&'a ClusterName>,
    /// The kinds of the rule.
    requested: BTreeSet<&'a str>,
    kinds: BTreeMap<&'a str, BTreeSet<&'a ClusterName>>,
    namespaces: BTreeMap<String, BTreeSet<&'a ClusterName>>,
    overwrite: BTreeSet<&'a ClusterName>,
    adoption: BTreeSet<&'a ClusterName>,
    creation: BTreeSet<&'a ClusterName>,
    /// Clusters in which the rule exceeds the granted number of copies, by that number.
    copies: BTreeMap<u64, BTreeSet<&'a ClusterName>>,
    /// Number of selected sources.
    sources: usize,
    /// Only some of the namespaces that a glob or label may choose are granted.
    limited: bool,
}

/// Returns the condition `Granted`; `None` if everything that the rule requests is granted.
pub(super) fn granted(view: &View<'_>) -> Option<ConditionValue> {
    if view.target_clusters.unknown {
        let message = "the hub cannot read what is granted (DistributionGrants, and the labels of namespaces where grants \
                       choose by them): nothing is sent and nothing removed; check the hub's rights and its log";
        return Some(ConditionValue::new(
            ConditionStatus::Unknown,
            Reason::GrantsUnknown,
            message,
        ));
    }
    let missing = missing(view);
    let parts = parts(&missing);
    let namespace = &view.rule.terms.rule.namespace;
    if !parts.is_empty() {
        let message = format!(
            "not granted to the rules of {namespace}: {}; an administrator grants it by a DistributionGrant (see \
             `kubectl get dgrant`)",
            parts.join("; ")
        );
        return Some(ConditionValue::new(
            ConditionStatus::False,
            Reason::NotGranted,
            message,
        ));
    }
    let message = "of the namespaces that spec.namespaces chooses by glob or label, those get copies that a \
                   DistributionGrant allows";
    missing
        .limited
        .then(|| ConditionValue::new(ConditionStatus::True, Reason::PartiallyGranted, message))
}

/// Whether some copies are not created because a grant is missing, in any cluster.
pub(super) fn lacks_copies(view: &View<'_>) -> bool {
    let missing = missing(view);
    !missing.whole.is_empty() || !missing.kinds.is_empty() || !missing.namespaces.is_empty()
}

fn missing<'a>(view: &'a View<'_>) -> Missing<'a> {
    let mut missing = Missing {
        whole: view.target_clusters.not_granted.iter().collect(),
        requested: sent_kinds(view),
        ..Missing::default()
    };
    let mut alike: BTreeMap<[u8; 16], (&Terms, BTreeSet<&ClusterName>)> = BTreeMap::new();
    for (cluster, terms) in view
        .target_clusters
        .clusters
        .iter()
        .filter(|(_, terms)| terms.grants.is_some())
    {
        alike
            .entry(terms.digest.0)
            .or_insert_with(|| (&***terms, BTreeSet::new()))
            .1
            .insert(cluster);
    }
    if alike.is_empty() {
        return missing;
    }
    let sent_kinds = missing.requested.clone();
    let named = target_namespaces(view, &sent_kinds);
    for (terms, clusters) in alike.into_values() {
        collect_missing(view, terms, &clusters, (&sent_kinds, &named), &mut missing);
    }
    missing
}

fn collect_missing<'a>(
    view: &'a View<'_>,
    terms: &Terms,
    clusters: &BTreeSet<&'a ClusterName>,
    (sent_kinds, named): (&BTreeSet<&'a str>, &BTreeSet<(&str, String)>),
    missing: &mut Missing<'a>,
) {
    let grants = terms.grants.as_deref().unwrap_or_default();
    let (granted, denied): (BTreeSet<&str>, BTreeSet<&str>) = sent_kinds
        .iter()
        .copied()
        .partition(|resource| terms.grants_kind(resource));
    for resource in denied {
        missing.kinds.entry(resource).or_default().extend(clusters);
    }
    for (resource, namespace) in named
        .iter()
        .filter(|(resource, _)| granted.contains(resource))
    {
        // The labels of the member's namespaces are unknown here, so a grant by label does not
        // count as missing.
        let by_label = |grant: &Grant| grant.is_of_kind(resource) && grant.has_selector();
        match terms.allowance(resource, namespace, None, view.rule.runnel_namespace()) {
            None if grants.iter().any(by_label) => missing.limited = true,
            None => missing
                .namespaces
                .entry(namespace.clone())
                .or_default()
                .extend(clusters),
            Some(allowance) if terms.create_namespaces && !allowance.create_namespaces => {
                missing.creation.extend(clusters);
            }
            Some(_) => {}
        }
    }
    if terms.conflict_policy == ConflictPolicy::Overwrite
        && grants.iter().any(|grant| !grant.overwrite)
    {
        missing.overwrite.extend(clusters);
    }
    let limits: Option<Vec<_>> = grants.iter().map(|grant| grant.max_copies).collect();
    let limit = limits.and_then(|limits| limits.into_iter().max());
    // Each source becomes a copy at least, where its namespace exists; the agents count what there is.
    missing.sources = view.plan.intents.len();
    if let Some(limit) =
        limit.filter(|limit| usize::try_from(*limit).is_ok_and(|limit| missing.sources > limit))
    {
        missing.copies.entry(limit).or_default().extend(clusters);
    }
    if terms.conflict_policy == ConflictPolicy::AdoptIfEqual
        && grants.iter().any(|grant| !grant.adopt)
    {
        missing.adoption.extend(clusters);
    }
    let broad = terms.namespaces.as_ref();
    let broad = broad.is_some_and(|choice| {
        choice.selector.is_some() || choice.names.iter().any(|n| !n.is_literal())
    });
    missing.limited |= broad && grants.iter().any(|grant| grant.namespaces.is_some());
}

/// Returns the kinds of what is sent. A bundle itself is not sent.
fn sent_kinds<'a>(view: &'a View<'_>) -> BTreeSet<&'a str> {
    let mut kinds = view.plan.kinds(view.rule);
    kinds.remove(BUNDLE_KIND);
    kinds
}

/// Returns the target namespaces that the rule names, by kind: literal ones, or those of its
/// sources.
fn target_namespaces<'a>(
    view: &View<'_>,
    sent_kinds: &BTreeSet<&'a str>,
) -> BTreeSet<(&'a str, String)> {
    match &view.rule.terms.namespaces {
        Some(choice) => {
            let of_kind = |resource: &'a str| {
                choice
                    .wanted_literals()
                    .map(move |name| (resource, name.to_owned()))
            };
            sent_kinds.iter().copied().flat_map(of_kind).collect()
        }
        None => {
            let of_source = |resource: &str, namespace: &str| {
                let known = sent_kinds.get(resource)?;
                Some((*known, namespace.to_owned()))
            };
            view.plan
                .intents
                .keys()
                .filter_map(|source| of_source(&source.resource, &source.namespace))
                .collect()
        }
    }
}

fn parts(missing: &Missing<'_>) -> Vec<String> {
    let mut parts = vec![];
    if !missing.whole.is_empty() {
        // Other kinds may be granted there to the namespace of the rule.
        let kinds = if missing.requested.is_empty() {
            "anything".to_owned()
        } else {
            listed(missing.requested.iter().copied())
        };
        parts.push(format!("{kinds} {}", clusters_text(&missing.whole)));
    }
    parts.extend(
        missing
            .kinds
            .iter()
            .map(|(resource, clusters)| format!("{resource} {}", clusters_text(clusters))),
    );
    if !missing.namespaces.is_empty() {
        let names = listed(missing.namespaces.keys().map(String::as_str));
        let clusters: BTreeSet<_> = missing.namespaces.values().flatten().copied().collect();
        let noun = if missing.namespaces.len() == 1 {
            "the namespace"
        } else {
            "the namespaces"
        };
        parts.push(format!("{noun} {names} {}", clusters_text(&clusters)));
    }
    if !missing.overwrite.is_empty() {
        parts.push(format!(
            "conflictPolicy Overwrite {}, where Fail is used instead",
            clusters_text(&missing.overwrite)
        ));
    }
    if !missing.adoption.is_empty() {
        let scope = clusters_text(&missing.adoption);
        parts.push(format!(
            "conflictPolicy AdoptIfEqual {scope}, where Fail is used instead"
        ));
    }
    for (limit, clusters) in &missing.copies {
        let (sources, scope) = (missing.sources, clusters_text(clusters));
        parts.push(format!(
            "more than {limit} copies (maxCopies) {scope}: the rule selects {sources} sources"
        ));
    }
    if !missing.creation.is_empty() {
        parts.push(format!(
            "createNamespaces {}, where missing namespaces are not created",
            clusters_text(&missing.creation)
        ));
    }
    parts
}

/// Lists the first names, and how many more there are.
fn listed<'n>(names: impl Iterator<Item = &'n str>) -> String {
    let all: Vec<_> = names.collect();
    let (first, others) = all.split_at(all.len().min(LISTED));
    match others.len() {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

fn clusters_text(clusters: &BTreeSet<&ClusterName>) -> String {
    let Some(first) = clusters.first() else {
        return String::new();
    };
    match clusters.len() {
        1 => format!("in {first}"),
        more => format!("in {more} clusters, among them {first}"),
    }
}
