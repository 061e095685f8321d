//! Follows objects, as `kubectl get --watch` does.
use futures::stream::{self, StreamExt};
use kube::api::{ApiResource, DynamicObject};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Resource};
use serde_json::Value;

use super::access::Cluster;
use super::hints::error_chain;
use super::objects::tidy;

/// A watch ends after this time and begins again: the client takes a longer silence for an error.
const WATCH_SECONDS: u32 = 15;

/// What is followed: the objects of a resource that fit the selectors.
#[derive(Clone, Debug)]
pub struct Followed {
    resource: ApiResource,
    namespace: Option<String>,
    fields: String,
    labels: String,
}

impl Followed {
    /// Creates a description of all objects of a resource; `None`: of all namespaces, or without
    /// namespaces.
    pub fn all<K: Resource<DynamicType = ()>>(namespace: Option<&str>) -> Self {
        Self {
            resource: ApiResource::erase::<K>(&()),
            namespace: namespace.filter(|name| !name.is_empty()).map(str::to_owned),
            fields: String::new(),
            labels: String::new(),
        }
    }

    /// Selects objects by a field.
    pub fn with_field(mut self, field: &str, value: &str) -> Self {
        self.fields = format!("{field}={value}");
        self
    }

    /// Selects objects by labels.
    pub fn with_labels(mut self, selector: Option<&str>) -> Self {
        self.labels = selector.unwrap_or_default().to_owned();
        self
    }
}

/// Passes objects to `show`: all of them, then each that changes or is deleted. Ends when `show`
/// returns false.
///
/// # Errors
/// If the objects cannot be listed, or those of `show`.
pub async fn follow(
    hub: &Cluster,
    followed: Vec<Followed>,
    mut show: impl FnMut(&[Value]) -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let mut pending = followed.len();
    let watches = followed.into_iter().map(|followed| {
        let (client, resource) = (hub.client(), &followed.resource);
        let api: Api<DynamicObject> = match &followed.namespace {
            Some(namespace) => Api::namespaced_with(client, namespace, resource),
            None => Api::all_with(client, resource),
        };
        let config = watcher::Config::default()
            .timeout(WATCH_SECONDS)
            .fields(&followed.fields)
            .labels(&followed.labels);
        watcher::watcher(api, config).default_backoff().boxed()
    });
    let mut events = stream::select_all(watches);
    let mut first = Vec::new();
    while let Some(event) = events.next().await {
        let object = match event {
            Ok(Event::Init) => continue,
            Ok(Event::InitDone) if pending > 0 => {
                pending -= 1;
                if pending == 0 && !show(&std::mem::take(&mut first))? {
                    return Ok(());
                }
                continue;
            }
            Ok(Event::InitDone) => continue,
            Ok(Event::InitApply(object) | Event::Apply(object) | Event::Delete(object)) => object,
            Err(error) if pending > 0 => return Err(refused(hub, error)),
            // The watch begins again after a while.
            Err(_) => continue,
        };
        let object = tidy(serde_json::to_value(object)?);
        if pending > 0 {
            first.push(object);
        } else if !show(&[object])? {
            return Ok(());
        }
    }
    Ok(())
}

fn refused(hub: &Cluster, error: watcher::Error) -> anyhow::Error {
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => hub.explained("list the objects", Some(error)),
        other => anyhow::anyhow!("cannot list the objects: {}", error_chain(&other)),
    }
}
