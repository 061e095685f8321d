//! The election: what a process concludes from an observed Lease, and its next step. The replicas
//! of a hub and those of an agent use the same rules.
//!
//! The module has no clock: `now` is an instant of the process's monotonic clock.
//!
//! The timing is client-go's: the holder renews the Lease every `interval` and stops leading when no
//! renewal succeeded for `renew`; another process takes the Lease when it has *seen* no change for
//! `lease`. `renew` is shorter than `lease` and counts from before the request was sent, so no two
//! processes lead at one time, whatever the clocks of the nodes are.
mod timing;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};

pub use timing::{LONGEST_LEASE, SHORTEST_LEASE, Timing, TimingError};

/// The annotation with the address at which other replicas reach the holder of a Lease.
pub const ADDRESS: &str = "runnel.dev/replica-address";
/// Number of stored epochs.
const EPOCHS: usize = 64;

/// The identity of a Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseName {
    /// The name of the Lease, in the namespace of its processes.
    pub name: &'static str,
    /// The label `app.kubernetes.io/component` of a Lease that is created.
    pub component: &'static str,
}

/// A process that may lead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The name of the pod or of the process.
    pub name: String,
    /// Whether the name is unique among running processes, so that a Lease under it at the start
    /// belongs to a dead predecessor.
    pub is_unique: bool,
    /// Random per process.
    pub random: String,
    /// The address for other replicas.
    pub address: Option<String>,
}

impl Holder {
    /// Returns the holder identity in the Lease: the name and the random part.
    pub fn identity(&self) -> String {
        format!("{}_{}", self.name, self.random)
    }
}

/// The right to lead, with its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lead {
    /// The Lease's uid.
    pub epoch: String,
    /// Its `leaseTransitions`.
    pub term: u64,
    /// By the monotonic clock. Renewals move it.
    pub valid_until: Instant,
}

impl Lead {
    /// Whether it is the same right, perhaps renewed.
    pub fn is_same(&self, other: &Self) -> bool {
        self.epoch == other.epoch && self.term == other.term
    }
}

/// Another process that leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// The content of the Lease.
    pub identity: String,
    /// The address for connections from other replicas.
    pub address: Option<String>,
}

/// The next step of the process.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Do nothing before this instant, unless the Lease changes.
    Wait(Instant),
    /// Reads the Lease.
    Read,
    /// Makes the Lease.
    Create(Lease),
    /// Replace the Lease, if it is unchanged.
    Replace(Lease),
    /// Removes the Lease of this uid, which has no terms left. The next Lease begins a new epoch.
    Remove(String),
}

/// The last observed Lease.
enum Seen {
    /// The Lease was not read yet.
    Nothing,
    /// It is not there, and may be made from this moment on.
    Absent(Instant),
    /// The Lease exists, first observed in this form at this instant.
    Present(Box<Lease>, Instant),
}

/// The state of the election in one process.
pub struct Candidate {
    name: LeaseName,
    me: Holder,
    timing: Timing,
    last_observed: Seen,
    lead: Option<Lead>,
    /// The time of the next retry or renewal.
    not_before: Option<Instant>,
    /// Whether the last observation may be outdated.
    stale: bool,
    /// The time of the last read or watch event of the Lease.
    received_at: Option<Instant>,
    /// Whether a Lease with a holder was observed since the start: the first one may be a
    /// predecessor's.
    has_observed_holder: bool,
    /// The version of the Lease that was the first observed one without a living holder, and when it was. This process took
    /// that version, or no process has led since.
    free: Option<(String, u64, Instant)>,
    /// The highest observed term of each epoch: a restored Lease begins again with lower ones.
    terms: BTreeMap<String, u64>,
}

fn spec(lease: &Lease) -> LeaseSpec {
    lease.spec.clone().unwrap_or_default()
}

/// The holder that a Lease names; `None` for a Lease that is free.
pub fn holder(lease: &Lease) -> Option<&str> {
    lease
        .spec
        .as_ref()?
        .holder_identity
        .as_deref()
        .filter(|holder| !holder.is_empty())
}

