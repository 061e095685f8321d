//! A bare relay: one watch on the hub, and one apply in each member for every change. And a bare apply loop.

use futures::StreamExt;
use futures::future::join_all;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

/// Who applies.
const MANAGER: &str = "bare";

/// Relays what a namespace of the hub holds to the namespace of the same name in each member, until it is dropped.
pub async fn relay(hub: Client, members: Vec<Client>, namespace: String) {
    let api: Api<ConfigMap> = Api::namespaced(hub, &namespace);
    let mut events = std::pin::pin!(watcher(api, watcher::Config::default()).default_backoff());
    while let Some(event) = events.next().await {
        let Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) = event else { continue };
        let (name, copy) = (object.name_any(), copy_of(&object));
        join_all(members.iter().map(|member| apply(member, &namespace, &name, &copy))).await;
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
        let applies = copies.iter().map(|(name, copy)| apply(member, namespace, name, copy));
        let done: Vec<kube::Result<ConfigMap>> =
            futures::stream::iter(applies).buffer_unordered(at_once).collect().await;
        done.into_iter().collect::<kube::Result<Vec<_>>>().map(drop)
    });
    join_all(each).await.into_iter().collect()
}

async fn apply(member: &Client, namespace: &str, name: &str, copy: &Value) -> kube::Result<ConfigMap> {
    let api: Api<ConfigMap> = Api::namespaced(member.clone(), namespace);
    api.patch(name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(copy)).await
}

/// What is applied of an object.
#[must_use]
pub fn copy_of(object: &ConfigMap) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": object.name_any()}, "data": object.data})
}
