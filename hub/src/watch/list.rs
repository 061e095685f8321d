//! Lists the metadata of sources, for a comparison with what the watches delivered.
use std::sync::Arc;

use http::Request as HttpRequest;
use kube::api::{DynamicObject, ListParams, Request};
use kube::{Client, Resource, ResourceExt};
use runnel_hub_core::index::{ListedScope, version_number};
use runnel_hub_core::plan::{Rule, WatchScope, is_never_a_source};
use runnel_proto::model::{Kind, SourceRef};
use runnel_transport::pages::{PageSize, parse_page, read_page};
use runnel_transport::readable::Readable;

use super::sources::{SourceMeta, api_resource};

/// Why a list failed.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    /// The API server does not serve the kind.
    #[error("the API server does not serve the kind")]
    NotServed,
    /// The request cannot be built.
    #[error("no such request")]
    NoSuchRequest,
    /// The API server returned an error.
    #[error("{}", describe(.0))]
    Api(kube::Error),
    /// The connection ended in the answer.
    #[error("the connection broke")]
    Broken,
    /// The list exceeded its time limit.
    #[error("the API server did not answer in time")]
    Timeout,
    /// The answer is not a list of objects.
    #[error("the API server's answer is not readable")]
    Unreadable,
    /// A single object exceeds the limit of a page.
    #[error("an object is too large")]
    TooLarge,
    /// The rule needs more objects than the limit.
    #[error("the rule needs too many objects")]
    TooMany,
}

/// Describes an error of the API server without text that may quote the object.
pub(super) fn describe(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => format!("{} {}", status.code, status.reason),
        _ => "the API server cannot be reached".to_owned(),
    }
}

/// The parameters of one page of a list.
pub(super) fn page_params(size: PageSize, next: Option<&str>) -> ListParams {
    let params = ListParams::default().limit(size.limit());
    match next {
        Some(token) => params.continue_token(token),
        None => params,
    }
}

/// Returns one page of a list; `None` above the size limit.
pub(super) async fn page(
    client: &Client,
    request: HttpRequest<Vec<u8>>,
    size: PageSize,
) -> Result<Option<Vec<u8>>, ListError> {
    let body = client
        .request_stream(request)
        .await
        .map_err(ListError::Api)?;
    read_page(body, size.bytes())
        .await
        .map_err(|_| ListError::Broken)
}

/// Lists the objects of a kind in a scope that a rule needs, at most `most`. Objects that are being deleted
/// are left out, as the watch takes them for deleted.
///
/// # Errors
/// [`ListError`], with [`ListError::TooMany`] if there are more.
pub async fn list_metadata(
    client: &Client,
    kind: &Kind,
    scope: &WatchScope,
    rule: &Arc<Rule>,
    most: usize,
) -> Result<ListedScope, ListError> {
    let path = DynamicObject::url_path(&api_resource(kind), scope.listed_namespace());
    let path = Request::new(path);
    let (mut size, mut next) = (PageSize::default(), None::<String>);
    let mut listed = ListedScope {
        scope: scope.clone(),
        version: 0,
        sources: [].into(),
    };
    loop {
        let request = path.list_metadata(&page_params(size, next.as_deref()));
        let request = request.map_err(|_| ListError::NoSuchRequest)?;
        let bytes = match page(client, request, size).await? {
            Some(bytes) => bytes,
            None if size.shrink() => continue,
            None => return Err(ListError::TooLarge),
        };
        size.record_page_size(bytes.len());
        let (kind, rule) = (kind.clone(), rule.clone());
        // Beside the threads that serve agents.
        let read = move || read_sources(&kind, &rule, listed, &bytes);
        let taken = tokio::task::spawn_blocking(read).await;
        let (taken, token) = taken.map_err(|_| ListError::Unreadable)??;
        listed = taken;
        if listed.sources.len() > most {
            return Err(ListError::TooMany);
        }
        match token {
            Some(token) => next = Some(token),
            None => return Ok(listed),
        }
    }
}

/// Adds the needed objects of a page. Returns the token of the next page.
fn read_sources(
    kind: &Kind,
    rule: &Rule,
    mut listed: ListedScope,
    bytes: &[u8],
) -> Result<(ListedScope, Option<String>), ListError> {
    let metadata = parse_page(bytes, |object| {
        let Readable::<SourceMeta>::Read(object) = object else {
            return;
        };
        let namespace = object.namespace().unwrap_or_default();
        let source = SourceRef::new(&kind.resource, &namespace, &object.name_any());
        let (labels, version) = (object.labels(), object.meta().resource_version.as_deref());
        let is_source = object.meta().deletion_timestamp.is_none()
            && !is_never_a_source(kind, &source.name, labels);
        if is_source && rule.needs(&source, labels) {
            listed.sources.insert(source, version_number(version));
        }
    });
    let metadata = metadata.map_err(|_| ListError::Unreadable)?;
    listed.version = version_number(metadata.resource_version.as_deref());
    Ok((listed, metadata.continue_.filter(|token| !token.is_empty())))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn page_has_the_needed_sources_with_their_versions() {
        let rule = json!({
            "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionRule",
            "metadata": {"name": "r", "namespace": "shop", "uid": "u"},
            "spec": {
                "sources": [{"resources": ["configmaps"], "selector": {"matchLabels": {"rule": "x"}}}],
                "clusters": {"all": true},
            },
        });
        let rule: runnel_api::DistributionRule = serde_json::from_value(rule).unwrap();
        let rule = Rule::namespaced(&rule, "runnel-system").unwrap();
        let object = |name: &str, version: &str, label: &str| {
            json!({
                "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
                "metadata": {"name": name, "namespace": "shop", "resourceVersion": version, "labels": {"rule": label}},
            })
        };
        let mut terminating = object("old", "7", "x");
        terminating["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        let page = json!({
            "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList",
            "metadata": {"resourceVersion": "90", "continue": "more"},
            "items": [object("a", "3", "x"), object("b", "4", "y"), terminating, object("kube-root-ca.crt", "5", "x")],
        });
        let kind = Kind::by_resource("configmaps").unwrap();
        let empty = ListedScope {
            scope: WatchScope::everywhere("configmaps"),
            version: 0,
            sources: [].into(),
        };
        let (listed, next) = read_sources(kind, &rule, empty, page.to_string().as_bytes()).unwrap();
        let expected = [(SourceRef::new("configmaps", "shop", "a"), 3)];
        assert_eq!((listed.sources, listed.version), (expected.into(), 90));
        assert_eq!(next.as_deref(), Some("more"));
    }
}
