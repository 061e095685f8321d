//! What outlives a restart: terms and tombstones, in a Secret of the agent. No copy is removed before what its removal
//! follows from is stored. Otherwise an agent that starts again could create it once more from a twin.
use std::time::Instant;

use runnel_proto::model::SourceRef;

use super::Reconciler;
use crate::copy::CopyError;
use crate::decide::{Action, Want};
use crate::desired::StoredRule;
use crate::policy::OnRevoke;

/// How far the store is.
#[derive(Default)]
pub(super) struct Stored {
    /// What is stored, as a generation of the desired set.
    generation: u64,
    /// What is being stored.
    saving: Option<u64>,
    /// Why it could not be stored the last time.
    error: Option<CopyError>,
    /// Copies whose removal waits for the store.
    waiting: std::collections::BTreeSet<SourceRef>,
    /// The generation since which copies are purged.
    purge: Option<u64>,
}

impl Reconciler {
    /// The terms to store, once after each change. The caller reports the result to [`Reconciler::stored`].
    pub fn take_store(&mut self) -> Option<(Option<String>, Vec<StoredRule>)> {
        if !self.wants_store() {
            return None;
        }
        self.stored_state.saving = Some(self.desired.generation());
        // What is purged is not put back after a restart, either: of no rule it is known where it has copies.
        let removals = self.runs.values().filter(|run| run.removes).map(|run| run.about.0.clone()).collect();
        let rules = if self.stored_state.purge.is_some() { vec![] } else { self.desired.stored(&removals) };
        Some((self.desired.hub_cluster().map(str::to_owned), rules))
    }

    /// Whether terms are to be stored.
    pub fn wants_store(&self) -> bool {
        // Before the start not even the stored terms are in force: nothing must be written over them.
        self.started && self.stored_state.saving.is_none() && self.stored_state.generation != self.desired.generation()
    }

    /// Whether copies wait for the store to be removed.
    pub fn is_store_urgent(&self) -> bool {
        self.wants_store() && !self.stored_state.waiting.is_empty()
    }

    /// Takes in how a store has ended.
    pub fn stored(&mut self, saved: Result<(), CopyError>, now: Instant) {
        let Some(saving) = self.stored_state.saving.take() else { return };
        self.stored_state.error = match saved {
            Ok(()) => {
                self.stored_state.generation = saving;
                None
            }
            Err(CopyError { reason, message }) => {
                let text = "the agent removes no copy before it has stored why (Secret runnel-agent-terms in its \
                            namespace), and cannot store it";
                Some(CopyError::new(reason, format!("{text}: {message}")))
            }
        };
        for copy in std::mem::take(&mut self.stored_state.waiting) {
            self.reconcile_copy(&copy, now);
        }
    }

    /// The generation that must be stored before an action, if it is not.
    fn is_unstored(&mut self, copy: &SourceRef, want: &Want, action: &Action) -> bool {
        let (Want::Gone(key, ..), Action::Delete(_) | Action::Retain(_)) = (want, action) else { return false };
        let needed = if self.is_purging() { self.purge_generation() } else { self.desired.generation_of(key, copy) };
        needed > self.stored_state.generation
    }

    /// Whether a copy waits for the store to be removed.
    pub(super) fn waits_for_store(&mut self, copy: &SourceRef, want: &Want, action: &Action) -> bool {
        let waits = self.is_unstored(copy, want, action);
        if waits {
            self.stored_state.waiting.insert(copy.clone());
        }
        waits
    }

    /// Why the removal that waits for the store is not carried out, if the store fails.
    pub(super) fn store_error(&self) -> Option<CopyError> {
        self.stored_state.error.clone()
    }

    /// Whether the copies here go because the hub has revoked this cluster.
    pub(super) fn is_purging(&self) -> bool {
        self.revoked && self.policy.on_revoke == OnRevoke::Purge
    }

    fn purge_generation(&mut self) -> u64 {
        if self.stored_state.purge.is_none() {
            self.desired.note_change();
        }
        *self.stored_state.purge.get_or_insert(self.desired.generation())
    }

    /// The hub has accepted this cluster again.
    pub(super) fn end_purge(&mut self) {
        if self.stored_state.purge.take().is_some() {
            self.desired.note_change();
        }
    }
}
