//! The order of the changes of rules: sessions ask for the rules that changed since the version that they last saw.
use std::collections::BTreeMap;
use std::ops::Bound;

use runnel_proto::model::RuleUid;

/// Deleted rules that are listed for sessions that have not received the deletion.
pub(super) const FORGOTTEN_LIMIT: usize = 1024;

/// The newest version of each rule.
#[derive(Default)]
pub(super) struct ChangeLog {
    version: u64,
    changes: BTreeMap<u64, RuleUid>,
    forgotten: BTreeMap<u64, RuleUid>,
    /// The version of the newest deleted rule that is not listed any more.
    forgotten_before: u64,
}

impl ChangeLog {
    /// The newest version.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// Gives a rule a new version, instead of `former`.
    pub(super) fn record(&mut self, uid: &RuleUid, former: u64) -> u64 {
        self.version += 1;
        self.changes.remove(&former);
        self.changes.insert(self.version, uid.clone());
        self.version
    }

    /// The rule of this version is not in the index any more.
    pub(super) fn remove(&mut self, version: u64) {
        self.changes.remove(&version);
    }

    /// Lists a rule that is not in the index.
    pub(super) fn forget(&mut self, uid: &RuleUid) {
        self.version += 1;
        self.forgotten.insert(self.version, uid.clone());
        while self.forgotten.len() > FORGOTTEN_LIMIT
            && let Some((version, _)) = self.forgotten.pop_first()
        {
            self.forgotten_before = version;
        }
    }

    /// The rules with a newer version.
    pub(super) fn since(&self, version: u64) -> impl Iterator<Item = &RuleUid> {
        let newer = (Bound::Excluded(version), Bound::Unbounded);
        self.changes
            .range(newer)
            .chain(self.forgotten.range(newer))
            .map(|(_, uid)| uid)
    }

    /// Whether rules that were deleted after this version are not listed any more.
    pub(super) fn has_forgotten_since(&self, version: u64) -> bool {
        version > 0 && version < self.forgotten_before
    }
}
