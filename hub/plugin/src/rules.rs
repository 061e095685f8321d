//! Tables of rules and members.
use std::fmt::Write;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::clusters_output::tone;
use super::objects::{HasConditions, Rule, created, labels_text, member_name};
use super::table::{Cell, Table, Tone};
use runnel_api::conditions::{ConditionStatus, ConditionType};
use runnel_api::{MemberCluster, RolloutPhase, RolloutStatus, RuleStatus};
use runnel_hub_core::now::{age, span};

/// The rules as a table.
pub fn rules(objects: &[Rule], namespaces: bool, wide: bool, now: Timestamp) -> Table {
    let mut header = vec![
        "NAME", "READY", "CLUSTERS", "COPIES", "FAILED", "REASON", "AGE",
    ];
    if namespaces {
        header.insert(0, "NAMESPACE");
    }
    if wide {
        header.extend(["SOURCES", "WAITING", "HEALTHY", "MESSAGE"]);
    }
    let mut table = Table::new(&header);
    for object in objects {
        let ready = object.condition(ConditionType::Ready);
        let summary = object.status().and_then(|status| status.summary);
        let summary = summary.unwrap_or_default();
        let display = object.status().and_then(|status| status.display.clone());
        let display = display.unwrap_or_default();
        let failed = summary.copies_failed;
        let reason = if object.terms().suspend {
            "Suspended"
        } else {
            ready.reason
        };
        let mut row: Vec<Cell> = vec![
            short_name(object).into(),
            status_cell(ready.status),
            display.clusters.into(),
            display.copies.into(),
            Cell::toned(
                failed.to_string(),
                if failed > 0 { Tone::Bad } else { Tone::Plain },
            ),
            or(reason, "NotSeenByTheHub").into(),
            age(created(object.metadata()), now).into(),
        ];
        if namespaces {
            row.insert(0, object.namespace().into());
        }
        if wide {
            row.push(summary.sources.to_string().into());
            row.push(summary.copies_waiting.to_string().into());
            row.push(display.healthy.unwrap_or_default().into());
            row.push(ready.message.into());
        }
        table.row(row);
    }
    table
}

/// One rule with the clusters and failures of its status.
pub fn rule(object: &Rule, now: Timestamp, colors: bool) -> String {
    let mut page = heading(object, now, colors);
    if let Some(status) = object.status().filter(|status| status.summary.is_some()) {
        page += &listed(status, now, colors);
    }
    page
}

/// Returns the part of a rule's status for all its clusters together.
pub fn heading(object: &Rule, now: Timestamp, colors: bool) -> String {
    let mut page = String::new();
    let mut line = |title: &str, content: &str| _ = writeln!(page, "{title:<9} {content}");
    line("Rule", &format!("{} {}", object.kind(), object.full_name()));
    for kind in ConditionType::ALL {
        let seen = object.condition(kind);
        if seen.status.is_empty() {
            continue;
        }
        let tone = match (kind, seen.status) {
            (ConditionType::Ready | ConditionType::Applied | ConditionType::Granted, status) => {
                Tone::of_status(status)
            }
            _ => Tone::Warning,
        };
        let since = age(seen.since, now);
        // The message of Ready is not repeated.
        let again = kind != ConditionType::Ready
            && seen.message == object.condition(ConditionType::Ready).message;
        let message = if again { "as above" } else { seen.message };
        line(
            kind.as_str(),
            &format!(
                "{} {}: {} ({since})",
                tone.paint(seen.status, colors),
                seen.reason,
                message
            ),
        );
    }
    let Some((status, summary)) = object
        .status()
        .and_then(|status| Some((status, status.summary?)))
    else {
        line(
            "",
            "no hub has reconciled it yet: `kubectl runnel doctor` shows whether the hub runs",
        );
        return page;
    };
    if let Some(rollout) = &status.rollout {
        line("Rollout", &rollout_in_short(rollout, now));
    }
    line("Sources", &summary.sources.to_string());
    line(
        "Clusters",
        &format!("{} of {} ready", summary.clusters_ready, summary.clusters),
    );
    line(
        "Copies",
        &format!(
            "{} of {} applied, {} failed, {} waiting{}{}",
            summary.copies_applied,
            summary.copies,
            summary.copies_failed,
            summary.copies_waiting,
            match summary.copies_drifted {
                0 => String::new(),
                drifted => format!(", {drifted} drifted"),
            },
            match summary.copies_with_health {
                0 => String::new(),
                all => format!(", {} of {all} healthy", summary.copies_healthy),
            },
        ),
    );
    if object.condition(ConditionType::DryRun).is_true() {
        let (create, update) = (summary.copies_to_create, summary.copies_to_update);
        line(
            "Dry run",
            &format!(
                "would create {create}, update {update}, delete {}",
                summary.copies_to_delete
            ),
        );
    }
    page
}

