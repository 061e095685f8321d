//! The parts that frames are made of: intents, tombstones, terms and their fields. A reader names the unreadable field.
//! Single items of a hub's frame are refused alone.
use std::sync::Arc;

use super::NAME_LIMIT;
use crate::model::{
    ConflictPolicy, DeletionPolicy, DriftPolicy, Encoding, Enforcement, FEEDBACK_LIMIT,
    FEEDBACK_NAME_LIMIT, FEEDBACK_VALUE_LIMIT, FeedbackField, FeedbackValue, FieldPath, Grant,
    ImmutablePolicy, Intent, JsonPath, MESSAGE_LIMIT, NamespaceChoice, Operator, PAYLOAD_LIMIT,
    Pattern, Payload, Propagation, Reason, Refusal, Requirement, Revision, RuleName, RuleUid,
    Selector, SourceRef, Terms, TermsDigest, Tombstone, is_label, is_object_name, is_place,
    is_plain_text, is_plain_token, is_subdomain, is_uid, plain_text,
};
use crate::wire;

/// The unreadable field, as `sync.proto` calls it.
pub(super) type Unreadable = &'static str;

/// Longest key or value in a label selector: a prefix of 253, a slash and 63 more.
const LABEL_LIMIT: usize = 317;
/// Longest kind of a rule.
const KIND_LIMIT: usize = 63;

/// Returns a sentence for people, bounded and plain, because it is shown in statuses and terminals.
pub(super) fn message(text: &str) -> String {
    plain_text(text, MESSAGE_LIMIT)
}

/// One word of visible ASCII characters.
pub(super) fn short_text(
    text: String,
    limit: usize,
    part: Unreadable,
) -> Result<String, Unreadable> {
    if text.len() <= limit && is_plain_token(&text) {
        Ok(text)
    } else {
        Err(part)
    }
}

/// Returns the text, or an empty one.
pub(super) fn text_or_empty(
    text: String,
    limit: usize,
    part: Unreadable,
) -> Result<String, Unreadable> {
    if text.is_empty() {
        Ok(text)
    } else {
        short_text(text, limit, part)
    }
}

pub(super) fn rule_uid(uid: String) -> Result<RuleUid, Unreadable> {
    if is_uid(&uid) {
        Ok(uid.into())
    } else {
        Err("rule_uid")
    }
}

fn name(text: String, part: Unreadable) -> Result<Arc<str>, Unreadable> {
    if is_subdomain(&text) {
        Ok(text.into())
    } else {
        Err(part)
    }
}

pub(super) fn source(wire: Option<wire::Source>) -> Result<SourceRef, Unreadable> {
    let wire = wire.ok_or("source")?;
    let resource = name(wire.resource, "source.resource")?;
    if !is_place(&wire.namespace) {
        return Err("source.namespace");
    }
    if !is_object_name(&resource, &wire.name) {
        return Err("source.name");
    }
    let source = SourceRef::new(&resource, &wire.namespace, &wire.name);
    match wire.copy_name.as_str() {
        "" => Ok(source),
        name if is_object_name(&resource, name) => Ok(source.as_copy(name)),
        _ => Err("source.copy_name"),
    }
}

/// Returns the source of a refused item as plain text, with the parts that it has.
pub(super) fn named_source(wire: Option<&wire::Source>) -> SourceRef {
    let Some(wire) = wire else { return no_source() };
    let short = |text: &'_ str| plain_text(text, NAME_LIMIT);
    let source = SourceRef::new(
        &short(&wire.resource),
        &short(&wire.namespace),
        &short(&wire.name),
    );
    if wire.copy_name.is_empty() {
        source
    } else {
        source.as_copy(&short(&wire.copy_name))
    }
}

/// Represents the rule itself in a refusal.
pub(super) fn no_source() -> SourceRef {
    SourceRef::new("", "", "")
}

pub(super) fn source_to_wire(source: &SourceRef) -> wire::Source {
    wire::Source {
        resource: source.resource.to_string(),
        namespace: source.namespace.to_string(),
        name: source.name.to_string(),
        copy_name: if source.is_renamed() {
            source.copy_name().to_string()
        } else {
            String::new()
        },
    }
}

