//! Runs the requests for previews. Writes are sent as dry runs: the API server checks them like
//! real writes, including admission, and stores nothing.
use std::time::Duration;

use futures::stream;
use futures::stream::StreamExt;
use kube::api::{DeleteParams, DynamicObject, Preconditions};
use runnel_proto::model::{
    Content, FieldDiff, FieldsKey, Kind, PreviewOutcome, PreviewResult, Propagation, Reason,
    SourceRef,
};

use super::owned::DROPPED_LIMIT;
use super::{CallError, Member, apply_input, at, delete_params};
use runnel_agent_core::body::{ApplyInput, ReplacedObject};
use runnel_agent_core::classify::kind_error;
use runnel_agent_core::copy::CopyError;
use runnel_agent_core::decide::{
    ContentSource, DesiredCopy, DesiredObject, ExpectedObject, Item, Limits, Open, PreviewDecision,
    PreviewInput, PreviewJob, Recreate, Work,
};
use runnel_agent_core::diff::Comparison;
use runnel_agent_core::preview::{
    PreviewFinding, adopts, answer, applied_diff, diff, is_undisclosed, preview, writes,
};
use runnel_agent_core::records::Observed;
use runnel_agent_core::{body, diff, live, managed_fields};

/// Limit of the copies that are previewed at once.
const CONCURRENT_PREVIEWS: usize = 6;
/// Timeout of one preview: a person waits for it.
const LIMIT: Duration = Duration::from_secs(7);

impl Member {
    /// Runs a preview and returns its result; `None` for other work.
    pub(super) async fn answer(&self, work: Work) -> Option<PreviewResult> {
        match work {
            Work::Preview(preview_job) => Some(self.preview(*preview_job).await),
            _ => None,
        }
    }

    /// Computes the outcomes of copies. Nothing is written.
    async fn preview(&self, preview_job: PreviewJob) -> PreviewResult {
        let PreviewJob {
            question,
            key,
            items,
            more,
        } = preview_job;
        let all = items.len();
        let previews = stream::iter(items)
            .map(|item| self.preview_one(&key, item))
            .buffer_unordered(CONCURRENT_PREVIEWS);
        let found: Vec<PreviewFinding> = previews
            .take_until(tokio::time::sleep(LIMIT))
            .collect()
            .await;
        let late = u32::try_from(all.saturating_sub(found.len())).unwrap_or(u32::MAX);
        answer(question, found, more.saturating_add(late))
    }

    async fn preview_one(&self, key: &FieldsKey, item: Item) -> PreviewFinding {
        let Item {
            copy,
            source,
            known,
            after,
            account,
        } = item;
        let mut diff = FieldDiff::default();
        let outcome = match known {
            PreviewInput::Decided(outcome) => Some(outcome),
            PreviewInput::Open(open) => {
                let other = account.map(|account| self.writing_as(account));
                let member = other.as_ref().unwrap_or(self);
                member.preview_copy(key, &copy, *open, &mut diff).await
            }
        };
        PreviewFinding {
            copy,
            source,
            outcome,
            diff,
            after,
        }
    }

