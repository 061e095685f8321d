use serde_json::json;

use super::super::{content_of, is_never_a_source};
use super::*;

fn kinds() -> Kinds {
    let kind = |group, version, kind, plural, scope| Kind::new(group, version, kind, plural, scope);
    Kind::supported()
        .iter()
        .cloned()
        .chain([
            kind("", "v1", "Service", "services", Scope::Namespaced),
            kind("", "v1", "Namespace", "namespaces", Scope::Cluster),
            kind(
                "scheduling.k8s.io",
                "v1",
                "PriorityClass",
                "priorityclasses",
                Scope::Cluster,
            ),
            kind("example.org", "v1", "Tier", "tiers", Scope::Cluster),
            kind("apps", "v1", "Deployment", "deployments", Scope::Namespaced),
            kind(
                "coordination.k8s.io",
                "v1",
                "Lease",
                "leases",
                Scope::Namespaced,
            ),
            kind("", "v1", "Endpoints", "endpoints", Scope::Namespaced),
            kind(
                "runnel.dev",
                "v1alpha1",
                "ManifestBundle",
                "manifestbundles",
                Scope::Namespaced,
            ),
        ])
        .collect()
}

fn bundle() -> SourceRef {
    SourceRef::new(BUNDLE_KIND, "team", "app")
}

fn read(spec: Value) -> SourceContent {
    let key = RevisionKey::new(b"key");
    read_bundle(&bundle(), &json!({"spec": spec}), &kinds(), &key).unwrap()
}

fn manifests(spec: Value) -> BTreeMap<SourceRef, Manifest> {
    read(spec).bundle.unwrap().manifests
}

fn service(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": {"ports": [{"port": 80}]}})
}

/// The error of the only manifest.
fn error(manifest: Value) -> String {
    let read = manifests(json!({"manifests": [manifest]}));
    assert_eq!(read.len(), 1);
    let (_, manifest) = read.into_iter().next().unwrap();
    manifest.err().expect("it is refused").message.to_string()
}

#[test]
fn field_that_a_config_map_does_not_have_is_refused() {
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "dta": {"k": "v"},
    });
    let read = manifests(json!({"manifests": [map]}));
    let refused = read.values().next().unwrap().as_ref().err().unwrap();
    assert!(refused.message.contains("no field dta"), "{refused:?}");
}

#[test]
fn manifest_is_the_source_that_the_object_would_be() {
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "settings", "labels": {"app": "web"}, "annotations": {"meta.helm.sh/release-name": "r"}},
        "data": {"k": "v"},
    });
    let read = manifests(json!({"manifests": [map, service("web")]}));
    let names: Vec<_> = read.keys().map(ToString::to_string).collect();
    assert_eq!(names, ["configmaps/team/settings", "services/team/web"]);
    let kind = Kind::by_resource("configmaps").unwrap();
    let content = content_of(kind, &map, Origin::Manifest).ok().unwrap();
    let expected = RevisionKey::new(b"key").revision("configmaps", &content.to_bytes());
    let found = read[&SourceRef::new("configmaps", "team", "settings")]
        .as_ref()
        .ok()
        .unwrap();
    assert_eq!(found.revision, expected);
    assert!(found.payload.decode().unwrap() == content);
    assert!(found.denied.is_none(), "its author wrote all of it");
}

#[test]
fn endpoints_that_people_write_are_sent() {
    let manifest = json!({
        "apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "db"},
        "subsets": [{"addresses": [{"ip": "192.0.2.1"}], "ports": [{"port": 5432}]}],
    });
    let of = SourceRef::new("endpoints", "team", "db");
    let sent = &manifests(json!({"manifests": [manifest]}))[&of];
    assert!(sent.is_ok(), "{:?}", sent.as_ref().err());
    let kinds = kinds();
    let kind = kinds.preferred("endpoints").unwrap();
    assert!(is_never_a_source(kind, "db", &BTreeMap::new()));
}

#[test]
fn manifest_keeps_its_version() {
    let manifest = json!({"apiVersion": "apps/v1beta2", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {"replicas": 2}});
    let read = manifests(json!({"manifests": [manifest]}));
    let web = read[&SourceRef::new("deployments.apps", "team", "web")]
        .as_ref()
        .ok()
        .unwrap();
    assert_eq!(
        web.payload.decode().unwrap().version.as_deref(),
        Some("v1beta2")
    );
}

