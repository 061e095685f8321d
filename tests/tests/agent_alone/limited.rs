//! An agent that may work in some namespaces only: its chart names them, so it has Roles there and no right elsewhere.
use std::time::Duration;

use anyhow::{Result, ensure};
use runnel_proto::model::{Content, Reason};
use runnel_tests::control_plane::{ControlPlane, Options};
use runnel_tests::scene::Id;
use serde_json::json;
use tokio::sync::OnceCell;

use crate::alone::{Alone, source};

/// A control plane that also records reads.
pub async fn audited() -> Result<&'static ControlPlane> {
    static PLANE: OnceCell<ControlPlane> = OnceCell::const_new();
    let options = || Options {
        audit_reads: true,
        ..Options::default()
    };
    PLANE
        .get_or_try_init(|| ControlPlane::start("audited", options()))
        .await
}

/// An agent with Roles in namespaces a and b of its test, and in no other.
pub async fn limited(name: &str) -> Result<Alone> {
    let namespaces = json!([format!("{name}-a"), format!("{name}-b")]);
    // The rights change here without the chart: its admission policy would keep to the namespaces of before.
    let policy = json!({"namespaces": namespaces, "createNamespaces": false});
    let values = json!({"policy": policy, "admissionPolicy": {"create": false}});
    Alone::prepare_on(
        audited().await?,
        name,
        Duration::from_secs(3600),
        &["a", "b", "c", "d"],
        &values,
    )
    .await
}

#[tokio::test]
async fn agent_of_two_namespaces_continues_with_a_wider_role() -> Result<()> {
    let mut alone = limited("two").await?;
    let mark = alone.plane.mark();
    // The third namespace is allowed and its Role is missing; the fourth is not allowed.
    alone.set_policy("namespaces: {allowed: [two-a, two-b, two-c]}")?;
    alone.start_agent().await?;
    let mut wanted = alone.rule(&["a", "b", "c", "d"], &[("one", "1")]);
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
    alone.hub.want("r", wanted.clone());
    let settled = |state: &runnel_proto::model::RuleState| {
        state.counts.applied == 4 && state.counts.failed == 4
    };
    let state = alone
        .hub
        .wait_for_report("four copies and four failures", "r", settled)
        .await?;
    for namespace in ["a", "b"] {
        alone.has_value(&alone.id(namespace, "one"), "1").await?;
    }
    let forbidden: Vec<_> = state
        .failures
        .iter()
        .filter(|failure| &*failure.copy.namespace == "two-c")
        .collect();
    assert_eq!(forbidden.len(), 2, "{:?}", state.failures);
    for failure in &forbidden {
        let (message, resource) = (&failure.message, &failure.copy.resource);
        assert_eq!(failure.reason, Reason::Forbidden);
        assert!(
            message.contains(&format!("may not list {resource} in namespace two-c")),
            "{message}"
        );
        assert!(message.ends_with("--serviceaccount=two:two"), "{message}");
    }
    let denied: Vec<_> = state
        .failures
        .iter()
        .filter(|failure| &*failure.copy.namespace == "two-d")
        .collect();
    assert_eq!(denied.len(), 2, "{:?}", state.failures);
    for failure in denied {
        assert_eq!(failure.reason, Reason::Denied);
        assert!(
            failure.message.contains("namespaces.allowed"),
            "{}",
            failure.message
        );
    }

    // An administrator follows the hints of the failures literally.
    for failure in &forbidden {
        let (_, commands) = failure.message.split_once("kubectl ").unwrap_or_default();
        for command in commands.split("; kubectl ") {
            alone
                .plane
                .kubectl(&command.split(' ').collect::<Vec<_>>())
                .await?;
        }
    }
    let settled = |state: &runnel_proto::model::RuleState| {
        state.counts.applied == 6 && state.counts.failed == 2
    };
    alone
        .hub
        .wait_for_report("the third namespace", "r", settled)
        .await?;
    alone.has_value(&alone.id("c", "one"), "1").await?;
    assert_eq!(
        alone.place.get(&Id::secret("two-c", "two")).await?["data"]["k"],
        "dg=="
    );

    // It never asked for copies anywhere else: not in the whole cluster, and not in the fourth namespace.
    let asked = alone
        .plane
        .writes_since(mark)?
        .into_iter()
        .filter(|request| {
            request.user == "system:serviceaccount:two:two"
                && ["configmaps", "secrets"].contains(&request.resource.as_str())
                && request.namespace != "two"
        });
    let asked: Vec<_> = asked.collect();
    ensure!(
        asked.iter().any(|request| request.verb == "list"),
        "the audit log shows no list at all"
    );
    for request in asked {
        ensure!(
            ["two-a", "two-b", "two-c"].contains(&request.namespace.as_str()),
            "{request:?}"
        );
    }

    // A wider policy takes effect without a restart too, up to the missing Role.
    alone.set_policy("namespaces: {allowed: [two-a, two-b, two-c, two-d]}")?;
    let output = |state: &runnel_proto::model::RuleState| {
        state.failures.len() == 2
            && state
                .failures
                .iter()
                .all(|failure| failure.reason == Reason::Forbidden)
    };
    alone
        .hub
        .wait_for_report("a missing Role in the fourth namespace", "r", output)
        .await
        .map(drop)
}
