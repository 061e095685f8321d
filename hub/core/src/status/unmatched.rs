//! What a rule names or looks for and does not find.
use std::collections::BTreeSet;
use std::sync::Arc;

use runnel_proto::model::{self, ClusterName, Kind, Pattern, SourceRef, matches_any};

use super::view::{ConditionValue, View, counted};
use crate::plan::{ClusterChoice, NamedBy, NamedKey, SourceChoice, WatchScope};
use runnel_api::conditions::{ConditionStatus, Reason};

/// The number of names that a sentence lists.
const LISTED: usize = 3;

/// Returns why the rule is not ready although its copies are applied: exact names in its spec match nothing.
pub(super) fn unmatched(view: &View<'_>) -> Option<ConditionValue> {
    let parts = [
        (Reason::UnknownClusters, unknown_clusters(view)),
        (Reason::UnknownClusters, unchosen_clusters(view)),
        (Reason::MissingSources, missing_sources(view)),
        (Reason::MissingKeys, missing_keys(view)),
    ];
    let (reason, _) = parts.iter().find(|(_, part)| part.is_some())?;
    let reason = *reason;
    let message: Vec<_> = parts.into_iter().filter_map(|(_, part)| part).collect();
    Some(ConditionValue::new(
        ConditionStatus::False,
        reason,
        message.join("; "),
    ))
}

/// Returns the message about a rule that selects nothing.
pub(super) fn no_sources(view: &View<'_>) -> String {
    let rule = view.rule;
    let is_refused = |entry: &SourceChoice| {
        view.plan
            .refused
            .keys()
            .any(|source| rule.selects_by(entry, source))
    };
    let entries: Vec<_> = rule
        .sources
        .iter()
        .filter(|entry| !is_refused(entry))
        .map(|entry| match &entry.selector {
            Some(selector) => format!(
                "no {} with the labels {selector} {}",
                kinds(entry),
                within(entry)
            ),
            None if entry.names.iter().any(|name| name.as_str() == "*") => {
                format!("no {} {}", kinds(entry), within(entry))
            }
            None => absent(entry, &quoted(entry.names.iter().map(Pattern::as_str))),
        })
        .collect();
    let found_nothing = "spec.sources selects nothing that can be distributed";
    if entries.is_empty() {
        return found_nothing.to_owned();
    }
    format!("{found_nothing}: {}", listed(&entries, "; "))
}

/// Returns the message about a rule that chooses no cluster.
pub(super) fn no_clusters(view: &View<'_>) -> String {
    let choice = &view.rule.clusters;
    let mut parts: Vec<_> = unknown_clusters(view).into_iter().collect();
    let known: Vec<_> = choice
        .names
        .iter()
        .filter(|name| view.members.contains_key(&ClusterName::from(name.as_str())))
        .collect();
    if !known.is_empty() {
        let verb = if known.len() == 1 { "is" } else { "are" };
        parts.push(format!(
            "{} {verb} excluded, not accepted or leaving",
            listed(&known, ", ")
        ));
    }
    if let Some(selector) = &choice.selector {
        parts.push(format!("no accepted cluster has the labels {selector}"));
    }
    if choice.all {
        let all = match choice.exclude.as_slice() {
            [] => "no cluster is accepted",
            _ => "spec.clusters.exclude matches every accepted cluster",
        };
        parts.push(all.to_owned());
    }
    format!(
        "spec.clusters matches no accepted cluster: {}; list the clusters with `kubectl get member --show-labels`",
        parts.join("; ")
    )
}

/// Returns the message about a rule without copies, because its globs and labels match no namespace of its clusters. An
/// exact name has a copy that waits, if there is no such namespace; without one the hub itself may be the only target.
pub(super) fn no_namespaces(view: &View<'_>, clusters: usize) -> Option<String> {
    let choice = view.rule.terms.namespaces.as_ref()?;
    if choice.wanted_literals().next().is_some() {
        return None;
    }
    let scope = match clusters {
        1 => "in its cluster".to_owned(),
        more => format!("in any of its {more} clusters"),
    };
    let names: Vec<_> = choice.names.iter().map(Pattern::as_str).collect();
    let mut looked_for = Vec::new();
    if !names.is_empty() {
        looked_for.push(format!("is called {}", listed(&names, ", ")));
    }
    if let Some(selector) = &choice.selector {
        looked_for.push(format!("has the labels {selector}"));
    }
    Some(format!(
        "there are no copies, because spec.namespaces matches nothing: no namespace {scope} {}",
        looked_for.join(" or ")
    ))
}

