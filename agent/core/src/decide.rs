//! Decides one copy: compares the desired with the observed state and returns one action. Pure and
//! idempotent: a second decision after the action is a no-op. A job carries the action out at the API
//! server, and has a result.
//!
//! - The agent changes a foreign object only as the conflict policy allows. One exception: it
//!   adopts an equal object that was retained from a copy.
//! - The agent removes a copy only for an order: a tombstone, a removal, or a namespace that the
//!   terms no longer name. The last kind needs the hub's approval, see `reconciler/prunes.rs`.
//! - The agent never writes what the member's policy denies, even if the hub orders it.
//!
//! If drift is only reported, the agent does not correct a changed or deleted copy until its source
//! changes. A new revision overwrites the copy and ends the drift.
#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use runnel_proto::model::{
    DeletionPolicy, DriftPolicy, FieldDigests, FieldPath, FieldsKey, Payload, PreviewOutcome,
    PreviewResult, Propagation, Reason, Revision, RuleName, RuleUid, SourceRef,
};

use crate::copy::{CopyError, CopyStatus, IntentKey, NewPayload, PlannedChange};
use crate::diff;
pub use crate::live::ExpectedObject;
use crate::live::{Live, Ownership};
use crate::policy::{Policy, ServiceAccount};
use crate::records::Observed;
pub use crate::recreation::Recreate;

/// The state of a copy's namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetNamespace {
    /// The namespace exists.
    Ready,
    /// The namespace does not exist, and no rule creates it.
    Missing,
    /// The namespace does not exist and the agent creates it. Contains the error of the last
    /// attempt.
    ToCreate(Option<CopyError>),
    /// The namespace is being deleted.
    Terminating,
}

/// A copy that a rule distributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedCopy {
    /// The intent that wins this copy.
    pub intent: IntentKey,
    /// The name of the rule.
    pub rule: RuleName,
    /// The desired revision; `None` while the agent has refused every revision.
    pub revision: Option<Revision>,
    /// The state of its namespace.
    pub place: TargetNamespace,
    /// The rule is suspended: the agent does not change the copy.
    pub suspend: bool,
    /// The rule is a dry run: the agent only reports the planned change.
    pub dry_run: bool,
    /// The hub does not know the rule: the agent creates no copy.
    pub orphaned: bool,
    /// The error of an order that the agent cannot carry out: ambiguous sources, or a refused
    /// revision.
    pub copy_error: Option<CopyError>,
    /// Two sources compete for the copy, so the agent does not change it.
    pub is_ambiguous: bool,
    /// The error if this cluster denies the copy: its policy, its namespace or a quota.
    pub denied: Option<CopyError>,
    /// The rule's policies for copies that differ.
    pub policies: Policies,
    /// The error if the copy is contended: another client keeps changing it.
    pub contention: Option<CopyError>,
    /// The copy had this revision, and then was deleted or lost its marks.
    pub lost: bool,
    /// The copy had this revision, and then another client wrote another revision over it with our
    /// marks.
    pub rewritten: bool,
    /// The copy ran to its end with this revision, and then was deleted.
    pub finished: bool,
    /// The differences between the live object of this resourceVersion and the desired revision.
    pub compared: Option<(Arc<str>, CopyError)>,
}

/// The policies of a rule for copies that differ, as far as this cluster allows them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policies {
    /// Policy for objects that are not ours.
    pub takeover: Takeover,
    /// Policy for copies that another client changed.
    pub drift: DriftPolicy,
    /// Whether a copy that cannot take a change is deleted and created again.
    pub recreate: bool,
    /// The fields that the agent does not change once the copy exists.
    pub ignored: BTreeSet<FieldPath>,
    /// Whether the agent does not change the copy at all once it exists.
    pub create_only: bool,
    /// The minimum version number of the copy, as the newest version, if the rule keeps versions.
    pub version: Option<u64>,
}

/// Whether an object that is not ours may be taken over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Takeover {
    /// The object is not taken over.
    #[default]
    Never,
    /// The object is taken over if its content equals the desired content.
    IfEqual,
    /// The object is taken over with any content.
    Always,
    /// The rule allows the takeover, but this cluster denies it.
    Denied(CopyError),
}

