//! The intents of a rule in one cluster, the state of their copies, and what was done to them.
use super::{
    CopyFeedback, DeletionPolicy, Payload, Proof, PruneDigest, Revision, RuleName, RuleUid,
    SetDigest, SourceRef, TermsDigest,
};
use crate::closed_list;

/// The desired state of one source in a cluster.
#[derive(Clone)]
pub struct Intent {
    /// The source.
    pub source: SourceRef,
    /// The revision of the payload.
    pub revision: Revision,
    /// The content.
    pub payload: Payload,
}

/// The explicit order to remove the copies of one source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tombstone {
    /// The source.
    pub source: SourceRef,
    /// How.
    pub deletion_policy: DeletionPolicy,
}

closed_list! {
    /// What was done to a copy.
    pub enum CopyAction {
        /// The object was created.
        Created = "created",
        /// The copy was changed.
        Updated = "updated",
        /// An equal object was taken over.
        Adopted = "adopted",
        /// An object of others was overwritten.
        Overwritten = "overwrote",
        /// The copy could not be changed: it was deleted and created again.
        Recreated = "recreated",
        /// The copy was deleted.
        Removed = "removed",
        /// The marks of the copy were removed, and the object stays.
        Retained = "retained",
        /// Another client had changed or deleted the copy, and the agent restored it.
        Restored = "restored",
    }
}

closed_list! {
    /// What made an agent change a copy, as far as the agent knows.
    pub enum ChangeOrigin {
        /// The hub sent a change of the rule.
        Hub = "the hub ordered it",
        /// The namespace appeared or changed in the member.
        Namespace = "the namespace appeared or changed",
        /// The member's policy changed.
        Policy = "the member policy changed",
        /// Another client changed or deleted the copy.
        Drift = "another client changed or deleted it",
        /// The agent found the difference when it compared all copies.
        Resync = "resync",
    }
}

/// Number of changes of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CopyChange {
    /// The action.
    pub action: CopyAction,
    /// The cause of the action.
    pub origin: ChangeOrigin,
    /// Number of copies, at least 1.
    pub copies: u32,
}

/// The most changes in one rule's state: one for each pair of an action and an origin.
pub const CHANGES_LIMIT: usize = CopyAction::ALL.len() * ChangeOrigin::ALL.len();

/// Maximum number of failures in one rule's state.
pub const FAILURES_LIMIT: usize = 5;
/// The longest message of a failure, in bytes.
pub const MESSAGE_LIMIT: usize = 512;

closed_list! {
    /// The cause of a failed copy, the most important first: causes that need a user precede
    /// temporary ones.
    pub enum Reason {
        /// An object that is not ours has the name of the copy.
        Conflict,
        /// The member's API server refused the object.
        Invalid,
        /// The agent lacks a right.
        Forbidden,
        /// A quota or an admission rule of the member refused it.
        Denied,
        /// The change is not possible on an immutable object or field.
        Immutable,
        /// Another client keeps changing the copy; its corrections back off.
        Contended,
        /// As many copies were deleted within an hour as the member's own policy allows; this one waits.
        DeleteLimit,
        /// The copy is to be deleted, and contains objects that would go with it.
        NotEmpty,
        /// The object exceeds the agent's limit.
        TooLarge,
        /// The agent does not support this kind or cannot read the item.
        Unsupported,
        /// The member's API server does not serve the kind in the version of the source.
        KindNotServed,
        /// Two sources of one rule have one copy.
        AmbiguousSource,
        /// Another rule with precedence selects the same copy.
        Superseded,
        /// The copy is applied, and the live object reports that it has failed.
        Unhealthy,
        /// Another client changed or deleted the copy, and the rule tolerates that.
        Drifted,
        /// The target namespace is being deleted.
        NamespaceTerminating,
        /// The content is needed and only the hub has it.
        WaitingForHub,
        /// The member's API server cannot call a webhook that has to admit or convert the object.
        WebhookUnavailable,
        /// The member's API server did not answer, or answered with a passing error.
        Unavailable,
        /// The copy waits for another object: one that it needs, or one that needs it and goes first.
        WaitingForDependency,
        /// The rule is a dry run: the message names the change that would be made.
        DryRun,
    }
}

