//! A malicious hub with a valid certificate: whatever it sends, the member's policy and rights
//! apply.
use anyhow::{Result, ensure};
use runnel_proto::model::*;
use runnel_tests::scene::Id;
use serde_json::{Value, json};

use crate::alone::{Alone, config_map, source};
use crate::fake_hub::Wanted;
use crate::limited::limited;

fn content(fields: Value) -> Content {
    let fields = fields.as_object().cloned().unwrap_or_default();
    Content {
        fields: fields.into_iter().collect(),
        ..Content::default()
    }
}

fn secret(object_type: &str) -> Content {
    content(json!({"type": object_type, "data": {"k": "dg=="}}))
}

/// Each attempt as a separate rule: its target, its kind and its content.
fn attempts(alone: &Alone) -> Vec<(String, Wanted)> {
    let a = alone.ns("a");
    let to = |namespace: &str, from: SourceRef, content: Content| {
        let names = vec![Pattern::new(namespace)];
        let namespaces = Some(NamespaceChoice {
            names,
            ..NamespaceChoice::default()
        });
        let terms = Terms {
            namespaces,
            create_namespaces: true,
            ..alone.terms(&[])
        };
        Wanted {
            terms,
            intents: [(from, content)].into(),
        }
    };
    let mut all = vec![];
    // Namespaces of the system, of the agent, beyond the policy, and names that are none.
    let long = "a".repeat(64);
    for namespace in [
        "kube-system",
        "kube-public",
        "kube-node-lease",
        "default",
        "runnel-system",
        &alone.name,
        &alone.ns("c"),
        "new-namespace",
        "..",
        ".",
        "../kube-system",
        "A",
        "Kube-System",
        "kube-system ",
        "kube-syst\u{435}m",
        "a/b",
        "a%2fb",
        &long,
        &format!("{a}/../kube-system"),
        &a.to_uppercase(),
    ] {
        all.push((
            format!("into {namespace:?}"),
            to(namespace, source("configmaps", "x"), config_map("x")),
        ));
        all.push((
            format!("secret into {namespace:?}"),
            to(namespace, source("secrets", "x"), secret("Opaque")),
        ));
    }
    // Kinds that are never distributed, and names with path traversal.
    for resource in [
        "pods",
        "roles.rbac.authorization.k8s.io",
        "serviceaccounts",
        "ConfigMaps",
        "secrets/status",
    ] {
        all.push((
            format!("a {resource}"),
            to(&a, source(resource, "x"), config_map("x")),
        ));
    }
    for name in [
        "../x",
        "..",
        "a/b",
        "a:b",
        "A",
        "x?y",
        "x%2fy",
        "\u{e9}",
        &"n".repeat(254),
        "kube-root-ca.crt",
    ] {
        all.push((
            format!("named {name:?}"),
            to(&a, source("configmaps", name), config_map("x")),
        ));
    }
    // Types and sizes.
    for object_type in [
        "kubernetes.io/service-account-token",
        "bootstrap.kubernetes.io/token",
        "helm.sh/release.v1",
        "kubernetes.io/tls",
    ] {
        all.push((
            format!("of type {object_type}"),
            to(&a, source("secrets", "typed"), secret(object_type)),
        ));
    }
    let large = content(json!({"data": {"k": "x".repeat(1001)}}));
    all.push((
        "too large".to_owned(),
        to(&a, source("configmaps", "large"), large),
    ));
    // Fields beside the content.
    for (what, fields) in [
        (
            "owner references",
            json!({"metadata": {"ownerReferences": [{"kind": "Pod", "name": "x", "uid": "x"}]}}),
        ),
        ("finalizers", json!({"finalizers": ["example.com/hold"]})),
        ("a spec", json!({"spec": {"containers": []}})),
        (
            "a kind of its own",
            json!({"kind": "Pod", "apiVersion": "v1"}),
        ),
    ] {
        all.push((
            format!("with {what}"),
            to(&a, source("configmaps", "fields"), content(fields)),
        ));
    }
    all
}

/// Whether the agent has reported an attempt to the hub: with its copy, or in an ack if the copy is
/// unreadable.
fn has_event(alone: &Alone, uid: &str) -> bool {
    let failed = alone
        .hub
        .observed(uid)
        .is_some_and(|state| state.counts.failed > 0 && state.counts.applied == 0);
    failed
        || alone
            .hub
            .received()
            .contains(&format!("Refusal {{ rule: RuleUid(\"{uid}\")"))
}

