//! The kinds that this cluster serves: reads them from the discovery of the API server, and finds the version in which a
//! copy is read and written.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::stream::{self, StreamExt};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::Client;
use kube::api::{Api, DynamicObject, ListParams};
use kube::discovery::verbs;
use runnel_proto::model::{
    CUSTOM_RESOURCE_DEFINITIONS, Kind, Kinds, Scope, SourceRef, split_resource,
};
use runnel_transport::discovery::read_served;
use serde_json::Value;
use tokio::sync::{Notify, watch};

use crate::call::{Call, with_timeout};
use runnel_agent_core::classify;
use runnel_agent_core::copy::CopyError;
use runnel_agent_core::feedback::FeedbackPaths;
use runnel_agent_core::live::{self, Live};
use runnel_agent_core::managed_fields::apply_entry;
use runnel_agent_core::seal::Sealer;

/// What the agent does with copies. A kind without one of these verbs cannot be distributed.
const VERBS: [&str; 6] = [
    verbs::CREATE,
    verbs::DELETE,
    verbs::GET,
    verbs::LIST,
    verbs::PATCH,
    verbs::WATCH,
];

/// The kinds that this cluster serves, of those that the policy names. Clones share them.
#[derive(Clone, Default)]
pub struct KindRegistry {
    kinds: Arc<watch::Sender<Kinds>>,
    recheck: Arc<Notify>,
    feedback: Arc<watch::Sender<FeedbackPaths>>,
    defined: Arc<Notify>,
    /// Whether all objects of a kind, in one version, were stored with the values that the agent had sent.
    stored_as_sent: Arc<watch::Sender<BTreeMap<Kind, bool>>>,
}

impl KindRegistry {
    /// Returns a kind in the version that the API server prefers; `None` if it is not served.
    pub fn get(&self, resource: &str) -> Option<Kind> {
        let known = Kind::by_resource(resource).cloned();
        known.or_else(|| self.kinds.borrow().preferred(resource).cloned())
    }

    /// Returns the kind of a copy in the version that the API server prefers.
    ///
    /// # Errors
    /// The error of the copy, if the kind is not served, or not in its scope.
    pub fn of_copy(&self, copy: &SourceRef) -> Result<Kind, CopyError> {
        let kind = self.get(&copy.resource);
        let kind = kind.ok_or_else(|| classify::not_served(&copy.resource))?;
        if (kind.scope == Scope::Cluster) == copy.is_cluster_scoped() {
            Ok(kind)
        } else {
            Err(classify::other_scope(&kind))
        }
    }

    /// Returns a kind in this version; `None` if it is not served in it.
    pub fn in_version(&self, resource: &str, version: &str) -> Option<Kind> {
        self.kinds.borrow().in_version(resource, version).cloned()
    }

    /// Returns the kind in the version in which the agent applied an object, if that is another one than that of `kind`.
    ///
    /// The managed fields of an object are those of one version, so that the object must be read in it.
    pub fn applied_in(&self, kind: &Kind, metadata: &ObjectMeta) -> Option<Kind> {
        let entry = apply_entry(metadata).filter(|_| kind.content.is_owned())?;
        let applied = entry.api_version.as_deref()?;
        if applied == &*kind.api_version {
            return None;
        }
        let version = applied.rsplit('/').next()?;
        let other = self.in_version(&kind.resource, version)?;
        (*other.api_version == *applied).then_some(other)
    }

    /// Reduces a live object, with the values of the fields that rules have returned.
    pub fn reduce(
        &self,
        kind: &Kind,
        object: &DynamicObject,
        sealer: &Sealer,
    ) -> Option<(SourceRef, Live)> {
        let (copy, mut live) = live::reduce(kind, object, sealer)?;
        live.feedback = self.feedback.borrow().read(kind, object);
        Some((copy, live))
    }

    /// Replaces the paths of the fields that rules have returned.
    pub fn set_feedback(&self, paths: FeedbackPaths) {
        self.feedback.send_replace(paths);
    }

    /// Whether the API server has stored at least one object of this kind, and each one with the values that the agent had sent,
    /// ignored fields aside.
    ///
    /// A dry run costs as much as an apply, so there is none before applies of such a kind.
    pub fn stores_as_sent(&self, kind: &Kind) -> bool {
        self.stored_as_sent
            .borrow()
            .get(kind)
            .is_some_and(|all| *all)
    }

    /// Records whether the API server stores an object with the values that the agent has sent. Once it does not, objects of
    /// this kind and version count as normalized until the agent restarts.
    pub fn record_stored(&self, kind: &Kind, is_as_sent: bool) {
        self.stored_as_sent
            .send_modify(|all| *all.entry(kind.clone()).or_insert(true) &= is_as_sent);
    }

