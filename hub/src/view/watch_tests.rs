//! Watches of a server without an API server.
use std::collections::BTreeSet;
use std::time::SystemTime;

use axum::body::Body;
use k8s_openapi::api::authentication::v1::UserInfo;
use kube::{Client, Config};
use runnel_hub_core::index::{Cluster, ScopeState};
use runnel_hub_core::plan::{Rule, WatchScope};
use runnel_proto::model::RevisionKey;
use runnel_transport::identity::Ca;

use super::*;
use crate::ca::{HubCas, HubIdentity};
use crate::hub_state::{HubState, Settings};
use crate::lease::Lead;
use crate::object_cache::{ObjectCache, RuleObject};
use crate::view::request::{DELIVERY_FIELDS, Selection, query};

const CLUSTERS: usize = 600;
/// More changes than the log of changes has.
const MANY: usize = 66_000;

/// A server whose rule has many clusters, of which none has connected.
fn server() -> Arc<ViewServer> {
    let hub_state = HubState::new(Settings {
        serves_views: true,
        ..Settings::for_tests()
    });
    let object: runnel_api::DistributionRule = serde_json::from_value(json!({
        "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionRule",
        "metadata": {"name": "r", "namespace": "shop", "uid": "r", "generation": 1},
        "spec": {"sources": [{"resources": ["configmaps"], "names": ["*"]}], "clusters": {"all": true}},
    }))
    .unwrap();
    let rule = Rule::namespaced(&object, "runnel-system").unwrap();
    hub_state
        .change(|index| index.set_scope(WatchScope::everywhere("configmaps"), ScopeState::Known));
    hub_state.change(|index| index.set_rule(rule));
    for number in 0..CLUSTERS {
        let cluster = Cluster {
            accepted: true,
            ..Cluster::default()
        };
        let name = ClusterName::from(format!("eu-{number}"));
        hub_state.change(|index| index.set_cluster(name, cluster));
    }
    let object_cache = Arc::<ObjectCache>::default();
    object_cache.set_rule("r".into(), RuleObject::of(&object, true), true);
    let lead = Lead {
        epoch: "uid".to_owned(),
        term: 1,
        valid_until: Instant::now() + Duration::from_secs(600),
    };
    hub_state.set_lead(Some(lead));
    hub_state
        .leadership
        .ready
        .send_replace(Some(Instant::now()));
    let identity = HubIdentity {
        hub_id: "hub".to_owned(),
        ca: Ca::generate("hub", SystemTime::now()).unwrap(),
        revision_key: RevisionKey::new(b"key"),
        addresses: vec![],
    };
    let client = Client::try_from(Config::new("http://127.0.0.1:1".parse().unwrap())).unwrap();
    let cas = HubCas::of(identity);
    ViewServer::new(hub_state, object_cache, client, cas, vec![])
}

/// Begins a watch with this query.
fn watch(server: &Arc<ViewServer>, text: &str) -> Result<Watch, ViewError> {
    let target = Target::of("/apis/view.runnel.dev/v1alpha1/namespaces/shop/deliveries").unwrap();
    let query = query(text, DELIVERY_FIELDS).unwrap();
    let place = server.watches.enter("alice")?;
    let mut watch = Watch::new(server, target, query, Form::Object, place);
    watch.begin()?;
    Ok(watch)
}

/// Lists all deliveries. Returns the version.
fn cover(server: &Arc<ViewServer>) -> u64 {
    let scope = Scope::Namespace("shop".to_owned());
    server.cover(&ViewScope::new(&scope, &Selection::default()))
}

/// Returns a page of the deliveries, or the status of the refusal.
async fn page(server: &Arc<ViewServer>, text: &str) -> Value {
    let target = Target::of("/apis/view.runnel.dev/v1alpha1/namespaces/shop/deliveries").unwrap();
    let query = query(text, DELIVERY_FIELDS).unwrap();
    match server.list(&target, &query, Form::Object).await {
        Ok(page) => {
            let bytes = axum::body::to_bytes(page.into_body(), usize::MAX).await;
            serde_json::from_slice(&bytes.unwrap()).unwrap()
        }
        Err(error) => error.status(),
    }
}

/// Returns the version of a page, and the token of the next one.
fn version_of(page: &Value) -> (u64, String) {
    let text = |path: &str| page.pointer(path).and_then(Value::as_str);
    let version = text("/metadata/resourceVersion").unwrap();
    let token = text("/metadata/continue").unwrap_or_default();
    (version.parse().unwrap(), token.to_owned())
}

