//! Terms with the digest that names them.
use std::ops::Deref;
use std::sync::Arc;

use ring::digest;
use runnel_proto::model::{Terms, TermsDigest};

/// Terms and their digest. Clusters with equal terms share them.
#[derive(Clone, Debug)]
pub struct NamedTerms {
    terms: Arc<Terms>,
    /// The digest of the terms.
    pub digest: TermsDigest,
}

impl NamedTerms {
    /// These terms, with the digest that names them.
    pub fn new(terms: Terms) -> Self {
        Self {
            digest: digest_of(&terms),
            terms: Arc::new(terms),
        }
    }

    /// The terms, to be shared.
    pub fn to_shared(&self) -> Arc<Terms> {
        self.terms.clone()
    }
}

impl PartialEq for NamedTerms {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

impl Eq for NamedTerms {}

impl Deref for NamedTerms {
    type Target = Terms;

    fn deref(&self) -> &Terms {
        &self.terms
    }
}

/// Digest of terms: the first 16 bytes of SHA-256 over their canonical JSON. Only ever compared with itself.
fn digest_of(terms: &Terms) -> TermsDigest {
    let canonical = serde_json::to_vec(terms).expect("terms have only texts as keys of maps");
    let mut short = [0; 16];
    short.copy_from_slice(&digest::digest(&digest::SHA256, &canonical).as_ref()[..16]);
    TermsDigest(short)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use runnel_proto::model::{DeletionPolicy, DriftPolicy, NamespaceChoice, Pattern};

    use super::*;

    fn terms() -> impl Strategy<Value = Terms> {
        let namespaces = proptest::option::of(proptest::collection::vec("[a-c*]{1,2}", 0..3));
        (
            any::<bool>(),
            any::<bool>(),
            any::<bool>(),
            0i64..2,
            namespaces,
            proptest::option::of(1u32..3),
        )
            .prop_map(
                |(suspend, reports, retains, created_at, namespaces, versions)| Terms {
                    suspend,
                    created_at,
                    drift_policy: if reports {
                        DriftPolicy::Report
                    } else {
                        DriftPolicy::Correct
                    },
                    deletion_policy: if retains {
                        DeletionPolicy::Retain
                    } else {
                        DeletionPolicy::Delete
                    },
                    namespaces: namespaces.map(|names| NamespaceChoice {
                        names: names.iter().map(Pattern::new).collect(),
                        ..NamespaceChoice::default()
                    }),
                    versions,
                    ..Terms::default()
                },
            )
    }

    proptest! {
        #[test]
        fn digests_are_equal_only_for_equal_terms(one in terms(), other in terms()) {
            prop_assert_eq!(digest_of(&one) == digest_of(&other), one == other);
            prop_assert_eq!(digest_of(&one), digest_of(&one.clone()));
        }
    }
}
