//! The table of what was found.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::manifest::Manifest;

/// The most characters of a reason.
const REASON: usize = 600;

/// How a copy compares with the plain object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Verdict {
    /// The copy is equal, quiet, edited and removed.
    Equal,
    /// A Secret, which no bundle has.
    Secret,
    /// Neither cluster has the object.
    RefusedByBoth,
    /// Only Runnel writes it.
    RefusedByKubectl,
    /// Only kubectl writes it.
    RefusedByRunnel,
    /// Both write it, and the copy is not the same or not kept as it should be.
    Different,
}

impl Verdict {
    const ALL: [Self; 6] = [
        Self::Equal,
        Self::Secret,
        Self::RefusedByBoth,
        Self::RefusedByKubectl,
        Self::RefusedByRunnel,
        Self::Different,
    ];

    fn title(self) -> &'static str {
        match self {
            Self::Equal => "equal",
            Self::Secret => "Secrets",
            Self::RefusedByBoth => "refused by both",
            Self::RefusedByKubectl => "refused by kubectl only",
            Self::RefusedByRunnel => "refused by Runnel only",
            Self::Different => "different",
        }
    }

    /// Whether another attempt cannot change it.
    pub(super) fn is_settled(self) -> bool {
        matches!(self, Self::Equal | Self::Secret | Self::RefusedByBoth)
    }

    fn passes(self) -> bool {
        !matches!(self, Self::RefusedByRunnel | Self::Different)
    }
}

/// The result of one manifest.
#[derive(Clone, Debug)]
pub(super) struct Finding {
    /// How it compares.
    pub(super) verdict: Verdict,
    /// The cause, where it is not equal.
    pub(super) reason: String,
    /// Where the plan does not agree with what happened.
    pub(super) plan: Option<String>,
}

impl Finding {
    /// Verdict and reason on one line.
    pub(super) fn line(&self) -> String {
        format!("{}: {}", self.verdict.title(), short(&self.reason))
    }
}

/// A manifest with its result.
#[derive(Debug)]
struct ManifestRow {
    place: String,
    title: String,
    count: usize,
    finding: Finding,
}

/// The results of all manifests.
#[derive(Debug)]
pub(super) struct Report {
    rows: Vec<ManifestRow>,
}

impl Report {
    /// Joins manifests with their findings, by number.
    pub(super) fn new(manifests: &[Manifest], mut findings: BTreeMap<usize, Finding>) -> Self {
        let rows = manifests.iter().filter_map(|manifest| {
            Some(ManifestRow {
                place: manifest.place.clone(),
                title: manifest.title(),
                count: manifest.count,
                finding: findings.remove(&manifest.number)?,
            })
        });
        let mut rows: Vec<ManifestRow> = rows.collect();
        rows.sort_by(|one, two| {
            (one.finding.verdict, &one.place).cmp(&(two.finding.verdict, &two.place))
        });
        Self { rows }
    }

    /// Whether no manifest is different or refused by Runnel only.
    pub(super) fn passes(&self) -> bool {
        self.rows.iter().all(|row| row.finding.verdict.passes())
    }

    /// A line for each manifest that is not equal, one for each wrong plan, and the totals.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        let unequal = self
            .rows
            .iter()
            .filter(|row| row.finding.verdict != Verdict::Equal);
        _ = writeln!(
            text,
            "| result | manifest | place | reason |\n|---|---|---|---|"
        );
        for row in unequal {
            let (result, reason) = (row.finding.verdict.title(), short(&row.finding.reason));
            _ = writeln!(
                text,
                "| {result} | {} | {} | {reason} |",
                row.title, row.place
            );
        }
        let planned = self
            .rows
            .iter()
            .filter_map(|row| row.finding.plan.as_ref().map(|plan| (row, plan)));
        _ = writeln!(text, "\n| manifest | place | plan |\n|---|---|---|");
        let mut wrong_plans = 0;
        for (row, plan) in planned {
            wrong_plans += row.count;
            _ = writeln!(text, "| {} | {} | {} |", row.title, row.place, short(plan));
        }
        _ = writeln!(
            text,
            "\n| result | manifests | of them with different text |\n|---|---|---|"
        );
        for verdict in Verdict::ALL {
            let of_it = self
                .rows
                .iter()
                .filter(|row| row.finding.verdict == verdict);
            let (count, texts) =
                of_it.fold((0, 0), |(count, texts), row| (count + row.count, texts + 1));
            _ = writeln!(text, "| {} | {count} | {texts} |", verdict.title());
        }
        let all: usize = self.rows.iter().map(|row| row.count).sum();
        _ = writeln!(text, "| all | {all} | {} |", self.rows.len());
        _ = writeln!(text, "| wrong plan | {wrong_plans} | |\n");
        text
    }
}

/// A text on one line, and not in several columns.
fn short(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.replace('|', "\\|").chars().take(REASON).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(verdict: Verdict) -> Report {
        let finding = Finding {
            verdict,
            reason: "a |\n b".to_owned(),
            plan: None,
        };
        let row = ManifestRow {
            place: "a.yaml, document 1".to_owned(),
            title: "Pod p".to_owned(),
            count: 3,
            finding,
        };
        Report { rows: vec![row] }
    }

    #[test]
    fn row_has_result_place_and_reason() {
        let text = report(Verdict::Different).text();
        let line = r"| different | Pod p | a.yaml, document 1 | a \| b |";
        assert!(text.contains(line), "{text}");
        assert!(text.contains("| different | 3 | 1 |"), "{text}");
    }

    #[test]
    fn only_differences_and_refusals_by_runnel_fail() {
        let passes = Verdict::ALL.map(|verdict| report(verdict).passes());
        assert_eq!(passes, [true, true, true, true, false, false]);
    }
}
