//! What the watches say, and the start: nothing is decided before each has delivered a complete list.
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use runnel_proto::model::SourceRef;

use super::{Core, Watched};
use crate::decide::Trouble;
use crate::desired::Namespace;
use crate::live::{Live, Ownership};
use crate::policy::Area;

impl Core {
    pub(super) fn copies_listed(&mut self, area: &Area) {
        if let Some(watched) = self.areas.get_mut(area) {
            watched.listing = Some(BTreeSet::new());
        }
    }

    pub(super) fn copy_seen(&mut self, copy: &SourceRef, live: Live, now: Instant) {
        let Some(watched) = self.policy.area(copy).and_then(|area| self.areas.get_mut(&area)) else { return };
        if let Some(listing) = &mut watched.listing {
            listing.insert(copy.clone());
        }
        if let Some(run) = self.runs.get_mut(copy) {
            run.heard.push(Some(live.version.clone()));
        }
        let known = |live: &Live| (live.uid.clone(), live.facts.digest);
        let (stood, stands) = (self.records.live(copy).map(known), known(&live));
        if self.records.watched(copy, live) {
            self.look(copy, now);
            if stood.is_some_and(|stood| stood != stands) {
                // What waits to be overwritten may be another object that fails in the same words; and what is proved is
                // another content.
                self.report.touch_copy(copy);
            }
        }
    }

    pub(super) fn copy_gone(&mut self, copy: &SourceRef, uid: &str, now: Instant) {
        if let Some(run) = self.runs.get_mut(copy) {
            run.heard.push(None);
        }
        if self.records.unwatched(copy, uid) {
            self.look(copy, now);
        }
    }

    pub(super) fn copies_complete(&mut self, area: &Area, now: Instant) {
        let Some(watched) = self.areas.get_mut(area) else { return };
        let seen = watched.listing.take().unwrap_or_default();
        let first = !watched.complete;
        (watched.complete, watched.forbidden) = (true, None);
        // Objects that are not ours were read, not watched: the list says nothing about them.
        let ours = |copy: &SourceRef| self.records.live(copy).is_some_and(|live| live.ownership == Ownership::Ours);
        let lost: Vec<_> = self
            .records
            .names(area.resource, area.namespace.as_deref())
            .filter(|copy| ours(copy) && !seen.contains(*copy) && !self.runs.contains_key(*copy))
            .cloned()
            .collect();
        for copy in lost {
            self.records.forget(&copy);
            self.look(&copy, now);
        }
        if !self.started {
            self.start_if_ready(now);
        } else if first {
            self.restore(&BTreeSet::from([area.clone()]), now);
            self.look_at_area(area, now);
        }
    }

    pub(super) fn copies_forbidden(&mut self, area: &Area, trouble: Trouble, now: Instant) {
        let Some(watched) = self.areas.get_mut(area) else { return };
        if watched.forbidden.replace(trouble.clone()) == Some(trouble) {
            return;
        }
        (watched.complete, watched.listing) = (false, None);
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
            self.look_afresh(&copy, now);
        }
    }

    pub(super) fn namespaces_complete(&mut self, now: Instant) {
        let seen = self.namespace_list.take().unwrap_or_default();
        let lost: Vec<_> = self.desired.namespaces().filter(|name| !seen.contains(*name)).cloned().collect();
        for name in lost {
            self.namespace_gone(&name, now);
        }
        self.namespaces_complete = true;
        if !self.started {
            self.start_if_ready(now);
        }
    }

    pub(super) fn start_if_ready(&mut self, now: Instant) {
        let ready = |watched: &Watched| watched.complete || watched.forbidden.is_some();
        if !self.namespaces_complete || !self.areas.values().all(ready) {
            return;
        }
        self.started = true;
        let stored = std::mem::take(&mut self.stored);
        let rules = stored.len();
        self.desired.restore_terms(stored);
        self.desired.restore_kept(self.previous.rules());
        let shown = self.areas.iter().filter(|(_, watched)| watched.complete);
        self.restore(&shown.map(|(area, _)| area.clone()).collect(), now);
        self.restore_kept();
        let all: Vec<_> = self.desired.all_copies().cloned().collect();
        tracing::info!(rules, copies = all.len(), "watching this cluster's copies and namespaces");
        for copy in all {
            self.look(&copy, now);
        }
    }

    fn restore(&mut self, areas: &BTreeSet<Area>, now: Instant) {
        for copy in self.desired.restore_intents(areas, &self.records) {
            self.look(&copy, now);
        }
    }

    fn look_at_area(&mut self, area: &Area, now: Instant) {
        let all = self.desired.all_copies().filter(|copy| self.policy.area(copy).as_ref() == Some(area));
        for copy in all.cloned().collect::<Vec<_>>() {
            self.look(&copy, now);
        }
    }
}
