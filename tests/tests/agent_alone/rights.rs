//! Behavior of an agent with missing permissions.
use anyhow::Result;
use runnel_proto::model::{Content, Reason, RuleState};
use runnel_tests::scene::Id;
use serde_json::{Value, json};
use std::time::Duration;

use crate::alone::{Alone, source};

fn rule(resources: &[&str]) -> Value {
    json!({"apiGroups": [""], "resources": resources, "verbs": ["get", "list", "watch", "create", "patch", "delete"]})
}

#[tokio::test]
async fn kind_without_rights_is_reported_and_resumed_when_granted() -> Result<()> {
    let mut alone = Alone::prepare("rights", Duration::from_secs(3600)).await?;
    alone.make_namespace("a").await?;
    let (name, place) = (alone.name.clone(), alone.place.clone());
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"namespace": name, "name": "agent"}});
    place.make(&account).await?;
    let subject = json!([{"kind": "ServiceAccount", "name": "agent", "namespace": name}]);
    let group = "rbac.authorization.k8s.io";
    let version = format!("{group}/v1");
    let reads =
        json!({"apiGroups": [""], "resources": ["namespaces"], "verbs": ["get", "list", "watch"]});
    let fewer = format!("{name}-fewer");
    let role = json!({"apiVersion": version, "kind": "ClusterRole", "metadata": {"name": fewer},
        "rules": [rule(&["configmaps"]), reads]});
    let role = place.make(&role).await?;
    let binding = json!({"apiVersion": version, "kind": "ClusterRoleBinding", "metadata": {"name": fewer},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": fewer}, "subjects": subject});
    place.make(&binding).await?;
    let leases = json!({"apiGroups": ["coordination.k8s.io"], "resources": ["leases"],
        "verbs": ["get", "list", "watch", "create", "update", "delete"]});
    let own = json!({"apiVersion": version, "kind": "Role", "metadata": {"namespace": name, "name": "own"},
        "rules": [rule(&["secrets"]), leases]});
    place.make(&own).await?;
    let binding = json!({"apiVersion": version, "kind": "RoleBinding", "metadata": {"namespace": name, "name": "own"},
        "roleRef": {"apiGroup": group, "kind": "Role", "name": "own"}, "subjects": subject});
    place.make(&binding).await?;

    alone.kubeconfig = alone.plane.token_kubeconfig(&name, "agent").await?;
    alone.start_agent().await?;
    let mut wanted = alone.rule(&["a"], &[("one", "1")]);
    let fields = [
        ("type".to_owned(), json!("Opaque")),
        ("data".to_owned(), json!({"k": "dg=="})),
    ];
    wanted.intents.insert(
        source("secrets", "two"),
        Content {
            fields: fields.into(),
            ..Content::default()
        },
    );
    alone.hub.want("r", wanted);
    alone.has_value(&alone.id("a", "one"), "1").await?;
    let is_partial = |state: &RuleState| (state.counts.applied, state.counts.failed) == (1, 1);
    let state = alone
        .hub
        .wait_for_report("a missing right", "r", is_partial)
        .await?;
    assert_eq!(state.failures[0].reason, Reason::Forbidden);

    place
        .change(
            &Id::of(&role)?,
            json!({"rules": [rule(&["configmaps", "secrets"]), reads]}),
        )
        .await?;
    alone.hub.wait_applied("r", 2).await?;
    let copy = place.get(&Id::secret(&alone.ns("a"), "two")).await?;
    assert_eq!(copy["data"]["k"], "dg==");
    Ok(())
}
