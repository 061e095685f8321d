//! The steps of a tenant: a program with what it needs runs on the nodes of the members, written as an account of each member.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::story::{E2eStory, TARGETS};
use super::waits::{LATER, condition, get};
use crate::demo::cluster::Cluster;
use crate::nodes::binaries::PAUSE_IMAGE;
use crate::wait::eventually;

/// The namespace of the tenant on the hub, and the name of its account in the members.
pub(super) const TENANT: &str = "team-a";
/// The namespaces in the members: of the account, and of the program.
pub(super) const MEMBER_NAMESPACES: [&str; 2] = ["tenants", "shop"];
/// An image that does nothing, on clusters of the user's.
const PUBLIC_IMAGE: &str = "registry.k8s.io/pause:3.10";

/// The Deployment in a member.
const DEPLOYMENT: [&str; 4] = ["-n", MEMBER_NAMESPACES[1], "deployment", "web"];

const RBAC: &str = "rbac.authorization.k8s.io";
const PRIVILEGED: [&str; 4] = [
    "deployments.apps",
    "rolebindings.rbac.authorization.k8s.io",
    "roles.rbac.authorization.k8s.io",
    "serviceaccounts",
];
const PLAIN: [&str; 4] = [
    "configmaps",
    "networkpolicies.networking.k8s.io",
    "secrets",
    "services",
];

fn kinds() -> Vec<&'static str> {
    PLAIN.into_iter().chain(PRIVILEGED).collect()
}

fn of(api_version: &str, kind: &str, name: &str, rest: Value) -> Value {
    let metadata = json!({"namespace": TENANT, "name": name, "labels": {"app": name}});
    let mut object = json!({"apiVersion": api_version, "kind": kind, "metadata": metadata});
    if let (Some(object), Value::Object(rest)) = (object.as_object_mut(), rest) {
        object.extend(rest);
    }
    object
}

fn binding(name: &str, kind: &str, role: &str) -> Value {
    let subject =
        json!({"kind": "ServiceAccount", "name": "web", "namespace": MEMBER_NAMESPACES[1]});
    let role = json!({"apiGroup": RBAC, "kind": kind, "name": role});
    let rest = json!({"roleRef": role, "subjects": [subject]});
    of(&format!("{RBAC}/v1"), "RoleBinding", name, rest)
}

/// A Deployment with its Service, NetworkPolicy, ServiceAccount, Role and RoleBinding.
fn program(image: &str) -> Vec<Value> {
    let labels = json!({"app": "web"});
    let container = json!({
        "name": "web", "image": image, "imagePullPolicy": "IfNotPresent",
        "envFrom": [{"configMapRef": {"name": "web"}}],
    });
    let pod = json!({
        "metadata": {"labels": labels},
        "spec": {"serviceAccountName": "web", "terminationGracePeriodSeconds": 0, "containers": [container]},
    });
    let reads = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]}]);
    vec![
        of(
            "v1",
            "ConfigMap",
            "web",
            json!({"data": {"GREETING": "hello"}}),
        ),
        of(
            "v1",
            "Service",
            "web",
            json!({"spec": {"selector": labels, "ports": [{"port": 80}]}}),
        ),
        of(
            "networking.k8s.io/v1",
            "NetworkPolicy",
            "web",
            json!({"spec": {"podSelector": {"matchLabels": labels}, "policyTypes": ["Ingress"]}}),
        ),
        of("v1", "ServiceAccount", "web", json!({})),
        of(
            &format!("{RBAC}/v1"),
            "Role",
            "web",
            json!({"rules": reads}),
        ),
        binding("web", "Role", "web"),
        of(
            "apps/v1",
            "Deployment",
            "web",
            json!({"spec": {
                "replicas": 1, "progressDeadlineSeconds": 20, "selector": {"matchLabels": labels}, "template": pod,
            }}),
        ),
    ]
}

/// A rule that sends the objects with this name into a namespace of every member.
fn rule(name: &str, namespace: &str) -> Value {
    let sources = json!([{"resources": kinds(), "names": [name]}]);
    let spec = json!({
        "sources": sources, "clusters": {"all": true}, "namespaces": {"names": [namespace]},
    });
    of(
        "runnel.dev/v1alpha1",
        "DistributionRule",
        name,
        json!({"spec": spec}),
    )
}

