use super::*;
use std::collections::BTreeMap;

use proptest::prelude::*;
use runnel_proto::model::{KINDS_LIMIT, RuleName};
use serde_json::json;

const HOME: &str = "runnel-system";

fn policy(text: &str) -> Policy {
    Policy::parse(text).unwrap()
}

fn allows(policy: &Policy, namespace: &str) -> bool {
    policy.denies_namespace(namespace, HOME).is_none()
}

/// A copy of a kind in a namespace.
fn of_kind(resource: &str) -> SourceRef {
    SourceRef::new(resource, "team-a", "x")
}

fn content(value: Value) -> Content {
    Content {
        fields: serde_json::from_value(value).unwrap(),
        ..Content::default()
    }
}

fn secret(object_type: &str, data: &str) -> Facts {
    Facts::of(
        ContentRules::of("secrets"),
        &content(json!({"type": object_type, "data": {"k": data}})),
    )
}

#[test]
fn the_whole_file_is_read_and_an_empty_map_is_every_default() {
    let whole = "
namespaces: {allowed: [team-a, 'app-*'], denied: [app-secret]}
kinds: [configmaps]
secretTypes: {allowed: [Opaque], denied: ['x/*']}
deniedLabels: [example.com/trusted, '*.example.org/*']
maxCopies: 11
maxBytes: 12
maxObjectBytes: 100
adopt: Never
overwrite: true
createNamespaces: true
deletesPerHour: 7
onRevoke: Purge
";
    let whole = policy(whole);
    assert_eq!(
        whole.namespaces.allowed,
        Patterns::from_iter([Pattern::new("team-a"), Pattern::new("app-*")])
    );
    assert_eq!(
        whole.namespaces.denied,
        Patterns::from_iter([Pattern::new("app-secret")])
    );
    assert_eq!(whole.kinds, BTreeSet::from(["configmaps".into()]));
    assert_eq!(
        whole.secret_types.denied,
        Patterns::from_iter([Pattern::new("x/*")])
    );
    assert_eq!(
        (
            whole.max_object_bytes,
            whole.overwrite,
            whole.create_namespaces
        ),
        (100, true, true)
    );
    assert_eq!(
        (whole.max_copies, whole.max_bytes, whole.adopt),
        (11, 12, Adopt::Never)
    );
    assert_eq!(
        whole.denied_labels,
        [
            Pattern::new("example.com/trusted"),
            Pattern::new("*.example.org/*")
        ]
    );
    assert_eq!(
        (whole.on_revoke, whole.deletes_per_hour),
        (OnRevoke::Purge, 7)
    );
    assert_eq!(policy("{}"), Policy::default());
}

#[test]
fn malformed_policy_is_refused_with_field_and_hint() {
    for (text, field, hint) in [
        ("", "the file", "is empty"),
        ("[]", "the file", "must be a map with namespaces"),
        ("{", "the file", "is not YAML"),
        (
            "namespace: []",
            "namespace",
            "is not a field of a policy: write one of namespaces",
        ),
        (
            "namespaces: [a]",
            "namespaces",
            "must be a map with allowed, denied",
        ),
        (
            "namespaces: {alowed: [a]}",
            "namespaces.alowed",
            "write one of allowed, denied",
        ),
        (
            "namespaces: {allowed: a}",
            "namespaces.allowed",
            "must be a list",
        ),
        (
            "namespaces: {allowed: [a, Team]}",
            "namespaces.allowed[1]",
            "must be a namespace's name",
        ),
        (
            "namespaces: {allowed: [5]}",
            "namespaces.allowed[0]",
            "put it in quotes",
        ),
        (
            "namespaces: {denied: ['..']}",
            "namespaces.denied[0]",
            "must be a namespace's name",
        ),
        (
            "kinds: [configmaps, pods]",
            "kinds[1]",
            "name it in allowPrivileged, too, or remove it",
        ),
        ("kinds: secrets", "kinds", "must be a list"),
        (
            "secretTypes: {allowed: ['']}",
            "secretTypes.allowed[0]",
            "must be a Secret's type",
        ),
        ("maxCopies: 0", "maxCopies", "must be a number of copies"),
        ("maxBytes: 1Gi", "maxBytes", "must be a number of bytes"),
        ("adopt: Always", "adopt", "must be Equal or Never"),
        ("deniedLabels: 'x'", "deniedLabels", "must be a list"),
        (
            "deniedLabels: [a b]",
            "deniedLabels[0]",
            "must be a label's key",
        ),
        (
            "maxObjectBytes: 0",
            "maxObjectBytes",
            "must be a number of bytes",
        ),
        (
            "maxObjectBytes: 1Mi",
            "maxObjectBytes",
            "must be a number of bytes",
        ),
        ("overwrite: maybe", "overwrite", "must be true or false"),
        (
            "createNamespaces: 1",
            "createNamespaces",
            "must be true or false",
        ),
        (
            "deletesPerHour: 0",
            "deletesPerHour",
            "must be a number of copies",
        ),
        (
            "deletesPerHour: many",
            "deletesPerHour",
            "must be a number of copies",
        ),
        ("onRevoke: keep", "onRevoke", "must be Keep or Purge"),
    ] {
        let error = Policy::parse(text).unwrap_err();
        assert_eq!(error.field, field, "{text}");
        assert!(error.hint.contains(hint), "{text}: {error}");
    }
}

