//! Watches the definition of a kind of rules: its deletion deletes all of them, without naming one.
//!
//! Without the right to it the hub continues: the removal guard blocks many indirect deletions in
//! any case.
use std::sync::Arc;

use futures::StreamExt;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::PartialObjectMeta;
use kube::{Api, Client, CustomResourceExt};

use super::grants::Into;
use super::{Own, RelistingWatch, events_of, mapped};
use crate::hub_state::HubState;
use runnel_hub_core::index::Index;

/// Watches the definition of this kind for ever.
pub async fn watch_definition<K: CustomResourceExt>(client: Client, hub_state: Arc<HubState>) {
    let into = Into {
        resource: K::crd_name(),
        one: Index::set_definition,
        all: Index::set_definitions,
        known: |_, _| None,
        without: "Few rules that are deleted with their definition count as deleted on purpose",
    };
    let api: Api<PartialObjectMeta<CustomResourceDefinition>> = Api::all(client);
    let events = RelistingWatch::new(hub_state.leadership.relist_barrier.subscribe(), move || {
        events_of(api.clone(), K::crd_name())
            .map(|event| mapped(event, Own::from))
            .boxed()
    });
    let is_terminating = |definition: PartialObjectMeta<CustomResourceDefinition>| {
        definition.metadata.deletion_timestamp.is_some()
    };
    into.follow(events, &hub_state, is_terminating).await;
}
