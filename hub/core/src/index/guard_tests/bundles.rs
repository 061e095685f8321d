//! Removals of the manifests of bundles.
use runnel_api::BUNDLE_KIND;
use runnel_proto::model::{Kind, RevisionKey, Scope};

use super::*;
use crate::plan::read_bundle;

fn bundle(name: &str) -> SourceRef {
    SourceRef::new(BUNDLE_KIND, "team", name)
}

/// A bundle of so many ConfigMaps, from this number on.
fn maps(from: usize, count: usize) -> SourceState {
    manifests(&Kind::supported()[0], from, count)
}

/// A bundle of so many objects of a kind, from this number on.
fn manifests(kind: &Kind, from: usize, count: usize) -> SourceState {
    let manifests: Vec<_> = (from..from + count)
        .map(|number| json!({"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": format!("m{number}")}}))
        .collect();
    let kinds = [kind.clone()].into_iter().collect();
    let object = json!({"spec": {"manifests": manifests}});
    SourceState::Read(
        read_bundle(&bundle("all"), &object, &kinds, &RevisionKey::new(&[]))
            .unwrap()
            .into(),
    )
}

fn bundle_rule(spec: &Value) -> Rule {
    let mut all = json!({"sources": [{"resources": [BUNDLE_KIND], "selector": {"matchLabels": {"on": "yes"}}}]});
    for (key, value) in spec.as_object().into_iter().flatten() {
        all[key] = value.clone();
    }
    rule("r", "team", &all)
}

fn cluster_role() -> Kind {
    let group = "rbac.authorization.k8s.io";
    Kind::new(group, "v1", "ClusterRole", "clusterroles", Scope::Cluster)
}

/// A rule of the whole cluster for bundles of the namespace.
fn cluster_rule(spec: &Value) -> Rule {
    let mut all = json!({
        "sources": [{"resources": [BUNDLE_KIND], "names": ["all"], "namespaces": ["team"]}],
        "clusters": {"all": true},
    });
    for (key, value) in spec.as_object().into_iter().flatten() {
        all[key] = value.clone();
    }
    let object = json!({
        "apiVersion": "runnel.dev/v1alpha1", "kind": "ClusterDistributionRule",
        "metadata": {"name": "r", "uid": "r", "generation": 1}, "spec": all,
    });
    Rule::cluster_scoped(&serde_json::from_value(object).unwrap(), "runnel-system").unwrap()
}

fn on(value: &str) -> BTreeMap<String, String> {
    BTreeMap::from([("on".to_owned(), value.to_owned())])
}

/// A rule with a bundle of 40 ConfigMaps, each with a copy in every member.
fn world(spec: &Value) -> World {
    let mut world = World::new();
    world
        .index
        .set_scope(WatchScope::everywhere(BUNDLE_KIND), ScopeState::Known);
    world.index.set_rule(bundle_rule(spec));
    world
        .index
        .set_source(bundle("all"), on("yes"), Some(maps(0, 40)));
    MEMBERS
        .iter()
        .for_each(|member| world.set_reported_copies("r", member, 40));
    world.index.reset_removal_guards();
    world
}

impl World {
    fn set_bundle(&mut self, labels: &str, body: Option<SourceState>) {
        let labels = on(labels);
        self.change(|index| index.set_source(bundle("all"), labels, body));
    }

    /// Whether the first and the last manifest may be removed.
    fn goes(&self) -> [bool; 2] {
        ["m0", "m39"].map(|name| self.passes_source("r", name))
    }
}

/// Rules whose copies are as selected, rendered once, and rendered by cluster.
fn shapes() -> [Value; 3] {
    [
        json!({}),
        json!({"transform": {"labels": {"add": {"a": "b"}}}}),
        json!({"substitute": {"keys": ["k"]}}),
    ]
}

#[test]
fn manifest_that_leaves_a_bundle_is_deleted_on_purpose() {
    for shape in shapes() {
        let mut world = world(&shape);
        world.set_bundle("yes", Some(maps(1, 38)));
        assert_eq!(
            (world.goes(), world.pending()),
            ([true, true], vec![]),
            "{shape}"
        );
        // It comes back, and nothing may be removed any more.
        world.set_bundle("yes", Some(maps(0, 40)));
        assert_eq!(world.goes(), [false, false], "{shape}");
    }
}

