//! Objects that cannot be applied in one request: what is in the way is removed first.
use std::collections::BTreeSet;

use kube::api::DynamicObject;
use runnel_agent_core::body;
use runnel_agent_core::classify::{CallError, copy_error};
use runnel_agent_core::copy::CopyError;
use runnel_agent_core::decide::ExpectedObject;
use runnel_proto::model::{FieldPath, Reason};
use serde_json::Value;

use super::ApplyRun;

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
        let helps = self.prepares_object
            && matches!(copy_error(error).reason, Reason::Invalid | Reason::TooLarge);
        let Some(target) = target.filter(|_| helps) else {
            return Err(self.fail(error));
        };
        let Some(object) = self.same(target).await? else {
            return Ok(None);
        };
        let preparation = body::preparation_patch(&self.kind, &object, request, ignored);
        let unmerged = || {
            let is_owned = self.kind.content.is_owned();
            let fields = is_owned.then(|| error.unmerged_fields())?;
            body::unmerged_patch(&object, request, &fields)
        };
        let Some(patch) = preparation.or_else(unmerged) else {
            return Err(self.fail(error));
        };
        let object = match self.member.json_patch(&self.kind, self.copy, patch).await {
            Ok(object) => object,
            // If the object has not changed, the patch is invalid, too. The first refusal has the
            // cause.
            Err(refused) if refused.is_race() || refused.code() == 422 => {
                return self.reread(Some(target), error).await.map(|()| None);
            }
            Err(refused) => return Err(self.fail(&refused)),
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
}