#[test]
fn globs_skip_system_namespaces_and_names_do_not() {
    let all = policy("{}");
    assert!(allows(&all, "team-a"));
    // The agent's own namespace contains its policy, identity and terms.
    for text in ["{}", "namespaces: {allowed: ['*', runnel-system]}"] {
        assert!(
            !allows(&policy(text), HOME) && !allows(&Policy::open(), HOME),
            "{text}"
        );
    }
    for system in [
        "kube-system",
        "kube-public",
        "istio-system",
        "argocd",
        "cert-manager",
        "openshift-config",
    ] {
        assert!(
            !allows(&all, system)
                && !allows(
                    &policy("namespaces: {allowed: ['*-*', 'a*', 'istio-*']}"),
                    system
                )
        );
        assert!(
            allows(
                &policy(&format!("namespaces: {{allowed: ['*', {system}]}}")),
                system
            ),
            "{system}"
        );
        assert!(allows(&Policy::open(), system), "{system}");
    }
    let some = policy("namespaces: {allowed: ['team-*', extra], denied: ['*-old']}");
    assert!(allows(&some, "team-a") && allows(&some, "extra"));
    assert!(!allows(&some, "team-old") && !allows(&some, "other"));
    for trick in [
        "",
        "..",
        "Team-a",
        "team-a/x",
        "team-ä",
        "team-a ",
        &"team-".repeat(20),
    ] {
        assert!(
            !allows(&all, trick) && !allows(&some, trick) && !allows(&Policy::open(), trick),
            "{trick:?}"
        );
    }
}

#[test]
fn each_denial_names_its_field() {
    let policy = policy(
        "{namespaces: {allowed: ['*'], denied: [never]}, kinds: [secrets], maxObjectBytes: 3,
        secretTypes: {allowed: [Opaque, 'a/*'], denied: [a/b]}}",
    );
    let assert_field = |copy_error: Option<CopyError>, field: &str| {
        let copy_error = copy_error.unwrap();
        assert_eq!(copy_error.reason, Reason::Denied);
        assert!(copy_error.message.contains(field), "{}", copy_error.message);
    };
    assert_field(policy.denies_namespace("never", HOME), "namespaces.denied");
    assert_field(
        policy.denies_namespace("kube-system", HOME),
        "namespaces.allowed",
    );
    assert_field(policy.denies_kind(&of_kind("configmaps")), "(kinds)");
    assert_field(
        policy.denies_content(&secret("kubernetes.io/tls", "")),
        "kubernetes.io/tls (secretTypes.allowed)",
    );
    assert_field(
        policy.denies_content(&secret("a/b", "")),
        "secretTypes.denied",
    );
    assert_field(
        policy.denies_content(&secret("Opaque", "MTIzNA==")),
        "4 bytes",
    );
    assert_field(policy.denies_creation("new"), "createNamespaces");
    assert_field(policy.denies_namespace(HOME, HOME), "namespaces.allowed");
    assert_field(
        policy.denies_namespace("argocd", HOME),
        "namespaces.allowed",
    );
    assert_field(
        Policy {
            adopt: Adopt::Never,
            ..Policy::default()
        }
        .denies_adopting(),
        "(policy.adopt=Never)",
    );
    assert_eq!(policy.denies_content(&secret("a/c", "MTIz")), None);
    assert_eq!(policy.denies_kind(&of_kind("secrets")), None);
    assert_field(
        policy.denies_kind(&of_kind("widgets.example.org")),
        "(kinds)",
    );
}

