//! One rule with all its clusters, as the hub reports them.
use std::fmt::Write;

use super::table::{Cell, Table, Tone};
use super::views::DeliveryRow;
use super::wrap::wrapped;
use runnel_api::{DeliveryStatus, healthy_of};

/// All lines of a sentence but the first are indented.
const INDENT: (&str, &str) = ("", "    ");

/// The place of the column with the healthy copies.
const HEALTHY: usize = 5;

/// Returns the word for a cluster that has not proved the newest revision of every source; `None`
/// if it has.
pub fn outdated_word(row: &DeliveryRow) -> Option<(&'static str, Tone)> {
    match (row.status.newest, row.status.proof.as_str()) {
        (_, "No") => Some(("Mismatch", Tone::Bad)),
        (false, _) => Some(("Older", Tone::Warning)),
        (true, "Yes") => None,
        (true, _) => Some(("Unproved", Tone::Warning)),
    }
}

/// Lists the clusters without the newest revision of every source, or without a proof of it. The
/// sentences below the table have the given width.
pub fn outdated(rows: &[DeliveryRow], width: usize, colors: bool) -> String {
    let old: Vec<_> = rows
        .iter()
        .filter_map(|row| Some((row, outdated_word(row)?)))
        .collect();
    let (all, mut output) = (rows.len(), String::new());
    if old.is_empty() {
        let head = format!(
            "Every cluster ({all}) holds the newest revision of every source, and has proved it."
        );
        wrapped(&mut output, INDENT, &head, width);
        return output;
    }
    let older = old.iter().filter(|(row, _)| !row.status.newest).count();
    let head = match older {
        0 => None,
        1 => Some(format!(
            "1 of {all} clusters does not have the newest revision of every source."
        )),
        more => Some(format!(
            "{more} of {all} clusters do not have the newest revision of every source."
        )),
    };
    let unproved = match old.len() - older {
        0 => None,
        1 => Some(format!(
            "1 of {all} reports the newest revision of every source, and has not proved it."
        )),
        more => Some(format!(
            "{more} of {all} report the newest revision of every source, and have not proved it."
        )),
    };
    head.into_iter()
        .chain(unproved)
        .for_each(|head| wrapped(&mut output, INDENT, &head, width));
    let mut table = Table::new(&[
        "CLUSTER", "HOLDS", "STATE", "APPLIED", "FAILED", "WAITING", "REASON",
    ]);
    for (row, (word, meaning)) in &old {
        let mut cells = state_cells(row);
        cells.insert(1, Cell::toned(*word, *meaning));
        table.row(cells);
    }
    output += &table.text(colors);
    let reported = old.iter().filter(|(row, _)| !row.status.message.is_empty());
    for (number, (row, _)) in reported.enumerate() {
        output.push_str(if number == 0 { "\n" } else { "" });
        wrapped(
            &mut output,
            INDENT,
            &format!("{}: {}", row.cluster, row.status.message),
            width,
        );
    }
    output
}

/// All clusters as a table. It has a column for the health of copies if any copy has one.
pub fn table(rows: &[DeliveryRow]) -> Table {
    let has_health = rows.iter().any(|row| row.status.with_health > 0);
    let mut header = vec![
        "CLUSTER", "STATE", "APPLIED", "FAILED", "WAITING", "REASON", "MESSAGE",
    ];
    if has_health {
        header.insert(HEALTHY, "HEALTHY");
    }
    let mut table = Table::new(&header);
    for row in rows {
        let mut cells = state_cells(row);
        if has_health {
            let status = &row.status;
            let healthy = healthy_of(status.healthy, status.with_health);
            cells.insert(HEALTHY, healthy.unwrap_or_default().into());
        }
        cells.push(row.status.message.as_str().into());
        table.row(cells);
    }
    table
}

/// All clusters, and below them what failed there.
pub fn clusters(rows: &[DeliveryRow], colors: bool) -> String {
    let mut output = table(rows).text(colors);
    let failures = rows.iter().flat_map(|row| {
        let failures = row.status.failures.iter();
        failures.map(move |one| (row, &one.copy, &one.reason, &one.message))
    });
    let title = "What failed (at most five copies per cluster):";
    write_copies(&mut output, title, failures);
    let feedback = rows.iter().flat_map(|row| {
        let feedback = row.status.feedback.iter();
        feedback.map(move |one| (row, &one.copy, &one.name, &one.value))
    });
    let title = "Feedback (of the first copies in each cluster):";
    write_copies(&mut output, title, feedback);
    output
}

/// Writes a line for each copy, if there are any.
fn write_copies<'a>(
    output: &mut String,
    title: &str,
    copies: impl Iterator<Item = (&'a DeliveryRow, &'a String, &'a String, &'a String)>,
) {
    for (number, (row, copy, what, text)) in copies.enumerate() {
        if number == 0 {
            let _ = writeln!(output, "\n{title}");
        }
        let _ = writeln!(output, "  {}: {copy}: {what}: {text}", row.cluster);
    }
}

