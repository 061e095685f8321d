//! Maps errors of the API server to errors of one copy.
//!
//! Messages contain no content. The server may quote values in its message, so the agent uses only
//! the path of a field and well-known words from it.
use std::time::Duration;

use kube_core::Status;
use kube_core::response::StatusDetails;
use runnel_proto::json_nodes::{MANAGED_FIELDS_NODES, OBJECT_NODES};
use runnel_proto::model::{Kind, NAMESPACES, Reason, Scope, SourceRef, clip, split_resource};

use crate::copy::CopyError;
use crate::policy::{Area, ServiceAccount};

/// Limit of the causes of one refusal whose fields are read.
const REFUSED_FIELDS: usize = 20;

/// The error of a request.
pub enum CallError {
    /// The server refused the request.
    Refused(Box<Status>),
    /// The server is throttling requests, and asks for this delay.
    Throttled(Duration),
    /// The request was not sent: another agent may be the active one.
    NotActive,
    /// The answer has an object that is not decoded: it has too many values, or is nested too deeply.
    TooLarge,
    /// The answer is not what was requested.
    Unreadable,
    /// There was no answer.
    Unanswered,
}

/// How the messages of the admission policy of the agent's chart begin that are about an object of others.
pub const FOREIGN_CHANGE: &str = "the agent of Runnel changes ";

/// How API servers refuse a node port or an address that an object has.
const ALLOCATED: &str = "already allocated";

/// Limit of the delay that the server may ask for. A longer delay would stop the agent.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

impl CallError {
    /// Returns the HTTP status, 0 for none.
    pub fn code(&self) -> u16 {
        match self {
            Self::Refused(status) => status.code,
            Self::Throttled(_) => 429,
            Self::NotActive | Self::TooLarge | Self::Unreadable | Self::Unanswered => 0,
        }
    }

    /// Returns the delay before the next try that the server asks for.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Throttled(after) => Some((*after).min(LONGEST_WAIT)),
            _ => None,
        }
    }

    /// Whether a precondition (uid, resourceVersion) was not met: another client was faster.
    pub fn is_race(&self) -> bool {
        let Self::Refused(status) = self else {
            return false;
        };
        let on_uid = || causes(status).any(|(_, field, _)| field == "metadata.uid");
        status.code == 409 || (status.code == 422 && on_uid())
    }

    /// Whether the API server reports this object as not found. Another 404 may come from a proxy
    /// without a backend, and the missing namespace of an object is another case.
    pub fn is_absent(&self, copy: &SourceRef) -> bool {
        let Self::Refused(status) = self else {
            return false;
        };
        let is_kind = |kind: &str| kind != NAMESPACES || copy.as_namespace().is_some();
        let names = |details: &StatusDetails| details.name == *copy.name && is_kind(&details.kind);
        status.code == 404
            && status.reason == "NotFound"
            && status.details.as_ref().is_some_and(names)
    }
}

impl CallError {
    /// Whether the API server does not know the kind: it answers 404 without the name of an object.
    pub fn is_unserved(&self) -> bool {
        let Self::Refused(status) = self else {
            return false;
        };
        let names_object = |details: &StatusDetails| !details.name.is_empty();
        status.code == 404
            && !is_namespace(status)
            && !status.details.as_ref().is_some_and(names_object)
    }

    /// Returns the refused fields, as the names that lead to them. Items of lists, and keys in brackets, are left out.
    pub fn refused_fields(&self) -> Vec<Vec<&str>> {
        let Self::Refused(status) = self else {
            return vec![];
        };
        let causes = causes(status).take(REFUSED_FIELDS);
        let mut fields: Vec<_> = causes.map(|(_, field, _)| names_in(field)).collect();
        fields.sort();
        fields.dedup();
        fields
    }

    /// Whether an apply cannot be merged because the agent applied the object in another version of its kind before.
    pub fn is_of_other_version(&self) -> bool {
        let is_worded = |text: &str| CONVERSION.iter().any(|words| text.contains(words));
        matches!(self, Self::Refused(status) if is_worded(&status.message))
    }

    /// Whether a node port or an address is refused because an object has it.
    pub fn is_allocated(&self) -> bool {
        matches!(self, Self::Refused(status) if status.message.contains(ALLOCATED))
    }

    /// Whether the admission policy of the agent's chart refused a change of an object that Runnel did not create.
    pub fn is_foreign_change(&self) -> bool {
        matches!(self, Self::Refused(status) if status.message.contains(FOREIGN_CHANGE))
    }

    /// Whether an admission webhook cannot be called for a dry run.
    pub fn refuses_dry_run(&self) -> bool {
        matches!(self, Self::Refused(status) if status.code == 400
            && status.message.contains("does not support dry run"))
    }
}

/// Returns the error of the copies of a kind that this cluster does not serve.
pub fn not_served(resource: &str) -> CopyError {
    let message = format!(
        "this cluster does not serve {resource}: install its CustomResourceDefinition here, or leave the kind out of the rule"
    );
    CopyError::new(Reason::KindNotServed, message)
}

/// Returns the error of a copy that is to be removed while its kind is not served.
pub fn removal_waits_for_kind(resource: &str) -> CopyError {
    let message = format!(
        "this cluster does not serve {resource} now, and its objects may still exist: the copy is removed when the kind is \
         served again; the removal ends when its CustomResourceDefinition is deleted"
    );
    CopyError::new(Reason::KindNotServed, message)
}

/// Returns the error of a removal of a copy whose kind the member's policy allows no more: with the kind, the agent has lost its
/// rights on the copy.
pub fn removal_of_closed_kind(resource: &str) -> CopyError {
    let message = format!(
        "this member's policy no longer allows {resource} (kinds), nor their removal: the copy may still be there, and is removed when \
         the policy allows the kind again"
    );
    CopyError::new(Reason::Denied, message)
}

/// Returns the error of the copies of a kind whose definition is distributed to this cluster, too, and that is not served yet.
pub fn waits_for_definition(resource: &str) -> CopyError {
    let message = format!(
        "waits until this cluster serves {resource}: its CustomResourceDefinition is distributed, too"
    );
    CopyError::new(Reason::WaitingForDependency, message)
}

