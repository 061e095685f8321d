//! What a relay cannot avoid between API servers: a watch on the hub and an apply in each member for every change, an apply
//! loop, a watch that puts an object back, and a watch of names.

use std::collections::BTreeMap;

use futures::StreamExt;
use futures::future::join_all;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{PartialObjectMeta, Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

/// The field manager.
const MANAGER: &str = "bare";

/// Relays what a namespace of the hub holds to the namespace of the same name in each member, until it is dropped.
pub async fn relay(hub: Client, members: Vec<Client>, namespace: String) {
    let api: Api<ConfigMap> = Api::namespaced(hub, &namespace);
    let mut events = std::pin::pin!(watcher(api, watcher::Config::default()).default_backoff());
    while let Some(event) = events.next().await {
        let Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) = event else {
            continue;
        };
        let (name, copy) = (object.name_any(), copy_of(&object));
        join_all(
            members
                .iter()
                .map(|member| apply(member, &namespace, &name, &copy)),
        )
        .await;
    }
}

/// Applies every copy in every member, so many at once in each, and returns when all are there.
///
/// # Errors
/// The first refusal.
pub async fn apply_all(
    members: &[Client],
    namespace: &str,
    copies: &[(String, Value)],
    at_once: usize,
) -> kube::Result<()> {
    let each = members.iter().map(|member| async move {
        let applies = copies
            .iter()
            .map(|(name, copy)| apply(member, namespace, name, copy));
        let done: Vec<kube::Result<ConfigMap>> = futures::stream::iter(applies)
            .buffer_unordered(at_once)
            .collect()
            .await;
        done.into_iter().collect::<kube::Result<Vec<_>>>().map(drop)
    });
    join_all(each).await.into_iter().collect()
}

async fn apply(
    member: &Client,
    namespace: &str,
    name: &str,
    copy: &Value,
) -> kube::Result<ConfigMap> {
    let api: Api<ConfigMap> = Api::namespaced(member.clone(), namespace);
    api.patch(
        name,
        &PatchParams::apply(MANAGER).force(),
        &Patch::Apply(copy),
    )
    .await
}

/// Returns the applied object.
#[must_use]
pub fn copy_of(object: &ConfigMap) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": object.name_any()}, "data": object.data})
}

/// Puts one object of a namespace back whenever it differs from what it should be, until it is dropped.
pub async fn keep(member: Client, namespace: String, right: Value) {
    let api: Api<ConfigMap> = Api::namespaced(member.clone(), &namespace);
    let name = right["metadata"]["name"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let mut events = std::pin::pin!(watcher(api, watcher::Config::default()).default_backoff());
    while let Some(event) = events.next().await {
        let Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) = event else {
            continue;
        };
        if object.name_any() == name && json!(object.data) != right["data"] {
            // The next event shows whether it was refused.
            let _ = apply(&member, &namespace, &name, &right).await;
        }
    }
}

/// Keeps no more of the ConfigMaps of a cluster than their names and versions, until it is dropped: the least that who
/// guards copies must have in memory. Says how many it knows in this namespace when it has listed them, and after each change.
pub async fn watch_names(member: Client, namespace: &str, mut knows: impl FnMut(usize)) {
    let api: Api<PartialObjectMeta<ConfigMap>> = Api::all(member);
    let mut events = std::pin::pin!(watcher(api, watcher::Config::default()).default_backoff());
    let (mut known, mut listed) = (BTreeMap::new(), false);
    while let Some(event) = events.next().await {
        match event {
            Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => {
                let key = (object.namespace().unwrap_or_default(), object.name_any());
                known.insert(key, object.resource_version().unwrap_or_default());
            }
            Ok(watcher::Event::Delete(object)) => {
                known.remove(&(object.namespace().unwrap_or_default(), object.name_any()));
            }
            Ok(watcher::Event::InitDone) => listed = true,
            Ok(watcher::Event::Init) | Err(_) => {}
        }
        if listed {
            knows(
                known
                    .keys()
                    .filter(|(of, _): &&(String, String)| of == namespace)
                    .count(),
            );
        }
    }
}
