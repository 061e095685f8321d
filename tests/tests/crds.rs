//! The custom resources on a real API server: accepted objects, defaults, and refusals with their
//! messages.

#[path = "crds/cases.rs"]
mod cases;
#[path = "crds/forms.rs"]
mod forms;
#[path = "crds/kubectl.rs"]
mod kubectl;

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, PostParams};
use kube::{Api, ResourceExt};
use runnel_api::{DistributionRuleSpec, MemberClusterSpec, crds, files, limits};
use runnel_tests::control_plane::{ControlPlane, Options};
use runnel_tests::wait::eventually;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

const SOON: Duration = Duration::from_secs(30);

static HUB: OnceCell<ControlPlane> = OnceCell::const_new();

/// A control plane that has the CRDs, shared by the tests of this file.
async fn hub() -> Result<&'static ControlPlane> {
    HUB.get_or_try_init(|| async {
        let hub = ControlPlane::start("crds", Options::default()).await?;
        let manifests: Vec<String> = files().into_iter().map(|(_, text)| text).collect();
        // The files as kubectl reads them; a warning of the API server is an error here.
        let apply = ["apply", "--warnings-as-errors", "--server-side", "-f", "-"];
        hub.kubectl_stdin(&apply, &manifests.concat()).await?;
        let api: Api<CustomResourceDefinition> = Api::all(hub.client().await?);
        for crd in crds() {
            let name = crd.name_any();
            eventually(&format!("{name} to be established"), SOON, async || {
                let crd = api.get(&name).await?;
                let conditions = crd
                    .status
                    .unwrap_or_default()
                    .conditions
                    .unwrap_or_default();
                if let Some(bad) = conditions
                    .iter()
                    .find(|condition| is_complaint(&condition.type_, &condition.status))
                {
                    bail!("{} is {}: {:?}", bad.type_, bad.status, bad.message);
                }
                Ok(conditions
                    .iter()
                    .any(|c| c.type_ == "Established" && c.status == "True")
                    .then_some(()))
            })
            .await?;
        }
        // Established CRDs are discovered a moment later.
        eventually("kubectl to know them", SOON, async || {
            let known = hub
                .kubectl(&["api-resources", "--api-group=runnel.dev", "-o", "name"])
                .await?;
            let names: Vec<_> = known.lines().collect();
            ensure!(
                crds().iter().all(|crd| names.contains(&&*crd.name_any())),
                "{names:?}"
            );
            // Their schemas are published last.
            for name in names {
                hub.kubectl(&["explain", name]).await?;
            }
            Ok(Some(()))
        })
        .await?;
        Ok(hub)
    })
    .await
}

fn is_complaint(condition_type: &str, status: &str) -> bool {
    let wanted = if matches!(condition_type, "Established" | "NamesAccepted") {
        "True"
    } else {
        "False"
    };
    status != wanted
}

/// Returns the object that the API server would store, or its refusal.
async fn ask(kind: &str, spec: &Value) -> Result<Result<Value, String>> {
    ask_named(kind, "example", spec).await
}

async fn ask_named(kind: &str, name: &str, spec: &Value) -> Result<Result<Value, String>> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("runnel.dev", "v1alpha1", kind));
    let client = hub().await?.client().await?;
    let api: Api<DynamicObject> = match kind {
        "DistributionRule" => Api::namespaced_with(client, "default", &resource),
        _ => Api::all_with(client, &resource),
    };
    let object = DynamicObject::new(name, &resource).data(json!({"spec": spec}));
    let only_ask = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    match api.create(&only_ask, &object).await {
        Ok(stored) => Ok(Ok(stored.data["spec"].clone())),
        Err(kube::Error::Api(status)) => Ok(Err(status.message.clone())),
        Err(error) => Err(error).context("the API server did not answer"),
    }
}

async fn accepted(kind: &str, what: &str, spec: &Value) -> Result<Value> {
    ask(kind, spec)
        .await?
        .map_err(|output| anyhow::anyhow!("{kind}, {what}: refused with {output}"))
}

async fn refused(kind: &str, name: &str, what: &str, spec: &Value, words: &[&str]) -> Result<()> {
    let Err(output) = ask_named(kind, name, spec).await? else {
        bail!("{kind}, {what}: accepted")
    };
    for word in words {
        ensure!(
            output.contains(word),
            "{kind}, {what}: the refusal does not say {word:?}: {output}"
        );
    }
    // Printed for review: the user's view.
    println!("{kind}, {what}:\n  {output}");
    Ok(())
}

