//! The output of `kubectl runnel explain`.
use std::fmt::Write;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use runnel_api::{
    CopyExplanation, CopyExplanationSpec, CopyExplanationStatus, CopyTarget, ExplainedField,
    ExplainedRule, ReturnedField,
};
use runnel_proto::closed_list::ExplainedState;
use runnel_proto::model::{CopyHealth, Kind, SourceRef, is_object_name, is_subdomain};

use super::parse::ArgumentError;
use super::table::Tone;
use super::wrap::wrapped;
use runnel_hub_core::now::age;

/// The line width.
const WIDTH: usize = 76;
/// Number of printed digits of a revision.
const DIGITS: usize = 12;

/// Understands `CLUSTER/NAMESPACE/KIND/NAME`, and `CLUSTER/KIND/NAME` for a kind without namespaces.
///
/// # Errors
/// [`ArgumentError::Copy`] or [`ArgumentError::Kind`].
pub fn question(given: &str) -> Result<CopyExplanation, ArgumentError> {
    let wrong = || ArgumentError::Copy(given.to_owned());
    let parts: Vec<&str> = given.split('/').collect();
    let (cluster, namespace, kind, name) = match *parts.as_slice() {
        [cluster, namespace, kind, name] if is_subdomain(namespace) => {
            (cluster, namespace, kind, name)
        }
        [cluster, kind, name] => (cluster, "", kind, name),
        _ => return Err(wrong()),
    };
    if !is_subdomain(cluster) || !is_object_name(kind, name) {
        return Err(wrong());
    }
    // The hub finds the kind by any other name.
    let kind = match kind.to_lowercase().as_str() {
        "configmap" | "configmaps" | "cm" => "ConfigMap".to_owned(),
        "secret" | "secrets" => "Secret".to_owned(),
        lower if is_subdomain(lower) => lower.to_owned(),
        _ => {
            return Err(ArgumentError::Kind(kind.to_owned()));
        }
    };
    let spec = CopyExplanationSpec {
        cluster: cluster.to_owned(),
        target: CopyTarget {
            kind,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        },
    };
    // The request has no name, because nothing is stored.
    Ok(CopyExplanation {
        metadata: ObjectMeta::default(),
        spec,
        status: None,
    })
}

fn named(question: &CopyExplanationSpec) -> String {
    let target = &question.target;
    let known = Kind::supported()
        .iter()
        .find(|kind| *kind.kind == *target.kind);
    let resource = known.map_or(target.kind.as_str(), |kind| &*kind.resource);
    let copy = SourceRef::new(resource, &target.namespace, &target.name);
    format!("{copy} in {}", question.cluster)
}

/// Returns the state in one line, with its tone.
fn headline(answer: &CopyExplanationStatus) -> (&'static str, Tone) {
    let has = |state: ExplainedState| {
        let mut rules = answer.rules.iter();
        rules.any(|rule| rule.state == state.as_str())
    };
    let health = answer.live.as_ref().map_or("", |live| live.health.as_str());
    if has(ExplainedState::Applied) && is_older(answer) {
        ("a copy, not the newest of its source", Tone::Warning)
    } else if has(ExplainedState::Applied) && health == CopyHealth::Failed.as_str() {
        ("a copy as it should be, and unhealthy", Tone::Bad)
    } else if has(ExplainedState::Applied) && health == CopyHealth::InProgress.as_str() {
        ("a copy as it should be, not healthy yet", Tone::Warning)
    } else if has(ExplainedState::Applied) {
        ("a copy, as it should be", Tone::Good)
    } else if has(ExplainedState::Drifted) {
        ("a copy that another client changed", Tone::Warning)
    } else if has(ExplainedState::Failed) {
        ("failed", Tone::Bad)
    } else if has(ExplainedState::Removing) || has(ExplainedState::PruneRequested) {
        ("a copy that is to go", Tone::Warning)
    } else if has(ExplainedState::UnderWay) {
        ("on its way", Tone::Warning)
    } else if has(ExplainedState::NotConfirmed) {
        ("selected; not confirmed by its agent yet", Tone::Warning)
    } else if has(ExplainedState::Reverted) && answer.live.as_ref().is_some_and(|live| live.ours) {
        (
            "a copy as the last completed rollout sent it: the newest one failed",
            Tone::Warning,
        )
    } else if has(ExplainedState::Waiting) {
        ("waits for its namespace", Tone::Warning)
    } else if answer.live.as_ref().is_some_and(|live| live.ours) {
        ("a copy without a rule that you may get", Tone::Warning)
    } else if !answer.answered && has(ExplainedState::NotReported) {
        ("selected; only its agent has its state", Tone::Warning)
    } else {
        ("no copy", Tone::Warning)
    }
}

