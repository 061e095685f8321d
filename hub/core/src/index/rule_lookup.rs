//! Finds the rules that may need an object, by their scopes and by what all of their selected
//! objects have in common.
//!
//! An edit visits only these rules, so that its cost is independent of the number of other rules.
//! Rules that select by literal names, or by a required label, are found by those. Rules with globs
//! or absent labels are few, and are visited for every object of their kind in their namespaces.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use runnel_proto::model::{Operator, Pattern, Requirement, RuleUid, SourceRef};

use crate::plan::{REFERENCED_KIND, Rule, SourceChoice};

/// Rules, and the version of the selection by which they were found.
type FoundClaimants = Option<(u64, Arc<BTreeSet<RuleUid>>)>;

/// The rules that select sources of a rule, as of a selection; once for removed intents, once for all of the rule.
#[derive(Default)]
pub(super) struct KnownClaimants(pub(super) Mutex<[FoundClaimants; 2]>);

/// The property by which rules may need an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum LookupKey {
    /// This name.
    Name(Arc<str>),
    /// This label.
    Label(String, String),
    /// A label with this key.
    Key(String),
    /// Nothing in particular.
    Any,
}

/// Kind, namespace (`None`: any of several) and sign of objects.
type LookupScope = (Arc<str>, Option<Arc<str>>, LookupKey);

/// Rules by their lookup keys.
#[derive(Default)]
pub(super) struct RuleLookup {
    rules: BTreeMap<LookupScope, BTreeSet<RuleUid>>,
    marks: BTreeMap<RuleUid, BTreeSet<LookupScope>>,
    /// The labels by which they choose, and how many rules do by each.
    keys: BTreeMap<String, usize>,
    keys_of: BTreeMap<RuleUid, BTreeSet<String>>,
    /// The stored labels of objects: those that rules select by, and some former ones.
    stored_labels: BTreeSet<String>,
}

/// Limit of stored labels that no rule selects by any more, so that an edited rule needs no relist.
const MAX_FORMER_LABELS: usize = 256;

impl RuleLookup {
    /// Whether objects are stored with this label.
    pub(super) fn has_label_stored(&self, key: &str) -> bool {
        self.stored_labels.contains(key)
    }

    /// Sets a rule. Returns whether it selects by a label that is not stored.
    pub(super) fn set(&mut self, rule: &Rule) -> bool {
        self.remove(&rule.uid);
        let selectors = rule
            .sources
            .iter()
            .filter_map(|entry| entry.selector.as_ref());
        let keys =
            selectors.flat_map(|selector| selector.requirements.iter().map(|one| one.key.clone()));
        let keys: BTreeSet<String> = keys.collect();
        let mut news = false;
        for key in &keys {
            *self.keys.entry(key.clone()).or_default() += 1;
            news |= self.stored_labels.insert(key.clone());
        }
        if self.stored_labels.len() > self.keys.len() + MAX_FORMER_LABELS {
            self.stored_labels = self.keys.keys().cloned().collect();
        }
        self.keys_of.insert(rule.uid.clone(), keys);
        let marks: BTreeSet<LookupScope> = rule
            .sources
            .iter()
            .flat_map(|entry| self.marks_of(rule, entry))
            .collect();
        for mark in &marks {
            self.rules
                .entry(mark.clone())
                .or_default()
                .insert(rule.uid.clone());
        }
        self.marks.insert(rule.uid.clone(), marks);
        news
    }

    /// Forgets a rule.
    pub(super) fn remove(&mut self, uid: &RuleUid) {
        for key in self.keys_of.remove(uid).into_iter().flatten() {
            if let Some(rules) = self.keys.get_mut(&key) {
                *rules -= 1;
                if *rules == 0 {
                    self.keys.remove(&key);
                }
            }
        }
        for mark in self.marks.remove(uid).into_iter().flatten() {
            if let Some(rules) = self.rules.get_mut(&mark) {
                rules.remove(uid);
                if rules.is_empty() {
                    self.rules.remove(&mark);
                }
            }
        }
    }

