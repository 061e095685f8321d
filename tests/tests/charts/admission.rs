//! The rights of the agent's ServiceAccount under its ValidatingAdmissionPolicy: the API server
//! refuses misuse of a stolen token, and accepts the agent's writes.

use anyhow::{Context, Result, ensure};
use runnel_proto::model::Kind;
use runnel_tests::control_plane::ControlPlane;
use runnel_tests::fleet::{AGENT, account};
use runnel_tests::helm::Helm;
use runnel_tests::wait::eventually;
use serde_json::{Value, json};
use std::time::Duration;

use super::live::cluster;
use super::render::{documents, one};

const SOON: Duration = Duration::from_secs(60);
/// The namespace of the agent and the name of its account.
const HOME: &str = "guarded";
const TARGET: &str = "guarded-shop";
const PRIORITIES: &str = "priorityclasses.scheduling.k8s.io";
const POLICY: &str = "ValidatingAdmissionPolicy 'guarded-writes'";
/// The namespace and the name of an account under which the agent may write.
const TENANTS: &str = "guarded-tenants";
const TENANT: &str = "team-a";

/// The API server, for the holder of the token of the agent's account.
struct Attacker<'a> {
    cluster: &'a ControlPlane,
    kubeconfig: String,
}

impl Attacker<'_> {
    async fn run(&self, arguments: &[&str], input: &str) -> Result<String> {
        let own = format!("--kubeconfig={}", self.kubeconfig);
        self.cluster
            .kubectl_stdin(&[&[own.as_str()], arguments].concat(), input)
            .await
    }

    async fn allowed(&self, what: &str, arguments: &[&str], input: &str) -> Result<()> {
        self.run(arguments, input)
            .await
            .map(drop)
            .with_context(|| format!("{what} is refused"))
    }

    /// Fails unless the policy refuses it, with these words.
    async fn refused(
        &self,
        what: &str,
        arguments: &[&str],
        input: &str,
        words: &str,
    ) -> Result<()> {
        let refused = self
            .run(arguments, input)
            .await
            .err()
            .with_context(|| format!("{what} is allowed"))?;
        let text = format!("{refused:#}");
        ensure!(
            text.contains(POLICY) && text.contains(words),
            "{what}: {text}"
        );
        Ok(())
    }

    async fn patches(
        &self,
        what: &str,
        object: &str,
        patch: &Value,
        refusal: Option<&str>,
    ) -> Result<()> {
        let patch = patch.to_string();
        let arguments = [
            "patch",
            object,
            "--namespace",
            TARGET,
            "--type=merge",
            "--patch",
            &patch,
        ];
        match refusal {
            None => self.allowed(what, &arguments, "").await,
            Some(words) => self.refused(what, &arguments, "", words).await,
        }
    }
}

fn object(kind: &str, namespace: &str, name: &str, labels: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": kind,
        "metadata": {"namespace": namespace, "name": name, "labels": labels},
        "data": {"key": "dmFsdWU="},
    })
}

/// Marks as the agent sets them, with a seal that begins like this.
fn marks(seal: &str) -> Value {
    json!({"metadata": {"labels": {"runnel.dev/hub": "h"}, "annotations": {"runnel.dev/seal": format!("{seal}abc")}}})
}

fn unmarks(more: Value) -> Value {
    let mut patch = json!({"metadata": {"labels": {"runnel.dev/hub": null}, "annotations": {"runnel.dev/seal": null}}});
    if let (Some(annotations), Value::Object(more)) =
        (patch["metadata"]["annotations"].as_object_mut(), more)
    {
        annotations.extend(more);
    }
    patch
}

const CREATE: [&str; 3] = ["create", "-f", "-"];

async fn guarded(cluster: &ControlPlane) -> Result<Attacker<'_>> {
    let kinds = [
        "configmaps",
        "secrets",
        "services",
        "networkpolicies.networking.k8s.io",
    ];
    let values = json!({"policy": {
        "namespaces": ["*"], "deniedNamespaces": ["not-*"], "createNamespaces": true, "kinds": kinds,
        "clusterKinds": ["namespaces", PRIORITIES], "allowPrivileged": ["namespaces"], "deleteNamespaces": true,
        "impersonate": [{"hubNamespace": TENANT, "serviceAccount": format!("{TENANTS}/{TENANT}")}],
    }});
    cluster.kubectl(&["create", "namespace", TENANTS]).await?;
    let kubeconfig = account(cluster, AGENT, HOME, &values).await?;
    let kubeconfig = kubeconfig
        .to_str()
        .context("a path that is not text")?
        .to_owned();
    let attacker = Attacker {
        cluster,
        kubeconfig,
    };
    for namespace in [TARGET, "argocd"] {
        cluster.kubectl(&["create", "namespace", namespace]).await?;
    }
    // A new policy counts a moment after it was made.
    let unmarked = object("ConfigMap", TARGET, "probe", json!({})).to_string();
    eventually("the policy to be enforced", SOON, async || {
        let dry = ["create", "--dry-run=server", "-f", "-"];
        attacker
            .refused("a probe", &dry, &unmarked, "creates only copies")
            .await
            .map(Some)
    })
    .await?;
    Ok(attacker)
}

