//! Decides one copy: what is wanted and what was observed give one action. Pure and idempotent: a
//! second decision after the action is a no-op.
//!
//! - A foreign object is changed only as the conflict policy allows. One exception: an object that
//!   was retained from a copy is taken back if it is equal.
//! - Nothing is removed without an order: a tombstone, a removal, or a namespace that the terms no
//!   longer name. The last kind needs the hub's approval, see [`crate::prunes`].
//! - The agent never writes what the member's policy denies, whatever the hub orders.
//!
//! Where drift is only reported, a changed or deleted copy stays so until its source changes. A new
//! revision overwrites it and ends the drift.
use std::collections::BTreeSet;
use std::sync::Arc;

use runnel_proto::model::{DeletionPolicy, DriftPolicy, FieldPath, Reason, Revision, RuleName};

use crate::copy::IntentKey;
use crate::copy::{CopyError, CopyStatus, PlannedChange};
use crate::differ;
use crate::live::{Live, Ownership};
use crate::records::Observed;

/// The namespace of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetNamespace {
    /// It is there.
    Ready,
    /// The namespace does not exist, and no rule creates it.
    Missing,
    /// It is not there and is to be created; the last attempt may have failed.
    ToCreate(Option<CopyError>),
    /// It is being deleted.
    Terminating,
}

/// A copy that a rule wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedCopy {
    /// The intent that wins this copy.
    pub intent: IntentKey,
    /// How its rule is called.
    pub rule: RuleName,
    /// The revision in force; none while every one so far was refused.
    pub revision: Option<Revision>,
    /// Its namespace.
    pub place: TargetNamespace,
    /// The rule is suspended: nothing is done.
    pub suspend: bool,
    /// The rule is a dry run: what would be done is reported.
    pub dry_run: bool,
    /// Why the copy cannot be as the hub wants it, whatever the live object is.
    pub copy_error: Option<CopyError>,
    /// Nothing is done because two sources want the copy.
    pub is_ambiguous: bool,
    /// Why this cluster itself does not let the copy be written.
    pub denied: Option<CopyError>,
    /// The policies of its rule for copies that differ.
    pub policies: Policies,
    /// Somebody keeps changing it.
    pub contention: Option<CopyError>,
    /// The copy had this revision and was deleted, or lost its marks.
    pub lost: bool,
    /// The copy had this revision, and another client wrote another one over it, with our marks.
    pub rewritten: bool,
    /// What comparing this version of the live object with the revision in force gave.
    pub compared: Option<(Arc<str>, CopyError)>,
}

/// The policies of a rule for copies that differ, as far as this cluster allows them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policies {
    /// About objects that are not ours.
    pub takeover: Takeover,
    /// For our copies that another client changed.
    pub drift: DriftPolicy,
    /// Whether a copy that cannot take a change is deleted and created again.
    pub recreate: bool,
    /// What is left alone once the copy is created.
    pub ignored: BTreeSet<FieldPath>,
    /// Where versions are kept: the number that the copy has at least, as the newest.
    pub version: Option<u64>,
}

/// Whether an object that is not ours may be taken over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Takeover {
    /// No.
    #[default]
    Never,
    /// If its content equals the wanted one.
    IfEqual,
    /// In any case.
    Always,
    /// The rule takes it over, but this cluster denies it.
    Denied(CopyError),
}

/// An order to remove a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// Delete or leave unmarked.
    pub policy: DeletionPolicy,
    /// It waits: the rule is suspended and the order is not the removal of the whole rule, or the
    /// copy has been renamed and does not exist under its new name yet.
    pub deferred: bool,
    /// It waits for the word of the hub.
    pub asks: bool,
    /// An object that Runnel adopted may be deleted too: the rule, the grant and the member's policy let it be
    /// overwritten. Otherwise it is left.
    pub overwrites: bool,
    /// The rule is a dry run: what would be done is reported.
    pub dry_run: bool,
}

/// What should become of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Want {
    /// No rule concerns it: it stays as it is.
    Nothing,
    /// It should contain an intent.
    Copy(Box<WantedCopy>),
    /// It stays as an older version of another copy; once that one exists (`true`), without the
    /// label of the newest.
    Kept(IntentKey, bool),
    /// It should go, if it belongs to this intent.
    Gone(IntentKey, RuleName, Order),
}

/// Which live object an action is about; the action fails if it is another one by then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpectedObject {
    /// Its uid.
    pub uid: Arc<str>,
    /// Its resourceVersion.
    pub version: Arc<str>,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Create the namespace.
    CreateNamespace,
    /// Look what is there.
    Read,
    /// Create the copy; fails if any object of that name exists.
    Create,
    /// Apply the intent over our copy.
    Change(ExpectedObject),
    /// Take an object that is not ours over if its content is equal.
    Adopt(ExpectedObject),
    /// Take over a foreign object, whatever its content is.
    Overwrite(ExpectedObject),
    /// Find out in what our copy differs.
    Compare(ExpectedObject),
    /// Delete our copy.
    Delete(ExpectedObject),
    /// Take the label of the newest version off our copy.
    Demote(ExpectedObject),
    /// Take our marks off our copy and leave it.
    Retain(ExpectedObject),
}

