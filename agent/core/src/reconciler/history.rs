//! The history of the copies: failures, drift, contention and lost copies. It determines how a copy
//! is retried and reported.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use runnel_proto::model::{Revision, SourceRef};

use crate::contention::Contentions;
use crate::copy::{CopyError, CopyStatus, IntentKey};
use crate::decide::WantedCopy;

/// A failure of one copy, and the intent and revision that failed.
pub(super) struct Failed {
    pub(super) about: (IntentKey, Option<Revision>),
    pub(super) copy_error: CopyError,
}

/// The difference between one version of a live object and the desired revision at that time.
pub(super) struct Compared {
    pub(super) version: Arc<str>,
    pub(super) about: (IntentKey, Option<Revision>),
    pub(super) copy_error: CopyError,
}

/// The history of the copies.
#[derive(Default)]
pub(super) struct CopyHistory {
    pub(super) failed: BTreeMap<SourceRef, Failed>,
    /// Drifted copies that are to be corrected, with the field managers of the change if they are
    /// known.
    pub(super) drifted: BTreeMap<SourceRef, Option<Arc<str>>>,
    /// The recent corrections.
    pub(super) contentions: Contentions,
    /// Drifted copies that are not corrected, with their differences.
    pub(super) compared: BTreeMap<SourceRef, Compared>,
    /// Copies that were deleted or lost their marks, and are not corrected; with their last intent
    /// and revision.
    pub(super) lost: BTreeMap<SourceRef, (IntentKey, Revision)>,
    /// Correct copies over which another client wrote another revision with our marks; with their
    /// last intent and revision.
    pub(super) rewritten: BTreeMap<SourceRef, (IntentKey, Revision)>,
}

impl CopyHistory {
    /// Adds the history of a copy to its desired state.
    pub(super) fn add_to(&self, copy: &SourceRef, mut wanted: WantedCopy) -> WantedCopy {
        let is_current = |last: Option<&(IntentKey, Revision)>| {
            last.is_some_and(|(intent, revision)| {
                *intent == wanted.intent && Some(*revision) == wanted.revision
            })
        };
        let (lost, rewritten) = (
            is_current(self.lost.get(copy)),
            is_current(self.rewritten.get(copy)),
        );
        let fits =
            |compared: &&Compared| compared.about == (wanted.intent.clone(), wanted.revision);
        let compared = self.compared.get(copy).filter(fits);
        wanted.compared =
            compared.map(|compared| (compared.version.clone(), compared.copy_error.clone()));
        wanted.contention = self.contentions.copy_error(copy);
        (wanted.lost, wanted.rewritten) = (lost, rewritten);
        wanted
    }

    /// Records a correction, and returns whether to create an Event for it. A contended copy gets
    /// none.
    pub(super) fn record_correction(
        &mut self,
        copy: &SourceRef,
        others: Option<Arc<str>>,
        now: Instant,
    ) -> bool {
        self.contentions.corrected(copy, others, now);
        self.contentions.copy_error(copy).is_none()
    }

    /// Records that nothing is to be done about a copy.
    pub(super) fn settle(&mut self, copy: &SourceRef, outcome: Option<&CopyStatus>) {
        self.failed.remove(copy);
        self.drifted.remove(copy);
        if !matches!(
            outcome,
            Some(CopyStatus::Drifted(_) | CopyStatus::Planned(..))
        ) {
            self.compared.remove(copy);
            self.rewritten.remove(copy);
        }
        if outcome.is_none() {
            self.contentions.forget(copy);
        }
    }
}
