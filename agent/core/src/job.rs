//! One piece of work for the API server, and what came of it.
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
use crate::decide::{ExpectedObject, Want, differs};
use crate::live::Live;
use crate::policy::Policy;
use crate::queue::Key;
use crate::records::Observed;

/// What is foreseen, and why.
pub type Decided = (PreviewOutcome, Option<CopyError>);

/// A question of the hub, as far as it is answered. Without `Debug`: it may hold content.
pub struct PreviewJob {
    /// The hub's number for it.
    pub question: u64,
    /// Names fields.
    pub key: FieldsKey,
    /// Copy by copy.
    pub items: Vec<Item>,
    /// How many copies are left out.
    pub more: u32,
}

/// One copy.
pub struct Item {
    /// The copy.
    pub copy: SourceRef,
    /// Its source.
    pub source: SourceRef,
    /// What is known of it.
    pub known: CopyKnowledge,
    /// The copies that must stand before this one goes.
    pub after: Vec<SourceRef>,
}

/// What is known of a copy.
pub enum CopyKnowledge {
    /// All.
    Decided(Decided),
    /// It takes a look.
    Open(Box<Open>),
}

/// What a look is to find out.
pub struct Open {
    /// What would be wanted.
    pub want: Want,
    /// What is known to stand there.
    pub observed: Observed,
    /// Names the fields that it should have.
    pub fields: [u8; 32],
    /// Whether the write is tried.
    pub dry_run: bool,
    /// What would be written, as far as it came along.
    pub body: Option<DesiredObject>,
    /// Digests of what would be written, by path, if the paths that differ are asked for.
    pub digests: Option<Arc<FieldDigests>>,
}

impl Open {
    /// Whether what stands there must be read.
    pub fn needs_look(&self) -> bool {
        let is_ours = matches!(&self.observed, Observed::Live(live) if live.is_own());
        self.dry_run || self.digests.is_some() || !is_ours
    }
}

/// A run of one key.
pub struct Job {
    /// What it is about.
    pub key: Key,
    /// What to do.
    pub work: Work,
}

/// What to do.
pub enum Work {
    /// Create the namespace.
    CreateNamespace,
    /// Look what is there.
    Read,
    /// Create the copy, if nothing stands there.
    Create(DesiredObject),
    /// Apply over our copy.
    Change(ExpectedObject, DesiredObject),
    /// Take an object that is not ours over if it is equal.
    Adopt(ExpectedObject, DesiredObject),
    /// Take an object that is not ours over.
    Overwrite(ExpectedObject, DesiredObject),
    /// Find out in what our copy differs.
    Compare(ExpectedObject, DesiredObject),
    /// Delete our copy.
    Delete(ExpectedObject),
    /// Take the label of the newest version off.
    Demote(ExpectedObject),
    /// Take our marks off.
    Retain(ExpectedObject, RuleName),
    /// Find out what would become of copies; changes nothing.
    Preview(Box<PreviewJob>),
}

impl Work {
    /// The rule that wants the copy, where the work names it.
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

/// Whether a copy that does not take a change is deleted and created anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recreate {
    /// No: the failure is reported.
    No,
    /// Yes.
    Yes,
    /// The rule says so, but as many copies were deleted within an hour as the policy allows: this many.
    Later(usize),
}

/// What to write. Without `Debug`: it may hold content.
pub struct DesiredObject {
    /// The intent.
    pub intent: IntentKey,
    /// How its rule is called.
    pub rule: RuleName,
    /// The revision.
    pub revision: Revision,
    /// The content, or where it is.
    pub content: ContentSource,
    /// What is written only when the copy is created.
    pub ignored: BTreeSet<FieldPath>,
    /// Which version it is, where versions are kept.
    pub version: Option<u64>,
    /// Whether a copy that does not take the change is deleted and created anew.
    pub recreate: Recreate,
    /// The rule is a dry run: it is compared and not written, and values are not named.
    pub dry_run: bool,
    /// By what the content is judged once more, right before it is written.
    pub limits: Limits,
}

impl DesiredObject {
    /// The failure for an object that is not adopted, as it is not equal.
    pub fn unequal(&self, live: &Live) -> CopyError {
        differs(live)
    }
}

/// The policy that a write must keep.
#[derive(Clone)]
pub struct Limits {
    /// The policy that was in force when the work was given out.
    pub policy: Arc<Policy>,
    /// The agent's own namespace.
    pub home: Arc<str>,
}

/// Where content comes from. Without `Debug`: it may hold content.
pub enum ContentSource {
    /// Here.
    Payload(Payload),
    /// In another copy of the same intent and revision.
    Twin(SourceRef),
}

/// What a run did to the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrote {
    /// Created it.
    Created,
    /// Changed it.
    Changed,
    /// Applied, and nothing changed.
    Equal,
    /// Took it over, as it was equal.
    Adopted,
    /// Took it over, and what it held is lost.
    Overwrote,
    /// Deleted it and created it anew.
    Recreated,
    /// Deleted it.
    Deleted,
    /// Left it, unmarked.
    Retained,
}

/// What came of a run. Without `Debug`: it may hold content.
pub struct Done {
    /// What it was about.
    pub key: Key,
    /// What stands there now, if that is known.
    pub observed: Option<Observed>,
    /// Older versions of the object that the run has seen.
    pub passed: Vec<Arc<str>>,
    /// What it wrote.
    pub wrote: Option<Wrote>,
    /// An object was deleted on the way to what it wrote.
    pub deleted: bool,
    /// Why it failed.
    pub copy_error: Option<CopyError>,
    /// How long the API server asks to wait before the next try.
    pub retry_after: Option<Duration>,
    /// Content that it came by.
    pub learned: Option<NewPayload>,
    /// In what the live object of this version differs.
    pub compared: Option<Box<(Arc<str>, CopyError)>>,
    /// What would become of copies.
    pub preview_result: Option<PreviewResult>,
}

impl Done {
    /// A run that has not done anything yet.
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
