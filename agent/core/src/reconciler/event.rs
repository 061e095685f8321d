//! What the core receives, and what it reports to people.
use std::sync::Arc;

use runnel_proto::model::{HubFrame, Refusal, RuleName, SourceRef};

use crate::copy::CopyError;
use crate::copy::NewPayload;
use crate::desired::Namespace;
use crate::job::Done;
use crate::live::Live;
use crate::policy::{Area, Policy};

/// What the agent hears.
pub enum Event {
    /// Another policy is in force. Watches that it no longer has send nothing any more.
    Policy(Arc<Policy>),
    /// The list of an area's copies begins.
    CopiesListed(Area),
    /// A live object with our label.
    Copy(SourceRef, Live),
    /// The content of an intact copy that is listed.
    Content(NewPayload),
    /// The object with this uid has lost our label or is gone.
    CopyGone(SourceRef, Arc<str>),
    /// The list of an area's copies is complete.
    CopiesComplete(Area),
    /// The agent may not watch an area.
    CopiesForbidden(Area, CopyError),
    /// A watch has failed, or was silent, for too long; with the last HTTP status, 0 for no answer.
    WatchLost(WatchScope, u16),
    /// The API server answers a watch again, and nothing was missed.
    WatchResumed(WatchScope),
    /// The list of namespaces begins.
    NamespacesListed,
    /// A namespace.
    Namespace(Arc<str>, Namespace),
    /// A namespace is gone.
    NamespaceGone(Arc<str>),
    /// The list of namespaces is complete.
    NamespacesComplete,
    /// A stream to the hub is open.
    HubConnected,
    /// A frame of the hub, and the items of it that could not be read.
    Hub(HubFrame, Vec<Refusal>),
    /// The stream has ended.
    HubLost,
    /// The hub has revoked this cluster.
    Revoked,
    /// A piece of work is done.
    Done(Box<Done>),
}

/// What a watch shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchScope {
    /// The namespaces.
    Namespaces,
    /// The copies of an area.
    Copies(Area),
}

/// Something that people in the member cluster should see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A copy was put back.
    DriftCorrected(SourceRef),
    /// An object that was not ours, written by these, was overwritten as this rule says.
    Overwritten(SourceRef, RuleName, Option<Arc<str>>),
    /// A copy that did not take a change was deleted and created again.
    Recreated(SourceRef),
    /// A copy cannot be made or changed.
    Failed(SourceRef, CopyError),
}
