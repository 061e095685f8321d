//! Rules and members, as a person reads them.
use std::fmt::Write;

use jiff::Timestamp;
use serde_json::Value;

use super::detail::tone;
use super::observed_json::{condition, full_name, list, number, text, time};
use super::table::{Cell, Table, Tone, age};
use runnel_api::conditions::ConditionType;

/// The rules as a table.
pub fn rules(objects: &[Value], namespaces: bool, wide: bool, now: Timestamp) -> Table {
    let mut header = vec![
        "NAME", "READY", "CLUSTERS", "COPIES", "FAILED", "REASON", "AGE",
    ];
    if namespaces {
        header.insert(0, "NAMESPACE");
    }
    if wide {
        header.extend(["SOURCES", "WAITING", "MESSAGE"]);
    }
    let mut table = Table::new(&header);
    for object in objects {
        let ready = condition(object, ConditionType::Ready);
        let count = |name: &str| number(object, &format!("/status/summary/{name}"));
        let failed = count("copiesFailed");
        let reason = if is_suspended(object) {
            "Suspended"
        } else {
            ready.reason
        };
        let mut row: Vec<Cell> = vec![
            short_name(object).into(),
            Cell::toned(or(ready.status, "Unknown"), Tone::of_status(ready.status)),
            text(object, "/status/display/clusters").into(),
            text(object, "/status/display/copies").into(),
            Cell::toned(
                failed.to_string(),
                if failed > 0 { Tone::Bad } else { Tone::Plain },
            ),
            or(reason, "NotSeenByTheHub").into(),
            age(time(object, "/metadata/creationTimestamp"), now).into(),
        ];
        if namespaces {
            row.insert(0, text(object, "/metadata/namespace").into());
        }
        if wide {
            row.push(count("sources").to_string().into());
            row.push(count("copiesWaiting").to_string().into());
            row.push(ready.message.into());
        }
        table.row(row);
    }
    table
}

/// One rule with the clusters and failures of its status.
pub fn rule(object: &Value, now: Timestamp, colours: bool) -> String {
    let mut page = heading(object, now, colours);
    if object.pointer("/status/summary").is_some() {
        page += &listed(object, now, colours);
    }
    page
}

/// What a rule's status says of all its clusters together.
pub fn heading(object: &Value, now: Timestamp, colours: bool) -> String {
    let count = |name: &str| number(object, &format!("/status/summary/{name}"));
    let mut page = String::new();
    let mut line = |title: &str, content: &str| _ = writeln!(page, "{title:<9} {content}");
    line(
        "Rule",
        &format!("{} {}", text(object, "/kind"), full_name(object)),
    );
    for kind in ConditionType::ALL {
        let seen = condition(object, kind);
        if seen.status.is_empty() {
            continue;
        }
        let tone = match (kind, seen.status) {
            (ConditionType::Ready | ConditionType::Applied | ConditionType::Granted, status) => {
                Tone::of_status(status)
            }
            _ => Tone::Odd,
        };
        let since = age(seen.since, now);
        // What Ready said already is not said again.
        let again = kind != ConditionType::Ready
            && seen.message == condition(object, ConditionType::Ready).message;
        let message = if again { "as above" } else { seen.message };
        line(
            kind.as_str(),
            &format!(
                "{} {}: {} ({since})",
                tone.paint(seen.status, colours),
                seen.reason,
                message
            ),
        );
    }
    if object.pointer("/status/summary").is_none() {
        line(
            "",
            "the hub has not looked at it yet: `kubectl runnel doctor` tells whether it runs",
        );
        return page;
    }
    if let Some(rollout) = object.pointer("/status/rollout") {
        line("Rollout", &rollout_in_short(rollout, now));
    }
    line("Sources", &count("sources").to_string());
    line(
        "Clusters",
        &format!("{} of {} ready", count("clustersReady"), count("clusters")),
    );
    line(
        "Copies",
        &format!(
            "{} of {} applied, {} failed, {} waiting{}",
            count("copiesApplied"),
            count("copies"),
            count("copiesFailed"),
            count("copiesWaiting"),
            match count("copiesDrifted") {
                0 => String::new(),
                drifted => format!(", {drifted} drifted"),
            },
        ),
    );
    if condition(object, ConditionType::DryRun).holds() {
        let (create, update) = (count("copiesToCreate"), count("copiesToUpdate"));
        line(
            "Dry run",
            &format!(
                "would create {create}, update {update}, delete {}",
                count("copiesToDelete")
            ),
        );
    }
    page
}