/// The term of a Lease: its `leaseTransitions`.
pub fn term(lease: &Lease) -> u64 {
    lease
        .spec
        .as_ref()
        .and_then(|spec| spec.lease_transitions)
        .and_then(|n| u64::try_from(n).ok())
        .unwrap_or_default()
}

fn uid(lease: &Lease) -> String {
    lease.metadata.uid.clone().unwrap_or_default()
}

/// The version of a Lease as a number; 0 for none.
pub fn version(lease: &Lease) -> u64 {
    lease
        .metadata
        .resource_version
        .as_deref()
        .and_then(|version| version.parse().ok())
        .unwrap_or_default()
}

impl Candidate {
    /// Creates a candidate that has not observed the Lease.
    pub fn new(name: LeaseName, me: Holder, timing: Timing) -> Self {
        Self {
            name,
            me,
            timing,
            last_observed: Seen::Nothing,
            lead: None,
            not_before: None,
            stale: false,
            received_at: None,
            has_observed_holder: false,
            free: None,
            terms: BTreeMap::new(),
        }
    }

    /// Returns the lead of this process, if it leads.
    pub fn lead(&self, now: Instant) -> Option<&Lead> {
        self.lead.as_ref().filter(|lead| now < lead.valid_until)
    }

    /// Returns the last observed Lease.
    pub fn lease(&self) -> Option<&Lease> {
        match &self.last_observed {
            Seen::Present(lease, _) => Some(lease),
            Seen::Nothing | Seen::Absent(_) => None,
        }
    }

    /// Returns since when no other process has led, if this process took the Lease just as it was then.
    pub fn free_since(&self) -> Option<Instant> {
        self.free.as_ref().map(|(.., since)| *since)
    }

    fn is_first_free(&self, lease: &Lease) -> bool {
        let free = self.free.as_ref();
        free.is_some_and(|(known, number, _)| *known == uid(lease) && *number == version(lease))
    }

    /// Whether another process leads, by the last observation.
    pub fn belongs_to_another(&self) -> bool {
        self.lease().is_some_and(|lease| self.is_anothers(lease))
    }

    /// Returns the other process that leads. A leader at this process's own address is a dead
    /// predecessor: forwarded connections would come back, and are closed when this process leads.
    pub fn leader(&self) -> Option<Leader> {
        let lease = self.lease()?;
        let identity = holder(lease).filter(|holder| *holder != self.me.identity())?;
        let address = lease
            .metadata
            .annotations
            .as_ref()
            .and_then(|all| all.get(ADDRESS))
            .cloned();
        let address = address.filter(|address| self.me.address.as_ref() != Some(address));
        Some(Leader {
            identity: identity.to_owned(),
            address,
        })
    }

    /// A watch has delivered the Lease. The event may be late: if it is not plainly newer, it only
    /// triggers a read.
    pub fn received(&mut self, lease: Option<Lease>, now: Instant) {
        match (lease, self.lease()) {
            (Some(new), Some(known))
                if uid(&new) == uid(known) && version(&new) == version(known) =>
            {
                self.received_at = Some(now);
            }
            (Some(new), Some(known))
                if uid(&new) == uid(known) && version(&new) > version(known) =>
            {
                self.observe(Some(new), now);
            }
            (None, None) => {}
            _ => self.stale = true,
        }
        if self.lead.is_none() {
            self.not_before = None;
        }
    }