/// The rule has other deliveries, as if all clusters had reported.
fn change_all(server: &Arc<ViewServer>, digest: u64) {
    let rule = server.reader().rules(|rule| rule.namespace == "shop");
    let (rule, uid) = rule.first().unwrap();
    let mut rows = server.digests(uid, &None).unwrap();
    rows.iter_mut().for_each(|(_, present)| *present ^= digest);
    server.changes().set(uid, rule, rows, None);
}

/// Returns the types and names of the events in these lines.
fn events(lines: &[u8]) -> Vec<(String, String)> {
    assert!(
        lines.len() < 1024 * 1024,
        "a part has {} bytes",
        lines.len()
    );
    let lines = lines.split(|byte| *byte == b'\n');
    let lines = lines.filter(|line| !line.is_empty());
    let event = |line: &[u8]| {
        let event: Value = serde_json::from_slice(line).unwrap();
        let text = |path: &str| event.pointer(path).and_then(Value::as_str);
        let name = text("/object/metadata/name").unwrap_or_default();
        (text("/type").unwrap().to_owned(), name.to_owned())
    };
    lines.map(event).collect()
}

#[tokio::test]
async fn watch_without_a_version_begins_with_all_deliveries() {
    let server = server();
    let mut watch = watch(&server, "watch=1&allowWatchBookmarks=true").unwrap();
    let (mut sizes, mut names) = (Vec::new(), BTreeSet::new());
    while watch.existing.is_some() {
        let part = events(&watch.part(false));
        assert!(part.iter().all(|(kind, _)| kind == "ADDED"));
        sizes.push(part.len());
        names.extend(part.into_iter().map(|(_, name)| name));
    }
    let last = sizes.pop();
    assert!(sizes.iter().all(|size| *size == PART) && last == Some(CLUSTERS % PART));
    assert_eq!(names.len(), CLUSTERS);
    assert_eq!(events(&watch.part(false)), []);
    let bookmark = ("BOOKMARK".to_owned(), String::new());
    assert_eq!(events(&watch.part(true)), [bookmark]);
}

#[tokio::test]
async fn watch_that_reads_nothing_keeps_one_part_and_expires() {
    let server = server();
    let version = cover(&server);
    let mut slow = watch(&server, &format!("watch=1&resourceVersion={version}")).unwrap();
    change_all(&server, 1);
    change_all(&server, 2);
    // What it has missed is read in parts, each delivery once in each of them.
    let mut modified = Vec::new();
    while slow.version < server.changes().version() {
        let part = events(&slow.part(false));
        assert!(part.len() <= PART && part.iter().all(|(kind, _)| kind == "MODIFIED"));
        modified.extend(part.into_iter().map(|(_, name)| name));
    }
    let all: BTreeSet<_> = modified.iter().collect();
    assert!(all.len() == CLUSTERS && modified.len() <= 2 * CLUSTERS);
    for number in 0..MANY.div_ceil(CLUSTERS) {
        change_all(&server, 3 + u64::try_from(number).unwrap());
    }
    let last = slow.part(false);
    assert!(String::from_utf8_lossy(&last).contains("\"code\":410"));
    assert_eq!(events(&last), [("ERROR".to_owned(), String::new())]);
    assert!(slow.next().await.is_none());
}

#[tokio::test]
async fn watch_ends_without_a_delete_when_the_lead_is_lost() {
    let server = server();
    let version = cover(&server);
    let mut watch = watch(&server, &format!("watch=1&resourceVersion={version}")).unwrap();
    change_all(&server, 1);
    let batch = watch.batch(version).unwrap();
    assert_eq!(batch.changes.len(), PART);
    server.hub_state.set_lead(None);
    assert!(matches!(
        watch.rows(&batch.changes),
        Err(ViewError::Unavailable(_))
    ));
    assert!(
        !events(&watch.part(false))
            .iter()
            .any(|(kind, _)| kind == "DELETED")
    );
    assert!(watch.ended && watch.next().await.is_none());
}

#[tokio::test]
async fn delivery_that_may_have_matched_before_is_deleted() {
    let server = server();
    let version = cover(&server);
    change_all(&server, 1);
    // None is in this state now. Each may have been when the client listed.
    let text = format!("watch=1&resourceVersion={version}&fieldSelector=state%3DReady");
    let mut watch = watch(&server, &text).unwrap();
    let mut deleted = Vec::new();
    while watch.version < server.changes().version() {
        deleted.extend(events(&watch.part(false)));
    }
    assert_eq!(deleted.len(), CLUSTERS);
    assert!(deleted.iter().all(|(kind, _)| kind == "DELETED"));
}

