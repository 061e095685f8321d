//! How far simulated agents are with what is awaited of them.

use std::time::Instant;

/// The goal that each of this many agents acks this many intents. More acks of one agent do not
/// count for others.
#[derive(Default)]
pub(super) struct Goal {
    pub(super) number: u64,
    each: u64,
    pub(super) agents: usize,
    pub(super) done: usize,
    /// When all of them were done.
    pub(super) reached: Option<Instant>,
}

/// How far one agent is towards the goal of this number.
#[derive(Default)]
pub(super) struct Way {
    number: u64,
    acked: u64,
}

impl Goal {
    /// The goal of this number, for so many agents.
    pub(super) fn new(number: u64, each: u64, agents: usize) -> Self {
        Self {
            number,
            each,
            agents,
            ..Self::default()
        }
    }

    /// Somebody has acked so many; returns whether all have reached the goal with that.
    pub(super) fn took(&mut self, intents: u64, way: &mut Way) -> bool {
        if way.number != self.number {
            *way = Way {
                number: self.number,
                acked: 0,
            };
        }
        let before = way.acked;
        way.acked += intents;
        if before >= self.each || way.acked < self.each {
            return false;
        }
        self.done += 1;
        self.done == self.agents
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubly_served_peer_hides_no_unserved_one() {
        let mut goal = Goal::new(1, 2, 2);
        let (mut one, mut two) = (Way::default(), Way::default());
        assert!(!goal.took(2, &mut one) && !goal.took(2, &mut one) && !goal.took(1, &mut two));
        assert!(goal.took(1, &mut two) && !goal.took(1, &mut two));
        goal = Goal::new(2, 1, 1);
        assert!(goal.took(1, &mut one) && !goal.took(1, &mut two));
    }
}
