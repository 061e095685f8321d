//! Objects that a member's API server refuses.

use anyhow::{Result, ensure};
use runnel_tests::scene::{Draft, Id, RuleDraft, SOON, TestCluster, condition, entry_of};
use runnel_tests::wait::eventually;
use serde_json::{Value, json};

use super::scene_with;

/// Words that may be only in sources and copies.
const CANARY: &str = "c4n4ry-value-that-nobody-may-repeat";

/// The texts of a status and the Events of rule and copy about it, without the canary.
async fn message_is_not_repeated(
    hub: &TestCluster,
    rule: &Id,
    member: &TestCluster,
    copy: &Id,
) -> Result<()> {
    let status = hub.get(rule).await?["status"].to_string();
    let events = format!(
        "{:?} {:?}",
        hub.events_about(rule).await?,
        member.events_about(copy).await?
    );
    ensure!(
        !status.contains(CANARY) && !events.contains(CANARY),
        "content in a status or Event"
    );
    Ok(())
}

/// Refuses ConfigMaps called `forbidden` in one namespace, repeating their content in the message.
async fn policy(member: &TestCluster, namespace: &str) -> Result<Id> {
    let rules = json!([{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["configmaps"]}]);
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "no-forbidden"},
        "spec": {
            "matchConstraints": {"resourceRules": rules},
            "validations": [{
                "expression": "object.metadata.name != 'forbidden'",
                "messageExpression": "'the value ' + object.data.k + ' is not welcome'",
            }],
        },
    });
    let selector = json!({"matchLabels": {"kubernetes.io/metadata.name": namespace}});
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "no-forbidden"},
        "spec": {
            "policyName": "no-forbidden", "validationActions": ["Deny"],
            "matchResources": {"namespaceSelector": selector},
        },
    });
    member.make(&policy).await?;
    let binding = member.make(&binding).await?;
    // A policy works a few seconds after it was made.
    let draft = Draft::config_map(namespace, "forbidden")
        .data("k", "a try")
        .json();
    eventually("the policy to work", SOON, async || {
        match member.make(&draft).await {
            Ok(_) => {
                member.delete(&Id::of(&draft)?).await?;
                Ok(None)
            }
            Err(error) => Ok(format!("{error:#}")
                .contains("denied request")
                .then_some(())),
        }
    })
    .await?;
    Id::of(&binding)
}

#[tokio::test]
async fn policy_refusal_fails_one_copy_without_its_content() -> Result<()> {
    let home = "refused";
    let scene = scene_with(home).await?;
    let (hub, member) = (&scene.hub, scene.member(1));
    let binding = policy(member, home).await?;
    let rule = Id::rule(home, "all");
    let bad = hub
        .make(
            &Draft::config_map(home, "forbidden")
                .data("k", CANARY)
                .json(),
        )
        .await?;
    let mut good = Vec::new();
    for name in ["a", "b", "y", "z"] {
        good.push(hub.make(&Draft::config_map(home, name).json()).await?);
    }
    hub.make(
        &RuleDraft::new(home, "all")
            .named(&["*"])
            .to(&["member-1", "member-2"])
            .json(),
    )
    .await?;
    for source in &good {
        member.has_copy(source, home, &rule).await?;
    }
    let observed = hub.wait_counted(&rule, "Denied", (9, 1)).await?;
    let message = entry_of(&observed, "member-1")?["message"]
        .as_str()
        .unwrap_or_default();
    ensure!(
        message.contains("configmaps/refused/forbidden") && message.contains("no-forbidden"),
        "{message}"
    );
    ensure!(member.has_event(&Id::of(&bad)?, "Denied").await?.kind == "Warning");
    message_is_not_repeated(hub, &rule, member, &Id::of(&bad)?).await?;

    // While it fails again and again, the others follow their sources at once.
    for source in &good {
        let edited = hub
            .change(&Id::of(source)?, json!({"data": {"k": "edited"}}))
            .await?;
        member.has_copy(&edited, home, &rule).await?;
    }
    member.delete(&binding).await?;
    member.has_copy(&bad, home, &rule).await?;
    hub.all_applied(&rule, 10).await.map(|_| ())
}