    /// Requests that the kinds are read again, because the API server does not know one of them.
    pub fn request_recheck(&self) {
        self.recheck.notify_one();
    }

    /// Waits for a request to read the kinds again.
    pub async fn recheck_requested(&self) {
        self.recheck.notified().await;
    }

    /// Requests that the kinds are read again at once, if a definition shows that its kind is served in other versions than the
    /// known ones.
    pub fn definition_seen(&self, definition: &DynamicObject) {
        let resource = definition.metadata.name.as_deref().unwrap_or_default();
        let served = served_versions(&definition.data);
        let kinds = self.kinds.borrow();
        let known: BTreeSet<&str> = kinds
            .versions(resource)
            .map(|kind| &*kind.version)
            .collect();
        if served != known {
            self.defined.notify_one();
        }
    }

    /// Waits for a definition whose kind is served in other versions than the known ones.
    pub async fn definition_changed(&self) {
        self.defined.notified().await;
    }

    /// Returns the kinds. They cannot be replaced meanwhile.
    pub fn current(&self) -> watch::Ref<'_, Kinds> {
        self.kinds.borrow()
    }

    /// Replaces the kinds.
    pub fn replace(&self, kinds: Kinds) {
        self.kinds.send_replace(kinds);
    }
}

/// Returns the versions in which the API server serves the kind of a CustomResourceDefinition: none before it is established.
fn served_versions(definition: &Value) -> BTreeSet<&str> {
    let list = |path: &str| definition.pointer(path).and_then(Value::as_array);
    let is_established =
        |condition: &Value| condition["type"] == "Established" && condition["status"] == "True";
    if !list("/status/conditions").is_some_and(|all| all.iter().any(is_established)) {
        return BTreeSet::new();
    }
    let served = list("/spec/versions").into_iter().flatten();
    let served = served.filter(|version| version["served"] == true);
    served
        .filter_map(|version| version["name"].as_str())
        .collect()
}

/// The kinds of some names in this cluster.
#[derive(Debug, Default)]
pub struct KindsRead {
    /// The kinds that the API server serves, or may serve, in every version.
    pub kinds: Kinds,
    /// The names of the kinds that are not served, and whose definitions are known to be deleted: none of their objects exists.
    pub deleted: BTreeSet<Arc<str>>,
}

/// Limit of the reads of definitions at once.
const DEFINITIONS: usize = 4;

/// Reads the kinds of these names. `known`: the kinds that were served before. They stay known while the API server cannot
/// reach their group, and while the discovery lacks them and their definitions may exist.
pub async fn discover(client: Client, named: BTreeSet<Arc<str>>, known: Kinds) -> Call<KindsRead> {
    let reading = read_served(client.clone(), Some(&named), &VERBS);
    let mut read = with_timeout(reading).await?;
    let is_missing =
        |name: &&Arc<str>| read.kinds.preferred(name).is_none() && !read.is_unreadable(name);
    let missing: Vec<_> = named.iter().filter(is_missing).cloned().collect();
    let undefined = stream::iter(missing).map(|name| {
        let client = client.clone();
        async move { has_no_definition(client, &name).await.then_some(name) }
    });
    let undefined: Vec<_> = undefined.buffered(DEFINITIONS).collect().await;
    let mut deleted: BTreeSet<_> = undefined.into_iter().flatten().collect();
    let is_shown = |name: &Arc<str>| read.groups.contains(split_resource(name).1);
    if !deleted.iter().all(is_shown) {
        let aggregated = aggregated_groups(client).await;
        deleted.retain(|name| {
            let has_service = |groups: &BTreeSet<String>| groups.contains(split_resource(name).1);
            is_shown(name) || aggregated.as_ref().is_ok_and(|groups| !has_service(groups))
        });
    }
    read.keep(&known, |read, name| {
        let is_missing = read.kinds.preferred(name).is_none() && !deleted.contains(name);
        named.contains(name) && (is_missing || read.is_unreadable(name))
    });
    Ok(KindsRead {
        kinds: read.kinds,
        deleted,
    })
}

/// Whether a kind is known to have no CustomResourceDefinition.
async fn has_no_definition(client: Client, resource: &str) -> bool {
    let definitions: Api<CustomResourceDefinition> = Api::all(client);
    let definition = with_timeout(definitions.get_metadata(resource)).await;
    let copy = SourceRef::new(CUSTOM_RESOURCE_DEFINITIONS, "", resource);
    definition.is_err_and(|error| error.is_absent(&copy))
}

