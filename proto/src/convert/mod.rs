//! Converts between wire and model, and splits an agent's frames.
//! Total in both directions: any decoded message gives a value or a named refusal, never a panic.
//! An incomplete item of a batch is refused alone. Kinds are not checked here: a
//! [`SourceRef`](crate::model::SourceRef) contains any text.
mod copies;
mod frames;
mod inspect;
mod parts;
mod preview;
#[cfg(test)]
mod tests;

pub use frames::{agent_frame, agent_frame_to_wire, hub_frame, hub_frame_to_wire, split};
pub use preview::question_bytes;

/// The longest name, namespace, resource or uid that is taken from the wire, in bytes.
pub const NAME_LIMIT: usize = 253;

/// Why a whole frame cannot be used: nothing of it is in force. The stream ends with it, except after a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// An unsupported frame, or an empty one.
    #[error("the {peer} sent a frame that this {own} does not know: upgrade the {own}")]
    Unknown {
        /// The sender.
        peer: &'static str,
        /// The reader.
        own: &'static str,
    },
    /// An unreadable question. It changes nothing, so the stream goes on without an answer.
    #[error("the hub sent an unreadable question ({part}): it gets no answer")]
    Question {
        /// The field, as `sync.proto` calls it.
        part: &'static str,
    },
    /// A part is missing, too long, or violates the protocol.
    #[error(
        "the {peer} sent an unreadable frame ({part}): upgrade hub and agent to versions that fit"
    )]
    Malformed {
        /// The sender.
        peer: &'static str,
        /// The field, as `sync.proto` calls it.
        part: &'static str,
    },
}