#[test]
fn deleted_bundle_takes_its_manifests() {
    for shape in shapes() {
        let mut world = world(&shape);
        world
            .index
            .sources_mut()
            .mark_deleted(&bundle("all"), world.now.instant);
        let now = world.now.instant;
        world.change(|index| index.expire_deleted(now, Duration::ZERO));
        assert_eq!(
            (world.goes(), world.pending()),
            ([true, true], vec![]),
            "{shape}"
        );
    }
}

#[test]
fn end_of_the_namespace_of_a_bundle_waits_for_approval() {
    let kind = cluster_role();
    for is_namespace in [true, false] {
        let mut world = World::new();
        world
            .index
            .set_scope(WatchScope::everywhere(BUNDLE_KIND), ScopeState::Known);
        world.index.set_rule(cluster_rule(&json!({})));
        world
            .index
            .set_source(bundle("all"), on("yes"), Some(manifests(&kind, 0, 40)));
        MEMBERS
            .iter()
            .for_each(|member| world.set_reported_copies("r", member, 40));
        world.index.reset_removal_guards();
        let guard = world.index.fleet_guard_mut();
        guard.terminating.set_namespace("team", is_namespace);
        let now = world.now.instant;
        world.index.sources_mut().mark_deleted(&bundle("all"), now);
        world.change(|index| index.expire_deleted(now, Duration::ZERO));
        let Directive::Assigned(assignment) =
            world.index.directive(&"r".into(), &MEMBERS[0].into())
        else {
            panic!("the rule has lost its clusters")
        };
        let must_stay = assignment.must_stay(&SourceRef::new(&kind.resource, "", "m0"));
        let cause = "namespace team on the hub was deleted".to_owned();
        let pending = Vec::from_iter(is_namespace.then_some((cause, 80, 1)));
        assert_eq!((must_stay, world.pending()), (is_namespace, pending));
    }
}

#[test]
fn label_that_deselects_a_bundle_waits_for_approval() {
    for shape in shapes() {
        let mut world = world(&shape);
        world.set_bundle("no", None);
        assert_eq!(world.goes(), [false, false], "{shape}");
        let cause = "labels of sources in namespace team changed".to_owned();
        assert_eq!(world.pending(), [(cause, 80, 1)], "{shape}");
        world.set_bundle("yes", Some(maps(0, 40)));
        assert_eq!(
            (world.goes(), world.pending()),
            ([false, false], vec![]),
            "{shape}"
        );
    }
}

#[test]
fn rule_that_selects_no_bundle_any_more_waits_for_approval() {
    for shape in shapes() {
        let mut world = world(&shape);
        let mut other = shape.clone();
        other["sources"] = json!([{"resources": ["configmaps"], "names": ["none"]}]);
        world.change(|index| index.set_rule(bundle_rule(&other)));
        assert_eq!(world.goes(), [false, false], "{shape}");
        let copies: Vec<_> = world
            .pending()
            .into_iter()
            .map(|(_, copies, _)| copies)
            .collect();
        assert_eq!(copies, [80], "{shape}");
    }
}

#[test]
fn unknown_bundle_removes_nothing_whatever_the_guard_let_pass() {
    for shape in shapes() {
        let mut world = world(&shape);
        world.set_bundle("yes", Some(maps(1, 38)));
        assert_eq!(world.goes(), [true, true]);
        let scope = WatchScope::everywhere(BUNDLE_KIND);
        world.index.sources_mut().mark_stale(&scope);
        world.change(|index| index.invalidate_stale(&scope));
        world.set_bundle("yes", Some(SourceState::Unreadable));
        assert_eq!(world.goes(), [false, false], "{shape}");
    }
}

#[test]
fn manifests_are_granted_by_their_kind() {
    let mut world = world(&json!({}));
    let sent = |world: &World| match world.index.directive(&"r".into(), &MEMBERS[0].into()) {
        Directive::Assigned(assignment) => assignment.intents().count(),
        _ => 0,
    };
    assert_eq!(sent(&world), 40);
    let mut other = grant();
    std::sync::Arc::make_mut(&mut other.grant).resources = vec!["services".to_owned()];
    world.change(|index| index.set_grant("everything", Some(other)));
    // The copies stay until the loss of the kind is approved.
    assert_eq!(sent(&world), 0);
    let copies: Vec<_> = world
        .pending()
        .into_iter()
        .map(|(_, copies, _)| copies)
        .collect();
    assert_eq!(copies, [80]);
}