/// Returns the error of a copy whose source the hub has read in a version that this cluster does not serve.
pub fn version_not_served(resource: &str, version: &str) -> CopyError {
    let message = format!(
        "this cluster does not serve {resource} in version {version}, in which the hub has read the source: install a \
         CustomResourceDefinition with this version here"
    );
    CopyError::new(Reason::KindNotServed, message)
}

/// Returns the error of the copies of a kind that this cluster serves in the other scope than the policy, or the hub, has it.
pub fn other_scope(kind: &Kind) -> CopyError {
    let message = match kind.scope {
        Scope::Cluster => format!(
            "{kind} have no namespace in this cluster: name them in clusterKinds of this member's policy, and select them by a \
             ClusterDistributionRule"
        ),
        Scope::Namespaced => format!(
            "{kind} are in namespaces in this cluster: name them in kinds of this member's policy, and not in clusterKinds"
        ),
    };
    CopyError::new(Reason::KindNotServed, message)
}

/// Returns the error of the copy of a kind for a failed request. `account`: the account under which the copy is written, if it
/// is not the agent's own.
pub fn kind_error(kind: &Kind, error: &CallError, account: Option<&ServiceAccount>) -> CopyError {
    if kind.content.is_owned() && error.is_unserved() {
        not_served(&kind.resource)
    } else if let Some(role) = missing_role(kind, error) {
        let message = format!("waits for {role}, which it binds and which does not exist here");
        CopyError::new(Reason::WaitingForDependency, message)
    } else {
        write_error(error, account)
    }
}

/// Returns the error of a copy for a failed request, which may be one under another account than the agent's.
pub fn write_error(error: &CallError, account: Option<&ServiceAccount>) -> CopyError {
    let CallError::Refused(status) = error else {
        return copy_error(error);
    };
    let lacks_right = |account| lacks_right(status, Some(account));
    account
        .filter(|_| status.code == 403)
        .and_then(lacks_right)
        .unwrap_or_else(|| copy_error(error))
}

/// Returns the error of the copy for a failed request.
pub fn copy_error(error: &CallError) -> CopyError {
    match error {
        CallError::Refused(status) => refused(status),
        CallError::Throttled(_) => CopyError::new(
            Reason::Unavailable,
            "this cluster's API server throttles requests (429)",
        ),
        CallError::NotActive => CopyError::new(
            Reason::Unavailable,
            "this agent does not hold its Lease: another one may be the active one, or the Lease cannot be renewed",
        ),
        CallError::TooLarge => {
            let message = format!(
                "the object here has more than {OBJECT_NODES} JSON values, or more than {MANAGED_FIELDS_NODES} in its managedFields, \
                 or is nested too deeply, so that the agent does not decode it: remove what other clients added, or delete it"
            );
            CopyError::new(Reason::TooLarge, message)
        }
        CallError::Unreadable => CopyError::new(
            Reason::Unavailable,
            "the agent cannot read the answer of this cluster's API server: it may come from a proxy before it",
        ),
        CallError::Unanswered => CopyError::new(
            Reason::Unavailable,
            "this cluster's API server did not answer",
        ),
    }
}

fn refused(status: &Status) -> CopyError {
    match status.code {
        401 => CopyError::new(
            Reason::Forbidden,
            "this cluster's API server does not accept the agent's credentials (401)",
        ),
        403 => forbidden(status),
        404 if is_namespace(status) => CopyError::new(
            Reason::Unavailable,
            "the target namespace does not exist any more (404)",
        ),
        404 => {
            let message = "a 404 answer names no object: it may come from a proxy before this cluster's API server";
            CopyError::new(Reason::Unavailable, message)
        }
        413 => CopyError::new(
            Reason::TooLarge,
            "the object is larger than this cluster's API server accepts (413)",
        ),
        400 | 422 => invalid(status),
        code => worded(&status.message).unwrap_or_else(|| {
            let message = format!("this cluster's API server answered with status {code}");
            CopyError::new(Reason::Unavailable, message)
        }),
    }
}

/// How API servers and etcd word that an object is too large, whatever the code of the answer is.
const LARGE: [&str; 3] = [
    "request is too large",
    "Request entity too large",
    "trying to send message larger than max",
];

/// How API servers word that what a manager applied cannot be read in the version of its apply.
const CONVERSION: [&str; 2] = ["failed to prune fields", "failed to convert merged object"];

/// How API servers word that an apply cannot be merged. Their code is 500.
const UNMERGEABLE: [&str; 6] = [
    "failed to create typed ",
    "failed to convert ",
    "failed to prune fields",
    "failed to merge ",
    "field not declared in schema",
    "duplicate entries for key",
];

/// Returns the error of a refusal that has a fixed wording: codes such as 500 do not distinguish it from a failure of the API server.
fn worded(text: &str) -> Option<CopyError> {
    let has = |words: &[&str]| words.iter().any(|words| text.contains(words));
    if let Some(denied) = denied(text) {
        Some(denied)
    } else if has(&LARGE) {
        let message = "the object is larger than this cluster's etcd or its API server accepts";
        Some(CopyError::new(Reason::TooLarge, message))
    } else if let Some((_, rest)) = text.split_once("failed calling webhook") {
        let name = plain_name(rest.trim_start_matches([' ', '"']), '"');
        Some(webhook_error("admission", name))
    } else if let Some((_, rest)) = text.split_once("conversion webhook for ") {
        Some(webhook_error("conversion", plain_name(rest, ',')))
    } else {
        has(&UNMERGEABLE).then(|| unmergeable(text))
    }
}

/// Returns the error of a write for which the API server cannot call a webhook.
fn webhook_error(what: &str, name: Option<&str>) -> CopyError {
    let name = name.map(|name| format!(" {name}")).unwrap_or_default();
    let message = format!(
        "this cluster's API server cannot call the {what} webhook{name}, and refuses the object until it can: check the Service and \
         the pods of the webhook"
    );
    CopyError::new(Reason::WebhookUnavailable, message)
}

