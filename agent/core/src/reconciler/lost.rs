//! Lost watches: what the agent remembers of the cluster may be out of date, so it reports them to the hub.
use std::collections::BTreeMap;
use std::time::Instant;

use runnel_proto::model::{AgentFrame, LostWatch, NAMESPACES};

use super::{Reconciler, WatchScope};
use crate::classify;
use crate::copy::CopyError;
use crate::desired::Namespace;

impl Reconciler {
    pub(super) fn watch_lost(&mut self, scope: &WatchScope, status: u16, now: Instant) {
        match scope {
            WatchScope::Namespaces => {
                if self.namespaces_lost.replace(status) != Some(status) {
                    tracing::warn!(
                        status,
                        "namespaces cannot be watched: the state of this cluster is not known any more"
                    );
                }
            }
            WatchScope::Copies(area) => {
                let Some(watched) = self.areas.get_mut(area) else { return };
                watched.lost = Some(status);
                if !watched.complete {
                    return self.copies_forbidden(area, classify::lost_watch(area.resource, status), now);
                }
            }
        }
        if !self.started {
            self.start_if_ready(now);
        }
    }

    pub(super) fn watch_resumed(&mut self, scope: &WatchScope) {
        match scope {
            WatchScope::Namespaces => self.namespaces_lost = None,
            WatchScope::Copies(area) => {
                if let Some(watched) = self.areas.get_mut(area) {
                    watched.lost = None;
                }
            }
        }
        self.prove_again();
    }

    /// Nothing is proved while a watch is lost: the rules are reported again when none is.
    pub(super) fn prove_again(&mut self) {
        if self.lost_watches().is_empty() {
            self.report.report_all(self.desired.rules().cloned());
        }
    }

    /// Why nothing can be decided about any copy: the namespaces were never listed.
    pub(super) fn namespaces_unknown(&self) -> Option<CopyError> {
        let status = self.namespaces_lost.filter(|_| !self.namespaces_complete)?;
        Some(classify::lost_watch(NAMESPACES, status))
    }

    /// The agent starts without a list of the namespaces: those in which copies are exist.
    pub(super) fn assume_namespaces(&mut self) {
        if self.namespaces_unknown().is_none() {
            return;
        }
        let names: std::collections::BTreeSet<_> = self.records.all().map(|copy| copy.namespace.clone()).collect();
        for name in names {
            self.desired.set_namespace(&name, Some(Namespace::default()), &self.records);
        }
    }

    /// The kinds of which a watch is lost.
    pub(super) fn lost_watches(&self) -> Vec<LostWatch> {
        let copies = self.areas.iter().filter_map(|(area, watched)| Some((area.resource, watched.lost?)));
        let namespaces = self.namespaces_lost.map(|status| (NAMESPACES, status));
        let lost: BTreeMap<_, _> = copies.chain(namespaces).collect();
        lost.into_iter().map(|(resource, status)| LostWatch { resource, status }).collect()
    }

    /// Reports the lost watches to the hub, after the states of all rules: when no watch is lost any more, the hub has received
    /// what happened meanwhile.
    pub(super) fn send_lost(&mut self) {
        let lost = self.lost_watches();
        if lost != self.sent_lost {
            self.sent_lost.clone_from(&lost);
            self.send(AgentFrame::LostWatches(lost));
        }
    }
}
