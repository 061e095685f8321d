//! Adoption of objects that equal their sources.
use kube::api::DynamicObject;
use runnel_agent_core::body::ReplacedObject;
use runnel_agent_core::copy::CopyError;
use runnel_agent_core::decide::{DesiredObject, ExpectedObject, Limits, WriteEffect};
use runnel_agent_core::diff::Comparison;
use runnel_agent_core::live::Ownership;
use runnel_agent_core::{body, diff, live};
use runnel_proto::model::{Content, Reason};

use super::{ApplyRun, apply_input};

impl ApplyRun<'_> {
    /// Adopts an object that equals the content. Of an object that Runnel did not create, this changes marks and nothing else.
    pub(super) async fn adopt(
        &mut self,
        target: ExpectedObject,
        body: &DesiredObject,
    ) -> Result<(), CopyError> {
        // An object that may be overwritten may be adopted.
        if let Some(denied) = body.limits.policy.denies_adopting() {
            return Err(denied);
        }
        let content = self.content(body).await?;
        let kind = self.select_version(&content)?;
        let Limits { policy, location } = &body.limits;
        if let Some(denied) = policy.denies(&kind, self.copy, &content, location) {
            return Err(denied);
        }
        let Some(object) = self.same_in(&kind, &target).await? else {
            return Ok(());
        };
        if self
            .live()
            .is_some_and(|live| live.ownership == Ownership::Retained)
        {
            return self.take_back(target, &object, &content, body).await;
        }
        let Some(kept) = live::kept_content(&kind, &object) else {
            return Err(self.unequal(body));
        };
        if !live::is_comparable(&kind, &content) {
            return Err(diff::incomparable());
        }
        let sent = live::dry_content(&kept, &content);
        if !self
            .is_equal(&target, &object, &content, &sent, body)
            .await?
        {
            return Ok(());
        }
        let is_adopted = self
            .live()
            .is_some_and(|live| live.intent().as_ref() == Some(&body.intent));
        let written = apply_input(&kind, self.copy, &content, body);
        let over = ReplacedObject {
            target: &target,
            object: None,
        };
        let request = body::mark(&written, &kept, &over, &object, &self.member.sealer);
        let marked = match self.member.apply(&kind, self.copy, &request).await {
            Ok(marked) => marked,
            Err(error) if error.is_race() => return self.reread(Some(&target), &error).await,
            Err(error) => return Err(self.fail(&error)),
        };
        let compared = live::compared_content(&kind, &object);
        let ended = self
            .stored(
                marked,
                (Some(&target), Some(target.clone())),
                &compared,
                body,
            )
            .await;
        if self.done.wrote.is_some() {
            self.done.wrote = Some(if is_adopted {
                WriteEffect::Equal
            } else {
                WriteEffect::Adopted
            });
        }
        match ended? {
            Some(object) if !self.is_written(body) => Err(Comparison {
                kind: &kind,
                object: &object,
                applied: None,
                content: &compared,
                ignored: &body.ignored,
            }
            .rewritten()),
            _ => Ok(()),
        }
    }

    /// Takes back an object that Runnel created and retained, if it is equal.
    async fn take_back(
        &mut self,
        target: ExpectedObject,
        object: &DynamicObject,
        content: &Content,
        body: &DesiredObject,
    ) -> Result<(), CopyError> {
        if !self
            .is_equal(&target, object, content, content, body)
            .await?
        {
            return Ok(());
        }
        let ended = self.write(Some(target), body).await;
        if self.done.wrote.is_some() {
            self.done.wrote = Some(WriteEffect::Adopted);
        }
        ended
    }

    /// Whether an object equals the content, of which a dry run of the apply sends `sent`. `false` if another writer was faster.
    async fn is_equal(
        &mut self,
        target: &ExpectedObject,
        object: &DynamicObject,
        content: &Content,
        sent: &Content,
        body: &DesiredObject,
    ) -> Result<bool, CopyError> {
        let kind = self.kind.clone();
        // All fields are compared, also those that the rule ignores.
        let applied = match self.compared(&kind, target, None, sent, body).await {
            Ok(applied) => applied,
            Err(error) if error.is_race() => {
                self.reread(Some(target), &error).await?;
                return Ok(false);
            }
            Err(error) if error.is_foreign_change() => None,
            Err(error) => match self.fail(&error) {
                // The content does not fit into the object, which is another one then.
                refused if refused.refuses_content() => None,
                failed => return Err(failed),
            },
        };
        if live::is_adoptable(&kind, object, content, applied.as_ref()) {
            return Ok(true);
        }
        Err(self.unequal(body))
    }

    fn unequal(&self, body: &DesiredObject) -> CopyError {
        let gone = || CopyError::new(Reason::Conflict, "the object was deleted meanwhile");
        self.live().map_or_else(gone, |live| body.unequal(live))
    }
}
