//! Runs the requests for previews. Writes are sent as dry runs: the API server checks them like
//! real writes, including admission, and stores nothing.
use std::time::Duration;

use futures::stream;
use futures::stream::StreamExt;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, Preconditions};
use runnel_proto::model::{
    FieldDiff, FieldsKey, Kind, PreviewOutcome, PreviewResult, Reason, SourceRef,
};

use super::{Call, CallError, Member, at};
use runnel_agent_core::body::{ApplyInput, ReplacedObject};
use runnel_agent_core::classify::copy_error;
use runnel_agent_core::copy::CopyError;
use runnel_agent_core::decide::{
    ContentSource, DesiredCopy, DesiredObject, ExpectedObject, Item, Limits, Open, PreviewDecision,
    PreviewInput, PreviewJob, Recreate, Work,
};
use runnel_agent_core::managed_fields::FIELD_MANAGER;
use runnel_agent_core::preview::{PreviewFinding, answer, diff, is_undisclosed, preview, writes};
use runnel_agent_core::records::Observed;
use runnel_agent_core::{body, diff, live};

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
        } = item;
        let mut diff = FieldDiff::default();
        let outcome = match known {
            PreviewInput::Decided(outcome) => Some(outcome),
            PreviewInput::Open(open) => self.preview_copy(key, &copy, *open, &mut diff).await,
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
        let kind = Kind::by_resource(&copy.resource)?;
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
            match self.get(kind, copy).await {
                Ok(found) => {
                    observed = live::reduce(kind, &found, &self.sealer)
                        .map_or(Observed::Absent, |(_, live)| Observed::Live(live));
                    object = Some(found);
                }
                Err(error) if error.is_absent(&copy.name) => observed = Observed::Absent,
                Err(error) => return Some((PreviewOutcome::Refused, Some(copy_error(&error)))),
            }
        }
        let is_equal = match (&want, &object) {
            (DesiredCopy::Copy(_), Some(object)) => live::named_fields(kind, object, key) == fields,
            _ => false,
        };
        let (previewed, outcome) = preview(&want, &observed, is_equal)?;
        if let (Some(object), Some(digests)) = (&object, &digests) {
            *found = diff(&want, &observed, object, digests, key);
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
        let target = match &observed {
            Observed::Live(live) => Some(ExpectedObject {
                uid: live.uid.clone(),
                version: live.version.clone(),
            }),
            Observed::Absent | Observed::Unknown => None,
        };
        let tried = match (&body, &target) {
            (Some(body), _) if writes(previewed) => {
                self.try_write(kind, copy, body, target.as_ref().zip(object.as_ref()))
                    .await
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
                self.try_delete(kind, copy, target).await
            }
            _ => return Some((previewed, outcome)),
        };
        Some(match tried {
            Ok(()) => (previewed, outcome),
            Err(copy_error)
                if copy_error.reason == Reason::Immutable
                    && body.is_some_and(|body| body.recreate != Recreate::No) =>
            {
                let words = "it cannot be changed, so it is deleted and created again";
                (previewed, Some(CopyError::new(Reason::Immutable, words)))
            }
            Err(copy_error) => (PreviewOutcome::Refused, Some(copy_error)),
        })
    }

    /// Sends the apply as a dry run.
    async fn try_write(
        &self,
        kind: &Kind,
        copy: &SourceRef,
        body: &DesiredObject,
        over: Option<(&ExpectedObject, &DynamicObject)>,
    ) -> Result<(), CopyError> {
        let DesiredObject {
            intent,
            rule,
            revision,
            ignored,
            version,
            ..
        } = body;
        let ContentSource::Payload(payload) = &body.content else {
            return Ok(());
        };
        let content = payload
            .decode()
            .map_err(|error| CopyError::new(Reason::Unsupported, error.to_string()))?;
        let Limits {
            policy,
            location: home,
        } = &body.limits;
        if let Some(denied) = policy.denies(kind, copy, &content, home) {
            return Err(denied);
        }
        let version = *version;
        // An API server handles the seals of adopted and other objects alike.
        let adopted = false;
        let written = ApplyInput {
            kind,
            copy,
            intent,
            rule,
            revision,
            content: &content,
            ignored,
            version,
            adopted,
        };
        let over = over.map(|(target, object)| ReplacedObject {
            target,
            object: (!ignored.is_empty()).then_some(object),
        });
        let request = body::apply(&written, over.as_ref(), &self.sealer);
        let params = PatchParams {
            dry_run: true,
            ..PatchParams::apply(FIELD_MANAGER).force()
        };
        let answer: Call<DynamicObject> = self
            .object(at(kind, copy).patch(&copy.name, &params, &Patch::Apply(&request)))
            .await;
        let object = answer.map_err(|error| refused(&error))?;
        // A second request removes what an apply leaves. It cannot run as a dry run, because the
        // first one stored nothing.
        let is_whole = body::surplus(kind, &object, &content, ignored).is_none();
        let holds = live::reduce(kind, &object, &self.sealer)
            .is_some_and(|(_, live)| live.has_revision(&intent.rule, &intent.source, revision));
        if is_whole && !holds {
            Err(diff::rewritten(kind, &object, &content, ignored))
        } else {
            Ok(())
        }
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
            ..DeleteParams::default().preconditions(conditions)
        };
        let answer = self.text(at(kind, copy).delete(&copy.name, &params)).await;
        answer.map(drop).map_err(|error| refused(&error))
    }
}

fn refused(error: &CallError) -> CopyError {
    if error.is_race() {
        CopyError::new(
            Reason::Conflict,
            "another client changed the object meanwhile: try again",
        )
    } else {
        copy_error(error)
    }
}
