//! Intents and tombstones, and the refusal of single items of a hub's frame.
use super::parts::{
    Unreadable, deletion_policy, deletion_policy_to_wire, message, named_source, no_source,
    revision, source, source_to_wire,
};
use crate::model::{
    Encoding, Intent, PAYLOAD_LIMIT, Payload, Reason, Refusal, Revision, RuleUid, SourceRef,
    Tombstone,
};
use crate::wire;

/// The error of a refused item.
pub(super) enum ItemError {
    Unreadable(Unreadable),
    TooLarge,
}

impl From<Unreadable> for ItemError {
    fn from(part: Unreadable) -> Self {
        Self::Unreadable(part)
    }
}

/// The refusals of one rule.
pub(super) struct Refusals<'a> {
    pub(super) rule: RuleUid,
    pub(super) all: &'a mut Vec<Refusal>,
}

impl Refusals<'_> {
    fn add(&mut self, source: SourceRef, revision: Revision, error: ItemError) {
        let (reason, text) = match error {
            ItemError::Unreadable(part) => {
                let text = format!(
                    "this agent cannot read {part} of what the hub sent: upgrade the agent"
                );
                (Reason::Unsupported, text)
            }
            ItemError::TooLarge => (
                Reason::TooLarge,
                format!(
                    "the content is larger than {PAYLOAD_LIMIT} bytes: make the object smaller"
                ),
            ),
        };
        let message = message(&text);
        self.all.push(Refusal {
            rule: self.rule.clone(),
            source,
            revision,
            reason,
            message,
        });
    }

    pub(super) fn add_item(
        &mut self,
        source: Option<&wire::Source>,
        revision: Option<&[u8]>,
        error: ItemError,
    ) {
        self.add(
            named_source(source),
            live_revision(revision.unwrap_or_default()),
            error,
        );
    }

    pub(super) fn add_rule(&mut self, error: ItemError) {
        self.add(no_source(), Revision([0; 16]), error);
    }
}

fn live_revision(bytes: &[u8]) -> Revision {
    revision(bytes).unwrap_or(Revision([0; 16]))
}

pub(super) fn intent(wire: wire::Intent) -> Result<Intent, ItemError> {
    let encoding = match wire::Encoding::try_from(wire.encoding) {
        Ok(wire::Encoding::Plain) => Encoding::Plain,
        Ok(wire::Encoding::Zstd) => Encoding::Zstd,
        Ok(wire::Encoding::Unspecified) | Err(_) => return Err("encoding".into()),
    };
    let source = source(wire.source)?;
    let revision = revision(&wire.revision)?;
    if wire.size as usize > PAYLOAD_LIMIT || wire.payload.len() > PAYLOAD_LIMIT {
        return Err(ItemError::TooLarge);
    }
    Ok(Intent {
        source,
        revision,
        payload: Payload::from_wire(encoding, wire.payload, wire.size),
    })
}

pub(super) fn tombstone(wire: wire::Tombstone) -> Result<Tombstone, Unreadable> {
    Ok(Tombstone {
        source: source(wire.source)?,
        deletion_policy: deletion_policy(wire.deletion_policy)?,
    })
}

pub(super) fn tombstone_to_wire(tombstone: &Tombstone) -> wire::Tombstone {
    wire::Tombstone {
        source: Some(source_to_wire(&tombstone.source)),
        deletion_policy: deletion_policy_to_wire(tombstone.deletion_policy),
    }
}

pub(super) fn intent_to_wire(intent: &Intent) -> wire::Intent {
    let encoding = match intent.payload.encoding() {
        Encoding::Plain => wire::Encoding::Plain,
        Encoding::Zstd => wire::Encoding::Zstd,
    };
    wire::Intent {
        source: Some(source_to_wire(&intent.source)),
        revision: intent.revision.0.to_vec().into(),
        encoding: encoding as i32,
        payload: intent.payload.bytes().clone(),
        size: intent.payload.size(),
    }
}
