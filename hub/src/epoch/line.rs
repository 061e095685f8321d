//! Who has led, as the Lease says: one entry for each time that the lead was taken.
use std::fmt;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

use crate::index::version_number;

/// The annotation of the Lease.
pub const LINE: &str = "runnel.dev/line";
/// Entries that are kept, the newest.
const KEPT: usize = 64;

/// One time that the lead was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taking {
    /// The first digits of the Lease's uid.
    pub epoch: String,
    /// Its `leaseTransitions`.
    pub term: u64,
    /// Random per process.
    pub random: String,
    /// The Lease's version when the next one took it; `None`: nobody has.
    pub last: Option<u64>,
}

/// Who has led, the newest last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    takings: Vec<Taking>,
}

/// Of an epoch as many digits as tell it from others.
fn short_epoch(epoch: &str) -> String {
    epoch.chars().filter(char::is_ascii_hexdigit).take(16).collect()
}

impl fmt::Display for Line {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, taking) in self.takings.iter().enumerate() {
            let Taking { epoch, term, random, last } = taking;
            let gap = if number == 0 { "" } else { " " };
            let last = last.map(|last| last.to_string()).unwrap_or_default();
            write!(out, "{gap}{epoch}/{term}/{random}/{last}")?;
        }
        Ok(())
    }
}

impl Line {
    /// Reads the annotation; what is no entry is left out.
    pub fn parse(text: &str) -> Self {
        let one = |entry: &str| {
            let mut parts = entry.split('/');
            let (epoch, term, random, last) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
            let last = if last.is_empty() { None } else { Some(last.parse().ok()?) };
            Some(Taking { epoch: epoch.to_owned(), term: term.parse().ok()?, random: random.to_owned(), last })
        };
        Self { takings: text.split(' ').filter_map(one).collect() }
    }

    /// What a Lease says.
    pub fn of(lease: &Lease) -> Option<Self> {
        let said = lease.metadata.annotations.as_ref()?.get(LINE)?;
        let line = Self::parse(said).within(lease.metadata.uid.as_deref().unwrap_or_default());
        (!line.takings.is_empty()).then_some(line)
    }

    /// The line when the lead is taken from whoever held the Lease at this version; `None`: the Lease was gone. The epoch is
    /// empty where the Lease is made by this.
    pub fn taken(mut self, found: Option<&Lease>, (epoch, term): (&str, u64), random: &str) -> Self {
        let version = found.map(|lease| version_number(lease.metadata.resource_version.as_deref()));
        if let Some(newest) = self.takings.last_mut().filter(|newest| newest.last.is_none()) {
            // Where the Lease is gone nobody can tell how far its holder came: what that one told is taken for known.
            newest.last = Some(version.unwrap_or(u64::MAX));
        }
        let epoch = short_epoch(epoch);
        self.takings.push(Taking { epoch, term, random: random.to_owned(), last: None });
        let surplus = self.takings.len().saturating_sub(KEPT);
        self.takings.drain(..surplus);
        self
    }

    /// The line of a Lease that is there now: who made it did not know its uid.
    pub fn within(mut self, epoch: &str) -> Self {
        if let Some(newest) = self.takings.last_mut().filter(|newest| newest.epoch.is_empty()) {
            newest.epoch = short_epoch(epoch);
        }
        self
    }

    /// Who leads now.
    pub fn newest(&self) -> Option<&Taking> {
        self.takings.last()
    }

    /// All of them.
    pub fn takings(&self) -> impl Iterator<Item = &Taking> {
        self.takings.iter()
    }

    /// The newer half of all that can be kept: what is older will be forgotten some day.
    pub fn newer(&self) -> impl Iterator<Item = &Taking> {
        self.takings.iter().rev().take(KEPT / 2)
    }
}

/// Where the process that leads has come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Who has led, this process last.
    pub line: Line,
    /// The Lease's version at the last renewal.
    pub version: u64,
    /// When that was, in Unix seconds.
    pub renewed_at: u64,
    /// When the lead was taken.
    pub since: u64,
}

impl Standing {
    /// What the holder of this Lease has come to.
    pub fn of(lease: &Lease) -> Option<Self> {
        let spec = lease.spec.as_ref()?;
        let second = |time: Option<&MicroTime>| time.and_then(|time| u64::try_from(time.0.as_second()).ok());
        Some(Self {
            line: Line::of(lease)?,
            version: version_number(lease.metadata.resource_version.as_deref()),
            renewed_at: second(spec.renew_time.as_ref())?,
            since: second(spec.acquire_time.as_ref())?,
        })
    }
}