/// Limit of the fields that one error names.
const NAMED_FIELDS: usize = 3;

/// Returns the error of an apply that the API server cannot merge: `PATH: WORDS` in one or several lines, after a prefix. The words may
/// quote values.
fn unmergeable(text: &str) -> CopyError {
    let problem = |line: &str| {
        let line = line
            .split_once("): ")
            .map_or(line, |(_, rest)| rest)
            .trim_start();
        let (path, words) = merge_path(line)?;
        let words = words.strip_prefix(": ")?;
        // Other lines may be those of a value.
        if words == "field not declared in schema" {
            Some(format!("the member does not know `{path}`"))
        } else if words.starts_with("duplicate entries for key ") {
            Some(format!("two items of `{path}` have the same key"))
        } else if let Some(expected) = words.strip_prefix("expected ") {
            let mut types = ["string", "numeric", "boolean", "map", "list"].into_iter();
            let expected = types.find(|name| expected.starts_with(name));
            let expected = expected.unwrap_or("another one");
            Some(format!("`{path}` has the wrong type: expected {expected}"))
        } else {
            let (_, field) = words.split_once("has an element that omits key field \"")?;
            let field = plain_name(field, '"')?;
            let item = words.starts_with("element ");
            item.then(|| format!("an item of `{path}` lacks its key field {field}"))
        }
    };
    let problems: Vec<_> = text
        .lines()
        .filter_map(problem)
        .take(NAMED_FIELDS)
        .collect();
    let hint = if text.contains("field not declared in schema") {
        "; correct the field if its name is wrong; if not, its Kubernetes or CustomResourceDefinition has another version than \
         the hub's: update it, or leave the field out (transform.removeFields)"
    } else {
        ""
    };
    let message = if problems.is_empty() {
        "this cluster's API server cannot merge the object, or convert it between versions"
            .to_owned()
    } else {
        format!("{}{hint}", problems.join("; "))
    };
    CopyError::new(Reason::Invalid, message)
}

/// Returns the names of fields in a path such as `spec.ports[0].name`.
fn names_in(path: &str) -> Vec<&str> {
    let mut depth = 0;
    let is_between = |c: char| {
        let is_within = depth > 0;
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            _ => {}
        }
        is_within || matches!(c, '[' | ']' | '.')
    };
    let names = path.split(is_between);
    names.filter(|name| !name.is_empty()).collect()
}

/// Splits the path of a field from what is said about it. The path has the names of fields only: neither keys of items nor those of
/// `data`.
fn merge_path(line: &str) -> Option<(String, &str)> {
    let mut path = String::new();
    let mut rest = line.strip_prefix('.')?;
    loop {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '/' | '$');
        let (name, after) = rest.split_at(rest.find(|c| !plain(c)).unwrap_or(rest.len()));
        path.push_str(name);
        rest = after;
        if !rest.starts_with('[') {
            break;
        }
        let mut is_quoted = false;
        let end = rest.char_indices().find(|(_, c)| {
            is_quoted ^= *c == '"';
            *c == ']' && !is_quoted
        });
        rest = rest.split_at(end?.0 + 1).1;
        path.push_str("[]");
    }
    let path = match path.split_once('.') {
        Some((map @ ("data" | "binaryData" | "stringData"), _)) => map,
        _ => clip(&path, 100),
    };
    Some((format!(".{path}"), rest))
}

fn forbidden(status: &Status) -> CopyError {
    let text = status.message.as_str();
    if causes(status).any(|(reason, ..)| reason == "NamespaceTerminating") {
        return CopyError::new(
            Reason::NamespaceTerminating,
            "the target namespace is being deleted",
        );
    }
    if text.contains("exceeded quota") {
        return CopyError::new(
            Reason::Denied,
            "a resource quota of the namespace is used up (403)",
        );
    }
    if let Some(denied) = denied(text) {
        return denied;
    }
    if let Some(copy_error) = lacks_right(status, None) {
        return copy_error;
    }
    if text.contains(" cannot ") {
        let message = "the agent lacks a right here (403): grant it the rights of its chart";
        return CopyError::new(Reason::Forbidden, message);
    }
    CopyError::new(
        Reason::Denied,
        "an admission rule of this cluster refused it (403)",
    )
}

/// How an API server words that the writer of a role or of a binding lacks rights that it would give.
const ESCALATION: &str = "attempting to grant RBAC permissions not currently held";

/// Returns the error if the agent, or the account under which it writes, lacks a right.
fn lacks_right(status: &Status, account: Option<&ServiceAccount>) -> Option<CopyError> {
    let text = status.message.as_str();
    if text.contains(ESCALATION) {
        let message = match account {
            Some(account) => format!(
                "ServiceAccount {account} (policy.impersonate) lacks rights that this object gives, and no account may give more than \
                 it has (403): take these rights out of the source, or give them to that account"
            ),
            None => "the agent lacks rights that this object gives, and no account may give more than it has (403): take these \
                     rights out of the source, or allow roles.rbac.authorization.k8s.io in the member's policy, too"
                .to_owned(),
        };
        return Some(CopyError::new(Reason::Forbidden, message));
    }
    let missing = Missing::read(text)?;
    let message = match account {
        Some(account) if missing.verb == "impersonate" => missing.sentence_about(account),
        Some(account) if missing.user == Some(account.user()) => missing.sentence_of(account),
        _ => missing.sentence(),
    };
    Some(CopyError::new(Reason::Forbidden, message))
}

/// Returns the error of the copies whose watch is forbidden.
pub fn refused_watch(status: &Status, area: &Area) -> CopyError {
    let missing = Missing::read(&status.message).unwrap_or_else(|| Missing::of_watch(area));
    CopyError::new(Reason::Forbidden, missing.sentence())
}

