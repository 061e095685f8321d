//! The grant `everything` of a new hub, so that rules work without further setup. It is created
//! once in a hub's life, and only if there is no grant. Later changes by an administrator stay.
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use kube::api::{Api, ListParams, PostParams};
use runnel_proto::model::Kind;

use crate::call::{ApiError, with_timeout};
use runnel_api::{
    Clusters, DistributionGrant, DistributionGrantSpec, GrantedNamespaces, GrantedPolicies,
    GrantedRules,
};

/// The name of the grant.
const EVERYTHING: &str = "everything";
/// An entry of the hub's identity, once the grant has been made or was not needed: it is not made again. It is part of the
/// data, because tools that back up a Secret's data often leave its annotations out.
const DONE: &str = "first-grant";
const IDENTITY: &str = "runnel-hub-identity";

/// Creates the initial grant, unless it was created before or any grant exists. Every replica may
/// try: the grant is the same.
///
/// # Errors
/// The error of the API server.
pub async fn make_first_grant(client: &Client, namespace: &str) -> Result<(), ApiError> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let mut identity =
        with_timeout(format!("read Secret {IDENTITY}"), secrets.get(IDENTITY)).await?;
    if identity
        .data
        .as_ref()
        .is_some_and(|data| data.contains_key(DONE))
    {
        return Ok(());
    }
    let grants: Api<DistributionGrant> = Api::all(client.clone());
    if with_timeout(
        "list DistributionGrants",
        grants.list(&ListParams::default().limit(1)),
    )
    .await?
    .items
    .is_empty()
    {
        match with_timeout(
            format!("create DistributionGrant {EVERYTHING}"),
            grants.create(&PostParams::default(), &everything()),
        )
        .await
        {
            Ok(_) => tracing::info!(
                "created the DistributionGrant {EVERYTHING}: narrow it before you allow tenants to write rules"
            ),
            Err(error) if error.is_conflict() => {}
            Err(error) => return Err(error),
        }
    }
    identity
        .data
        .get_or_insert_default()
        .insert(DONE.to_owned(), ByteString(EVERYTHING.into()));
    with_timeout(
        format!("write Secret {IDENTITY}"),
        secrets.replace(IDENTITY, &PostParams::default(), &identity),
    )
    .await
    .map(drop)
}

/// The grant of everything that a rule can request.
fn everything() -> DistributionGrant {
    let all = || GrantedNamespaces {
        all: true,
        ..GrantedNamespaces::default()
    };
    let spec = DistributionGrantSpec {
        rules: GrantedRules { namespaces: all() },
        resources: Kind::resources().map(ToString::to_string).collect(),
        clusters: Clusters {
            all: true,
            ..Clusters::default()
        },
        namespaces: all(),
        policies: GrantedPolicies {
            overwrite: true,
            adopt: true,
            create_namespaces: true,
        },
        max_copies: None,
        max_bytes: None,
    };
    DistributionGrant::new(EVERYTHING, spec)
}