/// Whether the copy has another revision than its source.
fn is_older(answer: &CopyExplanationStatus) -> bool {
    let live = answer
        .live
        .as_ref()
        .filter(|live| !live.revision.is_empty());
    live.is_some_and(|live| {
        let mut rules = answer.rules.iter();
        let wanted = rules.find(|rule| !rule.revision.is_empty() && rule.source == live.source);
        wanted.is_some_and(|rule| rule.revision != live.revision)
    })
}

/// Returns the explanation as text.
pub fn text(explained: &CopyExplanation, now: Timestamp, colors: bool) -> String {
    let (question, mut out) = (&explained.spec, String::new());
    let answer = &explained.status.clone().unwrap_or_default();
    let (headline, tone) = headline(answer);
    let _ = writeln!(out, "{}: {}", named(question), tone.paint(headline, colors));
    let _ = writeln!(out, "  {}", answer.cluster);
    if matches!(
        answer.namespace.as_str(),
        "Missing" | "Terminating" | "Closed"
    ) {
        let words = match answer.namespace.as_str() {
            "Missing" => "does not exist there",
            "Terminating" => "is being deleted there",
            _ => "takes no copies there",
        };
        let _ = writeln!(out, "  namespace {} {words}", question.target.namespace);
    }
    write_live_object(&mut out, answer, now);
    if answer.rules.is_empty() {
        let scope_text = if answer.hidden > 0 {
            "of those that you may get "
        } else {
            ""
        };
        let nothing = format!(
            "No rule {scope_text}has a source whose copies are called {}.",
            question.target.name
        );
        wrapped(&mut out, ("", ""), &nothing, WIDTH);
    } else {
        out.push_str("\nRules that have a source for it:\n");
    }
    for rule in &answer.rules {
        one(&mut out, rule, answer, colors);
    }
    if answer.hidden > 0 {
        let rules = if answer.hidden == 1 {
            "rule is"
        } else {
            "rules are"
        };
        let _ = writeln!(
            out,
            "\n{} more {rules} not shown, as you may not get them.",
            answer.hidden
        );
    }
    out
}

fn write_live_object(out: &mut String, answer: &CopyExplanationStatus, now: Timestamp) {
    let Some(live) = &answer.live else { return };
    if !live.source.is_empty() {
        let _ = writeln!(out, "  source     {}", live.source);
        let _ = writeln!(out, "  rule       {}", live.rule);
    }
    if !live.revision.is_empty() {
        let mut rules = answer.rules.iter();
        let is_known = rules.any(|rule| !rule.revision.is_empty() && rule.source == live.source);
        let newest = match (is_older(answer), is_known) {
            (true, _) => ", not the newest of its source",
            (false, true) => ", what its source holds now",
            (false, false) => "",
        };
        let _ = writeln!(out, "  revision   {}{newest}", short(&live.revision));
    }
    if let Some(Time(at)) = live.applied_at {
        let _ = writeln!(out, "  written    {at}, {} ago", age(Some(at), now));
    }
    let words = match (live.ours, live.intact) {
        (true, true) => "every field is as it was written",
        (true, false) => "another client changed it",
        (false, _) => "an object that is not this agent's copy exists there",
    };
    let _ = writeln!(out, "  now        {words}");
    if !live.health.is_empty() {
        let health = match live.health_message.as_str() {
            "" => live.health.clone(),
            message => format!("{}: {message}", live.health),
        };
        wrapped(out, ("  health     ", "             "), &health, WIDTH);
    }
    let mut first = "  feedback   ";
    for ReturnedField { name, value } in &live.feedback {
        wrapped(
            out,
            (first, "             "),
            &format!("{name}={value}"),
            WIDTH,
        );
        first = "             ";
    }
}

