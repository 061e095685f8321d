//! Asks the API server for the rights of users.
use std::time::Duration;

use k8s_openapi::api::authentication::v1::UserInfo;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};
use runnel_proto::model::split_resource;
use tokio::sync::Semaphore;

use super::error::ViewError;

/// The limit of concurrent reviews.
const REVIEWS: usize = 4;
/// The time limit for a user in the queue, and for each request to the API server.
const LIMIT: Duration = Duration::from_secs(5);

/// A right to check. An empty namespace means all namespaces, and an empty name all objects.
pub(super) struct ResourceAccess<'a> {
    pub(super) verb: &'a str,
    pub(super) group: &'a str,
    pub(super) version: &'a str,
    pub(super) resource: &'a str,
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
}

impl<'a> ResourceAccess<'a> {
    /// The right to an object of Runnel, or to all of them in a namespace or the cluster.
    pub(super) fn to_runnel(
        verb: &'a str,
        resource: &'a str,
        namespace: &'a str,
        name: &'a str,
    ) -> Self {
        Self {
            verb,
            group: runnel_api::GROUP,
            version: runnel_api::VERSION,
            resource,
            namespace,
            name,
        }
    }

    /// The right to all objects of a kind, in a namespace or in the cluster.
    pub(super) fn to_kind(verb: &'a str, kind: &'a str, namespace: &'a str) -> Self {
        let (resource, group) = split_resource(kind);
        Self {
            verb,
            group,
            version: "*",
            resource,
            namespace,
            name: "",
        }
    }
}

/// Asks the API server for the rights of users whom it has authenticated.
pub(super) struct Reviewer {
    accesses: Api<SubjectAccessReview>,
    turns: Semaphore,
}

impl Reviewer {
    /// Creates a reviewer with this client.
    pub(super) fn new(client: Client) -> Self {
        Self {
            accesses: Api::all(client),
            turns: Semaphore::new(REVIEWS),
        }
    }

    /// Whether the user may `get` an object of Runnel.
    ///
    /// # Errors
    /// As [`Reviewer::allows`].
    pub(super) async fn may_get(
        &self,
        user: &UserInfo,
        resource: &str,
        namespace: &str,
        name: &str,
    ) -> Result<bool, ViewError> {
        let access = ResourceAccess::to_runnel("get", resource, namespace, name);
        self.allows(user, &access).await
    }

    /// Whether the user has a right.
    ///
    /// # Errors
    /// [`ViewError::Busy`] after too long a wait, and [`ViewError::Unavailable`] if the API server
    /// does not answer.
    pub(super) async fn allows(
        &self,
        user: &UserInfo,
        access: &ResourceAccess<'_>,
    ) -> Result<bool, ViewError> {
        let turn = tokio::time::timeout(LIMIT, self.turns.acquire()).await;
        let _turn =
            turn.map_err(|_| ViewError::Busy("too many requests at a time: try again".to_owned()))?;
        let optional = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let attributes = ResourceAttributes {
            verb: optional(access.verb),
            group: optional(access.group),
            version: optional(access.version),
            resource: optional(access.resource),
            namespace: optional(access.namespace),
            name: optional(access.name),
            ..ResourceAttributes::default()
        };
        let user = user.clone();
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: user.username,
                uid: user.uid,
                groups: user.groups,
                extra: user.extra,
                resource_attributes: Some(attributes),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let params = PostParams::default();
        let answer = tokio::time::timeout(LIMIT, self.accesses.create(&params, &review)).await;
        let unavailable = |why: &str| ViewError::Unavailable(why.to_owned());
        match answer {
            Ok(Ok(answer)) => Ok(answer.status.is_some_and(|status| status.allowed)),
            Ok(Err(kube::Error::Api(status))) if status.code == 403 => {
                tracing::error!(
                    "may not create subjectaccessreviews: upgrade the hub's chart, which gives that right"
                );
                Err(unavailable(
                    "the hub may not create subjectaccessreviews: upgrade its chart",
                ))
            }
            Ok(Err(_)) => Err(unavailable(
                "the hub cannot reach its API server now: try again",
            )),
            Err(_) => Err(unavailable(
                "the hub's API server did not answer in time: try again",
            )),
        }
    }
}

/// Returns the name of a user.
pub(super) fn name_of(user: &UserInfo) -> &str {
    user.username.as_deref().unwrap_or_default()
}
