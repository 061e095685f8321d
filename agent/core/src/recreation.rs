//! Decides whether a copy that cannot be changed is deleted and created again.
use runnel_proto::model::{Reason, SourceRef};

use crate::copy::CopyError;
use crate::delete_limit;

/// Kinds whose deletion may delete data that no apply brings back.
const STORAGE: [&str; 2] = ["persistentvolumeclaims", "persistentvolumes"];

/// Whether a copy that cannot be changed is deleted and created again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recreate {
    /// The failure is reported.
    No,
    /// The copy is deleted and created again.
    Yes,
    /// The rule recreates copies, but the policy's limit of deletions per hour is reached. Contains
    /// that limit.
    Later(usize),
}

impl Recreate {
    /// Returns the error of a copy whose change is refused; `None` if it is to be deleted and created again.
    ///
    /// Namespaces and CRDs have the guard of their deletion, too: they must be empty, see [`crate::contained`].
    pub fn refusal(self, copy: &SourceRef, refused: CopyError) -> Option<CopyError> {
        if refused.reason != Reason::Immutable {
            return Some(refused);
        }
        if STORAGE.contains(&&*copy.resource) {
            let message = "the object or one of its fields is immutable and cannot be changed, and its deletion may delete its \
                           data, so that immutablePolicy: Recreate does not apply: save the data and delete the copy, and it is \
                           created again";
            return Some(CopyError::new(Reason::Immutable, message));
        }
        match self {
            Self::No => Some(refused),
            Self::Yes => None,
            Self::Later(limit) => Some(delete_limit::waits(limit)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classify::immutable;

    #[test]
    fn storage_is_never_recreated() {
        for resource in STORAGE {
            let copy = SourceRef::new(resource, "a", "data");
            for recreate in [Recreate::No, Recreate::Yes, Recreate::Later(1)] {
                let error = recreate.refusal(&copy, immutable()).unwrap();
                assert_eq!(error.reason, Reason::Immutable);
                assert!(error.message.contains("save the data"), "{error:?}");
            }
        }
    }

    #[test]
    fn immutable_copy_is_recreated_as_its_rule_and_the_limit_allow() {
        // What contains objects is recreated only when it is empty, which is read right before its deletion.
        for resource in [
            "statefulsets.apps",
            "namespaces",
            "customresourcedefinitions.apiextensions.k8s.io",
            "persistentvolumeclaims.example.org",
        ] {
            let copy = SourceRef::new(resource, "a", "one");
            let refusal = |recreate: Recreate| recreate.refusal(&copy, immutable());
            assert_eq!(refusal(Recreate::Yes), None);
            assert_eq!(refusal(Recreate::No), Some(immutable()));
            let waits = refusal(Recreate::Later(3)).unwrap();
            assert_eq!(waits.reason, Reason::DeleteLimit);
            let invalid = CopyError::new(Reason::Invalid, "no");
            let other = Recreate::Yes.refusal(&copy, invalid.clone());
            assert_eq!(other, Some(invalid));
        }
    }
}
