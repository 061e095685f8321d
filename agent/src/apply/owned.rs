//! Copies of kinds without listed fields: their versions, and the dry runs that show what the API server would store.
use kube::api::{DynamicObject, GetParams, Patch, PatchParams, PostParams};
use runnel_proto::model::{Content, Kind, Reason, SourceRef, clip};
use serde_json::Value;

use super::{ApplyRun, Member, apply_input, at, effect};
use crate::call::Call;
use runnel_agent_core::body::{ApplyInput, ReplacedObject};
use runnel_agent_core::copy::CopyError;
use runnel_agent_core::decide::{DesiredObject, ExpectedObject};
use runnel_agent_core::managed_fields::FIELD_MANAGER;
use runnel_agent_core::{body, classify, diff, live, managed_fields, seal};

/// Limit of the fields that an error names because a webhook drops them.
pub(super) const DROPPED_LIMIT: usize = 20;
/// How often other writers may be faster while an object is pruned.
const PRUNE_TRIES: usize = 5;

/// So much of a name is kept where a suffix follows.
const NAME_ROOM: usize = 40;

/// Returns the parameters of an apply. The API server refuses unknown fields of an apply anyway, so the agent asks for no warnings
/// about fields: for those, the API server parses each body a second time.
pub(super) fn apply_params() -> PatchParams {
    PatchParams::apply(FIELD_MANAGER)
        .force()
        .validation_ignore()
}

impl Member {
    /// Reads an object in the version of `kind`.
    pub(super) async fn get(&self, kind: &Kind, copy: &SourceRef) -> Call<DynamicObject> {
        self.object(at(kind, copy).get(&copy.name, &GetParams::default()))
            .await
    }

    /// Reads an object in the version in which the agent applied it. Returns the kind in this version, too.
    pub(super) async fn get_applied(
        &self,
        kind: &Kind,
        copy: &SourceRef,
    ) -> Call<(Kind, DynamicObject)> {
        let object = self.get(kind, copy).await?;
        match self.kinds.applied_in(kind, &object.metadata) {
            Some(other) => {
                let object = self.get(&other, copy).await?;
                Ok((other, object))
            }
            None => Ok((kind.clone(), object)),
        }
    }

    /// Returns the object that an apply would store.
    pub(super) async fn apply_dry(
        &self,
        kind: &Kind,
        copy: &SourceRef,
        body: &Value,
    ) -> Call<DynamicObject> {
        let params = PatchParams {
            dry_run: true,
            ..apply_params()
        };
        self.object(at(kind, copy).patch(&copy.name, &params, &Patch::Apply(body)))
            .await
    }

    /// Returns the kind of a copy in the version of its content.
    pub(super) fn kind_of(&self, copy: &SourceRef, content: &Content) -> Result<Kind, CopyError> {
        let kind = match &content.version {
            Some(version) => self.kinds.in_version(&copy.resource, version),
            None => self.kinds.get(&copy.resource),
        };
        kind.ok_or_else(|| match &content.version {
            Some(version) if self.kinds.get(&copy.resource).is_some() => {
                // The definition may have got the version since the kinds were read.
                self.kinds.request_recheck();
                classify::version_not_served(&copy.resource, version)
            }
            _ => classify::not_served(&copy.resource),
        })
    }
}

/// The answer to the first apply of a copy, whose values the API server may have normalized.
pub(super) struct Preapplied {
    /// The object.
    pub(super) object: DynamicObject,
    /// Its content that the agent owns.
    pub(super) stored: Content,
    /// Whether nothing is stored yet.
    pub(super) is_dry: bool,
}