fn one(out: &mut String, rule: &ExplainedRule, answer: &CopyExplanationStatus, colors: bool) {
    let name = if rule.namespace.is_empty() {
        rule.name.clone()
    } else {
        format!("{}/{}", rule.namespace, rule.name)
    };
    let known = ExplainedState::parse(&rule.state);
    let tone = match known {
        Some(ExplainedState::Applied) => Tone::Good,
        Some(ExplainedState::Failed) => Tone::Bad,
        _ => Tone::Warning,
    };
    let _ = writeln!(out, "  {name} ({}), {}", rule.kind, rule.source);
    if !rule.bundle.is_empty() {
        let _ = writeln!(out, "    a manifest of {}", rule.bundle);
    }
    let state = if known == Some(ExplainedState::NotReported) && !answer.answered {
        "Unknown"
    } else {
        rule.state.as_str()
    };
    let end = if rule.message.is_empty() { "" } else { ":" };
    let _ = writeln!(out, "    {}{end}", tone.paint(state, colors));
    if !rule.message.is_empty() {
        wrapped(out, ("      ", "      "), &rule.message, WIDTH);
    }
    for ExplainedField { field, by } in &rule.fields {
        let field = if field.is_empty() {
            "all fields"
        } else {
            field
        };
        let _ = writeln!(out, "    {field} by {by}");
    }
}

fn short(revision: &str) -> &str {
    revision.get(..DIGITS).unwrap_or(revision)
}

#[cfg(test)]
mod tests {
    use runnel_api::ExplainedObject;

    use super::*;

    fn rule(name: &str, state: &str, message: &str) -> ExplainedRule {
        ExplainedRule {
            kind: "DistributionRule".into(),
            namespace: "team".into(),
            name: name.into(),
            source: "secrets/team/login".into(),
            bundle: String::new(),
            state: state.into(),
            message: message.into(),
            revision: "0123456789abcdef0123456789abcdef".into(),
            fields: vec![],
        }
    }

    fn shown(answer: &CopyExplanationStatus) -> String {
        let mut explained = question("eu-1/default/secret/login").unwrap();
        explained.status = Some(answer.clone());
        text(&explained, "2026-01-01T01:00:00Z".parse().unwrap(), false)
    }

    fn answer(rules: Vec<ExplainedRule>, live: Option<ExplainedObject>) -> CopyExplanationStatus {
        CopyExplanationStatus {
            cluster: "eu-1 is connected".into(),
            answered: true,
            namespace: "Ready".into(),
            rules,
            live,
            hidden: 0,
        }
    }