#[test]
fn any_kind_is_named_with_its_group() {
    let policy = policy(
        "{kinds: [secrets, services, deployments.apps, networkpolicies.networking.k8s.io],
        allowPrivileged: [deployments.apps, pods]}",
    );
    let names: Vec<_> = policy.kinds.iter().map(|kind| &**kind).collect();
    let expected = [
        "deployments.apps",
        "networkpolicies.networking.k8s.io",
        "secrets",
        "services",
    ];
    assert_eq!(names, expected);
    assert_eq!(policy.denies_kind(&of_kind("deployments.apps")), None);
    assert!(policy.denies_kind(&of_kind("configmaps")).is_some());
    let fails = |text: &str| Policy::parse(text).unwrap_err();
    for bad in [
        "'*'",
        "'*.apps'",
        "Deployments.apps",
        "pods/log",
        "''",
        "1a.example.org",
        "a_b",
    ] {
        let error = fails(&format!("kinds: [configmaps, {bad}]"));
        assert_eq!(error.field, "kinds[1]", "{bad}");
        assert!(error.hint.contains("as in RBAC"), "{bad}: {error}");
    }
    assert_eq!(fails("allowPrivileged: ['*']").field, "allowPrivileged[0]");
    let own = fails("kinds: [distributionrules.runnel.dev]");
    assert_eq!(own.field, "kinds[0]");
    assert!(own.hint.contains("Runnel itself"), "{own}");
}

#[test]
fn kinds_without_namespaces_are_named_apart() {
    let some = policy(
        "{namespaces: {allowed: [team-a], denied: [team-b]}, clusterKinds: [namespaces, priorityclasses.scheduling.k8s.io],
        allowPrivileged: [namespaces]}",
    );
    let of_cluster = |resource: &str, name: &str| SourceRef::new(resource, "", name);
    let high = of_cluster("priorityclasses.scheduling.k8s.io", "high");
    let whole = |resource: &str| Area {
        resource: resource.into(),
        namespace: None,
    };
    assert_eq!(some.area(&high), Some(whole(&high.resource)));
    assert!(some.areas().contains(&whole(&high.resource)));
    assert!(some.areas().contains(&whole("namespaces")));
    assert_eq!(some.areas().len(), 4);
    assert_eq!(some.denies_kind(&high), None);
    assert_eq!(some.denies_place(&high, HOME), None);
    // The same name in a namespace is another kind, and each list is for one scope.
    for other in [
        of_kind("priorityclasses.scheduling.k8s.io"),
        of_cluster("configmaps", "x"),
        of_cluster("clusterroles.rbac.authorization.k8s.io", "x"),
    ] {
        assert!(some.denies_kind(&other).is_some(), "{other}");
        assert_eq!(some.area(&other), None, "{other}");
    }
    // A namespace as an object is limited as the copies in it are.
    for (name, is_allowed) in [
        ("team-a", true),
        ("team-b", false),
        ("x", false),
        (HOME, false),
    ] {
        let denied = some.denies_place(&of_cluster("namespaces", name), HOME);
        assert_eq!(denied.is_none(), is_allowed, "{name}: {denied:?}");
    }
    let glob = policy("{clusterKinds: [namespaces], allowPrivileged: [namespaces]}");
    for (name, is_allowed) in [("team-a", true), ("argocd", false), ("kube-x", false)] {
        let denied = glob.denies_place(&of_cluster("namespaces", name), HOME);
        assert_eq!(denied.is_none(), is_allowed, "{name}: {denied:?}");
    }
    let fails = |text: &str| Policy::parse(text).unwrap_err();
    assert_eq!(fails("clusterKinds: [namespaces]").field, "clusterKinds[0]");
    assert_eq!(fails("clusterKinds: ['*']").field, "clusterKinds[0]");
    let both = fails("{kinds: [widgets.example.org], clusterKinds: [widgets.example.org]}");
    assert_eq!(both.field, "clusterKinds");
    assert!(both.hint.contains("is in kinds, too"), "{both}");
    assert!(Policy::default().cluster_kinds.is_empty() && Policy::open().cluster_kinds.is_empty());
}

#[test]
fn kinds_and_watches_are_bounded() {
    let kinds = |count: usize| -> Vec<String> {
        (0..count).map(|n| format!("kind{n}.example.org")).collect()
    };
    let parse = |count: usize, namespaces: usize| {
        let names: Vec<_> = (0..namespaces).map(|n| format!("n{n}")).collect();
        let namespaces = if names.is_empty() {
            vec!["*".to_owned()]
        } else {
            names
        };
        let text = json!({"kinds": kinds(count), "namespaces": {"allowed": namespaces}});
        Policy::parse(&text.to_string())
    };
    assert_eq!(parse(KINDS_LIMIT, 0).unwrap().kinds.len(), KINDS_LIMIT);
    let error = parse(KINDS_LIMIT + 1, 0).unwrap_err();
    assert_eq!(
        (&*error.field, error.hint.contains("at most 200 kinds")),
        ("kinds", true)
    );
    assert!(parse(KINDS_LIMIT, 25).is_ok());
    let error = parse(KINDS_LIMIT, 26).unwrap_err();
    assert_eq!(
        (&*error.field, error.hint.contains("need 5200 watches")),
        ("kinds", true)
    );
}

