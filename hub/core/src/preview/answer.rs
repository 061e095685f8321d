//! The stored part of the agents' answers: the counts for the removal guard, and copies within a
//! budget.
use std::collections::BTreeMap;

use runnel_proto::model::{FieldDiff, PreviewOutcome, PreviewResult, PreviewedCopy};

/// One agent's answer, within the budget.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentAnswer {
    counts: BTreeMap<PreviewOutcome, usize>,
    /// The copies for which there was room.
    pub copies: Vec<PreviewedCopy>,
    /// Number of other copies.
    pub more: usize,
}

/// The remaining budget for copies, and for copies with changes, of all answers.
#[derive(Clone, Copy, Debug)]
pub struct AnswerBudget {
    /// Copies.
    pub copies: usize,
    /// Copies with a diff.
    pub diffs: usize,
}

impl AgentAnswer {
    /// Stores as many copies of an answer as the shared budget allows; copies that need attention
    /// come first.
    pub fn of(answer: PreviewResult, room: &mut AnswerBudget) -> Self {
        let mut reply = Self {
            more: answer.more as usize,
            ..Self::default()
        };
        let mut copies = answer.copies;
        for copy in &copies {
            *reply.counts.entry(copy.previewed).or_default() += 1;
        }
        if copies.len() > room.copies {
            copies.sort_by_key(|copy| is_smooth(copy.previewed));
            reply.more += copies.len() - room.copies;
            copies.truncate(room.copies);
            copies.sort_by(|one, other| one.copy.cmp(&other.copy));
            copies.shrink_to_fit();
        }
        room.copies -= copies.len();
        for copy in copies
            .iter_mut()
            .filter(|copy| copy.diff != FieldDiff::default())
        {
            match room.diffs.checked_sub(1) {
                Some(left) => room.diffs = left,
                None => copy.diff = FieldDiff::default(),
            }
        }
        Self { copies, ..reply }
    }

    /// The number of copies with these outcomes, listed or not.
    pub fn count(&self, wanted: &[PreviewOutcome]) -> usize {
        wanted
            .iter()
            .filter_map(|previewed| self.counts.get(previewed))
            .sum()
    }

    /// The number of copies in the agent's answer.
    pub fn all(&self) -> usize {
        self.counts.values().sum()
    }
}

fn is_smooth(previewed: PreviewOutcome) -> bool {
    use PreviewOutcome::{AdoptIfEqual, Blocked, Overwrite, Prune, Refused};
    !matches!(
        previewed,
        Refused | Blocked | Overwrite | AdoptIfEqual | Prune
    )
}

#[cfg(test)]
mod tests {
    use runnel_proto::model::{FieldChange, FieldEdit, SourceRef};

    use super::*;

    #[test]
    fn full_report_counts_the_rest_and_sends_errors_first() {
        let copy = |number: usize| PreviewedCopy {
            copy: SourceRef::new("secrets", "a", &format!("s{number}")),
            source: SourceRef::new("secrets", "a", "s"),
            previewed: if number == 3 {
                PreviewOutcome::Refused
            } else {
                PreviewOutcome::Create
            },
            copy_error: None,
            diff: FieldDiff {
                changes: vec![FieldChange {
                    path: "/data/a".into(),
                    edit: FieldEdit::Add,
                    old: None,
                }],
                more: 0,
            },
        };
        let answer = || PreviewResult {
            question: 1,
            copies: (0..4).map(copy).collect(),
            more: 7,
            last: true,
            unanswered: String::new(),
        };
        let mut room = AnswerBudget {
            copies: 6,
            diffs: 5,
        };
        let first = AgentAnswer::of(answer(), &mut room);
        assert_eq!(
            (first.copies.len(), first.more, room.copies, room.diffs),
            (4, 7, 2, 1)
        );
        let second = AgentAnswer::of(answer(), &mut room);
        let names: Vec<_> = second
            .copies
            .iter()
            .map(|copy| copy.copy.name.to_string())
            .collect();
        assert_eq!(
            (names, second.more, room.copies),
            (vec!["s0".to_owned(), "s3".to_owned()], 9, 0)
        );
        let changes: Vec<_> = second
            .copies
            .iter()
            .map(|copy| copy.diff.changes.len())
            .collect();
        assert_eq!((changes, room.diffs), (vec![1, 0], 0));
        assert_eq!(
            (
                second.all(),
                second.count(&[PreviewOutcome::Create, PreviewOutcome::Refused])
            ),
            (4, 4)
        );
        let third = AgentAnswer::of(answer(), &mut room);
        assert_eq!(
            (
                third.copies.len(),
                third.more,
                third.count(&[PreviewOutcome::Create])
            ),
            (0, 11, 3)
        );
    }
}
