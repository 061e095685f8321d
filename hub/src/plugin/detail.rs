//! One rule with all its clusters, as the hub itself tells them.
use std::fmt::Write;

use super::table::{Cell, Table, Tone};

/// How a rule stands in one cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterRow {
    /// The cluster.
    pub name: String,
    /// As in the rule's status.
    pub state: String,
    /// Copies that are applied, failed, waiting.
    pub counts: [i64; 3],
    /// One CamelCase word.
    pub reason: String,
    /// A sentence.
    pub message: String,
    /// Copies that failed: which, the reason, a sentence.
    pub failures: Vec<(String, String, String)>,
    /// Whether it holds the newest revision of every source.
    pub newest: bool,
}

/// The clusters that do not hold the newest revision of every source.
pub fn outdated(rows: &[ClusterRow], colours: bool) -> String {
    let old: Vec<ClusterRow> = rows.iter().filter(|row| !row.newest).cloned().collect();
    if old.is_empty() {
        return format!("Every cluster ({}) holds the newest revision of every source.\n", rows.len());
    }
    let verb = if old.len() == 1 { "does" } else { "do" };
    let head =
        format!("{} of {} clusters {verb} not hold the newest revision of every source:\n", old.len(), rows.len());
    head + &clusters(&old, colours)
}

/// All clusters, and below them what failed there.
pub fn clusters(rows: &[ClusterRow], colours: bool) -> String {
    let mut table = Table::new(&["CLUSTER", "STATE", "APPLIED", "FAILED", "WAITING", "REASON", "MESSAGE"]);
    for row in rows {
        let [applied, failed, waiting] = row.counts.map(|count| count.to_string());
        table.row(vec![
            row.name.as_str().into(),
            Cell::toned(row.state.as_str(), tone(&row.state)),
            applied.into(),
            failed.into(),
            waiting.into(),
            row.reason.as_str().into(),
            row.message.as_str().into(),
        ]);
    }
    let mut said = table.text(colours);
    if rows.iter().any(|row| !row.failures.is_empty()) {
        said += "\nWhat failed (at most five copies per cluster):\n";
    }
    for row in rows {
        for (copy, reason, message) in &row.failures {
            let _ = writeln!(said, "  {}: {copy}: {reason}: {message}", row.name);
        }
    }
    said
}

/// What a state means.
pub fn tone(state: &str) -> Tone {
    match state {
        "Ready" => Tone::Good,
        "Failed" => Tone::Bad,
        _ => Tone::Odd,
    }
}

/// The port that `kubectl port-forward` listens on, as it says it first.
pub fn forwarded_port(line: &str) -> Option<u16> {
    let rest = line.strip_prefix("Forwarding from 127.0.0.1:")?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cluster_and_each_failure_has_a_line() {
        let failed = ClusterRow {
            name: "eu-1".into(),
            state: "Failed".into(),
            counts: [3, 1, 0],
            reason: "Conflict".into(),
            message: "configmaps/default/a: not Runnel's".into(),
            failures: vec![("configmaps/default/a".into(), "Conflict".into(), "not Runnel's".into())],
            newest: false,
        };
        let ready = ClusterRow {
            name: "eu-2".into(),
            state: "Ready".into(),
            counts: [4, 0, 0],
            reason: "AllApplied".into(),
            ..ClusterRow::default()
        };
        let golden = "\
CLUSTER   STATE    APPLIED   FAILED   WAITING   REASON       MESSAGE
eu-1      Failed   3         1        0         Conflict     configmaps/default/a: not Runnel's
eu-2      Ready    4         0        0         AllApplied   <none>

What failed (at most five copies per cluster):
  eu-1: configmaps/default/a: Conflict: not Runnel's
";
        assert_eq!(clusters(&[failed, ready.clone()], false), golden);
        assert!(!clusters(std::slice::from_ref(&ready), false).contains("failed"));
        let newest = ClusterRow { newest: true, ..ready.clone() };
        assert_eq!(
            outdated(std::slice::from_ref(&newest), false),
            "Every cluster (1) holds the newest revision of every source.\n"
        );
        let old = outdated(&[ready, newest], false);
        assert!(
            old.starts_with("1 of 2 clusters does not hold the newest revision of every source:\nCLUSTER"),
            "{old}"
        );
        assert_eq!(old.matches("eu-2").count(), 1);
    }

    #[test]
    fn the_forwarded_port_is_read() {
        assert_eq!(forwarded_port("Forwarding from 127.0.0.1:41237 -> 8443"), Some(41237));
        for other in ["", "Forwarding from [::1]:41237 -> 8443", "error: nothing", "Forwarding from 127.0.0.1:x -> 1"] {
            assert_eq!(forwarded_port(other), None, "{other}");
        }
    }
}
