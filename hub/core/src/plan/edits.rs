//! The sources that the last changes of a plan touched: a reader of an earlier plan finds the
//! difference without a comparison of both plans.
use std::borrow::Cow;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use runnel_proto::model::{SetDigest, SourceRef};

/// Changes that are remembered. A reader that is further behind compares everything.
const REMEMBERED: usize = 16;

/// The last changes of a plan, computed once for all sessions.
#[derive(Clone, Default)]
pub struct Edits(VecDeque<Edit>);

#[derive(Clone)]
struct Edit {
    /// The digest of the plan before it.
    before: SetDigest,
    touched: Arc<BTreeSet<SourceRef>>,
}

impl Edits {
    /// The plan, which had this digest, was changed in these intents.
    pub(super) fn note(&mut self, before: SetDigest, touched: BTreeSet<SourceRef>) {
        if self.0.len() >= REMEMBERED {
            self.0.pop_front();
        }
        self.0.push_back(Edit {
            before,
            touched: Arc::new(touched),
        });
    }

    /// The intents that were touched since the plan had this digest; `None`: too long ago, or never.
    pub fn since(&self, digest: SetDigest) -> Option<Cow<'_, BTreeSet<SourceRef>>> {
        let first = self.0.iter().position(|edit| edit.before == digest)?;
        let mut edits = self.0.iter().skip(first).map(|edit| &edit.touched);
        let touched = Cow::Borrowed(&**edits.next()?);
        Some(edits.fold(touched, |mut all, more| {
            all.to_mut().extend(more.iter().cloned());
            all
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{RulePlan, Scope, SourceContent, SourceState};
    use super::*;
    use proptest::prelude::*;
    use runnel_proto::model::{Payload, Revision};

    fn body(number: u8) -> SourceState {
        let payload = Payload::encode(vec![number]);
        SourceState::Read(Arc::new(SourceContent::new(
            Revision([number; 16]),
            payload,
        )))
    }

    proptest! {
        #[test]
        fn whatever_differs_from_an_earlier_plan_was_touched_since(
            steps in proptest::collection::vec((0..8u8, proptest::option::of(0..3u8)), 1..40),
        ) {
            let source = |number: u8| SourceRef::new("configmaps", "team", &number.to_string());
            let mut plan = RulePlan::of(&"r".into(), &Scope::Everywhere);
            let mut former = vec![plan.clone()];
            for (number, content) in steps {
                plan.set(&source(number), content.map(body).as_ref());
                let behind = former.iter().rev().enumerate();
                for (behind, before) in behind {
                    let since = plan.edits.since(before.digest);
                    prop_assert!(since.is_some() || behind >= REMEMBERED, "{} changes are too many", behind + 1);
                    let Some(touched) = since else { continue };
                    let revision = |plan: &RulePlan, number| plan.intents.get(&source(number)).map(|it| it.revision);
                    let differs = (0..8).filter(|number| revision(before, *number) != revision(&plan, *number));
                    prop_assert!(differs.into_iter().all(|number| touched.contains(&source(number))));
                }
                former.push(plan.clone());
            }
        }
    }
}