/// Returns the API groups that have an API service. One of them may not be in the discovery for a moment.
async fn aggregated_groups(client: Client) -> Call<BTreeSet<String>> {
    let services: Api<APIService> = Api::all(client);
    let services = with_timeout(services.list_metadata(&ListParams::default())).await?;
    let names = services
        .into_iter()
        .filter_map(|service| service.metadata.name);
    Ok(names
        .filter_map(|name| Some(name.split_once('.')?.1.to_owned()))
        .collect())
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use futures::FutureExt;
    use http::{Request, Response};
    use runnel_proto::model::Reason;
    use serde_json::json;

    use super::*;

    fn widget(version: &str) -> Kind {
        Kind::new(
            "example.org",
            version,
            "Widget",
            "widgets",
            Scope::Namespaced,
        )
    }

    fn applied(api_version: &str) -> ObjectMeta {
        let entry =
            json!({"manager": "runnel-agent", "operation": "Apply", "apiVersion": api_version});
        serde_json::from_value(json!({"managedFields": [entry]})).unwrap()
    }

    #[test]
    fn object_is_read_in_the_version_in_which_it_was_applied() {
        let registry = KindRegistry::default();
        registry.replace([widget("v2"), widget("v1")].into_iter().collect());
        let preferred = registry.get("widgets.example.org").unwrap();
        assert_eq!(preferred, widget("v2"));
        let read_in = |api_version: &str| registry.applied_in(&preferred, &applied(api_version));
        assert_eq!(read_in("example.org/v1"), Some(widget("v1")));
        for other in ["example.org/v2", "example.org/v3", "example.com/v1", "v1"] {
            assert_eq!(read_in(other), None, "{other}");
        }
        assert_eq!(
            registry.applied_in(&preferred, &ObjectMeta::default()),
            None
        );
        let config_maps = registry.get("configmaps").unwrap();
        assert_eq!(registry.applied_in(&config_maps, &applied("v2")), None);
        registry.replace(Kinds::default());
        assert_eq!(registry.get("widgets.example.org"), None);
        assert!(registry.get("secrets").is_some());
    }

    #[test]
    fn copy_of_another_scope_has_no_kind() {
        let registry = KindRegistry::default();
        let classes = Kind::new("example.org", "v1", "Class", "classes", Scope::Cluster);
        registry.replace([widget("v1"), classes.clone()].into_iter().collect());
        let copy = |resource, namespace| SourceRef::new(resource, namespace, "x");
        let kind = registry.of_copy(&copy("classes.example.org", ""));
        assert_eq!(kind, Ok(classes));
        for (other, text) in [
            (copy("classes.example.org", "team-a"), "have no namespace"),
            (copy("widgets.example.org", ""), "are in namespaces"),
            (copy("others.example.org", ""), "does not serve"),
        ] {
            let error = registry.of_copy(&other).unwrap_err();
            assert_eq!(error.reason, Reason::KindNotServed);
            assert!(error.message.contains(text), "{}", error.message);
        }
    }

    #[test]
    fn definition_that_shows_other_versions_is_noticed() {
        let definition = |established: &str, versions: &[(&str, bool)]| -> DynamicObject {
            let versions: Vec<_> = versions
                .iter()
                .map(|(name, served)| json!({"name": name, "served": served}))
                .collect();
            serde_json::from_value(json!({
                "metadata": {"name": "widgets.example.org"},
                "spec": {"versions": versions},
                "status": {"conditions": [{"type": "Established", "status": established}]},
            }))
            .unwrap()
        };
        let registry = KindRegistry::default();
        let is_noticed = |definition: &DynamicObject| {
            registry.definition_seen(definition);
            registry.definition_changed().now_or_never().is_some()
        };
        let both = definition("True", &[("v1", true), ("v2", true), ("v0", false)]);
        assert!(!is_noticed(&definition("False", &[("v1", true)])));
        assert!(is_noticed(&both));
        registry.replace([widget("v2"), widget("v1")].into_iter().collect());
        assert!(!is_noticed(&both));
        assert!(is_noticed(&definition(
            "True",
            &[("v2", true), ("v1", false)]
        )));
    }

    /// Reads the kinds `widgets.example.org` and `gears.example.com` of an API server that shows these groups, has these API
    /// services, and answers with this status to a read of their definitions. The first one was served before.
    async fn read(groups: Value, services: &'static [&str], definition: u16) -> KindsRead {
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let path = request.uri().path();
            let (code, body) = if path == "/apis" {
                (200, json!({"metadata": {}, "items": groups}))
            } else if path.ends_with("/apiservices") {
                let items = services
                    .iter()
                    .map(|name| json!({"metadata": {"name": name}}));
                let items: Vec<_> = items.collect();
                let list = json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList", "metadata": {}, "items": items});
                (200, list)
            } else if definition == 200 {
                (200, json!({"metadata": {"name": "widgets.example.org"}}))
            } else {
                let (_, name) = path.rsplit_once('/').unwrap();
                let reason = if definition == 404 { "NotFound" } else { "" };
                let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": definition,
                    "reason": reason, "details": {"name": name, "kind": "customresourcedefinitions"}});
                (definition, status)
            };
            let answer = Response::builder()
                .status(code)
                .body(Body::from(body.to_string()));
            async move { Ok::<_, std::convert::Infallible>(answer.unwrap()) }
        });
        let client = Client::new(service, "default");
        let named = ["widgets.example.org".into(), "gears.example.com".into()];
        let known = [widget("v1")].into_iter().collect();
        discover(client, named.into(), known).await.ok().unwrap()
    }

    #[tokio::test]
    async fn kind_is_deleted_only_with_its_definition() {
        let group =
            |version: Value| json!([{"metadata": {"name": "example.org"}, "versions": [version]}]);
        let names = |read: &KindsRead| -> Vec<String> {
            read.deleted.iter().map(ToString::to_string).collect()
        };
        let both = ["gears.example.com", "widgets.example.org"];
        let is_known = |read: &KindsRead| read.kinds.preferred("widgets.example.org").is_some();

        let gone = read(json!([]), &["v1.apps"], 404).await;
        assert_eq!(
            (names(&gone), is_known(&gone)),
            (both.map(str::to_owned).to_vec(), false)
        );
        for definition in [200, 403, 500] {
            let unknown = read(json!([]), &[], definition).await;
            assert_eq!(
                (names(&unknown), is_known(&unknown)),
                (vec![], true),
                "{definition}"
            );
        }
        // Its group has an API service that the discovery does not show.
        let hidden = read(json!([]), &["v1.example.org"], 404).await;
        assert_eq!(
            (names(&hidden), is_known(&hidden)),
            (vec![both[0].to_owned()], true)
        );
        let current = json!({"version": "v1", "freshness": "Current", "resources": []});
        let shown = read(group(current), &["v1.example.org"], 404).await;
        assert_eq!(
            (names(&shown), is_known(&shown)),
            (both.map(str::to_owned).to_vec(), false)
        );
        // The API server cannot reach it.
        let stale = json!({"version": "v1", "freshness": "Stale", "resources": []});
        let stale = read(group(stale), &["v1.example.org"], 404).await;
        assert_eq!(
            (names(&stale), is_known(&stale)),
            (vec![both[0].to_owned()], true)
        );
    }

    #[tokio::test]
    async fn kind_is_known_in_every_version() {
        let version = |version: &str| {
            let resource = json!({
                "resource": "widgets", "responseKind": {"group": "example.org", "version": version, "kind": "Widget"},
                "scope": "Namespaced", "singularResource": "widget", "verbs": VERBS,
            });
            json!({"version": version, "freshness": "Current", "resources": [resource]})
        };
        let versions = [version("v2"), version("v1beta1")];
        let group = json!([{"metadata": {"name": "example.org"}, "versions": versions}]);
        let found = read(group, &[], 404).await.kinds;
        let found: Vec<_> = found.versions("widgets.example.org").collect();
        let versions: Vec<_> = found.iter().map(|kind| &*kind.version).collect();
        assert_eq!(versions, ["v2", "v1beta1"]);
    }

    #[tokio::test]
    async fn kind_without_a_verb_of_the_agent_is_not_served() {
        let read_with = async |verbs: &[&str]| {
            let resource = json!({
                "resource": "gears", "responseKind": {"group": "example.com", "version": "v1", "kind": "Gear"},
                "scope": "Namespaced", "singularResource": "gear", "verbs": verbs,
            });
            let version = json!({"version": "v1", "freshness": "Current", "resources": [resource]});
            let group = json!([{"metadata": {"name": "example.com"}, "versions": [version]}]);
            let found = read(group, &[], 404).await.kinds;
            found.preferred("gears.example.com").is_some()
        };
        assert!(read_with(&VERBS).await);
        for missing in VERBS {
            let others: Vec<_> = VERBS.into_iter().filter(|verb| *verb != missing).collect();
            assert!(!read_with(&others).await, "{missing}");
        }
    }
}
