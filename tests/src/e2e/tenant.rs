//! The steps of a tenant: a program with what it needs runs on the nodes of the members, written as an account of each member.

use std::time::Instant;

use anyhow::{Context, Error, Result, anyhow, ensure};
use serde_json::{Value, json};

use super::story::{E2eStory, TARGETS};
use super::waits::{LATER, SOON, condition, get};
use crate::demo::cluster::Cluster;
use crate::fleet::NAMESPACE;
use crate::nodes::binaries::PAUSE_IMAGE;
use crate::tenant::{PROGRAM, Tenant};
use crate::wait::eventually;

/// The namespace of the tenant on the hub, and the name of its account in the members.
pub(super) const TENANT: &str = "team-a";
/// The namespaces in the members: of the account, and of the program.
pub(super) const MEMBER_NAMESPACES: [&str; 2] = ["tenants", "shop"];
/// An image that does nothing, on clusters of the user's.
const PUBLIC_IMAGE: &str = "registry.k8s.io/pause:3.10";

/// An image that no registry has.
const BAD_IMAGE: &str = "registry.invalid/missing:1";
/// Where the image is, in the Deployment.
const IMAGE_PATH: &str = "/spec/template/spec/containers/0/image";
/// After this many seconds without progress the Deployment has failed.
const DEADLINE: u64 = 40;
/// The port at which a kubelet answers on its own node.
const KUBELET_PORT: u16 = 10248;

/// The rule that sends the program.
const WEB: [&str; 4] = ["-n", TENANT, "drule", "web"];
/// The Deployment in a member.
const DEPLOYMENT: [&str; 4] = ["-n", MEMBER_NAMESPACES[1], "deployment", "web"];
/// The pods of the program in a member.
const PODS: [&str; 5] = ["-n", MEMBER_NAMESPACES[1], "pods", "-l", "app=web"];

/// The tenant.
const TEAM: Tenant = Tenant {
    namespace: TENANT,
    target: MEMBER_NAMESPACES[1],
};
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

/// A Deployment with its Service, NetworkPolicy, ServiceAccount, Role and RoleBinding.
fn program(image: &str) -> Vec<Value> {
    let labels = json!({"app": "web"});
    // The image listens nowhere, so the probe asks the kubelet. Without a probe a kubelet may report a started container only
    // at its next full sync, more than a minute later.
    let port = json!({"host": "127.0.0.1", "port": KUBELET_PORT});
    let container = json!({
        "name": "web", "image": image, "imagePullPolicy": "IfNotPresent",
        "envFrom": [{"configMapRef": {"name": "web"}}],
        "readinessProbe": {"tcpSocket": port, "periodSeconds": 1},
    });
    let pod = json!({
        "metadata": {"labels": labels},
        "spec": {"serviceAccountName": "web", "terminationGracePeriodSeconds": 0, "containers": [container]},
    });
    let policy =
        json!({"spec": {"podSelector": {"matchLabels": labels}, "policyTypes": ["Ingress"]}});
    let deployment = json!({"spec": {
        "replicas": 1, "progressDeadlineSeconds": DEADLINE, "selector": {"matchLabels": labels}, "template": pod,
    }});
    let config = json!({"data": {"GREETING": "hello"}});
    let around = [
        TEAM.object("v1", "ConfigMap", PROGRAM, config),
        TEAM.object("networking.k8s.io/v1", "NetworkPolicy", PROGRAM, policy),
    ];
    let deployment = TEAM.object("apps/v1", "Deployment", PROGRAM, deployment);
    around
        .into_iter()
        .chain(TEAM.needs())
        .chain([deployment])
        .collect()
}