/// The five lines of spec that make the smallest rule.
fn smallest() -> Value {
    json!({
        "sources": [{"resources": ["configmaps", "secrets"], "selector": {"matchLabels": {"rule": "test"}}}],
        "clusters": {"selector": {"matchLabels": {"env": "prod"}}},
        "namespaces": {"names": ["default", "another-test"]},
    })
}

fn everything() -> Value {
    json!({
        "sources": [
            {"resources": ["configmaps"], "names": ["ca", "tls-*", "*.example.com", "*"], "exclude": ["tls-old-*", "a.b"]},
            {"resources": ["secrets"], "names": [], "selector": {
                "matchLabels": {"app": "x", "example.com/Team_1": "", "tier": "A.b_c-1"},
                "matchExpressions": [
                    {"key": "env", "operator": "In", "values": ["prod", ""]},
                    {"key": "env", "operator": "NotIn", "values": ["lab"]},
                    {"key": "sub.example.com/x", "operator": "Exists"},
                    {"key": "y", "operator": "DoesNotExist", "values": []},
                ],
            }},
        ],
        "clusters": {
            "selector": {"matchExpressions": [{"key": "env", "operator": "Exists"}]},
            "names": ["eu-3", "us.west"], "all": true, "exclude": ["lab-*", "eu-4"],
        },
        "namespaces": {
            "names": ["default", "kube-public", "team-*"],
            "selector": {"matchLabels": {"copies": "wanted"}},
            "exclude": ["*-old"],
        },
        "createNamespaces": true,
        "conflictPolicy": "AdoptIfEqual",
        "driftPolicy": "Report",
        "enforcement": "DryRun",
        "replicas": "Auto",
        "immutablePolicy": "Recreate",
        "ignoreFields": ["/data/a.b", "/binaryData/c", "/metadata/labels/example.com~1team", "/metadata/annotations/note", "/data/80", "/spec/list/[a=b~1c,d=]/x"],
        "deletionPolicy": "Retain",
        "deletion": {"propagation": "Orphan"},
        "transform": {"removeFields": ["/data/80", "/spec/replicas", "/spec/ports/[port=80,protocol=a~1b~2c]/x"]},
        "substitute": {"keys": ["app.*"], "fields": ["/spec", "/spec/template/spec/containers/[name=app]/image"]},
        "removalLimit": {"count": 0, "percent": 100, "onRuleDelete": "Hold"},
        "suspend": true,
    })
}

/// The same spec for a ClusterDistributionRule, whose sources also name the hub's namespaces.
fn for_cluster_rule(mut spec: Value) -> Value {
    for source in spec["sources"].as_array_mut().into_iter().flatten() {
        source["namespaces"] = json!(["default", "team-*"]);
    }
    spec
}

/// The fields of `change` in place of those of `spec`; null removes.
fn changed(mut spec: Value, change: &Value) -> Value {
    let fields = spec.as_object_mut().expect("a spec is an object");
    for (name, value) in change.as_object().expect("a change is an object") {
        match value {
            Value::Null => fields.remove(name),
            value => fields.insert(name.clone(), value.clone()),
        };
    }
    spec
}

#[tokio::test]
async fn the_smallest_rule_is_accepted_and_the_defaults_are_filled_in() -> Result<()> {
    let defaults = json!({
        "createNamespaces": false,
        "conflictPolicy": "Fail",
        "driftPolicy": "Correct",
        "enforcement": "Enforce",
        "replicas": "Source",
        "immutablePolicy": "Report",
        "deletionPolicy": "Delete",
        "deletion": {"propagation": "Background"},
        "removalLimit": {"onRuleDelete": "Allow"},
        "suspend": false,
    });
    let mut wanted = changed(smallest(), &defaults);
    wanted["clusters"]["all"] = json!(false);
    let stored = accepted("DistributionRule", "the smallest", &smallest()).await?;
    ensure!(stored == wanted, "{stored:#}");
    let stored = accepted(
        "ClusterDistributionRule",
        "the smallest",
        &for_cluster_rule(smallest()),
    )
    .await?;
    ensure!(stored == for_cluster_rule(wanted), "{stored:#}");

    let read: DistributionRuleSpec = serde_json::from_value(smallest())?;
    let stored: DistributionRuleSpec =
        serde_json::from_value(accepted("DistributionRule", "", &smallest()).await?)?;
    ensure!(
        stored == read,
        "the types' defaults are not those of the API server: {read:?}"
    );
    Ok(())
}

