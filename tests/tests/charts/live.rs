//! The charts on a real API server, whose namespace for Runnel enforces Pod Security `restricted`.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use runnel_tests::control_plane::{ControlPlane, Options};
use runnel_tests::helm::{Helm, chart};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use super::render::{self, documents, one};

const AGENT: &str = "--as=system:serviceaccount:runnel-system:runnel-agent";
const HUB: &str = "--as=system:serviceaccount:runnel-system:runnel-hub";

static CLUSTER: OnceCell<ControlPlane> = OnceCell::const_new();

/// A control plane with the namespaces that the values name, shared by the tests of this file.
pub async fn cluster() -> Result<&'static ControlPlane> {
    CLUSTER
        .get_or_try_init(|| async {
            let cluster = ControlPlane::start("charts", Options::default()).await?;
            let level = |mode: &str| format!("pod-security.kubernetes.io/{mode}: restricted");
            let namespaces: String = ["runnel-system", "team-a", "team-b"]
                .iter()
                .map(|name| {
                    let (enforce, warn) = (level("enforce"), level("warn"));
                    format!("---\n{{apiVersion: v1, kind: Namespace, metadata: {{name: {name}, labels: {{{enforce}, {warn}}}}}}}\n")
                })
                .collect();
            cluster.kubectl_stdin(&["apply", "--server-side", "-f", "-"], &namespaces).await?;
            Ok(cluster)
        })
        .await
}

/// Warnings are errors: Pod Security warns of a Deployment whose pods it would refuse.
#[tokio::test]
async fn a_strict_api_server_takes_whatever_is_rendered() -> Result<()> {
    let (cluster, helm) = (cluster().await?, Helm::find().await?);
    let apply = [
        "apply",
        "--server-side",
        "--force-conflicts",
        "--dry-run=server",
        "--validate=strict",
        "--warnings-as-errors",
    ];
    let apply = [&apply[..], &["-f", "-"]].concat();
    for (chart, tried) in [("runnel-hub", render::HUB), ("runnel-agent", render::AGENT)] {
        for (about, values) in tried {
            // Under a separate name, so that it is not merged with what the other tests install.
            let text = helm.template_as("tried", chart, values).await?;
            cluster
                .kubectl_stdin(&apply, &text)
                .await
                .with_context(|| format!("{chart} with {about}"))?;
        }
    }
    Ok(())
}

