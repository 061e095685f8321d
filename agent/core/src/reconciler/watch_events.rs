//! Handles the events of the watches, and the start. The agent decides nothing before each watch
//! has delivered a complete list or has failed.
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use runnel_proto::model::{Reason, SourceRef};

use super::{Reconciler, WatchScope};
use crate::classify;
use crate::copy::{CopyError, IntentKey};
use crate::desired::Namespace;
use crate::live::{Live, Ownership};
use crate::policy::Area;

/// Limit of the recorded copies with an unproved intent.
const UNPROVED_LIMIT: usize = 2_000;

impl Reconciler {
    pub(super) fn copies_listed(&mut self, area: &Area) {
        if let Some(watched) = self.watches.copies.get_mut(area) {
            watched.listing = Some(BTreeSet::new());
            self.records
                .list_begins(area.resource, area.namespace.as_deref());
        }
    }

    pub(super) fn copy_seen(&mut self, copy: &SourceRef, live: Live, now: Instant) {
        let Some(area) = self.policy.area(copy) else {
            return;
        };
        let Some(listed) = self
            .watches
            .copies
            .get(&area)
            .map(|watched| watched.listing.is_some())
        else {
            return;
        };
        self.jobs.record_event(copy, Some(live.version.clone()));
        if self.is_stranger(copy, &live) {
            return self.stranger_seen(copy, now);
        }
        if let Some(listing) = self
            .watches
            .copies
            .get_mut(&area)
            .and_then(|watched| watched.listing.as_mut())
        {
            listing.insert(copy.clone());
        }
        let known = |live: &Live| (live.uid.clone(), live.facts.digest);
        let before = self.records.live(copy).cloned();
        let (stood, stands) = (before.as_ref().map(known), known(&live));
        if !(if listed {
            self.records.listed(copy, live)
        } else {
            self.records.watched(copy, live)
        }) {
            return;
        }
        self.record_rewritten(copy, before.as_ref());
        self.find(copy, now);
        self.reconcile_watched(copy, now);
        if stood.is_some_and(|stood| stood != stands) {
            // Another object may now wait to be overwritten, with the same message. The proof
            // covers other content.
            self.report.touch_copy(copy);
        }
    }

    /// Whether an object with our label is ignored: no rule concerns its name, and it has no proved
    /// intent of ours.
    ///
    /// Anybody can create any number of such objects, so the agent does not record them. It records
    /// objects with an unproved intent up to [`UNPROVED_LIMIT`].
    fn is_stranger(&self, copy: &SourceRef, live: &Live) -> bool {
        if self.desired.copies().contains(copy)
            || live.sealed.is_some() && live.ownership == Ownership::Ours
        {
            return false;
        }
        let is_known = || {
            self.records
                .live(copy)
                .is_some_and(|known| known.unproved.is_some())
        };
        live.unproved.is_none() || !is_known() && self.records.unproved() >= UNPROVED_LIMIT
    }

    fn stranger_seen(&mut self, copy: &SourceRef, now: Instant) {
        if self.records.live(copy).is_some() {
            self.records.forget(copy);
            self.reconcile_copy(copy, now);
        }
    }

    /// Finds a copy of ours that no rule or order concerns: its intent may not be acked, or its
    /// rule may have no copies in that namespace.
    pub(super) fn find(&mut self, copy: &SourceRef, now: Instant) {
        // A rule or an order handles the copy, or the event is the echo of our own write.
        if self.desired.copies().contains(copy) || self.jobs.running.contains_key(copy) {
            return;
        }
        let watch = self.watches.of(copy);
        let Some(key) = self.records.live(copy).and_then(Live::intent) else {
            return;
        };
        // The agent handles the copies of a first list when the list is complete.
        if self.started && watch.is_some_and(|watch| watch.complete) && !self.revoked {
            self.find_intent(&key, std::slice::from_ref(copy), now);
        }
    }

