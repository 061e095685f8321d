//! When a watch that fails is believed: that its kind cannot be read, and not only at this moment.
//!
//! An API server that has just started refuses what it allows a moment later. What it cannot list at all, such as Secrets of
//! which it cannot decrypt one, must not keep the hub from serving everything else.
use std::time::{Duration, Instant};

/// A refusal that is repeated for so long is believed.
const REFUSED_FOR: Duration = Duration::from_secs(10);
/// A list for which nothing has come for so long is not waited for.
const SILENT_FOR: Duration = Duration::from_secs(30);

/// How a watch fares.
pub(super) struct Patience {
    /// Since when it is refused, time after time.
    refused: Option<Instant>,
    /// When something came last, or the list was asked for.
    progress: Instant,
    /// Whether this round has had its list, or goes without.
    settled: bool,
    /// Whether the list was not waited for any longer, and nothing has come since.
    gave_up: bool,
    /// What the API server answered last instead.
    error: Option<String>,
}

impl Patience {
    /// A list has been asked for.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            refused: None,
            progress: now,
            settled: false,
            gave_up: false,
            error: None,
        }
    }

    /// The list of a new round was requested. If the list of the round before did not arrive, the
    /// leader does not wait again: it would serve no agent meanwhile.
    pub(super) fn begin(&mut self, now: Instant) {
        self.settled = false;
        if !self.gave_up {
            self.progress = now;
        }
    }

    /// Something came.
    pub(super) fn progress(&mut self, now: Instant) {
        (self.refused, self.progress, self.gave_up, self.error) = (None, now, false, None);
    }

    /// The list of this round is not waited for any longer.
    pub(super) fn stop_waiting(&mut self) {
        self.gave_up = true;
    }

    /// This round has had its list, or goes without.
    pub(super) fn settle(&mut self) {
        self.settled = true;
    }

    /// It is refused. Returns whether that is believed.
    pub(super) fn refused(&mut self, now: Instant) -> bool {
        match self.refused {
            Some(since) => now.saturating_duration_since(since) >= REFUSED_FOR,
            None => {
                self.refused = Some(now);
                false
            }
        }
    }

    /// It failed in another way.
    pub(super) fn failed(&mut self, error: String) {
        (self.refused, self.error) = (None, Some(error));
    }

    /// Returns when the leader stops waiting for the list of this round.
    pub(super) fn ends(&self) -> Option<Instant> {
        (!self.settled)
            .then_some(self.progress)
            .and_then(|progress| progress.checked_add(SILENT_FOR))
    }

    /// Why there is no list, for people.
    pub(super) fn why(&self) -> String {
        let error = self.error.as_deref().unwrap_or("does not answer");
        format!("the API server {error}; the hub tries again, and its log has details")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_counts_only_when_repeated() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut patience = Patience::new(start);
        assert!(!patience.refused(at(0)) && !patience.refused(at(5)) && patience.refused(at(10)));
        patience.progress(at(11));
        assert!(!patience.refused(at(12)), "it was allowed meanwhile");
        patience.failed("answers 500".to_owned());
        assert!(
            !patience.refused(at(30)),
            "another failure says nothing about rights"
        );
    }

    #[test]
    fn silent_list_is_abandoned_once_a_round() {
        let start = Instant::now();
        let mut patience = Patience::new(start);
        assert_eq!(patience.ends(), Some(start + SILENT_FOR));
        let later = start + Duration::from_secs(20);
        patience.progress(later);
        assert_eq!(
            patience.ends(),
            Some(later + SILENT_FOR),
            "a long list takes its time"
        );
        patience.failed("answers 500".to_owned());
        assert!(patience.why().contains("answers 500"));
        patience.settle();
        assert_eq!(patience.ends(), None);
        patience.begin(later);
        assert_eq!(patience.ends(), Some(later + SILENT_FOR));
        // The next round does without it at once, until something comes.
        patience.stop_waiting();
        patience.settle();
        let next = later + 10 * SILENT_FOR;
        patience.begin(next);
        assert!(patience.ends().is_some_and(|ends| ends < next));
        patience.progress(next);
        patience.begin(next);
        assert_eq!(patience.ends(), Some(next + SILENT_FOR));
    }
}