    /// The Lease was read. The read ended at `now`.
    pub fn observe(&mut self, lease: Option<Lease>, now: Instant) {
        self.stale = false;
        self.received_at = Some(now);
        let Some(lease) = lease else {
            let may_create = match &self.last_observed {
                Seen::Absent(at) => *at,
                // Its holder may not have observed that yet, and may lead for a while.
                Seen::Present(before, _) if self.is_anothers(before) => now + self.duration(before),
                Seen::Present(..) | Seen::Nothing => now,
            };
            self.last_observed = Seen::Absent(may_create);
            (self.lead, self.free) = (None, None);
            return;
        };
        let is_older = self.is_older(&lease);
        self.remember(&lease);
        // After a restore what this process has sent may be unknown, though it leads by the same term.
        if let Some(lead) = &self.lead
            && (is_older
                || !(uid(&lease) == lead.epoch
                    && term(&lease) == lead.term
                    && self.is_mine(&lease)))
        {
            self.lead = None;
        }
        let since = match &self.last_observed {
            // Only the holder's own writes count as renewals, because any client may write the
            // Lease.
            Seen::Present(before, since)
                if uid(before) == uid(&lease) && before.spec == lease.spec =>
            {
                *since
            }
            _ => now,
        };
        let since = if self.is_predecessors(&lease) {
            now.checked_sub(LONGEST_LEASE).unwrap_or(now)
        } else {
            since
        };
        if !self.is_first_free(&lease) {
            let is_free = holder(&lease).is_none() || self.is_predecessors(&lease);
            self.free = is_free.then(|| (uid(&lease), version(&lease), now));
        }
        self.has_observed_holder |= holder(&lease).is_some();
        self.last_observed = Seen::Present(Box::new(lease), since);
    }

    /// A write that was sent at `sent` gave this Lease.
    pub fn record_write(&mut self, lease: Lease, sent: Instant, now: Instant) {
        let mine = self.is_mine(&lease);
        let lead = Lead {
            epoch: uid(&lease),
            term: term(&lease),
            valid_until: sent + self.timing.renew,
        };
        if !self.lease().is_some_and(|taken| self.is_first_free(taken)) {
            self.free = None;
        }
        self.remember(&lease);
        self.stale = false;
        self.received_at = Some(now);
        self.has_observed_holder = true;
        self.last_observed = Seen::Present(Box::new(lease), now);
        self.lead = Some(lead).filter(|lead| mine && now < lead.valid_until);
        self.not_before = Some(sent + self.timing.interval);
    }

    /// A write or a read failed; `changed`: because the Lease differs from the last observed one.
    pub fn failed(&mut self, changed: bool, now: Instant) {
        self.stale |= changed;
        self.not_before = Some(if changed {
            now
        } else {
            now + self.timing.retry
        });
    }

    /// Removes the holder from the Lease, if this process leads; from now on it does not.
    pub fn release(&mut self) -> Option<Lease> {
        self.lead = None;
        let Seen::Present(lease, _) = &self.last_observed else {
            return None;
        };
        if !self.is_mine(lease) {
            return None;
        }
        let mut released = (**lease).clone();
        let spec = released.spec.get_or_insert_default();
        spec.holder_identity = None;
        if let Some(annotations) = &mut released.metadata.annotations {
            annotations.remove(ADDRESS);
        }
        Some(released)
    }

    /// Returns the next step. `eligible`: the process has enough state to lead. `wall` is the time
    /// for people.
    pub fn next(&mut self, eligible: bool, now: Instant, wall: Timestamp) -> Step {
        if self.lead.is_some() && self.lead(now).is_none() {
            self.lead = None;
        }
        if let Some(at) = self.not_before.filter(|at| now < *at) {
            // The right may end before.
            return Step::Wait(
                self.lead
                    .as_ref()
                    .map_or(at, |lead| at.min(lead.valid_until)),
            );
        }
        // A working watch delivers each renewal; without one the Lease must be read.
        let read_at = self
            .received_at
            .map_or(now, |at| at + self.timing.interval + self.timing.retry);
        if self.stale || matches!(self.last_observed, Seen::Nothing) {
            return Step::Read;
        }
        let lease = self.lease();
        if let (Some(lease), Some(_)) = (lease, &self.lead) {
            return Step::Replace(self.renewed(lease, wall));
        }
        let free_at = match &self.last_observed {
            Seen::Present(lease, since) if self.is_anothers(lease) => *since + self.duration(lease),
            Seen::Absent(at) => *at,
            Seen::Present(..) | Seen::Nothing => now,
        };
        match lease {
            _ if now < free_at || !eligible => {
                if now >= read_at {
                    Step::Read
                } else if now < free_at {
                    Step::Wait(free_at.min(read_at))
                } else {
                    Step::Wait(read_at)
                }
            }
            None => Step::Create(self.taken_lease(None, wall)),
            Some(lease) if self.next_term(lease) > i32::MAX as u64 => Step::Remove(uid(lease)),
            Some(lease) => Step::Replace(self.taken_lease(Some(lease), wall)),
        }
    }

