//! Watches of a server without an API server.
use std::collections::BTreeSet;
use std::time::SystemTime;

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
use crate::view::request::{DELIVERY_FIELDS, query};

const CLUSTERS: usize = 600;
/// More changes than the log of changes has.
const MANY: usize = 66_000;

/// A server whose rule has many clusters, of which none has connected.
fn server() -> Arc<ViewServer> {
    let hub_state = HubState::new(Settings::for_tests());
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

/// The rule has other deliveries, as if all clusters had reported.
fn change_all(server: &Arc<ViewServer>, digest: u64) {
    let rule = server.reader().rules(&Scope::Namespace("shop".to_owned()));
    let (rule, uid) = rule.first().unwrap();
    let mut rows = server.digests(uid).unwrap();
    rows.iter_mut().for_each(|(_, present)| *present ^= digest);
    server.changes().set(uid, rule, rows);
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
    let scope = Scope::Namespace("shop".to_owned());
    let version = server.cover(&scope);
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
    let version = server.cover(&Scope::Namespace("shop".to_owned()));
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
    let version = server.cover(&Scope::Namespace("shop".to_owned()));
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
