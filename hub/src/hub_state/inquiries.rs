//! Requests to an agent on its stream: to inspect a copy, to list copies, and to preview them.
use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, RandomState};

use crate::ordered_lock::LeafMutex;
use runnel_proto::FRAME_LIMIT;
use runnel_proto::convert::question_bytes;
use runnel_proto::model::{
    COPIES_LIMIT, CopyList, HubFrame, Inspect, Inspected, ListCopies, ListedCopy, PREVIEW_LIMIT,
    PreviewRequest, PreviewResult, PreviewedCopy, SourceRef,
};
use tokio::sync::oneshot;

/// The limit of open requests to one agent.
const AT_A_TIME: usize = 32;
/// The limit of open previews, which cost more than inspections. They count in the limit above too.
const PREVIEWS_AT_A_TIME: usize = 8;

/// The size limit of a request in bytes. The rest of a frame is for its other fields.
const QUESTION_BYTES: usize = FRAME_LIMIT - 64 * 1024;

/// Why a request is not sent to an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InquiryError {
    /// Too many requests to the agent are open.
    Busy,
    /// The request does not fit into one frame. Such a frame would end the stream.
    TooLarge,
}

/// A request to an agent.
pub enum Inquiry {
    /// Inspects a copy.
    Inspect(Inspect),
    /// Lists the copies of a rule.
    ListCopies(Box<ListCopies>),
    /// Previews the copies of a rule.
    PreviewRequest(Box<PreviewRequest>),
}

impl Inquiry {
    fn number(&self) -> u64 {
        match self {
            Inquiry::Inspect(inspect) => inspect.question,
            Inquiry::ListCopies(list) => list.question,
            Inquiry::PreviewRequest(preview) => preview.question,
        }
    }
}

impl From<Inquiry> for HubFrame {
    fn from(asked: Inquiry) -> Self {
        match asked {
            Inquiry::Inspect(inspect) => HubFrame::Inspect(inspect),
            Inquiry::ListCopies(list) => HubFrame::ListCopies(list),
            Inquiry::PreviewRequest(preview) => HubFrame::PreviewRequest(preview),
        }
    }
}

/// The caller that waits for the answer.
enum InquiryCaller {
    Inspected(oneshot::Sender<Inspected>),
    /// With the copies that were received.
    CopyList(oneshot::Sender<CopyList>, Vec<ListedCopy>),
    /// With the parts of the answer that were received.
    PreviewResult(oneshot::Sender<PreviewResult>, Vec<PreviewedCopy>),
}

impl InquiryCaller {
    fn waits(&self) -> bool {
        match self {
            InquiryCaller::Inspected(asker) => !asker.is_closed(),
            InquiryCaller::CopyList(asker, _) => !asker.is_closed(),
            InquiryCaller::PreviewResult(asker, _) => !asker.is_closed(),
        }
    }
}

#[derive(Default)]
struct OpenInquiries {
    /// The number of the previous request.
    number: u64,
    to_send: VecDeque<Inquiry>,
    waiting: BTreeMap<u64, InquiryCaller>,
}

impl OpenInquiries {
    /// Reserves one more request and returns its number; `None` if too many are open.
    fn begin(&mut self) -> Option<u64> {
        self.waiting.retain(|_, asker| asker.waits());
        let Self {
            to_send, waiting, ..
        } = self;
        to_send.retain(|asked| waiting.contains_key(&asked.number()));
        if self.waiting.len() >= AT_A_TIME {
            return None;
        }
        self.number = self.number.wrapping_add(1);
        Some(self.number)
    }
}

/// The open requests to one agent. The end of the session drops them without an answer.
pub struct Inquiries(LeafMutex<OpenInquiries>);

impl Inquiries {
    /// Returns an empty list. Requests are numbered from `number`, which is random for each
    /// session, so that a late answer to an earlier session matches no request.
    pub fn after(number: u64) -> Self {
        Self(LeafMutex::new(OpenInquiries {
            number,
            ..OpenInquiries::default()
        }))
    }

    /// Returns an empty list for a new session, with a random first number.
    pub fn of_a_session() -> Self {
        Self::after(RandomState::new().hash_one(()))
    }

