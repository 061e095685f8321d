//! The frames that a session is about to send, and the end of its stream.
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use runnel_proto::model::HubFrame;
use tonic::Status;

/// The time for which a stream stays open after the handover, for the stream that replaces it.
const HANDOVER_LIMIT: Duration = Duration::from_secs(30);

/// The frames to send, in order, and the status that follows them.
///
/// After a handover the stream sends nothing more: the agent opens another stream.
#[derive(Default)]
pub(super) struct Outgoing {
    frames: VecDeque<HubFrame>,
    status: Option<Status>,
    handover_deadline: Option<Instant>,
}

/// The next item of a stream.
pub(super) enum NextItem {
    Frame(HubFrame),
    End(Status),
}

impl Outgoing {
    /// Appends a frame. The caller checks [`Self::is_handed_over`] where that can be the case.
    pub(super) fn push(&mut self, frame: HubFrame) {
        self.frames.push_back(frame);
    }

    /// Drops the pending frames, and ends the stream with `status`.
    pub(super) fn end(&mut self, status: Status) {
        self.frames.clear();
        self.status = Some(status);
    }

    /// Drops the pending frames, sends `frame`, and ends the stream with `status`.
    pub(super) fn end_with(&mut self, frame: HubFrame, status: Status) {
        self.end(status);
        self.push(frame);
    }

    /// Ends the stream without an error after the pending frames.
    pub(super) fn finish(&mut self) {
        self.status = Some(Status::ok(""));
    }

    /// Announces the handover to the agent as the last frame, unless the stream is at its end.
    pub(super) fn hand_over(&mut self, now: Instant) {
        if !self.is_handed_over() && !self.is_ending() {
            self.handover_deadline = Some(now + HANDOVER_LIMIT);
            self.push(HubFrame::HandedOver);
        }
    }

    /// Removes and returns what the stream sends next; `None` if it has nothing to send.
    pub(super) fn next(&mut self) -> Option<NextItem> {
        let frame = self.frames.pop_front().map(NextItem::Frame);
        frame.or_else(|| self.status.take().map(NextItem::End))
    }

    /// Whether no frame is pending and frames may follow.
    pub(super) fn is_idle(&self) -> bool {
        self.frames.is_empty() && !self.is_ending() && !self.is_handed_over()
    }

    /// Whether the stream ends after the pending frames.
    pub(super) fn is_ending(&self) -> bool {
        self.status.is_some()
    }

    /// Whether the handover was announced.
    pub(super) fn is_handed_over(&self) -> bool {
        self.handover_deadline.is_some()
    }

    /// Returns when a stream ends after a handover, even without the stream that replaces it.
    pub(super) fn handover_deadline(&self) -> Option<Instant> {
        self.handover_deadline
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Code;

    fn drain_frames(outgoing: &mut Outgoing) -> Vec<String> {
        std::iter::from_fn(|| outgoing.next())
            .map(|next| match next {
                NextItem::Frame(HubFrame::Keepalive) => "Keepalive".to_owned(),
                NextItem::Frame(HubFrame::Drain(_)) => "Drain".to_owned(),
                NextItem::Frame(HubFrame::HandedOver) => "HandedOver".to_owned(),
                NextItem::Frame(_) => "another frame".to_owned(),
                NextItem::End(status) => format!("{:?}", status.code()),
            })
            .collect()
    }

    #[test]
    fn error_drops_the_frames_that_wait() {
        let mut outgoing = Outgoing::default();
        outgoing.push(HubFrame::Keepalive);
        outgoing.end(Status::new(Code::Aborted, "replaced"));
        assert_eq!(drain_frames(&mut outgoing), ["Aborted"]);
    }

    #[test]
    fn last_frame_of_an_ended_stream_precedes_its_status() {
        let mut outgoing = Outgoing::default();
        outgoing.push(HubFrame::Keepalive);
        outgoing.end_with(HubFrame::Drain(0), Status::ok(""));
        assert_eq!(drain_frames(&mut outgoing), ["Drain", "Ok"]);
    }

    #[test]
    fn finished_stream_sends_the_frames_that_wait() {
        let mut outgoing = Outgoing::default();
        outgoing.push(HubFrame::Keepalive);
        outgoing.finish();
        assert_eq!(drain_frames(&mut outgoing), ["Keepalive", "Ok"]);
    }

    #[test]
    fn handover_is_announced_once_and_not_after_the_end() {
        let (mut outgoing, now) = (Outgoing::default(), Instant::now());
        outgoing.push(HubFrame::Keepalive);
        outgoing.hand_over(now);
        let deadline = outgoing.handover_deadline();
        outgoing.hand_over(now + Duration::from_secs(1));
        assert_eq!(outgoing.handover_deadline(), deadline);
        assert_eq!(drain_frames(&mut outgoing), ["Keepalive", "HandedOver"]);
        assert!(!outgoing.is_idle());

        let mut ended = Outgoing::default();
        ended.finish();
        ended.hand_over(now);
        assert!(!ended.is_handed_over());
    }
}
