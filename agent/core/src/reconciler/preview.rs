//! Previews the outcome of a rule's copies under other terms.
//!
//! A preview runs the ordinary pipeline over a clone of the desired set with those terms. It
//! changes no state, and queues only the requests that its answer needs.
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use runnel_proto::model::{
    DIFF_COPIES, DriftPolicy, FieldDigests, PREVIEW_LIMIT, PreviewIntent, PreviewOutcome,
    PreviewRequest, PreviewResult, Refusal, RuleUid, SourceRef,
};

use super::decider::Decider;
use super::member::Member;
use crate::copy::{CopyError, CopyStatus};
use crate::decide::{
    Action, ContentSource, Decision, DesiredCopy, DesiredObject, Item, Open, PreviewDecision,
    PreviewInput, PreviewJob, Recreate, TargetNamespace, WantedCopy, decide, is_sealed_for,
};
use crate::live::{Live, Ownership};
use crate::preview::preview;
use crate::records::Observed;

/// The previews that the hub has requested in this stream.
#[derive(Default)]
pub(super) struct PendingPreviews {
    /// Previews that wait for a job.
    pub(super) waiting: VecDeque<(u64, PreviewJob)>,
    /// The unanswered previews, by numbers that no other stream uses.
    open: BTreeSet<u64>,
    last: u64,
}

impl PendingPreviews {
    /// Adds a preview.
    pub(super) fn add(&mut self, preview_job: PreviewJob) {
        self.last += 1;
        self.open.insert(self.last);
        self.waiting.push_back((self.last, preview_job));
    }

    /// Returns the next preview that waits for a job.
    pub(super) fn pop(&mut self) -> Option<(u64, PreviewJob)> {
        self.waiting.pop_front()
    }

    /// Ends a preview, and returns whether the stream still waits for its answer.
    pub(super) fn close(&mut self, number: u64) -> bool {
        self.open.remove(&number)
    }

    /// Drops all previews, because the stream has ended.
    pub(super) fn clear(&mut self) {
        self.waiting.clear();
        self.open.clear();
    }
}

/// Returns the job of a preview, or its result if a part of the request that this build cannot read
/// concerns all its copies. `refused`: the parts that this build cannot read.
pub(super) fn preview_job(
    member: &Member,
    asked: &PreviewRequest,
    refused: &[Refusal],
) -> Result<PreviewJob, PreviewResult> {
    if let Some(whole) = refused
        .iter()
        .find(|refused| refused.source.name.is_empty())
    {
        return Err(PreviewResult {
            question: asked.question,
            copies: vec![],
            more: 0,
            last: true,
            unanswered: whole.message.clone(),
        });
    }
    let decider = member.decider();
    let mut desired = decider.desired.clone();
    desired.preview(asked, decider.records);
    let intents = asked
        .intents
        .iter()
        .map(|intent| (&intent.intent.source, intent))
        .collect();
    let decider = Decider {
        desired: &desired,
        ..decider
    };
    let preview = Preview {
        decider,
        asked,
        intents,
    };
    let mut preview_job = preview.preview_job();
    preview_job.items.extend(refused.iter().map(refused_item));
    Ok(preview_job)
}

/// The computation of one preview.
struct Preview<'a> {
    /// The pipeline over the previewed desired set.
    decider: Decider<'a>,
    asked: &'a PreviewRequest,
    intents: BTreeMap<&'a SourceRef, &'a PreviewIntent>,
}

