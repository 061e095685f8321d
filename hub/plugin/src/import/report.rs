//! Output of the import: rules as YAML, everything else as comments.
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use runnel_proto::model::{Kind, is_privileged};

use super::annotations::{Copier, Id};
use super::rules::{CopyComparison, ImportReport, ImportedRule};
use crate::wrap::{on_one_line, wrapped};

/// The most names in one command, and the most listed items.
const IN_A_COMMAND: usize = 20;
const LISTED: usize = 20;
/// The line width.
const WIDTH: usize = 118;

/// The content of the report besides the rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReportContext {
    /// `kubectl --context NAME` of the cluster that is read.
    pub read: String,
    /// `helm --kube-context NAME` of it.
    pub helm: String,
    /// The name of the hub's cluster.
    pub hub: String,
    /// Whether the cluster that is read is the hub.
    pub is_hub: bool,
    /// Deployments of the old copiers: namespace, name, and the release of helm.
    pub copiers: BTreeMap<Copier, Vec<(String, String, Option<String>)>>,
    /// Sources that the hub does not have, or has with other content.
    pub not_on_hub: BTreeSet<Id>,
    /// Why kinds were not read.
    pub unread: Vec<String>,
}

/// The whole text.
///
/// # Errors
/// When a rule cannot be written.
pub fn text(import: &ImportReport, around: &ReportContext) -> anyhow::Result<String> {
    let mut out = String::new();
    if import.rules.is_empty() {
        comment(
            &mut out,
            "No rule was created by kubectl runnel import: nothing was found that a rule can replace.",
        );
    } else {
        head(&mut out, import);
        order(&mut out, import, around);
    }
    list(
        &mut out,
        "Not carried over:",
        import
            .left
            .iter()
            .map(|(of, why)| format!("{of}: {why}"))
            .chain(around.unread.iter().cloned()),
    );
    let orphaned_intents = import.orphaned_intents.iter().map(|id| {
        format!("{id}: has annotations of a copier, and no rule selects it; it is left unchanged")
    });
    list(&mut out, "Copies that no rule adopts:", orphaned_intents);
    for rule in &import.rules {
        out.push_str("---\n");
        if let Some(bundle) = &rule.bundle {
            let about = "The sources of the next rule. The hub creates none of these objects, so that they give no rights there.";
            comment(&mut out, about);
            out.push_str(&serde_saphyr::to_string(bundle)?);
            out.push_str("---\n");
        }
        write_rule(&mut out, rule);
        out.push_str(&serde_saphyr::to_string(&rule.rule)?);
    }
    Ok(out)
}

fn count(number: usize, one: &str, more: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { more })
}

fn comparisons<'a>(
    rules: impl IntoIterator<Item = &'a ImportedRule>,
) -> BTreeMap<CopyComparison, usize> {
    let mut counts = BTreeMap::new();
    for comparison in rules.into_iter().flat_map(|rule| rule.copies.values()) {
        *counts.entry(*comparison).or_insert(0) += 1;
    }
    counts
}

fn head(out: &mut String, import: &ImportReport) {
    let copiers: BTreeSet<&str> = import.rules.iter().map(|rule| rule.copier.name()).collect();
    let copiers: Vec<&str> = copiers.into_iter().collect();
    let sources: BTreeSet<&Id> = import.rules.iter().flat_map(|rule| &rule.sources).collect();
    let counts = comparisons(&import.rules);
    let of = |comparison| counts.get(&comparison).copied().unwrap_or_default();
    comment(
        out,
        &format!(
            "What {} {}, as rules of Runnel; created by kubectl runnel import.",
            copiers.join(" and "),
            if copiers.len() == 1 { "does" } else { "do" }
        ),
    );
    let (equal, differs, absent) = (
        of(CopyComparison::Equal),
        of(CopyComparison::Different),
        of(CopyComparison::Absent),
    );
    comment(
        out,
        &format!(
            "{} with {}. Of {}, {equal} equal their source and are taken over as they are{}{}.",
            count(import.rules.len(), "rule", "rules"),
            count(sources.len(), "source", "sources"),
            count(equal + differs + absent, "copy", "copies"),
            if differs > 0 {
                format!(", {differs} have other content and are left unchanged (Conflict)")
            } else {
                String::new()
            },
            if absent > 0 {
                format!(", {absent} are to be created")
            } else {
                String::new()
            },
        ),
    );
}

