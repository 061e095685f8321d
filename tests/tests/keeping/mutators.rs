//! Admission in the member that changes what is written there. Real policies of the API server; a webhook is asked at the
//! same place and to the same effect.

use std::time::Duration;

use anyhow::{Result, ensure};
use runnel_tests::scene::{Draft, Id, RuleDraft, SOON, TestCluster, entry_of, is_copy_of};
use runnel_tests::wait::{eventually, steadily};
use serde_json::{Value, json};

use super::{CANARY, fleet, gives_away, scene_with};

/// What a label and an annotation are added to, and never anything else changed.
const ADDS: &str = r#"Object{metadata: Object.metadata{
    labels: {"example.com/scanned": "yes"}, annotations: {"example.com/scanned-by": "admission"}}}"#;
/// The change of one ConfigMap's data.
const FORCES: &str = r#"Object{data: {"k": "forced", "injected": "x"}}"#;
/// The change of one Secret's data.
const FORCES_SECRET: &str = r#"Object{data: {"k": "Zm9yY2Vk", "injected": "eA=="}}"#;
/// The change of a label of the source.
const RELABELS: &str = r#"Object{metadata: Object.metadata{labels: {"team": "forced"}}}"#;

/// An admission policy that changes the objects of a namespace on every write.
async fn mutates(
    member: &TestCluster,
    name: &str,
    namespace: &str,
    only: &str,
    expression: &str,
) -> Result<()> {
    let rules = json!([{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["configmaps", "secrets"]}]);
    let selector = json!({"matchLabels": {"kubernetes.io/metadata.name": namespace}});
    let version = "admissionregistration.k8s.io/v1";
    member
        .make(&json!({"apiVersion": version, "kind": "MutatingAdmissionPolicy", "metadata": {"name": name}, "spec": {
            "failurePolicy": "Fail",
            "reinvocationPolicy": "Never",
            "matchConstraints": {"resourceRules": rules, "namespaceSelector": selector},
            "matchConditions": [{"name": "only", "expression": only}],
            "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}}],
        }}))
        .await?;
    member
        .make(&json!({"apiVersion": version, "kind": "MutatingAdmissionPolicyBinding", "metadata": {"name": name}, "spec": {
            "policyName": name,
        }}))
        .await?;
    Ok(())
}

async fn is_in_force(probe: &Value, pointer: &str) -> Result<()> {
    let member = fleet().await?.member(1);
    eventually("the policy to be in force", SOON, async || {
        let arguments = ["create", "--dry-run=server", "-o", "json", "-f", "-"];
        let made: Value =
            serde_json::from_str(&member.kubectl_stdin(&arguments, &probe.to_string()).await?)?;
        ensure!(made.pointer(pointer).is_some(), "made would be {made}");
        Ok(Some(()))
    })
    .await
}

/// How often the agent has written this object since.
async fn writes(mark: runnel_tests::audit::Mark, name: &str) -> Result<usize> {
    let all = fleet().await?.member(1).writes_since(mark)?;
    let ours = |write: &&runnel_tests::audit::Write| {
        write.namespace == "mutated" && write.name == name && write.user.ends_with(":runnel-agent")
    };
    Ok(all.iter().filter(ours).count())
}

