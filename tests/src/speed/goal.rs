//! The progress of simulated agents towards a goal.

use std::time::Instant;

/// The goal that each of this many agents acks this many intents. More acks of one agent do not
/// count for others.
#[derive(Default)]
pub(super) struct Goal {
    pub(super) number: u64,
    each: u64,
    pub(super) agents: usize,
    pub(super) done: usize,
    /// The time at which all of them reached it.
    pub(super) reached: Option<Instant>,
}

/// The progress of one agent towards the goal with this number.
#[derive(Default)]
pub(super) struct Way {
    number: u64,
    acked: u64,
}

impl Goal {
    /// Creates the goal with this number, for a number of agents.
    pub(super) fn new(number: u64, each: u64, agents: usize) -> Self {
        Self {
            number,
            each,
            agents,
            ..Self::default()
        }
    }

    /// Records acks of an agent; returns whether all have reached the goal.
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
