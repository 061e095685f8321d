//! Handles the events of the watches, and the start. The agent decides nothing before each watch
//! has delivered a complete list or has failed.
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use runnel_proto::model::SourceRef;

use super::member::Member;
use crate::copy::IntentKey;
use crate::desired::Namespace;
use crate::live::Live;
use crate::policy::Area;

impl Member {
    /// Handles the begin of an area's list.
    pub(super) fn copies_listed(&mut self, area: &Area) {
        if self.watches.begin_list(area) {
            self.records
                .list_begins(area.resource, area.namespace.as_deref());
        }
    }

    /// Handles an object that a watch shows.
    pub(super) fn handle_copy_event(&mut self, copy: &SourceRef, live: Live, now: Instant) {
        let is_stranger =
            !self.desired.copies().contains(copy) && self.records.is_foreign(copy, &live);
        let Some(is_listed) = self.watches.shown(copy, !is_stranger) else {
            return;
        };
        self.jobs.record_event(copy, Some(live.version.clone()));
        let before = self.records.live(copy).cloned();
        if is_stranger {
            if before.is_some() {
                self.records.forget(copy);
                self.reconcile_copy(copy, now);
            }
            return;
        }
        let known = |live: &Live| (live.uid.clone(), live.facts.digest);
        let (former_key, current_key) = (before.as_ref().map(known), known(&live));
        let is_news = if is_listed {
            self.records.listed(copy, live)
        } else {
            self.records.watched(copy, live)
        };
        if !is_news {
            return;
        }
        if let Some(about) = self.decider().rewritten(copy, before.as_ref()) {
            self.history.record_rewritten(copy, about);
        }
        self.find(copy, now);
        self.reconcile_watched(copy, now);
        if former_key.is_some_and(|former_key| former_key != current_key) {
            // Another object may now wait to be overwritten, with the same message. The proof
            // covers other content.
            self.report.touch_copy(copy);
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
        if self.watches.has_started() && watch.is_some_and(|watch| watch.complete) && !self.revoked
        {
            self.find_intent(&key, std::slice::from_ref(copy), now);
        }
    }

    fn find_intent(&mut self, key: &IntentKey, copies: &[SourceRef], now: Instant) {
        if self.desired.find_intent(key, copies, &self.records) {
            tracing::warn!(rule = %key.rule, source = %key.source, "copies were found that the hub did not order: requesting their state from it");
            self.report.resync(&key.rule, now);
        }
    }

    /// Handles an object that a watch does not show any more.
    pub(super) fn handle_copy_deletion(&mut self, copy: &SourceRef, uid: &str, now: Instant) {
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

    /// Handles the end of an area's list.
    pub(super) fn copies_complete(&mut self, area: &Area, now: Instant) {
        let Some(listed) = self.watches.end_list(area) else {
            return;
        };
        let missing = self
            .records
            .missing(area.resource, area.namespace.as_deref(), &listed.names);
        for copy in missing {
            if self.jobs.running.contains_key(&copy) {
                self.jobs.record_event(&copy, None);
                continue;
            }
            if self.records.is_confirmed_since_list(&copy) && self.desired.copies().contains(&copy)
            {
                // The list may be older than a read or write meanwhile.
                self.jobs.reread.insert(copy.clone());
            } else {
                self.records.forget(&copy);
            }
            self.reconcile_copy(&copy, now);
        }
        if !self.watches.has_started() {
            self.start_if_ready(now);
        } else if listed.is_first {
            self.find_all(area, now);
            self.reconcile_area(area, now);
        }
        if listed.was_lost {
            self.report_all_if_complete();
        }
    }

    /// Finds the copies of an area after its first complete list, or the first one after a
    /// forbidden watch.
    fn find_all(&mut self, area: &Area, now: Instant) {
        let shown = |copy: &&SourceRef| self.watches.area(copy).as_ref() == Some(area);
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

    /// Continues after a watch has failed. `unreadable`: the area whose copies cannot be read any
    /// more.
    pub(super) fn watch_failed(&mut self, unreadable: Option<&Area>, now: Instant) {
        if !self.watches.has_started() {
            self.start_if_ready(now);
        } else if let Some(area) = unreadable {
            self.reconcile_area(area, now);
        }
    }

    /// Handles a namespace that exists.
    pub(super) fn handle_namespace_event(
        &mut self,
        name: &Arc<str>,
        namespace: Namespace,
        now: Instant,
    ) {
        self.watches.namespace_shown(name);
        self.jobs.namespace_failed.remove(name);
        self.set_namespace(name, Some(namespace), now);
    }

    /// Sets a namespace (`None`: it is deleted).
    pub(super) fn set_namespace(
        &mut self,
        name: &Arc<str>,
        namespace: Option<Namespace>,
        now: Instant,
    ) {
        let looks = self.desired.set_namespace(name, namespace, &self.records);
        if self.watches.has_started() && !looks.is_empty() {
            self.history.audit.namespace_changed(name, now);
        }
        for copy in looks {
            self.reconcile_now(&copy, now);
        }
    }

    /// Handles the end of the list of namespaces.
    pub(super) fn namespaces_complete(&mut self, now: Instant) {
        let listed = self.watches.end_namespaces();
        let gone: Vec<_> = self
            .desired
            .cluster()
            .namespaces()
            .filter(|name| !listed.names.contains(*name))
            .cloned()
            .collect();
        for name in gone {
            self.set_namespace(&name, None, now);
        }
        if !self.watches.has_started() {
            self.start_if_ready(now);
        } else if listed.is_first {
            self.reconcile_all(now);
        }
        if listed.was_lost {
            self.report_all_if_complete();
        }
    }

    /// Starts, once each watch has delivered its first list or has failed.
    pub(super) fn start_if_ready(&mut self, now: Instant) {
        if !self.watches.start() {
            return;
        }
        // Without a list of namespaces, those of recorded copies are assumed to exist.
        if self.watches.namespaces_unknown().is_some() {
            let copies = self.records.all();
            let names: BTreeSet<_> = copies.map(|copy| copy.namespace.clone()).collect();
            for name in names {
                self.desired
                    .set_namespace(&name, Some(Namespace::default()), &self.records);
            }
        }
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

    fn reconcile_area(&mut self, area: &Area, now: Instant) {
        let all = self
            .desired
            .copies()
            .all()
            .filter(|copy| self.watches.area(copy).as_ref() == Some(area));
        for copy in all.cloned().collect::<Vec<_>>() {
            self.reconcile_copy(&copy, now);
        }
    }

    /// Reports all rules when no watch is lost any more. The agent proves nothing before.
    pub(super) fn report_all_if_complete(&mut self) {
        if self.watches.lost().is_empty() {
            self.report.report_all(self.desired.rules().uids().cloned());
        }
    }
}