/// How far a rollout has come.
fn rollout_in_short(rollout: &Value, now: Timestamp) -> String {
    let phase = text(rollout, "/phase");
    let since = |field: &str| age(time(rollout, field), now);
    let far = format!(
        "{} of {} clusters reached",
        number(rollout, "/clustersReached"),
        number(rollout, "/clusters")
    );
    let done = format!(
        "{} applied, {} failed",
        number(rollout, "/clustersApplied"),
        number(rollout, "/clustersFailed")
    );
    let times = match phase {
        "Reverting" | "Reverted" => {
            let back = format!("{} rolled back", number(rollout, "/clustersReverted"));
            return format!(
                "{phase}, wave {}: {far}, {done}, {back} (began {} ago)",
                number(rollout, "/wave"),
                since("/startedAt")
            );
        }
        "Completed" => format!("ended {} ago", since("/endedAt")),
        "Soaking" => format!(
            "began {} ago, applied {} ago",
            since("/startedAt"),
            since("/appliedAt")
        ),
        _ => format!("began {} ago", since("/startedAt")),
    };
    let overtaken = match number(rollout, "/superseded") {
        0 => String::new(),
        more => format!("; {more} superseded in {}", since("/unfinishedSince")),
    };
    format!(
        "{phase}, wave {}: {far}, {done} ({times}{overtaken})",
        number(rollout, "/wave")
    )
}

/// The clusters that a rule's status lists.
fn listed(object: &Value, now: Timestamp, colours: bool) -> String {
    let mut page = String::new();
    let count = |name: &str| number(object, &format!("/status/summary/{name}"));
    let clusters = list(object, "/status/clusters");
    let mut table = Table::new(&[
        "CLUSTER", "STATE", "APPLIED", "FAILED", "WAITING", "REASON", "SINCE",
    ]);
    for cluster in clusters {
        let state = text(cluster, "/state");
        table.row(vec![
            text(cluster, "/name").into(),
            Cell::toned(state, tone(state)),
            number(cluster, "/applied").to_string().into(),
            number(cluster, "/failed").to_string().into(),
            number(cluster, "/waiting").to_string().into(),
            text(cluster, "/reason").into(),
            age(time(cluster, "/since"), now).into(),
        ]);
    }
    if !table.is_empty() {
        let _ = write!(page, "\n{}", table.text(colours));
    }
    if object.pointer("/status/truncated").and_then(Value::as_bool) == Some(true) {
        let more = count("clusters") - i64::try_from(clusters.len()).unwrap_or_default();
        let _ = writeln!(
            page,
            "... and {more} more, none worse than these: -o wide asks the hub for all"
        );
    }
    let reported: Vec<&Value> = clusters
        .iter()
        .filter(|cluster| !text(cluster, "/message").is_empty())
        .collect();
    if !reported.is_empty() {
        page += "\nWhat is wrong:\n";
    }
    for cluster in reported {
        let _ = writeln!(
            page,
            "  {}: {}",
            text(cluster, "/name"),
            text(cluster, "/message")
        );
    }
    page
}