/// Returns the text about clusters in `spec.clusters.names` without MemberCluster.
fn unknown_clusters(view: &View<'_>) -> Option<String> {
    let choice = &view.rule.clusters;
    let unknown: Vec<_> = choice
        .names
        .iter()
        .filter(|name| !view.members.contains_key(&ClusterName::from(name.as_str())))
        .filter(|name| !matches_any(&choice.exclude, name))
        .collect();
    (!unknown.is_empty()).then(|| format!("no MemberCluster is called {}", listed(&unknown, ", ")))
}

/// Returns the text about clusters that overrides name and that the rule does not choose.
fn unchosen_clusters(view: &View<'_>) -> Option<String> {
    let choice: &ClusterChoice = &view.rule.clusters;
    let is_chosen = |name: &str| {
        let name = ClusterName::from(name);
        let labels = view.members.get(&name).map(|member| &member.labels);
        // A name of spec.clusters that has no MemberCluster is listed there.
        labels.map_or_else(
            || choice.names.iter().any(|known| known == name.as_str()),
            |labels| choice.chooses(&name, labels),
        )
    };
    let unchosen: Vec<_> = view
        .rule
        .shape
        .named_clusters()
        .filter(|(_, name)| !is_chosen(name))
        .map(|(number, name)| format!("{name} (spec.overrides[{number}])"))
        .collect();
    (!unchosen.is_empty()).then(|| {
        format!(
            "spec.overrides names clusters that the rule does not choose: {}",
            listed(&unchosen, ", ")
        )
    })
}

/// Returns the text about exact names of `spec.sources` without an object.
fn missing_sources(view: &View<'_>) -> Option<String> {
    let missing: Vec<_> = view
        .rule
        .sources
        .iter()
        .filter_map(|entry| {
            let names = missing_in(view, entry);
            (!names.is_empty()).then(|| absent(entry, &quoted(names.into_iter())))
        })
        .collect();
    (!missing.is_empty()).then(|| listed(&missing, "; "))
}

/// Returns the exact names of an entry that no object of its kinds and namespaces has.
fn missing_in<'v>(view: &'v View<'_>, entry: &'v SourceChoice) -> Vec<&'v str> {
    let names = entry
        .names
        .iter()
        .filter(|name| name.is_literal() && !matches_any(&entry.exclude, name.as_str()))
        .map(Pattern::as_str);
    if entry.selector.is_some() {
        return Vec::new();
    }
    if let [namespace] = entry.namespaces.as_slice()
        && namespace.is_literal()
    {
        let exists = |name: &str| {
            entry.resources.iter().any(|resource| {
                let source = SourceRef::new(resource, namespace.as_str(), name);
                view.plan.selects(&source) || view.plan.refused.contains_key(&source)
            })
        };
        return names.filter(|name| !exists(name)).collect();
    }
    let mut missing: BTreeSet<&str> = names.collect();
    for source in view.plan.objects() {
        if missing.is_empty() {
            break;
        }
        if view.rule.selects_by(entry, source) {
            missing.remove(&*source.name);
        }
    }
    missing.into_iter().collect()
}

/// Returns the text about exact keys and fields that no source has.
fn missing_keys(view: &View<'_>) -> Option<String> {
    let missing = view.newest_plans().missing_keys(view.rule, view.plan);
    let is_field = |named: &NamedKey<'_>| {
        matches!(
            named.by,
            NamedBy::RemoveFields(_) | NamedBy::SubstituteFields(_)
        )
    };
    let (fields, keys): (Vec<_>, Vec<_>) = missing.into_iter().partition(is_field);
    let text = |named: &[NamedKey<'_>], one: &str| {
        let place = |NamedKey { by, key }: &NamedKey<'_>| match by {
            NamedBy::SubstituteKeys => format!("{key} (spec.substitute.keys)"),
            NamedBy::SubstituteFields(_) => format!("{key} (spec.substitute.fields)"),
            NamedBy::Remove(number) => format!("{key} (spec.overrides[{number}].remove)"),
            NamedBy::RemoveFields(_) => format!("{key} (spec.transform.removeFields)"),
        };
        let several = if named.len() == 1 { "" } else { "s" };
        let places: Vec<_> = named.iter().map(place).collect();
        (!named.is_empty())
            .then(|| format!("no source has the {one}{several} {}", listed(&places, ", ")))
    };
    let texts: Vec<_> = [text(&keys, "key"), text(&fields, "field")]
        .into_iter()
        .flatten()
        .collect();
    (!texts.is_empty()).then(|| texts.join("; "))
}

