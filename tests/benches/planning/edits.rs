//! Edits of one source, for benchmarks that edit.

use runnel_hub_core::plan::SourceState;
use runnel_proto::model::SourceRef;

use super::planning::{Labels, body, labels, source};

/// One after another, edits of the source 7 that a rule of this number selects.
pub fn edits(rule: usize) -> impl FnMut() -> (SourceRef, Labels, SourceState) {
    let mut number = 1_000_000;
    move || {
        number += 1;
        (source(7), labels(rule), body(number))
    }
}