pub(super) fn revision(bytes: &[u8]) -> Result<Revision, Unreadable> {
    bytes.try_into().map(Revision).map_err(|_| "revision")
}

pub(super) fn rule_name(wire: Option<wire::RuleName>) -> Result<RuleName, Unreadable> {
    let wire = wire.unwrap_or_default();
    Ok(RuleName {
        kind: checked(wire.kind, is_kind, "rule.kind")?,
        namespace: checked(wire.namespace, is_label, "rule.namespace")?,
        name: checked(wire.name, is_subdomain, "rule.name")?,
    })
}

fn is_kind(text: &str) -> bool {
    text.len() <= KIND_LIMIT && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// A text that is empty or passes a check.
fn checked(
    text: String,
    is_fine: impl Fn(&str) -> bool,
    part: Unreadable,
) -> Result<String, Unreadable> {
    if text.is_empty() || is_fine(&text) {
        Ok(text)
    } else {
        Err(part)
    }
}

pub(super) fn rule_name_to_wire(rule: &RuleName) -> wire::RuleName {
    wire::RuleName {
        kind: rule.kind.clone(),
        namespace: rule.namespace.clone(),
        name: rule.name.clone(),
    }
}

/// A reason of a newer agent that this hub does not support reads as `Unsupported`; its message has
/// the details.
pub(super) fn reason(wire: i32) -> Reason {
    match wire::Reason::try_from(wire) {
        Ok(wire::Reason::Conflict) => Reason::Conflict,
        Ok(wire::Reason::Invalid) => Reason::Invalid,
        Ok(wire::Reason::Forbidden) => Reason::Forbidden,
        Ok(wire::Reason::NamespaceTerminating) => Reason::NamespaceTerminating,
        Ok(wire::Reason::Immutable) => Reason::Immutable,
        Ok(wire::Reason::Unavailable) => Reason::Unavailable,
        Ok(wire::Reason::WebhookUnavailable) => Reason::WebhookUnavailable,
        Ok(wire::Reason::Superseded) => Reason::Superseded,
        Ok(wire::Reason::WaitingForHub) => Reason::WaitingForHub,
        Ok(wire::Reason::TooLarge) => Reason::TooLarge,
        Ok(wire::Reason::AmbiguousSource) => Reason::AmbiguousSource,
        Ok(wire::Reason::Denied) => Reason::Denied,
        Ok(wire::Reason::Drifted) => Reason::Drifted,
        Ok(wire::Reason::Contended) => Reason::Contended,
        Ok(wire::Reason::DeleteLimit) => Reason::DeleteLimit,
        Ok(wire::Reason::DryRun) => Reason::DryRun,
        Ok(wire::Reason::KindNotServed) => Reason::KindNotServed,
        Ok(wire::Reason::Unhealthy) => Reason::Unhealthy,
        Ok(wire::Reason::NotEmpty) => Reason::NotEmpty,
        Ok(wire::Reason::WaitingForDependency) => Reason::WaitingForDependency,
        Ok(wire::Reason::Unsupported | wire::Reason::Unspecified) | Err(_) => Reason::Unsupported,
    }
}

pub(super) fn reason_to_wire(reason: Reason) -> i32 {
    let wire = match reason {
        Reason::Conflict => wire::Reason::Conflict,
        Reason::Invalid => wire::Reason::Invalid,
        Reason::Forbidden => wire::Reason::Forbidden,
        Reason::NamespaceTerminating => wire::Reason::NamespaceTerminating,
        Reason::Immutable => wire::Reason::Immutable,
        Reason::Unavailable => wire::Reason::Unavailable,
        Reason::WebhookUnavailable => wire::Reason::WebhookUnavailable,
        Reason::Superseded => wire::Reason::Superseded,
        Reason::WaitingForHub => wire::Reason::WaitingForHub,
        Reason::Unsupported => wire::Reason::Unsupported,
        Reason::TooLarge => wire::Reason::TooLarge,
        Reason::AmbiguousSource => wire::Reason::AmbiguousSource,
        Reason::Denied => wire::Reason::Denied,
        Reason::Drifted => wire::Reason::Drifted,
        Reason::Contended => wire::Reason::Contended,
        Reason::DeleteLimit => wire::Reason::DeleteLimit,
        Reason::DryRun => wire::Reason::DryRun,
        Reason::KindNotServed => wire::Reason::KindNotServed,
        Reason::Unhealthy => wire::Reason::Unhealthy,
        Reason::NotEmpty => wire::Reason::NotEmpty,
        Reason::WaitingForDependency => wire::Reason::WaitingForDependency,
    };
    wire as i32
}

pub(super) fn deletion_policy(wire: i32) -> Result<DeletionPolicy, Unreadable> {
    match wire::DeletionPolicy::try_from(wire) {
        Ok(wire::DeletionPolicy::Delete) => Ok(DeletionPolicy::Delete),
        Ok(wire::DeletionPolicy::Retain) => Ok(DeletionPolicy::Retain),
        Ok(wire::DeletionPolicy::Unspecified) | Err(_) => Err("deletion_policy"),
    }
}

pub(super) fn deletion_policy_to_wire(policy: DeletionPolicy) -> i32 {
    let wire = match policy {
        DeletionPolicy::Delete => wire::DeletionPolicy::Delete,
        DeletionPolicy::Retain => wire::DeletionPolicy::Retain,
    };
    wire as i32
}

pub(super) fn terms(wire: wire::Terms) -> Result<(Terms, TermsDigest), Unreadable> {
    let digest = wire
        .digest
        .as_ref()
        .try_into()
        .map(TermsDigest)
        .map_err(|_| "terms.digest")?;
    let conflict_policy = match wire::ConflictPolicy::try_from(wire.conflict_policy) {
        Ok(wire::ConflictPolicy::Fail) => ConflictPolicy::Fail,
        Ok(wire::ConflictPolicy::AdoptIfEqual) => ConflictPolicy::AdoptIfEqual,
        Ok(wire::ConflictPolicy::Overwrite) => ConflictPolicy::Overwrite,
        Ok(wire::ConflictPolicy::Unspecified) | Err(_) => return Err("terms.conflict_policy"),
    };
    let drift_policy = match wire::DriftPolicy::try_from(wire.drift_policy) {
        Ok(wire::DriftPolicy::Correct) => DriftPolicy::Correct,
        Ok(wire::DriftPolicy::Report) => DriftPolicy::Report,
        Ok(wire::DriftPolicy::Unspecified) | Err(_) => return Err("terms.drift_policy"),
    };
    let immutable_policy = match wire::ImmutablePolicy::try_from(wire.immutable_policy) {
        Ok(wire::ImmutablePolicy::Unspecified | wire::ImmutablePolicy::Report) => {
            ImmutablePolicy::Report
        }
        Ok(wire::ImmutablePolicy::Recreate) => ImmutablePolicy::Recreate,
        Err(_) => return Err("terms.immutable_policy"),
    };
    let propagation = match wire::Propagation::try_from(wire.propagation) {
        Ok(wire::Propagation::Unspecified | wire::Propagation::Background) => {
            Propagation::Background
        }
        Ok(wire::Propagation::Foreground) => Propagation::Foreground,
        Ok(wire::Propagation::Orphan) => Propagation::Orphan,
        Err(_) => return Err("terms.propagation"),
    };
    let ignored = wire.ignore_fields.iter().map(|text| {
        FieldPath::parse(text)
            .filter(|_| is_plain_text(text))
            .ok_or("terms.ignore_fields")
    });
    let terms = Terms {
        rule: rule_name(wire.rule)?,
        created_at: wire.created_at,
        namespaces: wire.namespaces.map(namespace_choice).transpose()?,
        create_namespaces: wire.create_namespaces,
        conflict_policy,
        drift_policy,
        deletion_policy: deletion_policy(wire.deletion_policy)
            .map_err(|_| "terms.deletion_policy")?,
        propagation,
        suspend: wire.suspend,
        enforcement: match wire::Enforcement::try_from(wire.enforcement) {
            Ok(wire::Enforcement::Unspecified | wire::Enforcement::Enforce) => Enforcement::Enforce,
            Ok(wire::Enforcement::DryRun) => Enforcement::DryRun,
            Err(_) => return Err("terms.enforcement"),
        },
        immutable_policy,
        ignore_fields: ignored.collect::<Result<_, _>>()?,
        versions: (wire.versions > 0).then_some(wire.versions),
        feedback: wire
            .feedback
            .into_iter()
            .take(FEEDBACK_LIMIT)
            .map(feedback)
            .collect::<Result<_, _>>()?,
        grants: wire
            .grants
            .map(|wire| wire.grants.into_iter().map(grant).collect())
            .transpose()?,
    };
    Ok((terms, digest))
}

pub(super) fn terms_to_wire(terms: &Terms, digest: &TermsDigest) -> wire::Terms {
    let conflict_policy = match terms.conflict_policy {
        ConflictPolicy::Fail => wire::ConflictPolicy::Fail,
        ConflictPolicy::AdoptIfEqual => wire::ConflictPolicy::AdoptIfEqual,
        ConflictPolicy::Overwrite => wire::ConflictPolicy::Overwrite,
    };
    let drift_policy = match terms.drift_policy {
        DriftPolicy::Correct => wire::DriftPolicy::Correct,
        DriftPolicy::Report => wire::DriftPolicy::Report,
    };
    let immutable_policy = match terms.immutable_policy {
        ImmutablePolicy::Report => wire::ImmutablePolicy::Report,
        ImmutablePolicy::Recreate => wire::ImmutablePolicy::Recreate,
    };
    wire::Terms {
        rule: Some(rule_name_to_wire(&terms.rule)),
        created_at: terms.created_at,
        namespaces: terms.namespaces.as_ref().map(namespace_choice_to_wire),
        create_namespaces: terms.create_namespaces,
        conflict_policy: conflict_policy as i32,
        drift_policy: drift_policy as i32,
        deletion_policy: deletion_policy_to_wire(terms.deletion_policy),
        suspend: terms.suspend,
        enforcement: match terms.enforcement {
            Enforcement::Enforce => wire::Enforcement::Enforce,
            Enforcement::DryRun => wire::Enforcement::DryRun,
        } as i32,
        immutable_policy: immutable_policy as i32,
        propagation: match terms.propagation {
            Propagation::Background => wire::Propagation::Background,
            Propagation::Foreground => wire::Propagation::Foreground,
            Propagation::Orphan => wire::Propagation::Orphan,
        } as i32,
        ignore_fields: terms
            .ignore_fields
            .iter()
            .map(ToString::to_string)
            .collect(),
        versions: terms.versions.unwrap_or_default(),
        feedback: terms.feedback.iter().map(feedback_to_wire).collect(),
        digest: digest.0.to_vec().into(),
        grants: terms.grants.as_ref().map(|grants| wire::Grants {
            grants: grants.iter().map(grant_to_wire).collect(),
        }),
    }
}

fn feedback(wire: wire::Feedback) -> Result<FeedbackField, Unreadable> {
    let is_resource = !wire.resource.is_empty() && is_plain_token(&wire.resource);
    let is_name = !wire.name.is_empty() && wire.name.len() <= FEEDBACK_NAME_LIMIT;
    let path = JsonPath::parse(&wire.json_path);
    let path = path.filter(|_| is_resource && is_name && is_plain_text(&wire.name));
    Ok(FeedbackField {
        path: path.ok_or("terms.feedback")?,
        resource: wire.resource.into(),
        name: wire.name.into(),
    })
}

fn feedback_to_wire(field: &FeedbackField) -> wire::Feedback {
    wire::Feedback {
        resource: field.resource.to_string(),
        name: field.name.to_string(),
        json_path: field.path.to_string(),
    }
}

/// Reads the values of one copy. Names and values are cut to their limits.
pub(super) fn feedback_values(wire: Vec<wire::FeedbackValue>) -> Vec<FeedbackValue> {
    let values = wire.into_iter().take(FEEDBACK_LIMIT);
    values
        .map(|wire| FeedbackValue {
            name: plain_text(&wire.name, FEEDBACK_NAME_LIMIT).into(),
            value: plain_text(&wire.value, FEEDBACK_VALUE_LIMIT).into(),
        })
        .collect()
}

pub(super) fn feedback_values_to_wire(values: &[FeedbackValue]) -> Vec<wire::FeedbackValue> {
    let values = values.iter().take(FEEDBACK_LIMIT);
    values
        .map(|value| wire::FeedbackValue {
            name: plain_text(&value.name, FEEDBACK_NAME_LIMIT),
            value: plain_text(&value.value, FEEDBACK_VALUE_LIMIT),
        })
        .collect()
}

fn grant(wire: wire::Grant) -> Result<Grant, Unreadable> {
    let resources = wire
        .resources
        .into_iter()
        .map(|resource| short_text(resource, NAME_LIMIT, "grants.resources"));
    Ok(Grant {
        resources: resources.collect::<Result<_, _>>()?,
        namespaces: wire.namespaces.map(namespace_choice).transpose()?,
        overwrite: wire.overwrite,
        create_namespaces: wire.create_namespaces,
        adopt: wire.adopt,
        max_copies: wire.max_copies,
        max_bytes: wire.max_bytes,
    })
}

fn grant_to_wire(grant: &Grant) -> wire::Grant {
    wire::Grant {
        resources: grant.resources.clone(),
        namespaces: grant.namespaces.as_ref().map(namespace_choice_to_wire),
        overwrite: grant.overwrite,
        create_namespaces: grant.create_namespaces,
        adopt: grant.adopt,
        max_copies: grant.max_copies,
        max_bytes: grant.max_bytes,
    }
}

fn patterns(names: Vec<String>, part: Unreadable) -> Result<Vec<Pattern>, Unreadable> {
    names
        .into_iter()
        .map(|name| short_text(name, NAME_LIMIT, part).map(Pattern::new))
        .collect()
}

fn namespace_choice(wire: wire::NamespaceChoice) -> Result<NamespaceChoice, Unreadable> {
    Ok(NamespaceChoice {
        names: patterns(wire.names, "namespaces.names")?,
        selector: wire.selector.map(selector).transpose()?,
        exclude: patterns(wire.exclude, "namespaces.exclude")?,
    })
}

fn namespace_choice_to_wire(choice: &NamespaceChoice) -> wire::NamespaceChoice {
    let texts = |patterns: &[Pattern]| {
        patterns
            .iter()
            .map(|pattern| pattern.as_str().to_owned())
            .collect()
    };
    wire::NamespaceChoice {
        names: texts(&choice.names),
        selector: choice.selector.as_ref().map(selector_to_wire),
        exclude: texts(&choice.exclude),
    }
}

fn selector(wire: wire::LabelSelector) -> Result<Selector, Unreadable> {
    let requirements = wire
        .requirements
        .into_iter()
        .map(requirement)
        .collect::<Result<_, _>>()?;
    Ok(Selector { requirements })
}

fn requirement(wire: wire::Requirement) -> Result<Requirement, Unreadable> {
    let operator = match wire::Operator::try_from(wire.operator) {
        Ok(wire::Operator::In) => Operator::In,
        Ok(wire::Operator::NotIn) => Operator::NotIn,
        Ok(wire::Operator::Exists) => Operator::Exists,
        Ok(wire::Operator::DoesNotExist) => Operator::DoesNotExist,
        Ok(wire::Operator::Unspecified) | Err(_) => return Err("selector.operator"),
    };
    let values = wire
        .values
        .into_iter()
        .map(|value| text_or_empty(value, LABEL_LIMIT, "selector.values"));
    Ok(Requirement {
        key: short_text(wire.key, LABEL_LIMIT, "selector.key")?,
        operator,
        values: values.collect::<Result<_, _>>()?,
    })
}

fn selector_to_wire(selector: &Selector) -> wire::LabelSelector {
    let requirement = |requirement: &Requirement| wire::Requirement {
        key: requirement.key.clone(),
        operator: match requirement.operator {
            Operator::In => wire::Operator::In,
            Operator::NotIn => wire::Operator::NotIn,
            Operator::Exists => wire::Operator::Exists,
            Operator::DoesNotExist => wire::Operator::DoesNotExist,
        } as i32,
        values: requirement.values.clone(),
    };
    wire::LabelSelector {
        requirements: selector.requirements.iter().map(requirement).collect(),
    }
}

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