/// A rule that sends the objects of these kinds with this name into a namespace of every member.
fn rule(name: &str, kinds: &[&str], namespace: &str) -> Value {
    let sources = json!([{"resources": kinds, "names": [name]}]);
    let spec = json!({
        "sources": sources, "clusters": {"all": true}, "namespaces": {"names": [namespace]},
    });
    TEAM.object(
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
        match self.tenant_steps().await {
            Ok(()) => Ok(()),
            Err(error) => Err(self.with_states(&error).await),
        }
    }

    async fn tenant_steps(&mut self) -> Result<()> {
        self.admit_tenant().await?;
        let image = match self.stage.machine_of(0) {
            Some(_) => PAUSE_IMAGE,
            None => PUBLIC_IMAGE,
        };
        self.start_program(image).await?;
        self.bad_image(image).await?;
        self.escalate().await?;
        self.webhook().await?;
        self.leave().await
    }

    /// Returns an error with the rules of the tenant, and with what runs in the members.
    async fn with_states(&self, error: &Error) -> Error {
        let status = r#"jsonpath={range .items[*]}{.metadata.name}: {.status}{"\n"}{end}"#;
        let rules = ["-n", TENANT, "get", "drule", "-o", status];
        let rules = state_of(&self.stage.hub, &rules).await;
        let mut states = vec![format!("{error:#}"), rules];
        let [_, shop] = MEMBER_NAMESPACES;
        for member in &self.stage.members {
            let workloads = [
                "-n",
                shop,
                "get",
                "deployments,replicasets,pods",
                "-o",
                "wide",
            ];
            let events = ["-n", shop, "get", "events", "--sort-by=.lastTimestamp"];
            for shown in [&workloads[..], &events[..]] {
                states.push(state_of(member, shown).await);
            }
        }
        anyhow!("{}", states.join("\n"))
    }

    /// Lets the charts distribute the kinds of the program, as an account that administrates one namespace.
    async fn admit_tenant(&mut self) -> Result<()> {
        self.narrator.step(
            "The members name an account for a tenant, and the charts the kinds of its program",
        );
        let [accounts, shop] = MEMBER_NAMESPACES;
        let account = format!("--serviceaccount={accounts}:{TENANT}");
        let policy = json!({"policy": {
            "kinds": kinds(), "allowPrivileged": PRIVILEGED,
            "impersonate": [{"hubNamespace": TENANT, "serviceAccount": format!("{accounts}/{TENANT}")}],
        }});
        let upgrade = |release| ["upgrade", release, "--reset-then-reuse-values", "--wait"];
        let admin = "--clusterrole=admin";
        let made: [&[&str]; 2] = [
            &["-n", accounts, "create", "serviceaccount", TENANT],
            &["-n", shop, "create", "rolebinding", TENANT, admin, &account],
        ];
        for member in &self.stage.members {
            for namespace in MEMBER_NAMESPACES {
                member
                    .kubectl(&["create", "namespace", namespace], "")
                    .await?;
            }
            for arguments in made {
                member.show(self.narrator, arguments).await?;
            }
            let time = self
                .helm(member, &upgrade("runnel-agent"), Some(&policy))
                .await?;
            let what = format!("helm upgrade --wait runnel-agent in {}", member.name);
            self.narrator.took(&what, time);
            let begin = Instant::now();
            restart_agent(member).await?;
            let what = format!("the agent of {} has restarted with the policy", member.name);
            self.narrator.took(&what, begin.elapsed());
        }
        let sources = json!({"sources": {"kinds": kinds()}});
        let time = self
            .helm(&self.stage.hub, &upgrade("runnel-hub"), Some(&sources))
            .await?;
        self.narrator
            .took("helm upgrade --wait runnel-hub with the kinds", time);
        Ok(())
    }

    /// The tenant's program runs in every member, cluster by cluster.
    async fn start_program(&mut self, image: &str) -> Result<()> {
        self.narrator.step(
            "A tenant's Deployment with all that it needs, written as an account of each member",
        );
        let hub = &self.stage.hub;
        create(
            hub,
            &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TENANT}}),
        )
        .await?;
        let grant = TEAM.grant(&kinds());
        create(hub, &grant).await?;
        for object in program(image).iter().rev() {
            create(hub, object).await?;
        }
        let mut web = rule("web", &kinds(), MEMBER_NAMESPACES[1]);
        web["spec"]["rollout"] = json!({"maxConcurrency": 1, "onFailure": "Revert"});
        create(hub, &web).await?;
        self.is_healthy("every copy is applied and healthy").await?;
        for member in &self.stage.members {
            runs(member, image).await?;
            member
                .show(self.narrator, &[&["get"], &PODS[..]].concat())
                .await?;
        }
        Ok(())
    }

    /// Waits until the program is healthy in every member, and the hub could restore this.
    async fn is_healthy(&self, what: &str) -> Result<()> {
        let hub = &self.stage.hub;
        let time = condition(hub, &WEB, "Ready", LATER).await?;
        self.narrator.took(what, time);
        let members = self.stage.members.len();
        let healthy = eventually("the rollout to be completed", SOON, async || {
            let status = get(hub, &WEB).await?["status"].clone();
            let rollout = &status["rollout"];
            ensure!(
                rollout["phase"] == "Completed" && rollout["rollbackBlocker"].is_null(),
                "{rollout}"
            );
            let summary = &status["summary"];
            ensure!(
                summary["copiesWithHealth"] == members && summary["copiesHealthy"] == members,
                "{summary}"
            );
            Ok(Some(status["display"]["healthy"].clone()))
        })
        .await?;
        ensure!(healthy == format!("{members}/{members}"), "{healthy}");
        let wide = ["-n", TENANT, "get", "drule", "web", "-o", "wide"];
        let printed = hub.show(self.narrator, &wide).await?;
        ensure!(printed.contains("HEALTHY"), "{printed}");
        Ok(())
    }

    /// Changes the image of the Deployment on the hub.
    async fn set_image(&self, image: &str) -> Result<()> {
        let patch = json!([{"op": "replace", "path": IMAGE_PATH, "value": image}]).to_string();
        let patch = ["patch", "deployment", "web", "--type=json", "-p", &patch];
        let edit = [&["-n", TENANT], &patch[..]].concat();
        let hub = &self.stage.hub;
        hub.show(self.narrator, &edit).await.map(drop)
    }

    /// A bad image stops the rollout in its first wave, and the cluster of that wave gets the good one again.
    async fn bad_image(&mut self, good: &str) -> Result<()> {
        self.narrator
            .step("A bad image stops the rollout in its first wave, and goes back");
        let hub = &self.stage.hub;
        let before = self.generations().await?;
        self.set_image(BAD_IMAGE).await?;
        let begin = Instant::now();
        let first = eventually("a pod with the bad image", LATER, async || {
            for member in &self.stage.members {
                let has_bad = |state: &String| state.starts_with(BAD_IMAGE);
                if pods(member).await?.iter().any(has_bad) {
                    return Ok(Some(member));
                }
            }
            Ok(None)
        })
        .await?;
        first
            .show(self.narrator, &[&["get"], &PODS[..]].concat())
            .await?;
        let rollout = eventually("the rollout to go back", LATER, async || {
            let rule = get(hub, &WEB).await?;
            let rollout = &rule["status"]["rollout"];
            ensure!(
                rollout["phase"] == "Reverted" && rollout["wave"] == 1,
                "{rollout}"
            );
            Ok(Some(rollout.clone()))
        })
        .await?;
        self.narrator
            .took("the rollout has failed and is rolled back", begin.elapsed());
        let failure = rollout["failure"].as_str().unwrap_or_default();
        self.narrator.say(failure);
        ensure!(
            failure.starts_with(&first.name) && failure.contains("ProgressDeadlineExceeded"),
            "{rollout}"
        );
        ensure!(rollout["clustersReached"] == 1, "{rollout}");
        for member in &self.stage.members {
            runs(member, good).await?;
        }
        // The other clusters have had the good image all the time.
        let after = self.generations().await?;
        for ((member, before), after) in self.stage.members.iter().zip(&before).zip(&after) {
            let is_first = member.name == first.name;
            ensure!(
                (before != after) == is_first,
                "the Deployment in {} had generation {before} and has {after}",
                member.name
            );
        }
        first
            .show(self.narrator, &[&["get"], &PODS[..]].concat())
            .await?;
        self.set_image(good).await?;
        self.is_healthy("the source is corrected, and every copy healthy")
            .await
    }

    /// The generation of the Deployment in each member.
    async fn generations(&self) -> Result<Vec<Value>> {
        let mut all = Vec::new();
        for member in &self.stage.members {
            all.push(get(member, &DEPLOYMENT).await?["metadata"]["generation"].clone());
        }
        Ok(all)
    }

    /// More rights than the account has, and another namespace.
    async fn escalate(&mut self) -> Result<()> {
        self.narrator
            .step("The tenant binds cluster-admin, and writes into another namespace");
        let hub = &self.stage.hub;
        let [_, shop] = MEMBER_NAMESPACES;
        let data = json!({"data": {"k": "v"}});
        let attempts = [
            (
                TEAM.binding("escalates", "ClusterRole", "cluster-admin"),
                shop,
                "rolebinding/escalates",
                "lacks rights that this object gives",
            ),
            (
                TEAM.object("v1", "ConfigMap", "foreign", data),
                TARGETS[1],
                "configmap/foreign",
                "may not patch configmaps",
            ),
        ];
        for (object, namespace, copy, words) in attempts {
            create(hub, &object).await?;
            let name = object["metadata"]["name"].as_str().context("no name")?;
            create(hub, &rule(name, &kinds(), namespace)).await?;
            let what = format!("rule {name} to be forbidden");
            let message = eventually(&what, LATER, async || {
                let rule = get(hub, &["-n", TENANT, "drule", name]).await?;
                let status = &rule["status"];
                let clusters = status["clusters"].as_array().context("no cluster")?;
                ensure!(clusters.len() == self.stage.members.len(), "{status}");
                for cluster in clusters {
                    let message = cluster["message"].as_str().unwrap_or_default();
                    let names_account = message.contains("ServiceAccount tenants/team-a");
                    ensure!(
                        cluster["reason"] == "Forbidden"
                            && names_account
                            && message.contains(words),
                        "{cluster}"
                    );
                }
                Ok(Some(clusters[0]["message"].as_str().map(str::to_owned)))
            })
            .await?;
            self.narrator.say(&message.unwrap_or_default());
            for member in &self.stage.members {
                let get = ["-n", namespace, "get", copy, "--ignore-not-found"];
                let found = member.kubectl(&get, "").await?;
                ensure!(found.trim().is_empty(), "{} has {found}", member.name);
            }
        }
        Ok(())
    }

    /// An object without namespace: the hub sends none of a bundle, and no member takes one from the tenant or its agent.
    async fn webhook(&mut self) -> Result<()> {
        self.narrator
            .step("The tenant brings a webhook, which would see all objects of a member");
        let hub = &self.stage.hub;
        let metadata = json!({"name": "sees-all"});
        let webhook = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
            "metadata": metadata, "webhooks": [],
        });
        let manifests = json!({"spec": {"manifests": [webhook]}});
        let bundle = TEAM.object(
            "runnel.dev/v1alpha1",
            "ManifestBundle",
            "sees-all",
            manifests,
        );
        create(hub, &bundle).await?;
        let bundles = ["manifestbundles.runnel.dev"];
        create(hub, &rule("sees-all", &bundles, MEMBER_NAMESPACES[1])).await?;
        let message = eventually("the hub to refuse it", LATER, async || {
            let rule = get(hub, &["-n", TENANT, "drule", "sees-all"]).await?;
            let conditions = rule["status"]["conditions"].as_array().cloned();
            let conditions = conditions.unwrap_or_default();
            let ready = conditions.iter().find(|one| one["type"] == "Ready");
            let ready = ready.context("it has no such condition yet")?;
            let message = ready["message"].as_str().unwrap_or_default();
            let is_refused = message.contains("belongs to no namespace");
            ensure!(ready["status"] == "False" && is_refused, "{ready}");
            Ok(Some(message.to_owned()))
        })
        .await?;
        self.narrator.say(&message);
        let [accounts, _] = MEMBER_NAMESPACES;
        let member = self.stage.members.first().context("there is no member")?;
        for account in [
            format!("--as=system:serviceaccount:{accounts}:{TENANT}"),
            format!("--as=system:serviceaccount:{NAMESPACE}:runnel-agent"),
        ] {
            let arguments = ["create", "-f", "-", &account];
            self.narrator
                .command(&member.name, &format!("kubectl {}", arguments.join(" ")));
            let refusal = member.kubectl(&arguments, &webhook.to_string()).await;
            let refusal = refusal.err().context("the member took it")?.to_string();
            self.narrator.output(&refusal);
            let words = "cannot create resource \"validatingwebhookconfigurations\"";
            ensure!(
                refusal.contains("Forbidden") && refusal.contains(words),
                "{refusal}"
            );
        }
        Ok(())
    }

    /// Deletes the rules, and waits until their copies are gone.
    async fn leave(&mut self) -> Result<()> {
        self.narrator.step("The tenant's rules are deleted");
        let hub = &self.stage.hub;
        let delete = ["-n", TENANT, "delete", "drule", "--all"];
        hub.show(self.narrator, &delete).await?;
        let all = kinds().join(",");
        let [_, shop] = MEMBER_NAMESPACES;
        let copies = [
            "-n",
            shop,
            "get",
            &all,
            "-l",
            "runnel.dev/hub",
            "-o",
            "name",
        ];
        for member in &self.stage.members {
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

/// Has an agent read its policy at once: kubelets update mounted files within about a minute.
async fn restart_agent(member: &Cluster) -> Result<()> {
    let agent = "deployment/runnel-agent";
    for arguments in [
        &["rollout", "restart", agent][..],
        &["rollout", "status", agent, "--timeout=120s"],
    ] {
        let arguments = [&["-n", NAMESPACE], arguments].concat();
        member.kubectl(&arguments, "").await?;
    }
    let label = "app.kubernetes.io/name=runnel-agent";
    eventually("the former agent to be gone", LATER, async || {
        let pods = get(member, &["-n", NAMESPACE, "pods", "-l", label]).await?;
        let count = pods["items"].as_array().map_or(0, Vec::len);
        ensure!(count == 1, "{} has {count} agents", member.name);
        Ok(Some(()))
    })
    .await
}

/// A command and its output.
async fn state_of(cluster: &Cluster, arguments: &[&str]) -> String {
    let output = cluster.kubectl(arguments, "").await;
    let output = output.unwrap_or_else(|error| format!("{error:#}"));
    format!(
        "{} $ kubectl {}\n{}",
        cluster.name,
        arguments.join(" "),
        output.trim_end()
    )
}

/// The image and the state of each pod of the program.
async fn pods(member: &Cluster) -> Result<Vec<String>> {
    let pods = get(member, &PODS).await?;
    let state = |pod: &Value| {
        let text = |path| pod.pointer(path).and_then(Value::as_str).unwrap_or("none");
        let image = text("/spec/containers/0/image");
        if pod.pointer("/status/containerStatuses/0/ready") == Some(&json!(true)) {
            return format!("{image} is ready");
        }
        let waits = text("/status/containerStatuses/0/state/waiting/reason");
        format!("{image} is {}, waits: {waits}", text("/status/phase"))
    };
    let all = pods["items"].as_array().into_iter().flatten();
    Ok(all.map(state).collect())
}

/// Waits until one pod of the program runs, with this image, and no other.
async fn runs(member: &Cluster, image: &str) -> Result<()> {
    let what = format!("the program to run in {}", member.name);
    eventually(&what, LATER, async || {
        let states = pods(member).await?;
        ensure!(states == [format!("{image} is ready")], "{states:?}");
        Ok(Some(()))
    })
    .await
}