    /// Returns the outcome of a copy, and adds its differing fields to `found`.
    async fn preview_copy(
        &self,
        key: &FieldsKey,
        copy: &SourceRef,
        open: Open,
        found: &mut FieldDiff,
    ) -> Option<PreviewDecision> {
        let mut kind = match self.kinds.of_copy(copy) {
            Ok(kind) => kind,
            Err(copy_error) => return Some((PreviewOutcome::Refused, Some(copy_error))),
        };
        let needs_read = open.needs_read();
        let Open {
            desired: want,
            mut observed,
            fields,
            dry_run,
            body,
            digests,
        } = open;
        let mut object = None;
        if needs_read {
            match self.get_applied(&kind, copy).await {
                Ok((applied_in, found)) => {
                    kind = applied_in;
                    observed = live::reduce(&kind, &found, &self.sealer)
                        .map_or(Observed::Absent, |(_, live)| Observed::Live(live));
                    object = Some(found);
                }
                Err(error) if error.is_absent(copy) => observed = Observed::Absent,
                Err(error) => {
                    return Some((PreviewOutcome::Refused, Some(self.error(&kind, &error))));
                }
            }
        }
        let target = match &observed {
            Observed::Live(live) => Some(ExpectedObject::of(live)),
            Observed::Absent | Observed::Unknown => None,
        };
        let over = target.as_ref().zip(object.as_ref());
        // An object of a kind without listed fields is equal if a dry run changes nothing of it.
        let mut tried = None;
        let adopts = adopts(&want, &observed);
        let is_equal = match (&want, &object) {
            (DesiredCopy::Copy(_), Some(object)) if kind.content.is_owned() => {
                tried = match &body {
                    Some(body) if dry_run => self.try_write(&kind, copy, body, over, adopts).await,
                    _ => None,
                };
                match &tried {
                    Some(Ok(answer)) => {
                        let Answer {
                            kind,
                            content,
                            applied,
                        } = answer;
                        let is_comparable = !adopts || live::is_comparable(kind, content);
                        let applied = applied.as_ref();
                        Some(
                            is_comparable
                                && applied.is_some()
                                && live::is_adoptable(kind, object, content, applied),
                        )
                    }
                    // The admission policy lets the agent change nothing of it.
                    Some(Err(refused)) if refused.reason == Reason::Conflict => Some(false),
                    Some(Err(_)) | None => None,
                }
            }
            (DesiredCopy::Copy(_), Some(object)) => {
                let is_comparable = !adopts || live::has_fields(&kind, object);
                Some(is_comparable && live::named_fields(&kind, object, key) == fields)
            }
            _ => None,
        };
        let (previewed, outcome) = preview(&want, &observed, is_equal)?;
        if let (Some(object), Some(digests)) = (&object, &digests) {
            *found = match &tried {
                Some(Ok(Answer {
                    applied: Some(applied),
                    ..
                })) => applied_diff(&want, &observed, object, applied),
                _ => diff(&kind, &want, &observed, object, digests, key),
            };
        }
        if !dry_run {
            return Some((previewed, outcome));
        }
        if writes(previewed) && is_undisclosed(&want, &observed) {
            let words = "this was not tried, as it would disclose whether the Secret that exists there is equal";
            return Some((
                previewed,
                Some(CopyError::new(Reason::WaitingForHub, words)),
            ));
        }
        let tried = match (&body, &target) {
            (Some(body), _) if writes(previewed) => {
                if tried.is_none() {
                    tried = self.try_write(&kind, copy, body, over, adopts).await;
                }
                tried.map_or(Ok(()), |tried| tried.map(drop))
            }
            (None, _) if writes(previewed) => {
                let words = "this was not tried, as its content did not fit into one question";
                return Some((
                    previewed,
                    Some(CopyError::new(Reason::WaitingForHub, words)),
                ));
            }
            (_, Some(target))
                if matches!(previewed, PreviewOutcome::Remove | PreviewOutcome::Prune) =>
            {
                self.try_delete(&kind, copy, target).await
            }
            _ => return Some((previewed, outcome)),
        };
        let Err(refused) = tried else {
            return Some((previewed, outcome));
        };
        let recreate = body.map_or(Recreate::No, |body| body.recreate);
        let refusal = match recreate.refusal(copy, refused) {
            None => self.check_empty(&kind, copy).await.err(),
            refusal => refusal,
        };
        Some(match refusal {
            Some(refusal) => (PreviewOutcome::Refused, Some(refusal)),
            None => {
                let words = "it cannot be changed, so it is deleted and created again";
                (previewed, Some(CopyError::new(Reason::Immutable, words)))
            }
        })
    }

    /// Sends the apply as a dry run; `None` without content.
    async fn try_write(
        &self,
        kind: &Kind,
        copy: &SourceRef,
        body: &DesiredObject,
        over: Option<(&ExpectedObject, &DynamicObject)>,
        adopts: bool,
    ) -> Option<Result<Answer, CopyError>> {
        let ContentSource::Payload(payload) = &body.content else {
            return None;
        };
        let content = match payload.decode() {
            Ok(content) => content,
            Err(error) => {
                return Some(Err(CopyError::new(Reason::Unsupported, error.to_string())));
            }
        };
        let tried = self.try_content(kind, copy, body, content, over, adopts);
        Some(tried.await)
    }