    fn find_intent(&mut self, key: &IntentKey, copies: &[SourceRef], now: Instant) {
        if self.desired.find_intent(key, copies, &self.records) {
            tracing::warn!(rule = %key.rule, source = %key.source, "copies were found that the hub did not order: requesting their state from it");
            self.hub.resync(&key.rule, now);
        }
    }

    pub(super) fn copy_gone(&mut self, copy: &SourceRef, uid: &str, now: Instant) {
        self.jobs.record_event(copy, None);
        if self.records.unwatched(copy, uid) {
            self.reconcile_watched(copy, now);
        }
    }

    /// Reconciles a copy after an event of its watch. While a job for the copy is under way, the
    /// end of the job does that: the event is usually the echo of its write.
    fn reconcile_watched(&mut self, copy: &SourceRef, now: Instant) {
        if !self.jobs.running.contains_key(copy) {
            self.reconcile_copy(copy, now);
        }
    }

    pub(super) fn copies_complete(&mut self, area: &Area, now: Instant) {
        let Some(watched) = self.watches.copies.get_mut(area) else {
            return;
        };
        let seen = watched.listing.take().unwrap_or_default();
        let first = !watched.complete;
        (watched.complete, watched.forbidden) = (true, None);
        let was_lost = watched.lost.take().is_some();
        // Objects that are not ours were read, not watched, so that the list does not cover them.
        let ours = |copy: &SourceRef| {
            self.records
                .live(copy)
                .is_some_and(|live| live.ownership == Ownership::Ours)
        };
        let lost: Vec<_> = self
            .records
            .names(area.resource, area.namespace.as_deref())
            .filter(|copy| ours(copy) && !seen.contains(*copy))
            .cloned()
            .collect();
        for copy in lost {
            if self.jobs.running.contains_key(&copy) {
                self.jobs.record_event(&copy, None);
            } else if self.records.shown_in_list(&copy) && self.desired.copies().contains(&copy) {
                // The list may be older than a read or write meanwhile.
                self.jobs.reread.insert(copy.clone());
                self.reconcile_copy(&copy, now);
            } else {
                self.records.forget(&copy);
                self.reconcile_copy(&copy, now);
            }
        }
        if !self.started {
            self.start_if_ready(now);
        } else if first {
            self.find_all(area, now);
            self.reconcile_area(area, now);
        }
        if was_lost {
            self.prove_again();
        }
    }

    /// Finds the copies of an area after its first complete list, or the first one after a
    /// forbidden watch.
    fn find_all(&mut self, area: &Area, now: Instant) {
        let shown = |copy: &&SourceRef| self.policy.area(copy).as_ref() == Some(area);
        let found = self
            .records
            .intents()
            .map(|(key, copies)| (key, copies.iter().filter(shown).cloned().collect()));
        let found: Vec<(IntentKey, Vec<SourceRef>)> = found
            .filter(|(_, copies): &(_, Vec<_>)| !copies.is_empty())
            .map(|(key, copies)| (key.clone(), copies))
            .collect();
        for (key, copies) in found {
            self.find_intent(&key, &copies, now);
            for copy in copies {
                self.reconcile_copy(&copy, now);
            }
        }
    }

    pub(super) fn copies_forbidden(&mut self, area: &Area, copy_error: CopyError, now: Instant) {
        let Some(watched) = self.watches.copies.get_mut(area) else {
            return;
        };
        if watched.forbidden.replace(copy_error.clone()) == Some(copy_error) {
            return;
        }
        (watched.complete, watched.listing) = (false, None);
        if watched
            .forbidden
            .as_ref()
            .is_some_and(|copy_error| copy_error.reason == Reason::Forbidden)
        {
            watched.lost = None;
        }
        if self.started {
            self.reconcile_area(area, now)
        } else {
            self.start_if_ready(now)
        }
    }

    pub(super) fn namespace_seen(&mut self, name: &Arc<str>, namespace: Namespace, now: Instant) {
        if let Some(list) = &mut self.watches.namespace_listing {
            list.insert(name.clone());
        }
        self.jobs.namespace_failed.remove(name);
        self.set_namespace(name, Some(namespace), now);
    }