#[tokio::test]
async fn rule_with_every_field_is_accepted_unchanged() -> Result<()> {
    let stored = accepted("DistributionRule", "everything", &everything()).await?;
    ensure!(stored == everything(), "{stored:#}");
    let spec = for_cluster_rule(everything());
    let stored = accepted("ClusterDistributionRule", "everything", &spec).await?;
    ensure!(stored == spec, "{stored:#}");
    Ok(())
}

#[tokio::test]
async fn patches_keep_values_of_any_type() -> Result<()> {
    let values = [
        json!(null),
        json!(3),
        json!("x"),
        json!([1, null]),
        json!({"a": {"b": null}}),
    ];
    let step = |value: &Value| json!({"op": "add", "path": "/spec/a~1b/-", "value": value});
    let mut spec = smallest();
    spec["sources"][0]["resources"] = json!(["configmaps"]);
    spec["overrides"] = json!([{
        "clusters": {"all": true},
        "mergePatch": {"spec": {"a": values, "b": {"c": null}}, "data": null},
        "jsonPatch": values.iter().map(step).collect::<Vec<_>>(),
    }]);
    let stored = accepted("DistributionRule", "patches", &spec).await?;
    ensure!(stored["overrides"] == spec["overrides"], "{stored:#}");
    let read: runnel_api::RuleTerms = serde_json::from_value(stored)?;
    let read = serde_json::to_value(&read.overrides)?;
    ensure!(
        read[0]["jsonPatch"] == spec["overrides"][0]["jsonPatch"],
        "{read:#}"
    );
    ensure!(
        read[0]["mergePatch"] == spec["overrides"][0]["mergePatch"],
        "{read:#}"
    );
    Ok(())
}

#[tokio::test]
async fn kubectl_keeps_null_in_a_merge_patch_if_the_server_applies() -> Result<()> {
    let hub = hub().await?;
    let rule = |name: &str, data: Value| {
        let mut spec = smallest();
        spec["sources"][0]["resources"] = json!(["configmaps"]);
        spec["overrides"] = json!([{"clusters": {"all": true}, "mergePatch": {"data": data}}]);
        json!({
            "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionRule",
            "metadata": {"name": name, "namespace": "default"}, "spec": spec,
        })
        .to_string()
    };
    let cases: [(&str, &[&str], Value); 2] = [
        (
            "by-server",
            &["--server-side"],
            json!({"a": "1", "b": null}),
        ),
        ("by-client", &[], json!({"a": "1"})),
    ];
    for (name, flags, expected) in cases {
        let apply = [&["apply", "-f", "-"], flags].concat();
        for data in [json!({"a": "1"}), json!({"a": "1", "b": null})] {
            hub.kubectl_stdin(&apply, &rule(name, data)).await?;
        }
        let path = "-o=jsonpath={.spec.overrides[0].mergePatch.data}";
        let stored = hub
            .kubectl(&["get", "distributionrule", name, "--namespace=default", path])
            .await?;
        let stored: Value = serde_json::from_str(&stored)?;
        ensure!(stored == expected, "{name}: {stored}");
    }
    Ok(())
}

#[tokio::test]
async fn an_explicit_null_counts_as_absent() -> Result<()> {
    let mut spec = smallest();
    spec["sources"][0]["names"] = Value::Null;
    spec["sources"][0]["exclude"] = Value::Null;
    spec["clusters"]["names"] = Value::Null;
    spec["namespaces"] = Value::Null;
    let stored = accepted("DistributionRule", "nulls", &spec).await?;
    ensure!(
        stored.get("namespaces").is_none() && stored["sources"][0].get("names").is_none(),
        "{stored:#}"
    );

    let mut spec = smallest();
    spec["sources"][0]["selector"] = Value::Null;
    refused(
        "DistributionRule",
        "example",
        "a selector that is null",
        &spec,
        &["spec.sources[0]", "set selector or names"],
    )
    .await
}

#[tokio::test]
async fn refused_rule_gets_field_and_hint() -> Result<()> {
    for (what, change, words) in cases::selections()
        .into_iter()
        .chain(cases::selectors())
        .chain(cases::targets())
        .chain(forms::forms())
    {
        let spec = changed(smallest(), &change);
        refused("DistributionRule", "example", what, &spec, words).await?;
        refused(
            "ClusterDistributionRule",
            "example",
            what,
            &for_cluster_rule(spec),
            words,
        )
        .await?;
    }
    Ok(())
}