/// An order to remove a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// Whether the copy is deleted, or left without marks.
    pub policy: DeletionPolicy,
    /// The removal is deferred. The rule is suspended and the order is not the removal of the whole
    /// rule. Or the copy was renamed and does not exist under its new name yet.
    pub deferred: bool,
    /// The removal waits for the hub's approval.
    pub needs_approval: bool,
    /// Whether an adopted object may be deleted too: the rule, the grant and the member's policy
    /// allow overwriting it. Otherwise it is left without marks.
    pub overwrites: bool,
    /// The rule is a dry run: the agent only reports the planned removal.
    pub dry_run: bool,
}

/// The desired state of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DesiredCopy {
    /// No rule concerns the copy: it is left unchanged.
    Nothing,
    /// The copy must contain an intent.
    Copy(Box<WantedCopy>),
    /// The copy is kept as an older version of another copy. `true`: the newer copy exists, so the
    /// label of the newest version is removed.
    OlderVersion(IntentKey, bool),
    /// The copy must be removed if it belongs to this intent.
    Absent(IntentKey, RuleName, Order),
}

impl DesiredCopy {
    /// Returns the intent and revision of the desired state. A failure delays only retries of the
    /// same pair.
    pub fn target(&self) -> Option<(IntentKey, Option<Revision>)> {
        match self {
            Self::Nothing => None,
            Self::Copy(wanted) => Some((wanted.intent.clone(), wanted.revision)),
            Self::Absent(key, ..) | Self::OlderVersion(key, _) => Some((key.clone(), None)),
        }
    }

    /// Returns the rule of the desired state.
    pub fn rule_uid(&self) -> Option<&RuleUid> {
        match self {
            Self::Nothing => None,
            Self::Copy(wanted) => Some(&wanted.intent.rule),
            Self::Absent(key, ..) | Self::OlderVersion(key, _) => Some(&key.rule),
        }
    }
}

/// An action on a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Create the namespace.
    CreateNamespace,
    /// Read the object from the API server.
    Read,
    /// Create the copy; fails if any object of that name exists.
    Create,
    /// Apply the intent over our copy.
    Change(ExpectedObject),
    /// Take over an object that is not ours if its content is equal.
    Adopt(ExpectedObject),
    /// Take over a foreign object with any content.
    Overwrite(ExpectedObject),
    /// Compare our copy with the desired revision.
    Compare(ExpectedObject),
    /// Delete our copy.
    Delete(ExpectedObject),
    /// Remove the label of the newest version from our copy.
    Demote(ExpectedObject),
    /// Remove our marks from our copy and leave the object.
    Retain(ExpectedObject),
}

impl Action {
    /// Whether it removes the copy.
    pub fn is_removal(&self) -> bool {
        matches!(self, Self::Delete(_) | Self::Retain(_))
    }
}

/// The result of a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Nothing is to be done now. Contains the status of the copy.
    Noop(CopyStatus),
    /// No rule concerns the copy, or the removal is complete and its order can be dropped.
    Forget,
    /// An action is to be carried out.
    Act(Action),
}

/// Decides one copy. For a rule that is a dry run, no decision writes.
pub fn decide(desired: &DesiredCopy, observed: &Observed) -> Decision {
    match desired {
        DesiredCopy::Copy(wanted) if wanted.dry_run => dry_run(wanted, desired, observed),
        DesiredCopy::Absent(intent, rule, order) if order.dry_run => {
            // The removal needs no approval while it is only reported.
            let order = Order {
                deferred: false,
                needs_approval: false,
                ..*order
            };
            let desired = DesiredCopy::Absent(intent.clone(), rule.clone(), order);
            plan(&desired, observed)
        }
        _ => decide_enforced(desired, observed),
    }
}