    /// Every rule that needs an object with these labels, and few others.
    pub(super) fn of(
        &self,
        source: &SourceRef,
        labels: &BTreeMap<String, String>,
    ) -> BTreeSet<RuleUid> {
        let own = [LookupKey::Any, LookupKey::Name(source.name.clone())];
        let keys = labels.keys().map(|key| LookupKey::Key(key.clone()));
        let labels = labels
            .iter()
            .map(|(key, value)| LookupKey::Label(key.clone(), value.clone()));
        let signs = own.into_iter().chain(keys).chain(labels);
        let namespaces = [None, Some(source.namespace.clone())];
        let marks = signs.flat_map(|sign| {
            namespaces
                .clone()
                .map(|namespace| (source.resource.clone(), namespace, sign.clone()))
        });
        marks
            .filter_map(|mark| self.rules.get(&mark))
            .flatten()
            .cloned()
            .collect()
    }

    fn marks_of(&self, rule: &Rule, entry: &SourceChoice) -> Vec<LookupScope> {
        let kinds = entry.resources.clone();
        let namespaces = namespaces(&entry.namespaces);
        let mut all = match &entry.selector {
            None => product(&kinds, &namespaces, &names(&entry.names)),
            // All requirements must be met, so one of them suffices as lookup key: the least used
            // one.
            Some(selector) => {
                let by_each = selector
                    .requirements
                    .iter()
                    .map(|one| product(&kinds, &namespaces, &signs(one)));
                by_each
                    .min_by_key(|marks| self.candidate_count(marks))
                    .unwrap_or_default()
            }
        };
        let secrets_read: Vec<LookupKey> = rule
            .shape
            .secrets_read()
            .map(|name| LookupKey::Name(name.into()))
            .collect();
        if let Some(kind) = kinds.into_iter().find(|kind| **kind == *REFERENCED_KIND) {
            all.extend(product(&[kind], &namespaces, &secrets_read));
        }
        all
    }

    /// Returns the number of rules for these lookup keys.
    fn candidate_count(&self, marks: &[LookupScope]) -> usize {
        let asked = |mark: &LookupScope| match mark.2 {
            LookupKey::Any => usize::MAX / 2,
            // Objects that have this label key, with any value.
            LookupKey::Key(_) => 1 + 2 * self.rules.get(mark).map_or(0, BTreeSet::len),
            _ => self.rules.get(mark).map_or(0, BTreeSet::len),
        };
        marks.iter().map(asked).fold(0, usize::saturating_add)
    }
}

fn namespaces(patterns: &[Pattern]) -> Vec<Option<Arc<str>>> {
    if patterns.is_empty() {
        // The place of objects of kinds without namespaces.
        vec![Some("".into())]
    } else if patterns.iter().all(Pattern::is_literal) {
        patterns
            .iter()
            .map(|name| Some(name.as_str().into()))
            .collect()
    } else {
        vec![None]
    }
}

fn names(patterns: &[Pattern]) -> Vec<LookupKey> {
    if patterns.iter().all(Pattern::is_literal) {
        patterns
            .iter()
            .map(|name| LookupKey::Name(name.as_str().into()))
            .collect()
    } else {
        vec![LookupKey::Any]
    }
}

/// Returns the keys of which objects that meet the requirement have at least one.
fn signs(requirement: &Requirement) -> Vec<LookupKey> {
    let key = || requirement.key.clone();
    match requirement.operator {
        Operator::In => requirement
            .values
            .iter()
            .map(|value| LookupKey::Label(key(), value.clone()))
            .collect(),
        Operator::Exists => vec![LookupKey::Key(key())],
        Operator::NotIn | Operator::DoesNotExist => vec![LookupKey::Any],
    }
}

fn product(
    kinds: &[Arc<str>],
    namespaces: &[Option<Arc<str>>],
    signs: &[LookupKey],
) -> Vec<LookupScope> {
    let mut all = Vec::with_capacity(kinds.len() * namespaces.len() * signs.len());
    for kind in kinds {
        for namespace in namespaces {
            all.extend(
                signs
                    .iter()
                    .map(|sign| (kind.clone(), namespace.clone(), sign.clone())),
            );
        }
    }
    all
}

/// Labels of an object that are always stored: number and bytes.
const LABELS: usize = 64;
const LABEL_BYTES: usize = 8 * 1024;
/// The limit for the labels of all objects with more labels, in bytes.
const ROOM: usize = 64 * 1024 * 1024;
/// The overhead of a label, in bytes.
const OVERHEAD: usize = 128;