#[test]
fn kind_that_the_hub_does_not_serve_needs_a_plural() {
    let widget = json!({"apiVersion": "example.org/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"size": 3}});
    let unknown = read(json!({"manifests": [widget]}));
    assert!(unknown.has_unknown_kind());
    let message = error(widget.clone());
    assert!(
        message.starts_with("spec.manifests[0] of manifestbundles.runnel.dev/team/app (Widget w): the API server of the hub does not serve example.org/v1 Widget"),
        "{message}"
    );
    assert!(message.contains("spec.kinds"), "{message}");
    let kind = json!({"apiVersion": "example.org/v1", "kind": "Widget", "plural": "widgets"});
    let named = read(json!({"manifests": [widget], "kinds": [kind]}));
    assert!(!named.has_unknown_kind());
    let manifests = named.bundle.unwrap().manifests;
    assert!(manifests[&SourceRef::new("widgets.example.org", "team", "w")].is_ok());
}

#[test]
fn named_kind_hides_no_other_one() {
    let wrong = |kind: Value| {
        let manifest = json!({"apiVersion": kind["apiVersion"], "kind": kind["kind"], "metadata": {"name": "w"}});
        let read = manifests(json!({"manifests": [manifest], "kinds": [kind]}));
        read.into_values()
            .next()
            .unwrap()
            .err()
            .map(|error| error.message.to_string())
    };
    for (kind, part) in [
        (
            json!({"apiVersion": "v1", "kind": "Harmless", "plural": "secrets"}),
            "that of Secret",
        ),
        (
            json!({"apiVersion": "apps/v1", "kind": "Harmless", "plural": "deployments"}),
            "that of Deployment",
        ),
        (
            json!({"apiVersion": "example.org/v1", "kind": "Widget", "plural": "Widgets"}),
            "the plural `Widgets`",
        ),
        (
            json!({"apiVersion": "example.org/v1", "kind": "Widget", "plural": "widgets.other"}),
            "the plural",
        ),
    ] {
        let message = wrong(kind.clone()).unwrap_or_else(|| panic!("{kind} is accepted"));
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn manifest_of_a_kind_without_namespaces_is_in_none() {
    let of = |api_version: &str, kind: &str| json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "x"}});
    let bundle = read(json!({"manifests": [
        of("v1", "Namespace"), of("scheduling.k8s.io/v1", "PriorityClass"), service("x"),
    ]}));
    let bundle = bundle.bundle.unwrap();
    let sent = |is_namespaced| -> Vec<String> {
        let sent = bundle.sent_by(is_namespaced);
        sent.filter(|(_, manifest)| manifest.is_ok())
            .map(|(intent, _)| intent.to_string())
            .collect()
    };
    assert_eq!(
        sent(false),
        [
            "namespaces/x",
            "priorityclasses.scheduling.k8s.io/x",
            "services/team/x"
        ]
    );
    assert_eq!(sent(true), ["services/team/x"]);
    let errors: Vec<_> = bundle
        .sent_by(true)
        .filter_map(|(_, manifest)| manifest.err())
        .collect();
    assert!(
        errors[0].message.starts_with(
            "spec.manifests[0] of manifestbundles.runnel.dev/team/app (Namespace x): it belongs to no namespace"
        ) && errors[0].message.contains("ClusterDistributionRule"),
        "{}",
        errors[0].message
    );
    assert_eq!(errors.len(), 2);
}

#[test]
fn custom_kind_without_namespaces_is_named_with_its_scope() {
    let of = |kind: &str| json!({"apiVersion": "example.org/v1", "kind": kind, "metadata": {"name": "x"}});
    // The hub serves tiers, and not gates.
    let message = |kind: &str, named: Value| {
        let mut entry = json!({"apiVersion": "example.org/v1", "kind": kind});
        let fields = entry.as_object_mut().unwrap();
        fields.extend(named.as_object().unwrap().clone());
        let read = manifests(json!({"manifests": [of(kind)], "kinds": [entry]}));
        let (intent, manifest) = read.into_iter().next().unwrap();
        manifest.map_or_else(|error| error.message.to_string(), |_| intent.to_string())
    };
    let cluster = |plural: &str| json!({"plural": plural, "scope": "Cluster"});
    assert_eq!(message("Tier", cluster("tiers")), "tiers.example.org/x");
    assert_eq!(message("Gate", cluster("gates")), "gates.example.org/x");
    for wrong in [
        error(of("Tier")),
        message("Tier", json!({"plural": "tiers"})),
        message("Tier", cluster("widgets")),
    ] {
        assert!(
            wrong.contains("with plural tiers and scope Cluster"),
            "{wrong}"
        );
    }
}

#[test]
fn wrong_manifest_is_named_and_the_others_are_sent() {
    let spec =
        json!({"manifests": [service("a"), {"apiVersion": "v1", "kind": "Service"}, service("b")]});
    let read = manifests(spec);
    assert_eq!(read.values().filter(|manifest| manifest.is_ok()).count(), 2);
    let error = read[&bundle()].as_ref().err().unwrap();
    assert_eq!(
        &*error.message,
        "spec.manifests[1] of manifestbundles.runnel.dev/team/app (Service): metadata.name is missing"
    );
}

#[test]
fn what_no_rule_may_send_is_refused() {
    let of = |api_version: &str, kind: &str, extra: Value| {
        let mut manifest =
            json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "x"}});
        let metadata = manifest["metadata"].as_object_mut().unwrap();
        metadata.extend(extra.as_object().unwrap().clone());
        error(manifest)
    };
    for (api_version, kind, extra, part) in [
        ("v1", "Secret", json!({}), "distribute the Secret itself"),
        (
            "v1",
            "Namespace",
            json!({"name": "kube-system"}),
            "every cluster makes",
        ),
        (
            "coordination.k8s.io/v1",
            "Lease",
            json!({}),
            "every cluster makes",
        ),
        (
            "runnel.dev/v1alpha1",
            "ManifestBundle",
            json!({}),
            "a bundle in a bundle",
        ),
        (
            "v1",
            "Service",
            json!({"namespace": "other"}),
            "metadata.namespace is not allowed",
        ),
        (
            "v1",
            "Service",
            json!({"finalizers": ["a/b"]}),
            "metadata.finalizers is not for a manifest",
        ),
        (
            "v1",
            "Service",
            json!({"annotations": {"runnel.dev/distribute": "false"}}),
            "annotation",
        ),
        (
            "v1",
            "Service",
            json!({"name": "A_b"}),
            "no name of an object",
        ),
        (
            "v1",
            "ConfigMap",
            json!({"name": "kube-root-ca.crt"}),
            "every cluster makes",
        ),
        ("", "Service", json!({}), "apiVersion is missing"),
        ("v1", "", json!({}), "kind is missing"),
    ] {
        let message = of(api_version, kind, extra);
        assert!(message.contains(part), "{kind}: {message}");
    }
}