    #[test]
    fn copies_are_named_in_three_or_four_parts() {
        let asked = question("eu-1/default/cm/settings").unwrap().spec;
        assert_eq!(
            named(&asked),
            "configmaps/default/settings in eu-1".to_owned()
        );
        let asked = question("eu-1/default/NetworkPolicy/web").unwrap().spec;
        assert_eq!(asked.target.kind, "networkpolicy");
        let asked = question("eu-1/namespaces/shop").unwrap().spec;
        assert_eq!(named(&asked), "namespaces/shop in eu-1");
        assert_eq!(asked.target.namespace, "");
        for wrong in [
            "",
            "a/secret",
            "a/sec ret/b",
            "a/b/po d/c",
            "a/b/secret/c/d",
            "A/b/secret/c",
            "a//secret/c",
        ] {
            assert!(question(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn manifest_is_explained_with_its_bundle() {
        let mut manifest = rule("all", "Applied", "");
        let plain = shown(&answer(vec![manifest.clone()], None));
        assert!(!plain.contains("a manifest of"), "{plain}");
        manifest.bundle = "manifestbundles.runnel.dev/team/web".into();
        let shown = shown(&answer(vec![manifest], None));
        assert!(
            shown.contains("    a manifest of manifestbundles.runnel.dev/team/web\n"),
            "{shown}"
        );
    }

    #[test]
    fn snapshots_of_explanations() {
        let object = ExplainedObject {
            ours: true,
            intact: true,
            rule: "team/all".into(),
            source: "secrets/team/login".into(),
            revision: "0123456789abcdef0123456789abcdef".into(),
            applied_at: "2026-01-01T00:00:00Z".parse().ok().map(Time),
            uid: "u".into(),
            ..ExplainedObject::default()
        };
        let mut shaped = rule("all", "Applied", "");
        shaped.fields = vec![
            ExplainedField {
                field: "/data/level".into(),
                by: "spec.overrides[0].data".into(),
            },
            ExplainedField {
                field: "/metadata/labels/team".into(),
                by: "spec.ignoreFields".into(),
            },
            ExplainedField {
                field: String::new(),
                by: "spec.sources.exact".into(),
            },
        ];
        let well = answer(vec![shaped], Some(object.clone()));
        let lost = "all wins this copy: it is older";
        let conflict = "Conflict: an object that is not Runnel's exists here (written by kubectl-client-side-apply); delete it or rename it";
        let failed = answer(
            vec![
                rule("all", "Failed", conflict),
                rule("late", "Failed", lost),
            ],
            None,
        );
        let why = "the namespace does not have the labels there that spec.namespaces.selector (team=web) requires";
        let absent = CopyExplanationStatus {
            namespace: "Missing".into(),
            hidden: 2,
            ..answer(vec![rule("all", "NamespaceNotChosen", why)], None)
        };
        let former = ExplainedObject {
            revision: "eeee".into(),
            ..object.clone()
        };
        let stale = ExplainedObject {
            revision: "ffff".into(),
            intact: false,
            health: "Failed".into(),
            health_message: "NoQuota: no room".into(),
            ..object.clone()
        };
        let mut unhealthy = ExplainedObject {
            health: "Failed".into(),
            health_message:
                "ProgressDeadlineExceeded: ReplicaSet \"web-1\" has timed out progressing".into(),
            feedback: [("ready", "0"), ("image", "example.org/web:2")]
                .map(|(name, value)| ReturnedField {
                    name: name.into(),
                    value: value.into(),
                })
                .to_vec(),
            ..object
        };
        let is_unhealthy = answer(vec![rule("all", "Applied", "")], Some(unhealthy.clone()));
        unhealthy.health = "InProgress".into();
        unhealthy.health_message = "2 of 3 pods are updated".into();
        unhealthy.feedback.truncate(1);
        let is_in_progress = answer(vec![rule("all", "Applied", "")], Some(unhealthy));
        let back = "the rollout of the newest failed, and the cluster gets what the last completed rollout sent; \
                    kubectl runnel status RULE shows what failed. An edit of the source or the rule begins a new rollout; \
                    to try this one again once the failures are fixed set spec.rollout.paused to true and to false again";
        let waits = "the cluster waits for its wave in the rollout: its copies are left unchanged";
        let away = CopyExplanationStatus {
            cluster: "eu-1 is not connected: this is the state in the hub".into(),
            answered: false,
            namespace: String::new(),
            ..answer(vec![rule("all", "NotReported", "")], None)
        };
        let all = [
            ("as it should be", well),
            (
                "changed",
                answer(
                    vec![rule("all", "Drifted", "Drifted: data.password differs")],
                    Some(stale),
                ),
            ),
            ("unhealthy, with returned fields", is_unhealthy),
            ("not healthy yet", is_in_progress),
            ("failed", failed),
            (
                "gone back",
                answer(vec![rule("all", "Reverted", back)], Some(former.clone())),
            ),
            (
                "gone back, and it was not there before",
                answer(vec![rule("all", "Reverted", back)], None),
            ),
            (
                "waits for its turn",
                answer(vec![rule("all", "Applied", waits)], Some(former)),
            ),
            ("not chosen", absent),
            ("away", away),
            ("nobody wants it", answer(vec![], None)),
        ];
        let all: Vec<String> = all
            .iter()
            .map(|(name, answer)| format!("== {name}\n{}", shown(answer)))
            .collect();
        insta::assert_snapshot!(all.join("\n"));
    }
}