/// The progress of a rollout, in one line.
fn rollout_in_short(rollout: &RolloutStatus, now: Timestamp) -> String {
    let since = |time: &Option<Time>| age(time.as_ref().map(|time| time.0), now);
    let (phase, wave) = (rollout.phase, rollout.wave);
    let reached = format!(
        "{} of {} clusters reached",
        rollout.clusters_reached, rollout.clusters
    );
    let done = format!(
        "{} applied, {} failed",
        rollout.clusters_applied, rollout.clusters_failed
    );
    let began = since(&rollout.started_at);
    let times = match phase {
        RolloutPhase::Reverting | RolloutPhase::Reverted => {
            return format!(
                "{phase:?}, wave {wave}: {reached}, {done}, {} rolled back (began {began} ago)",
                rollout.clusters_reverted
            );
        }
        RolloutPhase::Completed => format!("ended {} ago", since(&rollout.ended_at)),
        RolloutPhase::Soaking => format!(
            "began {began} ago, applied {} ago",
            since(&rollout.applied_at)
        ),
        RolloutPhase::AwaitingApproval => {
            let pending = rollout.pending_wave.as_ref();
            format!(
                "began {began} ago, wave {} waits for {}",
                pending.map_or(wave + 1, |pending| pending.wave),
                since(&pending.and_then(|pending| pending.since.clone()))
            )
        }
        RolloutPhase::AwaitingWindow => {
            let opens = rollout.opens_at.as_ref();
            let opens = opens.map_or_else(
                || "no opening is known".to_owned(),
                |opens| format!("a window opens at {}", opens.0),
            );
            format!("began {began} ago, {opens}")
        }
        RolloutPhase::Progressing | RolloutPhase::Paused | RolloutPhase::Stopped => {
            format!("began {began} ago")
        }
    };
    let superseded = match rollout.superseded {
        0 => String::new(),
        more => format!(
            "; {more} superseded in {}",
            since(&rollout.unfinished_since)
        ),
    };
    format!("{phase:?}, wave {wave}: {reached}, {done} ({times}{superseded})")
}

/// The clusters that a rule's status lists.
fn listed(status: &RuleStatus, now: Timestamp, colors: bool) -> String {
    let mut page = String::new();
    let clusters = &status.clusters;
    let mut table = Table::new(&[
        "CLUSTER", "STATE", "APPLIED", "FAILED", "WAITING", "REASON", "SINCE",
    ]);
    for cluster in clusters {
        let state = format!("{:?}", cluster.state);
        let tone = tone(&state);
        table.row(vec![
            cluster.name.as_str().into(),
            Cell::toned(state, tone),
            cluster.applied.to_string().into(),
            cluster.failed.to_string().into(),
            cluster.waiting.to_string().into(),
            cluster.reason.as_str().into(),
            age(cluster.since.as_ref().map(|time| time.0), now).into(),
        ]);
    }
    if !table.is_empty() {
        let _ = write!(page, "\n{}", table.text(colors));
    }
    if status.truncated {
        let all = status.summary.unwrap_or_default().clusters;
        let more = all - i64::try_from(clusters.len()).unwrap_or_default();
        let _ = writeln!(
            page,
            "... and {more} more, none worse than these: -o wide asks the hub for all"
        );
    }
    let mut with_message = clusters
        .iter()
        .filter(|cluster| !cluster.message.is_empty())
        .peekable();
    if with_message.peek().is_some() {
        page += "\nWhat is wrong:\n";
    }
    for cluster in with_message {
        let _ = writeln!(page, "  {}: {}", cluster.name, cluster.message);
    }
    page
}

