//! What the watches say, and the start: nothing is decided before each has delivered a complete list.
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use runnel_proto::model::{KINDS, SourceRef};

use super::Core;
use crate::desired::Namespace;
use crate::live::{Live, Ownership};

impl Core {
    pub(super) fn copies_listed(&mut self, resource: &'static str) {
        self.kinds.entry(resource).or_default().listing = Some(BTreeSet::new());
    }

    pub(super) fn copy_seen(&mut self, copy: &SourceRef, live: Live, now: Instant) {
        if let Some(listing) = self.kinds.get_mut(&*copy.resource).and_then(|kind| kind.listing.as_mut()) {
            listing.insert(copy.clone());
        }
        if let Some(run) = self.runs.get_mut(copy) {
            run.heard.push(Some(live.version.clone()));
        }
        if self.records.watched(copy, live) {
            self.look(copy, now);
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

    pub(super) fn copies_complete(&mut self, resource: &'static str, now: Instant) {
        let kind = self.kinds.entry(resource).or_default();
        let seen = kind.listing.take().unwrap_or_default();
        let first = !kind.complete;
        (kind.complete, kind.forbidden) = (true, false);
        // Objects that are not ours were read, not watched: the list says nothing about them.
        let ours = |copy: &SourceRef| self.records.live(copy).is_some_and(|live| live.ownership == Ownership::Ours);
        let lost: Vec<_> = self
            .records
            .names(resource, None)
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
            self.restore(resource, now);
            self.look_at_kind(resource, now);
        }
    }

    pub(super) fn copies_forbidden(&mut self, resource: &'static str, now: Instant) {
        let kind = self.kinds.entry(resource).or_default();
        if std::mem::replace(&mut kind.forbidden, true) {
            return;
        }
        (kind.complete, kind.listing) = (false, None);
        tracing::warn!(
            kind = resource,
            "this agent may not list and watch a kind here: grant it the rights of its ClusterRole"
        );
        if self.started { self.look_at_kind(resource, now) } else { self.start_if_ready(now) }
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

    fn start_if_ready(&mut self, now: Instant) {
        if !self.namespaces_complete || !self.kinds.values().all(|kind| kind.complete || kind.forbidden) {
            return;
        }
        self.started = true;
        let stored = std::mem::take(&mut self.stored);
        let rules = stored.len();
        self.desired.restore_terms(stored);
        for kind in KINDS {
            if self.kinds.get(kind.resource).is_some_and(|state| state.complete) {
                self.restore(kind.resource, now);
            }
        }
        let all: Vec<_> = self.desired.all_copies().cloned().collect();
        tracing::info!(rules, copies = all.len(), "watching this cluster's copies and namespaces");
        for copy in all {
            self.look(&copy, now);
        }
    }

    fn restore(&mut self, resource: &'static str, now: Instant) {
        for copy in self.desired.restore_intents(resource, &self.records) {
            self.look(&copy, now);
        }
    }

    fn look_at_kind(&mut self, resource: &'static str, now: Instant) {
        let all: Vec<_> = self.desired.all_copies().filter(|copy| *copy.resource == *resource).cloned().collect();
        for copy in all {
            self.look(&copy, now);
        }
    }
}