#[tokio::test]
async fn stolen_agent_token_is_refused_beyond_the_policy() -> Result<()> {
    let attacker = guarded(cluster().await?).await?;
    creations(&attacker).await?;
    copies(&attacker).await?;
    foreign_objects(&attacker).await?;
    objects_of_other_kinds(&attacker).await?;
    objects_without_namespaces(&attacker).await?;
    accounts_of_tenants(&attacker).await?;
    large_objects(&attacker).await
}

/// The policy holds for the accounts under which the agent may write, and the agent may write under no others.
async fn accounts_of_tenants(attacker: &Attacker<'_>) -> Result<()> {
    let cluster = attacker.cluster;
    for name in [TENANT, "other"] {
        let create = ["create", "serviceaccount", name, "--namespace", TENANTS];
        cluster.kubectl(&create).await?;
    }
    let subject = format!("--serviceaccount={TENANTS}:{TENANT}");
    let bind = [
        "create",
        "rolebinding",
        TENANT,
        "--namespace",
        TARGET,
        "--clusterrole=edit",
        &subject,
    ];
    cluster.kubectl(&bind).await?;
    let kubeconfig = cluster.token_kubeconfig(TENANTS, TENANT).await?;
    let tenant = Attacker {
        cluster,
        kubeconfig: kubeconfig
            .to_str()
            .context("a path that is not text")?
            .to_owned(),
    };
    let bare = object("ConfigMap", TARGET, "bare", json!({})).to_string();
    let words = "creates only copies";
    tenant
        .refused("an object without the label", &CREATE, &bare, words)
        .await?;
    let mut copy = object(
        "ConfigMap",
        TARGET,
        "of-a-tenant",
        json!({"runnel.dev/hub": "h"}),
    );
    tenant.allowed("a copy", &CREATE, &copy.to_string()).await?;

    let user = |name: &str| format!("--as=system:serviceaccount:{TENANTS}:{name}");
    copy["metadata"]["name"] = json!("as-a-tenant");
    let (as_tenant, as_other) = (user(TENANT), user("other"));
    let create = [&CREATE[..], &[as_tenant.as_str()]].concat();
    attacker
        .allowed("a copy as the account", &create, &copy.to_string())
        .await?;
    attacker
        .refused(
            "an object without the label as the account",
            &create,
            &bare,
            words,
        )
        .await?;
    let create = [&CREATE[..], &["--validate=false", as_other.as_str()]].concat();
    let refused = attacker.run(&create, &copy.to_string()).await;
    let refused = refused.err().context("any account may be used")?;
    let text = format!("{refused:#}");
    ensure!(text.contains("cannot impersonate"), "{text}");
    Ok(())
}

