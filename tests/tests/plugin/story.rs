//! The life of an installation.

use anyhow::{Context, Result, ensure};
use runnel_tests::control_plane::ControlPlane;
use runnel_tests::helm::Helm;
use runnel_tests::pod::Pod;
use runnel_tests::ports;
use runnel_tests::wait::eventually;
use serde_json::{Value, json};

use super::stage::{Printed, SECRET, SOON, Stage, cluster, read, unseen};

const SEED: &str = include_str!("../../../deploy/examples/seed-rule.yaml");

struct Clusters {
    stage: Stage,
    hub: ControlPlane,
    member: ControlPlane,
    /// What the plugin is to pass on to helm, as on this machine all pods share the addresses.
    hub_flags: String,
    agent_flags: String,
}

impl Clusters {
    async fn start() -> Result<Self> {
        let (hub, member) = tokio::try_join!(cluster("hub"), cluster("member"))?;
        let stage =
            Stage::new(&[("hub", hub.kubeconfig()), ("member", member.kubeconfig())]).await?;
        let (grpc, replica, ops, agent) = (
            ports::free()?,
            ports::free()?,
            ports::free()?,
            ports::free()?,
        );
        let hub_flags = format!(
            "--advertise 127.0.0.1:{grpc} --replicas 1 --set listenAddress=$(POD_IP) --set ports.grpc={grpc} --set \
             ports.replica={replica} --set ports.ops={ops}"
        );
        let agent_flags = format!("--set listenAddress=127.0.0.1 --set ports.ops={agent}");
        Ok(Self {
            stage,
            hub,
            member,
            hub_flags,
            agent_flags,
        })
    }

    /// Installs the hub and starts its pod.
    async fn install(&self) -> Result<Pod> {
        self.stage
            .runnel(&format!("install {}", self.hub_flags))
            .await?
            .ok()?;
        self.stage.hub(&self.hub).await
    }

    /// Joins the member, and starts the pod in place of a node.
    async fn join(&self) -> Result<(Printed, Pod)> {
        let words = format!(
            "join eu-1 --context member --label env=prod {}",
            self.agent_flags
        );
        let both =
            async { tokio::try_join!(self.stage.runnel(&words), self.stage.agent(&self.member)) };
        let (output, agent) = unseen(both).await?;
        ensure!(
            output.code == 0,
            "{output:?}\n{}",
            agent.process().last_words()
        );
        Ok((output, agent))
    }

    async fn seed(&self) -> Result<()> {
        self.hub
            .kubectl_stdin(&["apply", "--server-side", "-f", "-"], SEED)
            .await
            .map(drop)
    }

    /// Waits until the copy in the member's namespace default is, or is not, there with our label.
    async fn copy(&self, wanted: Option<&str>) -> Result<Value> {
        eventually(&format!("the copy to be {wanted:?}"), SOON, async || {
            let copy = read(&self.member, "configmap app-settings").await?;
            let owner = copy["metadata"]["labels"]["app.kubernetes.io/managed-by"]
                .as_str()
                .unwrap_or("nobody");
            let seen = (!copy.is_null()).then_some(owner);
            ensure!(seen == wanted, "it is {seen:?}");
            Ok(Some(copy.clone()))
        })
        .await
    }