#[tokio::test]
async fn watch_from_a_later_page_replays_what_changed_since_the_first() {
    let server = server();
    let (version, token) = version_of(&page(&server, "limit=500").await);
    change_all(&server, 1);
    let last = page(&server, &format!("limit=500&continue={token}")).await;
    assert_eq!(version_of(&last), (version, String::new()));
    let row = &last["items"][0]["metadata"]["resourceVersion"];
    assert_eq!(*row, version.to_string());
    let mut watch = watch(&server, &format!("watch=1&resourceVersion={version}")).unwrap();
    let mut modified = BTreeSet::new();
    while watch.version < server.changes().version() {
        modified.extend(events(&watch.part(false)));
    }
    assert_eq!(modified.len(), CLUSTERS);
}

#[tokio::test]
async fn page_of_a_forgotten_version_is_expired_with_a_new_token() {
    let server = server();
    let (version, token) = version_of(&page(&server, "limit=500").await);
    for number in 0..MANY.div_ceil(CLUSTERS) {
        change_all(&server, 1 + u64::try_from(number).unwrap());
    }
    let expired = page(&server, &format!("limit=500&continue={token}")).await;
    assert_eq!(
        (&expired["code"], &expired["reason"]),
        (&json!(410), &json!("Expired"))
    );
    let token = expired["metadata"]["continue"].as_str().unwrap();
    let last = page(&server, &format!("limit=500&continue={token}")).await;
    assert_eq!(last["items"].as_array().map(Vec::len), Some(CLUSTERS - 500));
    assert!(version_of(&last).0 > version);
}

#[tokio::test]
async fn changed_label_of_a_member_reaches_watches_of_its_deliveries() {
    let server = server();
    let version = cover(&server);
    let follow = |text: &str| watch(&server, &format!("{text}&resourceVersion={version}")).unwrap();
    let mut all = follow("watch=1");
    let mut canaries = follow("watch=1&labelSelector=canary%3Dyes");
    let mut relabel = |canary: &str, version: &str| {
        let member = serde_json::from_value::<runnel_api::MemberCluster>(json!({
            "apiVersion": "runnel.dev/v1alpha1", "kind": "MemberCluster",
            "metadata": {"name": "eu-7", "resourceVersion": version, "labels": {"canary": canary}},
            "spec": {"accepted": true},
        }));
        crate::watch::observe_member(member.unwrap(), &server.hub_state, &server.object_cache);
        let viewed = server.hub_state.queues.viewed_rules.take();
        viewed.iter().for_each(|uid| server.compare(uid));
        [&mut all, &mut canaries].map(|watch| {
            let seen = events(&watch.part(false)).into_iter();
            seen.map(|(kind, name)| format!("{kind} {name}"))
                .collect::<Vec<_>>()
        })
    };
    assert_eq!(relabel("yes", "1"), [["MODIFIED r:eu-7"], ["ADDED r:eu-7"]]);
    assert_eq!(relabel("yes", "2"), [vec![], vec![]] as [Vec<String>; 2]);
    assert_eq!(
        relabel("no", "3"),
        [["MODIFIED r:eu-7"], ["DELETED r:eu-7"]]
    );
}

#[tokio::test]
async fn plan_of_too_many_values_is_refused_before_it_is_decoded() {
    let target = Target::of("/apis/view.runnel.dev/v1alpha1/namespaces/shop/ruleplans").unwrap();
    let maps = r#"{"a":0},"#.repeat(260_000);
    let body = format!(r#"{{"spec":{{"object":{{"x":[{maps}0]}}}}}}"#);
    let user = UserInfo::default();
    let answer = server().create(&target, &user, &mut Body::from(body)).await;
    let message = answer.map(drop).unwrap_err().to_string();
    assert!(message.contains("more than 70000 values"), "{message}");
}

#[tokio::test]
async fn list_of_one_cluster_compares_that_cluster_alone() {
    let server = server();
    let one = page(&server, "fieldSelector=cluster%3Deu-7").await;
    assert_eq!(one["items"].as_array().map(Vec::len), Some(1));
    let only = Some(BTreeSet::from([ClusterName::from("eu-7")]));
    let read = server.changes().clusters_read(&"r".into(), None);
    assert_eq!(read, only);
}

#[test]
fn matching_deliveries_are_bounded() {
    let position = |number: usize| Position {
        namespace: "shop".to_owned(),
        rule: "r".to_owned(),
        cluster: number.to_string(),
        copy: None,
    };
    let mut matching = Matching::default();
    for number in 0..MATCHING {
        assert!(matching.insert(&position(number)).is_ok_and(|new| new));
    }
    assert!(matching.insert(&position(0)).is_ok_and(|new| !new));
    let Err(ViewError::BadRequest(message)) = matching.insert(&position(MATCHING)) else {
        unreachable!("more match than a watch remembers");
    };
    assert!(message.contains("select one rule"), "{message}");
    assert!(matching.remove(&position(0)) && !matching.remove(&position(0)));
    assert!(matching.insert(&position(MATCHING)).is_ok_and(|new| new));
}