/// The policy follows the kinds, in every field of an object.
async fn objects_of_other_kinds(attacker: &Attacker<'_>) -> Result<()> {
    let service = json!({"selector": {"app": "x"}, "ports": [{"port": 80}]});
    let policy = json!({"podSelector": {}, "policyTypes": ["Ingress"]});
    for (api_version, kind, spec, edit) in [
        (
            "v1",
            "Service",
            service,
            json!({"spec": {"selector": {"app": "y"}}}),
        ),
        (
            "networking.k8s.io/v1",
            "NetworkPolicy",
            policy,
            json!({"spec": {"policyTypes": ["Ingress", "Egress"]}}),
        ),
    ] {
        let named = |name: &str, labels: Value| {
            let metadata = json!({"name": name, "namespace": TARGET, "labels": labels});
            json!({"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec})
        };
        let bare = named("bare", json!({})).to_string();
        attacker
            .refused(
                "an object without the label",
                &CREATE,
                &bare,
                "creates only copies",
            )
            .await?;
        let copy = named("copy", json!({"runnel.dev/hub": "h"})).to_string();
        attacker.allowed("a copy", &CREATE, &copy).await?;
        let foreign = named("foreign", json!({})).to_string();
        attacker.cluster.kubectl_stdin(&CREATE, &foreign).await?;
        let id = format!("{kind}/foreign");
        let refused = Some("changes only what it created");
        attacker
            .patches("an edit of another object", &id, &edit, refused)
            .await?;
        let delete = ["delete", &id, "--namespace", TARGET];
        attacker
            .refused("its deletion", &delete, "", "deletes only what it created")
            .await?;
        attacker
            .patches("its adoption", &id, &marks("v1a."), None)
            .await?;
        attacker
            .patches("an edit of an adopted object", &id, &edit, refused)
            .await?;
        attacker
            .patches("letting it go", &id, &unmarks(json!({})), None)
            .await?;
    }
    Ok(())
}

/// The policy follows the kinds without namespaces, and guards namespaces themselves.
async fn objects_without_namespaces(attacker: &Attacker<'_>) -> Result<()> {
    let priority = |name: &str, labels: Value| {
        let metadata = json!({"name": name, "labels": labels});
        let class = json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": metadata, "value": 7,
        });
        class.to_string()
    };
    let bare = priority("bare", json!({}));
    attacker
        .refused("a bare class", &CREATE, &bare, "creates only copies")
        .await?;
    let copy = priority("copy", json!({"runnel.dev/hub": "h"}));
    attacker.allowed("a copy", &CREATE, &copy).await?;
    let foreign = priority("foreign", json!({}));
    attacker.cluster.kubectl_stdin(&CREATE, &foreign).await?;
    let delete = ["delete", "priorityclass/foreign"];
    attacker
        .refused("its deletion", &delete, "", "deletes only what it created")
        .await?;
    attacker
        .allowed(
            "the deletion of a copy",
            &["delete", "priorityclass/copy"],
            "",
        )
        .await?;

    let label = |name: &'static str| ["label", "--overwrite", "namespace", name, "x=y"];
    for (name, words) in [
        ("default", "no namespace of Kubernetes itself"),
        ("kube-system", "only in the namespaces of its policy"),
        (HOME, "only in the namespaces of its policy"),
        (
            TARGET,
            "no label and no annotation of what it did not create",
        ),
    ] {
        attacker
            .refused("a label of a namespace", &label(name), "", words)
            .await?;
    }
    let delete = ["delete", "namespace", TARGET];
    attacker
        .refused("the deletion of a namespace", &delete, "", "deletes no")
        .await?;
    let space = json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": "guarded-copy", "labels": {"runnel.dev/hub": "h"}},
    });
    attacker
        .allowed("a namespace as a copy", &CREATE, &space.to_string())
        .await?;
    attacker
        .allowed("its label", &label("guarded-copy"), "")
        .await?;
    let delete = ["delete", "--wait=false", "namespace", "guarded-copy"];
    attacker.allowed("its deletion", &delete, "").await
}