    pub(super) fn namespace_gone(&mut self, name: &Arc<str>, now: Instant) {
        self.set_namespace(name, None, now);
    }

    fn set_namespace(&mut self, name: &Arc<str>, namespace: Option<Namespace>, now: Instant) {
        let looks = self.desired.set_namespace(name, namespace, &self.records);
        if self.started && !looks.is_empty() {
            self.audit.namespace_changed(name, now);
        }
        for copy in looks {
            self.reconcile_now(&copy, now);
        }
    }

    pub(super) fn namespaces_complete(&mut self, now: Instant) {
        let seen = self.watches.namespace_listing.take().unwrap_or_default();
        let lost: Vec<_> = self
            .desired
            .cluster()
            .namespaces()
            .filter(|name| !seen.contains(*name))
            .cloned()
            .collect();
        for name in lost {
            self.namespace_gone(&name, now);
        }
        let first = !std::mem::replace(&mut self.watches.namespaces_complete, true);
        let was_lost = self.watches.namespaces_lost.take().is_some();
        if !self.started {
            self.start_if_ready(now);
        } else if first {
            self.reconcile_all(now);
        }
        if was_lost {
            self.prove_again();
        }
    }

    pub(super) fn start_if_ready(&mut self, now: Instant) {
        if !self.watches.have_started() {
            return;
        }
        self.started = true;
        self.assume_namespaces();
        let stored = self.store.take_initial();
        let rules = stored.len();
        self.desired.restore_terms(stored);
        for copy in self
            .desired
            .restore_intents(&self.watches.complete_areas(), &self.records)
        {
            self.reconcile_copy(&copy, now);
        }
        let all: Vec<_> = self.desired.copies().all().cloned().collect();
        tracing::info!(
            rules,
            copies = all.len(),
            "watching this cluster's copies and namespaces"
        );
        for copy in all {
            self.reconcile_copy(&copy, now);
        }
    }

    /// Assumes that the namespaces of recorded copies exist, if the agent starts without a list of
    /// namespaces.
    fn assume_namespaces(&mut self) {
        if self.watches.namespaces_unknown().is_none() {
            return;
        }
        let names: BTreeSet<_> = self
            .records
            .all()
            .map(|copy| copy.namespace.clone())
            .collect();
        for name in names {
            self.desired
                .set_namespace(&name, Some(Namespace::default()), &self.records);
        }
    }

    fn reconcile_area(&mut self, area: &Area, now: Instant) {
        let all = self
            .desired
            .copies()
            .all()
            .filter(|copy| self.policy.area(copy).as_ref() == Some(area));
        for copy in all.cloned().collect::<Vec<_>>() {
            self.reconcile_copy(&copy, now);
        }
    }

    pub(super) fn watch_lost(&mut self, scope: &WatchScope, status: u16, now: Instant) {
        match scope {
            WatchScope::Namespaces => {
                if self.watches.namespaces_lost.replace(status) != Some(status) {
                    tracing::warn!(
                        status,
                        "namespaces cannot be watched: the state of this cluster is not known any more"
                    );
                }
            }
            WatchScope::Copies(area) => {
                let Some(watch) = self.watches.copies.get_mut(area) else {
                    return;
                };
                watch.lost = Some(status);
                if !watch.complete {
                    return self.copies_forbidden(
                        area,
                        classify::lost_watch(area.resource, status),
                        now,
                    );
                }
            }
        }
        if !self.started {
            self.start_if_ready(now);
        }
    }

    pub(super) fn watch_resumed(&mut self, scope: &WatchScope) {
        match scope {
            WatchScope::Namespaces => self.watches.namespaces_lost = None,
            WatchScope::Copies(area) => {
                if let Some(watch) = self.watches.copies.get_mut(area) {
                    watch.lost = None;
                }
            }
        }
        self.prove_again();
    }

    /// Reports all rules when no watch is lost any more. The agent proves nothing before.
    fn prove_again(&mut self) {
        if self.watches.lost().is_empty() {
            self.report.report_all(self.desired.rules().uids().cloned());
        }
    }
}
