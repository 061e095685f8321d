//! Requests the user of a token and the user's rights from the API server.
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::Semaphore;
use tonic::Status;
use tonic::metadata::MetadataMap;

use crate::membership::attempts::Attempts;
use crate::ordered_lock::LeafMutex;

/// The audience of tokens that are valid only for queries.
pub const AUDIENCE: &str = "runnel-hub";
/// The limit of the length of a token in bytes.
const TOKEN_LIMIT: usize = 16 * 1024;
/// The limit of concurrent reviews, because clients without rights can reach this port.
const REVIEWS: usize = 4;
/// The time limit for a caller in the queue, and for each request to the API server.
const LIMIT: Duration = Duration::from_secs(5);

/// Returns the token of a caller.
///
/// # Errors
/// `UNAUTHENTICATED`, with what is missing.
pub(super) fn bearer(metadata: &MetadataMap) -> Result<String, Status> {
    let missing = || {
        Status::unauthenticated(
            "this question needs `authorization: Bearer TOKEN`, a token of the hub's API server",
        )
    };
    let header = metadata
        .get("authorization")
        .and_then(|value| value.to_str().ok())
        .ok_or_else(missing)?;
    let token = header
        .strip_prefix("Bearer ")
        .map(str::trim)
        .filter(|token| !token.is_empty())
        .ok_or_else(missing)?;
    if token.len() > TOKEN_LIMIT {
        return Err(Status::unauthenticated("the token is too long"));
    }
    Ok(token.to_owned())
}

/// A caller, as the API server authenticated it.
pub(super) struct User(pub(super) UserInfo);

impl User {
    /// Returns the user name.
    pub(super) fn name(&self) -> &str {
        self.0.username.as_deref().unwrap_or_default()
    }
}

/// A right to check. An empty namespace means all namespaces, and an empty name all objects.
pub(crate) struct Access<'a> {
    pub(crate) verb: &'a str,
    pub(crate) group: &'a str,
    pub(crate) resource: &'a str,
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
}

/// Authenticates and authorizes callers by the API server.
pub struct Reviewer {
    client: Client,
    tokens: Api<TokenReview>,
    accesses: Api<SubjectAccessReview>,
    attempts: LeafMutex<Attempts>,
    turns: Semaphore,
}

impl Reviewer {
    /// Creates a reviewer with this client.
    pub fn new(client: Client) -> Self {
        Self {
            tokens: Api::all(client.clone()),
            accesses: Api::all(client.clone()),
            client,
            attempts: LeafMutex::default(),
            turns: Semaphore::new(REVIEWS),
        }
    }

    /// Accepts the user of the token if the user may `get` this rule.
    ///
    /// # Errors
    /// The status of `query.proto`, with a hint.
    pub(super) async fn may_get(
        &self,
        address: Option<IpAddr>,
        token: &str,
        resource: &str,
        namespace: &str,
        name: &str,
    ) -> Result<(), Status> {
        let user = self.authenticate(address, token).await?;
        if self.allows(&user, resource, namespace, name).await? {
            return Ok(());
        }
        let place = if namespace.is_empty() {
            String::new()
        } else {
            format!(" in namespace {namespace}")
        };
        Err(Status::permission_denied(format!(
            "{} may not get {resource}.runnel.dev{place}",
            user.name()
        )))
    }

    /// Returns the user of a token.
    ///
    /// # Errors
    /// The status of `query.proto`, with a hint.
    pub(super) async fn authenticate(
        &self,
        address: Option<IpAddr>,
        token: &str,
    ) -> Result<User, Status> {
        if address.is_some_and(|address| !self.attempts.lock().allows(address, Instant::now())) {
            return Err(Status::resource_exhausted(
                "too many wrong tokens from your address: wait ten minutes",
            ));
        }
        let turn = tokio::time::timeout(LIMIT, self.turns.acquire()).await;
        let _turn = turn
            .map_err(|_| Status::resource_exhausted("too many questions at a time: try again"))?;
        let Some(user) = self.user_of(token).await? else {
            if let Some(address) = address {
                self.attempts.lock().failed(address, Instant::now());
            }
            return Err(Status::unauthenticated(
                "the hub's API server does not accept this token, or it has expired",
            ));
        };
        Ok(User(user))
    }

    /// Whether the user may `get` an object of Runnel.
    ///
    /// # Errors
    /// `UNAVAILABLE`, when the API server does not answer.
    pub(super) async fn allows(
        &self,
        user: &User,
        resource: &str,
        namespace: &str,
        name: &str,
    ) -> Result<bool, Status> {
        self.may(
            user,
            &Access {
                verb: "get",
                group: "runnel.dev",
                resource,
                namespace,
                name,
            },
        )
        .await
    }

