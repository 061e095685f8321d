//! What the watches say, and the start: nothing is decided before each has delivered a complete list.
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use runnel_proto::model::{Reason, SourceRef};

use super::{Reconciler, Watched};
use crate::copy::CopyError;
use crate::copy::IntentKey;
use crate::desired::Namespace;
use crate::live::{Live, Ownership};
use crate::policy::Area;

/// How long is waited for more copies before the hub is asked about those that came to light.
const RESYNC_DELAY: Duration = Duration::from_secs(1);

/// How many copies that name an intent without a proof are remembered.
const UNPROVED_LIMIT: usize = 2_000;

impl Reconciler {
    pub(super) fn copies_listed(&mut self, area: &Area) {
        if let Some(watched) = self.areas.get_mut(area) {
            watched.listing = Some(BTreeSet::new());
            self.records.list_begins(area.resource, area.namespace.as_deref());
        }
    }

    pub(super) fn copy_seen(&mut self, copy: &SourceRef, live: Live, now: Instant) {
        let Some(area) = self.policy.area(copy) else { return };
        let Some(listed) = self.areas.get(&area).map(|watched| watched.listing.is_some()) else { return };
        if let Some(run) = self.runs.get_mut(copy) {
            run.received.push(Some(live.version.clone()));
        }
        if self.is_stranger(copy, &live) {
            return self.stranger_seen(copy, now);
        }
        if let Some(listing) = self.areas.get_mut(&area).and_then(|watched| watched.listing.as_mut()) {
            listing.insert(copy.clone());
        }
        let known = |live: &Live| (live.uid.clone(), live.facts.digest);
        let before = self.records.live(copy).cloned();
        let (stood, stands) = (before.as_ref().map(known), known(&live));
        if !(if listed { self.records.listed(copy, live) } else { self.records.watched(copy, live) }) {
            return;
        }
        self.note_rewritten(copy, before.as_ref());
        self.find(copy, now);
        self.reconcile_copy(copy, now);
        if stood.is_some_and(|stood| stood != stands) {
            // What waits to be overwritten may be another object that fails in the same words; and what is proved is
            // another content.
            self.report.touch_copy(copy);
        }
    }

    /// Whether an object with our label is of no use: it names no intent of ours, and nobody wants a copy there. Anybody
    /// can create any number of these, so they are not remembered; nor are more than a bounded number of those that name an
    /// intent without a proof.
    fn is_stranger(&self, copy: &SourceRef, live: &Live) -> bool {
        if self.desired.concerns(copy) || live.sealed.is_some() && live.ownership == Ownership::Ours {
            return false;
        }
        let is_known = || self.records.live(copy).is_some_and(|known| known.unproved.is_some());
        live.unproved.is_none() || !is_known() && self.records.unproved() >= UNPROVED_LIMIT
    }

    fn stranger_seen(&mut self, copy: &SourceRef, now: Instant) {
        if self.records.live(copy).is_some() {
            self.records.forget(copy);
            self.reconcile_copy(copy, now);
        }
    }

    /// A copy of ours came to light: it may be of an intent that is not held, or stand where its rule has no copies.
    pub(super) fn find(&mut self, copy: &SourceRef, now: Instant) {
        // It is the echo of a write of ours, or a rule or an order sees to it.
        if self.desired.concerns(copy) || self.runs.contains_key(copy) {
            return;
        }
        let watched = self.watched(copy);
        let Some(key) = self.records.live(copy).and_then(Live::intent) else { return };
        // What a first list shows is taken in when the list is complete.
        if self.started && watched.is_some_and(|watched| watched.complete) && !self.revoked {
            self.find_intent(&key, std::slice::from_ref(copy), now);
        }
    }

    fn find_intent(&mut self, key: &IntentKey, copies: &[SourceRef], now: Instant) {
        if self.desired.find_intent(key, copies, &self.records) {
            tracing::warn!(rule = %key.rule, source = %key.source, "copies came to light that the hub did not order: it is asked");
            self.resync.insert(key.rule.clone());
            self.resync_at.get_or_insert(now + RESYNC_DELAY);
        }
    }

    pub(super) fn copy_gone(&mut self, copy: &SourceRef, uid: &str, now: Instant) {
        if let Some(run) = self.runs.get_mut(copy) {
            run.received.push(None);
        }
        if self.records.unwatched(copy, uid) {
            self.reconcile_copy(copy, now);
        }
    }

