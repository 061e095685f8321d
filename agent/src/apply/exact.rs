//! Objects that cannot be applied in one request: what is in the way is removed first.
use std::collections::BTreeSet;

use json_patch::Patch;
use kube::api::DynamicObject;
use runnel_agent_core::classify::{CallError, copy_error};
use runnel_agent_core::copy::CopyError;
use runnel_agent_core::decide::ExpectedObject;
use runnel_agent_core::{body, replacement};
use runnel_proto::model::{FieldPath, Kind, Reason, SourceRef};
use serde_json::Value;

use super::{ApplyRun, Member};

impl Member {
    /// Whether an API server that refuses an apply takes the first step that leads an object to it, as far as a dry run shows. The
    /// apply that follows cannot be tried: nothing is stored.
    pub(super) async fn can_prepare(
        &self,
        kind: &Kind,
        copy: &SourceRef,
        object: Option<&DynamicObject>,
        (request, ignored): (&Value, &BTreeSet<FieldPath>),
        error: &CallError,
    ) -> bool {
        let Some(object) = object.filter(|_| is_of_content(error)) else {
            return false;
        };
        // No step makes another name or label valid.
        let mut refused = error.refused_fields().into_iter();
        if refused.any(|path| path.starts_with(&["metadata"]) && !path.contains(&"annotations")) {
            return false;
        }
        for patch in preparations(kind, object, request, ignored, error) {
            match self.json_patch(kind, copy, patch, true).await {
                Ok(_) => return true,
                Err(refused) if copy_error(&refused).refuses_content() => {}
                Err(_) => return false,
            }
        }
        false
    }
}

fn is_of_content(error: &CallError) -> bool {
    matches!(copy_error(error).reason, Reason::Invalid | Reason::TooLarge)
}

/// Returns the patches that may lead an object to a refused apply, in the order in which they are tried.
fn preparations(
    kind: &Kind,
    object: &DynamicObject,
    request: &Value,
    ignored: &BTreeSet<FieldPath>,
    error: &CallError,
) -> Vec<Patch> {
    let preparation = body::preparation_patch(kind, object, request, ignored);
    let mut patches: Vec<_> = preparation.into_iter().collect();
    if patches.is_empty() && kind.content.is_owned() {
        let whole = error.is_of_other_version();
        let whole = whole.then(|| replacement::whole(object, request));
        patches.extend(whole.flatten());
        let fields = error.refused_fields();
        patches.extend(replacement::replacements(object, request, &fields));
    }
    patches
}

impl ApplyRun<'_> {
    /// Removes the parts of an object that prevent an apply in one request, and applies again. For
    /// applies that were refused as invalid or too large.
    ///
    /// Fails with `error` if nothing prevents the apply, because the server then refuses its
    /// content. Returns the object; `None` if another writer was faster, so that the core decides
    /// again.
    pub(super) async fn make_exact(
        &mut self,
        target: Option<&ExpectedObject>,
        request: &Value,
        ignored: &BTreeSet<FieldPath>,
        error: &CallError,
    ) -> Result<Option<DynamicObject>, CopyError> {
        // An adoption removes nothing from the object.
        let helps = self.prepares_object && is_of_content(error);
        let Some(target) = target.filter(|_| helps) else {
            return Err(self.fail(error));
        };
        let kind = self.kind.clone();
        let Some(object) = self.same_in(&kind, target).await? else {
            return Ok(None);
        };
        let patches = preparations(&kind, &object, request, ignored, error);
        let Some(object) = self.prepared(target, patches, error).await? else {
            return Ok(None);
        };
        self.passed(target.version.clone());
        self.record_object(&object);
        let Some(seen) = self.recorded_target() else {
            return Ok(None);
        };
        let mut request = request.clone();
        request["metadata"]["resourceVersion"] = seen.version.to_string().into();
        match self.member.apply(&self.kind, self.copy, &request).await {
            Ok(applied) => {
                self.passed(seen.version);
                self.drop_patched(applied).await
            }
            Err(error) if error.is_race() => self.reread(Some(&seen), &error).await.map(|()| None),
            Err(error) => Err(self.fail(&error)),
        }
    }

    /// Sends the first of these patches that the API server takes. Fails with `error` if it takes none: it then refuses the content itself.
    /// Returns the object; `None` if another writer was faster.
    async fn prepared(
        &mut self,
        target: &ExpectedObject,
        patches: Vec<Patch>,
        error: &CallError,
    ) -> Result<Option<DynamicObject>, CopyError> {
        if patches.is_empty() {
            return Err(self.fail(error));
        }
        for patch in patches {
            match self
                .member
                .json_patch(&self.kind, self.copy, patch, false)
                .await
            {
                Ok(object) => return Ok(Some(object)),
                Err(refused) if refused.is_race() => break,
                Err(refused) if copy_error(&refused).refuses_content() => {}
                Err(refused) => return Err(self.fail(&refused)),
            }
        }
        // A patch for a former version of the object is refused as invalid, too.
        self.reread(Some(target), error).await.map(|()| None)
    }
}
