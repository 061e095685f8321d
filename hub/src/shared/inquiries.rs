//! Questions to an agent about single copies, which travel on its stream.
use std::collections::{BTreeMap, VecDeque};

use parking_lot::Mutex;
use runnel_proto::model::{Inspect, Inspected, SourceRef};
use tokio::sync::oneshot;

/// How many questions may be open to one agent.
const AT_A_TIME: usize = 32;

#[derive(Default)]
struct Open {
    number: u64,
    to_send: VecDeque<Inspect>,
    waiting: BTreeMap<u64, oneshot::Sender<Inspected>>,
}

/// The questions that are open to one agent. With the session they end unanswered.
#[derive(Default)]
pub struct Inquiries(Mutex<Open>);

impl Inquiries {
    /// Has the agent asked how a copy is; the session is to be woken for it. `None`: too many questions are open.
    pub fn ask(&self, copy: SourceRef) -> Option<oneshot::Receiver<Inspected>> {
        let mut open = self.0.lock();
        open.waiting.retain(|_, asker| !asker.is_closed());
        if open.waiting.len() >= AT_A_TIME {
            return None;
        }
        open.number += 1;
        let (question, (answer, answered)) = (open.number, oneshot::channel());
        open.waiting.insert(question, answer);
        open.to_send.push_back(Inspect { question, copy });
        Some(answered)
    }

    /// The next question that somebody still waits for.
    pub fn next(&self) -> Option<Inspect> {
        let mut open = self.0.lock();
        while let Some(inspect) = open.to_send.pop_front() {
            if open.waiting.get(&inspect.question).is_some_and(|asker| !asker.is_closed()) {
                return Some(inspect);
            }
        }
        None
    }

    /// The agent has answered. What nobody asked, or waits for any more, is passed over.
    pub fn answered(&self, answer: Inspected) {
        let asker = self.0.lock().waiting.remove(&answer.question);
        if let Some(asker) = asker {
            // Who does not wait any more needs no answer.
            let _ = asker.send(answer);
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
        let sent: Vec<u64> = std::iter::from_fn(|| inquiries.next()).map(|inspect| inspect.question).collect();
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