    pub(super) fn copies_complete(&mut self, area: &Area, now: Instant) {
        let Some(watched) = self.areas.get_mut(area) else { return };
        let seen = watched.listing.take().unwrap_or_default();
        let first = !watched.complete;
        (watched.complete, watched.forbidden) = (true, None);
        let was_lost = watched.lost.take().is_some();
        // Objects that are not ours were read, not watched: the list says nothing about them.
        let ours = |copy: &SourceRef| self.records.live(copy).is_some_and(|live| live.ownership == Ownership::Ours);
        let lost: Vec<_> = self
            .records
            .names(area.resource, area.namespace.as_deref())
            .filter(|copy| ours(copy) && !seen.contains(*copy))
            .cloned()
            .collect();
        for copy in lost {
            if let Some(run) = self.runs.get_mut(&copy) {
                run.received.push(None);
            } else if self.records.shown_in_list(&copy) && self.desired.concerns(&copy) {
                // The list may be older than what was read or written meanwhile.
                self.reread.insert(copy.clone());
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
            self.look_at_area(area, now);
        }
        if was_lost {
            self.prove_again();
        }
    }

    /// An area is watched for the first time, or again: all that its copies say they hold came to light.
    fn find_all(&mut self, area: &Area, now: Instant) {
        let shown = |copy: &&SourceRef| self.policy.area(copy).as_ref() == Some(area);
        let found = self.records.intents().map(|(key, copies)| (key, copies.iter().filter(shown).cloned().collect()));
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
        let Some(watched) = self.areas.get_mut(area) else { return };
        if watched.forbidden.replace(copy_error.clone()) == Some(copy_error) {
            return;
        }
        (watched.complete, watched.listing) = (false, None);
        if watched.forbidden.as_ref().is_some_and(|copy_error| copy_error.reason == Reason::Forbidden) {
            watched.lost = None;
        }
        if self.started { self.look_at_area(area, now) } else { self.start_if_ready(now) }
    }

    pub(super) fn namespace_seen(&mut self, name: &Arc<str>, namespace: Namespace, now: Instant) {
        if let Some(list) = &mut self.namespace_list {
            list.insert(name.clone());
        }
        self.namespace_failed.remove(name);
        self.set_namespace(name, Some(namespace), now);
    }

    pub(super) fn namespace_gone(&mut self, name: &Arc<str>, now: Instant) {
        self.set_namespace(name, None, now);
    }

    fn set_namespace(&mut self, name: &Arc<str>, namespace: Option<Namespace>, now: Instant) {
        let looks = self.desired.set_namespace(name, namespace, &self.records);
        for copy in looks {
            self.reconcile_now(&copy, now);
        }
    }

    pub(super) fn namespaces_complete(&mut self, now: Instant) {
        let seen = self.namespace_list.take().unwrap_or_default();
        let lost: Vec<_> = self.desired.namespaces().filter(|name| !seen.contains(*name)).cloned().collect();
        for name in lost {
            self.namespace_gone(&name, now);
        }
        let first = !std::mem::replace(&mut self.namespaces_complete, true);
        let was_lost = self.namespaces_lost.take().is_some();
        if !self.started {
            self.start_if_ready(now);
        } else if first {
            self.look_at_everything(now);
        }
        if was_lost {
            self.prove_again();
        }
    }

    pub(super) fn start_if_ready(&mut self, now: Instant) {
        let ready = |watched: &Watched| watched.complete || watched.forbidden.is_some();
        let namespaces = self.namespaces_complete || self.namespaces_lost.is_some();
        if !namespaces || !self.areas.values().all(ready) {
            return;
        }
        self.started = true;
        self.assume_namespaces();
        let stored = std::mem::take(&mut self.stored);
        let rules = stored.len();
        self.desired.restore_terms(stored);
        let shown = self.areas.iter().filter(|(_, watched)| watched.complete);
        self.restore(&shown.map(|(area, _)| area.clone()).collect(), now);
        let all: Vec<_> = self.desired.all_copies().cloned().collect();
        tracing::info!(rules, copies = all.len(), "watching this cluster's copies and namespaces");
        for copy in all {
            self.reconcile_copy(&copy, now);
        }
    }

    fn restore(&mut self, areas: &BTreeSet<Area>, now: Instant) {
        for copy in self.desired.restore_intents(areas, &self.records) {
            self.reconcile_copy(&copy, now);
        }
    }

    fn look_at_area(&mut self, area: &Area, now: Instant) {
        let all = self.desired.all_copies().filter(|copy| self.policy.area(copy).as_ref() == Some(area));
        for copy in all.cloned().collect::<Vec<_>>() {
            self.reconcile_copy(&copy, now);
        }
    }
}
