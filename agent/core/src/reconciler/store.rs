//! The persistent state: terms and tombstones, in a Secret of the agent.
//!
//! The agent removes no copy before it has stored the reason. Otherwise a restarted agent could
//! create the copy again from a twin.
use std::collections::BTreeSet;

use runnel_proto::model::SourceRef;

use crate::copy::{CopyError, IntentKey};
use crate::decide::{Action, DesiredCopy};
use crate::desired::{Desired, StoredRule};

/// The state of the store, in generations of the desired set.
pub(super) struct Store {
    /// The rules of the store at the start, until they are restored.
    initial: Option<Vec<StoredRule>>,
    /// The stored generation.
    generation: u64,
    /// The generation that is being stored.
    saving: Option<u64>,
    /// The error of the last attempt.
    error: Option<CopyError>,
    /// Copies whose removal waits for the store.
    waiting: BTreeSet<SourceRef>,
    /// The generation of the purge of all copies, if one is under way.
    purge: Option<u64>,
}

impl Store {
    pub(super) fn new(initial: Vec<StoredRule>) -> Self {
        Self {
            initial: Some(initial),
            generation: 0,
            saving: None,
            error: None,
            waiting: BTreeSet::new(),
            purge: None,
        }
    }

    /// Returns the rules of the store at the start.
    pub(super) fn take_initial(&mut self) -> Vec<StoredRule> {
        self.initial.take().unwrap_or_default()
    }

    /// Whether the desired set must be stored: it has changed since, and is not being stored.
    pub(super) fn is_stale(&self, desired: &Desired) -> bool {
        // Before the start, the stored terms are not in force and must not be overwritten.
        self.initial.is_none() && self.saving.is_none() && self.generation != desired.generation()
    }

    /// Whether the removal of copies waits until the desired set is stored.
    pub(super) fn is_urgent(&self, desired: &Desired) -> bool {
        self.is_stale(desired) && !self.waiting.is_empty()
    }

    /// Returns the terms to store. `removals`: the intents with a removal under way.
    pub(super) fn begin(
        &mut self,
        desired: &mut Desired,
        removals: &BTreeSet<IntentKey>,
    ) -> (Option<String>, Vec<StoredRule>) {
        self.saving = Some(desired.generation());
        // A purge survives a restart, because the stored rules are empty during it.
        let rules = if self.purge.is_some() {
            vec![]
        } else {
            desired.stored(removals)
        };
        (desired.cluster().hub_uid().map(str::to_owned), rules)
    }

    /// Records the result of an attempt, and returns the copies that waited for it.
    pub(super) fn end(&mut self, result: Result<(), CopyError>) -> BTreeSet<SourceRef> {
        let Some(saving) = self.saving.take() else {
            return BTreeSet::new();
        };
        self.error = match result {
            Ok(()) => {
                self.generation = saving;
                None
            }
            Err(CopyError { reason, message }) => {
                let text = "the agent removes no copy before it has stored why (Secret runnel-agent-terms in its \
                            namespace), and cannot store it";
                Some(CopyError::new(reason, format!("{text}: {message}")))
            }
        };
        std::mem::take(&mut self.waiting)
    }

    /// Returns the error of the last attempt.
    pub(super) fn error(&self) -> Option<CopyError> {
        self.error.clone()
    }

    /// Whether the removal of a copy waits for the store. `purges`: all copies are deleted.
    pub(super) fn delays(
        &mut self,
        copy: &SourceRef,
        want: &DesiredCopy,
        action: &Action,
        purges: bool,
        desired: &mut Desired,
    ) -> bool {
        let (DesiredCopy::Absent(key, ..), Action::Delete(_) | Action::Retain(_)) = (want, action)
        else {
            return false;
        };
        let needed = if purges {
            if self.purge.is_none() {
                desired.mark_changed();
            }
            *self.purge.get_or_insert(desired.generation())
        } else {
            desired.copies().generation_of(key, copy)
        };
        let waits = needed > self.generation;
        if waits {
            self.waiting.insert(copy.clone());
        }
        waits
    }

    /// Ends a purge, because the hub has accepted this cluster again.
    pub(super) fn end_purge(&mut self, desired: &mut Desired) {
        if self.purge.take().is_some() {
            desired.mark_changed();
        }
    }
}
