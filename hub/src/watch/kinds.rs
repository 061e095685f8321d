//! Discovery of the kinds that the hub's API server serves.
use kube::Client;
use kube::api::ApiResource;
use kube::discovery::{ApiCapabilities, Discovery, verbs};
use runnel_proto::model::{Kind, Kinds};
use runnel_transport::discovery::{served_kind, served_resources};

use super::READ_LIMIT;
use super::list::describe;

/// What the hub does with sources. A kind whose CRD is being deleted serves no create.
const VERBS: [&str; 4] = [verbs::GET, verbs::LIST, verbs::WATCH, verbs::CREATE];
/// Limit of the kinds that are kept: an API server becomes slow long before.
const KINDS: usize = 10_000;

/// Why the kinds could not be read.
#[derive(Debug, thiserror::Error)]
pub enum DiscoveryError {
    /// The API server returned an error or cannot be reached.
    #[error("{0}")]
    Api(String),
    /// The API server did not answer in time.
    #[error("the API server did not answer in time")]
    Timeout,
}

/// Reads the kinds that the API server serves.
///
/// # Errors
/// [`DiscoveryError`], when they cannot be read.
pub async fn read_kinds(client: Client) -> Result<Kinds, DiscoveryError> {
    let reading = Discovery::new(client).run_aggregated();
    let discovery = tokio::time::timeout(READ_LIMIT, reading)
        .await
        .map_err(|_| DiscoveryError::Timeout)?
        .map_err(|error| DiscoveryError::Api(describe(&error)))?;
    Ok(kinds(served_resources(&discovery)))
}

/// Returns the kinds that can be sources, in each version, the preferred one first.
fn kinds(served: impl Iterator<Item = (ApiResource, ApiCapabilities)>) -> Kinds {
    let served = served.filter_map(|(resource, can)| served_kind(&resource, &can, &VERBS));
    let known = Kind::supported().iter().cloned();
    known.chain(served).take(KINDS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::discovery::Scope;

    fn served(plural: &str, version: &str, operations: &[&str]) -> (ApiResource, ApiCapabilities) {
        let resource = ApiResource {
            group: "example.org".to_owned(),
            version: version.to_owned(),
            api_version: format!("example.org/{version}"),
            kind: "Widget".to_owned(),
            plural: plural.to_owned(),
        };
        let can = ApiCapabilities {
            scope: Scope::Namespaced,
            subresources: vec![],
            operations: operations.iter().map(ToString::to_string).collect(),
        };
        (resource, can)
    }

    #[test]
    fn kinds_without_the_needed_verbs_are_not_served() {
        let all = ["create", "get", "list", "patch", "watch"];
        let found = kinds(
            [
                served("widgets", "v2", &all),
                served("widgets", "v1", &all),
                // Its CRD is being deleted.
                served("leaving", "v1", &["delete", "get", "list", "watch"]),
                served("reviews", "v1", &["create"]),
            ]
            .into_iter(),
        );
        let version = |resource: &str| {
            found
                .preferred(resource)
                .map(|kind| kind.version.to_string())
        };
        assert_eq!(version("widgets.example.org").as_deref(), Some("v2"));
        assert_eq!(
            (
                version("leaving.example.org"),
                version("reviews.example.org")
            ),
            (None, None)
        );
        assert_eq!(version("secrets").as_deref(), Some("v1"));
    }

    #[test]
    fn number_of_kinds_is_bounded() {
        let many = (0..KINDS + 10)
            .map(|n| served(&format!("w{n}"), "v1", &["create", "get", "list", "watch"]));
        assert_eq!(kinds(many).iter().count(), KINDS);
    }
}
