//! What to do about one copy: what is wanted and what is there give one action. Pure and idempotent: after the
//! action has been carried out, deciding again gives rest.
//!
//! An object that is not ours is never changed or deleted, but for one that was retained from a copy and is taken
//! back when it is equal. Nothing is removed without an order (a tombstone, a removal, a namespace that the terms no
//! longer name). What the member's policy denies is not written, whatever the hub says.
use std::sync::Arc;

use runnel_proto::model::{DeletionPolicy, Reason, Revision, RuleName};

use crate::live::{Live, Ownership};
use crate::records::{IntentKey, Sight};

/// How a copy is, for its rule's report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Something is being done about it.
    UnderWay,
    /// Equal to the intent, as far as the API server has said.
    Applied,
    /// Not equal, and the last attempt failed.
    Failed(Trouble),
    /// Its namespace does not exist yet.
    Waiting,
    /// It must go and is still there; the last attempt may have failed.
    Removing(Option<Trouble>),
}

/// Why something failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// The kind of failure.
    pub reason: Reason,
    /// A sentence for a person, without content.
    pub message: Arc<str>,
}

impl Trouble {
    /// A failure.
    pub fn new(reason: Reason, message: impl Into<Arc<str>>) -> Self {
        Self { reason, message: message.into() }
    }
}

/// The namespace of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// It is there.
    Ready,
    /// It is not there, and nobody asks for it to be created.
    Missing,
    /// It is not there and is to be created; the last attempt may have failed.
    ToCreate(Option<Trouble>),
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
    pub place: Place,
    /// The rule is suspended: nothing is done.
    pub suspend: bool,
    /// Why the copy cannot be as the hub wants it, whatever the live object says.
    pub trouble: Option<Trouble>,
    /// Nothing is done because two sources want the copy.
    pub hold: bool,
    /// Why this cluster itself does not let the copy be written.
    pub denied: Option<Trouble>,
}

/// An order to remove a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// Delete or leave unmarked.
    pub policy: DeletionPolicy,
    /// It waits: the rule is suspended and the order is not the removal of the whole rule, or the copy has been renamed
    /// and does not stand under its new name yet.
    pub held: bool,
}

/// What should become of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Want {
    /// Nobody says anything about it: it stays as it is.
    Nothing,
    /// It should hold an intent.
    Copy(WantedCopy),
    /// It should go, if it belongs to this intent.
    Gone(IntentKey, RuleName, Order),
}

/// Which live object an action is about; the action fails if it is another one by then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
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
    Change(Target),
    /// Take a retained object back if its content is equal.
    Adopt(Target),
    /// Delete our copy.
    Delete(Target),
    /// Take our marks off our copy and leave it.
    Retain(Target),
}

/// What was decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing to do now; the copy is like this.
    Rest(Outcome),
    /// Nobody wants anything; or the removal is complete and its order can be forgotten.
    Over,
    /// To be done.
    Do(Action),
}

/// Decides about one copy.
pub fn decide(want: &Want, sight: &Sight) -> Verdict {
    match want {
        Want::Nothing => Verdict::Over,
        Want::Copy(wanted) => decide_wanted(wanted, sight),
        Want::Gone(intent, _, order) => decide_removal(intent, *order, sight),
    }
}

fn decide_wanted(wanted: &WantedCopy, sight: &Sight) -> Verdict {
    if let Some(denied) = &wanted.denied {
        return Verdict::Rest(Outcome::Failed(denied.clone()));
    }
    let trouble = |fallback: Outcome| wanted.trouble.clone().map_or(fallback, Outcome::Failed);
    let Some(revision) = &wanted.revision else { return Verdict::Rest(trouble(Outcome::UnderWay)) };
    if wanted.hold {
        return Verdict::Rest(trouble(Outcome::UnderWay));
    }
    match &wanted.place {
        Place::Terminating => {
            let message = "the target namespace is being deleted";
            return Verdict::Rest(Outcome::Failed(Trouble::new(Reason::NamespaceTerminating, message)));
        }
        Place::Missing => return Verdict::Rest(Outcome::Waiting),
        Place::ToCreate(_) if wanted.suspend => return Verdict::Rest(Outcome::Waiting),
        Place::ToCreate(Some(failed)) => return Verdict::Rest(Outcome::Failed(failed.clone())),
        Place::ToCreate(None) => return Verdict::Do(Action::CreateNamespace),
        Place::Ready => {}
    }
    match sight {
        Sight::Live(live) if live.holds(&wanted.intent.rule, &wanted.intent.source, revision) && !live.terminating => {
            Verdict::Rest(trouble(Outcome::Applied))
        }
        _ if wanted.suspend => Verdict::Rest(trouble(Outcome::UnderWay)),
        Sight::Unknown | Sight::Absent => Verdict::Do(Action::Create),
        Sight::Live(live) => decide_present(live),
    }
}

/// An object stands where the copy should, and it is not the copy that it should be.
fn decide_present(live: &Live) -> Verdict {
    let target = Target { uid: live.uid.clone(), version: live.version.clone() };
    match live.ownership {
        _ if live.terminating && live.ownership == Ownership::Ours => Verdict::Rest(Outcome::UnderWay),
        Ownership::Ours => Verdict::Do(Action::Change(target)),
        Ownership::Retained if !live.terminating => Verdict::Do(Action::Adopt(target)),
        Ownership::Retained | Ownership::Foreign => Verdict::Rest(Outcome::Failed(conflict())),
        Ownership::Clone => {
            let message = "an object that was cloned from another copy stands here; delete it or rename it";
            Verdict::Rest(Outcome::Failed(Trouble::new(Reason::Conflict, message)))
        }
    }
}

/// The failure for a foreign object.
pub fn conflict() -> Trouble {
    Trouble::new(Reason::Conflict, "an object that is not Runnel's stands here; delete it or rename it")
}

/// The failure for an object that was retained from a copy and has been changed since.
pub fn retained_conflict() -> Trouble {
    let message = "an object that was retained from an earlier copy stands here with other content; delete it";
    Trouble::new(Reason::Conflict, message)
}

fn decide_removal(intent: &IntentKey, order: Order, sight: &Sight) -> Verdict {
    let live = match sight {
        _ if order.held => return Verdict::Rest(Outcome::Removing(None)),
        Sight::Unknown => return Verdict::Do(Action::Read),
        Sight::Absent => return Verdict::Over,
        Sight::Live(live) => live,
    };
    let theirs =
        live.sealed.as_ref().is_some_and(|sealed| sealed.rule != intent.rule || sealed.source != intent.source);
    if live.ownership != Ownership::Ours || theirs {
        return Verdict::Over;
    }
    if live.terminating {
        return Verdict::Rest(Outcome::Removing(None));
    }
    let target = Target { uid: live.uid.clone(), version: live.version.clone() };
    Verdict::Do(match order.policy {
        DeletionPolicy::Delete => Action::Delete(target),
        DeletionPolicy::Retain => Action::Retain(target),
    })
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