    fn is_mine(&self, lease: &Lease) -> bool {
        holder(lease) == Some(self.me.identity().as_str())
    }

    /// Whether the Lease is older than the last observed one: its API server was restored from a
    /// backup.
    pub fn is_older(&self, lease: &Lease) -> bool {
        let Some(known) = self.lease() else {
            return false;
        };
        uid(known) == uid(lease) && version(lease) < version(known)
    }

    fn is_anothers(&self, lease: &Lease) -> bool {
        holder(lease).is_some() && !self.is_mine(lease)
    }

    /// Whether a former process of this name holds it.
    fn is_predecessors(&self, lease: &Lease) -> bool {
        let name = holder(lease)
            .and_then(|holder| holder.rsplit_once('_'))
            .map(|(name, _)| name);
        self.me.is_unique && !self.has_observed_holder && name == Some(self.me.name.as_str())
    }

    /// Returns how long the holder of this Lease may lead after it was observed.
    fn duration(&self, lease: &Lease) -> Duration {
        let seconds = lease
            .spec
            .as_ref()
            .and_then(|spec| spec.lease_duration_seconds);
        let message = seconds
            .and_then(|n| u64::try_from(n).ok())
            .map(Duration::from_secs);
        message
            .filter(|message| (SHORTEST_LEASE..=LONGEST_LEASE).contains(message))
            .unwrap_or(self.timing.lease)
    }

    fn remember(&mut self, lease: &Lease) {
        let (epoch, term) = (uid(lease), term(lease));
        if self.terms.len() >= EPOCHS {
            self.terms.retain(|known, _| *known == epoch);
        }
        let highest = self.terms.entry(epoch).or_default();
        *highest = term.max(*highest);
    }

    fn next_term(&self, lease: &Lease) -> u64 {
        term(lease).max(self.terms.get(&uid(lease)).copied().unwrap_or_default()) + 1
    }

    fn renewed(&self, lease: &Lease, wall: Timestamp) -> Lease {
        let mut lease = lease.clone();
        lease.spec = Some(LeaseSpec {
            lease_duration_seconds: Some(whole_seconds(self.timing.lease)),
            renew_time: Some(MicroTime(wall)),
            ..spec(&lease)
        });
        lease
    }

    fn taken_lease(&self, lease: Option<&Lease>, wall: Timestamp) -> Lease {
        let term = lease.map_or(1, |lease| self.next_term(lease));
        let mut metadata = lease
            .map(|lease| lease.metadata.clone())
            .unwrap_or_else(|| ObjectMeta {
                name: Some(self.name.name.to_owned()),
                labels: Some(
                    [
                        ("app.kubernetes.io/name", "runnel"),
                        ("app.kubernetes.io/component", self.name.component),
                    ]
                    .map(|(key, value)| (key.to_owned(), value.to_owned()))
                    .into(),
                ),
                ..ObjectMeta::default()
            });
        match (&self.me.address, &mut metadata.annotations) {
            (Some(address), annotations) => {
                annotations
                    .get_or_insert_default()
                    .insert(ADDRESS.to_owned(), address.clone());
            }
            (None, Some(annotations)) => drop(annotations.remove(ADDRESS)),
            (None, None) => {}
        }
        let spec = LeaseSpec {
            holder_identity: Some(self.me.identity()),
            lease_duration_seconds: Some(whole_seconds(self.timing.lease)),
            lease_transitions: Some(i32::try_from(term).unwrap_or(i32::MAX)),
            acquire_time: Some(MicroTime(wall)),
            renew_time: Some(MicroTime(wall)),
            ..LeaseSpec::default()
        };
        Lease {
            metadata,
            spec: Some(spec),
        }
    }
}

/// Rounded up, so that no process takes the Lease too early.
fn whole_seconds(duration: Duration) -> i32 {
    i32::try_from(duration.as_secs() + u64::from(duration.subsec_nanos() > 0)).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests;