    async fn is_bare(&self) -> Result<()> {
        let left = self.hub.kubectl(&["get", "crd", "-o", "name"]).await?;
        ensure!(!left.contains("runnel.dev"), "{left}");
        for what in ["deployments", "secrets", "leases", "services"] {
            let left = self
                .hub
                .kubectl(&["-n", "runnel-system", "get", what, "-o", "name"])
                .await?;
            ensure!(!left.contains("runnel"), "{left}");
        }
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hub_and_member_are_installed_and_removed() -> Result<()> {
    let all = Clusters::start().await?;
    let Clusters {
        stage, hub, member, ..
    } = &all;

    // Empty clusters.
    let output = stage.runnel("status").await?;
    output.refused(1, &["kubectl runnel install"])?;
    let hub_pod = all.install().await?;
    ensure!(
        stage
            .runnel("status -A")
            .await?
            .ok()?
            .contains("No cluster has joined yet")
    );

    let (output, agent) = all.join().await?;
    println!("from `join` to Connected: {:?}", output.took);
    ensure!(
        output.out.starts_with("eu-1 has joined and is connected"),
        "{output:?}"
    );
    ensure!(
        !output.err.contains(SECRET) && !stage.record()?.contains(SECRET),
        "the join string was shown"
    );
    ensure!(
        read(member, "-n runnel-system secret runnel-agent-join")
            .await?
            .is_null(),
        "the used join string stays"
    );
    ensure!(read(hub, "member eu-1").await?["metadata"]["labels"]["env"] == "prod");

    a_rule_is_shown(&all).await?;
    values_change(&all).await?;

    // It leaves in order, and its copies with it.
    let output = stage
        .runnel("unjoin eu-1 --yes --context member --hub-context hub")
        .await?
        .ok()?;
    ensure!(
        output.contains("eu-1 is removed") && output.contains("The agent is uninstalled"),
        "{output}"
    );
    drop(agent);
    all.copy(None).await?;
    ensure!(read(hub, "member eu-1").await?.is_null());
    ensure!(
        read(member, "-n runnel-system deployment runnel-agent")
            .await?
            .is_null()
    );
    ensure!(
        read(member, "-n runnel-system secret runnel-agent-identity")
            .await?
            .is_null()
    );

    // Only the copies stay, as objects without an owner.
    let (_, agent) = all.join().await?;
    all.copy(Some("runnel")).await?;
    let output = stage.runnel("uninstall --copies=keep --yes").await?.ok()?;
    ensure!(
        output.contains("1 rules are deleted; their copies in connected clusters are kept"),
        "{output}"
    );
    ensure!(
        output.contains(
            "helm uninstall runnel-agent -n runnel-system --kube-context CONTEXT   # eu-1"
        ),
        "{output}"
    );
    let kept = all.copy(Some("nobody")).await?;
    ensure!(kept["data"]["greeting"] == "hello", "{kept}");
    all.is_bare().await?;
    drop((agent, hub_pod));

    // Another hub, and an agent with its identity from the first one: it joins again, and adopts
    // its copies.
    let helm = Helm::find().await?;
    helm.on(
        member.kubeconfig(),
        &["uninstall", "runnel-agent", "--namespace=runnel-system"],
    )
    .await?;
    ensure!(
        !read(member, "-n runnel-system secret runnel-agent-identity")
            .await?
            .is_null(),
        "it has forgotten who it is"
    );
    let hub_pod = all.install().await?;
    let (_, agent) = all.join().await?;
    all.seed().await?;
    all.copy(Some("runnel")).await?;
    blocked_removal_ends_with_an_uninstall(&all).await?;
    drop((agent, hub_pod));
    Ok(())
}

async fn a_rule_is_shown(all: &Clusters) -> Result<()> {
    let Clusters { stage, hub, .. } = all;
    all.seed().await?;
    all.copy(Some("runnel")).await?;
    eventually("the rule to wait for a namespace", SOON, async || {
        let rule = read(hub, "-n ns-codis-test drule rule-codis-test").await?;
        Ok((rule["status"]["display"]["copies"] == "2/4").then_some(()))
    })
    .await?;
    let output = stage.runnel("status -A").await?.ok()?;
    ensure!(
        output.contains(
            "ns-codis-test   rule-codis-test   False   0/1        2/4      0        CopiesWaiting"
        ),
        "{output}"
    );
    ensure!(
        output.ends_with("\nMembers: all 1 connected\n") && !output.contains('\u{1b}'),
        "{output:?}"
    );
    let output = stage
        .runnel("-n ns-codis-test status rule-codis-test")
        .await?
        .ok()?;
    ensure!(
        output.contains("Copies    2 of 4 applied, 0 failed, 2 waiting"),
        "{output}"
    );
    ensure!(
        output.contains("eu-1      Waiting   2         0        2         CopiesWaiting"),
        "{output}"
    );
    let output = stage
        .runnel("status ns-codis-test/rule-codis-test -o json")
        .await?
        .ok()?;
    let read: Value = serde_json::from_str(&output)?;
    ensure!(
        read["status"]["summary"]["copies"] == 4 && read["metadata"]["managedFields"].is_null(),
        "{output}"
    );
    let output = stage.runnel("members -o yaml").await?.ok()?;
    let read: Value = serde_saphyr::from_str(&output)?;
    ensure!(read["items"][0]["metadata"]["name"] == "eu-1", "{output}");
    let output = stage.runnel("version -o json").await?.ok()?;
    let read: Value = serde_json::from_str(&output)?;
    ensure!(
        read["hub"]["image"] == "runnel-hub:0.1.0" && read["agents"] == json!({"0.1.0": 1}),
        "{output}"
    );

    for (words, line) in [
        ("members e", "eu-1\tconnected"),
        ("explain e", "eu-1/\tconnected"),
        (
            "-n ns-codis-test wait r",
            "rule-codis-test\tnot ready: CopiesWaiting",
        ),
        ("status ns-codis-test/r", "ns-codis-test/rule-codis-test\t"),
        ("status -n ns-c", "ns-codis-test\n"),
        ("join --context h", "hub\t"),
    ] {
        // On a busy machine the hub may not answer within the limit.
        eventually(words, SOON, async || {
            let output = stage
                .runnel(&format!("__complete -- {words}"))
                .await?
                .ok()?;
            ensure!(
                output.lines().count() == 2 && output.starts_with(line.trim_end()),
                "{output}"
            );
            Ok(Some(()))
        })
        .await?;
    }
    let output = stage.runnel("members --as eve --as-group tenants").await?;
    output.refused(1, &["User \"eve\" cannot list"])?;
    let output = stage.runnel("members --user no-such-user").await?;
    output.refused(1, &["has no user no-such-user"])?;
    let output = stage.runnel("members --request-timeout 30s").await?.ok()?;
    ensure!(output.contains("eu-1"), "{output}");
    // Nothing needs a node: the hub leads, although no pod of it is ready.
    let output = stage.runnel("doctor").await?;
    ensure!(
        output.code == 0
            && output
                .out
                .contains("warn  0 of 1 pods of the hub are ready"),
        "{output:?}"
    );
    for fine in [
        "ok    the CRDs of 7 kinds are installed and served",
        "ok    you have the permissions that this plugin needs",
        "ok    1 of 1 members are connected and well",
        "ok    one hub leads: ",
        "ok    the clocks of the API server and this machine agree",
        "ok    the hub's CA is valid for",
        "ok    the hub answers at 127.0.0.1:",
        "ok    helm v3.22.0",
        "warn  rule ns-codis-test/rule-codis-test: CopiesWaiting",
    ] {
        ensure!(
            output.out.contains(fine),
            "it does not say `{fine}`: {}",
            output.out
        );
    }
    Ok(())
}

/// Former values are kept unless they are set again.
async fn values_change(all: &Clusters) -> Result<()> {
    let Clusters {
        stage, hub, member, ..
    } = all;
    stage.runnel("install --replicas 3").await?.ok()?;
    let deployment = read(hub, "-n runnel-system deployment runnel-hub").await?;
    ensure!(deployment["spec"]["replicas"] == 3, "{deployment}");
    let arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"].to_string();
    ensure!(arguments.contains("--advertise=127.0.0.1:"), "{arguments}");

    let output = stage
        .runnel("join eu-1 --context member --denied-namespaces team-x")
        .await?
        .ok()?;
    ensure!(
        output.starts_with("eu-1 was connected already; its agent is up to date"),
        "{output}"
    );
    let policy = read(member, "-n runnel-system configmap runnel-agent-policy").await?;
    let policy = policy["data"]["policy.yaml"]
        .as_str()
        .context("no policy")?
        .to_owned();
    ensure!(policy.contains("team-x"), "{policy}");
    let agent = read(member, "-n runnel-system deployment runnel-agent").await?;
    ensure!(
        agent.to_string().contains("--ops-listen=127.0.0.1:"),
        "{agent}"
    );
    Ok(())
}

/// Rules with blocked removals, one of them deleted already: both are removed, because all of this
/// was requested.
async fn blocked_removal_ends_with_an_uninstall(all: &Clusters) -> Result<()> {
    let Clusters { stage, hub, .. } = all;
    let limit = r#"{"spec":{"removalLimit":{"count":0,"percent":0,"onRuleDelete":"Hold"}}}"#;
    let patch = [
        "-n",
        "ns-codis-test",
        "patch",
        "drule",
        "rule-codis-test",
        "--type=merge",
        "-p",
        limit,
    ];
    hub.kubectl(&patch).await?;
    all.member
        .kubectl(&["create", "namespace", "second"])
        .await?;
    let second = json!({"apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionRule",
        "metadata": {"namespace": "ns-codis-test", "name": "second"},
        "spec": {"sources": [{"resources": ["configmaps"], "names": ["app-settings"]}], "clusters": {"all": true},
            "namespaces": {"names": ["second"]},
            "removalLimit": {"count": 0, "percent": 0, "onRuleDelete": "Hold"}}});
    hub.kubectl_stdin(&["apply", "--server-side", "-f", "-"], &second.to_string())
        .await?;
    let there = async || {
        anyhow::Ok(
            !read(&all.member, "-n second configmap app-settings")
                .await?
                .is_null(),
        )
    };
    eventually("the second rule's copy", SOON, async || {
        Ok(there().await?.then_some(()))
    })
    .await?;
    hub.kubectl(&[
        "-n",
        "ns-codis-test",
        "delete",
        "drule",
        "second",
        "--wait=false",
    ])
    .await?;
    eventually("the deleted rule to be blocked", SOON, async || {
        let rule = read(hub, "-n ns-codis-test drule second").await?;
        ensure!(
            rule["status"]["pendingApproval"]["copies"] == 1,
            "{}",
            rule["status"]
        );
        Ok(Some(()))
    })
    .await?;
    ensure!(there().await?, "what is blocked is gone");

    let mark = hub.mark();
    let output = stage
        .runnel("uninstall --copies=delete --yes")
        .await?
        .ok()?;
    ensure!(
        output.contains("2 rules are deleted; their copies in connected clusters are deleted"),
        "{output}"
    );
    all.copy(None).await?;
    ensure!(!there().await?, "the second rule's copy is left");
    all.is_bare().await?;
    let written: Vec<_> = hub
        .writes_since(mark)?
        .into_iter()
        .filter(|write| write.resource == "distributionrules")
        .collect();
    for rule in ["rule-codis-test", "second"] {
        let by_us = |verb: &str| {
            let ours = written
                .iter()
                .filter(|write| write.name == rule && !write.user.starts_with("system:"));
            ours.filter(|write| write.verb == verb && write.code == 200)
                .count()
        };
        ensure!(
            (by_us("delete"), by_us("patch")) == (1, 1),
            "{rule}: {written:?}"
        );
    }
    Ok(())
}