/// The room for labels of objects that have unusually many.
#[derive(Default)]
pub(super) struct LabelBudget {
    used_by: BTreeMap<SourceRef, usize>,
    used: usize,
    left_out: bool,
}

impl LabelBudget {
    /// Whether all labels of an object can be stored.
    pub fn admits(&mut self, source: &SourceRef, labels: &BTreeMap<String, String>) -> bool {
        self.release(source);
        let bytes: usize = labels
            .iter()
            .map(|(key, value)| key.len() + value.len())
            .sum();
        if labels.len() <= LABELS && bytes <= LABEL_BYTES {
            return true;
        }
        let takes = bytes + labels.len() * OVERHEAD;
        if self.used + takes > ROOM {
            self.left_out = true;
            return false;
        }
        self.used += takes;
        self.used_by.insert(source.clone(), takes);
        true
    }

    /// Releases the labels of a deleted object.
    pub fn release(&mut self, source: &SourceRef) {
        self.used -= self.used_by.remove(source).unwrap_or_default();
    }

    /// Whether labels of some object were left out.
    pub fn has_left_out(&self) -> bool {
        self.left_out
    }
}

/// The rules by source.
#[derive(Default)]
pub(super) struct Selection {
    /// The rules that select a source now.
    selected_by: BTreeMap<SourceRef, BTreeSet<RuleUid>>,
    /// Rules by the objects that they can select.
    readers: RuleLookup,
    /// The stored labels of objects with many labels.
    labels: LabelBudget,
    /// Counts what was selected.
    serial: u64,
}

impl Selection {
    /// A number that changes whenever a rule selects more than before.
    pub(super) fn serial(&self) -> u64 {
        self.serial
    }

    /// A rule may send other manifests of bundles.
    pub(super) fn note_manifests(&mut self) {
        self.serial += 1;
    }

    /// Adds a rule. Returns whether labels that it needs may have been left out.
    pub(super) fn add_rule(&mut self, rule: &Rule) -> bool {
        let is_new = self.readers.set(rule);
        is_new && self.labels.has_left_out()
    }

    /// Removes a rule, except for its current selection.
    pub(super) fn remove_rule(&mut self, uid: &RuleUid) {
        self.readers.remove(uid);
    }

    /// A rule selects a source.
    pub(super) fn select(&mut self, source: &SourceRef, uid: &RuleUid) {
        let rules = self.selected_by.entry(source.clone()).or_default();
        self.serial += u64::from(rules.insert(uid.clone()));
    }

    /// A rule does not select a source any more.
    pub(super) fn unselect(&mut self, source: &SourceRef, uid: &RuleUid) {
        if let Some(rules) = self.selected_by.get_mut(source) {
            rules.remove(uid);
            if rules.is_empty() {
                self.selected_by.remove(source);
            }
        }
    }

    /// The rules that select a source now.
    pub(super) fn of(&self, source: &SourceRef) -> impl Iterator<Item = &RuleUid> {
        self.selected_by.get(source).into_iter().flatten()
    }

    /// Whether a rule selects a source now.
    pub(super) fn has(&self, source: &SourceRef) -> bool {
        self.selected_by.contains_key(source)
    }

    /// The rules that could select a source with these labels.
    pub(super) fn candidates(
        &self,
        source: &SourceRef,
        labels: &BTreeMap<String, String>,
    ) -> BTreeSet<RuleUid> {
        self.readers.of(source, labels)
    }

    /// The rules that could select a source with these labels, or select it now.
    pub(super) fn concerned(
        &self,
        source: &SourceRef,
        labels: &BTreeMap<String, String>,
    ) -> BTreeSet<RuleUid> {
        let mut concerned = self.candidates(source, labels);
        concerned.extend(self.of(source).cloned());
        concerned
    }

    /// Returns the stored labels of an object: all, or those that rules select by if the budget is
    /// used up.
    pub(super) fn stored_labels(
        &mut self,
        source: &SourceRef,
        mut labels: BTreeMap<String, String>,
    ) -> BTreeMap<String, String> {
        if !self.labels.admits(source, &labels) {
            labels.retain(|key, _| self.readers.has_label_stored(key));
        }
        labels
    }

    /// An object is deleted.
    pub(super) fn release_labels(&mut self, source: &SourceRef) {
        self.labels.release(source);
    }
}

#[cfg(test)]
#[path = "rule_lookup_tests.rs"]
mod tests;
