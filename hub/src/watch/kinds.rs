//! Discovery of the kinds that the hub's API server serves.
use kube::Client;
use kube::discovery::verbs;
use runnel_proto::model::{Kind, Kinds};
use runnel_transport::discovery::{ServedKinds, read_served};

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

/// Reads the kinds that the API server serves. `known`: the kinds that it served before. They stay known while it cannot reach
/// their group.
///
/// # Errors
/// [`DiscoveryError`], when they cannot be read.
pub async fn read_kinds(client: Client, known: Kinds) -> Result<ServedKinds, DiscoveryError> {
    let reading = read_served(client, None, &VERBS);
    let read = tokio::time::timeout(READ_LIMIT, reading)
        .await
        .map_err(|_| DiscoveryError::Timeout)?
        .map_err(|error| DiscoveryError::Api(describe(&error)))?;
    Ok(sources(read, &known))
}

/// Returns the kinds that can be sources, in each version, the preferred one first.
fn sources(mut read: ServedKinds, known: &Kinds) -> ServedKinds {
    read.keep(known, ServedKinds::is_unreadable);
    let supported = Kind::supported().iter();
    let all = supported.chain(read.kinds.in_all_versions());
    read.kinds = all.take(KINDS).cloned().collect();
    read
}

#[cfg(test)]
mod tests {
    use runnel_proto::model::Scope;

    use super::*;

    fn widget(plural: &str, version: &str) -> Kind {
        Kind::new("example.org", version, "Widget", plural, Scope::Namespaced)
    }

    fn read(kinds: impl IntoIterator<Item = Kind>, stale: &[&str]) -> ServedKinds {
        ServedKinds {
            kinds: kinds.into_iter().collect(),
            stale: stale.iter().map(ToString::to_string).collect(),
            ..ServedKinds::default()
        }
    }

    #[test]
    fn kinds_of_a_group_that_is_not_reached_stay_known() {
        let known: Kinds = [widget("widgets", "v1"), widget("gears", "v1")]
            .into_iter()
            .collect();
        let versions = |found: ServedKinds, resource: &str| {
            let versions = found.kinds.versions(resource);
            versions
                .map(|kind| kind.version.to_string())
                .collect::<Vec<_>>()
        };
        let one = || read([widget("widgets", "v2")], &["example.org"]);
        let found = sources(one(), &known);
        assert!(found.is_unreadable("gears.example.org"));
        assert_eq!(versions(found, "gears.example.org"), ["v1"]);
        assert_eq!(
            versions(sources(one(), &known), "widgets.example.org"),
            ["v2", "v1"]
        );
        let current = || sources(read([widget("widgets", "v2")], &[]), &known);
        assert_eq!(versions(current(), "widgets.example.org"), ["v2"]);
        assert!(versions(current(), "gears.example.org").is_empty());
        assert_eq!(versions(current(), "secrets"), ["v1"]);
    }

    #[test]
    fn number_of_kinds_is_bounded() {
        let many = (0..KINDS + 10).map(|n| widget(&format!("w{n}"), "v1"));
        let found = sources(read(many, &[]), &Kinds::default());
        assert_eq!(found.kinds.iter().count(), KINDS);
    }
}