async fn create(cluster: &Cluster, object: &Value) -> Result<()> {
    let object = object.to_string();
    let created = cluster.kubectl(&["create", "-f", "-"], &object);
    created.await.map(drop)
}

impl E2eStory<'_> {
    /// A tenant's program runs in every member, and what the tenant's account may not do is refused.
    pub(super) async fn tenant(&mut self) -> Result<()> {
        self.narrator.step(
            "A tenant's Deployment with all that it needs, written as an account of each member",
        );
        self.admit_tenant().await?;
        let hub = &self.stage.hub;
        create(
            hub,
            &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TENANT}}),
        )
        .await?;
        let grant = json!({
            "rules": {"namespaces": {"names": [TENANT]}}, "resources": kinds(), "clusters": {"all": true},
            "namespaces": {"all": true},
        });
        let metadata = json!({"name": TENANT});
        let grant = json!({
            "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionGrant", "metadata": metadata, "spec": grant,
        });
        create(hub, &grant).await?;
        let image = match self.stage.machine_of(0) {
            Some(_) => PAUSE_IMAGE,
            None => PUBLIC_IMAGE,
        };
        for object in program(image).iter().rev() {
            create(hub, object).await?;
        }
        let mut web = rule("web", MEMBER_NAMESPACES[1]);
        web["spec"]["rollout"] = json!({"maxConcurrency": 1, "onFailure": "Revert"});
        create(hub, &web).await?;
        let object = ["-n", TENANT, "drule", "web"];
        let time = condition(hub, &object, "Ready", LATER).await?;
        self.narrator.took("every copy is applied", time);
        for member in &self.stage.members {
            runs(member).await?;
            let pods = ["-n", MEMBER_NAMESPACES[1], "get", "pods"];
            member.show(self.narrator, &pods).await?;
        }
        self.bad_image(image).await?;
        self.escalate().await?;
        self.leave().await
    }

    /// A bad image stops the rollout in its first wave, and the cluster of that wave gets the good one again.
    async fn bad_image(&mut self, good: &str) -> Result<()> {
        self.narrator
            .step("A bad image stops the rollout in its first wave, and goes back");
        let hub = &self.stage.hub;
        let before = self.generations().await?;
        let path = "/spec/template/spec/containers/0/image";
        let patch = json!([{"op": "replace", "path": path, "value": "registry.invalid/missing:1"}])
            .to_string();
        let edit = [
            "-n",
            TENANT,
            "patch",
            "deployment",
            "web",
            "--type=json",
            "-p",
            &patch,
        ];
        hub.show(self.narrator, &edit).await?;
        let failure = eventually("the rollout to go back", LATER, async || {
            let rule = get(hub, &["-n", TENANT, "drule", "web"]).await?;
            let rollout = &rule["status"]["rollout"];
            ensure!(
                rollout["phase"] == "Reverted" && rollout["wave"] == 1,
                "{rollout}"
            );
            Ok(Some(rollout["failure"].to_string()))
        })
        .await?;
        ensure!(failure.contains("ProgressDeadlineExceeded"), "{failure}");
        self.narrator.say(&failure);
        for member in &self.stage.members {
            eventually("the good image", LATER, async || {
                let web = get(member, &DEPLOYMENT).await?;
                let is = web.pointer(path).and_then(Value::as_str);
                ensure!(is == Some(good), "{} has {is:?}", member.name);
                Ok(Some(()))
            })
            .await?;
            runs(member).await?;
        }
        let after = self.generations().await?;
        let changed = before.iter().zip(&after).filter(|(one, two)| one != two);
        ensure!(
            changed.count() == 1,
            "the generations were {before:?} and are {after:?}"
        );
        Ok(())
    }

    /// The generation of the Deployment in each member.
    async fn generations(&self) -> Result<Vec<Value>> {
        let mut all = Vec::new();
        for member in &self.stage.members {
            all.push(get(member, &DEPLOYMENT).await?["metadata"]["generation"].clone());
        }
        Ok(all)
    }

    /// Lets the charts distribute the kinds of the program, as an account that administrates one namespace.
    async fn admit_tenant(&mut self) -> Result<()> {
        let [accounts, shop] = MEMBER_NAMESPACES;
        let account = format!("--serviceaccount={accounts}:{TENANT}");
        let policy = json!({"policy": {
            "kinds": kinds(), "allowPrivileged": PRIVILEGED,
            "impersonate": [{"hubNamespace": TENANT, "serviceAccount": format!("{accounts}/{TENANT}")}],
        }});
        let upgrade = |release| ["upgrade", release, "--reset-then-reuse-values", "--wait"];
        for member in &self.stage.members {
            for namespace in MEMBER_NAMESPACES {
                member
                    .kubectl(&["create", "namespace", namespace], "")
                    .await?;
            }
            let made: [&[&str]; 2] = [
                &["-n", accounts, "create", "serviceaccount", TENANT],
                &[
                    "-n",
                    shop,
                    "create",
                    "rolebinding",
                    TENANT,
                    "--clusterrole=admin",
                    &account,
                ],
            ];
            for arguments in made {
                member.show(self.narrator, arguments).await?;
            }
            self.helm(member, &upgrade("runnel-agent"), Some(&policy))
                .await?;
        }
        let sources = json!({"sources": {"kinds": kinds()}});
        let time = self
            .helm(&self.stage.hub, &upgrade("runnel-hub"), Some(&sources))
            .await?;
        self.narrator
            .took("helm upgrade --wait runnel-hub with the kinds", time);
        Ok(())
    }

    /// More rights than the account has, and another namespace.
    async fn escalate(&mut self) -> Result<()> {
        self.narrator
            .step("The tenant binds cluster-admin, and writes into another namespace");
        let hub = &self.stage.hub;
        create(hub, &binding("escalates", "ClusterRole", "cluster-admin")).await?;
        create(hub, &rule("escalates", MEMBER_NAMESPACES[1])).await?;
        create(
            hub,
            &of("v1", "ConfigMap", "foreign", json!({"data": {"k": "v"}})),
        )
        .await?;
        create(hub, &rule("foreign", TARGETS[1])).await?;
        for name in ["escalates", "foreign"] {
            let what = format!("rule {name} to be forbidden");
            let message = eventually(&what, LATER, async || {
                let rule = get(hub, &["-n", TENANT, "drule", name]).await?;
                let clusters = rule["status"]["clusters"]
                    .as_array()
                    .cloned()
                    .unwrap_or_default();
                ensure!(
                    clusters.len() == self.stage.members.len(),
                    "{}",
                    rule["status"]
                );
                for cluster in &clusters {
                    ensure!(cluster["reason"] == "Forbidden", "{cluster}");
                }
                let message = clusters[0]["message"].as_str().context("no message")?;
                ensure!(
                    message.contains("ServiceAccount tenants/team-a"),
                    "{message}"
                );
                Ok(Some(message.to_owned()))
            })
            .await?;
            self.narrator.say(&message);
        }
        for member in &self.stage.members {
            let [_, shop] = MEMBER_NAMESPACES;
            for copy in [
                ["-n", shop, "rolebinding/escalates"],
                ["-n", TARGETS[1], "configmap/foreign"],
            ] {
                let found = [&["get", "--ignore-not-found", "-o", "name"], &copy[..]].concat();
                let found = member.kubectl(&found, "").await?;
                ensure!(found.trim().is_empty(), "{} has {found}", member.name);
            }
        }
        Ok(())
    }

    /// Deletes the rules, and waits until their copies are gone.
    async fn leave(&mut self) -> Result<()> {
        let hub = &self.stage.hub;
        let delete = ["-n", TENANT, "delete", "drule", "--all"];
        hub.show(self.narrator, &delete).await?;
        for member in &self.stage.members {
            let all = PRIVILEGED
                .into_iter()
                .chain(PLAIN)
                .collect::<Vec<_>>()
                .join(",");
            let copies = [
                "-n",
                MEMBER_NAMESPACES[1],
                "get",
                &all,
                "-l",
                "runnel.dev/hub",
                "-o",
                "name",
            ];
            eventually("the copies to be gone", LATER, async || {
                let left = member.kubectl(&copies, "").await?;
                ensure!(left.trim().is_empty(), "{} has {left}", member.name);
                Ok(Some(()))
            })
            .await?;
        }
        self.narrator.say("every copy is gone from every member");
        Ok(())
    }
}

/// Waits until the pod of the program runs.
async fn runs(member: &Cluster) -> Result<()> {
    let what = format!("the program to run in {}", member.name);
    eventually(&what, LATER, async || {
        let deployment = get(member, &DEPLOYMENT).await?;
        ensure!(
            deployment["status"]["availableReplicas"] == 1,
            "{}",
            deployment["status"]
        );
        Ok(Some(()))
    })
    .await
}
