//! Bounds the labels that the hub stores. Any author of an object can give it tens of thousands of
//! labels, whether a rule selects it or not.
use std::collections::BTreeMap;

use runnel_proto::model::SourceRef;

/// So many labels of an object are kept in any case, and so many bytes of them.
const LABELS: usize = 64;
const LABEL_BYTES: usize = 8 * 1024;
/// So many bytes the labels of all objects that have more may take.
const ROOM: usize = 64 * 1024 * 1024;
/// What a label takes besides its text.
const OVERHEAD: usize = 128;

/// The room for labels of objects that have unusually many.
#[derive(Default)]
pub(super) struct LabelBudget {
    taken_by: BTreeMap<SourceRef, usize>,
    taken: usize,
    left_out: bool,
}

impl LabelBudget {
    /// Whether all labels of an object can be kept.
    pub fn admits(&mut self, source: &SourceRef, labels: &BTreeMap<String, String>) -> bool {
        self.release(source);
        let bytes: usize = labels
            .iter()
            .map(|(key, value)| key.len() + value.len())
            .sum();
        if labels.len() <= LABELS && bytes <= LABEL_BYTES {
            return true;
        }
        let takes = bytes + labels.len() * OVERHEAD;
        if self.taken + takes > ROOM {
            self.left_out = true;
            return false;
        }
        self.taken += takes;
        self.taken_by.insert(source.clone(), takes);
        true
    }

    /// Releases the labels of a deleted object.
    pub fn release(&mut self, source: &SourceRef) {
        self.taken -= self.taken_by.remove(source).unwrap_or_default();
    }

    /// Whether labels of some object were left out.
    pub fn has_left_out(&self) -> bool {
        self.left_out
    }
}