/// Returns the change of a copy that an enforced rule would make, for a dry run and for a preview.
/// The only actions are reads: of the object with the copy's name, or of the fields that differ.
///
/// The status does not disclose whether a foreign object is equal. It contains no more than a
/// person with access to the rule may see.
pub fn plan(desired: &DesiredCopy, observed: &Observed) -> Decision {
    let (change, message) = match decide_enforced(desired, observed) {
        Decision::Act(Action::CreateNamespace) => (
            PlannedChange::Create,
            "would be created, with its namespace",
        ),
        Decision::Act(Action::Create) => (PlannedChange::Create, "would be created"),
        Decision::Act(Action::Change(_)) => (PlannedChange::Change, "would be updated"),
        Decision::Act(Action::Adopt(_)) => (
            PlannedChange::AdoptIfEqual,
            "would be adopted if it is equal",
        ),
        Decision::Act(Action::Overwrite(_)) => (PlannedChange::Overwrite, "would be overwritten"),
        Decision::Act(Action::Delete(_)) => (PlannedChange::Remove, "would be deleted"),
        Decision::Noop(CopyStatus::PruneRequested) => (PlannedChange::Prune, "would be deleted"),
        Decision::Act(Action::Retain(_)) => (PlannedChange::Retain, "would be left without marks"),
        Decision::Act(Action::Demote(_)) => return Decision::Noop(CopyStatus::UnderWay),
        read @ Decision::Act(Action::Read | Action::Compare(_)) => return read,
        idle @ (Decision::Noop(_) | Decision::Forget) => return idle,
    };
    Decision::Noop(planned(change, message))
}

/// Adds to the plan of a copy what a dry run reads: whether an object exists, and the fields that
/// differ.
fn dry_run(wanted: &WantedCopy, desired: &DesiredCopy, observed: &Observed) -> Decision {
    let decision = plan(desired, observed);
    let Decision::Noop(CopyStatus::Planned(change, _)) = &decision else {
        return decision;
    };
    match (change, observed) {
        (PlannedChange::Create, Observed::Unknown) if wanted.place == TargetNamespace::Ready => {
            Decision::Act(Action::Read)
        }
        (PlannedChange::Change, Observed::Live(live)) => match &wanted.compared {
            Some((version, copy_error)) if *version == live.version => Decision::Noop(planned(
                *change,
                &format!("would be updated: {}", copy_error.message),
            )),
            _ if is_sealed_for(wanted, observed) => {
                Decision::Act(Action::Compare(ExpectedObject::of(live)))
            }
            // The author of this rule may have no permission to read the content of another rule or
            // source.
            _ => Decision::Noop(planned(
                *change,
                "would be updated: another rule or source wrote it",
            )),
        },
        _ => decision,
    }
}

/// Whether the object is sealed for exactly this intent, in any revision.
pub fn is_sealed_for(wanted: &WantedCopy, observed: &Observed) -> bool {
    let Observed::Live(live) = observed else {
        return false;
    };
    let WantedCopy { intent, .. } = wanted;
    live.sealed.as_ref().is_some_and(|seal| {
        seal.rule == intent.rule && seal.source.plain() == intent.source.plain()
    })
}

/// The status of a copy for which a dry run plans a change.
pub fn planned(change: PlannedChange, message: &str) -> CopyStatus {
    CopyStatus::Planned(change, CopyError::new(Reason::DryRun, message))
}

fn decide_enforced(desired: &DesiredCopy, observed: &Observed) -> Decision {
    match desired {
        DesiredCopy::Nothing => Decision::Forget,
        DesiredCopy::Copy(wanted) => decide_desired(wanted, observed),
        DesiredCopy::OlderVersion(_, demoted) => decide_older_version(*demoted, observed),
        DesiredCopy::Absent(intent, _, order) => decide_removal(intent, *order, observed),
    }
}

fn decide_older_version(demoted: bool, observed: &Observed) -> Decision {
    match observed {
        Observed::Live(live)
            if demoted
                && live.newest
                && live.ownership == Ownership::Ours
                && live.terminating.is_none() =>
        {
            Decision::Act(Action::Demote(ExpectedObject::of(live)))
        }
        _ => Decision::Forget,
    }
}