/// The members as a table.
pub fn members(objects: &[MemberCluster], wide: bool, now: Timestamp) -> Table {
    let mut header = vec![
        "NAME",
        "READY",
        "STATUS",
        "CONNECTED",
        "SINCE",
        "AGENT",
        "KUBERNETES",
        "CERTIFICATE",
        "AGE",
    ];
    if wide {
        header.extend(["LABELS", "REASON", "MESSAGE"]);
    }
    let mut table = Table::new(&header);
    for object in objects {
        let (ready, connected) = (
            object.condition(ConditionType::Ready),
            object.condition(ConditionType::Connected),
        );
        let status = object.status.clone().unwrap_or_default();
        let mut row: Vec<Cell> = vec![
            member_name(object).into(),
            status_cell(ready.status),
            or(ready.reason, "NotSeenByTheHub").into(),
            status_cell(connected.status),
            age(connected.since, now).into(),
            status.agent_version.unwrap_or_default().into(),
            status.kubernetes_version.unwrap_or_default().into(),
            certificate(object, now),
            age(created(&object.metadata), now).into(),
        ];
        if wide {
            row.push(labels_text(object.metadata.labels.as_ref()).into());
            row.push(connected.reason.into());
            row.push(ready.message.into());
        }
        table.row(row);
    }
    table
}

/// Returns one line about the members, below the rules.
pub fn members_in_short(objects: &[MemberCluster]) -> String {
    let away: Vec<&str> = objects
        .iter()
        .filter(|object| !object.condition(ConditionType::Connected).is_true())
        .map(member_name)
        .collect();
    let count = objects.len();
    match (count, away.as_slice()) {
        (0, _) => {
            "No cluster has joined yet: kubectl runnel join NAME --context CONTEXT".to_owned()
        }
        (_, []) => format!("Members: all {count} connected"),
        (_, away) => {
            let shown = away.iter().take(5).copied().collect::<Vec<_>>().join(", ");
            let more = if away.len() > 5 { ", ..." } else { "" };
            format!(
                "Members: {} of {count} connected; not: {shown}{more}",
                count - away.len()
            )
        }
    }
}

fn certificate(object: &MemberCluster, now: Timestamp) -> Cell {
    let status = object.status.as_ref();
    let Some(certificate) = status.and_then(|status| status.certificate.as_ref()) else {
        return Cell::default();
    };
    let end = certificate.expires_at.0;
    if end <= now {
        return Cell::toned(format!("expired {} ago", age(Some(end), now)), Tone::Bad);
    }
    Cell::from(span(end.as_second() - now.as_second()))
}

fn status_cell(status: &str) -> Cell {
    let unknown = ConditionStatus::Unknown.as_str();
    Cell::toned(or(status, unknown), Tone::of_status(status))
}

fn short_name(rule: &Rule) -> String {
    match rule {
        Rule::DistributionRule(_) => rule.name().to_owned(),
        Rule::ClusterDistributionRule(_) => format!("cdrule/{}", rule.name()),
    }
}