closed_list! {
    /// The health of a live object, as it reports it itself. The words are those of kstatus.
    pub enum CopyHealth {
        /// Its controller has reached what its spec requests.
        Current,
        /// Its controller is at work.
        InProgress,
        /// Its controller has failed.
        Failed,
    }
}

/// The longest message about the health of a copy, in bytes.
pub const HEALTH_MESSAGE_LIMIT: usize = 256;

/// The health of a live object, and what it reports about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedHealth {
    /// The health.
    pub health: CopyHealth,
    /// The message, one line of at most [`HEALTH_MESSAGE_LIMIT`] bytes; empty if it is current.
    pub message: Box<str>,
}

impl Reason {
    /// Rank among reasons, 0 is the worst.
    pub const fn rank(self) -> usize {
        self as usize
    }
}

/// Copies of one rule in one cluster. `copies - applied - failed - waiting - drifted - to_create - to_update` are under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of desired copies.
    pub copies: u32,
    /// Equal to the intent, by the last observation of the member's API.
    pub applied: u32,
    /// Not equal, and the last attempt failed.
    pub failed: u32,
    /// For a namespace that does not exist (yet).
    pub waiting: u32,
    /// Number of copies with an ordered removal that still exist.
    pub removing: u32,
    /// Not equal because of drift in the member, which the rule tolerates.
    pub drifted: u32,
    /// Of a dry run: copies that would be created.
    pub to_create: u32,
    /// Of a dry run: copies that would be changed, adopted or overwritten.
    pub to_update: u32,
    /// Of a dry run: copies that would be deleted or left without marks. They are not part of `copies`.
    pub to_delete: u32,
    /// Of `copies`: those for which the member has no object that belongs to this rule.
    pub absent: u32,
    /// Of `copies`: those whose live object belongs to this rule and has a health.
    pub with_health: u32,
    /// Of `with_health`: those that are [`CopyHealth::Current`].
    pub healthy: u32,
    /// Of `with_health`: those that are [`CopyHealth::Failed`].
    pub unhealthy: u32,
}

impl Counts {
    /// Whether nothing is under way: every copy is applied, failed, waiting, drifted or of a dry run, and none is being removed.
    pub fn is_settled(&self) -> bool {
        self.removing == 0 && self.copies_in_progress() == 0
    }

    /// Returns the sum of each count.
    #[must_use]
    pub fn saturating_add(self, other: Self) -> Self {
        let sum = |of: fn(&Self) -> u32| of(&self).saturating_add(of(&other));
        Self {
            copies: sum(|counts| counts.copies),
            applied: sum(|counts| counts.applied),
            failed: sum(|counts| counts.failed),
            waiting: sum(|counts| counts.waiting),
            removing: sum(|counts| counts.removing),
            drifted: sum(|counts| counts.drifted),
            to_create: sum(|counts| counts.to_create),
            to_update: sum(|counts| counts.to_update),
            to_delete: sum(|counts| counts.to_delete),
            absent: sum(|counts| counts.absent),
            with_health: sum(|counts| counts.with_health),
            healthy: sum(|counts| counts.healthy),
            unhealthy: sum(|counts| counts.unhealthy),
        }
    }

    /// The copies that exist in the member and belong to the rule.
    pub fn existing(&self) -> u32 {
        self.copies.saturating_sub(self.absent)
    }

    /// The copies whose live objects are [`CopyHealth::InProgress`].
    pub fn awaiting_health(&self) -> u32 {
        self.with_health
            .saturating_sub(self.healthy.saturating_add(self.unhealthy))
    }

