//! The frames of a stream and their answers as types. `sync.proto` describes when each frame is sent and its
//! guarantees.
use std::sync::Arc;

use bytes::Bytes;

use super::{
    DeletionPolicy, FeedbackValue, Intent, ObservedHealth, PreviewRequest, PreviewResult, ProofKey,
    PruneDigest, Reason, Revision, RuleState, RuleUid, SetDigest, SourceRef, Terms, TermsDigest,
    Tombstone,
};

/// The largest encoded frame of an agent, in bytes: the hub's receive buffer keeps the size of the largest one.
pub const AGENT_FRAME_LIMIT: usize = 16 * 1024;

/// The first frame of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The oldest protocol version of the agent.
    pub protocol_min: u32,
    /// The newest protocol version of the agent.
    pub protocol_max: u32,
    /// Version of the agent.
    pub agent_version: String,
    /// Version of the member's API server.
    pub kubernetes_version: String,
    /// Random per agent process.
    pub boot_id: String,
    /// Uid of the member's `kube-system` namespace.
    pub cluster_uid: String,
}

/// One (source, revision) pair of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AckedIntent {
    /// The source.
    pub source: SourceRef,
    /// Its revision.
    pub revision: Revision,
}

/// A lost watch of the member's API.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LostWatch {
    /// The kind, as `plural[.group]`, or [`NAMESPACES`](super::NAMESPACES).
    pub resource: Arc<str>,
    /// The last HTTP status; 0 for no answer.
    pub status: u16,
}

/// An item that the agent refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The rule.
    pub rule: RuleUid,
    /// The source.
    pub source: SourceRef,
    /// The refused revision.
    pub revision: Revision,
    /// The reason of the refusal.
    pub reason: Reason,
    /// The message.
    pub message: String,
}

/// A frame from an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentFrame {
    /// The first frame.
    Hello(Hello),
    /// The agent's intents; the flag marks the last part. Later in the stream: those of the named
    /// rules.
    AckedRules(Vec<RuleState>, bool),
    /// The pairs of one rule; the flag marks the last part.
    Detail(RuleUid, Vec<AckedIntent>, bool),
    /// The agent has handled a batch, except for these items.
    Ack(u64, Vec<Refusal>),
    /// New states of rules; newest wins.
    Report(Vec<RuleState>),
    /// The content of these intents is needed.
    ContentRequest(RuleUid, Vec<SourceRef>),
    /// The lost watches; replaces the former list.
    LostWatches(Vec<LostWatch>),
    /// The next stream is ready: the hub must send nothing more on this one.
    Handover,
    /// The answer to an inspection.
    Inspected(Box<Inspected>),
    /// The answer to a preview request.
    PreviewResult(PreviewResult),
    /// The answer to a list request.
    CopyList(CopyList),
    /// The agent is there: a sign of life on a slow link.
    Keepalive,
}

/// The changes of one rule.
#[derive(Clone)]
pub struct RuleDelta {
    /// The rule.
    pub uid: RuleUid,
    /// New terms and their digest, if they changed.
    pub terms: Option<(Terms, TermsDigest)>,
    /// New or changed intents.
    pub upserts: Vec<Intent>,
    /// Intents whose copies are removed.
    pub tombstones: Vec<Tombstone>,
    /// The whole rule is removed.
    pub removal: Option<DeletionPolicy>,
    /// The hub does not have this rule.
    pub orphaned: bool,
    /// The copies in namespaces that are no longer targets that may be deleted.
    pub prune: Option<PruneDigest>,
    /// Whether the rule is suspended, independent of its terms, if that changed.
    pub suspend: Option<bool>,
}

impl RuleDelta {
    /// A delta that changes nothing yet.
    pub fn new(uid: RuleUid) -> Self {
        Self {
            uid,
            terms: None,
            upserts: vec![],
            tombstones: vec![],
            removal: None,
            orphaned: false,
            prune: None,
            suspend: None,
        }
    }
}

/// A change of an agent's intents.
#[derive(Clone)]
pub struct Batch {
    /// Named by the agent's ack.
    pub nonce: u64,
    /// Rule by rule.
    pub rules: Vec<RuleDelta>,
}

/// The first frame of the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotBegin {
    /// The protocol version of this stream.
    pub protocol: u32,
    /// The hub's id.
    pub hub_id: String,
    /// Uid of the hub cluster's `kube-system` namespace.
    pub hub_cluster_uid: String,
    /// The agent's history token proves state that the hub does not have.
    pub behind: bool,
    /// The key for proofs; `None` from a hub that requests none.
    pub proof_key: Option<ProofKey>,
}

/// Hub and agent are equal for every rule that the hub can compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotEnd {
    /// The agent's intents of rules that this hub has.
    pub intents: u64,
    /// The digests of those rules' intents, merged.
    pub digest: SetDigest,
}