fn or<'a>(text: &'a str, instead: &'a str) -> &'a str {
    if text.is_empty() { instead } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    const NOW: &str = "2026-01-01T01:00:00Z";

    fn typed<T: DeserializeOwned>(object: Value) -> T {
        serde_json::from_value(object).unwrap()
    }

    fn failing() -> Rule {
        typed(json!({
            "kind": "DistributionRule",
            "metadata": {"name": "rule-codis-test", "namespace": "ns-codis-test", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"sources": [], "clusters": {}},
            "status": {
                "summary": {"sources": 2, "clusters": 2, "clustersReady": 1, "copies": 8, "copiesApplied": 7, "copiesFailed": 1, "copiesWaiting": 0},
                "display": {"clusters": "1/2", "copies": "7/8"},
                "conditions": [
                    {"type": "Ready", "status": "False", "reason": "Conflict", "message": "1 copy failed in member-2", "lastTransitionTime": "2026-01-01T00:59:00Z"},
                ],
                "clusters": [
                    {"name": "member-2", "state": "Failed", "applied": 3, "failed": 1, "waiting": 0, "reason": "Conflict", "message": "configmaps/default/a: not Runnel's", "since": "2026-01-01T00:59:00Z"},
                    {"name": "member-1", "state": "Ready", "applied": 4, "failed": 0, "waiting": 0, "reason": "AllApplied", "since": "2026-01-01T00:10:00Z"},
                ],
                "truncated": false,
            },
        }))
    }

    #[test]
    fn rule_table_equals_that_of_kubectl() {
        let fresh = typed(
            json!({"kind": "ClusterDistributionRule", "metadata": {"name": "ca", "creationTimestamp": NOW}, "spec": {"sources": [], "clusters": {}}}),
        );
        let golden = "\
NAMESPACE       NAME              READY     CLUSTERS   COPIES   FAILED   REASON            AGE
ns-codis-test   rule-codis-test   False     1/2        7/8      1        Conflict          60m
<none>          cdrule/ca         Unknown   <none>     <none>   0        NotSeenByTheHub   0s
";
        assert_eq!(
            rules(&[failing(), fresh], true, false, NOW.parse().unwrap()).text(false),
            golden
        );
        let wide = rules(&[failing()], false, true, NOW.parse().unwrap()).text(false);
        assert!(
            wide.starts_with("NAME ")
                && wide.contains("2         0         <none>    1 copy failed in member-2"),
            "{wide}"
        );
    }

    #[test]
    fn rule_page_lists_failures_by_cluster() {
        let golden = "\
Rule      DistributionRule ns-codis-test/rule-codis-test
Ready     False Conflict: 1 copy failed in member-2 (60s)
Sources   2
Clusters  1 of 2 ready
Copies    7 of 8 applied, 1 failed, 0 waiting

CLUSTER    STATE    APPLIED   FAILED   WAITING   REASON       SINCE
member-2   Failed   3         1        0         Conflict     60s
member-1   Ready    4         0        0         AllApplied   50m

What is wrong:
  member-2: configmaps/default/a: not Runnel's
";
        assert_eq!(rule(&failing(), NOW.parse().unwrap(), false), golden);
    }

    #[test]
    fn member_table_shows_connections() {
        let member = |name: &str, status: &str, reason: &str, expires: &str| {
            let certificate = (!expires.is_empty()).then(|| json!({"expiresAt": expires}));
            typed(json!({
                "metadata": {"name": name, "labels": {"env": "prod"}, "creationTimestamp": "2026-01-01T00:00:00Z"},
                "spec": {"accepted": true},
                "status": {
                    "agentVersion": "0.1.0",
                    "certificate": certificate,
                    "conditions": [
                        {"type": "Ready", "status": status, "reason": reason, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"},
                        {"type": "Connected", "status": status, "reason": "x", "message": "", "lastTransitionTime": "2026-01-01T00:58:00Z"},
                    ],
                },
            }))
        };
        let all = [
            member("a", "True", "MemberReady", "2026-01-02T00:00:00Z"),
            member("b", "Unknown", "SessionLost", "2026-01-01T00:00:00Z"),
            member("c", "True", "Cordoned", ""),
        ];
        let golden = "\
NAME   READY     STATUS        CONNECTED   SINCE   AGENT   KUBERNETES   CERTIFICATE       AGE
a      True      MemberReady   True        2m      0.1.0   <none>       23h               60m
b      Unknown   SessionLost   Unknown     2m      0.1.0   <none>       expired 60m ago   60m
c      True      Cordoned      True        2m      0.1.0   <none>       <none>            60m
";
        assert_eq!(
            members(&all, false, NOW.parse().unwrap()).text(false),
            golden
        );
        assert_eq!(members_in_short(&all), "Members: 2 of 3 connected; not: b");
        assert_eq!(members_in_short(&all[..1]), "Members: all 1 connected");
    }
}

#[cfg(test)]
#[path = "recorded_tests.rs"]
mod recorded;
