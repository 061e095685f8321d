//! Reads whether an object is empty whose deletion would delete others.
use futures::stream::{StreamExt, TryStreamExt};
use kube::api::{DynamicObject, ListParams, Request};
use kube::core::Resource;
use runnel_proto::model::{Kind, SourceRef};
use serde_json::Value;

use super::{Member, resource};
use crate::call::{Call, with_timeout};
use runnel_agent_core::classify::{CallError, copy_error};
use runnel_agent_core::contained::{Container, Listing, not_empty, unknown, unlisted};
use runnel_agent_core::copy::CopyError;

/// Limit of the lists at once.
const LISTS: usize = 4;

impl Member {
    /// Checks right before the delete of a copy that no other object goes with it.
    ///
    /// # Errors
    /// The error of the copy, if it contains objects or if that is unknown.
    pub(super) async fn check_empty(&self, kind: &Kind, copy: &SourceRef) -> Result<(), CopyError> {
        let Some(container) = Container::of(copy) else {
            return Ok(());
        };
        if matches!(container, Container::Definition(_)) && !self.is_accepted(kind, copy).await? {
            return Ok(());
        }
        let groups = async {
            let mut groups = with_timeout(self.client.list_core_api_versions_aggregated()).await?;
            let others = with_timeout(self.client.list_api_groups_aggregated()).await?;
            groups.items.extend(others.items);
            Ok(groups.items)
        };
        let groups = groups.await.map_err(|error: CallError| unread(&error))?;
        let listings = container.listings(&groups)?;
        let lists = futures::stream::iter(listings).map(|listing| async move {
            match self.has_objects(&listing).await {
                Ok(has_objects) => Ok(has_objects.then_some(listing.kind)),
                Err(error) => Err(unlisted(&listing.kind, &error)),
            }
        });
        let found: Vec<Option<Kind>> = lists.buffered(LISTS).try_collect().await?;
        let found: Vec<Kind> = found.into_iter().flatten().collect();
        if found.is_empty() {
            Ok(())
        } else {
            Err(not_empty(&found))
        }
    }

    /// Whether the API server has accepted the names of a CRD: only then objects of its kind can exist.
    async fn is_accepted(&self, kind: &Kind, copy: &SourceRef) -> Result<bool, CopyError> {
        let definition = self.get(kind, copy).await.map_err(|error| unread(&error))?;
        let plural = definition.data.pointer("/status/acceptedNames/plural");
        Ok(plural
            .and_then(Value::as_str)
            .is_some_and(|name| !name.is_empty()))
    }

    /// Whether a list has an object.
    async fn has_objects(&self, listing: &Listing) -> Call<bool> {
        let path = DynamicObject::url_path(&resource(&listing.kind), listing.namespace.as_deref());
        let mut params = ListParams::default().limit(1);
        params.field_selector.clone_from(&listing.fields);
        let text = self.text(Request::new(path).list_metadata(&params)).await?;
        let list: Value = serde_json::from_str(&text).map_err(|_| CallError::Unreadable)?;
        match &list["items"] {
            Value::Array(items) => Ok(!items.is_empty()),
            // An API server may write an empty list so.
            Value::Null if list["kind"] == "PartialObjectMetadataList" => Ok(false),
            _ => Err(CallError::Unreadable),
        }
    }
}

fn unread(error: &CallError) -> CopyError {
    let CopyError { reason, message } = copy_error(error);
    unknown(reason, &message)
}