/// Returns the error of the copies whose kind, or whose namespaces, could not be listed yet.
/// `status`: the HTTP status, 0 for no answer.
pub fn lost_watch(resource: &str, status: u16) -> CopyError {
    let (name, _) = split_resource(resource);
    match status {
        403 => {
            let message = format!(
                "the agent lacks the right to list and watch {name} (403): grant it the rights of its chart; check with \
                 `kubectl auth can-i list {name} --as=system:serviceaccount:NAMESPACE:runnel-agent`"
            );
            CopyError::new(Reason::Forbidden, message)
        }
        0 => CopyError::new(
            Reason::Unavailable,
            format!("this cluster's API server does not answer a list of {name}"),
        ),
        code => {
            let message = format!(
                "this cluster's API server answers a list of {name} with status {code}: see its log; \
                 `kubectl get {name} -A` shows the cause"
            );
            CopyError::new(Reason::Unavailable, message)
        }
    }
}

/// How API servers word that a field cannot be changed.
const IMMUTABLE: [&str; 7] = [
    "is immutable",
    "may not be changed",
    "may not change fields other than",
    "may not change once set",
    "cannot change roleRef",
    "updates to statefulset spec for fields other than",
    "are forbidden after creation",
];

/// Returns the error of a copy that cannot be changed to its content, and could be created with it.
pub fn immutable() -> CopyError {
    let message = "the object or one of its fields is immutable and cannot be changed: delete the copy, and it is created again, or \
                   set immutablePolicy: Recreate";
    CopyError::new(Reason::Immutable, message)
}

fn invalid(status: &Status) -> CopyError {
    if let Some(refusal) = worded(&status.message) {
        return refusal;
    }
    let is_immutable = |text: &str| IMMUTABLE.iter().any(|words| text.contains(words));
    if causes(status).any(|(_, _, text)| is_immutable(text)) || is_immutable(&status.message) {
        return immutable();
    }
    if causes(status).any(|(_, _, text)| text.starts_with("Too long")) {
        return CopyError::new(
            Reason::TooLarge,
            "the object is larger than this cluster's API server accepts (422)",
        );
    }
    let fields: Vec<_> = causes(status)
        .take(3)
        .map(|(reason, field, _)| format!("{}: {}", path(field), camel_case_reason(reason)))
        .collect();
    let code = status.code;
    let message = if fields.is_empty() {
        format!("this cluster's API server refused the object ({code})")
    } else {
        format!(
            "this cluster's API server refused the object ({code}): {}",
            fields.join(", ")
        )
    };
    CopyError::new(Reason::Invalid, message)
}

/// Returns the error for a denial by a webhook or an admission policy, with its name.
fn denied(text: &str) -> Option<CopyError> {
    let named = |before, quote| plain_name(text.split_once(before)?.1, quote);
    let (what, name) = if text.contains("denied the request") {
        ("admission webhook", named("admission webhook \"", '"'))
    } else if text.contains("denied request") {
        (
            "admission policy",
            named("ValidatingAdmissionPolicy '", '\''),
        )
    } else {
        return None;
    };
    let name = name.map(|name| format!(" {name}")).unwrap_or_default();
    Some(CopyError::new(
        Reason::Denied,
        format!("the {what}{name} of this cluster refused it"),
    ))
}

/// Returns the name before this character, if it is plain.
fn plain_name(text: &str, end: char) -> Option<&str> {
    let name = text.split(end).next()?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-./".contains(&byte);
    ((1..=100).contains(&name.len()) && name.bytes().all(plain)).then_some(name)
}

fn is_namespace(status: &Status) -> bool {
    status
        .details
        .as_ref()
        .is_some_and(|details| details.kind == NAMESPACES)
}

/// Returns the role that an answer to the write of a binding reports as missing, if its name is plain.
///
/// The API server reads the role where the writer may not `bind`. Its answer has the name of the role, and usually the kind of
/// the request. It is not about the binding, which an apply creates.
fn missing_role(kind: &Kind, error: &CallError) -> Option<String> {
    let CallError::Refused(status) = error else {
        return None;
    };
    let is_binding = matches!(&*kind.plural, "rolebindings" | "clusterrolebindings");
    let details = status.details.as_ref();
    let details = details.filter(|_| status.code == 404 && is_binding)?;
    let named = match details.kind.as_str() {
        "roles" => "role",
        "clusterroles" => "clusterrole",
        "rolebindings" | "clusterrolebindings" => "the role",
        _ => return None,
    };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte);
    let name = details.name.as_str();
    let fits = (1..=253).contains(&name.len()) && name.bytes().all(is_plain);
    fits.then(|| format!("{named} {name}"))
}

/// Returns reason, field and text of each cause.
fn causes(status: &Status) -> impl Iterator<Item = (&str, &str, &str)> {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    causes.map(|cause| {
        (
            cause.reason.as_str(),
            cause.field.as_str(),
            cause.message.as_str(),
        )
    })
}

/// Returns a field's path without map keys, which the user chooses.
fn path(field: &str) -> String {
    let known = field.split(['[', '(']).next().unwrap_or_default();
    let safe: String = known
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || *c == '.')
        .take(60)
        .collect();
    // In `data.KEY`, only `data` is part of the schema.
    match safe.split_once('.') {
        Some((map @ ("data" | "binaryData" | "stringData"), _)) => map.to_owned(),
        _ => safe,
    }
}

/// Returns one of the server's CamelCase reasons without other characters.
fn camel_case_reason(reason: &str) -> String {
    let safe: String = reason
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .take(40)
        .collect();
    if safe.is_empty() {
        "refused".to_owned()
    } else {
        safe
    }
}

/// The verbs of the agent for copies, as in the Roles of its chart.
const VERBS: &str = "get,list,watch,create,patch,delete";

/// The verbs of an account under which the agent writes copies.
const WRITES: &str = "create,patch,delete";

/// A missing permission, as the API server reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    verb: String,
    resource: String,
    /// `None` for the scope of the cluster.
    namespace: Option<String>,
    user: Option<String>,
}

