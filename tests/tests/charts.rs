//! The charts with the real helm: their permissions, refused values, output, and installation on a
//! real control plane.

#[path = "charts/admission.rs"]
mod admission;
#[path = "charts/arguments.rs"]
mod arguments;
#[path = "charts/live.rs"]
mod live;
#[path = "charts/own_events.rs"]
mod own_events;
#[path = "charts/refused.rs"]
mod refused;
#[path = "charts/render.rs"]
mod render;
#[path = "charts/rights.rs"]
mod rights;
#[path = "charts/samples.rs"]
mod samples;

use std::path::Path;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use runnel_proto::model::{is_privileged, split_resource};
use runnel_tests::helm::{Helm, chart};
use serde_json::Value;

use render::{CHARTS, container, documents, one, texts, tried};
use rights::{has_few_rights, in_words, is_about_content, is_front_proxy, rights, writes};

/// The values of each golden file.
const RIGHTS: [(&str, &str, &str); 14] = [
    ("hub", "runnel-hub", "{}"),
    (
        "hub-of-two-namespaces",
        "runnel-hub",
        "{sourceNamespaces: [team-a, team-b]}",
    ),
    (
        "cluster-kinds-of-a-hub",
        "runnel-hub",
        "{sourceNamespaces: [team-a], sources: {clusterKinds: [namespaces, clusterpolicies.kyverno.io, \
         clusterroles.rbac.authorization.k8s.io]}}",
    ),
    ("agent", "runnel-agent", "{}"),
    (
        "agent-that-creates-namespaces",
        "runnel-agent",
        "{policy: {createNamespaces: true}}",
    ),
    (
        "agent-of-two-namespaces",
        "runnel-agent",
        "{policy: {namespaces: [team-a, team-b]}}",
    ),
    (
        "agent-of-two-namespaces-without-roles",
        "runnel-agent",
        "{policy: {namespaces: [team-a, team-b], createRoles: false}}",
    ),
    (
        "agent-with-accounts",
        "runnel-agent",
        "{policy: {impersonate: [{hubNamespace: team-a, serviceAccount: tenants/team-a}, \
         {hubNamespace: team-b, serviceAccount: tenants/team-b}, {hubNamespace: '*', serviceAccount: others/any}]}}",
    ),
    (
        "kinds-of-an-agent",
        "runnel-agent",
        "{policy: {kinds: [services, networkpolicies.networking.k8s.io, widgets.example.org]}}",
    ),
    (
        "privileged-kinds-of-an-agent",
        "runnel-agent",
        "{policy: {namespaces: [team-a], kinds: [serviceaccounts, roles.rbac.authorization.k8s.io, \
         rolebindings.rbac.authorization.k8s.io, deployments.apps], allowPrivileged: [serviceaccounts, \
         roles.rbac.authorization.k8s.io, rolebindings.rbac.authorization.k8s.io, deployments.apps]}}",
    ),
    (
        "presets-of-an-agent",
        "runnel-agent",
        "{policy: {namespaces: [team-a], kinds: [configmaps, networking, policy, rbac, workloads], clusterKinds: [networking, rbac, \
         workloads], allowPrivileged: [rbac, workloads]}}",
    ),
    (
        "presets-of-a-hub",
        "runnel-hub",
        "{advertise: ['hub.example.com:8443'], sources: {kinds: [configmaps, networking, policy, rbac, workloads], clusterKinds: \
         [networking, rbac, workloads]}}",
    ),
    (
        "cluster-kinds-of-an-agent",
        "runnel-agent",
        "{policy: {namespaces: [team-a], clusterKinds: [namespaces, priorityclasses.scheduling.k8s.io, \
         clusterroles.rbac.authorization.k8s.io], allowPrivileged: [namespaces, clusterroles.rbac.authorization.k8s.io]}}",
    ),
    (
        "cluster-kinds-of-an-agent-that-deletes",
        "runnel-agent",
        "{policy: {clusterKinds: [namespaces], allowPrivileged: [namespaces], deleteNamespaces: true}}",
    ),
];

#[tokio::test]
async fn the_rights_are_these_and_no_others() -> Result<()> {
    let helm = Helm::find().await?;
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/charts/golden");
    for (name, chart, values) in RIGHTS {
        let given = in_words(&documents(&helm, chart, values).await?)?;
        let path = golden.join(format!("{name}.txt"));
        if std::env::var_os("RUNNEL_UPDATE").is_some() {
            std::fs::write(&path, &given)?;
        }
        let expected = std::fs::read_to_string(&path).unwrap_or_default();
        ensure!(
            given == expected,
            "{} is not what {chart} gives with {values}; when that is meant, write it again with\n  \
             RUNNEL_UPDATE=1 cargo test -p runnel-tests --test charts rights\nexpected:\n{expected}\ngiven:\n{given}",
            path.display()
        );
    }
    Ok(())
}

