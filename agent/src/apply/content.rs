//! Gets the content of a write: from its payload, or from a twin.
use std::collections::BTreeSet;

use runnel_proto::model::{Content, Payload, Reason};

use super::ApplyRun;
use runnel_agent_core::copy::CopyError;
use runnel_agent_core::copy::NewPayload;
use runnel_agent_core::job::{ContentSource, DesiredObject};
use runnel_agent_core::live::{self, Sealed};

impl ApplyRun<'_> {
    /// Returns the content to write.
    pub(super) async fn content(&mut self, body: &DesiredObject) -> Result<Content, CopyError> {
        let twin = match &body.content {
            ContentSource::Payload(payload) => {
                return payload
                    .decode()
                    .map_err(|error| CopyError::new(Reason::Unsupported, error.to_string()));
            }
            ContentSource::Twin(twin) => twin,
        };
        let object = self
            .member
            .get(self.kind, twin)
            .await
            .map_err(|error| self.fail(&error))?;
        let (rule, source) = (body.intent.rule.clone(), body.intent.source.clone());
        let sealed = Sealed {
            rule,
            source,
            revision: body.revision,
            ignored: BTreeSet::new(),
        };
        let content = live::proven_content(self.kind, &object, &self.member.sealer, &sealed);
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