#[tokio::test]
async fn the_source_of_a_cluster_rule_names_its_namespaces() -> Result<()> {
    let cases: Vec<(&str, Value, &[&str])> = vec![
        (
            "no namespaces",
            Value::Null,
            &["spec.sources[0]", "this entry of sources has no namespaces"],
        ),
        (
            "empty namespaces",
            json!([]),
            &[
                "spec.sources[0].namespaces",
                "namespaces is empty",
                "namespaces: [\"*\"]",
            ],
        ),
        (
            "a bad namespace",
            json!(["Team"]),
            &[
                "spec.sources[0].namespaces[0]",
                "namespaces: write a namespace name",
            ],
        ),
        (
            "an empty namespace",
            json!([""]),
            &[
                "spec.sources[0].namespaces[0]",
                "namespaces: write a namespace name",
            ],
        ),
        (
            "too many",
            json!(cases::names(129)),
            &["spec.sources[0].namespaces", "at most 128"],
        ),
    ];
    for (what, namespaces, words) in cases {
        let mut spec = for_cluster_rule(smallest());
        spec["sources"][0]["namespaces"] = namespaces;
        refused("ClusterDistributionRule", "example", what, &spec, words).await?;
    }
    Ok(())
}

#[tokio::test]
async fn rules_at_their_limits_are_within_the_budget() -> Result<()> {
    let long = |count: usize, length: usize| -> Vec<String> {
        (0..count)
            .map(|number| format!("{}{number:04}", "a".repeat(length - 4)))
            .collect()
    };
    let value = "v".repeat(59);
    let values: Vec<String> = (0..limits::VALUES)
        .map(|number| format!("{value}{number:04}"))
        .collect();
    let key = format!(
        "{}/{}",
        [
            "d".repeat(63),
            "d".repeat(63),
            "d".repeat(63),
            "d".repeat(61)
        ]
        .join("."),
        "k".repeat(63)
    );
    let expressions = json!(vec![
        json!({"key": key, "operator": "In", "values": values});
        limits::EXPRESSIONS
    ]);
    let labels: serde_json::Map<String, Value> = (0..limits::EXPRESSIONS)
        .map(|number| {
            (
                format!("{}{number:02}", &key[..key.len() - 2]),
                json!(values[0]),
            )
        })
        .collect();
    let selector = json!({"matchLabels": labels, "matchExpressions": expressions});
    let namespaces = long(limits::NAMESPACES, 63);

    let clusters = json!({
        "selector": selector, "names": long(limits::CLUSTERS, 63), "exclude": long(limits::CLUSTERS, 63),
    });
    let targets = json!({"selector": selector, "names": namespaces, "exclude": namespaces});
    let resources = ["configmaps", "secrets"];
    // Both at their limit at once would be more than a request may hold.
    let by_name = json!({"resources": resources, "names": long(limits::NAMES, 120), "exclude": long(limits::NAMES, 120)});
    let by_label = json!({"resources": resources, "selector": selector, "exclude": long(16, 253)});
    for entry in [by_name, by_label] {
        let spec = json!({
            "sources": vec![entry; limits::SOURCES], "clusters": clusters, "namespaces": targets, "createNamespaces": true,
        });
        accepted("DistributionRule", "at its limits", &spec).await?;
        let mut spec = for_cluster_rule(spec);
        for source in spec["sources"].as_array_mut().unwrap() {
            source["namespaces"] = json!(namespaces);
        }
        accepted("ClusterDistributionRule", "at its limits", &spec).await?;
    }
    Ok(())
}

