//! A job for the API server, and its result.
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use runnel_proto::model::{
    FieldDigests, FieldPath, FieldsKey, Payload, PreviewOutcome, PreviewResult, Revision, RuleName,
    SourceRef,
};

use crate::copy::CopyError;
use crate::copy::IntentKey;
use crate::copy::NewPayload;
use crate::decide::{DesiredCopy, ExpectedObject, differs};
use crate::live::Live;
use crate::policy::Policy;
use crate::queue::Key;
use crate::records::Observed;

/// The outcome of a preview, and its error if there is one.
pub type Decided = (PreviewOutcome, Option<CopyError>);

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
}

/// The outcome of a previewed copy, or what is needed to compute it.
pub enum PreviewInput {
    /// The outcome is known.
    Decided(Decided),
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
            preview_result: None,
        }
    }
}