/// A frame from the hub.
#[derive(Clone)]
pub enum HubFrame {
    /// The first frame.
    SnapshotBegin(SnapshotBegin),
    /// The pairs of these rules are needed.
    DetailRequest(Vec<RuleUid>),
    /// A change.
    Batch(Batch),
    /// The agent is up to date.
    SnapshotEnd(SnapshotEnd),
    /// The stream will be closed; reconnect within a random part of these milliseconds.
    Drain(u32),
    /// The stream is handed over: the agent opens the next one at once.
    HandedOver,
    /// The cluster is no longer a member, for this reason; nothing follows.
    Revoked(String),
    /// The CAs that the agent trusts from now on, DER; the signing one is first.
    CaBundle(Vec<Bytes>),
    /// Requests the state of a copy.
    Inspect(Inspect),
    /// Requests the outcome of a rule's copies.
    PreviewRequest(Box<PreviewRequest>),
    /// Requests the copies of a rule.
    ListCopies(Box<ListCopies>),
    /// The hub is there: a sign of life on a slow link.
    Keepalive,
}

/// The most copies in one answer.
pub const COPIES_LIMIT: usize = 500;

/// Requests a page of the copies of one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListCopies {
    /// The id of the question, repeated in the answer.
    pub question: u64,
    /// The rule.
    pub rule: RuleUid,
    /// The page begins after this copy; `None`: with the first one.
    pub after: Option<SourceRef>,
    /// Only this copy is listed; `None`: all.
    pub only: Option<SourceRef>,
    /// The most copies on the page; at most [`COPIES_LIMIT`].
    pub limit: u32,
}

/// A page of the copies of one rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopyList {
    /// The id of the question.
    pub question: u64,
    /// The copies, in their order.
    pub copies: Vec<ListedCopy>,
    /// Whether more copies follow this page; on the last part.
    pub more: bool,
    /// Whether this is the last part of the answer.
    pub last: bool,
}

/// A copy of one rule, as its agent reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedCopy {
    /// The copy.
    pub copy: SourceRef,
    /// Its source; `None` if the rule does not require the copy any more.
    pub source: Option<SourceRef>,
    /// The outcome of the copy.
    pub outcome: CopyOutcome,
    /// The reason, and a message that never contains content.
    pub copy_error: Option<(Reason, String)>,
    /// When it was last applied for this rule, in seconds since 1970; 0: unknown.
    pub applied_at: i64,
    /// The health of the live object, if it belongs to this rule and has one.
    pub health: Option<ObservedHealth>,
    /// The fields that the rule has returned, at most [`FEEDBACK_LIMIT`](super::FEEDBACK_LIMIT).
    pub feedback: Vec<FeedbackValue>,
}

/// The most rules in one answer.
pub const STATES_LIMIT: usize = 16;

/// Requests the state of one copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspect {
    /// The id of the question, repeated in the answer.
    pub question: u64,
    /// The copy.
    pub copy: SourceRef,
}

/// The state of one copy in its agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspected {
    /// The id of the question.
    pub question: u64,
    /// The state of its namespace.
    pub namespace: NamespaceState,
    /// The state as reported to each rule; at most [`STATES_LIMIT`].
    pub states: Vec<CopyState>,
    /// The object in the member.
    pub live: Option<LiveObject>,
}

/// The state of a namespace in a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NamespaceState {
    /// The state is unknown.
    #[default]
    Unknown,
    /// The namespace accepts copies.
    Ready,
    /// The namespace does not exist.
    Missing,
    /// The namespace is being deleted.
    Terminating,
    /// The namespace is denied.
    Closed,
}

/// The state of one copy as reported to one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyState {
    /// The rule.
    pub rule: RuleUid,
    /// The outcome of the copy.
    pub outcome: CopyOutcome,
    /// The reason, and a message that never contains content.
    pub copy_error: Option<(Reason, String)>,
}

/// The outcome of a copy for a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyOutcome {
    /// A job for the copy is under way.
    UnderWay,
    /// The copy equals the intent.
    Applied,
    /// The last attempt failed.
    Failed,
    /// For a namespace that does not exist.
    Waiting,
    /// Another client changed it, and the rule tolerates that.
    Drifted,
    /// The copy must be removed and still exists.
    Removing,
    /// The removal waits for the hub's approval.
    PruneRequested,
}

/// The object in the member under the name of the copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveObject {
    /// Whether the object is the agent's copy.
    pub ours: bool,
    /// Whether the written fields are unchanged.
    pub intact: bool,
    /// The sealed rule, source and revision.
    pub sealed: Option<(RuleUid, SourceRef, Revision)>,
    /// When it was last applied, in seconds since 1970; 0: unknown.
    pub applied_at: i64,
    /// Its uid.
    pub uid: String,
    /// Its health, if it has one.
    pub health: Option<ObservedHealth>,
    /// The fields that the sealed rule has returned, at most [`FEEDBACK_LIMIT`](super::FEEDBACK_LIMIT).
    pub feedback: Vec<FeedbackValue>,
    /// Whether others have added fields to a copy that is not exact, of a kind that can allow more with each field.
    pub widened: bool,
}
