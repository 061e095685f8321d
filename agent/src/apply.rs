//! The only code that reads and writes copies: server-side apply, patches and deletes, each with
//! preconditions.
mod adopt;
mod contained;
mod exact;
mod owned;
mod preview;
#[cfg(test)]
mod recreation_tests;
mod yaml_reader;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use futures::stream::{FuturesUnordered, StreamExt};
use http::Method;
use http::header::HeaderValue;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions};
use kube::core::{ApiResource, Request};
use kube::{Client, Resource};
use runnel_proto::json_nodes::CONTENT_NODES;
use runnel_proto::model::{Content, Kind, Payload, Propagation, Reason, RuleName, SourceRef};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc};
use tracing::Instrument;

use crate::call::{Call, decoded, with_timeout};
use crate::kinds::KindRegistry;
use crate::newest_object::NewestObject;
use runnel_agent_core::body::{ApplyInput, ReplacedObject};
use runnel_agent_core::classify::{CallError, kind_error, write_error};
use runnel_agent_core::copy::{CopyError, NewPayload};
use runnel_agent_core::decide::{
    ContentSource, DesiredObject, Done, ExpectedObject, Job, Key, Limits, Work, WriteEffect,
};
use runnel_agent_core::diff::Comparison;
use runnel_agent_core::live::{Live, Sealed};
use runnel_agent_core::managed_fields::FIELD_MANAGER;
use runnel_agent_core::policy::ServiceAccount;
use runnel_agent_core::records::Observed;
use runnel_agent_core::seal::Sealer;
use runnel_agent_core::{body, diff, live, managed_fields};

/// The JSON nodes that all jobs together may decode at a time. A node costs about 2 KiB in the content, the request and
/// the answers.
const NODE_BUDGET: u32 = 2 * CONTENT_NODES as u32;
/// Jobs with at most this many nodes take none of the budget, so that large objects do not delay them.
const SMALL: u32 = 2_000;

/// The header of a request that the API server handles as one of another user.
const IMPERSONATE_USER: &str = "impersonate-user";

/// Access to the member's API server for jobs.
#[derive(Clone)]
pub struct Member {
    client: Client,
    sealer: Sealer,
    kinds: KindRegistry,
    /// The object of the newest event, which need not be read again.
    newest: NewestObject,
    /// The account under which copies are written; `None` for the agent's own. Reads are always the agent's.
    account: Option<ServiceAccount>,
}

impl Member {
    /// Returns access with this client, for copies of these kinds sealed by this sealer. The client must not retry
    /// by itself.
    pub fn new(client: Client, sealer: Sealer, kinds: KindRegistry, newest: NewestObject) -> Self {
        Self {
            client,
            sealer,
            kinds,
            newest,
            account: None,
        }
    }

    /// Returns access that writes under this account.
    fn writing_as(&self, account: ServiceAccount) -> Self {
        Self {
            account: Some(account),
            ..self.clone()
        }
    }

    /// Runs one job.
    pub async fn run(&self, job: Job) -> Done {
        let other = job.account.clone().map(|account| self.writing_as(account));
        other.as_ref().unwrap_or(self).run_as(job).await
    }

    async fn run_as(&self, job: Job) -> Done {
        let mut done = Done::new(job.key.clone());
        match (&job.key, job.work) {
            (Key::Question(_), work) => done.preview_result = self.answer(work).await,
            (Key::Namespace(name), _) => done.copy_error = self.create_namespace(name).await.err(),
            (Key::Copy(copy), work) => {
                let kind = match self.kinds.of_copy(copy) {
                    Ok(kind) => kind,
                    Err(copy_error) => {
                        done.copy_error = Some(copy_error);
                        return done;
                    }
                };
                let makes_way = matches!(work, Work::Change(..) | Work::Overwrite(..));
                let writes_own = matches!(work, Work::Create(_) | Work::Change(..));
                // Each line of the log about this copy names it and its rule.
                let span = tracing::info_span!("copy", %copy, rule = work.rule().map(tracing::field::display));
                let run = ApplyRun {
                    member: self,
                    kind,
                    copy,
                    done: &mut done,
                    propagation: job.propagation,
                    prepares_object: makes_way,
                    writes_own,
                    names_drift: job.corrects_drift,
                    overwrites: matches!(work, Work::Overwrite(..)),
                };
                run.work(work).instrument(span).await;
            }
        }
        done
    }