#[test]
fn no_value_of_a_secret_is_in_an_error() {
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "x"}, "stringData": {"k": "hunter2"},
    });
    assert!(!error(secret).contains("hunter2"));
}

#[test]
fn manifest_twice_is_an_error_of_it_alone() {
    let read = manifests(json!({"manifests": [service("a"), service("b"), service("a")]}));
    let error = read[&SourceRef::new("services", "team", "a")]
        .as_ref()
        .err()
        .unwrap();
    assert!(
        error.message.contains("spec.manifests[2]") && error.message.contains("the same object")
    );
    assert!(read[&SourceRef::new("services", "team", "b")].is_ok());
}

#[test]
fn manifest_above_the_limit_of_agents_is_refused() {
    let map = |bytes: usize| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "big"}, "data": {"k": "x".repeat(bytes)}});
    let message = error(map(PAYLOAD_LIMIT));
    assert!(
        message.contains(&format!("an agent accepts {PAYLOAD_LIMIT}")),
        "{message}"
    );
    assert!(message.contains("(ConfigMap big)"), "{message}");
    let fits = manifests(json!({"manifests": [map(PAYLOAD_LIMIT - 100)]}));
    assert!(fits.into_values().all(|manifest| manifest.is_ok()));
}

#[test]
fn revision_changes_with_any_manifest_and_with_its_error() {
    let revision = |manifests: Value| read(json!({"manifests": manifests})).revision.0;
    let one = revision(json!([service("a")]));
    assert_eq!(one, revision(json!([service("a")])));
    assert_ne!(one, revision(json!([service("b")])));
    assert_ne!(one, revision(json!([service("a"), {"kind": "Service"}])));
    let annotated = |tool: &str| {
        let mut service = service("a");
        service["metadata"]["annotations"] = json!({"meta.helm.sh/release-name": tool});
        revision(json!([service]))
    };
    assert_ne!(annotated("a"), annotated("b"), "rules may allow them");
}

#[test]
fn long_words_of_a_manifest_are_cut_in_errors() {
    let message = error(
        json!({"apiVersion": "v1", "kind": "K\u{202e}".repeat(500), "metadata": {"name": "n\n".repeat(500)}}),
    );
    assert!(message.len() < 1000, "{}", message.len());
    assert!(!message.contains('\u{202e}') && !message.contains('\n'));
}