#[test]
fn object_with_too_many_json_values_is_denied() {
    let kind = Kind::by_resource("configmaps").unwrap();
    let facts = Facts::of(
        kind.content,
        &content(json!({"data": {"a": "", "b": "", "c": ""}})),
    );
    assert_eq!(facts.nodes, 6);
    let denied = |text: &str| Policy::parse(text).unwrap().denies_content(&facts);
    assert!(denied("{}").is_none() && denied("maxObjectNodes: 6").is_none());
    let message = denied("maxObjectNodes: 5").unwrap().message;
    assert_eq!(
        &*message,
        "the object has 6 JSON values, and this member's policy allows 5 (maxObjectNodes)"
    );
}

#[test]
fn sizes_are_those_of_kubernetes() {
    let kind = |resource| Kind::by_resource(resource).unwrap();
    let fields = content(json!({"data": {"key": "1234"}, "binaryData": {"b": "MTIzNA=="}}));
    assert_eq!(
        Facts::of(kind("configmaps").content, &fields),
        Facts {
            bytes: 8,
            nodes: 6,
            ..Facts::default()
        }
    );
    let fields = content(json!({"data": {"key": "MTIzNA==", "other": "MTIz"}}));
    assert_eq!(
        Facts::of(kind("secrets").content, &fields),
        Facts {
            bytes: 7,
            nodes: 5,
            object_type: Some("Opaque".into()),
            ..Facts::default()
        }
    );
    assert_eq!(
        secret("", "").object_type,
        Some("Opaque".into()),
        "an empty type is the default one"
    );
}

#[test]
fn names_alone_are_watched_one_by_one() {
    let areas = |text| policy(text).areas().into_iter().collect::<Vec<_>>();
    let cluster = |resource: &str| Area {
        resource: resource.into(),
        namespace: None,
    };
    assert_eq!(areas("{}"), [cluster("configmaps"), cluster("secrets")]);
    assert_eq!(
        areas("namespaces: {allowed: [a, 'b*']}"),
        [cluster("configmaps"), cluster("secrets")]
    );
    let single = |resource: &str, name: &str| Area {
        resource: resource.into(),
        namespace: Some(name.into()),
    };
    let expected = [single("secrets", "a"), single("secrets", "b")];
    assert_eq!(
        areas("{namespaces: {allowed: [a, b, c], denied: [c]}, kinds: [secrets]}"),
        expected
    );
    assert!(areas("namespaces: {allowed: []}").is_empty());
}

#[test]
fn trusted_labels_are_denied_until_the_policy_lists_others() {
    let denied = |text: &str, label: &str| {
        let labels = BTreeMap::from([
            ("team".to_owned(), "a".to_owned()),
            (label.to_owned(), "x".to_owned()),
        ]);
        let facts = Facts::of(
            ContentRules::of("secrets"),
            &Content {
                labels,
                ..Content::default()
            },
        );
        policy(text)
            .denies_content(&facts)
            .map(|copy_error| copy_error.message.to_string())
    };
    for label in [
        "argocd.argoproj.io/secret-type",
        "sealedsecrets.bitnami.com/sealed-secrets-key",
        "fleet.cattle.io/x",
    ] {
        let text = denied("{}", label).unwrap();
        assert!(
            text.contains(label) && text.contains("(deniedLabels)"),
            "{text}"
        );
        assert_eq!(denied("deniedLabels: []", label), None);
    }
    assert_eq!(denied("{}", "argocd.argoproj.io/other"), None);
    assert!(denied("deniedLabels: [example.com/*]", "example.com/x").is_some());
    assert_eq!(
        denied("deniedLabels: [example.com/*]", "istio/multiCluster"),
        None
    );
}

