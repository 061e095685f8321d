//! The output of `kubectl runnel plan`.
use std::collections::BTreeMap;
use std::fmt::Write;

use runnel_api::{PlannedCluster, PlannedCopy, PlannedRule, PlannedSource, RulePlanStatus};
use runnel_proto::closed_list::Verdict;
use runnel_proto::model::SourceRef;
use serde_json::{Map, Value, json};

use super::parse::ArgumentError;
use super::table::Tone;
use super::wrap;

/// Returns the tone of a verdict.
fn tone(verdict: Verdict) -> Tone {
    use Verdict::{
        AdoptIfEqual, Blocked, Change, Conflict, Create, Denied, Forbidden, HandOver, Invalid,
        Noop, Refused, Remove, Retain, TakeOver, Unchanged, Wait,
    };
    match verdict {
        Create | Change => Tone::Good,
        TakeOver | AdoptIfEqual | Remove | Retain | HandOver | Wait | Noop => Tone::Warning,
        Blocked | Conflict | Denied | Forbidden | Invalid | Refused => Tone::Bad,
        Unchanged => Tone::Plain,
    }
}

/// The state of a rule that a plan is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The saved rule.
    Saved,
    /// The rule of a file.
    Edited,
    /// Once it is deleted.
    Deleted,
    /// The saved rule with another object that is changed.
    Changed,
}

/// The preview of one rule, or of the rules that another changed object concerns.
pub struct PlanReport {
    /// The display name of the rule.
    pub rule: String,
    /// The state of the rule.
    pub state: State,
    /// Whether the object is saved.
    pub exists: bool,
    /// What the rule would do.
    pub planned: PlannedRule,
    /// The rules that change, where it is about another object than a rule.
    pub rules: Vec<PlanReport>,
    /// How many more rules change.
    pub more_rules: i64,
}

impl PlanReport {
    /// Creates the report of an answer about the object with this display name.
    pub fn new(rule: String, state: State, answer: RulePlanStatus) -> Self {
        let mut report = Self {
            rule,
            state,
            exists: answer.exists,
            planned: PlannedRule {
                notes: answer.notes,
                ..PlannedRule::default()
            },
            rules: vec![],
            more_rules: answer.more_rules,
        };
        let mut rules = answer.rules.into_iter();
        if report.concerns_many_rules() {
            let changed = |planned: PlannedRule| Self {
                rule: called(&planned.kind, &planned.namespace, &planned.name),
                state: State::Changed,
                exists: true,
                planned,
                rules: vec![],
                more_rules: 0,
            };
            report.rules = rules.map(changed).collect();
        } else if let Some(planned) = rules.next() {
            report.planned = planned;
        }
        report
    }

    /// Whether it is about another object than a rule.
    fn concerns_many_rules(&self) -> bool {
        ["DistributionGrant ", "ManifestBundle ", "MemberCluster "]
            .iter()
            .any(|kind| self.rule.starts_with(kind))
    }

    /// Whether something would fail or be blocked, or may fail or be blocked.
    pub fn would_fail(&self) -> bool {
        let fails = |copy: &PlannedCopy| {
            Verdict::parse(&copy.verdict).is_some_and(|verdict| {
                verdict == Verdict::AdoptIfEqual || tone(verdict) == Tone::Bad
            })
        };
        let is_left_out = |source: &PlannedSource| source.state != "Refused";
        self.rules.iter().any(Self::would_fail)
            || self.planned.incomplete
            || self.planned.copies.iter().any(fails)
            || self.planned.sources.iter().any(is_left_out)
    }

    /// The verdicts of any copy, with their numbers.
    fn counts(&self) -> Vec<(Verdict, usize)> {
        let count = |verdict: Verdict| {
            let copies = self.planned.copies.iter();
            copies
                .filter(|copy| copy.verdict == verdict.as_str())
                .count()
        };
        let all = Verdict::all().map(|verdict| (verdict, count(verdict)));
        all.filter(|(_, count)| *count > 0).collect()
    }