async fn attack(alone: &Alone, mark: runnel_tests::audit::Mark) -> Result<()> {
    let attempts = attempts(alone);
    ensure!(attempts.len() >= 50, "{}", attempts.len());
    for (at, (_, wanted)) in attempts.iter().enumerate() {
        alone.hub.want(&format!("attempt-{at:03}"), wanted.clone());
    }
    // The valid item among them is applied last.
    alone
        .hub
        .want("right", alone.rule(&["a"], &[("right", "1")]));
    alone.hub.wait_applied("right", 1).await?;
    runnel_tests::wait::eventually(
        "each attempt to be told",
        runnel_tests::scene::SOON,
        async || {
            let untold = attempts
                .iter()
                .enumerate()
                .find(|(at, _)| !has_event(alone, &format!("attempt-{at:03}")));
            ensure!(
                untold.is_none(),
                "{:?}",
                untold
                    .map(|(at, (what, _))| (what, alone.hub.observed(&format!("attempt-{at:03}"))))
            );
            Ok(Some(()))
        },
    )
    .await?;
    // Nothing was written but the one copy, nowhere, of no kind.
    let user = format!("system:serviceaccount:{0}:{0}", alone.name);
    let own = ["runnel-agent-identity", "runnel-agent-terms"];
    for write in alone
        .plane
        .writes_since(mark)?
        .into_iter()
        .filter(|write| write.user == user)
    {
        let reads = ["get", "list", "watch"].contains(&write.verb.as_str());
        let right = write.name == "right" && write.namespace == alone.ns("a");
        let own = write.namespace == alone.name && write.resource == "secrets";
        let event = write.resource == "events" && write.namespace == alone.ns("a");
        ensure!(
            reads || right || own || event || write.code == 403,
            "{write:?}"
        );
    }
    for namespace in [
        "kube-system",
        "default",
        alone.name.as_str(),
        &alone.ns("a"),
        &alone.ns("c"),
    ] {
        for like in [Id::config_map(namespace, ""), Id::secret(namespace, "")] {
            for object in alone.place.list(&like).await? {
                let (name, labels) = (&object["metadata"]["name"], &object["metadata"]["labels"]);
                let copy = labels["runnel.dev/hub"] == json!(alone.hub.hub_id());
                let known = name == "right" || own.iter().any(|own| name == own);
                ensure!(!copy || known, "{namespace}/{name} was written");
            }
        }
    }
    let namespaces = alone.place.list(&Id::namespace("")).await?;
    ensure!(
        namespaces
            .iter()
            .all(|namespace| namespace["metadata"]["name"] != "new-namespace"),
        "a namespace was created"
    );
    Ok(())
}

#[tokio::test]
async fn nothing_outside_the_policy_is_written_and_all_is_reported() -> Result<()> {
    let mut alone = limited("hostile").await?;
    alone.set_policy(
        "{namespaces: {allowed: [hostile-a, hostile-b]}, maxObjectBytes: 1000, secretTypes: {allowed: [Opaque]}}",
    )?;
    let mark = alone.plane.mark();
    alone.start_agent().await?;
    attack(&alone, mark).await
}

#[tokio::test]
async fn rights_apply_where_the_agents_check_is_off() -> Result<()> {
    let mut alone = limited("naive").await?;
    // A policy that lets everything pass that the attempts ask for; the Roles are those of two namespaces.
    let names = "kube-system, kube-public, kube-node-lease, default, runnel-system, naive, naive-a, naive-b, naive-c, new-namespace";
    alone.set_policy(&format!(
        "{{namespaces: {{allowed: [{names}]}}, createNamespaces: true}}"
    ))?;
    let mark = alone.plane.mark();
    alone.start_agent().await?;
    let outside = [
        "kube-system",
        "kube-public",
        "default",
        "naive-c",
        "new-namespace",
    ];
    // The policy names its own namespace, where the agent has rights: that namespace takes no copies all the same.
    for (uid, name) in [
        ("policy", "runnel-agent-policy"),
        ("identity", "runnel-agent-identity"),
    ] {
        let names = vec![Pattern::new("naive")];
        let namespaces = Some(NamespaceChoice {
            names,
            ..NamespaceChoice::default()
        });
        let terms = Terms {
            namespaces,
            conflict_policy: ConflictPolicy::Overwrite,
            ..alone.terms(&[])
        };
        let intents = [
            (source("configmaps", name), config_map("x")),
            (source("secrets", name), secret("Opaque")),
        ];
        alone.hub.want(
            uid,
            Wanted {
                terms,
                intents: intents.into(),
            },
        );
    }
    for namespace in outside {
        let names = vec![Pattern::new(namespace)];
        let namespaces = Some(NamespaceChoice {
            names,
            ..NamespaceChoice::default()
        });
        let terms = Terms {
            namespaces,
            create_namespaces: true,
            ..alone.terms(&[])
        };
        let intents = [
            (source("configmaps", "x"), config_map("x")),
            (source("secrets", "x"), secret("Opaque")),
        ];
        alone.hub.want(
            namespace,
            Wanted {
                terms,
                intents: intents.into(),
            },
        );
    }
    alone
        .hub
        .want("right", alone.rule(&["a"], &[("right", "1")]));
    alone.hub.wait_applied("right", 1).await?;
    for namespace in outside {
        let state = alone
            .hub
            .wait_for_report("what is forbidden", namespace, |state| {
                state.counts.failed == 2
            })
            .await?;
        assert!(
            state
                .failures
                .iter()
                .all(|failure| failure.reason == Reason::Forbidden),
            "{:?}",
            state.failures
        );
        for id in [Id::config_map(namespace, "x"), Id::secret(namespace, "x")] {
            assert_eq!(alone.place.find(&id).await?, None);
        }
    }
    for uid in ["policy", "identity"] {
        let state = alone
            .hub
            .wait_for_report("what is denied", uid, |state| state.counts.failed == 2)
            .await?;
        for failure in state.failures {
            let own = failure
                .message
                .contains("namespace naive is the agent's own");
            assert!(own && failure.reason == Reason::Denied, "{failure:?}");
        }
    }
    assert_eq!(
        alone
            .place
            .find(&Id::config_map("naive", "runnel-agent-policy"))
            .await?,
        None
    );
    let user = "system:serviceaccount:naive:naive";
    let writes = alone
        .plane
        .writes_since(mark)?
        .into_iter()
        .filter(|write| write.user == user && write.code < 300);
    let reads = ["get", "list", "watch"];
    for write in writes.filter(|write| !reads.contains(&write.verb.as_str())) {
        ensure!(
            ["naive", "naive-a"].contains(&write.namespace.as_str()),
            "{write:?}"
        );
    }
    Ok(())
}