fn decide_desired(wanted: &WantedCopy, observed: &Observed) -> Decision {
    if let Some(denied) = &wanted.denied {
        return Decision::Noop(CopyStatus::Failed(denied.clone()));
    }
    let copy_error = |fallback: CopyStatus| {
        wanted
            .copy_error
            .clone()
            .map_or(fallback, CopyStatus::Failed)
    };
    let Some(revision) = &wanted.revision else {
        return Decision::Noop(copy_error(CopyStatus::UnderWay));
    };
    if wanted.is_ambiguous {
        return Decision::Noop(copy_error(CopyStatus::UnderWay));
    }
    if wanted.orphaned && !matches!(observed, Observed::Live(_)) {
        return Decision::Forget;
    }
    match &wanted.place {
        TargetNamespace::Terminating => {
            let message = "the target namespace is being deleted";
            return Decision::Noop(CopyStatus::Failed(CopyError::new(
                Reason::NamespaceTerminating,
                message,
            )));
        }
        TargetNamespace::Missing => return Decision::Noop(CopyStatus::Waiting),
        TargetNamespace::ToCreate(_) if wanted.suspend => {
            return Decision::Noop(CopyStatus::Waiting);
        }
        TargetNamespace::ToCreate(Some(failed)) => {
            return Decision::Noop(CopyStatus::Failed(failed.clone()));
        }
        TargetNamespace::ToCreate(None) => return Decision::Act(Action::CreateNamespace),
        TargetNamespace::Ready => {}
    }
    match observed {
        // A copy of an older agent, or from before the cluster was renamed, gets the name.
        Observed::Live(live)
            if is_right(wanted, live, revision)
                && (live.names_member || wanted.suspend || !live.is_own()) =>
        {
            Decision::Noop(applied_status(wanted))
        }
        // Created again, it would run again.
        Observed::Absent if wanted.finished => Decision::Noop(applied_status(wanted)),
        _ if wanted.suspend => Decision::Noop(copy_error(CopyStatus::UnderWay)),
        Observed::Unknown if is_lost(wanted) || wanted.finished => Decision::Act(Action::Read),
        Observed::Absent if is_lost(wanted) => Decision::Noop(CopyStatus::Drifted(diff::deleted())),
        Observed::Unknown | Observed::Absent => Decision::Act(Action::Create),
        Observed::Live(live) => decide_present(wanted, live, revision),
    }
}

/// Whether the observed object has the desired state.
pub fn is_applied(wanted: &WantedCopy, observed: &Observed) -> bool {
    match (observed, &wanted.revision) {
        (Observed::Live(live), Some(revision)) => is_right(wanted, live, revision),
        _ => false,
    }
}

/// Returns the status of a copy that has the desired state.
pub fn applied_status(wanted: &WantedCopy) -> CopyStatus {
    // A contended copy counts as failed, even while its content is correct.
    let copy_error = wanted.copy_error.as_ref().or(wanted.contention.as_ref());
    copy_error
        .cloned()
        .map_or(CopyStatus::Applied, CopyStatus::Failed)
}

fn is_right(wanted: &WantedCopy, live: &Live, revision: &Revision) -> bool {
    let ignores = live
        .sealed
        .as_ref()
        .is_some_and(|sealed| sealed.ignored == wanted.policies.ignored);
    let newest = wanted
        .policies
        .version
        .is_none_or(|least| live.newest && live.number >= least);
    live.has_revision(&wanted.intent.rule, &wanted.intent.source, revision)
        && ignores
        && newest
        && live.terminating.is_none()
}

/// Whether the copy was deleted or lost its marks, and the rule only reports drift.
fn is_lost(wanted: &WantedCopy) -> bool {
    wanted.lost && wanted.policies.drift == DriftPolicy::Report
}

/// Whether our copy had the desired state until other clients changed it.
fn is_drifted(wanted: &WantedCopy, live: &Live, revision: &Revision) -> bool {
    let WantedCopy { intent, lost, .. } = wanted;
    let deferred = match &live.sealed {
        Some(sealed) => {
            sealed.rule == intent.rule
                && sealed.source == intent.source
                && sealed.revision == *revision
        }
        None => *lost,
    };
    wanted.rewritten || (deferred && !live.intact)
}