#[tokio::test]
async fn grant_is_read_or_refused_with_field_and_hint() -> Result<()> {
    let smallest = json!({
        "rules": {"namespaces": {"names": ["team-a"]}}, "resources": ["configmaps"],
        "clusters": {"all": true}, "namespaces": {"names": ["team-a-*"]},
    });
    let stored = accepted("DistributionGrant", "the smallest", &smallest).await?;
    ensure!(
        stored["policies"]
            == json!({"overwrite": false, "adopt": false, "createNamespaces": false}),
        "{stored:#}"
    );
    let at_its_limits = json!({
        "rules": {"namespaces": {"names": cases::names(128), "selector": {"matchLabels": {"a": "b"}}}},
        "resources": ["configmaps", "secrets"],
        "clusters": {"names": cases::names(512), "exclude": cases::names(512)},
        "namespaces": {"names": cases::names(128), "all": true},
        "policies": {"overwrite": true, "adopt": true, "createNamespaces": true},
    });
    accepted("DistributionGrant", "at its limits", &at_its_limits).await?;
    let anonymous = json!({"rules": {"namespaces": {}}});
    let cases = [
        (
            "nobody's rules",
            anonymous,
            &["spec.rules.namespaces", "chooses nothing", "all: true"][..],
        ),
        (
            "no namespaces",
            json!({"namespaces": {"all": false}}),
            &["spec.namespaces", "chooses nothing", "all: true"],
        ),
        (
            "an empty selector",
            json!({"namespaces": {"selector": {}}}),
            &["spec.namespaces.selector", "is empty", "all: true"],
        ),
        (
            "no clusters",
            json!({"clusters": {"names": []}}),
            &["spec.clusters", "chooses nothing", "all: true"],
        ),
        (
            "no kinds",
            json!({"resources": []}),
            &["spec.resources", "resources is empty", "may be sent"],
        ),
        (
            "a glob of kinds",
            json!({"resources": ["*.apps"]}),
            &["spec.resources[0]", "write the plural of a kind"],
        ),
        (
            "a bad namespace",
            json!({"namespaces": {"names": ["a.b"]}}),
            &["spec.namespaces.names[0]", "write a namespace name"],
        ),
    ];
    for (what, change, words) in cases {
        refused(
            "DistributionGrant",
            "example",
            what,
            &changed(smallest.clone(), &change),
            words,
        )
        .await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_member_cluster_is_accepted_and_the_defaults_are_filled_in() -> Result<()> {
    let stored = accepted("MemberCluster", "the smallest", &json!({})).await?;
    ensure!(
        stored == json!({"accepted": true, "cordoned": false, "leaving": false}),
        "{stored:#}"
    );
    let read: MemberClusterSpec = serde_json::from_value(json!({}))?;
    ensure!(
        read == MemberClusterSpec::default() && read == serde_json::from_value(stored)?,
        "{read:?}"
    );

    let spec = json!({
        "accepted": false, "cordoned": true, "leaving": true,
        "join": {"tokenHash": format!("sha256:{}", "0a".repeat(32)), "expiresAt": "2026-01-31T12:00:00Z"},
    });
    let stored = accepted("MemberCluster", "everything", &spec).await?;
    ensure!(stored == spec, "{stored:#}");
    for name in ["a".repeat(limits::CLUSTER_NAME), "eu.west-1".to_owned()] {
        let answer = ask_named("MemberCluster", &name, &json!({})).await?;
        ensure!(answer.is_ok(), "{name}: {answer:?}");
    }
    Ok(())
}

#[tokio::test]
async fn refused_member_cluster_gets_field_and_hint() -> Result<()> {
    let join =
        |hash: String, expires: &str| json!({"join": {"tokenHash": hash, "expiresAt": expires}});
    let hash = |digits: String| join(format!("sha256:{digits}"), "2026-01-31T12:00:00Z");
    let hint: &[&str] = &[
        "spec.join.tokenHash",
        "join.tokenHash: write sha256: and 64 lowercase hexadecimal digits",
    ];
    let cases: Vec<(&str, Value, &[&str])> = vec![
        ("a hash with capitals", hash("0A".repeat(32)), hint),
        ("a hash that is too short", hash("0a".repeat(31)), hint),
        (
            "a hash without its kind",
            join("0a".repeat(32), "2026-01-31T12:00:00Z"),
            hint,
        ),
        (
            "a hash that is too long",
            hash("0a".repeat(33)),
            &["spec.join.tokenHash", "71"],
        ),
        (
            "no hash",
            json!({"join": {"expiresAt": "2026-01-31T12:00:00Z"}}),
            &["spec.join.tokenHash", "Required"],
        ),
        (
            "no expiry",
            json!({"join": {"tokenHash": "sha256:00"}}),
            &["spec.join.expiresAt", "Required"],
        ),
        (
            "an expiry that is no time",
            join(format!("sha256:{}", "0a".repeat(32)), "tomorrow"),
            &["spec.join.expiresAt", "date-time"],
        ),
        (
            "accepted that is no boolean",
            json!({"accepted": "yes"}),
            &["spec.accepted", "boolean"],
        ),
    ];
    for (what, spec, words) in cases {
        refused("MemberCluster", "example", what, &spec, words).await?;
    }
    let too_long = "a".repeat(limits::CLUSTER_NAME + 1);
    let words = ["metadata.name", "at most 63 characters: shorten it"];
    refused(
        "MemberCluster",
        &too_long,
        "a name that is too long",
        &json!({}),
        &words,
    )
    .await
}