    /// Whether the user has a right.
    ///
    /// # Errors
    /// `UNAVAILABLE`, when the API server does not answer.
    pub(super) async fn may(&self, user: &User, access: &Access<'_>) -> Result<bool, Status> {
        self.allows_user(user.0.clone(), access).await
    }

    /// Whether a user whom the API server has authenticated has a right.
    ///
    /// # Errors
    /// `UNAVAILABLE`, when the API server does not answer.
    pub(crate) async fn allows_user(
        &self,
        user: UserInfo,
        access: &Access<'_>,
    ) -> Result<bool, Status> {
        let turn = tokio::time::timeout(LIMIT, self.turns.acquire()).await;
        let _turn = turn
            .map_err(|_| Status::resource_exhausted("too many questions at a time: try again"))?;
        let optional = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let attributes = ResourceAttributes {
            verb: optional(access.verb),
            group: optional(access.group),
            resource: optional(access.resource),
            namespace: optional(access.namespace),
            name: optional(access.name),
            ..ResourceAttributes::default()
        };
        self.is_allowed(user, attributes).await
    }

    /// Returns a client with the hub's own rights.
    pub(super) fn client(&self) -> Client {
        self.client.clone()
    }

    async fn user_of(&self, token: &str) -> Result<Option<UserInfo>, Status> {
        // A token of Runnel's audience is valid for queries only; otherwise a token of the API
        // server's own audience.
        for audiences in [Some(vec![AUDIENCE.to_owned()]), None] {
            let spec = TokenReviewSpec {
                token: Some(token.to_owned()),
                audiences,
            };
            let review = TokenReview {
                spec,
                ..TokenReview::default()
            };
            let answer =
                tokio::time::timeout(LIMIT, self.tokens.create(&PostParams::default(), &review))
                    .await;
            let answer = answer
                .map_err(|_| review_timed_out())?
                .map_err(|error| review_failed("tokenreviews", &error))?;
            if let Some(user) = answer
                .status
                .filter(|status| status.authenticated == Some(true))
                .and_then(|s| s.user)
            {
                return Ok(Some(user));
            }
        }
        Ok(None)
    }

    async fn is_allowed(
        &self,
        user: UserInfo,
        attributes: ResourceAttributes,
    ) -> Result<bool, Status> {
        let extra: Option<BTreeMap<String, Vec<String>>> = user.extra;
        let spec = SubjectAccessReviewSpec {
            user: user.username,
            uid: user.uid,
            groups: user.groups,
            extra,
            resource_attributes: Some(attributes),
            ..SubjectAccessReviewSpec::default()
        };
        let review = SubjectAccessReview {
            spec,
            ..SubjectAccessReview::default()
        };
        let answer =
            tokio::time::timeout(LIMIT, self.accesses.create(&PostParams::default(), &review))
                .await;
        let answer = answer
            .map_err(|_| review_timed_out())?
            .map_err(|error| review_failed("subjectaccessreviews", &error))?;
        Ok(answer.status.is_some_and(|status| status.allowed))
    }
}

fn review_timed_out() -> Status {
    Status::unavailable("the hub's API server did not answer in time: try again")
}

fn review_failed(resource: &str, error: &kube::Error) -> Status {
    // The request contains the caller's token; the answer of the API server does not.
    match error {
        kube::Error::Api(status) if status.code == 403 => {
            tracing::error!(
                resource,
                "may not create {resource}: upgrade the hub's chart, which gives that right"
            );
            Status::unavailable(format!(
                "the hub may not create {resource}: upgrade its chart"
            ))
        }
        _ => Status::unavailable("the hub cannot reach its API server now: try again"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_bearer_token_of_reasonable_length_is_taken() {
        let with = |value: &str| {
            let mut metadata = MetadataMap::new();
            metadata.insert("authorization", value.parse().unwrap());
            bearer(&metadata)
        };
        assert_eq!(with("Bearer abc").unwrap(), "abc");
        for wrong in [
            "",
            "Bearer ",
            "Basic abc",
            "abc",
            &format!("Bearer {}", "x".repeat(TOKEN_LIMIT + 1)),
        ] {
            let refused = with(wrong).unwrap_err();
            assert_eq!(refused.code(), tonic::Code::Unauthenticated);
            assert!(!refused.message().contains("abc"), "{refused}");
        }
        assert!(bearer(&MetadataMap::new()).is_err());
    }
}