/// Decides a copy whose live object does not have the desired state.
fn decide_present(wanted: &WantedCopy, live: &Live, revision: &Revision) -> Decision {
    let target = ExpectedObject::of(live);
    if wanted.policies.create_only
        && live.terminating.is_none()
        && live.is_removable_for(&wanted.intent)
    {
        return Decision::Noop(applied_status(wanted));
    }
    // An adopted object is changed only as an object that is not ours.
    if live.is_own() {
        return match &wanted.compared {
            _ if live.terminating.is_some() => Decision::Noop(CopyStatus::UnderWay),
            _ if wanted.policies.drift == DriftPolicy::Correct
                || !is_drifted(wanted, live, revision) =>
            {
                Decision::Act(Action::Change(target))
            }
            Some((version, copy_error)) if *version == live.version => {
                Decision::Noop(CopyStatus::Drifted(copy_error.clone()))
            }
            _ => Decision::Act(Action::Compare(target)),
        };
    }
    // A terminating object needs no takeover, and an untouchable object is never taken over.
    let leaves_object = live.terminating.is_some() || live.ownership == Ownership::Untouchable;
    match &wanted.policies.takeover {
        Takeover::Always if !leaves_object => Decision::Act(Action::Overwrite(target)),
        Takeover::Denied(denied) if !leaves_object && live.ownership != Ownership::Retained => {
            Decision::Noop(CopyStatus::Failed(denied.clone()))
        }
        // A copy of another hub or member belongs to that one, even if it is equal.
        Takeover::IfEqual
            if !leaves_object
                && ![Ownership::OtherHub, Ownership::OtherMember].contains(&live.ownership) =>
        {
            Decision::Act(Action::Adopt(target))
        }
        _ if !leaves_object && live.ownership == Ownership::Retained => {
            Decision::Act(Action::Adopt(target))
        }
        _ => Decision::Noop(CopyStatus::Failed(conflict(live))),
    }
}

/// Returns the error for an object that is not ours and is not taken over.
pub fn conflict(live: &Live) -> CopyError {
    let hint = match live.ownership {
        Ownership::Ours => {
            "to have it follow its source, set conflictPolicy: Overwrite, where the grant (policies.overwrite) and this \
             member's policy (overwrite) allow it; or delete it"
        }
        Ownership::OtherMember => {
            "if the cluster was renamed, let it join with `kubectl runnel join NEW --replace OLD`; or delete it"
        }
        Ownership::Untouchable => {
            "leave the source out of the rule (exclude), or give its copy another name (transform.name)"
        }
        _ => "delete it or rename it",
    };
    CopyError::new(Reason::Conflict, format!("{}; {hint}", live.describe()))
}

/// Returns the error for an object that would be taken over if it were equal.
pub fn differs(live: &Live) -> CopyError {
    let CopyError { reason, message } = conflict(live);
    if matches!(live.ownership, Ownership::Retained | Ownership::Ours) {
        return CopyError { reason, message };
    }
    CopyError::new(
        reason,
        format!("{message}; its content differs from the source's, so it is not adopted"),
    )
}

fn decide_removal(intent: &IntentKey, order: Order, observed: &Observed) -> Decision {
    let live = match observed {
        _ if order.deferred => return Decision::Noop(CopyStatus::Removing(None)),
        Observed::Unknown => return Decision::Act(Action::Read),
        Observed::Absent => return Decision::Forget,
        Observed::Live(live) => live,
    };
    if !live.is_removable_for(intent) {
        return Decision::Forget;
    }
    if live.terminating.is_some() {
        return Decision::Noop(CopyStatus::Removing(None));
    }
    if order.needs_approval {
        return Decision::Noop(CopyStatus::PruneRequested);
    }
    let target = ExpectedObject::of(live);
    Decision::Act(match order.policy {
        DeletionPolicy::Delete if live.is_own() || order.overwrites => Action::Delete(target),
        DeletionPolicy::Delete | DeletionPolicy::Retain => Action::Retain(target),
    })
}