    /// Requests an inspection of a copy; the caller must wake the session. Returns `None` if too
    /// many requests are open.
    pub fn inspect(&self, copy: SourceRef) -> Option<oneshot::Receiver<Inspected>> {
        let mut open = self.0.lock();
        let question = open.begin()?;
        let (answer, answered) = oneshot::channel();
        open.waiting
            .insert(question, InquiryCaller::Inspected(answer));
        open.to_send
            .push_back(Inquiry::Inspect(Inspect { question, copy }));
        Some(answered)
    }

    /// Requests a page of the copies of a rule; the caller must wake the session. Returns `None` if
    /// too many requests are open.
    pub fn list(&self, mut asked: Box<ListCopies>) -> Option<oneshot::Receiver<CopyList>> {
        let mut open = self.0.lock();
        asked.question = open.begin()?;
        let (answer, answered) = oneshot::channel();
        open.waiting
            .insert(asked.question, InquiryCaller::CopyList(answer, vec![]));
        open.to_send.push_back(Inquiry::ListCopies(asked));
        Some(answered)
    }

    /// Requests a preview of copies.
    ///
    /// # Errors
    /// [`InquiryError`]; no request is queued.
    pub fn preview(
        &self,
        mut asked: Box<PreviewRequest>,
    ) -> Result<oneshot::Receiver<PreviewResult>, InquiryError> {
        if question_bytes(&asked) > QUESTION_BYTES {
            return Err(InquiryError::TooLarge);
        }
        let mut open = self.0.lock();
        let question = open.begin().ok_or(InquiryError::Busy)?;
        if open
            .waiting
            .values()
            .filter(|caller| matches!(caller, InquiryCaller::PreviewResult(..)))
            .count()
            >= PREVIEWS_AT_A_TIME
        {
            return Err(InquiryError::Busy);
        }
        let (answer, answered) = oneshot::channel();
        asked.question = question;
        open.waiting
            .insert(question, InquiryCaller::PreviewResult(answer, vec![]));
        open.to_send.push_back(Inquiry::PreviewRequest(asked));
        Ok(answered)
    }

    /// Returns the next request whose caller still waits.
    pub fn next(&self) -> Option<Inquiry> {
        let mut open = self.0.lock();
        while let Some(asked) = open.to_send.pop_front() {
            if open
                .waiting
                .get(&asked.number())
                .is_some_and(InquiryCaller::waits)
            {
                return Some(asked);
            }
        }
        None
    }

    /// Delivers the answer of the agent. An answer without a request, or whose caller no longer
    /// waits, is dropped.
    pub fn answered(&self, answer: Inspected) {
        let mut open = self.0.lock();
        if matches!(
            open.waiting.get(&answer.question),
            Some(InquiryCaller::Inspected(_))
        ) && let Some(InquiryCaller::Inspected(caller)) = open.waiting.remove(&answer.question)
        {
            // The caller may have stopped waiting.
            let _ = caller.send(answer);
        }
    }

    /// Delivers a part of a list. Copies beyond the limit are dropped.
    pub fn copy_list(&self, mut part: CopyList) {
        let mut open = self.0.lock();
        let Some(InquiryCaller::CopyList(_, listed)) = open.waiting.get_mut(&part.question) else {
            return;
        };
        let room = COPIES_LIMIT.saturating_sub(listed.len());
        listed.extend(part.copies.drain(..).take(room));
        if part.last
            && let Some(InquiryCaller::CopyList(caller, copies)) =
                open.waiting.remove(&part.question)
        {
            let _ = caller.send(CopyList { copies, ..part });
        }
    }

    /// Delivers a part of an answer. Parts beyond the limit are dropped.
    pub fn preview_result(&self, mut part: PreviewResult) {
        let mut open = self.0.lock();
        let Some(InquiryCaller::PreviewResult(_, message)) = open.waiting.get_mut(&part.question)
        else {
            return;
        };
        let room = PREVIEW_LIMIT.saturating_sub(message.len());
        message.extend(part.copies.drain(..).take(room));
        if part.last
            && let Some(InquiryCaller::PreviewResult(caller, copies)) =
                open.waiting.remove(&part.question)
        {
            let _ = caller.send(PreviewResult { copies, ..part });
        }
    }
}