    async fn create_namespace(&self, name: &str) -> Result<(), CopyError> {
        let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        let bytes = serde_json::to_vec(&body).expect("a JSON value serializes");
        let params = PostParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PostParams::default()
        };
        let request = Request::new("/api/v1/namespaces").create(&params, bytes);
        match self.text(request).await {
            Ok(_) => {
                tracing::info!(namespace = name, "created a namespace that a rule names");
                Ok(())
            }
            Err(error) if error.code() == 409 => Ok(()),
            Err(error) => Err(write_error(&error, self.account.as_ref())),
        }
    }

    /// Sends a request and returns the text of the answer. kube's own parsing would log a body that
    /// it cannot parse.
    async fn text(
        &self,
        request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Call<String> {
        let mut request = request.map_err(|_| CallError::Unanswered)?;
        if let Some(account) = &self.account
            && request.method() != Method::GET
        {
            let user = HeaderValue::from_str(&account.user()).map_err(|_| CallError::Unanswered)?;
            request.headers_mut().insert(IMPERSONATE_USER, user);
        }
        yaml_reader::escape_apply(&mut request);
        with_timeout(self.client.request_text(request)).await
    }

    async fn object(
        &self,
        request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Call<DynamicObject> {
        decoded(&self.text(request).await?)
    }

    async fn apply(&self, kind: &Kind, copy: &SourceRef, body: &Value) -> Call<DynamicObject> {
        self.object(at(kind, copy).patch(&copy.name, &owned::apply_params(), &Patch::Apply(body)))
            .await
    }

    async fn json_patch(
        &self,
        kind: &Kind,
        copy: &SourceRef,
        patch: json_patch::Patch,
        dry_run: bool,
    ) -> Call<DynamicObject> {
        let params = PatchParams {
            dry_run,
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        self.object(at(kind, copy).patch(&copy.name, &params, &Patch::Json::<()>(patch)))
            .await
    }

    async fn delete(
        &self,
        kind: &Kind,
        copy: &SourceRef,
        target: &ExpectedObject,
        propagation: Propagation,
    ) -> Call<DynamicObject> {
        let conditions = Preconditions {
            uid: Some(target.uid.to_string()),
            resource_version: Some(target.version.to_string()),
        };
        let params = delete_params(kind, propagation).preconditions(conditions);
        // The answer may be a Status, which has no time of deletion.
        self.object(at(kind, copy).delete(&copy.name, &params))
            .await
    }
}

/// Returns the `ApiResource` of a kind.
pub fn resource(kind: &Kind) -> ApiResource {
    ApiResource {
        group: kind.group.to_string(),
        version: kind.version.to_string(),
        api_version: kind.api_version.to_string(),
        kind: kind.kind.to_string(),
        plural: kind.plural.to_string(),
    }
}

/// Returns the parameters of a delete. Without a policy, some kinds leave the objects that they control.
fn delete_params(kind: &Kind, propagation: Propagation) -> DeleteParams {
    match propagation {
        // The kinds with listed fields own nothing.
        _ if !kind.content.is_owned() => DeleteParams::default(),
        Propagation::Background => DeleteParams::background(),
        Propagation::Foreground => DeleteParams::foreground(),
        Propagation::Orphan => DeleteParams::orphan(),
    }
}

fn at(kind: &Kind, copy: &SourceRef) -> Request {
    let namespace = copy.optional_namespace();
    Request::new(DynamicObject::url_path(&resource(kind), namespace))
}

/// Returns the input of an apply of this content.
fn apply_input<'a>(
    kind: &'a Kind,
    copy: &'a SourceRef,
    content: &'a Content,
    body: &'a DesiredObject,
) -> ApplyInput<'a> {
    ApplyInput {
        kind,
        copy,
        intent: &body.intent,
        rule: &body.rule,
        revision: &body.revision,
        content,
        stored: None,
        ignored: &body.ignored,
        version: body.version,
        // Over an object of others the admission policy takes no other seal, and over a copy it takes any.
        adopted: true,
    }
}

/// Returns what an apply over `target` did, by its answer.
fn effect(target: Option<&ExpectedObject>, applied: &DynamicObject) -> WriteEffect {
    match target {
        None => WriteEffect::Created,
        Some(target) if applied.metadata.resource_version.as_deref() == Some(&*target.version) => {
            WriteEffect::Equal
        }
        Some(_) => WriteEffect::Changed,
    }
}

