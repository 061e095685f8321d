//! What a relay cannot avoid between API servers: a watch on the hub and an apply in each member for every change, an apply
//! loop, a watch that puts an object back, and a watch of names.

use std::collections::{BTreeMap, BTreeSet};

use futures::StreamExt;
use futures::future::join_all;
use futures::stream::select_all;
use kube::api::{DynamicObject, PartialObjectMeta, Patch, PatchParams};
use kube::core::ApiResource;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::Value;

use crate::speed::sample::Sample;

/// The field manager.
const MANAGER: &str = "bare";

/// Relays what a namespace of the hub holds to the namespace of the same name in each member, until it is dropped.
pub async fn relay(hub: Client, members: Vec<Client>, sample: Sample, namespace: String) {
    let api: Api<DynamicObject> = Api::namespaced_with(hub, &namespace, &sample.api());
    let mut events = std::pin::pin!(watcher(api, watcher::Config::default()).default_backoff());
    while let Some(event) = events.next().await {
        let Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) = event else {
            continue;
        };
        let name = object.name_any();
        let copy = sample.object(&name, sample.value(&object));
        join_all(
            members
                .iter()
                .map(|member| apply(member, sample, &namespace, &name, &copy)),
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
    sample: Sample,
    namespace: &str,
    copies: &[(String, Value)],
    at_once: usize,
) -> kube::Result<()> {
    let each = members.iter().map(|member| async move {
        let applies = copies
            .iter()
            .map(|(name, copy)| apply(member, sample, namespace, name, copy));
        let done: Vec<kube::Result<DynamicObject>> = futures::stream::iter(applies)
            .buffer_unordered(at_once)
            .collect()
            .await;
        done.into_iter().collect::<kube::Result<Vec<_>>>().map(drop)
    });
    join_all(each).await.into_iter().collect()
}

async fn apply(
    member: &Client,
    sample: Sample,
    namespace: &str,
    name: &str,
    copy: &Value,
) -> kube::Result<DynamicObject> {
    let api: Api<DynamicObject> = Api::namespaced_with(member.clone(), namespace, &sample.api());
    api.patch(
        name,
        &PatchParams::apply(MANAGER).force(),
        &Patch::Apply(copy),
    )
    .await
}

/// Restores the value of one object of a namespace whenever it differs, until it is dropped.
pub async fn keep(member: Client, sample: Sample, namespace: String, (name, value): (&str, &str)) {
    let api: Api<DynamicObject> = Api::namespaced_with(member.clone(), &namespace, &sample.api());
    let right = sample.object(name, value);
    let mut events = std::pin::pin!(watcher(api, watcher::Config::default()).default_backoff());
    while let Some(event) = events.next().await {
        let Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) = event else {
            continue;
        };
        if object.name_any() == name && sample.value(&object) != value {
            // The next event shows whether it was refused.
            let _ = apply(&member, sample, &namespace, name, &right).await;
        }
    }
}

/// Keeps no more of the objects of some kinds in a cluster than their names and versions, until it is dropped: the least
/// that who guards copies must have in memory. Says how many it knows in this namespace when it has listed all kinds, and
/// after each change.
pub async fn watch_names(
    member: Client,
    kinds: &[ApiResource],
    namespace: &str,
    mut knows: impl FnMut(usize),
) {
    let mut events = select_all(kinds.iter().enumerate().map(|(kind, resource)| {
        let api: Api<PartialObjectMeta<DynamicObject>> = Api::all_with(member.clone(), resource);
        let events = watcher(api, watcher::Config::default()).default_backoff();
        events.map(move |event| (kind, event)).boxed()
    }));
    let (mut known, mut listed) = (BTreeMap::new(), BTreeSet::new());
    while let Some((kind, event)) = events.next().await {
        let key = |object: &PartialObjectMeta<DynamicObject>| {
            (
                kind,
                object.namespace().unwrap_or_default(),
                object.name_any(),
            )
        };
        match event {
            Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => {
                known.insert(key(&object), object.resource_version().unwrap_or_default());
            }
            Ok(watcher::Event::Delete(object)) => {
                known.remove(&key(&object));
            }
            Ok(watcher::Event::InitDone) => {
                listed.insert(kind);
            }
            Ok(watcher::Event::Init) | Err(_) => {}
        }
        if listed.len() == kinds.len() {
            knows(known.keys().filter(|(_, of, _)| of == namespace).count());
        }
    }
}