/// The key of a run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// A copy.
    Copy(SourceRef),
    /// A namespace that the agent creates for a rule.
    Namespace(Arc<str>),
    /// A request of the hub, by the number that the core gave it. Such a key is never queued.
    Question(u64),
}

/// The outcome of a preview, and its error if there is one.
pub type PreviewDecision = (PreviewOutcome, Option<CopyError>);

/// A preview that the hub requested, with the outcomes that need no read. Without `Debug`: it may
/// contain content.
pub struct PreviewJob {
    /// The hub's number of the request.
    pub question: u64,
    /// The key for field digests.
    pub key: FieldsKey,
    /// The previewed copies.
    pub items: Vec<Item>,
    /// The number of copies beyond the limit of one preview.
    pub more: u32,
}

/// One previewed copy.
pub struct Item {
    /// The copy.
    pub copy: SourceRef,
    /// Its source.
    pub source: SourceRef,
    /// The outcome, or what is needed to compute it.
    pub known: PreviewInput,
    /// The copies that must exist before this one is removed.
    pub after: Vec<SourceRef>,
    /// The account under which the copy would be written; `None` for the agent's own.
    pub account: Option<ServiceAccount>,
}

/// The outcome of a previewed copy, or what is needed to compute it.
pub enum PreviewInput {
    /// The outcome is known.
    Decided(PreviewDecision),
    /// The outcome may need a request to the API server.
    Open(Box<Open>),
}

/// The input of the requests for a previewed copy.
pub struct Open {
    /// The desired state under the previewed terms.
    pub desired: DesiredCopy,
    /// The observed object in the records.
    pub observed: Observed,
    /// The keyed digest of the desired fields, to compare with the live object.
    pub fields: [u8; 32],
    /// Whether the agent sends a dry run of the write.
    pub dry_run: bool,
    /// The desired object, if the hub sent its content.
    pub body: Option<DesiredObject>,
    /// Digests of the desired fields, by path, if the differing paths are requested.
    pub digests: Option<Arc<FieldDigests>>,
}

impl Open {
    /// Whether the live object must be read.
    pub fn needs_read(&self) -> bool {
        let is_ours = matches!(&self.observed, Observed::Live(live) if live.is_own());
        self.dry_run || self.digests.is_some() || !is_ours
    }
}

/// A job for one key.
pub struct Job {
    /// The key.
    pub key: Key,
    /// The work.
    pub work: Work,
    /// The account under which the job writes; `None` for the agent's own.
    pub account: Option<ServiceAccount>,
    /// How the job deletes.
    pub propagation: Propagation,
    /// Whether the job corrects drift, and names the fields that it puts back ([`Done::corrected`]).
    pub corrects_drift: bool,
    /// The JSON nodes of the content and of the object, as far as they are known: what the job decodes.
    pub nodes: u32,
}

/// The work of a job.
pub enum Work {
    /// Create the namespace.
    CreateNamespace,
    /// Read the object.
    Read,
    /// Create the copy. The job fails if an object exists.
    Create(DesiredObject),
    /// Apply over our copy.
    Change(ExpectedObject, DesiredObject),
    /// Take over an object that is not ours if it is equal.
    Adopt(ExpectedObject, DesiredObject),
    /// Take over an object that is not ours, with any content.
    Overwrite(ExpectedObject, DesiredObject),
    /// Compare our copy with the desired revision.
    Compare(ExpectedObject, DesiredObject),
    /// Delete our copy.
    Delete(ExpectedObject),
    /// Remove the label of the newest version from our copy.
    Demote(ExpectedObject),
    /// Remove our marks from our copy and leave the object.
    Retain(ExpectedObject, RuleName),
    /// Compute previewed outcomes. This changes nothing.
    Preview(Box<PreviewJob>),
}