/// What was decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Nothing to do now; the copy is like this.
    Noop(CopyStatus),
    /// Nobody wants anything; or the removal is complete and its order can be forgotten.
    Forget,
    /// To be done.
    Act(Action),
}

/// Decides about one copy. Of a rule that is a dry run no decision writes.
pub fn decide(want: &Want, observed: &Observed) -> Decision {
    match want {
        Want::Copy(wanted) if wanted.dry_run => plan_wanted(wanted, observed),
        Want::Gone(intent, _, order) if order.dry_run => plan_removal(intent, *order, observed),
        _ => decide_enforced(want, observed),
    }
}

/// What would be done about a wanted copy. The only action is a read: of the object with its name,
/// or of the fields that differ.
fn plan_wanted(wanted: &WantedCopy, observed: &Observed) -> Decision {
    let planned = |change, message: &str| Decision::Noop(planned(change, message));
    match decide_wanted(wanted, observed) {
        Decision::Act(Action::CreateNamespace) => planned(
            PlannedChange::Create,
            "would be created, with its namespace",
        ),
        Decision::Act(Action::Create) if *observed == Observed::Unknown => {
            Decision::Act(Action::Read)
        }
        Decision::Act(Action::Create) => planned(PlannedChange::Create, "would be created"),
        Decision::Act(Action::Change(target)) => match &wanted.compared {
            Some((version, copy_error)) if *version == target.version => planned(
                PlannedChange::Update,
                &format!("would be updated: {}", copy_error.message),
            ),
            _ if is_of_this_intent(wanted, observed) => Decision::Act(Action::Compare(target)),
            // What another rule or source wrote may be unreadable for the author of this rule.
            _ => planned(
                PlannedChange::Update,
                "would be updated: another rule or source wrote it",
            ),
        },
        // No report contains whether a foreign object is equal.
        Decision::Act(Action::Adopt(_)) => {
            planned(PlannedChange::Update, "would be adopted if it is equal")
        }
        Decision::Act(Action::Overwrite(_)) => {
            planned(PlannedChange::Update, "would be overwritten")
        }
        Decision::Act(Action::Demote(_) | Action::Delete(_) | Action::Retain(_)) => {
            Decision::Noop(CopyStatus::UnderWay)
        }
        read @ Decision::Act(Action::Read | Action::Compare(_)) => read,
        idle @ (Decision::Noop(_) | Decision::Forget) => idle,
    }
}

/// Whether the object is sealed for this very intent, whatever its revision.
pub fn is_of_this_intent(wanted: &WantedCopy, observed: &Observed) -> bool {
    let Observed::Live(live) = observed else {
        return false;
    };
    let WantedCopy { intent, .. } = wanted;
    live.sealed.as_ref().is_some_and(|seal| {
        seal.rule == intent.rule && seal.source.plain() == intent.source.plain()
    })
}

/// What would be done about a copy that is to go.
fn plan_removal(intent: &IntentKey, order: Order, observed: &Observed) -> Decision {
    let order = Order {
        deferred: false,
        asks: false,
        ..order
    };
    match decide_removal(intent, order, observed) {
        Decision::Act(Action::Retain(_)) => Decision::Noop(planned(
            PlannedChange::Delete,
            "would be left without marks",
        )),
        Decision::Act(Action::Delete(_)) => {
            Decision::Noop(planned(PlannedChange::Delete, "would be deleted"))
        }
        Decision::Act(Action::Read) => Decision::Act(Action::Read),
        Decision::Act(_) => Decision::Noop(CopyStatus::Removing(None)),
        idle @ (Decision::Noop(_) | Decision::Forget) => idle,
    }
}

/// The status of a copy for which a dry run plans a change.
pub fn planned(change: PlannedChange, message: &str) -> CopyStatus {
    CopyStatus::Planned(change, CopyError::new(Reason::DryRun, message))
}

fn decide_enforced(want: &Want, observed: &Observed) -> Decision {
    match want {
        Want::Nothing => Decision::Forget,
        Want::Copy(wanted) => decide_wanted(wanted, observed),
        Want::Kept(_, demoted) => decide_kept(*demoted, observed),
        Want::Gone(intent, _, order) => decide_removal(intent, *order, observed),
    }
}