#[tokio::test]
async fn exhausted_quota_is_reported_and_passes() -> Result<()> {
    let home = "quota";
    let scene = scene_with(home).await?;
    let (hub, member) = (&scene.hub, scene.member(1));
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"namespace": home, "name": "few"},
        "spec": {"hard": {"count/secrets": "0"}},
    });
    member.make(&quota).await?;
    let id = Id::of(&quota)?;
    // Without a quota controller the test fills in the usage.
    let used = json!({"status": {"hard": {"count/secrets": "0"}, "used": {"count/secrets": "0"}}});
    set_status(member, &id, &used).await?;
    let rule = Id::rule(home, "all");
    let secret = hub
        .make(&Draft::secret(home, "login").data("k", CANARY).json())
        .await?;
    let config = hub
        .make(&Draft::config_map(home, "settings").json())
        .await?;
    hub.make(
        &RuleDraft::new(home, "all")
            .named(&["*"])
            .to(&["member-1"])
            .json(),
    )
    .await?;
    member.has_copy(&config, home, &rule).await?;
    let observed = hub.wait_ready(&rule, "False", "Denied").await?;
    let message = condition(&observed, "Ready")?["message"]
        .as_str()
        .unwrap_or_default();
    ensure!(
        message.contains("secrets/quota/login") && message.contains("quota"),
        "{message}"
    );
    message_is_not_repeated(hub, &rule, member, &Id::of(&secret)?).await?;
    member.delete(&id).await?;
    member.has_copy(&secret, home, &rule).await?;
    hub.all_applied(&rule, 2).await.map(|_| ())
}

async fn set_status(member: &TestCluster, id: &Id, status: &Value) -> Result<()> {
    use k8s_openapi::api::core::v1::ResourceQuota;
    let namespace = id.own_namespace().unwrap_or_default();
    let api: kube::Api<ResourceQuota> = kube::Api::namespaced(member.client(), namespace);
    let patch = kube::api::Patch::Merge(status);
    api.patch_status(id.name(), &kube::api::PatchParams::default(), &patch)
        .await?;
    Ok(())
}

#[tokio::test]
async fn immutable_copy_is_reported_and_recreated_when_deleted() -> Result<()> {
    let home = "immutable";
    let scene = scene_with(home).await?;
    let (hub, member) = (&scene.hub, scene.member(1));
    let rule = Id::rule(home, "all");
    hub.make(
        &RuleDraft::new(home, "all")
            .named(&["*"])
            .to(&["member-1"])
            .json(),
    )
    .await?;
    let secret = |text| {
        Draft::secret(home, "login")
            .data("k", text)
            .with("immutable", json!(true))
            .json()
    };
    let typed = |kind: &str| {
        Draft::secret(home, "typed")
            .with("type", json!(kind))
            .json()
    };
    for draft in [secret("one"), typed("example.com/one")] {
        let source = hub.make(&draft).await?;
        member.has_copy(&source, home, &rule).await?;
    }
    let other = hub
        .make(&Draft::config_map(home, "settings").data("k", "one").json())
        .await?;
    member.has_copy(&other, home, &rule).await?;

    // Created again within the grace period: for the member it is a change that is not allowed.
    let mut sources = Vec::new();
    for draft in [secret(CANARY), typed("example.com/two")] {
        hub.delete(&Id::of(&draft)?).await?;
        sources.push(hub.make(&draft).await?);
    }
    let observed = hub.wait_failed(&rule, "Immutable", 2).await?;
    let message = entry_of(&observed, "member-1")?["message"]
        .as_str()
        .unwrap_or_default();
    ensure!(
        message.contains("secrets/immutable/login") && message.contains("delete the copy"),
        "{message}"
    );
    message_is_not_repeated(hub, &rule, member, &Id::of(&sources[0])?).await?;
    let edited = hub
        .change(&Id::of(&other)?, json!({"data": {"k": "two"}}))
        .await?;
    member.has_copy(&edited, home, &rule).await?;
    for source in &sources {
        member.delete(&Id::of(source)?).await?;
        member.has_copy(source, home, &rule).await?;
    }
    hub.all_applied(&rule, 3).await.map(|_| ())
}