#[test]
fn both_charts_have_the_same_presets() -> Result<()> {
    let presets = |chart: &str| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/charts");
        let text = std::fs::read_to_string(folder.join(chart).join("templates/_helpers.tpl"))?;
        let begin = text.find("{{/* What a word in a list of kinds stands for");
        let end = text.find("{{- uniq $all | toJson -}}");
        let lines = begin
            .zip(end)
            .map(|(begin, end)| text[begin..end].replace(chart, ""));
        lines.with_context(|| format!("{chart} has no presets"))
    };
    ensure!(presets("runnel-hub")? == presets("runnel-agent")?);
    Ok(())
}

/// Chart and binary have the same list.
#[tokio::test]
async fn privileged_kinds_are_rendered_only_by_name() -> Result<()> {
    let helm = Helm::find().await?;
    for kind in [
        "apiservices.apiregistration.k8s.io",
        "applications.argoproj.io",
        "certificatesigningrequests.certificates.k8s.io",
        "configmaps",
        "cronjobs.batch",
        "customresourcedefinitions.apiextensions.k8s.io",
        "deploymentconfigs.apps.openshift.io",
        "deployments.apps",
        "flowschemas.flowcontrol.apiserver.k8s.io",
        "ingresses.networking.k8s.io",
        "limitranges",
        "namespaces",
        "nodes",
        "persistentvolumes",
        "pods",
        "pods.example.org",
        "podtemplates",
        "replicationcontrollers",
        "resourcequotas",
        "rolebindings.rbac.authorization.k8s.io",
        "securitycontextconstraints.security.openshift.io",
        "serviceaccounts",
        "services",
        "subjectaccessreviews.authorization.k8s.io",
        "tokenreviews.authentication.k8s.io",
        "validatingwebhookconfigurations.admissionregistration.k8s.io",
        "widgets.apps.example.org",
    ] {
        let values = |privileged: &str| {
            format!("{{policy: {{kinds: [{kind}], allowPrivileged: [{privileged}]}}}}")
        };
        let plain = helm.template("runnel-agent", &values("")).await;
        ensure!(plain.is_err() == is_privileged(kind), "{kind}: {plain:?}");
        let documents = documents(&helm, "runnel-agent", &values(kind)).await?;
        arguments::is_a_policy(&documents).with_context(|| kind)?;
        let (plural, group) = split_resource(kind);
        let given = rights(&documents)?;
        let of_copies = given
            .iter()
            .filter(|right| right.role == "ClusterRole runnel-agent");
        let writes: Vec<_> = of_copies
            .filter(|right| writes(right) && right.groups != ["events.k8s.io"])
            .collect();
        let [right] = writes.as_slice() else {
            anyhow::bail!("{kind}: {writes:?}")
        };
        ensure!(
            right.groups == [group] && right.resources == [plural],
            "{right:?}"
        );
        let policy = one(
            &documents,
            "ValidatingAdmissionPolicy",
            "runnel-agent-writes",
        )?;
        let rules = policy["spec"]["matchConstraints"]["resourceRules"].as_array();
        let matches = |rule: &Value| {
            texts(&rule["apiGroups"]) == [group]
                && texts(&rule["resources"]).contains(&plural.to_owned())
        };
        ensure!(
            rules.is_some_and(|rules| rules.iter().any(matches)),
            "{kind}: {rules:?}"
        );
    }
    Ok(())
}

/// Chart and binary have the same list.
#[tokio::test]
async fn authors_of_bundles_are_checked_for_kinds_of_the_cluster() -> Result<()> {
    let documents = documents(&Helm::find().await?, "runnel-hub", "{}").await?;
    let policy = one(
        &documents,
        "ValidatingAdmissionPolicy",
        "runnel-hub-bundles",
    )?;
    let variables = policy["spec"]["variables"].to_string();
    for (group, kind) in runnel_api::CLUSTER_KINDS {
        let quoted = format!("'{group}/{kind}'");
        ensure!(variables.contains(&quoted), "{quoted} is not checked");
    }
    Ok(())
}

#[tokio::test]
async fn default_values_give_the_default_policy() -> Result<()> {
    let documents = documents(&Helm::find().await?, "runnel-agent", "{}").await?;
    arguments::is_the_default_policy(&documents)
}

