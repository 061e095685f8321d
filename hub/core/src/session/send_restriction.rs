//! The restriction of what is sent to a diverged member ([`crate::epoch`]).
use runnel_proto::model::{PruneDigest, RuleUid};

use super::Session;
use super::rule_stream_state::{Delta, Items};
use crate::index::Directive;
use crate::plan::ClusterAssignment;

/// What is not sent to a diverged member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SendRestriction {
    /// Everything is sent.
    #[default]
    Nothing,
    /// No removals are sent.
    Removals,
    /// Nothing is sent about any rule: the agent continues as without a hub.
    Everything,
}

impl Session {
    /// Restricts this session from its beginning on.
    pub fn set_restriction(&mut self, restriction: SendRestriction) {
        self.restriction = restriction;
    }

    /// Whether a message that would have removed a copy was not sent.
    pub fn has_withheld(&self) -> bool {
        self.has_withheld
    }

    /// Whether the agent connected with exactly the desired intents, so that no removal is
    /// withheld.
    pub fn has_only_desired_intents(&self) -> bool {
        self.rules.values().all(|stream| !stream.former)
    }

    /// Whether nothing of a rule is removed. A rule that once equaled the desired state has no
    /// former copies left, and a rule in an unknown state keeps only its own copies.
    pub(super) fn withholds_removals(&self, uid: &RuleUid) -> bool {
        let is_former = || self.rules.get(uid).is_some_and(|stream| stream.former);
        match self.restriction {
            SendRestriction::Everything => true,
            SendRestriction::Removals => is_former(),
            SendRestriction::Nothing => false,
        }
    }

    /// The directive under the current restriction.
    pub(super) fn restrict(&mut self, uid: &RuleUid, directive: Directive) -> Directive {
        match (self.restriction, directive) {
            (SendRestriction::Everything, _) => Directive::Unknown,
            (SendRestriction::Removals, Directive::Removed(_)) if self.withholds_removals(uid) => {
                self.has_withheld = true;
                Directive::Unknown
            }
            // Other terms may give namespaces up, and take copies along.
            (SendRestriction::Removals, Directive::Assigned(assignment))
                if self.withholds_removals(uid) && self.has_other_terms(uid, &assignment) =>
            {
                self.has_withheld = true;
                Directive::Unknown
            }
            (_, directive) => directive,
        }
    }

    fn has_other_terms(&self, uid: &RuleUid, assignment: &ClusterAssignment) -> bool {
        let sent_terms = self.rules.get(uid).and_then(|stream| stream.sent_terms);
        sent_terms.is_some_and(|sent_terms| sent_terms != assignment.terms.digest)
    }

    /// The approved prunes under the current restriction.
    pub(super) fn may_prune(
        &self,
        uid: &RuleUid,
        prune: Option<PruneDigest>,
    ) -> Option<PruneDigest> {
        prune.filter(|_| !self.withholds_removals(uid))
    }
}

impl Items {
    /// Drops the removals of a step. Returns whether there were any.
    pub(super) fn withhold_removals(&self, step: &mut Delta) -> bool {
        let stay: Vec<_> = std::mem::take(&mut step.tombstones);
        let any = !stay.is_empty();
        if let Items::ClusterAssignment {
            over_limit: beyond, ..
        } = &mut step.items
        {
            beyond.extend(
                stay.into_iter()
                    .filter_map(|source| Some((source.clone(), self.revision(&source)?))),
            );
        }
        any
    }
}