fn order(out: &mut String, import: &ImportReport, around: &ReportContext) {
    let ReportContext { read, hub, .. } = around;
    comment(out, "");
    comment(
        out,
        "The safe order, in which no copy is deleted or created again:",
    );
    let used: BTreeSet<Copier> = import.rules.iter().map(|rule| rule.copier).collect();
    let none = Vec::new();
    step(
        out,
        1,
        "Stop the old copier, so that two do not write the same objects:",
    );
    for copier in &used {
        let found = around.copiers.get(copier).unwrap_or(&none);
        for (namespace, name, _) in found {
            line(
                out,
                &format!("{read} -n {namespace} scale deployment/{name} --replicas=0"),
            );
        }
        if found.is_empty() {
            let text = format!(
                "(no Deployment of {} was found in this cluster: scale what runs it to 0)",
                copier.name()
            );
            line(out, &text);
        }
    }
    if around.is_hub {
        step(
            out,
            2,
            "Save this text as rules.yaml, apply it on the hub, and wait until the rules are Ready:",
        );
    } else {
        step(
            out,
            2,
            "Rules read their sources on the hub, and from now on they are edited there. Save this text as rules.yaml, \
             apply it on the hub, and wait until the rules are Ready:",
        );
        missing(out, around);
    }
    allow(out, import);
    line(out, &format!("{hub} apply -f rules.yaml"));
    line(out, &hub.replacen("kubectl", "kubectl runnel status -A", 1));
    step(out, 3, "Take the old marks off:");
    let mut by_place: BTreeMap<(&str, &str, Vec<&String>), Vec<&str>> = BTreeMap::new();
    for (id, marks) in &import.marks {
        let key = (
            id.namespace.as_str(),
            id.resource.as_str(),
            marks.iter().collect(),
        );
        by_place.entry(key).or_default().push(&id.name);
    }
    for ((namespace, resource, marks), names) in &by_place {
        let marks: Vec<String> = marks.iter().map(|mark| format!("{mark}-")).collect();
        for names in names.chunks(IN_A_COMMAND) {
            line(
                out,
                &format!(
                    "{read} -n {namespace} annotate {resource} {} {}",
                    names.join(" "),
                    marks.join(" ")
                ),
            );
        }
    }
    if by_place.is_empty() {
        line(out, "(there are none)");
    }
    step(
        out,
        4,
        "Let the copies that were there follow their sources: set conflictPolicy: Overwrite in the rules and policy.overwrite: \
         true in the agent's values. Until then an edit of a source leaves such a copy as it is (Conflict); one that you \
         delete is created again:",
    );
    step(out, 5, "Uninstall the old copier:");
    for copier in &used {
        let found = around.copiers.get(copier).unwrap_or(&none);
        if found.is_empty() {
            let name = copier.name();
            line(
                out,
                &format!(
                    "(no Deployment of {name} was found in this cluster: remove what runs it)"
                ),
            );
        }
        for (namespace, name, release) in found {
            line(
                out,
                &match release {
                    Some(release) => format!("{} -n {namespace} uninstall {release}", around.helm),
                    None => format!("{read} -n {namespace} delete deployment {name}"),
                },
            );
        }
    }
}

