//! The question what would become of the copies of a rule, and its answer.
use super::NAME_LIMIT;
use super::hub::{intent, intent_to_wire, tombstone, tombstone_to_wire};
use super::parts::{
    Unreadable, bounded, deletion_policy, deletion_policy_to_wire, message, reason, reason_to_wire, rule_uid, source,
    source_to_wire, terms, terms_to_wire,
};
use crate::model::{FieldsKey, Foreseen, SUPPOSED_LIMIT, Suppose, Supposed, SupposedCopy, SupposedIntent};
use crate::wire;

pub(super) fn suppose(wire: wire::Suppose) -> Result<Suppose, Unreadable> {
    let key = wire.key.as_ref().try_into().map_err(|_| "key")?;
    let removal = wire.removal.map(|removal| deletion_policy(removal.deletion_policy)).transpose()?;
    Ok(Suppose {
        question: wire.question,
        uid: rule_uid(wire.rule_uid)?,
        terms: wire.terms.map(terms).transpose()?,
        intents: wire.intents.into_iter().take(SUPPOSED_LIMIT).map(supposed_intent).collect::<Result<_, _>>()?,
        tombstones: wire.tombstones.into_iter().map(tombstone).collect::<Result<_, _>>()?,
        removal,
        held: wire.held.into_iter().map(|held| source(Some(held))).collect::<Result<_, _>>()?,
        holds_all: wire.holds_all,
        rehearse: wire.rehearse,
        key: FieldsKey(key),
    })
}

fn supposed_intent(wire: wire::SupposedIntent) -> Result<SupposedIntent, Unreadable> {
    let object_type = bounded(wire.object_type, NAME_LIMIT, "object_type")?;
    Ok(SupposedIntent {
        intent: intent(wire.intent.ok_or("intent")?).map_err(|_| "intent")?,
        bytes: wire.bytes,
        object_type: (!object_type.is_empty()).then(|| object_type.into()),
        fields: wire.fields.as_ref().try_into().map_err(|_| "fields")?,
    })
}

pub(super) fn suppose_to_wire(asked: &Suppose) -> wire::Suppose {
    let intent = |one: &SupposedIntent| wire::SupposedIntent {
        intent: Some(intent_to_wire(&one.intent)),
        bytes: one.bytes,
        object_type: one.object_type.as_deref().unwrap_or_default().to_owned(),
        fields: one.fields.to_vec().into(),
    };
    wire::Suppose {
        question: asked.question,
        rule_uid: asked.uid.to_string(),
        terms: asked.terms.as_ref().map(|(terms, digest)| terms_to_wire(terms, digest)),
        intents: asked.intents.iter().take(SUPPOSED_LIMIT).map(intent).collect(),
        tombstones: asked.tombstones.iter().map(tombstone_to_wire).collect(),
        removal: asked.removal.map(|policy| wire::Removal { deletion_policy: deletion_policy_to_wire(policy) }),
        held: asked.held.iter().map(source_to_wire).collect(),
        holds_all: asked.holds_all,
        rehearse: asked.rehearse,
        key: asked.key.0.to_vec().into(),
    }
}

pub(super) fn supposed(wire: wire::Supposed) -> Result<Supposed, Unreadable> {
    let copies = wire.copies.into_iter().take(SUPPOSED_LIMIT).map(supposed_copy).collect::<Result<_, _>>()?;
    Ok(Supposed { question: wire.question, copies, more: wire.more, last: wire.last })
}

fn supposed_copy(wire: wire::SupposedCopy) -> Result<SupposedCopy, Unreadable> {
    use wire::Foreseen as Wire;
    let foreseen = match wire.foreseen() {
        Wire::Create => Foreseen::Create,
        Wire::Change => Foreseen::Change,
        Wire::Unchanged => Foreseen::Unchanged,
        Wire::Adopt => Foreseen::Adopt,
        Wire::Overwrite => Foreseen::Overwrite,
        Wire::Remove => Foreseen::Remove,
        Wire::GiveUp => Foreseen::GiveUp,
        Wire::Retain => Foreseen::Retain,
        Wire::HandOver => Foreseen::HandOver,
        Wire::Held => Foreseen::Held,
        Wire::Wait => Foreseen::Wait,
        // What a newer agent foresees and this hub does not know.
        Wire::Rest | Wire::Unspecified => Foreseen::Rest,
        Wire::Refused => Foreseen::Refused,
    };
    let trouble = (wire.reason != 0).then(|| (reason(wire.reason), message(&wire.message)));
    Ok(SupposedCopy { copy: source(wire.copy)?, source: source(wire.source)?, foreseen, trouble })
}

