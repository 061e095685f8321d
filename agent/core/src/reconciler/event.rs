//! The events that the core receives, and the notices for people.
use std::sync::Arc;

use runnel_proto::model::{HubFrame, Refusal, RuleName, SourceRef};

use crate::copy::CopyError;
use crate::copy::NewPayload;
use crate::desired::Namespace;
use crate::job::Done;
use crate::live::Live;
use crate::policy::{Area, Policy};

/// An event for the reconciler.
pub enum Event {
    /// Another policy is in force. Watches that it does not contain send no more events.
    Policy(Arc<Policy>),
    /// The list of an area's copies begins.
    CopiesListed(Area),
    /// A live object with our label.
    Copy(SourceRef, Live),
    /// The content of an intact copy in a list.
    Content(NewPayload),
    /// The object with this uid has lost our label or was deleted.
    CopyGone(SourceRef, Arc<str>),
    /// The list of an area's copies is complete.
    CopiesComplete(Area),
    /// The agent has no permission to watch an area.
    CopiesForbidden(Area, CopyError),
    /// A watch has failed or delivered nothing for too long; with the last HTTP status, 0 for no
    /// answer.
    WatchLost(WatchScope, u16),
    /// The API server answers a watch again, and no event was missed.
    WatchResumed(WatchScope),
    /// The list of namespaces begins.
    NamespacesListed,
    /// A namespace exists, or has changed.
    Namespace(Arc<str>, Namespace),
    /// A namespace was deleted.
    NamespaceGone(Arc<str>),
    /// The list of namespaces is complete.
    NamespacesComplete,
    /// A stream to the hub is open.
    HubConnected,
    /// A frame of the hub, and its items that could not be parsed.
    Hub(HubFrame, Vec<Refusal>),
    /// The stream has ended.
    HubLost,
    /// The hub has revoked this cluster.
    Revoked,
    /// A job has ended.
    Done(Box<Done>),
}

/// The scope of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchScope {
    /// All namespaces.
    Namespaces,
    /// The copies of an area.
    Copies(Area),
}

/// A notice for people in the member cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A drifted copy was corrected.
    DriftCorrected(SourceRef),
    /// An object that was not ours was overwritten for this rule. Contains its field managers, if
    /// they are known.
    Overwritten(SourceRef, RuleName, Option<Arc<str>>),
    /// A copy that did not take a change was deleted and created again.
    Recreated(SourceRef),
    /// A copy cannot be created or changed.
    Failed(SourceRef, CopyError),
}