#[tokio::test]
async fn webhook_that_changes_every_write_is_reported() -> Result<()> {
    let home = "mutated";
    let scene = scene_with(home).await?;
    let (hub, member) = (&scene.hub, scene.member(1));
    let rule = Id::rule(home, "all");
    let named = |name: &str| format!("object.metadata.name == '{name}'");
    mutates(member, "adds", home, "true", ADDS).await?;
    mutates(member, "forces", home, &named("forced"), FORCES).await?;
    mutates(
        member,
        "forces-secret",
        home,
        &named("login"),
        FORCES_SECRET,
    )
    .await?;
    mutates(member, "relabels", home, &named("labeled"), RELABELS).await?;
    let probe = |name: &str| Draft::config_map(home, name).json();
    is_in_force(&probe("adds"), "/metadata/labels/example.com~1scanned").await?;
    is_in_force(&probe("forced"), "/data/injected").await?;
    is_in_force(&Draft::secret(home, "login").json(), "/data/injected").await?;
    is_in_force(&probe("labeled"), "/metadata/labels/team").await?;

    let start = fleet().await?.member(1).mark();
    let plain = hub
        .make(
            &Draft::config_map(home, "plain")
                .label("team", "a")
                .data("k", "ours")
                .json(),
        )
        .await?;
    let quiet = hub
        .make(&Draft::secret(home, "quiet").data("k", CANARY).json())
        .await?;
    hub.make(
        &RuleDraft::new(home, "all")
            .named(&["*"])
            .to(&["member-1"])
            .json(),
    )
    .await?;
    hub.all_applied(&rule, 2).await?;
    // Additional labels are left alone, and there is one write for each object.
    for source in [&plain, &quiet] {
        let copy = member.get(&Id::of(source)?).await?;
        let added = [
            ("labels", "example.com/scanned"),
            ("annotations", "example.com/scanned-by"),
        ];
        ensure!(
            added
                .iter()
                .all(|(place, key)| copy["metadata"][place][key].is_string()),
            "{}",
            copy["metadata"]
        );
        let mut bare = copy.clone();
        for (place, key) in added {
            bare["metadata"][place]
                .as_object_mut()
                .and_then(|map| map.remove(key));
        }
        is_copy_of(source, &bare, &rule)?;
        steadily(
            "nobody writes it again",
            Duration::from_secs(2),
            async || member.is_untouched(&copy).await,
        )
        .await?;
    }
    ensure!(
        writes(start, "plain").await? == 1 && writes(start, "quiet").await? == 1,
        "written more than once"
    );

    // Changes of the content itself cannot be corrected from here. They are reported with the
    // changed fields.
    let start = fleet().await?.member(1).mark();
    hub.make(&Draft::config_map(home, "forced").data("k", "ours").json())
        .await?;
    hub.make(&Draft::config_map(home, "labeled").label("team", "a").json())
        .await?;
    hub.make(&Draft::secret(home, "login").data("k", CANARY).json())
        .await?;
    let observed = hub.sees("failed thrice", &rule, |observed| {
        ensure!(
            observed["status"]["summary"]["copiesFailed"] == 3,
            "{}",
            observed["status"]["summary"]
        );
        Ok(())
    });
    let observed = observed.await?;
    let entry = entry_of(&observed, "member-1")?;
    ensure!(
        entry["state"] == "Failed" && entry["reason"] == "Denied" && entry["applied"] == 2,
        "{entry}"
    );
    let message = entry["message"].as_str().unwrap_or_default();
    ensure!(
        message.contains("admission webhook or policy") && message.contains("ignoreFields"),
        "{message}"
    );
    let event = member
        .has_event(&Id::config_map(home, "forced"), "Denied")
        .await?;
    ensure!(
        event
            .note
            .contains(r#"/data/k is "forced" instead of "ours""#),
        "{event:?}"
    );
    let event = member
        .has_event(&Id::config_map(home, "labeled"), "Denied")
        .await?;
    ensure!(
        event
            .note
            .contains(r#"/metadata/labels/team is "forced" instead of "a""#),
        "{event:?}"
    );
    let event = member
        .has_event(&Id::secret(home, "login"), "Denied")
        .await?;
    ensure!(
        event.note.contains("/data/k is another")
            && event.note.contains("/data/injected was added"),
        "{event:?}"
    );
    ensure!(
        !gives_away(&event.note) && !event.note.contains("forced"),
        "{event:?}"
    );
    ensure!(
        !gives_away(&observed.to_string()),
        "the status holds a value of a Secret"
    );

    // Retries back off (1, 2, 4, 8 ... seconds) with two requests each at most, whatever the watch
    // shows. Nothing else waits, and it is reported once.
    steadily(
        "the others stay as they are",
        Duration::from_secs(12),
        async || {
            let observed = hub.get(&rule).await?;
            ensure!(
                observed["status"]["summary"]["copiesFailed"] == 3,
                "{}",
                observed["status"]["summary"]
            );
            Ok(())
        },
    )
    .await?;
    for name in ["forced", "labeled", "login"] {
        let count = writes(start, name).await?;
        ensure!(
            (1..=14).contains(&count),
            "{name} was written {count} times"
        );
    }
    ensure!(
        writes(start, "plain").await? == 0 && writes(start, "quiet").await? == 0,
        "the others were written"
    );
    for id in [Id::config_map(home, "forced"), Id::secret(home, "login")] {
        let observed = member.events_about(&id).await?;
        ensure!(
            observed
                .iter()
                .filter(|event| event.reason == "Denied")
                .all(|event| event.times == 1),
            "{observed:?}"
        );
        ensure!(
            observed
                .iter()
                .all(|event| event.reason != "DriftCorrected"),
            "{observed:?}"
        );
    }

    // The fix that the message names.
    let left = json!(["/data/k", "/data/injected", "/metadata/labels/team"]);
    hub.change(&rule, json!({"spec": {"ignoreFields": left}}))
        .await?;
    hub.all_applied(&rule, 5).await?;
    ensure!(member.get(&Id::config_map(home, "forced")).await?["data"]["k"] == "forced");

    // The webhook is removed, and all copies are right.
    for kind in ["MutatingAdmissionPolicyBinding", "MutatingAdmissionPolicy"] {
        let kubectl = fleet().await?.member(1);
        kubectl
            .kubectl(&[
                "delete",
                kind,
                "adds",
                "forces",
                "forces-secret",
                "relabels",
            ])
            .await?;
    }
    hub.change(&rule, json!({"spec": {"ignoreFields": null}}))
        .await?;
    let forced = hub
        .change(
            &Id::config_map(home, "forced"),
            json!({"data": {"k": "ours again"}}),
        )
        .await?;
    member
        .sees("as the source says", &Id::of(&forced)?, |copy| {
            ensure!(copy["data"] == forced["data"], "{}", copy["data"]);
            Ok(())
        })
        .await?;
    hub.all_applied(&rule, 5).await.map(|_| ())
}