pub(super) fn supposed_to_wire(answer: &Supposed) -> wire::Supposed {
    wire::Supposed {
        question: answer.question,
        copies: answer.copies.iter().map(supposed_copy_to_wire).collect(),
        more: answer.more,
        last: answer.last,
    }
}

pub(super) fn supposed_copy_to_wire(copy: &SupposedCopy) -> wire::SupposedCopy {
    use wire::Foreseen as Wire;
    let foreseen = match copy.foreseen {
        Foreseen::Create => Wire::Create,
        Foreseen::Change => Wire::Change,
        Foreseen::Unchanged => Wire::Unchanged,
        Foreseen::Adopt => Wire::Adopt,
        Foreseen::Overwrite => Wire::Overwrite,
        Foreseen::Remove => Wire::Remove,
        Foreseen::GiveUp => Wire::GiveUp,
        Foreseen::Retain => Wire::Retain,
        Foreseen::HandOver => Wire::HandOver,
        Foreseen::Held => Wire::Held,
        Foreseen::Wait => Wire::Wait,
        Foreseen::Rest => Wire::Rest,
        Foreseen::Refused => Wire::Refused,
    };
    let trouble = copy.trouble.as_ref();
    wire::SupposedCopy {
        copy: Some(source_to_wire(&copy.copy)),
        source: Some(source_to_wire(&copy.source)),
        foreseen: foreseen.into(),
        reason: trouble.map_or(0, |(reason, _)| reason_to_wire(*reason)),
        message: trouble.map(|(_, text)| message(text)).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use prost::Message;

    use super::*;
    use crate::convert::{agent_frame, agent_frame_to_wire, hub_frame, hub_frame_to_wire, split};
    use crate::model::{
        AGENT_FRAME_LIMIT, AgentFrame, Content, DeletionPolicy, HubFrame, Intent, Payload, Reason, Revision, SourceRef,
        Terms, TermsDigest, Tombstone,
    };

    fn copy(number: usize) -> SourceRef {
        SourceRef::new("secrets", "team", &format!("login-{number}"))
    }

    #[test]
    fn a_question_reads_back_what_was_written() {
        let payload = Payload::encode(Content::default().to_bytes());
        let intent = Intent { source: copy(1).as_copy("other"), revision: Revision([3; 16]), payload };
        let asked = Suppose {
            question: 7,
            uid: "r".into(),
            terms: Some((Terms::default(), TermsDigest([1; 16]))),
            intents: vec![SupposedIntent { intent, bytes: 9, object_type: Some("Opaque".into()), fields: [4; 32] }],
            tombstones: vec![Tombstone { source: copy(2), deletion_policy: DeletionPolicy::Retain }],
            removal: Some(DeletionPolicy::Delete),
            held: BTreeSet::from([copy(3)]),
            holds_all: true,
            rehearse: true,
            key: FieldsKey([5; 32]),
        };
        let wire = hub_frame_to_wire(&HubFrame::Suppose(Box::new(asked)));
        let (read, refused) = hub_frame(wire.clone()).ok().unwrap();
        assert!(refused.is_empty() && hub_frame_to_wire(&read) == wire);
        let without_key = wire::Suppose { rule_uid: "r".into(), ..wire::Suppose::default() };
        assert_eq!(suppose(without_key).err(), Some("key"));
    }

    #[test]
    fn a_long_answer_travels_in_frames_of_which_the_last_says_so() {
        let one = |number| SupposedCopy {
            copy: copy(number),
            source: copy(number).as_copy("other"),
            foreseen: Foreseen::Refused,
            trouble: Some((Reason::Conflict, "x".repeat(200))),
        };
        let copies: Vec<_> = (0..500).map(one).collect();
        let answer = Supposed { question: 8, copies: copies.clone(), more: 3, last: true };
        let frames: Vec<_> = split(AgentFrame::Supposed(answer)).iter().map(agent_frame_to_wire).collect();
        assert!(frames.len() > 1 && frames.iter().all(|frame| frame.encoded_len() <= AGENT_FRAME_LIMIT));
        let read = frames.into_iter().map(|frame| match agent_frame(frame) {
            Ok(AgentFrame::Supposed(part)) => part,
            _ => panic!("another frame"),
        });
        let parts: Vec<Supposed> = read.collect();
        let last: Vec<_> = parts.iter().map(|part| part.last).collect();
        assert!(last.iter().rev().skip(1).all(|last| !last) && last.last() == Some(&true));
        assert!(parts.iter().all(|part| (part.question, part.more) == (8, 3)));
        assert_eq!(parts.into_iter().flat_map(|part| part.copies).collect::<Vec<_>>(), copies);
    }
}
