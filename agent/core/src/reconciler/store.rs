//! The persistent state: terms and tombstones, in a Secret of the agent.
//!
//! The agent removes no copy before it has stored the reason. Otherwise a restarted agent could
//! create the copy again from a twin.
use std::collections::BTreeSet;
use std::time::Instant;

use runnel_proto::model::SourceRef;

use super::Reconciler;
use crate::copy::{CopyError, IntentKey};
use crate::decide::{Action, DesiredCopy};
use crate::desired::{Desired, StoredRule};

/// The state of the store, in generations of the desired set.
pub(super) struct Store {
    /// The rules of the store at the start, until they are restored.
    initial: Vec<StoredRule>,
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
            initial,
            generation: 0,
            saving: None,
            error: None,
            waiting: BTreeSet::new(),
            purge: None,
        }
    }

    /// Returns the rules of the store at the start.
    pub(super) fn take_initial(&mut self) -> Vec<StoredRule> {
        std::mem::take(&mut self.initial)
    }

    /// Whether the desired set has changed since it was stored, and is not being stored.
    fn is_stale(&self, desired: &Desired) -> bool {
        self.saving.is_none() && self.generation != desired.generation()
    }

    /// Returns the terms to store.
    fn begin(
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
    fn end(&mut self, result: Result<(), CopyError>) -> BTreeSet<SourceRef> {
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

    fn purge_generation(&mut self, desired: &mut Desired) -> u64 {
        if self.purge.is_none() {
            desired.mark_changed();
        }
        *self.purge.get_or_insert(desired.generation())
    }

    /// Ends a purge, because the hub has accepted this cluster again.
    pub(super) fn end_purge(&mut self, desired: &mut Desired) {
        if self.purge.take().is_some() {
            desired.mark_changed();
        }
    }
}

impl Reconciler {
    /// Returns the terms to store, once after each change. The caller reports the result to
    /// [`Reconciler::stored`].
    pub fn take_store(&mut self) -> Option<(Option<String>, Vec<StoredRule>)> {
        self.wants_store()
            .then(|| self.store.begin(&mut self.desired, &self.jobs.removals()))
    }

    /// Whether the terms must be stored.
    pub fn wants_store(&self) -> bool {
        // Before the start, the stored terms are not in force and must not be overwritten.
        self.started && self.store.is_stale(&self.desired)
    }

    /// Whether the removal of copies waits for the store.
    pub fn is_store_urgent(&self) -> bool {
        self.wants_store() && !self.store.waiting.is_empty()
    }

    /// Handles the result of a store.
    pub fn stored(&mut self, saved: Result<(), CopyError>, now: Instant) {
        for copy in self.store.end(saved) {
            self.reconcile_copy(&copy, now);
        }
    }

    /// Whether the removal of a copy waits for the store.
    pub(super) fn waits_for_store(
        &mut self,
        copy: &SourceRef,
        want: &DesiredCopy,
        action: &Action,
    ) -> bool {
        let (DesiredCopy::Absent(key, ..), Action::Delete(_) | Action::Retain(_)) = (want, action)
        else {
            return false;
        };
        let needed = if self.is_purging() {
            self.store.purge_generation(&mut self.desired)
        } else {
            self.desired.copies().generation_of(key, copy)
        };
        let waits = needed > self.store.generation;
        if waits {
            self.store.waiting.insert(copy.clone());
        }
        waits
    }
}
