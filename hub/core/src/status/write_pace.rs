//! The pace of status writes.
use std::time::{Duration, Instant};

/// Minimum interval between two writes of one status, and maximum delay of a change.
const BEAT: Duration = Duration::from_secs(1);

/// Paces the writes of one status: a change that settles quickly costs one write, one that does not is shown after a
/// second, and no status is written more often than once a second, but that the end of a change which was shown in
/// progress is written at once. The finalizer of a deleted rule waits for no beat.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    dirty_since: Option<Instant>,
    last_write: Option<Instant>,
    /// Whether something changed since the last attempt to release the rule.
    unreleased: bool,
    /// Whether the last write showed a change in progress.
    shows_progress: bool,
}

impl Pace {
    /// Something changed.
    pub fn mark(&mut self, now: Instant) {
        self.dirty_since.get_or_insert(now);
        self.unreleased = true;
    }

    /// Returns when to try to release a deleted rule: after each change.
    pub fn release_due(&self) -> Option<Instant> {
        self.dirty_since.filter(|_| self.unreleased)
    }

    /// The rule could not be released; its status is still to be checked. The next change is
    /// another try.
    pub fn tried_release(&mut self) {
        self.unreleased = false;
    }

    /// Returns when to check the status after a change; `settled` is called only then.
    pub fn due(&self, settled: impl FnOnce() -> bool) -> Option<Instant> {
        let since = self.dirty_since?;
        let settled = settled();
        let wanted = if settled { since } else { since + BEAT };
        let last_write = self
            .last_write
            .filter(|_| !(settled && self.shows_progress));
        Some(last_write.map_or(wanted, |last| wanted.max(last + BEAT)))
    }

    /// Whether there is an unchecked change.
    pub fn is_dirty(&self) -> bool {
        self.dirty_since.is_some()
    }

    /// Whether the last write still delays the next one.
    pub fn is_recent(&self, now: Instant) -> bool {
        self.last_write
            .is_some_and(|last| now.saturating_duration_since(last) < BEAT)
    }

    /// Whether the change has been in progress for so long that the status should report it.
    pub fn is_overdue(&self, now: Instant) -> bool {
        self.dirty_since
            .is_some_and(|since| now.saturating_duration_since(since) >= BEAT)
    }

    /// The status was checked; `written`: with a write. The next change marks it again.
    pub fn done(&mut self, now: Instant, written: bool) {
        if written {
            self.shows_progress = self.is_overdue(now);
            self.last_write = Some(now);
        }
        (self.dirty_since, self.unreleased) = (None, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settled_change_is_written_at_once_and_next_after_a_second() {
        let start = Instant::now();
        let mut pace = Pace::default();
        assert_eq!(pace.due(|| true), None);
        pace.mark(start);
        assert_eq!(pace.due(|| true), Some(start));
        pace.done(start, true);
        assert_eq!(pace.due(|| true), None);
        pace.mark(start + BEAT / 4);
        assert_eq!(pace.due(|| true), Some(start + BEAT));
    }

    #[test]
    fn end_of_a_change_does_not_wait_for_the_write_of_its_progress() {
        let start = Instant::now();
        let at = |part: u32| start + BEAT / 10 * part;
        let mut pace = Pace::default();
        pace.mark(start);
        pace.done(at(10), true);
        pace.mark(at(11));
        assert_eq!(pace.due(|| false), Some(at(21)));
        assert_eq!(pace.due(|| true), Some(at(11)));
        pace.done(at(11), true);
        pace.mark(at(12));
        assert_eq!(
            pace.due(|| true),
            Some(at(21)),
            "two writes in a second at most"
        );
    }

    #[test]
    fn deleted_rule_is_released_without_the_pace_of_its_status() {
        let start = Instant::now();
        let at = |part: u32| start + BEAT / 10 * part;
        let mut pace = Pace::default();
        assert_eq!(pace.release_due(), None);
        pace.mark(start);
        pace.done(start, true);
        pace.mark(at(1));
        assert_eq!(
            (pace.release_due(), pace.due(|| false)),
            (Some(at(1)), Some(at(11)))
        );
        pace.tried_release();
        assert_eq!(
            (pace.release_due(), pace.due(|| false)),
            (None, Some(at(11))),
            "one try for each change"
        );
        // An agent answers.
        pace.mark(at(2));
        assert!(pace.release_due().is_some_and(|due| due <= at(2)));
        assert_eq!(
            pace.due(|| false),
            Some(at(11)),
            "its status is written once a second all the same"
        );
        pace.done(at(11), true);
        assert_eq!((pace.release_due(), pace.due(|| true)), (None, None));
    }

    #[test]
    fn a_change_that_does_not_settle_is_shown_after_a_second() {
        let start = Instant::now();
        let mut pace = Pace::default();
        pace.mark(start);
        pace.mark(start + BEAT / 2);
        assert_eq!(pace.due(|| false), Some(start + BEAT));
        assert!(!pace.is_overdue(start + BEAT / 2));
        assert!(pace.is_overdue(start + BEAT));
    }
}
