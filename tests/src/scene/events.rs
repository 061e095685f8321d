//! Reads Events.

use anyhow::{Result, ensure};
use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams};

use super::cluster::{Id, SOON, TestCluster};
use crate::wait::eventually;

/// An Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedEvent {
    /// `Normal` or `Warning`.
    pub kind: String,
    /// The CamelCase word.
    pub reason: String,
    /// The sentence.
    pub note: String,
    /// The reporting controller.
    pub by: String,
    /// The MemberCluster that it is about.
    pub cluster: Option<String>,
    /// The number of its occurrences.
    pub times: u64,
}

/// Whether an Event on a rule only says what was done to copies.
pub fn is_about_copies(event: &ObservedEvent) -> bool {
    event.kind == "Normal" && event.reason.starts_with("Copies")
}

impl TestCluster {
    /// The Events about an object, by `events.k8s.io`.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn events_about(&self, id: &Id) -> Result<Vec<ObservedEvent>> {
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("events.k8s.io", "v1", "Event"));
        // Events about objects without a namespace are in `default`.
        let namespace = id.own_namespace().unwrap_or("default");
        let api: Api<DynamicObject> = Api::namespaced_with(self.client(), namespace, &kind);
        let events = api
            .list(&ListParams::default())
            .await?
            .items
            .into_iter()
            .map(|event| event.data);
        let about = |event: &serde_json::Value| {
            event["regarding"]["kind"] == id.kind() && event["regarding"]["name"] == id.name()
        };
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        let observed = events.filter(about).map(|event| ObservedEvent {
            kind: text(&event["type"]),
            reason: text(&event["reason"]),
            note: text(&event["note"]),
            by: text(&event["reportingController"]),
            cluster: event["related"]["name"].as_str().map(str::to_owned),
            times: event["series"]["count"].as_u64().unwrap_or(1),
        });
        Ok(observed.collect())
    }

    /// Waits until an Event with this reason exists for an object; returns it.
    ///
    /// # Errors
    /// When it does not in time, with the other Events.
    pub async fn has_event(&self, id: &Id, reason: &str) -> Result<ObservedEvent> {
        eventually(
            &format!("an Event {reason} about {id} in {}", self.name()),
            SOON,
            async || {
                let observed = self.events_about(id).await?;
                let found = observed
                    .iter()
                    .find(|event| event.reason == reason)
                    .cloned();
                ensure!(found.is_some(), "told was {observed:?}");
                Ok(found)
            },
        )
        .await
    }
}
