//! Fencing: the agent ignores a former leader of the hub.
//!
//! One of the hub's replicas leads. Each frame contains its epoch, and a term that rises within the
//! epoch. The agent rejects a stream with a lower term than the known one, and a stream with more
//! than one term. It forgets a known term one minute after the last stream with it. No lease is
//! longer, so that a former leader has stopped by then. A hub that was restored from an old backup
//! has lower terms, and is accepted after that minute.
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long a term is recorded after its last stream.
const MEMORY: Duration = Duration::from_secs(60);
/// Limit of the length of an epoch in bytes: a uid is shorter.
const EPOCH_LIMIT: usize = 128;

/// The reason why a stream must be closed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FenceError {
    /// Two frames of one stream have different terms or epochs.
    #[error("the hub's term changed from {from} to {to} within the stream")]
    Changed {
        /// The term of the stream.
        from: u64,
        /// The term of the frame.
        to: u64,
    },
    /// The epoch is longer than any uid.
    #[error("the hub's epoch is longer than {EPOCH_LIMIT} bytes")]
    Epoch,
    /// A newer leader of the same epoch is known.
    #[error("a replica of the hub that leads no more (term {term}, known is {highest})")]
    Deposed {
        /// The term of the frame.
        term: u64,
        /// The highest known term.
        highest: u64,
    },
}

/// The known terms of the hub's leaders.
#[derive(Default)]
pub struct Fence {
    /// The highest term of each epoch, and the time of its last stream.
    highest: BTreeMap<String, (u64, Instant)>,
    /// The epoch and term of the current stream.
    stream: Option<(String, u64)>,
    /// The earlier highest term of its epoch.
    before: Option<(u64, Instant)>,
    /// Whether the term of the current stream is not recorded, see [`Fence::drop_term`].
    disowned: bool,
}

impl Fence {
    /// Checks the epoch and term of a frame. The first frame of a stream sets both.
    ///
    /// # Errors
    /// [`FenceError`], when the stream must be closed.
    pub fn admit(&mut self, epoch: &str, term: u64, now: Instant) -> Result<(), FenceError> {
        if let Some((own_epoch, own_term)) = &self.stream {
            return if own_epoch == epoch && *own_term == term {
                Ok(())
            } else {
                Err(FenceError::Changed {
                    from: *own_term,
                    to: term,
                })
            };
        }
        if epoch.len() > EPOCH_LIMIT {
            return Err(FenceError::Epoch);
        }
        self.highest
            .retain(|_, (_, received)| now.saturating_duration_since(*received) < MEMORY);
        if let Some((highest, _)) = self.highest.get(epoch)
            && term < *highest
        {
            return Err(FenceError::Deposed {
                term,
                highest: *highest,
            });
        }
        self.before = self.highest.insert(epoch.to_owned(), (term, now));
        self.disowned = false;
        self.stream = Some((epoch.to_owned(), term));
        Ok(())
    }

    /// Drops the term of the current stream, because its hub has older state than an earlier one.
    /// The earlier term stays valid.
    pub fn drop_term(&mut self) {
        self.disowned = true;
        let Some((epoch, _)) = &self.stream else {
            return;
        };
        match self.before.take() {
            Some(before) => drop(self.highest.insert(epoch.clone(), before)),
            None => drop(self.highest.remove(epoch)),
        }
    }

    /// Records the end of the stream.
    pub fn closed(&mut self, now: Instant) {
        let disowned = std::mem::take(&mut self.disowned);
        if let Some((epoch, term)) = self.stream.take().filter(|_| !disowned) {
            self.highest.insert(epoch, (term, now));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn a_lower_term_of_one_epoch_is_not_obeyed() {
        let (mut fence, start) = (Fence::default(), Instant::now());
        assert_eq!(fence.admit("e1", 5, start), Ok(()));
        fence.closed(start + second(3600));
        assert!(
            fence
                .admit("e1", 4, start + second(3630))
                .unwrap_err()
                .to_string()
                .contains("term 4, known is 5")
        );
        assert_eq!(fence.admit("e1", 6, start + second(3630)), Ok(()));
        fence.closed(start + second(3640));
        // Terms are comparable only within an epoch, and another epoch makes none forgotten.
        assert_eq!(fence.admit("e2", 1, start + second(3650)), Ok(()));
        fence.closed(start + second(3650));
        assert!(fence.admit("e1", 5, start + second(3651)).is_err());
    }

    #[test]
    fn a_stream_has_one_term() {
        let (mut fence, start) = (Fence::default(), Instant::now());
        assert_eq!(fence.admit("e1", 5, start), Ok(()));
        assert_eq!(fence.admit("e1", 5, start), Ok(()));
        assert!(fence.admit("e1", 6, start).is_err() && fence.admit("e2", 5, start).is_err());
        fence.closed(start);
        assert_eq!(fence.admit("e1", 6, start), Ok(()));
    }

    #[test]
    fn hub_with_older_state_does_not_depose_the_newer_one() {
        let (mut fence, start) = (Fence::default(), Instant::now());
        assert_eq!(fence.admit("e1", 5, start), Ok(()));
        fence.closed(start + second(1));
        assert_eq!(fence.admit("e1", 9, start + second(2)), Ok(()));
        fence.drop_term();
        assert_eq!(fence.admit("e1", 9, start + second(3)), Ok(()));
        fence.closed(start + second(4));
        assert!(fence.admit("e1", 4, start + second(5)).is_err());
        assert_eq!(fence.admit("e1", 5, start + second(5)), Ok(()));
        fence.closed(start + second(6));
        // No term remains of an epoch that only a disowned stream had.
        assert_eq!(fence.admit("e2", 9, start + second(7)), Ok(()));
        fence.drop_term();
        fence.closed(start + second(8));
        assert_eq!(fence.admit("e2", 1, start + second(9)), Ok(()));
    }

    #[test]
    fn a_restored_hub_is_taken_again_after_a_minute() {
        let (mut fence, start) = (Fence::default(), Instant::now());
        assert_eq!(fence.admit("e1", 50, start), Ok(()));
        fence.closed(start + second(10));
        assert!(fence.admit("e1", 3, start + second(69)).is_err());
        fence.closed(start + second(69));
        assert_eq!(fence.admit("e1", 3, start + second(70)), Ok(()));
        assert!(Fence::default().admit(&"x".repeat(200), 1, start).is_err());
    }
}
