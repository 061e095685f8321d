//! The history of leaders in the Lease: one entry for each change of the leader.
use std::fmt;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

use crate::index::version_number;

/// The annotation of the Lease.
pub const LEADER_HISTORY: &str = "runnel.dev/line";
/// Number of stored entries, the newest ones. After a restore, the hub can distinguish lost tokens
/// from old ones for as many changes of the leader.
pub(super) const MAX_ENTRIES: usize = 256;
/// The value of `last` if the Lease was deleted, so that the version is unknown.
const DELETED_VERSION: u64 = u64::MAX;
/// An abbreviation for the epoch of the entry before.
const SAME_EPOCH: &str = "=";

/// A term of a leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderTerm {
    /// The first digits of the Lease's uid.
    pub epoch: String,
    /// Its `leaseTransitions`.
    pub term: u64,
    /// Random per process.
    pub random: String,
    /// The Lease's version when its holder released it, or else when the next one took it; `None`
    /// before both.
    pub last: Option<u64>,
}

impl LeaderTerm {
    fn parse(entry: &str, before: Option<&Self>) -> Option<Self> {
        let mut parts = entry.split('/');
        let (epoch, term, random, last) =
            (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let epoch = if epoch == SAME_EPOCH {
            before?.epoch.clone()
        } else {
            epoch.to_owned()
        };
        let last = if last.is_empty() {
            None
        } else {
            Some(last.parse().ok()?)
        };
        Some(Self {
            epoch,
            term: term.parse().ok()?,
            random: random.to_owned(),
            last,
        })
    }
}

/// The leaders, the newest last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaderHistory {
    /// The highest `last` of all dropped entries. A token up to this version is too old to be
    /// judged, and does not prove a restore: a member may be disconnected for any number of leader
    /// changes.
    dropped: u64,
    terms: Vec<LeaderTerm>,
}

/// Returns as many digits of an epoch as distinguish it from others.
fn short_epoch(epoch: &str) -> String {
    epoch
        .chars()
        .filter(char::is_ascii_hexdigit)
        .take(16)
        .collect()
}

impl fmt::Display for LeaderHistory {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.dropped > 0 {
            write!(out, "{} ", self.dropped)?;
        }
        let mut before = None;
        for (number, leader_term) in self.terms.iter().enumerate() {
            let LeaderTerm {
                epoch,
                term,
                random,
                last,
            } = leader_term;
            let gap = if number == 0 { "" } else { " " };
            let last = last.map(|last| last.to_string()).unwrap_or_default();
            let same = before.replace(epoch) == Some(epoch);
            let epoch = if same { SAME_EPOCH } else { epoch.as_str() };
            write!(out, "{gap}{epoch}/{term}/{random}/{last}")?;
        }
        Ok(())
    }
}

impl LeaderHistory {
    /// Parses the annotation; invalid entries are skipped.
    pub fn parse(text: &str) -> Self {
        let mut line = Self::default();
        for entry in text.split(' ') {
            if let Some(leader_term) = LeaderTerm::parse(entry, line.terms.last()) {
                line.terms.push(leader_term);
            } else if let Ok(dropped) = entry.parse() {
                line.dropped = dropped;
            }
        }
        line
    }

    /// Reads the annotation of a Lease.
    pub fn of(lease: &Lease) -> Option<Self> {
        let message = lease.metadata.annotations.as_ref()?.get(LEADER_HISTORY)?;
        let line =
            Self::parse(message).with_lease_uid(lease.metadata.uid.as_deref().unwrap_or_default());
        (!line.terms.is_empty()).then_some(line)
    }

    /// Returns the history after a process has taken the Lease of a holder at this version; `None`:
    /// the Lease was deleted. The epoch is empty if this write creates the Lease.
    pub fn with_new_term(
        self,
        found: Option<&Lease>,
        (epoch, term): (&str, u64),
        random: &str,
    ) -> Self {
        let mut history = self.ended(found);
        let epoch = short_epoch(epoch);
        history.terms.push(LeaderTerm {
            epoch,
            term,
            random: random.to_owned(),
            last: None,
        });
        while history.terms.len() > MAX_ENTRIES {
            let oldest = history.terms.remove(0);
            // Versions only rise: the next leader has a higher version than the one whose Lease was
            // deleted.
            let next = history.terms.first().and_then(|next| next.last);
            let known = [oldest.last, next]
                .into_iter()
                .flatten()
                .find(|last| *last != DELETED_VERSION);
            history.dropped = history.dropped.max(known.unwrap_or_default());
        }
        history
    }

    /// Returns the history after the leader has led up to this Lease; `None`: the Lease was
    /// deleted. Ended entries do not change.
    pub fn ended(mut self, found: Option<&Lease>) -> Self {
        let version = found.map(|lease| version_number(lease.metadata.resource_version.as_deref()));
        if let Some(newest) = self.terms.last_mut().filter(|newest| newest.last.is_none()) {
            // After the Lease was deleted, the last version of its holder is unknown. All of that
            // holder's tokens count as known.
            newest.last = Some(version.unwrap_or(DELETED_VERSION));
        }
        self
    }

    /// Whether entries up to this version were dropped.
    pub fn is_dropped(&self, version: u64) -> bool {
        version <= self.dropped
    }

    /// Returns the history for a Lease that exists now. Its creator did not know its uid.
    pub fn with_lease_uid(mut self, epoch: &str) -> Self {
        if let Some(newest) = self
            .terms
            .last_mut()
            .filter(|newest| newest.epoch.is_empty())
        {
            newest.epoch = short_epoch(epoch);
        }
        self
    }

    /// Returns the current leader.
    pub fn newest(&self) -> Option<&LeaderTerm> {
        self.terms.last()
    }

    /// Returns all terms.
    pub fn terms(&self) -> impl Iterator<Item = &LeaderTerm> {
        self.terms.iter()
    }

    /// Returns the newer half of the possible entries; the older ones will be dropped.
    pub fn newer(&self) -> impl Iterator<Item = &LeaderTerm> {
        self.terms.iter().rev().take(MAX_ENTRIES / 2)
    }
}

/// The position of the leading process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderPosition {
    /// The leaders, this process last.
    pub line: LeaderHistory,
    /// The Lease's version at the last renewal.
    pub version: u64,
    /// The time of the renewal, in Unix seconds.
    pub renewed_at: u64,
    /// The time of the change of leader.
    pub since: u64,
}

impl LeaderPosition {
    /// Returns the position of the holder of this Lease.
    pub fn of(lease: &Lease) -> Option<Self> {
        let spec = lease.spec.as_ref()?;
        let second =
            |time: Option<&MicroTime>| time.and_then(|time| u64::try_from(time.0.as_second()).ok());
        Some(Self {
            line: LeaderHistory::of(lease)?,
            version: version_number(lease.metadata.resource_version.as_deref()),
            renewed_at: second(spec.renew_time.as_ref())?,
            since: second(spec.acquire_time.as_ref())?,
        })
    }
}