#[test]
fn areas_of_ten_thousand_names_follow_the_names() {
    let names = (0..10_000)
        .map(|n| Pattern::new(format!("team-{n}")))
        .collect();
    let denied = (0..10_000)
        .step_by(2)
        .map(|n| Pattern::new(format!("team-{n}")))
        .collect();
    let policy = Policy {
        namespaces: Names {
            allowed: names,
            denied,
        },
        ..Policy::default()
    };
    let copies = (0..20_000).map(|n| SourceRef::new("secrets", &format!("team-{n}"), "x"));
    let watched =
        copies.filter(|copy| policy.area(copy).is_some() && allows(&policy, &copy.namespace));
    assert_eq!((watched.count(), policy.areas().len()), (5_000, 10_000));
}

fn patterns() -> impl Strategy<Value = Vec<String>> {
    proptest::collection::vec("[ab*]{1,3}|kube-system|runnel-system", 0..3)
}

proptest! {
    /// An allowed copy is always watched. With literal namespaces, other namespaces are neither
    /// watched nor allowed.
    #[test]
    fn allowed_areas_are_watched(allowed in patterns(), denied in patterns(), name in "[ab]{1,3}|kube-system|runnel-system") {
        let pattern = |texts: Vec<String>| texts.into_iter().map(Pattern::new).collect();
        let policy = Policy { namespaces: Names { allowed: pattern(allowed), denied: pattern(denied) }, ..Policy::default() };
        let copy = SourceRef::new("secrets", &name, "x");
        let area = policy.area(&copy);
        prop_assert!(area.is_some() || !allows(&policy, &name));
        prop_assert!(area.as_ref().is_none_or(|area| policy.areas().contains(area)));
        let listed = policy.namespaces.are_listed();
        if listed {
            prop_assert_eq!(area.is_some() && name != HOME, allows(&policy, &name));
        }
    }

    #[test]
    fn any_text_is_a_policy_or_an_error(text in ".{0,80}") {
        let _ = Policy::parse(&text);
    }
}

#[test]
fn account_follows_the_hub_namespace_of_the_rule() {
    let rule = |namespace: &str| RuleName {
        kind: "DistributionRule".into(),
        namespace: namespace.into(),
        name: "r".into(),
    };
    let account = |policy: &Policy, namespace: &str| {
        let account = policy.impersonate.account(&rule(namespace));
        account.map(ToString::to_string)
    };
    let named = "impersonate: [{hubNamespace: team-a, serviceAccount: tenants/team-a}]";
    let policy_of_one = policy(named);
    assert_eq!(
        account(&policy_of_one, "team-a").as_deref(),
        Some("tenants/team-a")
    );
    assert_eq!(account(&policy_of_one, "team-b"), None);
    let all = policy(
        "impersonate: [{hubNamespace: team-a, serviceAccount: tenants/team-a}, \
         {hubNamespace: '*', serviceAccount: tenants/any}]",
    );
    assert_eq!(account(&all, "team-a").as_deref(), Some("tenants/team-a"));
    assert_eq!(account(&all, "team-b").as_deref(), Some("tenants/any"));
    // Cluster-scoped rules are of the hub's administrator.
    assert_eq!(account(&all, ""), None);
    let user = all.impersonate.account(&rule("team-b")).unwrap().user();
    assert_eq!(user, "system:serviceaccount:tenants:any");
    assert_eq!(Policy::open().impersonate, Impersonation::default());
}

#[test]
fn account_that_cannot_be_meant_is_refused_by_its_field() {
    let one = |namespace: &str, account: &str| {
        format!("{{hubNamespace: {namespace:?}, serviceAccount: {account:?}}}")
    };
    let many = vec![one("a", "b/c"); 1001].join(", ");
    for (entries, field) in [
        (one("team-*", "a/b"), "impersonate[0].hubNamespace"),
        (one("", "a/b"), "impersonate[0].hubNamespace"),
        (one("team-a", "b"), "impersonate[0].serviceAccount"),
        (one("team-a", "A/b"), "impersonate[0].serviceAccount"),
        (one("team-a", "a/b/c"), "impersonate[0].serviceAccount"),
        (
            one("team-a", "system:admin/b"),
            "impersonate[0].serviceAccount",
        ),
        (
            "{hubNamespace: a}".to_owned(),
            "impersonate[0].serviceAccount",
        ),
        ("{namespace: a}".to_owned(), "impersonate[0].namespace"),
        ("text".to_owned(), "impersonate[0]"),
        (
            [one("a", "b/c"), one("a", "b/d")].join(", "),
            "impersonate[1].hubNamespace",
        ),
        (many, "impersonate"),
    ] {
        let refused = Policy::parse(&format!("impersonate: [{entries}]")).unwrap_err();
        assert_eq!(refused.field, field, "{}", refused.hint);
    }
}