impl Work {
    /// Returns the rule of the copy, if the work contains it.
    pub fn rule(&self) -> Option<&RuleName> {
        match self {
            Self::Create(desired)
            | Self::Change(_, desired)
            | Self::Adopt(_, desired)
            | Self::Overwrite(_, desired)
            | Self::Compare(_, desired) => Some(&desired.rule),
            Self::Retain(_, rule) => Some(rule),
            Self::CreateNamespace
            | Self::Read
            | Self::Delete(_)
            | Self::Demote(_)
            | Self::Preview(_) => None,
        }
    }
}

/// The object to write. Without `Debug`: it may contain content.
pub struct DesiredObject {
    /// The intent.
    pub intent: IntentKey,
    /// The name of the rule.
    pub rule: RuleName,
    /// The revision.
    pub revision: Revision,
    /// The content, or where it comes from.
    pub content: ContentSource,
    /// The fields that are written only when the copy is created.
    pub ignored: BTreeSet<FieldPath>,
    /// The version number, if the rule keeps versions.
    pub version: Option<u64>,
    /// Whether a copy that cannot be changed is deleted and created again.
    pub recreate: Recreate,
    /// The rule is a dry run: the copy is compared and not written, and no values are reported.
    pub dry_run: bool,
    /// The rule leaves drift alone, so a copy must never have another seal than its right one, even for a moment.
    pub reports_drift: bool,
    /// The policy that is checked again right before the write.
    pub limits: Limits,
}

impl DesiredObject {
    /// Returns the error for an object that is not adopted because it is not equal.
    pub fn unequal(&self, live: &Live) -> CopyError {
        differs(live)
    }
}

/// The limits that a write must observe.
#[derive(Clone)]
pub struct Limits {
    /// The policy at the time when the job was created.
    pub policy: Arc<Policy>,
    /// The agent's own namespace.
    pub location: Arc<str>,
}

/// The source of content. Without `Debug`: it may contain content.
pub enum ContentSource {
    /// The content itself.
    Payload(Payload),
    /// Another copy of the same intent and revision, from which the content is read.
    Twin(SourceRef),
}

/// The change that a job made to the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteEffect {
    /// The object was created.
    Created,
    /// The object was changed.
    Changed,
    /// The apply changed nothing.
    Equal,
    /// The object was equal, and was taken over.
    Adopted,
    /// The object was taken over, and its previous content is lost.
    Overwrote,
    /// The object was deleted and created again.
    Recreated,
    /// The object was deleted.
    Deleted,
    /// The object was left without marks.
    Retained,
}

impl WriteEffect {
    /// Whether the copy was removed.
    pub fn is_removal(self) -> bool {
        matches!(self, Self::Deleted | Self::Retained)
    }
}

/// The result of a job. Without `Debug`: it may contain content.
pub struct Done {
    /// The key of the job.
    pub key: Key,
    /// The state of the object after the job, if it is known.
    pub observed: Option<Observed>,
    /// Older resourceVersions that the job has seen.
    pub passed: Vec<Arc<str>>,
    /// The change that the job made.
    pub wrote: Option<WriteEffect>,
    /// Whether the job deleted an object before its write.
    pub deleted: bool,
    /// The error, if the job failed.
    pub copy_error: Option<CopyError>,
    /// The delay before the next try that the API server asks for.
    pub retry_after: Option<Duration>,
    /// Content that the job has read from a copy.
    pub learned: Option<NewPayload>,
    /// The differences of the live object of this resourceVersion.
    pub compared: Option<Box<(Arc<str>, CopyError)>>,
    /// The differences that a correction found before its write: paths without values.
    pub corrected: Option<String>,
    /// Whether the write has renewed the seal alone: of what was applied nothing differs, but its API server has more defaults in it
    /// than before.
    pub resealed: bool,
    /// The result of a preview.
    pub preview_result: Option<PreviewResult>,
}

impl Done {
    /// Returns the result of a job that has done nothing yet.
    pub fn new(key: Key) -> Self {
        Self {
            key,
            observed: None,
            passed: vec![],
            wrote: None,
            deleted: false,
            copy_error: None,
            retry_after: None,
            learned: None,
            compared: None,
            corrected: None,
            resealed: false,
            preview_result: None,
        }
    }
}