#[tokio::test]
async fn no_values_give_an_unknown_flag() -> Result<()> {
    let helm = Helm::find().await?;
    for chart in CHARTS {
        for (about, values) in tried(chart) {
            let documents = documents(&helm, chart, values).await?;
            arguments::are_known(chart, container(&documents)?)
                .with_context(|| format!("{chart}, {about}"))?;
            if chart == "runnel-agent" {
                arguments::is_a_policy(&documents).with_context(|| format!("{chart}, {about}"))?;
            }
        }
    }
    Ok(())
}

#[tokio::test]
async fn no_values_give_a_wildcard_a_pod_or_a_role() -> Result<()> {
    let helm = Helm::find().await?;
    for chart in CHARTS {
        for (about, values) in tried(chart) {
            let given = rights(&documents(&helm, chart, values).await?)?;
            ensure!(given.len() >= 2, "{chart} with {about}: {given:?}");
            given
                .iter()
                .try_for_each(has_few_rights)
                .with_context(|| format!("{chart} with {about}"))?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn content_is_accessed_only_in_the_configured_namespaces() -> Result<()> {
    let helm = Helm::find().await?;
    let hub = rights(&documents(&helm, "runnel-hub", "{}").await?)?;
    let limited = rights(&documents(&helm, "runnel-hub", "{sourceNamespaces: [team-a]}").await?)?;
    for right in hub
        .iter()
        .chain(&limited)
        .filter(|right| is_about_content(right) && !is_front_proxy(right))
    {
        // The hub writes only Secrets of its own namespace.
        let own = right.role == "Role runnel-system/runnel-hub" && right.resources == ["secrets"];
        ensure!(own || !writes(right), "{right:?}");
        // Also: `create` would allow it to create a token of any ServiceAccount of that namespace.
        ensure!(own != right.names.is_empty(), "{right:?}");
    }
    ensure!(
        !limited
            .iter()
            .any(|right| right.cluster_wide && is_about_content(right)),
        "{limited:?}"
    );

    for roles in [true, false] {
        let refused = "deniedNamespaces: [secret-*, web]";
        let names = "[team-a, team-b, secret-a, web, webs, x-web]";
        let values =
            format!("{{policy: {{namespaces: {names}, {refused}, createRoles: {roles}}}}}");
        let agent = rights(&documents(&helm, "runnel-agent", &values).await?)?;
        ensure!(
            !agent
                .iter()
                .any(|right| right.cluster_wide && is_about_content(right)),
            "{agent:?}"
        );
        ensure!(
            !agent
                .iter()
                .any(|right| right.cluster_wide && writes(right)),
            "{agent:?}"
        );
        let own = agent
            .iter()
            .filter(|right| right.role == "Role runnel-system/runnel-agent-own");
        ensure!(
            own.clone().count() == 2 && own.clone().all(|right| !right.names.is_empty()),
            "{agent:?}"
        );
        let given = |namespace: &str| {
            agent
                .iter()
                .any(|right| right.role == format!("Role {namespace}/runnel-agent"))
        };
        ensure!(
            ["team-b", "webs", "x-web"]
                .into_iter()
                .all(|namespace| given(namespace) == roles),
            "{agent:?}"
        );
        ensure!(
            !given("secret-a") && !given("web"),
            "a Role in a namespace that the policy refuses: {agent:?}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn values_that_cannot_be_meant_are_refused_by_name() -> Result<()> {
    let helm = Helm::find().await?;
    for (chart, values, field) in refused::REFUSED {
        match helm.template(chart, values).await {
            Ok(_) => anyhow::bail!("{chart} takes {values}"),
            Err(error) => ensure!(
                format!("{error:#}").contains(field),
                "{chart} with {values}: {error:#}"
            ),
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_refusal_does_not_repeat_what_is_secret() -> Result<()> {
    let helm = Helm::find().await?;
    for values in [
        "{join: {string: s3cr3t, existingSecret: b}}",
        "{join: {string: s3cr3t, other: 1}}",
        "{join: [s3cr3t]}",
        "{proxy: {httpsProxy: 'http://name:s3cr3t@proxy:3128'}}",
    ] {
        let error = helm
            .template("runnel-agent", values)
            .await
            .err()
            .with_context(|| format!("it takes {values}"))?;
        ensure!(!format!("{error:#}").contains("s3cr3t"), "{error:#}");
    }
    Ok(())
}

#[tokio::test]
async fn helm_lints_without_findings() -> Result<()> {
    let helm = Helm::find().await?;
    for name in CHARTS {
        let folder = chart(name);
        helm.run(&[
            "lint",
            "--strict",
            folder.to_str().context("a path that is not text")?,
        ])
        .await?;
    }
    Ok(())
}

#[tokio::test]
async fn every_object_has_the_labels_of_its_owner() -> Result<()> {
    let helm = Helm::find().await?;
    for chart in CHARTS {
        for (about, values) in tried(chart) {
            for document in documents(&helm, chart, values).await? {
                check_object(chart, &document)
                    .with_context(|| format!("{chart} with {about}: {document}"))?;
            }
        }
    }
    Ok(())
}

fn check_object(chart: &str, document: &Value) -> Result<()> {
    let labels = &document["metadata"]["labels"];
    ensure!(labels["app.kubernetes.io/part-of"] == "runnel", "part-of");
    if document["kind"] == "CustomResourceDefinition" {
        let annotations = &document["metadata"]["annotations"];
        ensure!(
            annotations["helm.sh/resource-policy"] == "keep",
            "a definition that helm removes"
        );
        let argo = annotations["argocd.argoproj.io/sync-options"]
            .as_str()
            .unwrap_or_default();
        ensure!(
            argo.contains("Prune=false") && argo.contains("Delete=false"),
            "a definition that Argo CD removes"
        );
        return Ok(());
    }
    ensure!(
        labels["app.kubernetes.io/name"] == chart && labels["app.kubernetes.io/instance"] == chart,
        "name"
    );
    ensure!(
        labels["app.kubernetes.io/managed-by"] == "Helm",
        "managed-by"
    );
    ensure!(
        labels["app.kubernetes.io/version"].is_string() && labels["helm.sh/chart"].is_string(),
        "version"
    );
    let cluster_wide = [
        "APIService",
        "ClusterRole",
        "ClusterRoleBinding",
        "PriorityClass",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    ];
    let kind = document["kind"].as_str().unwrap_or_default();
    ensure!(
        document["metadata"]["namespace"].is_string() != cluster_wide.contains(&kind),
        "namespace"
    );
    Ok(())
}

#[tokio::test]
async fn the_image_is_exact() -> Result<()> {
    let helm = Helm::find().await?;
    let digest = format!("sha256:{}", "0a".repeat(32));
    for chart in CHARTS {
        let cases = [
            ("{}".to_owned(), format!("{chart}:0.1.0")),
            ("{image: {tag: v9}}".to_owned(), format!("{chart}:v9")),
            (
                "{image: {registry: 'r.example.com:5000', repository: a/b}}".to_owned(),
                "r.example.com:5000/a/b:0.1.0".to_owned(),
            ),
            (
                format!("{{image: {{digest: '{digest}'}}}}"),
                format!("{chart}:0.1.0@{digest}"),
            ),
        ];
        for (values, image) in cases {
            let documents = documents(&helm, chart, &values).await?;
            ensure!(
                container(&documents)?["image"] == image.as_str(),
                "{values}: {}",
                container(&documents)?["image"]
            );
        }
    }
    Ok(())
}

/// Every argument of the chart is valid for the binary.
#[tokio::test]
async fn binaries_support_every_argument() -> Result<()> {
    let helm = Helm::find().await?;
    for chart in CHARTS {
        for (about, values) in tried(chart) {
            let documents = documents(&helm, chart, values).await?;
            let given = texts(&container(&documents)?["args"]);
            let given = given.iter().map(|text| {
                text.replace("$(POD_IP)", "10.0.0.1")
                    .replace("$(POD_NAME)", "pod")
            });
            let given = std::iter::once(chart.to_owned()).chain(given);
            let taken = match chart {
                "runnel-hub" => runnel_hub::config::Cli::try_parse_from(given).map(drop),
                _ => runnel_agent::config::Cli::try_parse_from(given).map(drop),
            };
            taken.with_context(|| format!("{chart} with {about}"))?;
        }
    }
    Ok(())
}

/// A value without an entry in values.yaml has no documented default, and one without an entry in
/// the schema cannot be set.
#[tokio::test]
async fn values_and_schema_have_the_same_fields() -> Result<()> {
    for name in CHARTS {
        let values: Value =
            serde_saphyr::from_str(&std::fs::read_to_string(chart(name).join("values.yaml"))?)?;
        let schema: Value = serde_json::from_str(&std::fs::read_to_string(
            chart(name).join("values.schema.json"),
        )?)?;
        same(&values, &schema, name)?;
    }
    Ok(())
}

fn same(values: &Value, schema: &Value, path: &str) -> Result<()> {
    ensure!(
        schema["description"].is_string() || schema["title"].is_string(),
        "{path} is not described"
    );
    let Some(properties) = schema["properties"].as_object() else {
        return Ok(());
    };
    ensure!(
        schema["additionalProperties"] == false,
        "{path} takes anything"
    );
    for (name, schema) in properties.iter().filter(|(name, _)| *name != "global") {
        let value = values
            .get(name)
            .with_context(|| format!("{path}.{name} is not in values.yaml"))?;
        same(value, schema, &format!("{path}.{name}"))?;
    }
    for name in values
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, _)| name)
    {
        ensure!(
            properties.contains_key(name),
            "{path}.{name} is not in the schema"
        );
    }
    Ok(())
}

/// Prometheus and Grafana get the files unchanged, with their own braces.
#[tokio::test]
async fn alerts_and_dashboard_are_handed_on_as_they_are() -> Result<()> {
    let helm = Helm::find().await?;
    let values = "{metrics: {prometheusRule: {enabled: true}, dashboard: {enabled: true}}}";
    let documents = documents(&helm, "runnel-hub", values).await?;
    let file = |name: &str| std::fs::read_to_string(chart("runnel-hub").join(name));

    let rule = &one(&documents, "PrometheusRule", "runnel-hub")?["spec"];
    let alerts: Value = serde_saphyr::from_str(&file("rules/runnel.rules.yaml")?)?;
    ensure!(
        *rule == alerts && rule["groups"][0]["rules"][0]["alert"].is_string(),
        "{rule}"
    );
    ensure!(
        rule.to_string().contains("{{ $labels."),
        "the alerts name nobody: {rule}"
    );
    let elsewhere = "{metrics: {prometheusRule: {enabled: true, runbookURL: 'https://wiki.example.com/runnel'}}}";
    let elsewhere = render::documents(&helm, "runnel-hub", elsewhere).await?;
    for alert in one(&elsewhere, "PrometheusRule", "runnel-hub")?["spec"]["groups"][0]["rules"]
        .as_array()
        .into_iter()
        .flatten()
    {
        let url = alert["annotations"]["runbook_url"]
            .as_str()
            .unwrap_or_default();
        let name = alert["alert"].as_str().unwrap_or_default().to_lowercase();
        ensure!(
            url == format!("https://wiki.example.com/runnel#{name}"),
            "{name}: {url}"
        );
    }
    let dashboard = &one(&documents, "ConfigMap", "runnel-hub-dashboard")?["data"]["runnel.json"];
    let dashboard: Value = serde_json::from_str(dashboard.as_str().context("no dashboard")?)?;
    let panels: Value = serde_json::from_str(&file("dashboards/runnel.json")?)?;
    ensure!(
        dashboard == panels
            && dashboard["panels"]
                .as_array()
                .is_some_and(|panels| panels.len() > 3)
    );
    Ok(())
}

#[tokio::test]
async fn a_proxy_is_never_between_the_agent_and_its_own_api_server() -> Result<()> {
    let helm = Helm::find().await?;
    let values =
        "{proxy: {httpsProxy: 'http://proxy.example.com:3128', noProxy: [.corp.example.com]}}";
    let documents = documents(&helm, "runnel-agent", values).await?;
    let env = &container(&documents)?["env"];
    let value = |name: &str| {
        env.as_array()
            .into_iter()
            .flatten()
            .find(|variable| variable["name"] == name)
    };
    let value = |name: &str| {
        value(name)
            .and_then(|variable| variable["value"].as_str())
            .unwrap_or_default()
            .to_owned()
    };
    ensure!(value("HTTPS_PROXY") == "http://proxy.example.com:3128");
    let without = value("NO_PROXY");
    for host in ["$(KUBERNETES_SERVICE_HOST)", ".svc", ".corp.example.com"] {
        ensure!(without.split(',').any(|part| part == host), "{without}");
    }
    Ok(())
}

#[tokio::test]
async fn a_policy_that_changes_restarts_nothing() -> Result<()> {
    let helm = Helm::find().await?;
    let before = documents(&helm, "runnel-agent", "{policy: {namespaces: [a]}}").await?;
    let after = documents(
        &helm,
        "runnel-agent",
        "{policy: {namespaces: [b], onRevoke: Purge}}",
    )
    .await?;
    let template = |documents: &[Value]| -> Result<Value> {
        Ok(one(documents, "Deployment", "runnel-agent")?["spec"]["template"].clone())
    };
    ensure!(template(&before)? == template(&after)?);
    let policy = |documents: &[Value]| -> Result<Value> {
        Ok(one(documents, "ConfigMap", "runnel-agent-policy")?["data"]["policy.yaml"].clone())
    };
    ensure!(policy(&before)? != policy(&after)?);
    Ok(())
}
