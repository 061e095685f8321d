//! Questions to an agent, which travel on its stream: how a copy is, and what would become of copies.
use std::collections::{BTreeMap, VecDeque};

use parking_lot::Mutex;
use runnel_proto::model::{HubFrame, Inspect, Inspected, SUPPOSED_LIMIT, SourceRef, Suppose, Supposed, SupposedCopy};
use tokio::sync::oneshot;

/// How many questions may be open to one agent.
const AT_A_TIME: usize = 32;
/// And how many of these that cost more.
const SUPPOSED_AT_A_TIME: usize = 8;

/// What is asked.
pub enum Asked {
    /// How a copy is.
    Inspect(Inspect),
    /// What would become of a rule's copies.
    Suppose(Box<Suppose>),
}

impl Asked {
    fn number(&self) -> u64 {
        match self {
            Asked::Inspect(inspect) => inspect.question,
            Asked::Suppose(suppose) => suppose.question,
        }
    }
}

impl From<Asked> for HubFrame {
    fn from(asked: Asked) -> Self {
        match asked {
            Asked::Inspect(inspect) => HubFrame::Inspect(inspect),
            Asked::Suppose(suppose) => HubFrame::Suppose(suppose),
        }
    }
}

/// Who waits for an answer.
enum Asker {
    Inspected(oneshot::Sender<Inspected>),
    /// With what has been said so far.
    Supposed(oneshot::Sender<Supposed>, Vec<SupposedCopy>),
}

impl Asker {
    fn waits(&self) -> bool {
        match self {
            Asker::Inspected(asker) => !asker.is_closed(),
            Asker::Supposed(asker, _) => !asker.is_closed(),
        }
    }
}

#[derive(Default)]
struct Open {
    number: u64,
    to_send: VecDeque<Asked>,
    waiting: BTreeMap<u64, Asker>,
}

impl Open {
    /// Makes room for one more question and gives its number.
    fn begin(&mut self) -> Option<u64> {
        self.waiting.retain(|_, asker| asker.waits());
        let Self { to_send, waiting, .. } = self;
        to_send.retain(|asked| waiting.contains_key(&asked.number()));
        if self.waiting.len() >= AT_A_TIME {
            return None;
        }
        self.number += 1;
        Some(self.number)
    }
}

/// The questions that are open to one agent. With the session they end unanswered.
#[derive(Default)]
pub struct Inquiries(Mutex<Open>);

impl Inquiries {
    /// Has the agent asked how a copy is; the session is to be woken for it. `None`: too many questions are open.
    pub fn ask(&self, copy: SourceRef) -> Option<oneshot::Receiver<Inspected>> {
        let mut open = self.0.lock();
        let question = open.begin()?;
        let (answer, answered) = oneshot::channel();
        open.waiting.insert(question, Asker::Inspected(answer));
        open.to_send.push_back(Asked::Inspect(Inspect { question, copy }));
        Some(answered)
    }

    /// Has the agent asked what would become of copies, likewise.
    pub fn suppose(&self, mut asked: Box<Suppose>) -> Option<oneshot::Receiver<Supposed>> {
        let mut open = self.0.lock();
        let question = open.begin()?;
        if open.waiting.values().filter(|asker| matches!(asker, Asker::Supposed(..))).count() >= SUPPOSED_AT_A_TIME {
            return None;
        }
        let (answer, answered) = oneshot::channel();
        asked.question = question;
        open.waiting.insert(question, Asker::Supposed(answer, vec![]));
        open.to_send.push_back(Asked::Suppose(asked));
        Some(answered)
    }

    /// The next question that somebody still waits for.
    pub fn next(&self) -> Option<Asked> {
        let mut open = self.0.lock();
        while let Some(asked) = open.to_send.pop_front() {
            if open.waiting.get(&asked.number()).is_some_and(Asker::waits) {
                return Some(asked);
            }
        }
        None
    }

    /// The agent has answered. What nobody asked, or waits for any more, is passed over.
    pub fn answered(&self, answer: Inspected) {
        let mut open = self.0.lock();
        if matches!(open.waiting.get(&answer.question), Some(Asker::Inspected(_)))
            && let Some(Asker::Inspected(asker)) = open.waiting.remove(&answer.question)
        {
            // Who does not wait any more needs no answer.
            let _ = asker.send(answer);
        }
    }

    /// The agent has answered in part, or to the end. More than it may say is passed over.
    pub fn supposed(&self, mut part: Supposed) {
        let mut open = self.0.lock();
        let Some(Asker::Supposed(_, said)) = open.waiting.get_mut(&part.question) else { return };
        let room = SUPPOSED_LIMIT.saturating_sub(said.len());
        said.extend(part.copies.drain(..).take(room));
        if part.last
            && let Some(Asker::Supposed(asker, copies)) = open.waiting.remove(&part.question)
        {
            let _ = asker.send(Supposed { copies, ..part });
        }
    }
}

#[cfg(test)]
mod tests {
    use runnel_proto::model::NamespaceState;

    use super::*;

    fn answer(question: u64) -> Inspected {
        Inspected { question, namespace: NamespaceState::Ready, states: vec![], stands: None }
    }

    #[test]
    fn an_answer_reaches_who_asked_and_a_question_without_an_asker_is_not_sent() {
        let (inquiries, copy) = (Inquiries::default(), SourceRef::new("secrets", "a", "b"));
        let mut first = inquiries.ask(copy.clone()).unwrap();
        drop(inquiries.ask(copy.clone()));
        let mut third = inquiries.ask(copy.clone()).unwrap();
        let sent: Vec<u64> = std::iter::from_fn(|| inquiries.next()).map(|asked| asked.number()).collect();
        assert_eq!(sent, [1, 3]);
        for question in [3, 3, 2, 99, 1] {
            inquiries.answered(answer(question));
        }
        assert_eq!((first.try_recv().unwrap().question, third.try_recv().unwrap().question), (1, 3));
        let many: Vec<_> = (0..AT_A_TIME).map(|_| inquiries.ask(copy.clone())).collect();
        assert!(many.iter().all(Option::is_some) && inquiries.ask(copy.clone()).is_none());
        drop(many);
        assert!(inquiries.ask(copy).is_some());
    }
}