async fn creations(attacker: &Attacker<'_>) -> Result<()> {
    let marked = || json!({"runnel.dev/hub": "h"});
    let typed = |mut secret: Value, kind: &str| {
        secret["type"] = json!(kind);
        secret["metadata"]["annotations"] = json!({"kubernetes.io/service-account.name": HOME});
        secret
    };
    let token = "kubernetes.io/service-account-token";
    let namespace =
        |name: &str| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    for (what, object, words) in [
        (
            "an object without the label",
            object("Secret", TARGET, "bare", json!({})),
            "creates only copies",
        ),
        (
            "kube-system",
            object("ConfigMap", "kube-system", "x", marked()),
            "only in the namespaces of its policy",
        ),
        (
            "its own namespace",
            object("ConfigMap", HOME, "x", marked()),
            "only in the namespaces of its policy",
        ),
        (
            "a token of an account",
            typed(object("Secret", TARGET, "token", marked()), token),
            "credentials of this cluster",
        ),
        (
            "a bootstrap token",
            typed(
                object("Secret", TARGET, "b", marked()),
                "bootstrap.kubernetes.io/token",
            ),
            "cred",
        ),
        (
            "a release",
            typed(
                object("Secret", TARGET, "r", marked()),
                "helm.sh/release.v1",
            ),
            "credentials",
        ),
        (
            "a token under an own name",
            typed(
                object("Secret", HOME, "runnel-agent-terms", json!({})),
                token,
            ),
            "have the type Opaque",
        ),
        (
            "a label that Argo CD trusts",
            object(
                "Secret",
                TARGET,
                "l",
                json!({"runnel.dev/hub": "h", "argocd.argoproj.io/secret-type": "cluster"}),
            ),
            "sets no label that its policy denies",
        ),
        (
            "a namespace of a controller",
            object("Secret", "argocd", "x", marked()),
            "only in the namespaces",
        ),
        (
            "a namespace of the system",
            namespace("kube-mine"),
            "only in the namespaces of its policy",
        ),
        (
            "a denied namespace",
            namespace("not-mine"),
            "only in the namespaces of its policy",
        ),
    ] {
        attacker
            .refused(what, &CREATE, &object.to_string(), words)
            .await?;
    }
    attacker
        .allowed(
            "a copy",
            &CREATE,
            &object("Secret", TARGET, "own", marked()).to_string(),
        )
        .await?;
    attacker
        .allowed(
            "a namespace",
            &CREATE,
            &namespace("guarded-new").to_string(),
        )
        .await?;
    let own = object("Secret", HOME, "runnel-agent-terms", json!({})).to_string();
    let apply = [
        "apply",
        "--server-side",
        "--field-manager=runnel-agent-store",
        "-f",
        "-",
    ];
    attacker.allowed("an own Secret", &apply, &own).await?;
    let policy = [
        "patch",
        "configmap",
        "guarded-policy",
        "--namespace",
        HOME,
        "--type=merge",
        "--patch",
        "{}",
    ];
    let widened = [
        &policy[..7],
        &[r#"{"data": {"policy.yaml": "{overwrite: true}"}}"#],
    ]
    .concat();
    attacker
        .refused(
            "its own policy",
            &widened,
            "",
            "only in the namespaces of its policy",
        )
        .await
}

async fn copies(attacker: &Attacker<'_>) -> Result<()> {
    let own = "secret/own";
    attacker
        .patches("the seal of a copy", own, &marks("v1."), None)
        .await?;
    attacker
        .patches("an edit", own, &json!({"data": {"key": "b3RoZXI="}}), None)
        .await?;
    // Somebody took the label off: the seal is enough to put it back.
    let unlabeled = json!({"metadata": {"labels": {"runnel.dev/hub": null}}});
    attacker
        .cluster
        .kubectl(&[
            "patch",
            own,
            "-n",
            TARGET,
            "--type=merge",
            "-p",
            &unlabeled.to_string(),
        ])
        .await?;
    attacker
        .patches(
            "the label",
            own,
            &json!({"metadata": {"labels": {"runnel.dev/hub": "h"}}}),
            None,
        )
        .await?;
    // Retained, adopted again, and deleted.
    attacker
        .patches(
            "leaving it",
            own,
            &unmarks(json!({"runnel.dev/retained-from": "a/b"})),
            None,
        )
        .await?;
    let edit = json!({"data": {"key": "YQ=="}});
    attacker
        .patches(
            "an edit of what was left",
            own,
            &edit,
            Some("changes only what it created"),
        )
        .await?;
    attacker
        .patches("taking it back", own, &marks("v1."), None)
        .await?;
    attacker
        .allowed("its deletion", &["delete", own, "--namespace", TARGET], "")
        .await
}

async fn foreign_objects(attacker: &Attacker<'_>) -> Result<()> {
    let mut foreign = object("Secret", TARGET, "foreign", json!({"team": "a"}));
    foreign["metadata"]["annotations"] = json!({"note": "mine"});
    attacker
        .cluster
        .kubectl_stdin(&CREATE, &foreign.to_string())
        .await?;
    let id = "secret/foreign";
    let (unlike, sealed) = (
        Some("changes only what it created"),
        Some("seals what it did not create as adopted"),
    );
    let labels = Some("changes no label and no annotation");
    let delete = ["delete", id, "--namespace", TARGET];
    let with = |mut patch: Value, path: &str, value: Value| {
        patch[path] = value;
        patch
    };
    let owner = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "none", "uid": "none"}]);
    let edited = || with(marks("v1a."), "data", json!({"key": "YQ=="}));
    for (what, patch, refusal) in [
        ("an edit", json!({"data": {"key": "YQ=="}}), unlike),
        ("an edit with marks", edited(), unlike),
        (
            "an owner",
            json!({"metadata": {"ownerReferences": owner}}),
            unlike,
        ),
        (
            "a finalizer",
            json!({"metadata": {"finalizers": ["a.b/c"]}}),
            unlike,
        ),
        (
            "immutable",
            with(marks("v1a."), "immutable", json!(true)),
            unlike,
        ),
        ("a seal of what Runnel created", marks("v1."), sealed),
        (
            "no seal",
            json!({"metadata": {"labels": {"runnel.dev/hub": "h"}}}),
            sealed,
        ),
        (
            "another label",
            json!({"metadata": {"labels": {"team": "b"}}}),
            labels,
        ),
        (
            "no annotation",
            json!({"metadata": {"annotations": {"note": null}}}),
            labels,
        ),
        (
            "a new label",
            with(
                marks("v1a."),
                "metadata",
                json!({"labels": {"runnel.dev/hub": "h", "new": "x"}, "annotations": {"runnel.dev/seal": "v1a.x"}}),
            ),
            labels,
        ),
        (
            "a new annotation",
            with(
                marks("v1a."),
                "metadata",
                json!({"labels": {"runnel.dev/hub": "h"}, "annotations": {"runnel.dev/seal": "v1a.x", "reflector.example.org/allowed": "true"}}),
            ),
            labels,
        ),
        (
            "another manager",
            with(
                marks("v1a."),
                "metadata",
                json!({"labels": {"runnel.dev/hub": "h", "app.kubernetes.io/managed-by": "Helm"}, "annotations": {"runnel.dev/seal": "v1a.x"}}),
            ),
            labels,
        ),
        (
            "what it was",
            json!({"metadata": {"annotations": {"runnel.dev/retained-from": "a/b"}}}),
            sealed,
        ),
    ] {
        attacker.patches(what, id, &patch, refusal).await?;
    }
    attacker
        .refused("the deletion", &delete, "", "deletes only what it created")
        .await?;

    // Adopted it is still not Runnel's, and it can be released.
    attacker
        .patches("the adoption", id, &marks("v1a."), None)
        .await?;
    attacker
        .patches("an edit of what was adopted", id, &edited(), unlike)
        .await?;
    attacker
        .patches("another seal", id, &marks("v1."), sealed)
        .await?;
    let added = unmarks(json!({"reflector.example.org/allowed": "true"}));
    attacker
        .patches("letting it go with an annotation", id, &added, labels)
        .await?;
    let forged = unmarks(json!({"runnel.dev/retained-from": "a/b"}));
    attacker
        .patches("letting it go as a copy", id, &forged, sealed)
        .await?;
    attacker
        .refused("the deletion", &delete, "", "deletes only what it created")
        .await?;
    attacker
        .patches("letting it go", id, &unmarks(json!({})), None)
        .await
}