#[test]
fn manifest_that_another_rule_sends_changes_hands() {
    let one = json!({"clusters": {"names": ["member-1"]}});
    for shape in shapes() {
        for (other, left) in [(json!({}), vec![]), (one.clone(), vec![40])] {
            let mut world = world(&shape);
            let mut second = bundle_rule(&other);
            second.uid = "second".into();
            world.index.set_rule(second);
            world.index.reset_removal_guards();
            let mut none = shape.clone();
            none["sources"] = json!([{"resources": ["configmaps"], "names": ["none"]}]);
            world.change(|index| index.set_rule(bundle_rule(&none)));
            let copies = world.pending().into_iter().map(|(_, copies, _)| copies);
            assert_eq!(copies.collect::<Vec<_>>(), left, "{shape} {other}");
            assert_eq!(world.goes()[0], left.is_empty(), "{shape} {other}");
        }
    }
}

/// What waits after a bundle of a rule with three namespaces is deselected: one of 20 ConfigMaps, or one of 20 ClusterRoles.
fn deselected(name: &str) -> Vec<i64> {
    let selector = json!({"matchLabels": {"on": "yes"}});
    let entry = json!({"resources": [BUNDLE_KIND], "selector": selector, "namespaces": ["team"]});
    let spec = json!({"sources": [entry], "namespaces": {"names": ["a", "b", "c"]}});
    let mut world = World::new();
    world
        .index
        .set_scope(WatchScope::everywhere(BUNDLE_KIND), ScopeState::Known);
    world.index.set_rule(cluster_rule(&spec));
    for (name, kind) in [("maps", &Kind::supported()[0]), ("roles", &cluster_role())] {
        let body = Some(manifests(kind, 0, 20));
        world.index.set_source(bundle(name), on("yes"), body);
    }
    for member in MEMBERS {
        let reported = ReportedCopies {
            copies: 20 * 3 + 20,
            intents: 40,
            ..ReportedCopies::default()
        };
        world
            .reported_copies
            .insert(("r".into(), member.into()), reported);
    }
    world.index.reset_removal_guards();
    world.change(|index| index.set_source(bundle(name), on("no"), None));
    world
        .pending()
        .into_iter()
        .map(|(_, copies, _)| copies)
        .collect()
}

#[test]
fn copies_are_counted_by_the_scope_of_their_kind() {
    assert_eq!(deselected("roles"), [2 * 20]);
    assert_eq!(deselected("maps"), [2 * 20 * 3]);
}

#[test]
fn nothing_is_sent_before_every_source_of_a_manifest_is_read() {
    for shape in shapes() {
        let mut world = World::new();
        let index = &mut world.index;
        let mut spec = shape.clone();
        spec["sources"] = json!([{
            "resources": [BUNDLE_KIND, "configmaps"], "selector": {"matchLabels": {"on": "yes"}},
        }]);
        let sent = |index: &Index| match index.directive(&"r".into(), &MEMBERS[0].into()) {
            Directive::Assigned(assignment) => Some(assignment.intents().count()),
            _ => None,
        };
        // The list of bundles comes first, and each is read alone.
        index.set_scope(WatchScope::everywhere("configmaps"), ScopeState::Unwatched);
        index.set_scope(WatchScope::everywhere(BUNDLE_KIND), ScopeState::Known);
        for name in ["all", "same"] {
            index.set_source(bundle(name), on("yes"), None);
        }
        index.set_rule(bundle_rule(&spec));
        index.set_source(bundle("all"), on("yes"), Some(maps(0, 3)));
        assert_eq!(sent(index), None, "{shape}: a bundle is unread");
        index.set_source(bundle("same"), on("yes"), Some(maps(0, 1)));
        assert_eq!(sent(index), None, "{shape}: the ConfigMaps are not listed");
        index.set_source(source("team", "m1"), on("yes"), None);
        index.set_scope(WatchScope::everywhere("configmaps"), ScopeState::Known);
        assert_eq!(sent(index), Some(1), "{shape}: m0 has two bundles");
        index.set_source(source("team", "m1"), on("yes"), Some(content()));
        assert_eq!(sent(index), Some(1), "{shape}: m1 is selected itself");
        // A kind that is not served withholds no other.
        index.set_scope(WatchScope::everywhere("configmaps"), ScopeState::NotServed);
        assert!(sent(index).is_some(), "{shape}");
    }
}
