//! The output of `kubectl runnel plan`.
use std::collections::BTreeMap;
use std::fmt::Write;

use runnel_proto::closed_list::Verdict;
use runnel_proto::wire::{PlanCluster, PlanCopy, PlanPage, PlanSource};
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
    /// The saved rule with a changed grant or member cluster.
    Changed,
}

/// The preview of one rule, or of the rules that a changed grant or member cluster concerns.
pub struct PlanReport {
    /// The display name of the rule.
    pub rule: String,
    /// The state of the rule.
    pub state: State,
    /// The pages of the hub's answer, joined.
    pub answer: PlanPage,
    /// The rules that change, where it is about a grant or a member cluster.
    pub rules: Vec<PlanReport>,
}

impl PlanReport {
    /// All pages of an answer in one.
    pub fn of(rule: String, state: State, pages: impl IntoIterator<Item = PlanPage>) -> Self {
        let mut pages = pages.into_iter();
        let answer = pages.next().unwrap_or_default();
        let mut planned = Self {
            rule,
            state,
            answer,
            rules: vec![],
        };
        for page in pages {
            match (&page.rule, planned.rules.last_mut()) {
                (Some(named), _) => {
                    let rule = called(&named.kind, &named.namespace, &named.name);
                    planned.rules.push(Self {
                        rule,
                        state: State::Changed,
                        answer: page,
                        rules: vec![],
                    });
                }
                (None, Some(rule)) => rule.answer.copies.extend(page.copies),
                (None, None) => planned.answer.copies.extend(page.copies),
            }
        }
        planned
    }

    /// Whether it is about a grant or a member cluster.
    fn concerns_many_rules(&self) -> bool {
        ["DistributionGrant ", "MemberCluster "]
            .iter()
            .any(|kind| self.rule.starts_with(kind))
    }

    /// Whether something would fail or be blocked, or may fail or be blocked.
    pub fn would_fail(&self) -> bool {
        let fails = |copy: &PlanCopy| {
            Verdict::parse(&copy.verdict).is_some_and(|verdict| {
                verdict == Verdict::AdoptIfEqual || tone(verdict) == Tone::Bad
            })
        };
        let is_left_out = |source: &PlanSource| source.state != "Refused";
        self.rules.iter().any(Self::would_fail)
            || self.answer.incomplete
            || self.answer.copies.iter().any(fails)
            || self.answer.sources.iter().any(is_left_out)
    }

    /// The verdicts of any copy, with their numbers.
    fn counts(&self) -> Vec<(Verdict, usize)> {
        let count = |verdict: Verdict| {
            let copies = self.answer.copies.iter();
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
        let answer = &self.answer;
        let state = match (self.state, answer.exists) {
            (State::Deleted, _) => "a delete",
            (State::Saved, _) => "as it is saved",
            (State::Changed, _) => "changes with it",
            (State::Edited, true) => "an edit",
            (State::Edited, false) => "new",
        };
        if self.concerns_many_rules() {
            return self.many_rules_text(state, width, colors);
        }
        let sources = if answer.sent == 1 {
            "source"
        } else {
            "sources"
        };
        let clusters = if answer.clusters.len() == 1 {
            "cluster"
        } else {
            "clusters"
        };
        let all = answer.clusters.len();
        let _ = writeln!(
            out,
            "{} ({state}): {} {sources}, {all} {clusters}",
            self.rule, answer.sent
        );
        let counts: Vec<_> = self.counts();
        let counts = counts
            .iter()
            .map(|(verdict, count)| tone(*verdict).paint(&format!("{verdict} {count}"), colors));
        let counts: Vec<_> = counts.collect();
        if !counts.is_empty() {
            let _ = writeln!(out, "  {}", counts.join(", "));
        }
        for note in &answer.notes {
            wrapped(&mut out, "  ", note, width);
        }
        for source in &answer.sources {
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
        let mut by_cluster: BTreeMap<&str, Vec<&PlanCopy>> = BTreeMap::new();
        for copy in &answer.copies {
            by_cluster.entry(&copy.cluster).or_default().push(copy);
        }
        for cluster in &answer.clusters {
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
        let (shown, more) = (self.rules.len(), self.answer.more_rules as usize);
        let mut out = format!("{} ({state}): {}\n", self.rule, count(shown + more));
        for note in &self.answer.notes {
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
        cluster: &PlanCluster,
        copies: Option<&Vec<&PlanCopy>>,
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
        let answer = &self.answer;
        let summary: Map<String, Value> = self
            .counts()
            .into_iter()
            .map(|(verdict, count)| (verdict.to_string(), json!(count)))
            .collect();
        let sources = answer.sources.iter().map(
            |one| json!({"source": one.source, "state": one.state, "message": one.message, "cluster": one.cluster}),
        );
        let clusters = answer.clusters.iter().map(|one| {
            json!({"name": one.name, "state": one.state, "message": one.message, "wave": one.wave, "more": one.more})
        });
        let copies = answer.copies.iter().map(|one| {
            json!({
                "cluster": one.cluster, "copy": one.copy, "source": one.source, "verdict": one.verdict,
                "reason": one.reason, "message": one.message, "diff": one.diff,
            })
        });
        if self.concerns_many_rules() {
            let rules: Vec<_> = self.rules.iter().map(Self::value).collect();
            return json!({
                "object": self.rule, "exists": answer.exists, "delete": self.state == State::Deleted,
                "notes": answer.notes, "rules": rules, "moreRules": answer.more_rules,
            });
        }
        json!({
            "rule": self.rule,
            "delete": self.state == State::Deleted,
            "exists": answer.exists,
            "incomplete": answer.incomplete,
            "sent": answer.sent,
            "summary": summary,
            "notes": answer.notes,
            "sources": sources.collect::<Vec<_>>(),
            "clusters": clusters.collect::<Vec<_>>(),
            "copies": copies.collect::<Vec<_>>(),
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

fn cells(copy: &PlanCopy) -> [String; 4] {
    let mut parts = copy.copy.splitn(3, '/');
    let mut part = || parts.next().unwrap_or_default().to_owned();
    let (resource, namespace, name) = (part(), part(), part());
    let kind = resource.strip_suffix('s').unwrap_or(&resource).to_owned();
    [copy.verdict.clone(), namespace, kind, name]
}

fn why(copy: &PlanCopy) -> String {
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

/// The rules, grants and member clusters of a file: its documents, and the items of lists.
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
            "DistributionRule" => {
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