/// The comparison of contents stays within what the API server lets a policy cost.
async fn large_objects(attacker: &Attacker<'_>) -> Result<()> {
    let mut large = object("ConfigMap", TARGET, "large", json!({}));
    let keys = (0..1000).map(|number| (format!("key-{number}"), json!("x".repeat(1000))));
    large["data"] = Value::Object(keys.collect());
    attacker
        .cluster
        .kubectl_stdin(&CREATE, &large.to_string())
        .await?;
    attacker
        .patches(
            "the adoption of a large object",
            "configmap/large",
            &marks("v1a."),
            None,
        )
        .await?;
    let edit = json!({"data": {"key-999": "y"}});
    attacker
        .patches(
            "its edit",
            "configmap/large",
            &edit,
            Some("changes only what it created"),
        )
        .await
}

/// The chart repeats the list of the binary.
#[tokio::test]
async fn admission_policy_repeats_the_lists_of_the_agent() -> Result<()> {
    let documents = documents(&Helm::find().await?, AGENT, "{}").await?;
    let policy = one(
        &documents,
        "ValidatingAdmissionPolicy",
        "runnel-agent-writes",
    )?
    .to_string();
    let refused = Kind::supported()
        .iter()
        .flat_map(|kind| kind.content.refused_types)
        .copied()
        .collect::<Vec<_>>();
    let globs: Vec<String> = refused
        .iter()
        .map(|one| one.replace('.', "[.]").replace('*', ".*"))
        .collect();
    ensure!(
        refused.len() >= 3 && policy.contains(&format!("'^({})$'", globs.join("|"))),
        "{policy}"
    );
    let role = one(&documents, "Role", "runnel-agent-own")?.to_string();
    for name in ["runnel-agent-identity", "runnel-agent-terms"] {
        ensure!(policy.contains(name) && role.contains(name), "{name}");
    }
    Ok(())
}