    /// Formats the plan as text of this width.
    pub fn text(&self, width: usize, colors: bool) -> String {
        let mut out = String::new();
        let planned = &self.planned;
        let state = match (self.state, self.exists) {
            (State::Deleted, _) => "a delete",
            (State::Saved, _) => "as it is saved",
            (State::Changed, _) => "changes with it",
            (State::Edited, true) => "an edit",
            (State::Edited, false) => "new",
        };
        if self.concerns_many_rules() {
            return self.many_rules_text(state, width, colors);
        }
        let sources = if planned.sent == 1 {
            "source"
        } else {
            "sources"
        };
        let clusters = if planned.clusters.len() == 1 {
            "cluster"
        } else {
            "clusters"
        };
        let all = planned.clusters.len();
        let _ = writeln!(
            out,
            "{} ({state}): {} {sources}, {all} {clusters}",
            self.rule, planned.sent
        );
        let counts: Vec<_> = self.counts();
        let counts = counts
            .iter()
            .map(|(verdict, count)| tone(*verdict).paint(&format!("{verdict} {count}"), colors));
        let counts: Vec<_> = counts.collect();
        if !counts.is_empty() {
            let _ = writeln!(out, "  {}", counts.join(", "));
        }
        for note in &planned.notes {
            wrapped(&mut out, "  ", note, width);
        }
        for source in &planned.sources {
            let place = if source.cluster.is_empty() {
                String::new()
            } else {
                format!(" in {}", source.cluster)
            };
            let _ = writeln!(
                out,
                "  {}{place}: {}",
                source.source,
                Tone::Bad.paint(&source.state, colors)
            );
            wrapped(&mut out, "    ", &source.message, width);
        }
        let mut by_cluster: BTreeMap<&str, Vec<&PlannedCopy>> = BTreeMap::new();
        for copy in &planned.copies {
            by_cluster.entry(&copy.cluster).or_default().push(copy);
        }
        for cluster in &planned.clusters {
            self.cluster(
                &mut out,
                cluster,
                by_cluster.get(cluster.name.as_str()),
                width,
                colors,
            );
        }
        out
    }

    fn many_rules_text(&self, state: &str, width: usize, colors: bool) -> String {
        let count = |rules: usize| {
            if rules == 1 {
                "1 rule changes".to_owned()
            } else {
                format!("{rules} rules change")
            }
        };
        let (shown, more) = (
            self.rules.len(),
            usize::try_from(self.more_rules).unwrap_or_default(),
        );
        let mut out = format!("{} ({state}): {}\n", self.rule, count(shown + more));
        for note in &self.planned.notes {
            wrapped(&mut out, "  ", note, width);
        }
        for rule in &self.rules {
            let _ = write!(out, "\n{}", rule.text(width, colors));
        }
        if more > 0 {
            let which = "at most 50 are listed, and only those that you may read";
            let more = if more == 1 {
                "1 more rule changes".to_owned()
            } else {
                format!("{more} more rules change")
            };
            let _ = writeln!(out, "\nand {more} ({which})");
        }
        out
    }

