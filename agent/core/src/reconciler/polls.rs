//! Reads of objects whose changes no watch shows: foreign objects in the way of copies, and names of planned or lost copies.
//! All reads share one budget. Each copy is read at growing intervals, so that few reads are left at rest.
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use runnel_proto::model::SourceRef;

use crate::backoff::POLL;

/// The least time between two reads: five per second.
const INTERVAL: Duration = Duration::from_millis(200);

/// The reads of one copy.
#[derive(Default)]
struct Poll {
    /// The number of reads since the desired state last changed.
    reads: u32,
    due: Option<Instant>,
}

/// The copies that are read again and again.
#[derive(Default)]
pub(super) struct Polls {
    copies: BTreeMap<SourceRef, Poll>,
    due: BTreeSet<(Instant, SourceRef)>,
    /// The earliest time of the next read.
    free_at: Option<Instant>,
}

impl Polls {
    /// Schedules the next read of a copy, unless there is one. `random` is uniformly distributed over 0..1.
    pub(super) fn add(&mut self, copy: &SourceRef, random: f64, now: Instant) {
        let poll = self.copies.entry(copy.clone()).or_default();
        if poll.due.is_none() {
            let at = now + POLL.jittered(poll.reads.saturating_add(1), random);
            poll.due = Some(at);
            self.due.insert((at, copy.clone()));
        }
    }

    /// Ends the reads of a copy. Later ones begin with the shortest interval.
    pub(super) fn forget(&mut self, copy: &SourceRef) {
        if let Some(at) = self.copies.remove(copy).and_then(|poll| poll.due) {
            self.due.remove(&(at, copy.clone()));
        }
    }

    /// Returns a copy that is to be read now, if the budget allows it.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<SourceRef> {
        if self.next_due()? > now {
            return None;
        }
        let (_, copy) = self.due.pop_first()?;
        self.free_at = Some(now + INTERVAL);
        if let Some(poll) = self.copies.get_mut(&copy) {
            *poll = Poll {
                reads: poll.reads.saturating_add(1),
                due: None,
            };
        }
        Some(copy)
    }

    /// Returns when the next copy is to be read.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let (due, _) = self.due.first()?;
        Some(self.free_at.map_or(*due, |free_at| free_at.max(*due)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(number: usize) -> SourceRef {
        SourceRef::new("configmaps", "a", &number.to_string())
    }

    /// Plays reads whose results change nothing. Returns their times.
    fn reads(copies: usize, duration: Duration) -> Vec<(Duration, SourceRef)> {
        let begin = Instant::now();
        let (mut polls, mut reads) = (Polls::default(), vec![]);
        for number in 0..copies {
            polls.add(&copy(number), 0.5, begin);
        }
        while let Some(now) = polls.next_due().filter(|now| *now <= begin + duration) {
            let copy = polls.take_due(now).unwrap();
            polls.add(&copy, 0.5, now);
            reads.push((now - begin, copy));
        }
        reads
    }

    #[test]
    fn reads_of_many_copies_share_one_budget() {
        let copies = 10_000;
        let hour = Duration::from_secs(3600);
        let reads = reads(copies, hour);
        let apart = |pair: &[(Duration, SourceRef)]| pair[1].0 - pair[0].0;
        assert!(reads.windows(2).all(|pair| apart(pair) >= INTERVAL));
        let read: BTreeSet<_> = reads.iter().map(|(_, copy)| copy).collect();
        assert_eq!(read.len(), copies, "each has its turn");
    }

    #[test]
    fn reads_of_a_copy_become_rare() {
        let times: Vec<_> = reads(1, Duration::from_secs(3600))
            .into_iter()
            .map(|(at, _)| at.as_secs())
            .collect();
        assert_eq!(times[..5], [22, 67, 157, 337, 562]);
        assert!(times.len() <= 20, "{times:?}");
    }

    #[test]
    fn forgotten_copy_begins_with_the_shortest_interval() {
        let (mut now, mut polls) = (Instant::now(), Polls::default());
        for _ in 0..5 {
            polls.add(&copy(1), 1.0, now);
            now = polls.next_due().unwrap();
            polls.take_due(now).unwrap();
        }
        polls.add(&copy(1), 1.0, now);
        polls.forget(&copy(1));
        assert_eq!(polls.next_due(), None);
        polls.add(&copy(1), 1.0, now);
        assert_eq!(polls.next_due(), Some(now + POLL.base));
    }
}