impl ApplyRun<'_> {
    /// Like [`Self::same`], but returns the object in the version of `kind`, which is that of the content.
    pub(super) async fn same_in(
        &mut self,
        kind: &Kind,
        target: &ExpectedObject,
    ) -> Result<Option<DynamicObject>, CopyError> {
        if let Some(object) = self.member.newest.take(kind, self.copy, target) {
            self.kind = kind.clone();
            self.record_object(&object);
            return Ok(Some(object));
        }
        let object = self.same(target).await?;
        if object.is_none() || std::mem::replace(&mut self.kind, kind.clone()) == *kind {
            return Ok(object);
        }
        match self.member.get(kind, self.copy).await {
            Ok(object) => {
                let is_same = object.metadata.resource_version.as_deref() == Some(&*target.version);
                Ok(Some(object).filter(|_| is_same))
            }
            Err(error) if error.is_absent(self.copy) => Ok(None),
            Err(error) => Err(self.fail(&error)),
        }
    }

    /// Returns the kind in the version of the content, and writes in it from now on.
    pub(super) fn select_version(&mut self, content: &Content) -> Result<Kind, CopyError> {
        self.kind = self.member.kind_of(self.copy, content)?;
        Ok(self.kind.clone())
    }

    /// Returns the object that an apply stores, for its seal: the API server may normalize values. `None` if another writer
    /// was faster.
    ///
    /// It is the answer to a dry run if `asks`. Without, and where a webhook refuses dry runs, the object is applied with a
    /// seal of the content as sent, and `current` becomes this object: see [`Self::reseal`].
    ///
    /// Fails if the answer lacks a sent value, because a webhook drops it. A dry run has written nothing then.
    pub(super) async fn preapply(
        &mut self,
        written: &ApplyInput<'_>,
        asks: bool,
        current: &mut Option<ExpectedObject>,
        object: Option<&DynamicObject>,
    ) -> Result<Option<Preapplied>, CopyError> {
        let (kind, kinds) = (written.kind, &self.member.kinds);
        let over = current
            .as_ref()
            .map(|target| ReplacedObject { target, object });
        let request = body::apply(written, over.as_ref(), &self.member.sealer);
        let dry = if asks {
            let answer = self.member.apply_dry(kind, self.copy, &request).await;
            Some(answer).filter(|answer| !matches!(answer, Err(error) if error.refuses_dry_run()))
        } else {
            None
        };
        let is_dry = dry.is_some();
        let answer = match dry {
            Some(answer) => answer,
            None => self.member.apply(kind, self.copy, &request).await,
        };
        let (applied, is_dry) = match answer {
            Ok(applied) => (applied, is_dry),
            Err(error) if error.is_race() => {
                return self.reread(current.as_ref(), &error).await.map(|()| None);
            }
            Err(error) => {
                let exact = self.make_exact(current.as_ref(), &request, written.ignored, &error);
                match exact.await? {
                    Some(applied) => (applied, false),
                    None => return Ok(None),
                }
            }
        };
        if !is_dry {
            self.done.wrote = Some(effect(current.as_ref(), &applied));
            self.record_object(&applied);
            let before = std::mem::replace(current, self.recorded_target());
            if let (Some(before), Some(now)) = (before, &*current)
                && before.version != now.version
            {
                self.passed(before.version);
            }
        }
        let dropped = managed_fields::dropped(&request, &applied, written.ignored, DROPPED_LIMIT);
        let stored = live::applied_content(kind, &applied);
        let masked = |content| managed_fields::mask_ignored(content, written.ignored);
        let is_as_sent = masked(stored.clone()) == masked(seal::canonical(written.content));
        kinds.record_stored(kind, is_as_sent && dropped.is_empty());
        if !dropped.is_empty() {
            return Err(diff::dropped(&dropped));
        }
        Ok(Some(Preapplied {
            object: applied,
            stored,
            is_dry,
        }))
    }

    /// Gives the object of a first apply its right seal, if the API server has normalized its values: applies the values as they
    /// are stored. Returns the object; `None` if it was deleted meanwhile.
    ///
    /// The precondition is the uid and not the version, because controllers write their status at once.
    pub(super) async fn reseal(
        &mut self,
        first: &Preapplied,
        written: &ApplyInput<'_>,
        current: Option<&ExpectedObject>,
        body: &DesiredObject,
    ) -> Result<Option<DynamicObject>, CopyError> {
        if self.is_written(body) {
            return Ok(Some(first.object.clone()));
        }
        let stored = ApplyInput {
            content: &first.stored,
            stored: None,
            ..*written
        };
        let over = current.map(|target| ReplacedObject {
            target,
            object: Some(&first.object),
        });
        let mut request = body::apply(&stored, over.as_ref(), &self.member.sealer);
        if let Some(metadata) = request["metadata"].as_object_mut() {
            metadata.remove("resourceVersion");
        }
        match self.member.apply(written.kind, self.copy, &request).await {
            Ok(object) => Ok(Some(object)),
            Err(error) if error.is_race() => self.reread(current, &error).await.map(|()| None),
            Err(error) => Err(self.fail(&error)),
        }
    }

    /// Whether an object has all marks of a copy, so that a difference is none of them.
    pub(super) fn has_marks(&self, object: &DynamicObject, written: &ApplyInput<'_>) -> bool {
        let request = body::apply(written, None, &self.member.sealer);
        body::has_marks(object, &request)
    }

    /// Returns why a change is refused. What the API server would create is immutable; what it would not create either is invalid,
    /// whatever its words are: to delete the copy would lose it.
    pub(super) async fn judged(&mut self, refused: CopyError, body: &DesiredObject) -> CopyError {
        if !refused.refuses_content() {
            return refused;
        }
        match (refused.reason, self.can_be_created(body).await) {
            (Reason::Invalid, Some(true)) => classify::immutable(),
            (Reason::Immutable, Some(false)) => CopyError::new(Reason::Invalid, refused.message),
            _ => refused,
        }
    }

    /// Whether the API server would create an object with the content of a copy that it refuses to change: then a field is
    /// immutable, whatever the words of the refusal are. A dry run under another name shows it; `None` if it does not.
    async fn can_be_created(&mut self, body: &DesiredObject) -> Option<bool> {
        // The immutable fields of the other kinds are known by their words.
        if !self.kind.content.is_owned() {
            return None;
        }
        let content = self.content(body).await.ok()?;
        let written = ApplyInput {
            adopted: false,
            ..apply_input(&self.kind, self.copy, &content, body)
        };
        let mut request = body::apply(&written, None, &self.member.sealer);
        request["metadata"]["name"] =
            format!("{}-dry-run", clip(&self.copy.name, NAME_ROOM)).into();
        if let Some(metadata) = request["metadata"].as_object_mut() {
            metadata.remove("resourceVersion");
        }
        let params = PostParams {
            dry_run: true,
            field_manager: Some(FIELD_MANAGER.to_owned()),
        };
        let bytes = serde_json::to_vec(&request).expect("a JSON value serializes");
        let created = at(&self.kind, self.copy).create(&params, bytes);
        let refused = match self.member.text(created).await {
            Ok(_) => return Some(true),
            // It was valid, and the name is taken.
            Err(error) if error.code() == 409 => return Some(true),
            Err(error) => error,
        };
        let refusal = classify::copy_error(&refused);
        let is_of_name = |path: &Vec<&str>| path.starts_with(&["metadata", "name"]);
        // Some kinds bind the name to the content, and some values may be there once: the copy has them.
        let is_of_copy = refused.refused_fields().iter().any(is_of_name) || refused.is_allocated();
        let is_of_content = matches!(
            refusal.reason,
            Reason::Invalid | Reason::Immutable | Reason::TooLarge | Reason::Denied
        );
        (is_of_content && !is_of_copy).then_some(false)
    }

    /// Returns the answer to a dry run of an apply over an object, for a kind without listed fields. With `object`, ignored fields
    /// stay as they are.
    pub(super) async fn compared(
        &self,
        kind: &Kind,
        target: &ExpectedObject,
        object: Option<&DynamicObject>,
        content: &Content,
        body: &DesiredObject,
    ) -> Call<Option<DynamicObject>> {
        if !kind.content.is_owned() {
            return Ok(None);
        }
        let over = ReplacedObject { target, object };
        let written = apply_input(kind, self.copy, content, body);
        let request = body::apply(&written, Some(&over), &self.member.sealer);
        self.member
            .apply_dry(kind, self.copy, &request)
            .await
            .map(Some)
    }

    /// Drops the ownership of the fields that a preparation has set, after the apply that followed it. Otherwise they would stay when they
    /// leave the source.
    pub(super) async fn drop_patched(
        &mut self,
        applied: DynamicObject,
    ) -> Result<Option<DynamicObject>, CopyError> {
        let patch = body::drop_patched(&applied).filter(|_| self.kind.content.is_owned());
        let Some(patch) = patch else {
            return Ok(Some(applied));
        };
        self.record_object(&applied);
        let Some(seen) = self.recorded_target() else {
            return Ok(None);
        };
        self.patched(Some(seen), patch).await
    }

    /// Removes what an object has of others besides the content: makes it the agent's own, and applies the content again. Ignored
    /// fields of a copy keep their values, those of an overwritten object do not. Returns the object; `None` if other writers were
    /// faster.
    pub(super) async fn prune(
        &mut self,
        mut object: DynamicObject,
        written: &ApplyInput<'_>,
    ) -> Result<Option<DynamicObject>, CopyError> {
        let (uid, mut is_absorbed) = (object.metadata.uid.clone(), false);
        for _ in 0..PRUNE_TRIES {
            let patch = body::absorb(&object);
            if patch.is_none() && !is_absorbed {
                return Ok(Some(object));
            }
            self.record_object(&object);
            if let Some(patch) = patch
                && let Some(absorbed) = self.patched(self.recorded_target(), patch).await?
            {
                self.record_object(&absorbed);
                (object, is_absorbed) = (absorbed, true);
            }
            let Some(target) = self.recorded_target() else {
                return Ok(None);
            };
            let is_current = object.metadata.resource_version.as_deref() == Some(&*target.version);
            if is_absorbed && is_current {
                let over = ReplacedObject {
                    target: &target,
                    object: Some(&object).filter(|_| !self.overwrites),
                };
                let request = body::apply(written, Some(&over), &self.member.sealer);
                match self.member.apply(written.kind, self.copy, &request).await {
                    Ok(pruned) => {
                        self.passed(target.version);
                        return Ok(Some(pruned));
                    }
                    Err(error) if error.is_race() => self.reread(Some(&target), &error).await?,
                    Err(error) => return Err(self.fail(&error)),
                }
            }
            // Controllers write a status soon after each change.
            match self.present().await? {
                Some(now) if now.metadata.uid == uid => object = now,
                _ => return Ok(None),
            }
        }
        Ok(None)
    }
}