/// The pod itself, as a controller makes it: Pod Security refuses it when it asks for more than `restricted` allows.
#[tokio::test]
async fn the_pods_pass_pod_security_restricted() -> Result<()> {
    let (cluster, helm) = (cluster().await?, Helm::find().await?);
    for chart in render::CHARTS {
        let documents = documents(&helm, chart, "{}").await?;
        let template = &one(&documents, "Deployment", chart)?["spec"]["template"];
        let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": template["metadata"], "spec": template["spec"]});
        pod["metadata"]["name"] = json!(format!("{chart}-pod"));
        pod["metadata"]["namespace"] = json!("runnel-system");
        // The account is the chart's; here only the pod is asked about.
        pod["spec"]["serviceAccountName"] = json!("default");
        let create = ["create", "--dry-run=server", "--validate=strict", "-f", "-"];
        cluster
            .kubectl_stdin(&create, &pod.to_string())
            .await
            .with_context(|| chart.to_owned())?;

        pod["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = json!(true);
        let refused = cluster
            .kubectl_stdin(&create, &pod.to_string())
            .await
            .err()
            .context("nothing is enforced here")?;
        ensure!(
            format!("{refused:#}").contains("PodSecurity \"restricted"),
            "{refused:#}"
        );
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in from
        .read_dir()
        .with_context(|| from.display().to_string())?
    {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?
        } else {
            fs::copy(entry.path(), target).map(|_| ())?
        }
    }
    Ok(())
}

/// A chart of a time when a MemberCluster had no short name.
fn older_chart(folder: &Path) -> Result<std::path::PathBuf> {
    let older = folder.join("older-chart");
    copy(&chart("runnel-hub"), &older)?;
    let crd = older.join("files/crds/runnel.dev_memberclusters.yaml");
    let text = fs::read_to_string(&crd)?;
    let without = text.replacen("    shortNames:\n    - member\n", "", 1);
    ensure!(without != text, "the CRD has changed: {text}");
    fs::write(&crd, without)?;
    Ok(older)
}

async fn read(cluster: &ControlPlane, what: &[&str]) -> Result<Value> {
    let arguments = [&["get", "-o", "json"], what].concat();
    Ok(serde_json::from_str(&cluster.kubectl(&arguments).await?)?)
}

async fn may(cluster: &ControlPlane, subject: &str, question: &str) -> Result<bool> {
    let arguments: Vec<&str> = ["auth", "can-i", subject]
        .into_iter()
        .chain(question.split(' '))
        .collect();
    // `no` is exit code 1.
    Ok(cluster
        .kubectl(&arguments)
        .await
        .is_ok_and(|answer| answer.trim() == "yes"))
}

#[tokio::test]
async fn hub_is_installed_upgraded_uninstalled_and_crds_stay() -> Result<()> {
    let (cluster, helm) = (cluster().await?, Helm::find().await?);
    let on = async |arguments: &[&str], values: &str| {
        let namespace = ["--namespace=runnel-system", "--values=-"];
        helm.on_with(
            cluster.kubeconfig(),
            &[arguments, &namespace].concat(),
            values,
        )
        .await
    };
    let older = older_chart(cluster.folder())?;
    let (older, newer) = (
        older.to_str().context("no text")?.to_owned(),
        chart("runnel-hub"),
    );
    let newer = newer.to_str().context("no text")?;

    let output = on(&["install", "runnel-hub", &older], "{}").await?;
    ensure!(
        output.contains("No cluster can join yet") && output.contains("--set 'advertise="),
        "{output}"
    );
    let member = ["crd", "memberclusters.runnel.dev"];
    ensure!(read(cluster, &member).await?["spec"]["names"]["shortNames"].is_null());
    let wait = [
        "wait",
        "--for=condition=Established",
        "--timeout=30s",
        "crd",
        "--selector=app.kubernetes.io/part-of=runnel",
    ];
    cluster.kubectl(&wait).await?;

    let values = "{advertise: ['hub.example.com:8443'], service: {type: NodePort}, sourceNamespaces: [team-a, team-b]}";
    let output = on(&["upgrade", "runnel-hub", newer], values).await?;
    ensure!(output.contains("kubectl runnel join"), "{output}");
    ensure!(read(cluster, &member).await?["spec"]["names"]["shortNames"] == json!(["member"]));
    let deployment = read(
        cluster,
        &["-n", "runnel-system", "deployment", "runnel-hub"],
    )
    .await?;
    let arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"].to_string();
    ensure!(
        arguments.contains("--advertise=hub.example.com:8443"),
        "{arguments}"
    );
    ensure!(!may(cluster, HUB, "list secrets --all-namespaces").await?);
    ensure!(
        may(cluster, HUB, "watch secrets -n team-b").await?
            && !may(cluster, HUB, "get secrets -n default").await?
    );
    ensure!(!may(cluster, HUB, "patch secrets -n team-b").await?);
    ensure!(
        may(
            cluster,
            HUB,
            "create secrets/runnel-hub-identity -n runnel-system"
        )
        .await?
    );
    ensure!(!may(cluster, HUB, "create secrets -n runnel-system").await?);
    ensure!(
        may(
            cluster,
            HUB,
            "update leases.coordination.k8s.io/runnel-hub -n runnel-system"
        )
        .await?
    );
    ensure!(
        !may(
            cluster,
            HUB,
            "update leases.coordination.k8s.io/other -n runnel-system"
        )
        .await?
    );

    cluster
        .kubectl_stdin(
            &["apply", "--server-side", "-f", "-"],
            "{apiVersion: runnel.dev/v1alpha1, kind: MemberCluster, metadata: {name: kept}, spec: {}}",
        )
        .await?;
    helm.on(
        cluster.kubeconfig(),
        &["uninstall", "runnel-hub", "--namespace=runnel-system"],
    )
    .await?;
    let left = read(
        cluster,
        &[
            "-n",
            "runnel-system",
            "deployments,services,roles,rolebindings,serviceaccounts,clusterroles,clusterrolebindings",
            "--selector=app.kubernetes.io/name=runnel-hub",
        ],
    )
    .await?;
    ensure!(left["items"] == json!([]), "{left}");
    ensure!(
        cluster
            .kubectl(&["get", "member", "kept"])
            .await?
            .contains("kept")
    );

    // What stayed is taken up again.
    on(&["install", "runnel-hub", newer], "{}").await?;
    ensure!(may(cluster, HUB, "list secrets --all-namespaces").await?);
    Ok(())
}

const IDENTITY: &str = "{apiVersion: v1, kind: Secret, metadata: {name: runnel-agent-identity, namespace: runnel-system}}";
const COPY: &str = "{apiVersion: v1, kind: Secret, metadata: {name: copy, namespace: team-a, labels: {runnel.dev/hub: h}}}";

#[tokio::test]
async fn agent_of_two_namespaces_works_there_and_nowhere_else() -> Result<()> {
    let (cluster, helm) = (cluster().await?, Helm::find().await?);
    let folder = chart("runnel-agent");
    let folder = folder.to_str().context("no text")?;
    let values =
        "{join: {string: runnel-join-v1.not-a-real-one}, policy: {namespaces: [team-a, team-b]}}";
    let install = [
        "upgrade",
        "--install",
        "runnel-agent",
        folder,
        "--namespace=runnel-system",
        "--values=-",
    ];
    let output = helm.on_with(cluster.kubeconfig(), &install, values).await?;
    ensure!(
        output.contains("Copies may go to team-a, team-b only")
            && !output.contains("not-a-real-one"),
        "{output}"
    );

    for (question, expected) in [
        ("list secrets --all-namespaces", false),
        ("list configmaps --all-namespaces", false),
        ("get secrets -n default", false),
        ("get secrets -n runnel-system", false),
        ("get configmaps/runnel-agent-policy -n runnel-system", false),
        (
            "patch configmaps/runnel-agent-policy -n runnel-system",
            false,
        ),
        ("get secrets/runnel-agent-join -n runnel-system", false),
        ("patch secrets/runnel-agent-identity -n runnel-system", true),
        (
            "delete secrets/runnel-agent-identity -n runnel-system",
            false,
        ),
        ("watch secrets -n team-a", true),
        ("delete configmaps -n team-b", true),
        ("create events.events.k8s.io -n team-b", true),
        ("create events.events.k8s.io -n default", false),
        ("create namespaces", false),
        ("watch namespaces", true),
        ("create pods -n team-a", false),
        ("create roles.rbac.authorization.k8s.io -n team-a", false),
        (
            "create serviceaccounts --subresource=token -n team-a",
            false,
        ),
    ] {
        ensure!(
            may(cluster, AGENT, question).await? == expected,
            "{question}: expected {expected}"
        );
    }

    // Server-side apply names what it creates, so that even the right to create is one for these names alone.
    let apply = [
        "apply",
        "--server-side",
        "--field-manager=runnel-agent-store",
        AGENT,
        "-f",
        "-",
    ];
    cluster.kubectl_stdin(&apply, IDENTITY).await?;
    cluster.kubectl_stdin(&apply, COPY).await?;
    for (object, why) in [
        (
            IDENTITY.replace("runnel-agent-identity", "another"),
            "another name",
        ),
        (COPY.replace("team-a", "default"), "another namespace"),
    ] {
        let refused = cluster
            .kubectl_stdin(&apply, &object)
            .await
            .err()
            .with_context(|| format!("{why} is allowed"))?;
        ensure!(format!("{refused:#}").contains("Forbidden"), "{refused:#}");
    }
    let posted = IDENTITY.replace("runnel-agent-identity", "posted");
    ensure!(
        cluster
            .kubectl_stdin(&["create", AGENT, "-f", "-"], &posted)
            .await
            .is_err()
    );

    // The Roles are the platform's now.
    let values = "{policy: {namespaces: [team-a, team-b], createRoles: false}}";
    helm.on_with(cluster.kubeconfig(), &install, values).await?;
    ensure!(!may(cluster, AGENT, "watch secrets -n team-a").await?);
    Ok(())
}
