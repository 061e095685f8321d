//! The audit log of an API server.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::{Value, json};

/// A place in an audit log: its end at some moment, or by default its beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark(u64);

/// A request that an API server has answered.
/// Missing properties are empty: the namespace of a cluster-scoped object, the name of a
/// collection, the group of core resources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// `create`, `update`, `patch`, `delete` or `deletecollection`; with reads audited, also
    /// `get`, `list` and `watch`.
    pub verb: String,
    /// The API group.
    pub group: String,
    /// The resource in plural, as `configmaps`.
    pub resource: String,
    /// The subresource, as `status`.
    pub subresource: String,
    /// The object's namespace.
    pub namespace: String,
    /// The object's name.
    pub name: String,
    /// The user; empty for a token that was not accepted (401).
    pub user: String,
    /// The user as whom the request was handled, if that is another one.
    pub impersonated: Option<String>,
    /// The user agent.
    pub user_agent: String,
    /// The HTTP status of the answer.
    pub code: u16,
    /// Whether it changes nothing, because it asks only what a write would do.
    pub dry_run: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    stage: String,
    verb: String,
    user: User,
    impersonated_user: Option<User>,
    #[serde(default)]
    user_agent: String,
    #[serde(default, rename = "requestURI")]
    request_uri: String,
    #[serde(default)]
    object_ref: Object,
    response_status: Option<Status>,
}

#[derive(Deserialize)]
struct User {
    #[serde(default)]
    username: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Object {
    api_group: String,
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
}

#[derive(Deserialize)]
struct Status {
    code: u16,
}

/// The audit policy: every write (and with `reads` every read), without the control plane's own
/// and without Leases.
#[must_use]
pub(crate) fn policy(own_users: &[&str], reads: bool) -> Value {
    let mut verbs = vec!["create", "update", "patch", "delete", "deletecollection"];
    if reads {
        verbs.extend(["get", "list", "watch"]);
    }
    json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [
            {"level": "None", "users": own_users},
            {"level": "None", "resources": [{"group": "coordination.k8s.io", "resources": ["leases"]}]},
            {"level": "None", "nonResourceURLs": ["*"]},
            {"level": "Metadata", "verbs": verbs},
            {"level": "None"},
        ],
    })
}

/// The present end of the log; 0 where there is none yet.
pub(crate) fn end(log: &Path) -> Mark {
    Mark(std::fs::metadata(log).map_or(0, |found| found.len()))
}

/// Returns the answered requests after `mark`, in order.
pub(crate) fn since(log: &Path, mark: Mark) -> Result<Vec<Write>> {
    let mut text = String::new();
    let mut file = File::open(log).with_context(|| format!("cannot read {}", log.display()))?;
    file.seek(SeekFrom::Start(mark.0))?;
    file.read_to_string(&mut text)
        .with_context(|| format!("cannot read {}", log.display()))?;
    // The last line may be in the making.
    let complete = text.rfind('\n').map_or("", |end| &text[..end]);
    complete
        .lines()
        .filter_map(|line| write(line).transpose())
        .collect()
}

/// One request; none, if the line is the end of a watch that an earlier line has shown.
fn write(line: &str) -> Result<Option<Write>> {
    let entry: Entry =
        serde_json::from_str(line).with_context(|| format!("an odd audit entry: {line}"))?;
    let code = entry.response_status.map_or(0, |status| status.code);
    if entry.verb == "watch" && entry.stage == "ResponseComplete" && code == 200 {
        return Ok(None);
    }
    Ok(Some(Write {
        verb: entry.verb,
        group: entry.object_ref.api_group,
        resource: entry.object_ref.resource,
        subresource: entry.object_ref.subresource,
        namespace: entry.object_ref.namespace,
        name: entry.object_ref.name,
        user: entry.user.username,
        impersonated: entry.impersonated_user.map(|user| user.username),
        user_agent: entry.user_agent,
        code,
        dry_run: entry.request_uri.contains("dryRun="),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watch_counts_once() {
        let line = |stage: &str, verb: &str, code: u16| {
            json!({"stage": stage, "verb": verb, "user": {"username": "u"}, "responseStatus": {"code": code}})
                .to_string()
        };
        let lines = [
            line("ResponseStarted", "watch", 200),
            line("ResponseComplete", "watch", 200),
            line("ResponseComplete", "watch", 403),
            line("ResponseComplete", "get", 200),
        ];
        let read: Vec<_> = lines
            .iter()
            .filter_map(|line| write(line).unwrap())
            .map(|one| (one.verb, one.code))
            .collect();
        assert_eq!(
            read,
            [
                ("watch".to_owned(), 200),
                ("watch".to_owned(), 403),
                ("get".to_owned(), 200)
            ]
        );
    }

    /// As the API server writes it for a pod that outlives its ServiceAccount.
    #[test]
    fn refused_token_has_no_user() {
        let line = json!({"stage": "ResponseStarted", "verb": "create", "user": {}, "responseStatus": {"code": 401}});
        let read = write(&line.to_string()).unwrap().unwrap();
        assert_eq!((read.user.as_str(), read.code), ("", 401));
    }
}
