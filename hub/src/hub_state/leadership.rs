//! Whether this process leads, and whether it may serve.
use std::time::Instant;

use kube::CustomResourceExt;
use runnel_api::{ClusterDistributionRule, DistributionRule};
use runnel_hub_core::epoch::{Divergences, LeaderPosition};
use runnel_hub_core::lease::{Lead, Leader};
use runnel_hub_core::plan::WatchScope;
use tokio::sync::{Notify, watch};

use crate::ordered_lock::{DIVERGENCES, LEADER_POSITION, LEADERSHIP, OrderedMutex, OrderedRwLock};
use crate::relist_barrier::{RelistBarrier, Watched};

/// The list of completed rollouts, for the [`RelistBarrier`].
pub const COMPLETED_STATES: Watched = Watched::Own("completed rollouts");

/// The resources of the hub that must be listed before it serves.
const OWN_RESOURCES: [&str; 6] = [
    "memberclusters",
    "distributionrules",
    "clusterdistributionrules",
    "distributiongrants",
    "fleets",
    "namespaces",
];

/// Whether this process leads, and what it must do before it serves.
#[derive(Default)]
pub struct Leadership {
    /// The right to lead, if this process has it; see [`Leadership::leads`]. A renewal moves its
    /// deadline without a notification.
    pub lead: watch::Sender<Option<Lead>>,
    /// Another replica that leads.
    pub leader: watch::Sender<Option<Leader>>,
    /// The position of this process in the history of leaders, while it leads.
    pub leader_position: OrderedRwLock<Option<LeaderPosition>, LEADER_POSITION>,
    /// Signs that the hub's state is older than what members were sent.
    pub divergences: OrderedMutex<Divergences, DIVERGENCES>,
    /// Since when this process serves: since it listed everything after it took the lead.
    pub ready: watch::Sender<Option<Instant>>,
    /// The lists that must be complete before it serves.
    pub relist_barrier: RelistBarrier,
    /// Woken when a watch has delivered a complete list or was refused, and when the lead was taken.
    pub progress: Notify,
    /// Taking the lead and beginning to serve do not overlap.
    pub(super) lock: OrderedMutex<(), LEADERSHIP>,
}

impl Leadership {
    /// Since when the hub serves. Before that no agent could connect.
    pub fn serving_since(&self) -> Option<Instant> {
        *self.ready.borrow()
    }

    /// Whether this process leads now. Only a leader serves agents and writes to the hub's API.
    pub fn leads(&self) -> bool {
        self.current_lead().is_some()
    }

    /// The right to lead, if this process has it now.
    pub fn current_lead(&self) -> Option<Lead> {
        self.lead
            .borrow()
            .clone()
            .filter(|lead| Instant::now() < lead.valid_until)
    }

    /// Whether this process still has this right to lead, by the clock. Callers ask before each send.
    pub fn holds(&self, lead: &Lead) -> bool {
        self.lead
            .borrow()
            .as_ref()
            .is_some_and(|now| now.is_same(lead) && Instant::now() < now.valid_until)
    }

    /// Moves the deadline of the current right. Returns `false` if `lead` is another right.
    pub(super) fn renew(&self, lead: &Option<Lead>) -> bool {
        let is_same = match (&*self.lead.borrow(), lead) {
            (Some(current), Some(lead)) => current.is_same(lead),
            (None, None) => true,
            _ => false,
        };
        if is_same {
            self.lead.send_if_modified(|current| {
                current.clone_from(lead);
                false
            });
        }
        is_same
    }

    /// The former right has ended.
    pub(super) fn end(&self) {
        self.ready.send_replace(None);
        self.lead.send_replace(None);
        *self.divergences.lock() = Divergences::default();
    }

    /// A new right begins, with a relist of everything.
    pub(super) fn begin(&self, lead: Option<Lead>) {
        self.relist_barrier.begin();
        self.lead.send_replace(lead);
        self.progress.notify_one();
    }

    /// Whether the hub's own resources and these sources were listed since the lead was taken.
    pub(super) fn has_listed(&self, sources: Vec<WatchScope>) -> bool {
        let definitions = [
            DistributionRule::crd_name(),
            ClusterDistributionRule::crd_name(),
        ];
        let own = OWN_RESOURCES
            .into_iter()
            .chain(definitions)
            .map(Watched::Own);
        self.relist_barrier.have_all(
            own.chain([COMPLETED_STATES])
                .chain(sources.into_iter().map(Watched::Sources)),
        )
    }
}