#[cfg(test)]
mod tests {
    use runnel_proto::model::NamespaceState;

    use super::*;

    fn answer(question: u64) -> Inspected {
        Inspected {
            question,
            namespace: NamespaceState::Ready,
            states: vec![],
            live: None,
        }
    }

    #[test]
    fn answer_reaches_its_asker_and_orphaned_question_is_not_sent() {
        let (inquiries, copy) = (Inquiries::after(0), SourceRef::new("secrets", "a", "b"));
        let mut first = inquiries.inspect(copy.clone()).unwrap();
        drop(inquiries.inspect(copy.clone()));
        let mut third = inquiries.inspect(copy.clone()).unwrap();
        let sent: Vec<u64> = std::iter::from_fn(|| inquiries.next())
            .map(|asked| asked.number())
            .collect();
        assert_eq!(sent, [1, 3]);
        for question in [3, 3, 2, 99, 1] {
            inquiries.answered(answer(question));
        }
        assert_eq!(
            (
                first.try_recv().unwrap().question,
                third.try_recv().unwrap().question
            ),
            (1, 3)
        );
        let many: Vec<_> = (0..AT_A_TIME)
            .map(|_| inquiries.inspect(copy.clone()))
            .collect();
        assert!(many.iter().all(Option::is_some) && inquiries.inspect(copy.clone()).is_none());
        drop(many);
        assert!(inquiries.inspect(copy).is_some());
    }

    #[test]
    fn answer_to_an_earlier_session_is_dropped() {
        let numbers = |inquiries: &Inquiries| {
            let ask = || inquiries.inspect(SourceRef::new("secrets", "a", "b"));
            let waiting = (ask(), ask());
            assert!(waiting.0.is_some() && waiting.1.is_some());
            std::iter::from_fn(|| inquiries.next())
                .map(|asked| asked.number())
                .collect::<Vec<_>>()
        };
        assert_eq!(numbers(&Inquiries::after(u64::MAX)), [0, 1]);
        let (one, other) = (Inquiries::of_a_session(), Inquiries::of_a_session());
        assert_ne!(numbers(&one), numbers(&other));
    }

    #[test]
    fn parts_of_a_list_are_put_together_up_to_the_limit() {
        let inquiries = Inquiries::after(0);
        let asked = ListCopies {
            question: 0,
            rule: "r".into(),
            after: None,
            only: None,
            limit: 9,
        };
        let mut answered = inquiries.list(Box::new(asked)).unwrap();
        let copy = ListedCopy {
            copy: SourceRef::new("configmaps", "a", "b"),
            source: None,
            outcome: runnel_proto::model::CopyOutcome::Applied,
            copy_error: None,
            applied_at: 0,
            health: None,
            feedback: vec![],
        };
        let part = |last: bool| CopyList {
            question: 1,
            copies: vec![copy.clone(); COPIES_LIMIT - 1],
            more: last,
            last,
        };
        inquiries.copy_list(part(false));
        assert!(answered.try_recv().is_err());
        inquiries.copy_list(part(true));
        let answer = answered.try_recv().unwrap();
        assert_eq!((answer.copies.len(), answer.more), (COPIES_LIMIT, true));
    }

    #[test]
    fn oversized_question_is_not_queued() {
        let inquiries = Inquiries::after(0);
        let asked = |acked: usize| {
            let name = |number: usize| SourceRef::new("secrets", "a", &format!("{number:0253}"));
            Box::new(PreviewRequest {
                blocked: (0..acked).map(name).collect(),
                ..PreviewRequest::nothing(0, "r".into())
            })
        };
        assert_eq!(
            inquiries.preview(asked(20_000)).err(),
            Some(InquiryError::TooLarge)
        );
        assert!(inquiries.next().is_none());
        let _waiting = inquiries.preview(asked(2000)).unwrap();
        assert!(inquiries.next().is_some());
        let _full: Vec<_> = (1..PREVIEWS_AT_A_TIME)
            .map(|_| inquiries.preview(asked(1)).unwrap())
            .collect();
        assert_eq!(inquiries.preview(asked(1)).err(), Some(InquiryError::Busy));
    }
}