/// One job for one copy.
struct ApplyRun<'a> {
    member: &'a Member,
    /// The kind, in the version in which the object is read or written.
    kind: Kind,
    copy: &'a SourceRef,
    done: &'a mut Done,
    propagation: Propagation,
    /// Whether the job may remove parts of the object that prevent the write.
    prepares_object: bool,
    /// Whether the job creates a copy, or changes one that Runnel created.
    writes_own: bool,
    /// Whether the job names the fields that it corrects.
    names_drift: bool,
    /// Whether nothing of the former object is to be left.
    overwrites: bool,
}

impl ApplyRun<'_> {
    async fn work(mut self, work: Work) {
        let ended = match work {
            Work::CreateNamespace | Work::Preview(_) => Ok(()),
            Work::Read => self.read().await,
            Work::Create(body) => self.write(None, &body).await,
            Work::Change(target, body) => self.change(target, &body).await,
            Work::Adopt(target, body) => self.adopt(target, &body).await,
            Work::Overwrite(target, body) => self.overwrite(target, &body).await,
            Work::Compare(target, body) => self.compare(&target, &body).await,
            Work::Delete(target) => self.delete(target).await,
            Work::Demote(target) => self.demote(target).await,
            Work::Retain(target, rule) => self.retain(target, &rule).await,
        };
        if let Err(failed) = ended {
            self.done.copy_error = Some(failed);
        }
    }

    /// Returns the error of the copy for a failed call, and records the delay that the server asks
    /// for.
    fn fail(&mut self, error: &CallError) -> CopyError {
        self.done.retry_after = self.done.retry_after.max(error.retry_after());
        if error.is_unserved() {
            self.member.kinds.request_recheck();
        }
        kind_error(&self.kind, error, self.member.account.as_ref())
    }

    async fn read(&mut self) -> Result<(), CopyError> {
        self.present().await.map(drop)
    }

    /// Reads and records the current object; `None` if there is none.
    async fn present(&mut self) -> Result<Option<DynamicObject>, CopyError> {
        match self.member.get_applied(&self.kind, self.copy).await {
            Ok((kind, object)) => {
                self.kind = kind;
                self.record_object(&object);
                Ok(Some(object))
            }
            Err(error) if error.is_absent(self.copy) => {
                self.done.observed = Some(Observed::Absent);
                Ok(None)
            }
            Err(error) => Err(self.fail(&error)),
        }
    }

    fn record_object(&mut self, object: &DynamicObject) {
        let (kinds, sealer) = (&self.member.kinds, &self.member.sealer);
        if let Some((_, live)) = kinds.reduce(&self.kind, object, sealer) {
            self.done.observed = Some(Observed::Live(live));
        }
    }

    fn passed(&mut self, version: impl Into<Arc<str>>) {
        self.done.passed.push(version.into());
    }

    /// Reads the object after a lost race. Succeeds if the object has changed, because the core
    /// then decides again. Otherwise the refusal had another cause, and this fails with `error`.
    async fn reread(
        &mut self,
        target: Option<&ExpectedObject>,
        error: &CallError,
    ) -> Result<(), CopyError> {
        self.read().await?;
        let moved = match (&self.done.observed, target) {
            (Some(Observed::Live(live)), Some(target)) => {
                live.uid != target.uid || live.version != target.version
            }
            (Some(Observed::Live(_)), None) | (_, Some(_)) => true,
            (_, None) => false,
        };
        if moved { Ok(()) } else { Err(self.fail(error)) }
    }

    /// Reads and records the current object, and returns it if it is still the target.
    async fn same(&mut self, target: &ExpectedObject) -> Result<Option<DynamicObject>, CopyError> {
        let object = self.present().await?;
        let same = self.recorded_target().as_ref() == Some(target);
        // If another client was faster, the core decides again.
        Ok(object.filter(|_| same))
    }

    /// Writes over the object. If the object cannot be changed and the rule recreates copies,
    /// deletes and creates it.
    async fn change(
        &mut self,
        target: ExpectedObject,
        body: &DesiredObject,
    ) -> Result<(), CopyError> {
        let Err(refused) = self.write(Some(target.clone()), body).await else {
            return Ok(());
        };
        let refused = self.judged(refused, body).await;
        if let Some(refused) = body.recreate.refusal(self.copy, refused) {
            return Err(refused);
        }
        // The failed write may have changed the object partly.
        let target = self
            .recorded_target()
            .filter(|seen| seen.uid == target.uid)
            .unwrap_or(target);
        self.delete(target).await?;
        self.done.deleted = self.done.wrote == Some(WriteEffect::Deleted);
        if self.done.observed != Some(Observed::Absent) {
            return Ok(());
        }
        let ended = self.write(None, body).await;
        if self.done.wrote == Some(WriteEffect::Created) {
            self.done.wrote = Some(WriteEffect::Recreated);
        }
        ended
    }

    async fn write(
        &mut self,
        target: Option<ExpectedObject>,
        body: &DesiredObject,
    ) -> Result<(), CopyError> {
        let content = self.content(body).await?;
        let kind = self.select_version(&content)?;
        let Limits {
            policy,
            location: home,
        } = &body.limits;
        if let Some(denied) = policy.denies(&kind, self.copy, &content, home) {
            return Err(denied);
        }
        let ignored = &body.ignored;
        let (mut current, mut object) = (target.clone(), None);
        if let Some(target) = &target
            && (!ignored.is_empty() || self.names_drift || target.is_shared)
        {
            object = self.same_in(&kind, target).await?;
            let Some(there) = &object else {
                return Ok(());
            };
            if let Some(patch) = body::unshare(there).filter(|_| target.is_shared) {
                match self.patched(Some(target.clone()), patch).await {
                    Ok(Some(patched)) => {
                        self.record_object(&patched);
                        current = self.recorded_target();
                        object = Some(patched);
                    }
                    Ok(None) => return Ok(()),
                    // The object is invalid as it is: perhaps not any more with the content.
                    Err(refused) if refused.refuses_content() => {}
                    Err(refused) => return Err(refused),
                }
            }
        }
        let mut written = ApplyInput {
            adopted: false,
            ..apply_input(&kind, self.copy, &content, body)
        };
        let first = if kind.content.is_owned() {
            let kinds = &self.member.kinds;
            let asks = !self.writes_own || body.reports_drift || !kinds.stores_as_sent(&kind);
            match self
                .preapply(&written, asks, &mut current, object.as_ref())
                .await?
            {
                None => return Ok(()),
                first => first,
            }
        } else {
            None
        };
        written.stored = first.as_ref().map(|first| &first.stored);
        let compare = |object| Comparison {
            kind: &kind,
            object,
            applied: first.as_ref().map(|first| &first.object),
            content: &content,
            ignored,
        };
        if let Some(object) = object.as_ref().filter(|_| self.names_drift) {
            let (differences, is_equal) = compare(object).corrected();
            self.done.corrected = Some(differences);
            self.done.resealed = is_equal && self.has_marks(object, &written);
        }
        let over = current.as_ref().map(|target| ReplacedObject {
            target,
            object: object.as_ref(),
        });
        let stored = match &first {
            Some(first) if !first.is_dry => {
                self.reseal(first, &written, current.as_ref(), body).await?
            }
            _ => {
                let request = body::apply(&written, over.as_ref(), &self.member.sealer);
                match self.member.apply(&kind, self.copy, &request).await {
                    Ok(object) => Some(object),
                    Err(error) if error.is_race() => {
                        return self.reread(current.as_ref(), &error).await;
                    }
                    Err(error) => {
                        let target = current.as_ref();
                        self.make_exact(target, &request, ignored, &error).await?
                    }
                }
            }
        };
        let Some(mut object) = stored else {
            return Ok(());
        };
        let prunes = (self.overwrites && kind.content.is_owned())
            || managed_fields::additions(&kind, &object, &content, ignored).is_some();
        if prunes {
            self.done.wrote = Some(effect(target.as_ref(), &object));
            match self.prune(object, &written).await? {
                Some(pruned) => object = pruned,
                None => return Ok(()),
            }
        }
        let over = (target.as_ref(), current);
        match self.stored(object, over, &content, body).await? {
            Some(object) if !self.is_written(body) => Err(compare(&object).rewritten()),
            _ => Ok(()),
        }
    }

    /// Records what an apply over `target` has stored, and removes what it leaves. `current` is the last version before it. Returns
    /// the object; `None` if another writer was faster.
    async fn stored(
        &mut self,
        mut object: DynamicObject,
        (target, current): (Option<&ExpectedObject>, Option<ExpectedObject>),
        content: &Content,
        body: &DesiredObject,
    ) -> Result<Option<DynamicObject>, CopyError> {
        self.done.wrote = Some(effect(target, &object));
        let version = object.metadata.resource_version.clone().unwrap_or_default();
        if let Some(passed) = current.filter(|current| *current.version != *version) {
            self.passed(passed.version);
        }
        if let Some(patch) = body::surplus(&self.kind, &object, content, &body.ignored) {
            self.record_object(&object);
            let Some(patched) = self.patched(self.recorded_target(), patch).await? else {
                return Ok(None);
            };
            object = patched;
            self.done.wrote = Some(WriteEffect::Changed);
        }
        self.record_object(&object);
        Ok(Some(object))
    }

    /// Whether the last recorded object is the intact copy of this revision.
    fn is_written(&self, body: &DesiredObject) -> bool {
        let (intent, revision) = (&body.intent, &body.revision);
        self.live()
            .is_some_and(|live| live.has_revision(&intent.rule, &intent.source, revision))
    }

    /// Returns the last recorded object as a target.
    fn recorded_target(&self) -> Option<ExpectedObject> {
        self.live().map(ExpectedObject::of)
    }

    async fn overwrite(
        &mut self,
        target: ExpectedObject,
        body: &DesiredObject,
    ) -> Result<(), CopyError> {
        if let Some(denied) = body.limits.policy.denies_overwriting() {
            return Err(denied);
        }
        let ended = self.change(target, body).await;
        if let Some(WriteEffect::Equal | WriteEffect::Changed | WriteEffect::Recreated) =
            self.done.wrote
        {
            self.done.wrote = Some(WriteEffect::Overwrote);
        }
        ended
    }

    /// Computes the differences of a drifted copy, without changing it.
    async fn compare(
        &mut self,
        target: &ExpectedObject,
        body: &DesiredObject,
    ) -> Result<(), CopyError> {
        let content = self.content(body).await?;
        let kind = self.select_version(&content)?;
        let Some(object) = self.same_in(&kind, target).await? else {
            return Ok(());
        };
        let managers = self.live().and_then(|live| live.others.clone());
        let managed = Some(&object).filter(|_| !body.ignored.is_empty());
        let applied = match self.compared(&kind, target, managed, &content, body).await {
            Ok(applied) => applied,
            Err(error) if error.is_race() => return self.reread(Some(target), &error).await,
            Err(error) => {
                let is_foreign = error.is_foreign_change();
                let refused = self.fail(&error);
                if body.dry_run || !(is_foreign || refused.refuses_content()) {
                    return Err(refused);
                }
                let unread = diff::unread(managers.as_deref());
                self.done.compared = Some(Box::new((target.version.clone(), unread)));
                return Ok(());
            }
        };
        let comparison = Comparison {
            kind: &kind,
            object: &object,
            applied: applied.as_ref(),
            content: &content,
            ignored: &body.ignored,
        };
        let written = apply_input(&kind, self.copy, &content, body);
        if !body.dry_run && comparison.is_equal() && self.has_marks(&object, &written) {
            self.done.resealed = true;
            return self.write(Some(target.clone()), body).await;
        }
        let copy_error = if body.dry_run {
            comparison.planned()
        } else {
            comparison.changed(managers.as_deref())
        };
        self.done.compared = Some(Box::new((target.version.clone(), copy_error)));
        Ok(())
    }

    /// Returns the last recorded object.
    fn live(&self) -> Option<&Live> {
        match &self.done.observed {
            Some(Observed::Live(live)) => Some(live),
            Some(Observed::Absent | Observed::Unknown) | None => None,
        }
    }

    async fn delete(&mut self, target: ExpectedObject) -> Result<(), CopyError> {
        self.member.check_empty(&self.kind, self.copy).await?;
        let deleted = self
            .member
            .delete(&self.kind, self.copy, &target, self.propagation);
        match deleted.await {
            Ok(object) if object.metadata.deletion_timestamp.is_some() => {
                self.record_object(&object);
                self.passed(target.version);
            }
            Ok(_) => {
                self.done.observed = Some(Observed::Absent);
                self.passed(target.version);
            }
            Err(error) if error.is_absent(self.copy) => {
                self.done.observed = Some(Observed::Absent);
                return Ok(());
            }
            Err(error) if error.is_race() => return self.reread(Some(&target), &error).await,
            Err(error) => return Err(self.fail(&error)),
        }
        self.done.wrote = Some(WriteEffect::Deleted);
        Ok(())
    }

    async fn demote(&mut self, target: ExpectedObject) -> Result<(), CopyError> {
        let Some(object) = self.same(&target).await? else {
            return Ok(());
        };
        let Some(patch) = body::demote(&object) else {
            return Ok(());
        };
        self.patch(target, patch, WriteEffect::Changed).await
    }

    async fn retain(&mut self, target: ExpectedObject, rule: &RuleName) -> Result<(), CopyError> {
        let Some(object) = self.same(&target).await? else {
            return Ok(());
        };
        let created = self.live().is_some_and(Live::is_own);
        let proof = created.then(|| self.member.sealer.retained_proof(self.copy, &target.uid));
        self.patch(
            target,
            body::retain(&object, rule, proof.as_deref()),
            WriteEffect::Retained,
        )
        .await
    }

    async fn patch(
        &mut self,
        target: ExpectedObject,
        patch: json_patch::Patch,
        wrote: WriteEffect,
    ) -> Result<(), CopyError> {
        if let Some(object) = self.patched(Some(target), patch).await? {
            self.record_object(&object);
            self.done.wrote = Some(wrote);
        }
        Ok(())
    }

    /// Patches the object as it was last seen, and returns the answer; `None` if another writer was faster.
    async fn patched(
        &mut self,
        target: Option<ExpectedObject>,
        patch: json_patch::Patch,
    ) -> Result<Option<DynamicObject>, CopyError> {
        match self
            .member
            .json_patch(&self.kind, self.copy, patch, false)
            .await
        {
            Ok(object) => {
                if let Some(target) = target {
                    self.passed(target.version);
                }
                Ok(Some(object))
            }
            Err(error) if error.is_race() || error.code() == 422 || error.is_absent(self.copy) => {
                self.reread(target.as_ref(), &error).await.map(|()| None)
            }
            Err(error) => Err(self.fail(&error)),
        }
    }
}

