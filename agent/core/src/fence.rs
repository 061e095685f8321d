//! Fencing: the agent obeys no deposed leader of the hub.
//!
//! One of the hub's replicas leads. Each frame contains its epoch, and a term that rises within the
//! epoch. The agent rejects a stream with a lower term than the known one, and a stream with more
//! than one term. It forgets a known term one minute after the last stream with it. No lease is
//! longer, so a deposed leader has stopped by then. A hub that was restored from an old backup has
//! lower terms, and is accepted after that minute.
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long a term is remembered after its last stream.
const MEMORY: Duration = Duration::from_secs(60);
/// The longest epoch that is taken: a uid is shorter.
const EPOCH_LIMIT: usize = 128;

/// Why a stream has to be closed.
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
        /// The highest term that is known.
        highest: u64,
    },
}

/// What is known of the hub's leaders.
#[derive(Default)]
pub struct Fence {
    /// The highest term of each epoch, and when it was last heard of.
    highest: BTreeMap<String, (u64, Instant)>,
    /// What the present stream says.
    stream: Option<(String, u64)>,
    /// What was known of its epoch before.
    before: Option<(u64, Instant)>,
    /// Whether the term of the present stream counts for others.
    disowned: bool,
}

impl Fence {
    /// A frame says this. Whether it may be obeyed.
    ///
    /// # Errors
    /// [`FenceError`], when the stream has to be closed.
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

    /// The hub of the present stream knows less than another that was heard: what that one says is still obeyed.
    pub fn disown(&mut self) {
        self.disowned = true;
        let Some((epoch, _)) = &self.stream else {
            return;
        };
        match self.before.take() {
            Some(before) => drop(self.highest.insert(epoch.clone(), before)),
            None => drop(self.highest.remove(epoch)),
        }
    }

    /// The stream has ended.
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
        // Terms compare only inside an epoch, and a stray epoch makes none forgotten.
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
    fn hub_that_knows_less_does_not_depose_the_earlier_one() {
        let (mut fence, start) = (Fence::default(), Instant::now());
        assert_eq!(fence.admit("e1", 5, start), Ok(()));
        fence.closed(start + second(1));
        assert_eq!(fence.admit("e1", 9, start + second(2)), Ok(()));
        fence.disown();
        assert_eq!(fence.admit("e1", 9, start + second(3)), Ok(()));
        fence.closed(start + second(4));
        assert!(fence.admit("e1", 4, start + second(5)).is_err());
        assert_eq!(fence.admit("e1", 5, start + second(5)), Ok(()));
        fence.closed(start + second(6));
        // Of an epoch that was never heard of nothing stays.
        assert_eq!(fence.admit("e2", 9, start + second(7)), Ok(()));
        fence.disown();
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