fn decide_kept(demoted: bool, observed: &Observed) -> Decision {
    match observed {
        Observed::Live(live)
            if demoted && live.newest && live.ownership == Ownership::Ours && !live.terminating =>
        {
            Decision::Act(Action::Demote(ExpectedObject {
                uid: live.uid.clone(),
                version: live.version.clone(),
            }))
        }
        _ => Decision::Forget,
    }
}

fn decide_wanted(wanted: &WantedCopy, observed: &Observed) -> Decision {
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
        Observed::Live(live) if is_right(wanted, live, revision) => {
            // A contended copy counts as failed, whatever its content is just now.
            Decision::Noop(copy_error(
                wanted
                    .contention
                    .clone()
                    .map_or(CopyStatus::Applied, CopyStatus::Failed),
            ))
        }
        _ if wanted.suspend => Decision::Noop(copy_error(CopyStatus::UnderWay)),
        Observed::Unknown if is_lost(wanted) => Decision::Act(Action::Read),
        Observed::Absent if is_lost(wanted) => {
            Decision::Noop(CopyStatus::Drifted(differ::deleted()))
        }
        Observed::Unknown | Observed::Absent => Decision::Act(Action::Create),
        Observed::Live(live) => decide_present(wanted, live, revision),
    }
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
    live.holds(&wanted.intent.rule, &wanted.intent.source, revision)
        && ignores
        && newest
        && !live.terminating
}

/// Whether the copy was deleted, or its marks were, and that is left so.
fn is_lost(wanted: &WantedCopy) -> bool {
    wanted.lost && wanted.policies.drift == DriftPolicy::Report
}

/// Whether our copy was as it is wanted, but for what others did to it since.
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

/// Decides a copy whose name belongs to a wrong object.
fn decide_present(wanted: &WantedCopy, live: &Live, revision: &Revision) -> Decision {
    let target = ExpectedObject {
        uid: live.uid.clone(),
        version: live.version.clone(),
    };
    // What was adopted is to be changed only as what is not ours.
    if live.is_own() {
        return match &wanted.compared {
            _ if live.terminating => Decision::Noop(CopyStatus::UnderWay),
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
    // A terminating object is not worth a contention, and an untouchable one is not touched.
    let hands_off = live.terminating || live.ownership == Ownership::Untouchable;
    match &wanted.policies.takeover {
        Takeover::Always if !hands_off => Decision::Act(Action::Overwrite(target)),
        Takeover::Denied(denied) if !hands_off && live.ownership != Ownership::Retained => {
            Decision::Noop(CopyStatus::Failed(denied.clone()))
        }
        // A copy of another hub is that hub's, however equal.
        Takeover::IfEqual if !hands_off && live.ownership != Ownership::OtherHub => {
            Decision::Act(Action::Adopt(target))
        }
        _ if !hands_off && live.ownership == Ownership::Retained => {
            Decision::Act(Action::Adopt(target))
        }
        _ => Decision::Noop(CopyStatus::Failed(conflict(live))),
    }
}

/// The failure for an object that is not ours and is not taken over.
pub fn conflict(live: &Live) -> CopyError {
    let hint = match live.ownership {
        Ownership::Ours => {
            "to have it follow its source, set conflictPolicy: Overwrite, where the grant (policies.overwrite) and this \
             member's policy (overwrite) allow it; or delete it"
        }
        Ownership::Untouchable => {
            "leave the source out of the rule (exclude), or give its copy another name (transform.name)"
        }
        _ => "delete it or rename it",
    };
    CopyError::new(Reason::Conflict, format!("{}; {hint}", what_stands(live)))
}

fn what_stands(live: &Live) -> String {
    let what = match live.ownership {
        Ownership::Retained => {
            "an object that was retained from an earlier copy stands here with other content"
        }
        Ownership::Clone => "an object that was cloned from another copy stands here",
        Ownership::OtherHub => "a copy of another hub stands here",
        Ownership::Untouchable => {
            "an object that this cluster made for itself stands here, and is never taken over"
        }
        Ownership::Ours => {
            "an object that Runnel did not create stands here and differs from the source"
        }
        Ownership::Foreign => "an object that is not Runnel's stands here",
    };
    let who = live
        .others
        .as_ref()
        .map(|who| format!(" (written by {who})"))
        .unwrap_or_default();
    format!("{what}{who}")
}

/// The failure for an object that would be taken over if it were equal.
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
    if live.terminating {
        return Decision::Noop(CopyStatus::Removing(None));
    }
    if order.asks {
        return Decision::Noop(CopyStatus::PruneRequested);
    }
    let target = ExpectedObject {
        uid: live.uid.clone(),
        version: live.version.clone(),
    };
    Decision::Act(match order.policy {
        DeletionPolicy::Delete if live.is_own() || order.overwrites => Action::Delete(target),
        DeletionPolicy::Delete | DeletionPolicy::Retain => Action::Retain(target),
    })
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
