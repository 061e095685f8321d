//! What people are told of removals, or of takeovers, that are held.
use super::fold::counted;
use crate::index::{BlockedAgentWork, BlockedRemovals, Several};
use crate::plan::Rule;
use runnel_api::RELEASE;

/// How many copies, where, why, and how to release them.
pub(super) fn said_of_held(
    rule: &Rule,
    held: Option<&BlockedRemovals>,
    given_up: Option<&BlockedAgentWork>,
    given_up_in: &[String],
) -> String {
    let mut causes: Vec<_> = held.map(causes_of).unwrap_or_default();
    causes.extend(given_up.map(|given_up| said_of_given_up(given_up, given_up_in)));
    let memories: Vec<_> = held.map(|held| &held.memory).into_iter().chain(given_up.map(|held| &held.memory)).collect();
    let copies = memories.iter().map(|memory| memory.copies).fold(0, u64::saturating_add);
    let (what, it) = if copies == 1 { ("this one", "it") } else { ("these", "them") };
    let copies = counted(i64::try_from(copies).unwrap_or(i64::MAX), "copy", "copies");
    let digests: Vec<_> = memories.iter().map(|memory| memory.digest.as_str()).collect();
    format!(
        "the removal of {copies} is held (spec.removalLimit): {}. To remove exactly {what}: {}; to keep {it}, undo the change",
        causes.join("; "),
        release(rule, &digests.join(",")),
    )
}

/// Which copies agents would remove because their namespaces are no longer targets.
fn said_of_given_up(held: &BlockedAgentWork, namespaces: &[String]) -> String {
    let Some(place) = said(&in_clusters(held), "cluster has", "clusters have", "copies in namespaces given up") else {
        return format!("of copies in namespaces given up, {UNTOLD}");
    };
    match namespaces {
        [] => place,
        some => format!("{place} (namespaces {} among them)", some.join(", ")),
    }
}

fn causes_of(held: &BlockedRemovals) -> Vec<String> {
    let mut causes = vec![];
    if held.rule {
        causes.push("the rule is deleted".to_owned());
    }
    causes.extend(said(&held.sources, "source is", "sources are", "no longer selected"));
    causes.extend(said(&held.names, "copy has", "copies have", "another name now"));
    causes.extend(said(&held.clusters, "cluster is", "clusters are", "no longer chosen"));
    causes.extend(said(&held.ungranted, "cluster is", "clusters are", "no longer granted"));
    let kinds = held.kinds.first.iter().map(|(cluster, kind)| format!("{kind} in {cluster}")).collect();
    causes.extend(said(&Several { first: kinds, all: held.kinds.all }, "kind is", "kinds are", "no longer granted"));
    if causes.is_empty() {
        causes.push(UNTOLD.to_owned());
    }
    causes
}

/// How many objects, where, and how to release them.
pub(super) fn said_of_takeovers(rule: &Rule, held: &BlockedAgentWork) -> String {
    let (what, these, it) = match held.memory.copies {
        1 => ("object that is not Runnel's", "this one", "it"),
        _ => ("objects that are not Runnel's", "these", "them"),
    };
    let objects = counted(i64::try_from(held.memory.copies).unwrap_or(i64::MAX), what, what);
    let place = said(&in_clusters(held), "cluster holds", "clusters hold", it).unwrap_or_else(|| UNTOLD.to_owned());
    format!(
        "the takeover of {objects} is held (spec.removalLimit): {place}. To overwrite exactly {these}: {}; to keep {it}, set conflictPolicy to AdoptIfEqual or Fail",
        release(rule, &held.memory.digest),
    )
}

/// What stands in for the clusters while nobody knows them.
const UNTOLD: &str = "as the hub said before it restarted; the agents have not said yet what is left";

/// The clusters, each with its number of objects.
fn in_clusters(held: &BlockedAgentWork) -> Several<String> {
    let first = held.clusters.first.iter().map(|(cluster, objects)| format!("{cluster} ({objects})")).collect();
    Several { first, all: held.clusters.all }
}

/// The command that releases it.
fn release(rule: &Rule, digest: &str) -> String {
    let name = &rule.terms.rule;
    let (kind, namespace) =
        if name.is_cluster_scoped() { ("cdrule", String::new()) } else { ("drule", format!(" -n {}", name.namespace)) };
    format!("kubectl annotate {kind} {}{namespace} --overwrite {RELEASE}={digest}", name.name)
}

fn said<T: std::fmt::Display>(several: &Several<T>, one: &str, more: &str, what: &str) -> Option<String> {
    let named: Vec<_> = several.first.iter().map(ToString::to_string).collect();
    let rest = match several.all - named.len() {
        0 => String::new(),
        rest => format!(" and {rest} more"),
    };
    let number = counted(i64::try_from(several.all).unwrap_or(i64::MAX), one, more);
    (several.all > 0).then(|| format!("{number} {what}: {}{rest}", named.join(", ")))
}
