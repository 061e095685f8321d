//! Fields of copies that a rule has returned.
use serde::{Deserialize, Serialize};

use super::{JsonPath, SourceRef};

/// The most fields of one rule.
pub const FEEDBACK_LIMIT: usize = 8;
/// The longest name of a field, in bytes.
pub const FEEDBACK_NAME_LIMIT: usize = 63;
/// The longest value of a field, in bytes.
pub const FEEDBACK_VALUE_LIMIT: usize = 128;
/// About how many bytes of values one state of a rule has.
pub const FEEDBACK_BYTES: usize = 4096;

/// A field of the copies of one kind, which agents return.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FeedbackField {
    /// The kind, as `plural[.group]`. Never a sensitive one.
    pub resource: Box<str>,
    /// The name under which the value is shown.
    pub name: Box<str>,
    /// The path to the field.
    pub path: JsonPath,
}

/// A returned field of one copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeedbackValue {
    /// The name of [`FeedbackField`].
    pub name: Box<str>,
    /// The value, one line of at most [`FEEDBACK_VALUE_LIMIT`] bytes.
    pub value: Box<str>,
}

/// The returned fields of one copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyFeedback {
    /// The copy.
    pub copy: SourceRef,
    /// The fields that it has, at most [`FEEDBACK_LIMIT`].
    pub values: Vec<FeedbackValue>,
}

impl CopyFeedback {
    /// About how many bytes it takes.
    pub fn bytes(&self) -> usize {
        let copy = &self.copy;
        let values = self.values.iter();
        let values = values.map(|value| 8 + value.name.len() + value.value.len());
        16 + copy.resource.len() + copy.namespace.len() + copy.name.len() + values.sum::<usize>()
    }
}
