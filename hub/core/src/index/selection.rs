//! The rules by the sources that they select, or could select.
use std::collections::{BTreeMap, BTreeSet};

use runnel_proto::model::{RuleUid, SourceRef};

use super::labels::LabelBudget;
use super::readers::Readers;
use crate::plan::Rule;

/// The rules by source.
#[derive(Default)]
pub(super) struct Selection {
    /// The rules that select a source now.
    selected_by: BTreeMap<SourceRef, BTreeSet<RuleUid>>,
    /// The rules by what they can select.
    readers: Readers,
    /// The kept labels of objects with many of them.
    labels: LabelBudget,
}

impl Selection {
    /// Adds a rule. Returns whether labels that it needs may have been left out.
    pub(super) fn add_rule(&mut self, rule: &Rule) -> bool {
        let is_new = self.readers.set(rule);
        is_new && self.labels.has_left_out()
    }

    /// Removes a rule, apart from what it selects now.
    pub(super) fn remove_rule(&mut self, uid: &RuleUid) {
        self.readers.remove(uid);
    }

    /// A rule selects a source.
    pub(super) fn select(&mut self, source: &SourceRef, uid: &RuleUid) {
        self.selected_by
            .entry(source.clone())
            .or_default()
            .insert(uid.clone());
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

    /// The kept labels of an object: all, or if there is no room for unusually many, those that rules select by.
    pub(super) fn kept_labels(
        &mut self,
        source: &SourceRef,
        mut labels: BTreeMap<String, String>,
    ) -> BTreeMap<String, String> {
        if !self.labels.admits(source, &labels) {
            labels.retain(|key, _| self.readers.keeps(key));
        }
        labels
    }

    /// An object is deleted.
    pub(super) fn release_labels(&mut self, source: &SourceRef) {
        self.labels.release(source);
    }
}