/// Returns the cells for cluster, state, counts and reason.
fn state_cells(row: &DeliveryRow) -> Vec<Cell> {
    let DeliveryStatus {
        state,
        applied,
        failed,
        waiting,
        reason,
        ..
    } = &row.status;
    let state = format!("{state:?}");
    let tone = tone(&state);
    vec![
        row.cluster.as_str().into(),
        Cell::toned(state, tone),
        applied.to_string().into(),
        failed.to_string().into(),
        waiting.to_string().into(),
        reason.as_str().into(),
    ]
}

/// The meaning of a state.
pub fn tone(state: &str) -> Tone {
    match state {
        "Ready" => Tone::Good,
        "Failed" => Tone::Bad,
        _ => Tone::Warning,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runnel_api::ClusterState::{self, Failed, Ready, Unreachable};
    use runnel_api::{DeliveryFailure, DeliveryFeedback};

    fn row(
        name: &str,
        state: ClusterState,
        [applied, failed, waiting]: [i64; 3],
        reason: &str,
        message: &str,
    ) -> DeliveryRow {
        DeliveryRow {
            cluster: name.into(),
            status: DeliveryStatus {
                state,
                applied,
                failed,
                waiting,
                reason: reason.into(),
                message: message.into(),
                ..DeliveryStatus::default()
            },
            ..DeliveryRow::default()
        }
    }

    #[test]
    fn each_cluster_and_each_failure_has_a_line() {
        let message = "configmaps/default/a: not Runnel's";
        let mut failed = row("eu-1", Failed, [3, 1, 0], "Conflict", message);
        failed.status.failures.push(DeliveryFailure {
            copy: "configmaps/default/a".into(),
            reason: "Conflict".into(),
            message: "not Runnel's".into(),
        });
        let ready = row("eu-2", Ready, [4, 0, 0], "AllApplied", "");
        let golden = "\
CLUSTER   STATE    APPLIED   FAILED   WAITING   REASON       MESSAGE
eu-1      Failed   3         1        0         Conflict     configmaps/default/a: not Runnel's
eu-2      Ready    4         0        0         AllApplied   <none>

What failed (at most five copies per cluster):
  eu-1: configmaps/default/a: Conflict: not Runnel's
";
        assert_eq!(clusters(&[failed, ready.clone()], false), golden);
        assert!(!clusters(std::slice::from_ref(&ready), false).contains("failed"));
    }

    #[test]
    fn health_and_feedback_are_shown_where_copies_have_them() {
        let mut ready = row("eu-1", Ready, [4, 0, 0], "AllApplied", "");
        (ready.status.with_health, ready.status.healthy) = (2, 2);
        ready.status.feedback.push(DeliveryFeedback {
            copy: "deployments.apps/shop/web".into(),
            name: "ready".into(),
            value: "3".into(),
        });
        let without = row("eu-2", Ready, [2, 0, 0], "AllApplied", "");
        let golden = "\
CLUSTER   STATE   APPLIED   FAILED   WAITING   HEALTHY   REASON       MESSAGE
eu-1      Ready   4         0        0         2/2       AllApplied   <none>
eu-2      Ready   2         0        0         <none>    AllApplied   <none>

Feedback (of the first copies in each cluster):
  eu-1: deployments.apps/shop/web: ready: 3
";
        assert_eq!(clusters(&[ready, without], false), golden);
    }

    #[test]
    fn outdated_lists_clusters_without_the_newest_revision() {
        let proof = |newest, proof: &str, mut row: DeliveryRow| {
            row.status.newest = newest;
            row.status.proof = proof.into();
            row
        };
        let well = |name: &str| proof(true, "Yes", row(name, Ready, [12, 0, 0], "AllApplied", ""));
        let lost = "the agent is not connected; the counts are the last reported values";
        let differs = "its agent reports every copy as applied, but its proof does not match what the hub has sent";
        let denied = "configmaps/shop/settings: an admission webhook or policy of this cluster changes the copy whenever it is \
                      written; let it pass Runnel's copies, or leave the fields to it (ignoreFields): /data/color is \"blue\" \
                      instead of \"red\"";
        let older = proof(
            false,
            "NotCompared",
            row("eu-3", Failed, [11, 1, 0], "Denied", denied),
        );
        let away = proof(
            false,
            "NotCompared",
            row("ship-17", Unreachable, [12, 0, 0], "SessionLost", lost),
        );
        let wrong = proof(
            true,
            "No",
            row("us-1", Failed, [12, 0, 0], "DigestMismatch", differs),
        );
        let fresh = proof(
            true,
            "NotCompared",
            row("us-2", Ready, [12, 0, 0], "AllApplied", ""),
        );
        let all = [
            ("all is well", vec![well("eu-1"), well("eu-2")]),
            (
                "one is behind",
                vec![away.clone(), well("eu-1"), well("eu-2")],
            ),
            ("one cannot prove it", vec![wrong.clone(), well("eu-1")]),
            (
                "all of it",
                vec![older, wrong, away, fresh, well("eu-1"), well("eu-2")],
            ),
        ];
        for width in [80, 160] {
            let output = all
                .iter()
                .map(|(name, rows)| format!("== {name}\n{}", outdated(rows, width, false)));
            let output: Vec<String> = output.collect();
            assert!(
                output
                    .iter()
                    .flat_map(|text| text.lines())
                    .all(|line| line.chars().count() <= width)
            );
            insta::assert_snapshot!(format!("outdated_{width}"), output.join("\n"));
        }
    }
}
