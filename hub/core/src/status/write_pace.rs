//! The pace of status writes.
use std::time::{Duration, Instant};

/// The interval of the writes of one status in the long run, and maximum delay of a change.
const BEAT: Duration = Duration::from_secs(1);
/// The writes that may follow each other at once where each shows the end of a change: the waves of a rollout without soaks.
const BURST: u32 = 8;

/// Paces the writes of one status: the end of a change is written at once, a change that does not end is shown after a second, and
/// no status is written more often than once a second in the long run. The finalizer of a deleted rule waits for no beat.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    dirty_since: Option<Instant>,
    last_write: Option<Instant>,
    /// Whether something changed since the last attempt to release the rule.
    unreleased: bool,
    /// Where one beat per write has come to: the long run that the writes so far are allowed for.
    paid_until: Option<Instant>,
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
        let earliest = if settled() {
            self.paid_until
                .and_then(|paid| paid.checked_sub(BURST * BEAT))
        } else {
            Some(self.last_write.map_or(since, |last| last.max(since)) + BEAT)
        };
        Some(earliest.map_or(since, |earliest| earliest.max(since)))
    }

    /// Whether there is an unchecked change.
    pub fn is_dirty(&self) -> bool {
        self.dirty_since.is_some()
    }

    /// Whether the writes so far may still delay the next one.
    pub fn is_recent(&self, now: Instant) -> bool {
        self.paid_until.is_some_and(|paid| now < paid)
    }

    /// Whether the change has been in progress for so long that the status should report it.
    pub fn is_overdue(&self, now: Instant) -> bool {
        self.dirty_since
            .is_some_and(|since| now.saturating_duration_since(since) >= BEAT)
    }

    /// The status was checked; `written`: with a write. The next change marks it again.
    pub fn done(&mut self, now: Instant, written: bool) {
        if written {
            self.last_write = Some(now);
            self.paid_until = Some(self.paid_until.map_or(now, |paid| paid.max(now)) + BEAT);
        }
        (self.dirty_since, self.unreleased) = (None, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settled_changes_are_written_at_once_and_paid_later() {
        let start = Instant::now();
        let mut pace = Pace::default();
        assert_eq!(pace.due(|| true), None);
        for _ in 0..BURST + 1 {
            pace.mark(start);
            assert_eq!(pace.due(|| true), Some(start));
            pace.done(start, true);
            assert_eq!(pace.due(|| true), None);
        }
        for number in 1..4 {
            pace.mark(start);
            let due = pace.due(|| true).unwrap();
            assert_eq!(due, start + BEAT * number);
            pace.done(due, true);
        }
        let later = start + BEAT * 100;
        assert!(!pace.is_recent(later));
        pace.mark(later);
        assert_eq!(pace.due(|| true), Some(later));
    }

    #[test]
    fn progress_is_shown_once_a_second_and_its_end_at_once() {
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
        assert_eq!(pace.due(|| false), Some(at(22)));
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