/// What has to be allowed for kinds that are not distributed by default.
fn allow(out: &mut String, import: &ImportReport) {
    let kinds = |is_needed: fn(&ImportedRule) -> bool| -> BTreeSet<&str> {
        let rules = import.rules.iter().filter(|rule| is_needed(rule));
        let sources = rules.flat_map(|rule| &rule.sources);
        sources
            .map(|source| source.resource.as_str())
            .filter(|resource| Kind::by_resource(resource).is_none())
            .collect()
    };
    let (all, on_hub) = (kinds(|_| true), kinds(|rule| rule.bundle.is_none()));
    if all.is_empty() {
        return;
    }
    let privileged: BTreeSet<&str> = all
        .iter()
        .copied()
        .filter(|kind| is_privileged(kind))
        .collect();
    line(
        out,
        "These kinds are distributed only where they are named. Add them first, to the values of the charts and to the grant:",
    );
    let grant = "resources of a DistributionGrant; the grant everything has none of these";
    for (place, kinds) in [
        ("sources.kinds of the hub", on_hub),
        ("policy.kinds of the agents", all),
        ("policy.allowPrivileged of the agents", privileged.clone()),
        (grant, privileged),
    ] {
        if !kinds.is_empty() {
            let kinds: Vec<&str> = kinds.into_iter().collect();
            line(out, &format!("  {place}: {}", kinds.join(", ")));
        }
    }
}

/// Sources that have to be brought to the hub first.
fn missing(out: &mut String, around: &ReportContext) {
    if around.not_on_hub.is_empty() {
        return;
    }
    line(
        out,
        "These sources do not exist on the hub, or have other content there. A rule without its source does nothing; with a different",
    );
    line(
        out,
        "source it leaves the copies unchanged (Conflict). Create them on the hub first, without their annotations:",
    );
    for id in around.not_on_hub.iter().take(LISTED) {
        line(out, &format!("  {id}"));
    }
    if around.not_on_hub.len() > LISTED {
        line(
            out,
            &format!("  ... and {} more", around.not_on_hub.len() - LISTED),
        );
    }
}

fn write_rule(out: &mut String, rule: &ImportedRule) {
    let counts = comparisons([rule]);
    let of = |comparison| counts.get(&comparison).copied().unwrap_or_default();
    comment(
        out,
        &format!(
            "{}: {}; {} now: {} equal, {} different, {} missing.",
            rule.copier.name(),
            count(rule.sources.len(), "source", "sources"),
            count(rule.copies.len(), "copy", "copies"),
            of(CopyComparison::Equal),
            of(CopyComparison::Different),
            of(CopyComparison::Absent)
        ),
    );
    for note in &rule.notes {
        item(out, note);
    }
    let different = rule
        .copies
        .iter()
        .filter(|(_, comparison)| **comparison == CopyComparison::Different);
    let different: Vec<String> = different.map(|(id, _)| id.to_string()).collect();
    for id in different.iter().take(LISTED) {
        item(out, &format!("{id} has other content than its source"));
    }
    if different.len() > LISTED {
        item(out, &format!("... and {} more", different.len() - LISTED));
    }
}

fn list(out: &mut String, title: &str, items: impl Iterator<Item = String>) {
    let items: Vec<String> = items.collect();
    if items.is_empty() {
        return;
    }
    comment(out, "");
    comment(out, title);
    for text in items {
        item(out, &text);
    }
}

fn comment(out: &mut String, text: &str) {
    wrapped(out, ("# ", "# "), text, WIDTH);
}

fn item(out: &mut String, text: &str) {
    wrapped(out, ("#  - ", "#    "), text, WIDTH);
}

fn step(out: &mut String, number: usize, text: &str) {
    wrapped(out, (&format!("#  {number}. "), "#     "), text, WIDTH);
}

/// Writes a command on one line, so that no text of another user becomes a command of its own.
fn line(out: &mut String, text: &str) {
    let _ = writeln!(out, "#     {}", on_one_line(text));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_ends_no_comment_and_controls_no_terminal() {
        let mut out = String::new();
        line(
            &mut out,
            "helm uninstall r\n---\r\nkind: ClusterRoleBinding\u{85}a\u{2028}b\u{1b}[2J",
        );
        wrapped(&mut out, ("# ", "# "), "x\u{1b}]0;y\n---", WIDTH);
        assert!(
            out.lines().all(|line| line.starts_with('#')) && out.lines().count() == 2,
            "{out}"
        );
        assert!(
            !out.contains(['\r', '\u{85}', '\u{2028}', '\u{1b}']),
            "{out:?}"
        );
    }
}
