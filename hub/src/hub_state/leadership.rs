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

/// The list of the completed rollouts, for the [`RelistBarrier`].
pub const COMPLETED_STATES: Watched = Watched::Own("completed rollouts");

/// The hub's own resources that must be listed before it serves.
const OWN_RESOURCES: [&str; 7] = [
    "memberclusters",
    "memberrecords",
    "distributionrules",
    "clusterdistributionrules",
    "distributiongrants",
    "fleets",
    "namespaces",
];

/// Whether this process leads, and which lists it needs before it serves.
#[derive(Default)]
pub struct Leadership {
    /// The right to lead, if this process has it; see [`Leadership::leads`]. A renewal moves its
    /// deadline without a notification.
    pub lead: watch::Sender<Option<Lead>>,
    /// The other replica that leads, if any.
    pub leader: watch::Sender<Option<Leader>>,
    /// The position of this process in the history of leaders, while it leads.
    pub leader_position: OrderedRwLock<Option<LeaderPosition>, LEADER_POSITION>,
    /// The newest divergence of each member: a sign that the hub state is older than what members
    /// were sent.
    pub divergences: OrderedMutex<Divergences, DIVERGENCES>,
    /// Since when this process serves: all lists have been complete since it took the lead.
    pub ready: watch::Sender<Option<Instant>>,
    /// The lists that must be complete before this process serves.
    pub relist_barrier: RelistBarrier,
    /// Woken when a watch has delivered a complete list or was refused, and when this process took
    /// the lead.
    pub progress: Notify,
    /// Serializes the change of the right to lead and the start of service.
    pub(super) lock: OrderedMutex<(), LEADERSHIP>,
}

impl Leadership {
    /// Returns since when the hub serves. No agent could connect earlier.
    pub fn serving_since(&self) -> Option<Instant> {
        *self.ready.borrow()
    }

    /// Whether this process leads now. Only a leader serves agents and writes to the hub's API.
    pub fn leads(&self) -> bool {
        self.current_lead().is_some()
    }

    /// Returns the right to lead, if it is valid now.
    pub fn current_lead(&self) -> Option<Lead> {
        self.lead
            .borrow()
            .clone()
            .filter(|lead| Instant::now() < lead.valid_until)
    }

    /// Whether this process still has this right to lead, by the clock. Callers check it before
    /// each send.
    pub fn is_leading(&self, lead: &Lead) -> bool {
        self.lead
            .borrow()
            .as_ref()
            .is_some_and(|now| now.is_same(lead) && Instant::now() < now.valid_until)
    }

    /// Extends the current right to lead. Returns `false` if `lead` is another right.
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

    /// Ends the current right to lead.
    pub(super) fn end(&self) {
        self.ready.send_replace(None);
        self.lead.send_replace(None);
        *self.divergences.lock() = Divergences::default();
    }

    /// Starts a new right to lead, with a relist of everything.
    pub(super) fn begin(&self, lead: Option<Lead>) {
        self.relist_barrier.begin();
        self.lead.send_replace(lead);
        self.progress.notify_one();
    }

    /// Whether the hub's own resources and these sources were listed since this process took the
    /// lead.
    pub(super) fn has_listed(&self, sources: Vec<WatchScope>) -> bool {
        let crds = [
            DistributionRule::crd_name(),
            ClusterDistributionRule::crd_name(),
        ];
        let own = OWN_RESOURCES.into_iter().chain(crds).map(Watched::Own);
        self.relist_barrier.have_all(
            own.chain([COMPLETED_STATES])
                .chain(sources.into_iter().map(Watched::Sources)),
        )
    }
}