fn absent(entry: &SourceChoice, names: &str) -> String {
    format!("no {} {names} {}", kinds(entry), within(entry))
}

/// Returns the kinds of an entry, as in `configmap or secret`.
fn kinds(entry: &SourceChoice) -> String {
    let name = |resource: &Arc<str>| {
        Kind::by_resource(resource)
            .map_or_else(|| resource.to_string(), |kind| kind.kind.to_lowercase())
    };
    let kinds: Vec<_> = entry.resources.iter().map(name).collect();
    kinds.join(" or ")
}

/// Returns the namespaces of an entry.
fn within(entry: &SourceChoice) -> String {
    let namespaces: Vec<_> = entry.namespaces.iter().map(Pattern::as_str).collect();
    if namespaces.is_empty() {
        return "in the cluster of the hub".to_owned();
    }
    let noun = match namespaces.len() {
        1 => "namespace",
        _ => "namespaces",
    };
    format!("in {noun} {}", listed(&namespaces, ", "))
}

fn quoted<'n>(names: impl Iterator<Item = &'n str>) -> String {
    let names: Vec<_> = names.map(|name| format!("`{name}`")).collect();
    listed(&names, ", ")
}

/// Returns the first names, and the number of the others.
fn listed(names: &[impl ToString], separator: &str) -> String {
    let first: Vec<_> = names.iter().take(LISTED).map(ToString::to_string).collect();
    let first = first.join(separator);
    match i64::try_from(names.len().saturating_sub(LISTED)).unwrap_or(i64::MAX) {
        0 => first,
        more => format!("{first} and {}", counted(more, "other", "others")),
    }
}

/// Entries of `spec.sources` that select a kind in the scope that it does not have.
pub(super) fn scope_mismatch(view: &View<'_>) -> Option<ConditionValue> {
    let mut found = view
        .rule
        .sources
        .iter()
        .enumerate()
        .flat_map(|(number, entry)| {
            let why = |resource: &Arc<str>| {
                let mut scopes = view.mismatched.iter();
                let is_entry = |scope: &&WatchScope| {
                    scope.resource == *resource && scope.is_cluster() == entry.is_of_cluster()
                };
                view.unreadable.get(scopes.find(is_entry)?)
            };
            let kinds = entry.resources.iter();
            kinds.filter_map(move |resource| Some((number, why(resource)?)))
        });
    let (number, why) = found.next()?;
    let more = match i64::try_from(found.count()).unwrap_or(i64::MAX) {
        0 => String::new(),
        more => format!(
            ". {} the wrong scope, too",
            counted(more, "other kind has", "other kinds have")
        ),
    };
    Some(ConditionValue::new(
        ConditionStatus::True,
        Reason::ScopeMismatch,
        format!("spec.sources[{number}]: {why}; existing copies are left unchanged{more}"),
    ))
}

/// Kinds that the rule names and that the API server of the hub does not serve.
pub(super) fn kind_not_served(view: &View<'_>) -> Option<ConditionValue> {
    let first = view.not_served.first()?;
    let more = match view.not_served.len() {
        1 => String::new(),
        all => format!(
            " and {}",
            counted(
                i64::try_from(all - 1).unwrap_or(i64::MAX),
                "other kind",
                "other kinds"
            )
        ),
    };
    let message = format!(
        "the API server of the hub does not serve {first}{more}: install the CustomResourceDefinition and its objects, or \
         correct spec.sources; existing copies of that kind are left unchanged"
    );
    Some(ConditionValue::new(
        ConditionStatus::True,
        model::Reason::KindNotServed,
        message,
    ))
}