    /// The copies about which something is being done.
    pub fn copies_in_progress(&self) -> u32 {
        let settled = [
            self.applied,
            self.failed,
            self.waiting,
            self.drifted,
            self.to_create,
            self.to_update,
        ];
        self.copies
            .saturating_sub(settled.into_iter().fold(0, u32::saturating_add))
    }
}

/// A failed copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The reason of the failure.
    pub reason: Reason,
    /// The copy in the member cluster.
    pub copy: SourceRef,
    /// The message, at most [`MESSAGE_LIMIT`] bytes. Never contains content of the object.
    pub message: String,
}

/// The intents of an agent for one rule, and the state of their copies. The counts are about
/// exactly these intents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleState {
    /// The rule.
    pub uid: RuleUid,
    /// The display name.
    pub rule: RuleName,
    /// Digest of the acked (source, revision) pairs.
    pub intents_digest: SetDigest,
    /// Number of acked intents.
    pub intents: u32,
    /// The stored terms, if any. `None` also for a rule that a hub did not have: sending the terms
    /// again claims it again.
    pub terms_digest: Option<TermsDigest>,
    /// The counts of copies by state.
    pub counts: Counts,
    /// The worst failures first, at most [`FAILURES_LIMIT`].
    pub failures: Vec<Failure>,
    /// No intent and no copy of the rule is left, and the agent has dropped it.
    pub gone: bool,
    /// With `gone`: the nonce of the last batch of the stream that the agent handled before.
    pub last_batch: u64,
    /// Removals that wait for the hub's approval.
    pub namespace_prunes: Option<NamespacePrunes>,
    /// The namespaces for which copies wait.
    pub waiting: WaitingNamespaces,
    /// Whether the rule is suspended here, by its terms or by an order.
    pub suspended: bool,
    /// The digest of the copies in the member's API, if nothing is in progress and every copy is
    /// applied or waiting; `None` otherwise, or if the agent has none.
    pub proof: Option<Proof>,
    /// What was done to copies since the last report of changes, at most
    /// [`CHANGES_LIMIT`].
    pub changes: Vec<CopyChange>,
    /// The fields that the rule has returned, of the first copies, at most about
    /// [`FEEDBACK_BYTES`](super::FEEDBACK_BYTES).
    pub feedback: Vec<CopyFeedback>,
}

impl RuleState {
    /// Creates the state of a rule without intents.
    #[must_use]
    pub fn new(uid: RuleUid) -> Self {
        Self {
            uid,
            rule: RuleName::default(),
            intents_digest: SetDigest::default(),
            intents: 0,
            terms_digest: None,
            counts: Counts::default(),
            failures: Vec::new(),
            gone: false,
            last_batch: 0,
            namespace_prunes: None,
            waiting: WaitingNamespaces::default(),
            suspended: false,
            proof: None,
            changes: Vec::new(),
            feedback: Vec::new(),
        }
    }
}

/// Copies of one rule in one cluster whose removal needs the hub's approval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PruneRequest {
    /// Number of copies.
    pub objects: u32,
    /// The digest of exactly these copies.
    pub digest: PruneDigest,
}

/// Namespaces of one rule in one cluster that do not exist, and for which copies wait.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WaitingNamespaces {
    /// The first of them, at most [`NAMESPACES_LIMIT`].
    pub first: Vec<String>,
    /// Number of all.
    pub count: u32,
}

/// The most namespaces that [`NamespacePrunes`] and [`WaitingNamespaces`] name.
pub const NAMESPACES_LIMIT: usize = 3;

/// Copies of one rule in one cluster whose namespaces are no longer targets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespacePrunes {
    /// Number of copies.
    pub copies: u32,
    /// The digest of exactly these copies.
    pub digest: PruneDigest,
    /// The first of their namespaces, at most [`NAMESPACES_LIMIT`].
    pub namespaces: Vec<String>,
}