impl Preview<'_> {
    fn preview_job(&self) -> PreviewJob {
        let asked = self.asked;
        let owners = self.decider.desired.owners();
        let mut copies: BTreeSet<_> = owners.copies_of(&asked.uid).collect();
        copies.extend(
            self.decider
                .records
                .intents_of(&asked.uid)
                .flat_map(|(_, copies)| copies)
                .cloned(),
        );
        let more = u32::try_from(copies.len().saturating_sub(PREVIEW_LIMIT)).unwrap_or(u32::MAX);
        let mut diffs = DIFF_COPIES;
        let copies = copies.into_iter().take(PREVIEW_LIMIT);
        let items = copies
            .filter_map(|copy| self.preview_intent(copy, &mut diffs))
            .collect();
        PreviewJob {
            question: asked.question,
            key: asked.key,
            items,
            more,
        }
    }

    /// Returns the previewed item of a copy. `diffs`: how many more copies may be read for their
    /// differing paths.
    fn preview_intent(&self, copy: SourceRef, diffs: &mut usize) -> Option<Item> {
        let Decider {
            desired, records, ..
        } = self.decider;
        let (asked, uid) = (self.asked, &self.asked.uid);
        let blocked = records.live(&copy).and_then(|live| sealed_for(live, uid));
        let outcome = |source: SourceRef, outcome: PreviewDecision| {
            Some((source, PreviewInput::Decided(outcome), vec![]))
        };
        let want = self.decider.desired_copy(&copy);
        let (source, known, after) = match want {
            DesiredCopy::Copy(wanted) if wanted.intent.rule == *uid => {
                let source = wanted.intent.source.clone();
                let known = self.previewed_copy(&copy, *wanted, diffs)?;
                Some((source, known, vec![]))
            }
            DesiredCopy::Absent(key, rule, mut order) if key.rule == *uid => {
                let live = records.live(&copy);
                let suspended = matches!(desired.owners().desired_copy(&copy, live), DesiredCopy::Absent(_, _, plain) if plain.deferred);
                let successors = desired
                    .owners()
                    .successors(&key, &copy)
                    .into_iter()
                    .map(|(.., copy)| copy);
                let after = if order.deferred && !suspended {
                    successors.collect()
                } else {
                    vec![]
                };
                order.deferred = suspended;
                let (source, observed) = (key.source.clone(), records.observed(&copy).clone());
                let want = DesiredCopy::Absent(key, rule, order);
                let known = if asked.dry_run {
                    open(want, observed, [0; 32], (true, None), None)
                } else {
                    PreviewInput::Decided(preview(&want, &observed, None)?)
                };
                Some((source, known, after))
            }
            DesiredCopy::OlderVersion(key, _) if key.rule == *uid => {
                outcome(key.source, (PreviewOutcome::Unchanged, None))
            }
            // Another rule has the copy. The preview shows the same as the status of this rule
            // would.
            _ => match (desired.copies().source_of(uid, &copy), &blocked) {
                (Some(source), _) => {
                    outcome(source, (PreviewOutcome::Refused, self.loss(uid, &copy)))
                }
                (None, Some(source)) => outcome(
                    source.clone(),
                    match desired.owners().idle_winner(&copy, records.live(&copy)) {
                        Some(_) => (PreviewOutcome::HandOver, None),
                        None => (PreviewOutcome::Unchanged, None),
                    },
                ),
                (None, None) => None,
            },
        }?;
        let is_blocked =
            blocked.is_some_and(|source| asked.blocks_all || asked.blocked.contains(&source));
        let known = match known {
            PreviewInput::Decided((PreviewOutcome::Unchanged | PreviewOutcome::Noop, None))
                if is_blocked =>
            {
                PreviewInput::Decided((PreviewOutcome::Blocked, None))
            }
            other => other,
        };
        let rule = desired.rules().name(uid);
        Some(Item {
            copy,
            source,
            known,
            after,
            account: self.decider.account(&rule),
        })
    }

    fn loss(&self, uid: &RuleUid, copy: &SourceRef) -> Option<CopyError> {
        self.decider
            .desired
            .owners()
            .others(copy, self.decider.records.live(copy))
            .into_iter()
            .find_map(|(rule, outcome)| match outcome {
                CopyStatus::Failed(copy_error) if rule == *uid => Some(copy_error),
                _ => None,
            })
    }

    fn previewed_copy(
        &self,
        copy: &SourceRef,
        wanted: WantedCopy,
        diffs: &mut usize,
    ) -> Option<PreviewInput> {
        let asked = self.asked;
        let preview_intent = self.intents.get(&wanted.intent.source).copied();
        let watched = self.decider.watches.of(copy);
        let settled = wanted.denied.is_some()
            || !self
                .decider
                .desired
                .cluster()
                .has_namespace(&copy.namespace);
        if let Some(copy_error) = watched
            .and_then(|watched| watched.forbidden.clone())
            .filter(|_| !settled)
        {
            return Some(PreviewInput::Decided((
                PreviewOutcome::Refused,
                Some(copy_error),
            )));
        }
        let observed = self.decider.records.observed(copy).clone();
        let is_ours = matches!(&observed, Observed::Live(live) if live.is_own());
        // A namespace that does not exist yet contains no object.
        let settled =
            settled || matches!(wanted.place, TargetNamespace::ToCreate(_)) || wanted.suspend;
        let body = preview_intent
            .filter(|_| asked.dry_run)
            .and_then(|intent| self.preview_body(copy, &wanted, intent));
        let is_of_intent = is_sealed_for(&wanted, &observed);
        let want = DesiredCopy::Copy(Box::new(wanted));
        let is_idle = |observed: &Observed| matches!(decide(&want, observed), Decision::Noop(_));
        let changes = || matches!(decide(&want, &observed), Decision::Act(Action::Change(_)));
        let mut digests = preview_intent.and_then(|intent| intent.digests.clone());
        if is_ours && (*diffs == 0 || !is_of_intent || !changes()) {
            digests = None;
        } else if is_ours && digests.is_some() {
            *diffs -= 1;
        }
        if settled
            || (is_ours && ((!asked.dry_run && digests.is_none()) || is_idle(&observed)))
            || (!is_ours && is_idle(&Observed::Unknown))
        {
            return preview(&want, &observed, None).map(PreviewInput::Decided);
        }
        let fields = preview_intent.map_or([0; 32], |intent| intent.fields);
        Some(open(want, observed, fields, (asked.dry_run, body), digests))
    }

    /// Returns the object that would be written, if the request contains its content.
    fn preview_body(
        &self,
        copy: &SourceRef,
        wanted: &WantedCopy,
        preview_intent: &PreviewIntent,
    ) -> Option<DesiredObject> {
        let payload = preview_intent.intent.payload.clone();
        if payload.bytes().is_empty() {
            return None;
        }
        let number = self
            .decider
            .records
            .live(copy)
            .map_or(0, |live| live.number);
        Some(DesiredObject {
            intent: wanted.intent.clone(),
            rule: wanted.rule.clone(),
            revision: wanted.revision?,
            content: ContentSource::Payload(payload),
            ignored: wanted.policies.ignored.clone(),
            version: wanted.policies.version.map(|least| least.max(number)),
            recreate: if wanted.policies.recreate {
                Recreate::Yes
            } else {
                Recreate::No
            },
            dry_run: false,
            reports_drift: wanted.policies.drift == DriftPolicy::Report,
            limits: self.decider.jobs.limits.clone(),
        })
    }
}

/// Returns the item of a part that this build cannot read. The agent would refuse the same part in
/// a batch.
fn refused_item(refused: &Refusal) -> Item {
    let copy_error = CopyError::new(refused.reason, refused.message.as_str());
    let source = refused.source.clone();
    let copy = source.copy_in(&source.namespace);
    Item {
        copy,
        source,
        known: PreviewInput::Decided((PreviewOutcome::Refused, Some(copy_error))),
        after: vec![],
        account: None,
    }
}

fn open(
    want: DesiredCopy,
    observed: Observed,
    fields: [u8; 32],
    (dry_run, body): (bool, Option<DesiredObject>),
    digests: Option<Arc<FieldDigests>>,
) -> PreviewInput {
    PreviewInput::Open(Box::new(Open {
        desired: want,
        observed,
        fields,
        dry_run,
        body,
        digests,
    }))
}

/// Returns the source of a live copy of a rule.
fn sealed_for(live: &Live, uid: &RuleUid) -> Option<SourceRef> {
    let sealed = live
        .sealed
        .as_ref()
        .filter(|sealed| sealed.rule == *uid && live.ownership == Ownership::Ours)?;
    Some(sealed.source.clone())
}
