//! Sources of any kind: kinds that are not served, released scopes, objects of controllers.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use runnel_proto::model::{Payload, Revision, RuleUid, SourceRef};
use serde_json::{Value, json};

use super::{Cluster, Directive, Index, ScopeState};
use crate::plan::{
    Rule, RuleGrant, RulePlan, SourceContent, SourceState, UnsupportedSource, WatchScope,
};

const WIDGETS: &str = "widgets.example.org";
const UID: &str = "r";

fn rule(sources: Value) -> Rule {
    let object = json!({
        "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionRule",
        "metadata": {"name": UID, "namespace": "shop", "uid": UID, "generation": 1},
        "spec": {"sources": sources, "clusters": {"all": true}},
    });
    let object: runnel_api::DistributionRule = serde_json::from_value(object).unwrap();
    Rule::namespaced(&object, "runnel-system").unwrap()
}

/// An index with one cluster and a rule for all ConfigMaps and widgets.
fn index() -> Index {
    let mut index = Index::default();
    let spec = json!({
        "rules": {"namespaces": {"all": true}}, "resources": ["configmaps", WIDGETS],
        "clusters": {"all": true}, "namespaces": {"all": true},
    });
    let object = json!({
        "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionGrant", "metadata": {"name": "all"}, "spec": spec,
    });
    let grant = RuleGrant::read(&serde_json::from_value(object).unwrap());
    index.set_grants(Some(BTreeMap::from([("all".to_owned(), grant)])));
    let cluster = Cluster {
        accepted: true,
        ..Cluster::default()
    };
    index.set_cluster("eu-1".into(), cluster);
    index.set_scope(WatchScope::everywhere("configmaps"), ScopeState::Known);
    index.set_rule(rule(
        json!([{"resources": ["configmaps", WIDGETS], "names": ["*"]}]),
    ));
    index
}

fn source(resource: &str, name: &str) -> SourceRef {
    SourceRef::new(resource, "shop", name)
}

fn content(controlled: bool) -> SourceState {
    let payload = Payload::encode(b"{}".to_vec());
    let mut content = SourceContent::new(Revision([1; 16]), payload);
    content.controlled = controlled;
    SourceState::Read(Arc::new(content))
}

fn plan(index: &Index) -> Arc<RulePlan> {
    match index.directive(&RuleUid::from(UID), &"eu-1".into()) {
        Directive::Assigned(assignment) => assignment.plan().clone(),
        _ => panic!("the rule is not assigned"),
    }
}

#[test]
fn kind_that_is_not_served_leaves_its_copies_and_others_alone() {
    let mut index = index();
    let widgets = WatchScope::everywhere(WIDGETS);
    index.set_scope(widgets.clone(), ScopeState::Known);
    let (config, widget) = (source("configmaps", "c"), source(WIDGETS, "w"));
    for source in [&config, &widget] {
        index.set_source(source.clone(), BTreeMap::new(), Some(content(false)));
    }
    assert_eq!(plan(&index).intents.len(), 2);
    index.set_scope(widgets.clone(), ScopeState::NotServed);
    let entry = index.rules().get(&UID.into()).unwrap();
    assert_eq!(
        index.scopes().not_served(&entry.plan),
        [Arc::from(WIDGETS)].into()
    );
    let now = plan(&index);
    assert!(now.is_unknown(&widget) && now.is_unknown(&source(WIDGETS, "other")));
    assert!(!now.is_unknown(&config) && now.selects(&config));
    index.set_scope(widgets, ScopeState::Known);
    assert!(!plan(&index).is_unknown(&widget));
}

#[test]
fn kind_of_another_scope_leaves_its_copies_alone() {
    let mut index = index();
    let (widgets, widget) = (WatchScope::everywhere(WIDGETS), source(WIDGETS, "w"));
    index.set_scope(widgets.clone(), ScopeState::Known);
    index.set_source(widget.clone(), BTreeMap::new(), Some(content(false)));
    assert!(plan(&index).selects(&widget));
    index.set_scope(widgets.clone(), ScopeState::Mismatched);
    let entry = index.rules().get(&UID.into()).unwrap();
    let scopes = index.scopes();
    assert_eq!(scopes.mismatched(&entry.plan), [widgets.clone()].into());
    assert!(scopes.not_served(&entry.plan).is_empty());
    let why = &scopes.unreadable(&entry.plan)[&widgets];
    assert!(why.contains("only a ClusterDistributionRule"), "{why}");
    let now = plan(&index);
    assert!(now.is_unknown(&widget) && now.intents.contains_key(&widget));
}

#[test]
fn list_after_a_kind_was_missing_deletes_no_source() {
    let mut index = index();
    let (widgets, now) = (WatchScope::everywhere(WIDGETS), Instant::now());
    index.set_scope(widgets.clone(), ScopeState::Known);
    let [one, two] = ["one", "two"].map(|name| source(WIDGETS, name));
    for source in [&one, &two] {
        index.observe(source, 1, BTreeMap::new());
        index.read(source, 1, BTreeMap::new(), content(false));
    }
    // The CRD is deleted and installed again, and one of the objects is made again.
    index.sources_mut().mark_lost(&widgets);
    index.set_scope(widgets.clone(), ScopeState::NotServed);
    index.observe(&one, 7, BTreeMap::new());
    let list = |index: &mut Index, listed: &[&SourceRef]| {
        let listed = listed.iter().map(|source| (*source).clone()).collect();
        index.sources_mut().retain(&widgets, &listed, now);
        index.keep_lost(&widgets);
        index.set_scope(widgets.clone(), ScopeState::Known);
        index.expire_deleted(now + Duration::from_secs(60), Duration::ZERO);
    };
    for _ in 0..2 {
        list(&mut index, &[&one]);
        let plan = plan(&index);
        assert!(plan.selects(&two) && plan.is_unknown(&two) && plan.selects(&one));
    }
    // From then on its deletion counts.
    index.observe(&two, 9, BTreeMap::new());
    list(&mut index, &[&one]);
    assert!(!plan(&index).selects(&two));
}

