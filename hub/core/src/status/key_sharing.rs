//! Detects two agents with one member's key: they take the session over alternately.
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// For how long a process that lost its session to another one is remembered, and how long the condition stays after the last
/// time.
const REMEMBERED: Duration = Duration::from_secs(15 * 60);
/// Limit of remembered processes. More processes than that within the time share the key.
const PROCESSES: usize = 8;

/// The agent processes that lost a member's session to another one.
/// A restarted agent is a new process, and its predecessor never reconnects. Of two replicas only
/// the holder of their Lease connects, so one may take the session back once, after a network
/// failure. Two processes that take it back twice share the key.
#[derive(Default)]
pub(super) struct KeySharing {
    /// The processes that lost a session while it lived, by their boot ids, the newest last.
    superseded: VecDeque<(String, Instant)>,
    /// When a process last took its session back.
    taken_back: Option<Instant>,
    /// The last observation of two processes with the key.
    last: Option<Instant>,
}

impl KeySharing {
    /// Records that the process `new` replaces the live session of the process `old`.
    pub(super) fn superseded(&mut self, old: &str, new: &str, now: Instant) {
        // An agent that renews its stream.
        if old == new {
            return;
        }
        self.superseded
            .retain(|(boot, at)| boot != old && now.saturating_duration_since(*at) < REMEMBERED);
        if self.superseded.iter().any(|(boot, _)| boot == new) {
            let is_again = |at: Instant| now.saturating_duration_since(at) < REMEMBERED;
            if self.taken_back.replace(now).is_some_and(is_again) {
                self.last = Some(now);
            }
        }
        self.superseded.push_back((old.to_owned(), now));
        if self.superseded.len() > PROCESSES {
            self.superseded.pop_front();
            // A restarting agent does not leave that many live sessions.
            self.last = Some(now);
        }
    }

    /// Whether key sharing was observed recently.
    pub(super) fn is_seen(&self, now: Instant) -> bool {
        self.last
            .is_some_and(|last| now.saturating_duration_since(last) < REMEMBERED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns whether these sessions, one second apart, count as key sharing.
    fn detects_sharing(boots: &[&str]) -> bool {
        let (start, mut sharing) = (Instant::now(), KeySharing::default());
        let mut now = start;
        for pair in boots.windows(2) {
            now += Duration::from_secs(1);
            sharing.superseded(pair[0], pair[1], now);
        }
        sharing.is_seen(now)
    }

    #[test]
    fn process_that_takes_its_session_back_is_one_of_two() {
        assert!(detects_sharing(&["a", "b", "a", "b"]));
        assert!(
            detects_sharing(&["a", "b", "a", "c", "a"]),
            "a thief that starts again each time"
        );
        assert!(detects_sharing(&["a", "a", "b", "b", "a", "b"]));
        assert!(
            !detects_sharing(&["a", "b", "a"]),
            "replicas that lost their network by turns"
        );
    }

    #[test]
    fn restarted_agent_or_renewed_stream_is_no_key_sharing() {
        assert!(!detects_sharing(&["a", "a", "a"]));
        assert!(!detects_sharing(&["a", "b", "c", "d"]));
        assert!(!detects_sharing(&["a", "b", "b"]));
    }

    #[test]
    fn key_sharing_ends_after_a_quiet_period() {
        let (start, mut sharing) = (Instant::now(), KeySharing::default());
        for (old, new) in [("a", "b"), ("b", "a"), ("a", "b")] {
            sharing.superseded(old, new, start);
        }
        assert!(sharing.is_seen(start + REMEMBERED / 2));
        assert!(!sharing.is_seen(start + REMEMBERED));
        sharing.superseded("a", "b", start + 2 * REMEMBERED);
        assert!(
            !sharing.is_seen(start + 2 * REMEMBERED),
            "what was long ago is forgotten"
        );
    }

    #[test]
    fn more_processes_than_are_remembered_share_the_key() {
        let (start, mut sharing) = (Instant::now(), KeySharing::default());
        for number in 0..100 {
            assert_eq!(sharing.is_seen(start), number > PROCESSES, "{number}");
            sharing.superseded(&number.to_string(), &(number + 1).to_string(), start);
        }
        assert_eq!(sharing.superseded.len(), PROCESSES);
    }
}