impl Missing {
    /// Parses the message of the API server. Returns `None` for any other text. It uses only words
    /// that are plain names.
    pub fn read(text: &str) -> Option<Self> {
        let (before, after) = text.split_once("\" cannot ")?;
        let user = before.rsplit_once("User \"")?.1;
        let (verb, after) = after.split_once(" resource \"")?;
        let (plural, after) = after.split_once('"')?;
        let group = after.strip_prefix(" in API group \"");
        let group = group.and_then(|after| after.split_once('"'));
        let resource = match group {
            Some((group, _)) if !group.is_empty() => format!("{plural}.{group}"),
            _ => plural.to_owned(),
        };
        let namespace = match after.split_once(" in the namespace \"") {
            Some((_, after)) => Some(after.split_once('"')?.0.to_owned()),
            None if after.contains(" at the cluster scope") => None,
            None => return None,
        };
        let plain = |text: &str, limit| {
            (1..=limit).contains(&text.len())
                && text
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"-._:@".contains(&byte))
        };
        let whole = plain(verb, 20)
            && plain(&resource, 100)
            && namespace.as_deref().is_none_or(|name| plain(name, 63));
        whole.then(|| Self {
            verb: verb.to_owned(),
            resource,
            namespace,
            user: plain(user, 200).then(|| user.to_owned()),
        })
    }

    /// Returns the permission to watch an area.
    pub fn of_watch(area: &Area) -> Self {
        let namespace = area.namespace.as_ref().map(ToString::to_string);
        Self {
            verb: "watch".to_owned(),
            resource: area.resource.to_string(),
            namespace,
            user: None,
        }
    }

    /// Returns the message for a person: the missing permission, and the commands that grant it.
    ///
    /// The names differ from those of the chart's own Roles, so that a later chart does not collide
    /// with them. A `;` separates the commands, so that an existing object does not prevent the
    /// second one.
    pub fn sentence(&self) -> String {
        self.sentence_with("the agent", "runnel-agent", VERBS, &self.subject())
    }

    /// Returns the message for a person if an account under which the agent writes lacks the permission.
    pub fn sentence_of(&self, account: &ServiceAccount) -> String {
        let user = format!("ServiceAccount {account} (policy.impersonate)");
        let (namespace, name) = (&account.namespace, &account.name);
        let subject = format!("--serviceaccount={namespace}:{name}");
        self.sentence_with(&user, name, WRITES, &subject)
    }

    /// Returns the message about a user who lacks the permission. `prefix`: how the name of the role begins. `verbs`: those of
    /// the role, except for namespaces. `subject`: the argument that names the user.
    fn sentence_with(&self, user: &str, prefix: &str, verbs: &str, subject: &str) -> String {
        let Self { verb, resource, .. } = self;
        let name = format!("{prefix}-{}", split_resource(resource).0);
        let verbs = if resource == NAMESPACES { verb } else { verbs };
        let (place, role, at) = self.scope();
        format!(
            "{user} may not {verb} {resource} {place}; to grant it: \
             kubectl create {role} {name}{at} --verb={verbs} --resource={resource}; \
             kubectl create {role}binding {name}{at} --{role}={name} {subject}"
        )
    }

    /// Returns the message for a person if the agent may not write under an account.
    pub fn sentence_about(&self, account: &ServiceAccount) -> String {
        let (namespace, account_name) = (&account.namespace, &account.name);
        let name = format!("runnel-agent-as-{account_name}");
        let subject = self.subject();
        format!(
            "the agent may not write as ServiceAccount {account} (policy.impersonate); to grant it: \
             kubectl create role {name} -n {namespace} --verb=impersonate --resource=serviceaccounts \
             --resource-name={account_name}; \
             kubectl create rolebinding {name} -n {namespace} --role={name} {subject}"
        )
    }

    /// Returns where the permission is missing, the kind of role that grants it, and the arguments for its namespace.
    fn scope(&self) -> (String, &'static str, String) {
        match &self.namespace {
            Some(namespace) => (
                format!("in namespace {namespace}"),
                "role",
                format!(" -n {namespace}"),
            ),
            None => (
                "in the whole cluster".to_owned(),
                "clusterrole",
                String::new(),
            ),
        }
    }

    /// Returns the argument that names the user who lacks the permission.
    fn subject(&self) -> String {
        let user = self.user.as_deref();
        match user.map(|user| (user, user.strip_prefix("system:serviceaccount:"))) {
            Some((_, Some(account))) => format!("--serviceaccount={account}"),
            Some((user, None)) => format!("--user={user}"),
            None => "--serviceaccount=NAMESPACE:runnel-agent".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use runnel_proto::model::Scope;
    use serde_json::json;

    use super::*;

    fn status(code: u16, message: &str, causes: serde_json::Value) -> CallError {
        let details = json!({"causes": causes});
        let status = json!({"code": code, "message": message, "reason": "X", "details": details});
        CallError::Refused(serde_json::from_value(status).unwrap())
    }

    #[test]
    fn each_answer_has_its_reason() {
        let none = json!([]);
        let terminating =
            json!([{"reason": "NamespaceTerminating", "field": "metadata.namespace"}]);
        let immutable = json!([{"reason": "FieldValueForbidden", "field": "data", "message": "Forbidden: field is immutable when `immutable` is set"}]);
        let cases = [
            (
                status(403, "unable to create new content", terminating),
                Reason::NamespaceTerminating,
            ),
            (
                status(
                    403,
                    "secrets is forbidden: User \"x\" cannot patch resource",
                    none.clone(),
                ),
                Reason::Forbidden,
            ),
            (
                status(
                    403,
                    "exceeded quota: q, requested: count/secrets=1",
                    none.clone(),
                ),
                Reason::Denied,
            ),
            (
                status(
                    400,
                    "admission webhook \"a.b.c\" denied the request: secret",
                    none.clone(),
                ),
                Reason::Denied,
            ),
            (
                status(
                    422,
                    "x is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no",
                    none.clone(),
                ),
                Reason::Denied,
            ),
            (status(422, "invalid", immutable), Reason::Immutable),
            (status(422, "invalid", none.clone()), Reason::Invalid),
            (status(413, "too large", none.clone()), Reason::TooLarge),
            (status(429, "slow down", none.clone()), Reason::Unavailable),
            (status(500, "x", none), Reason::Unavailable),
            (CallError::TooLarge, Reason::TooLarge),
            (CallError::Unreadable, Reason::Unavailable),
            (CallError::Unanswered, Reason::Unavailable),
            (CallError::NotActive, Reason::Unavailable),
            (
                CallError::Throttled(Duration::from_secs(2)),
                Reason::Unavailable,
            ),
        ];
        for (at, (error, reason)) in cases.iter().enumerate() {
            assert_eq!(copy_error(error).reason, *reason, "case {at}");
        }
    }

    #[test]
    fn refusals_with_status_500_are_recognized_by_their_words() {
        let patch = "failed to create typed patch object (a/web; apps/v1, Kind=Deployment): ";
        let containers = ".spec.template.spec.containers";
        let hint = "its Kubernetes or CustomResourceDefinition has another version than the hub's";
        let cases = [
            (format!("{patch}.spec.futureField: field not declared in schema"), Reason::Invalid, "the member does not know `.spec.futureField`; "),
            (format!("{patch}.spec.futureField: field not declared in schema"), Reason::Invalid, hint),
            (format!("{patch}.spec.resources.$patch: field not declared in schema"), Reason::Invalid, "does not know `.spec.resources.$patch`; "),
            (format!("{patch}.metadata.labels.example.org/level: expected string, got &value.valueUnstructured{{Value:7}}"),
             Reason::Invalid, "`.metadata.labels.example.org/level` has the wrong type: expected string"),
            (format!("{patch}errors:\n  .spec.a: field not declared in schema\n  {containers}[name=\"c4n4ry: ] \"].b: field not declared in schema"),
                Reason::Invalid, "the member does not know `.spec.a`; the member does not know `.spec.template.spec.containers[].b`"),
            (format!("{patch}{containers}[name=\"web\"].env: duplicate entries for key [name=\"c4n4ry\"]"),
                Reason::Invalid, "two items of `.spec.template.spec.containers[].env` have the same key"),
            (format!("{patch}{containers}: element 0: associative list with keys has an element that omits key field \"name\" (and doesn't have default value)"),
                Reason::Invalid, "an item of `.spec.template.spec.containers` lacks its key field name"),
            ("failed to create typed patch object (a/s; /v1, Kind=ConfigMap): .data.c4n4ry: expected string, got &value.valueUnstructured{Value:c4n4ry}".to_owned(),
                Reason::Invalid, "`.data` has the wrong type: expected string"),
            (format!("{patch}.spec.replicas: expected numeric (int or float), got c4n4ry"), Reason::Invalid, "`.spec.replicas` has the wrong type: expected numeric"),
            ("failed to create typed live object (a/w; example.org/v1, Kind=W): .spec.gone: field not declared in schema".to_owned(),
                Reason::Invalid, "the member does not know `.spec.gone`"),
            ("failed to convert merged object at version example.org/v1: c4n4ry".to_owned(), Reason::Invalid, "convert it between versions"),
            ("failed to prune fields: failed to convert merged object: c4n4ry".to_owned(), Reason::Invalid, "convert it between versions"),
            ("etcdserver: request is too large".to_owned(), Reason::TooLarge, "etcd"),
            ("rpc error: code = ResourceExhausted desc = trying to send message larger than max (2097286 vs. 2097152)".to_owned(), Reason::TooLarge, "etcd"),
            ("Internal error occurred: failed calling webhook \"w.cert-manager.io\": failed to call webhook: Post \"https://c4n4ry\": connection refused".to_owned(),
                Reason::WebhookUnavailable, "cannot call the admission webhook w.cert-manager.io, and"),
            ("conversion webhook for example.org/v1, Kind=Gear failed: Post \"https://c4n4ry\": no endpoints".to_owned(),
                Reason::WebhookUnavailable, "cannot call the conversion webhook example.org/v1, and"),
            ("failed calling webhook \"c4n4ry c4n4ry\": c4n4ry".to_owned(), Reason::WebhookUnavailable, "the admission webhook, and"),
            ("admission webhook \"v.example.org\" denied the request: c4n4ry".to_owned(), Reason::Denied, "admission webhook v.example.org"),
            ("etcdserver: leader changed".to_owned(), Reason::Unavailable, "status 500"),
            ("context deadline exceeded".to_owned(), Reason::Unavailable, "status 500"),
        ];
        for (text, reason, words) in cases {
            let copy_error = copy_error(&status(500, &text, json!([])));
            let message = copy_error.message;
            assert_eq!(copy_error.reason, reason, "{text}: {message}");
            assert!(message.contains(words), "{message}");
            assert!(!message.contains("c4n4ry"), "{message}");
            assert!(message.len() <= runnel_proto::model::MESSAGE_LIMIT);
        }
    }

    #[test]
    fn fields_that_cannot_change_are_recognized_in_every_wording() {
        // As an API server words them, for the cluster IP of a Service, the template of a Job, the spec of a StatefulSet, the
        // role of a RoleBinding, a Pod, and a rule of a CustomResourceDefinition.
        for text in [
            "Invalid value: [\"10.0.0.2\"]: may not change once set",
            "Invalid value: {}: field is immutable",
            "Forbidden: updates to statefulset spec for fields other than 'replicas', 'ordinals' are forbidden",
            "Invalid value: {}: cannot change roleRef",
            "Forbidden: pod updates may not change fields other than `spec.tolerations`",
            "Invalid value: \"object\": Value is immutable",
        ] {
            let causes = json!([{"reason": "FieldValueInvalid", "field": "spec", "message": text}]);
            let error = status(422, "invalid", causes);
            assert_eq!(copy_error(&error).reason, Reason::Immutable, "{text}");
        }
    }

    #[test]
    fn answer_without_an_object_means_that_the_kind_is_not_served() {
        let answer = |code: u16, details: serde_json::Value| {
            let status = json!({"code": code, "message": "404 page not found", "reason": "x", "details": details});
            CallError::Refused(serde_json::from_value(status).unwrap())
        };
        let kind = Kind::new("example.org", "v1", "Widget", "widgets", Scope::Namespaced);
        let reason = |kind: &Kind, error: &CallError| kind_error(kind, error, None).reason;
        assert_eq!(
            reason(&kind, &answer(404, json!({}))),
            Reason::KindNotServed
        );
        let namespace = json!({"name": "a", "kind": "namespaces"});
        assert_eq!(reason(&kind, &answer(404, namespace)), Reason::Unavailable);
        assert_eq!(
            reason(&kind, &answer(404, json!({"name": "x"}))),
            Reason::Unavailable
        );
        assert_eq!(reason(&kind, &answer(500, json!({}))), Reason::Unavailable);
        let config_maps = Kind::by_resource("configmaps").unwrap();
        assert_eq!(
            reason(config_maps, &answer(404, json!({}))),
            Reason::Unavailable
        );
        let named = kind_error(&kind, &answer(404, json!({})), None);
        assert!(
            named.message.contains("does not serve widgets.example.org"),
            "{}",
            named.message
        );
        let limit = runnel_proto::model::MESSAGE_LIMIT;
        let long = "x".repeat(253);
        assert!(version_not_served(&long, "v1beta1").message.len() <= limit);
    }

    #[test]
    fn refused_fields_are_named_without_items() {
        let fields = [
            "spec.ports[1].name",
            "spec.ports[0].name",
            "rules[2]",
            "metadata.annotations[a.b/c]",
            "spec.strategy",
        ];
        let causes = fields.map(|field| json!({"field": field, "reason": "FieldValueDuplicate"}));
        let error = status(422, "x", json!(causes));
        let names = [
            vec!["metadata", "annotations"],
            vec!["rules"],
            vec!["spec", "ports", "name"],
            vec!["spec", "strategy"],
        ];
        assert_eq!(error.refused_fields(), names);
        assert!(CallError::Unanswered.refused_fields().is_empty());
    }

    #[test]
    fn refusal_of_the_own_admission_policy_is_recognized() {
        let denied = |why: &str| {
            let by = "ValidatingAdmissionPolicy 'agent-writes' with binding 'agent-writes'";
            status(422, &format!("{by} denied request: {why}"), json!([]))
        };
        let policy =
            include_str!("../../../deploy/charts/runnel-agent/templates/admissionpolicy.yaml");
        let messages = policy
            .lines()
            .filter_map(|line| line.trim().strip_prefix("message: "));
        let foreign = messages.filter(|message| denied(message).is_foreign_change());
        assert_eq!(foreign.count(), 2);
        assert!(!denied("the agent of Runnel adopts nothing").is_foreign_change());
        assert!(!CallError::Unanswered.is_foreign_change());
    }

    #[test]
    fn webhook_without_dry_runs_is_recognized() {
        let words = "admission webhook \"a.example.org\" does not support dry run";
        assert!(status(400, words, json!([])).refuses_dry_run());
        assert!(
            !status(400, "admission webhook \"a\" denied the request", json!([])).refuses_dry_run()
        );
        assert!(!CallError::Unanswered.refuses_dry_run());
    }

    #[test]
    fn no_message_repeats_the_server() {
        let canary = "c4n4ry";
        for code in [400, 401, 403, 404, 409, 413, 422, 429, 500, 503] {
            for text in [
                canary.to_owned(),
                format!("denied request: {canary}"),
                format!("denied the request: {canary} cannot "),
                format!("failed to create typed patch object ({canary}): .data.{canary}: {canary}"),
                format!(
                    "failed to create typed patch object ({canary}): .spec[k=\"{canary}\"]: expected {canary}, got {canary}"
                ),
                format!("failed to convert {canary}"),
            ] {
                let causes = json!([{"reason": "FieldValueInvalid", "field": format!("data[{canary}]"), "message": canary},
                {"reason": "FieldValueInvalid", "field": format!("data.{canary}"), "message": canary}]);
                let copy_error = copy_error(&status(code, &text, causes));
                assert!(
                    !copy_error.message.contains(canary),
                    "{code} {}",
                    copy_error.message
                );
            }
        }
    }

    #[test]
    fn retry_after_of_the_server_is_bounded() {
        let throttled = |seconds| CallError::Throttled(Duration::from_secs(seconds));
        assert_eq!(throttled(7).retry_after(), Some(Duration::from_secs(7)));
        assert_eq!(throttled(86_400).retry_after(), Some(LONGEST_WAIT));
        assert_eq!(CallError::Unanswered.retry_after(), None);
    }

    #[test]
    fn only_not_found_of_the_object_means_absent() {
        let copy = SourceRef::new("secrets", "team", "one");
        let refusal = |reason: &str, details: serde_json::Value| {
            let status = json!({"code": 404, "message": "", "reason": reason, "details": details});
            CallError::Refused(serde_json::from_value(status).unwrap())
        };
        let is_gone = |reason, details| refusal(reason, details).is_absent(&copy);
        assert!(is_gone(
            "NotFound",
            json!({"name": "one", "kind": "secrets"})
        ));
        assert!(!is_gone(
            "NotFound",
            json!({"name": "other", "kind": "secrets"})
        ));
        assert!(!is_gone(
            "NotFound",
            json!({"name": "one", "kind": "namespaces"})
        ));
        assert!(!is_gone("NotFound", json!({})));
        assert!(!is_gone(
            "Failed to parse error data",
            json!({"name": "one", "kind": "secrets"})
        ));
        assert!(!CallError::Unanswered.is_absent(&copy));
        // A namespace that is the copy itself.
        let namespace = SourceRef::new("namespaces", "", "one");
        let details = json!({"name": "one", "kind": "namespaces"});
        assert!(refusal("NotFound", details).is_absent(&namespace));
    }

    #[test]
    fn lost_race_is_recognized() {
        assert!(status(409, "modified", json!([])).is_race());
        assert!(
            status(
                422,
                "x",
                json!([{"field": "metadata.uid", "reason": "FieldValueInvalid"}])
            )
            .is_race()
        );
        assert!(
            !status(
                422,
                "x",
                json!([{"field": "data", "reason": "FieldValueInvalid"}])
            )
            .is_race()
        );
    }

    #[test]
    fn the_sentence_names_what_is_missing_and_what_grants_it() {
        let message = "secrets \"x\" is forbidden: User \"system:serviceaccount:runnel-system:runnel-agent\" cannot patch \
                resource \"secrets\" in API group \"\" in the namespace \"team-c\"";
        let expected = "the agent may not patch secrets in namespace team-c; to grant it: \
        kubectl create role runnel-agent-secrets -n team-c --verb=get,list,watch,create,patch,delete --resource=secrets; \
        kubectl create rolebinding runnel-agent-secrets -n team-c --role=runnel-agent-secrets \
        --serviceaccount=runnel-system:runnel-agent";
        assert_eq!(Missing::read(message).unwrap().sentence(), expected);
        let message = "namespaces is forbidden: User \"anna@example.org\" cannot create resource \"namespaces\" in API group \
                \"\" at the cluster scope";
        let sentence = Missing::read(message).unwrap().sentence();
        assert!(
            sentence.contains("may not create namespaces in the whole cluster"),
            "{sentence}"
        );
        assert!(
            sentence.contains("create clusterrole runnel-agent-namespaces --verb=create "),
            "{sentence}"
        );
        assert!(
            sentence.ends_with("--clusterrole=runnel-agent-namespaces --user=anna@example.org"),
            "{sentence}"
        );
    }

    #[test]
    fn a_long_namespace_leaves_room_for_the_whole_sentence() {
        let namespace = "n".repeat(63);
        let message = format!(
            "x: User \"system:serviceaccount:runnel-system:runnel-agent\" cannot watch resource \"configmaps\" in API \
         group \"\" in the namespace \"{namespace}\""
        );
        let sentence = Missing::read(&message).unwrap().sentence();
        assert!(
            sentence.len() <= runnel_proto::model::MESSAGE_LIMIT,
            "{}",
            sentence.len()
        );
    }

    proptest! {
        #[test]
        fn only_plain_names_are_accepted(text in "(.{0,10}|User \"| \" cannot | resource \"|\" in the namespace \"|at the cluster scope|\"){0,12}") {
            if let Some(missing) = Missing::read(&text) {
                prop_assert!(!missing.sentence().contains(['"', '\n', '$', '`', '&', '|']) && missing.sentence().matches(';').count() == 2);
            }
        }
    }

    #[test]
    fn account_that_lacks_a_right_is_named_with_its_commands() {
        let account = ServiceAccount {
            namespace: "tenants".into(),
            name: "team-a".into(),
        };
        let forbidden = |message: &str| {
            let error = status(403, message, json!([]));
            let copy_error = write_error(&error, Some(&account));
            assert_eq!(copy_error.reason, Reason::Forbidden, "{message}");
            copy_error.message
        };
        let user = "system:serviceaccount:tenants:team-a";
        let lacks = forbidden(&format!(
            "deployments.apps \"web\" is forbidden: User \"{user}\" cannot patch resource \"deployments\" in API group \"apps\" \
             in the namespace \"shop\""
        ));
        assert_eq!(
            &*lacks,
            "ServiceAccount tenants/team-a (policy.impersonate) may not patch deployments.apps in namespace shop; to grant it: \
             kubectl create role team-a-deployments -n shop --verb=create,patch,delete --resource=deployments.apps; \
             kubectl create rolebinding team-a-deployments -n shop --role=team-a-deployments \
             --serviceaccount=tenants:team-a"
        );
        let agent = "system:serviceaccount:runnel-system:runnel-agent";
        let not_as = forbidden(&format!(
            "serviceaccounts \"team-a\" is forbidden: User \"{agent}\" cannot impersonate resource \"serviceaccounts\" in API \
             group \"\" in the namespace \"tenants\""
        ));
        assert!(
            not_as.ends_with(
                "kubectl create role runnel-agent-as-team-a -n tenants --verb=impersonate --resource=serviceaccounts \
                 --resource-name=team-a; kubectl create rolebinding runnel-agent-as-team-a -n tenants \
                 --role=runnel-agent-as-team-a --serviceaccount=runnel-system:runnel-agent"
            ),
            "{not_as}"
        );
        // A read is the agent's own.
        let reads = forbidden(&format!(
            "secrets is forbidden: User \"{agent}\" cannot get resource \"secrets\" in API group \"\" in the namespace \"a\""
        ));
        assert!(
            reads.starts_with("the agent may not get secrets"),
            "{reads}"
        );
        let escalates = format!(
            "roles.rbac.authorization.k8s.io \"r\" is forbidden: user \"{user}\" (groups=[]) is {ESCALATION}:\n{{}}"
        );
        let message = forbidden(&escalates);
        assert!(
            message.starts_with("ServiceAccount tenants/team-a (policy.impersonate) lacks rights"),
            "{message}"
        );
        let error = status(403, &escalates, json!([]));
        assert_eq!(copy_error(&error).reason, Reason::Forbidden);
    }

    #[test]
    fn binding_of_a_missing_role_waits_for_it() {
        let answer = |kind: &str, name: &str| {
            let details = json!({"name": name, "kind": kind, "group": "rbac.authorization.k8s.io"});
            let status = json!({"code": 404, "message": "not found", "reason": "NotFound", "details": details});
            CallError::Refused(serde_json::from_value(status).unwrap())
        };
        let kind = |kind: &str, plural: &str| {
            Kind::new(
                "rbac.authorization.k8s.io",
                "v1",
                kind,
                plural,
                Scope::Namespaced,
            )
        };
        let (binding, role) = (kind("RoleBinding", "rolebindings"), kind("Role", "roles"));
        for (answer, waits_for) in [
            (answer("roles", "reader"), "waits for role reader,"),
            // As the API server answers: with the kind of the request and the name of the role.
            (
                answer("rolebindings", "reader"),
                "waits for the role reader,",
            ),
        ] {
            let waits = kind_error(&binding, &answer, None);
            assert_eq!(waits.reason, Reason::WaitingForDependency);
            assert!(waits.message.contains(waits_for), "{}", waits.message);
        }
        for (kind, answer) in [
            (&role, answer("roles", "reader")),
            (&binding, answer("namespaces", "reader")),
            (&binding, answer("roles", "a\nb")),
        ] {
            assert_ne!(
                kind_error(kind, &answer, None).reason,
                Reason::WaitingForDependency
            );
        }
    }
}