#[test]
fn scope_is_released_only_when_no_rule_needs_it() {
    let mut index = index();
    let widgets = WatchScope::everywhere(WIDGETS);
    index.set_scope(widgets.clone(), ScopeState::Known);
    let (config, widget) = (source("configmaps", "c"), source(WIDGETS, "w"));
    for source in [&config, &widget] {
        index.set_source(source.clone(), BTreeMap::new(), Some(content(false)));
    }
    assert!(!index.release_scope(&widgets));
    assert!(index.sources().get(&widget).is_some());
    index.set_rule(rule(json!([{"resources": ["configmaps"], "names": ["*"]}])));
    let before = plan(&index);
    assert!(index.release_scope(&widgets));
    assert!(index.sources().get(&widget).is_none() && index.sources().get(&config).is_some());
    assert_eq!(index.scopes().state(&widgets), ScopeState::Unwatched);
    assert!(plan(&index).has_equal_content(&before));
    // A rule that needs it again knows nothing of it before the next list.
    index.set_rule(rule(
        json!([{"resources": ["configmaps", WIDGETS], "names": ["*"]}]),
    ));
    assert!(plan(&index).is_unknown(&widget));
}

#[test]
fn object_of_a_controller_is_a_source_only_by_choice() {
    let mut index = index();
    index.set_scope(WatchScope::everywhere(WIDGETS), ScopeState::Known);
    let widget = source(WIDGETS, "w");
    index.set_source(widget.clone(), BTreeMap::new(), Some(content(true)));
    assert_eq!(
        plan(&index).refused.get(&widget),
        Some(&UnsupportedSource::Controlled)
    );
    index.set_rule(rule(json!([
        {"resources": [WIDGETS], "names": ["*"]},
        {"resources": [WIDGETS], "names": ["w"], "includeControlled": true},
    ])));
    assert!(plan(&index).selects(&widget));
    // Its owner goes, or it gets one.
    index.set_rule(rule(json!([{"resources": [WIDGETS], "names": ["*"]}])));
    assert!(!plan(&index).selects(&widget));
    index.set_source(widget.clone(), BTreeMap::new(), Some(content(false)));
    assert!(plan(&index).selects(&widget));
}

#[test]
fn entry_without_namespaces_selects_objects_without_them() {
    const ROLES: &str = "clusterroles.rbac.authorization.k8s.io";
    let rule = |sources: Value| {
        let object = json!({
            "apiVersion": "runnel.dev/v1alpha1", "kind": "ClusterDistributionRule",
            "metadata": {"name": "c", "uid": "c", "generation": 1},
            "spec": {"sources": sources, "clusters": {"all": true}, "namespaces": {"names": ["team-a"]}},
        });
        let object: runnel_api::ClusterDistributionRule = serde_json::from_value(object).unwrap();
        Rule::cluster_scoped(&object, "runnel-system").unwrap()
    };
    let names = |names: Value| json!({"resources": [ROLES, "namespaces"], "names": names});
    let mut index = index();
    index.set_rule(rule(json!([names(json!(["*"]))])));
    let (roles, namespaces) = (
        WatchScope::in_cluster(ROLES),
        WatchScope::in_cluster("namespaces"),
    );
    let needed = index.needed_scopes();
    assert!(needed.contains(&roles) && needed.contains(&namespaces));
    for scope in [roles, namespaces] {
        index.set_scope(scope, ScopeState::Known);
    }
    let object = |resource: &str, name: &str| SourceRef::new(resource, "", name);
    let (viewer, shop) = (object(ROLES, "viewer"), object("namespaces", "shop"));
    let own = object("namespaces", "runnel-system");
    // An object with this kind in a namespace is none of the rule.
    let other = SourceRef::new(ROLES, "shop", "viewer");
    for source in [&viewer, &shop, &own, &other] {
        index.set_source(source.clone(), BTreeMap::new(), Some(content(false)));
    }
    let plan = |index: &Index| {
        let entry = index.rules().get(&"c".into()).unwrap();
        assert!(entry.plan.unknown.is_empty());
        entry.plan.selected().cloned().collect::<Vec<_>>()
    };
    assert_eq!(plan(&index), [viewer.clone(), shop]);
    // The same holds for a rule that is planned from scratch.
    index.set_rule(rule(json!([names(json!(["viewer"]))])));
    assert_eq!(plan(&index), [viewer]);
    // An entry with namespaces selects none of them.
    let mut of_namespace = names(json!(["*"]));
    of_namespace["namespaces"] = json!(["*"]);
    let scopes = rule(json!([of_namespace])).places(index.scopes().watched());
    assert!(scopes.iter().all(|scope| !scope.is_cluster()));
}