    fn cluster(
        &self,
        out: &mut String,
        cluster: &PlannedCluster,
        copies: Option<&Vec<&PlannedCopy>>,
        width: usize,
        colors: bool,
    ) {
        let wave = if cluster.wave == 0 {
            String::new()
        } else {
            format!(" (wave {})", cluster.wave)
        };
        let _ = writeln!(out, "\n{}{wave}", cluster.name);
        wrapped(out, "  ", &cluster.message, width);
        let rows: Vec<_> = copies
            .into_iter()
            .flatten()
            .map(|copy| (*copy, cells(copy)))
            .collect();
        let widths: Vec<usize> = (0..4)
            .map(|column| {
                rows.iter()
                    .map(|(_, cells)| cells[column].chars().count())
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        let mut before = String::new();
        for (copy, cells) in &rows {
            let tone = Verdict::parse(&copy.verdict).map_or(Tone::Warning, tone);
            let mut line = format!("  {}", tone.paint(&cells[0], colors));
            let mut at = cells[0].chars().count() + 2;
            for (column, cell) in cells.iter().enumerate().skip(1) {
                let _ = write!(
                    line,
                    "{}{cell}",
                    " ".repeat(widths[column - 1] - cells[column - 1].chars().count() + 2)
                );
                at += widths[column - 1] - cells[column - 1].chars().count()
                    + 2
                    + cell.chars().count();
            }
            let why = why(copy);
            // Beside it, where there is room; else below, and once for rows that follow each other.
            let beside = 2 + widths.iter().sum::<usize>() + 6;
            let fits = beside + 2 + why.chars().count() <= width;
            if fits && !why.is_empty() {
                let why = wrap::on_one_line(&why);
                let _ = write!(line, "{}{why}", " ".repeat((beside + 2).saturating_sub(at)));
            }
            let _ = writeln!(out, "{}", line.trim_end());
            if !fits && why != before {
                wrapped(out, "      ", &why, width);
            }
            for change in &copy.diff {
                wrap::wrapped(out, ("      ", "        "), change, width);
            }
            before = why;
        }
        if cluster.more > 0 {
            let _ = writeln!(out, "  ... and {} more", cluster.more);
        }
    }

    /// Formats the plan as JSON.
    pub fn value(&self) -> Value {
        let planned = &self.planned;
        let summary: Map<String, Value> = self
            .counts()
            .into_iter()
            .map(|(verdict, count)| (verdict.to_string(), json!(count)))
            .collect();
        if self.concerns_many_rules() {
            let rules: Vec<_> = self.rules.iter().map(Self::value).collect();
            return json!({
                "object": self.rule, "exists": self.exists, "delete": self.state == State::Deleted,
                "notes": planned.notes, "rules": rules, "moreRules": self.more_rules,
            });
        }
        json!({
            "rule": self.rule,
            "delete": self.state == State::Deleted,
            "exists": self.exists,
            "incomplete": planned.incomplete,
            "sent": planned.sent,
            "summary": summary,
            "notes": planned.notes,
            "sources": planned.sources,
            "clusters": planned.clusters,
            "copies": planned.copies,
        })
    }
}

/// Returns the display name of an object.
pub fn called(kind: &str, namespace: &str, name: &str) -> String {
    if namespace.is_empty() {
        format!("{kind} {name}")
    } else {
        format!("{kind} {namespace}/{name}")
    }
}

fn cells(copy: &PlannedCopy) -> [String; 4] {
    let known = SourceRef::parse(&copy.copy);
    let (resource, namespace, name) = match &known {
        Some(known) => (&*known.resource, &*known.namespace, &*known.name),
        None => (&*copy.copy, "", ""),
    };
    let kind = Some(&*copy.kind).filter(|kind| !kind.is_empty());
    [&*copy.verdict, namespace, kind.unwrap_or(resource), name].map(str::to_owned)
}

fn why(copy: &PlannedCopy) -> String {
    match (copy.reason.is_empty(), copy.message.is_empty()) {
        (_, true) => copy.reason.clone(),
        (true, false) => copy.message.clone(),
        (false, false) => format!("{}: {}", copy.reason, copy.message),
    }
}

fn wrapped(out: &mut String, indent: &str, text: &str, width: usize) {
    if !text.is_empty() {
        wrap::wrapped(out, (indent, indent), text, width);
    }
}

/// The rules, grants, member clusters and bundles of a file: its documents, and the items of lists.
///
/// # Errors
/// [`ArgumentError::Metadata`], with the name of the file.
pub fn rules(
    documents: Vec<Value>,
    file: &str,
    namespace: &str,
) -> Result<Vec<Value>, ArgumentError> {
    let items = |document: Value| match document.get("items").and_then(Value::as_array) {
        Some(items) => items.clone(),
        None => vec![document],
    };
    let mut rules = Vec::new();
    for mut rule in documents
        .into_iter()
        .flat_map(items)
        .filter(|document| !document.is_null())
    {
        let kind = rule
            .get("kind")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        match kind.as_str() {
            "DistributionRule" | "ManifestBundle" => {
                let metadata = rule.get_mut("metadata").and_then(Value::as_object_mut);
                let metadata = metadata.ok_or_else(|| ArgumentError::Metadata(file.to_owned()))?;
                metadata
                    .entry("namespace")
                    .or_insert_with(|| json!(namespace));
            }
            "ClusterDistributionRule" | "DistributionGrant" | "MemberCluster" => {}
            _ => continue,
        }
        rules.push(rule);
    }
    Ok(rules)
}

#[cfg(test)]
#[path = "planned_tests.rs"]
mod tests;