impl ApplyRun<'_> {
    /// Returns the content to write.
    async fn content(&mut self, body: &DesiredObject) -> Result<Content, CopyError> {
        let intact_copy = match &body.content {
            ContentSource::Payload(payload) => {
                return payload
                    .decode()
                    .map_err(|error| CopyError::new(Reason::Unsupported, error.to_string()));
            }
            ContentSource::Twin(twin) => twin,
        };
        let (kind, object) = self
            .member
            .get_applied(&self.kind, intact_copy)
            .await
            .map_err(|error| self.fail(&error))?;
        let (rule, source) = (body.intent.rule.clone(), body.intent.source.clone());
        let sealed = Sealed {
            rule,
            source,
            revision: body.revision,
            ignored: BTreeSet::new(),
        };
        let content = live::proven_content(&kind, &object, &self.member.sealer, &sealed);
        let content = content.ok_or_else(|| {
            CopyError::new(
                Reason::WaitingForHub,
                "the content is needed and only the hub has it",
            )
        })?;
        let payload = Payload::encode(content.to_bytes());
        self.done.learned = Some(NewPayload {
            key: body.intent.clone(),
            revision: body.revision,
            payload,
        });
        Ok(content)
    }
}

/// Runs jobs until their sender is dropped. The core limits the jobs under way.
pub async fn run(member: Member, mut jobs: mpsc::Receiver<Job>, done: mpsc::Sender<Done>) {
    let budget = Semaphore::new(NODE_BUDGET as usize);
    let (mut running, mut ended) = (FuturesUnordered::new(), VecDeque::new());
    let run = |job: Job| {
        let (member, budget) = (&member, &budget);
        async move {
            let nodes = if job.nodes > SMALL {
                job.nodes.min(NODE_BUDGET)
            } else {
                0
            };
            // The budget is never closed.
            let _permit = budget.acquire_many(nodes).await;
            member.run(job).await
        }
    };
    loop {
        tokio::select! {
            job = jobs.recv() => match job {
                Some(job) => running.push(run(job)),
                None => break,
            },
            Some(result) = running.next() => ended.push_back(result),
            permit = done.reserve(), if !ended.is_empty() => match (permit, ended.pop_front()) {
                (Ok(permit), Some(result)) => permit.send(result),
                _ => break,
            },
        }
    }
    // Jobs under way finish while the drain lasts. The next process reads the copies of interrupted
    // jobs again.
    for result in ended {
        let _ = done.try_send(result);
    }
    while let Some(result) = running.next().await {
        let _ = done.try_send(result);
    }
}