    async fn try_content(
        &self,
        kind: &Kind,
        copy: &SourceRef,
        body: &DesiredObject,
        content: Content,
        over: Option<(&ExpectedObject, &DynamicObject)>,
        adopts: bool,
    ) -> Result<Answer, CopyError> {
        let applied_in = kind;
        let kind = self.kind_of(copy, &content)?;
        let Limits {
            policy,
            location: home,
        } = &body.limits;
        if let Some(denied) = policy.denies(&kind, copy, &content, home) {
            return Err(denied);
        }
        let DesiredObject {
            intent,
            revision,
            ignored,
            ..
        } = body;
        let kept = over
            .filter(|_| adopts)
            .and_then(|(_, object)| live::kept_content(&kind, object));
        let sent = kept.map(|kept| live::dry_content(&kept, &content));
        let written = ApplyInput {
            adopted: adopts || kind.content.is_owned(),
            ..apply_input(&kind, copy, sent.as_ref().unwrap_or(&content), body)
        };
        let replaced = over.map(|(target, object)| ReplacedObject {
            target,
            // The fields of another version may have other names. An adoption compares ignored fields, too.
            object: Some(object).filter(|_| !adopts && !ignored.is_empty() && kind == *applied_in),
        });
        let request = body::apply(&written, replaced.as_ref(), &self.sealer);
        let applied = match self.apply_dry(&kind, copy, &request).await {
            Ok(applied) => applied,
            Err(error) => {
                let object = over.filter(|_| !adopts).map(|(_, object)| object);
                let wanted = (&request, ignored);
                if !self.can_prepare(&kind, copy, object, wanted, &error).await {
                    return Err(self.refused(&kind, &error));
                }
                return Ok(Answer {
                    kind,
                    content,
                    applied: None,
                });
            }
        };
        if kind.content.is_owned() {
            let dropped = managed_fields::dropped(&request, &applied, ignored, DROPPED_LIMIT);
            if !dropped.is_empty() {
                return Err(diff::dropped(&dropped));
            }
            return Ok(Answer {
                kind,
                content,
                applied: Some(applied),
            });
        }
        // A second request removes what an apply leaves. It cannot run as a dry run, because the
        // first one stored nothing.
        let is_whole = body::surplus(&kind, &applied, &content, ignored).is_none();
        let holds = live::reduce(&kind, &applied, &self.sealer)
            .is_some_and(|(_, live)| live.has_revision(&intent.rule, &intent.source, revision));
        if !adopts && is_whole && !holds {
            return Err(Comparison {
                kind: &kind,
                object: &applied,
                applied: None,
                content: &content,
                ignored,
            }
            .rewritten());
        }
        Ok(Answer {
            kind,
            content,
            applied: Some(applied),
        })
    }

    async fn try_delete(
        &self,
        kind: &Kind,
        copy: &SourceRef,
        target: &ExpectedObject,
    ) -> Result<(), CopyError> {
        let conditions = Preconditions {
            uid: Some(target.uid.to_string()),
            resource_version: Some(target.version.to_string()),
        };
        let params = DeleteParams {
            dry_run: true,
            ..delete_params(kind, Propagation::default()).preconditions(conditions)
        };
        let answer = self.text(at(kind, copy).delete(&copy.name, &params)).await;
        answer.map(drop).map_err(|error| self.refused(kind, &error))
    }
}

impl Member {
    fn error(&self, kind: &Kind, error: &CallError) -> CopyError {
        kind_error(kind, error, self.account.as_ref())
    }

    fn refused(&self, kind: &Kind, error: &CallError) -> CopyError {
        if error.is_race() {
            CopyError::new(
                Reason::Conflict,
                "another client changed the object meanwhile: try again",
            )
        } else if error.is_foreign_change() {
            CopyError::new(
                Reason::Conflict,
                "an object of others is there, and it is not equal",
            )
        } else {
            self.error(kind, error)
        }
    }
}

/// The answer to the dry run of an apply.
struct Answer {
    /// The kind, in the version of the content.
    kind: Kind,
    content: Content,
    /// What the apply would store; `None` where it takes several steps, of which only the first can be tried.
    applied: Option<DynamicObject>,
}