/// The members as a table.
pub fn members(objects: &[Value], wide: bool, now: Timestamp) -> Table {
    let mut header = vec![
        "NAME",
        "ACCEPTED",
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
        let (accepted, connected) = (
            condition(object, ConditionType::Accepted),
            condition(object, ConditionType::Connected),
        );
        let leaving = object.pointer("/spec/leaving").and_then(Value::as_bool) == Some(true);
        let accepted_cell = match (leaving, accepted.reason) {
            (true, "Drained") => Cell::toned("Drained", Tone::Odd),
            (true, _) => Cell::toned("Leaving", Tone::Odd),
            _ => Cell::toned(
                or(accepted.status, "Unknown"),
                Tone::of_status(accepted.status),
            ),
        };
        let mut row: Vec<Cell> = vec![
            text(object, "/metadata/name").into(),
            accepted_cell,
            Cell::toned(
                or(connected.status, "Unknown"),
                Tone::of_status(connected.status),
            ),
            age(connected.since, now).into(),
            text(object, "/status/agentVersion").into(),
            text(object, "/status/kubernetesVersion").into(),
            certificate(object, now),
            age(time(object, "/metadata/creationTimestamp"), now).into(),
        ];
        if wide {
            row.push(labels(object).into());
            row.push(connected.reason.into());
            row.push(connected.message.into());
        }
        table.row(row);
    }
    table
}

/// One sentence about the members, for below the rules.
pub fn members_in_short(objects: &[Value]) -> String {
    let away: Vec<&str> = objects
        .iter()
        .filter(|object| !condition(object, ConditionType::Connected).holds())
        .map(|object| text(object, "/metadata/name"))
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

fn certificate(object: &Value, now: Timestamp) -> Cell {
    let Some(end) = time(object, "/status/certificate/expiresAt") else {
        return Cell::default();
    };
    if end <= now {
        return Cell::toned(format!("expired {} ago", age(Some(end), now)), Tone::Bad);
    }
    Cell::from(super::table::span(end.as_second() - now.as_second()))
}

fn labels(object: &Value) -> String {
    let labels = object
        .pointer("/metadata/labels")
        .and_then(Value::as_object);
    let pairs = labels
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()));
    pairs.collect::<Vec<_>>().join(",")
}

fn short_name(object: &Value) -> String {
    let name = text(object, "/metadata/name");
    if text(object, "/kind") == "ClusterDistributionRule" {
        format!("cdrule/{name}")
    } else {
        name.to_owned()
    }
}

fn is_suspended(object: &Value) -> bool {
    object.pointer("/spec/suspend").and_then(Value::as_bool) == Some(true)
}

fn or<'a>(text: &'a str, instead: &'a str) -> &'a str {
    if text.is_empty() { instead } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const NOW: &str = "2026-01-01T01:00:00Z";

    fn failing() -> Value {
        json!({
            "kind": "DistributionRule",
            "metadata": {"name": "rule-codis-test", "namespace": "ns-codis-test", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {},
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
        })
    }

    #[test]
    fn the_rules_read_as_kubectl_shows_them() {
        let fresh = json!({"kind": "ClusterDistributionRule", "metadata": {"name": "ca", "creationTimestamp": NOW}, "spec": {}});
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
                && wide.contains("2         0         1 copy failed in member-2"),
            "{wide}"
        );
    }

    #[test]
    fn one_rule_says_what_is_wrong_and_where() {
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
    fn members_say_whether_they_are_connected() {
        let member = |name: &str, status: &str, expires: &str| {
            json!({
                "metadata": {"name": name, "labels": {"env": "prod"}, "creationTimestamp": "2026-01-01T00:00:00Z"},
                "spec": {"accepted": true, "leaving": name == "c"},
                "status": {
                    "agentVersion": "0.1.0",
                    "certificate": {"expiresAt": expires},
                    "conditions": [
                        {"type": "Accepted", "status": "True", "reason": "Accepted"},
                        {"type": "Connected", "status": status, "reason": "x", "lastTransitionTime": "2026-01-01T00:58:00Z"},
                    ],
                },
            })
        };
        let all = [
            member("a", "True", "2026-01-02T00:00:00Z"),
            member("b", "Unknown", "2026-01-01T00:00:00Z"),
            member("c", "True", ""),
        ];
        let golden = "\
NAME   ACCEPTED   CONNECTED   SINCE   AGENT   KUBERNETES   CERTIFICATE       AGE
a      True       True        2m      0.1.0   <none>       23h               60m
b      True       Unknown     2m      0.1.0   <none>       expired 60m ago   60m
c      Leaving    True        2m      0.1.0   <none>       <none>            60m
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
