use std::collections::BTreeMap;
use std::convert::Infallible;

use http::{Response, StatusCode};
use kube::client::Body as HttpBody;
use serde_json::{Value, json};

use super::*;
use crate::hub_state::Settings;
use crate::ordered_lock::LeafMutex;
use crate::watch::renderer::render_rules;
use runnel_hub_core::plan::{Rule, WatchScope};

const NAMESPACE: &str = "home";

/// An API server with the ConfigMaps of one namespace, which records its requests.
#[derive(Default)]
struct FakeApi {
    objects: BTreeMap<String, Value>,
    forbids_lists: bool,
    /// Its cache reaches no version in time.
    is_behind: bool,
    /// The number of lists that are answered.
    answers: Option<usize>,
    asked: LeafMutex<Vec<String>>,
    /// The objects that were read in a version or a newer one, with that version.
    versions: LeafMutex<Vec<(String, String)>>,
}

impl FakeApi {
    /// Creates an API server with this number of objects of this size.
    fn with(objects: usize, bytes: usize) -> Self {
        let object = |number: usize| {
            let name = format!("s{number:04}");
            let metadata = json!({"name": name, "namespace": NAMESPACE, "resourceVersion": (number + 1).to_string()});
            (
                name,
                json!({"metadata": metadata, "data": {"value": "x".repeat(bytes)}}),
            )
        };
        Self {
            objects: (0..objects).map(object).collect(),
            ..Self::default()
        }
    }

    fn client(self: &Arc<Self>) -> Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: http::Request<HttpBody>| {
            let (code, body) = api.answer(request.uri());
            let answer = Response::builder()
                .status(code)
                .body(HttpBody::from(body.to_string().into_bytes()));
            let is_answered = api
                .answers
                .is_none_or(|answers| api.asked("list") <= answers);
            async move {
                if !is_answered {
                    std::future::pending::<()>().await;
                }
                Ok::<_, Infallible>(answer.unwrap())
            }
        });
        Client::new(service, NAMESPACE)
    }

    fn answer(&self, uri: &http::Uri) -> (StatusCode, Value) {
        let place = format!("/api/v1/namespaces/{NAMESPACE}/configmaps");
        let name = uri
            .path()
            .strip_prefix(&place)
            .unwrap()
            .trim_start_matches('/');
        let verb = if name.is_empty() { "list" } else { "get" };
        self.asked.lock().push(verb.to_owned());
        let value = |key: &str| {
            let mut pairs = uri
                .query()?
                .split('&')
                .filter_map(|pair| pair.split_once('='));
            pairs.find_map(|(name, value)| (name == key).then_some(value))
        };
        if !name.is_empty() {
            let Some(version) = value("resourceVersion") else {
                return (StatusCode::OK, self.objects[name].clone());
            };
            self.versions
                .lock()
                .push((name.to_owned(), version.to_owned()));
            if self.is_behind {
                let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                    "message": "Too large resource version", "reason": "Timeout", "code": 504});
                return (StatusCode::GATEWAY_TIMEOUT, status);
            }
            return (StatusCode::OK, self.objects[name].clone());
        }
        if self.forbids_lists {
            let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "message": "no", "reason": "Forbidden", "code": 403});
            return (StatusCode::FORBIDDEN, status);
        }
        let number = |key: &str| value(key)?.parse::<usize>().ok();
        let (from, limit) = (
            number("continue").unwrap_or_default(),
            number("limit").unwrap(),
        );
        let items: Vec<_> = self
            .objects
            .values()
            .skip(from)
            .take(limit)
            .cloned()
            .collect();
        let more = (from + limit < self.objects.len()).then(|| (from + limit).to_string());
        (
            StatusCode::OK,
            json!({"metadata": {"resourceVersion": "9999", "continue": more}, "items": items}),
        )
    }

    fn asked(&self, verb: &str) -> usize {
        self.asked
            .lock()
            .iter()
            .filter(|asked| *asked == verb)
            .count()
    }
}

/// A hub with all of these objects and one rule that selects the given ones.
fn hub(api: &FakeApi, names: Value) -> Arc<HubState> {
    let hub_state = HubState::new(Settings::for_tests());
    let rule: runnel_api::DistributionRule = serde_json::from_value(json!({
        "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionRule",
        "metadata": {"name": "r", "namespace": NAMESPACE, "uid": "r", "generation": 1},
        "spec": {"sources": [{"resources": ["configmaps"], "names": names}], "clusters": {"all": true}},
    }))
    .unwrap();
    let rule = Rule::namespaced(&rule, "runnel-system").unwrap();
    hub_state.change(|index| index.set_rule(rule));
    for (number, name) in api.objects.keys().enumerate() {
        hub_state.change(|index| index.observe(&source(name), number as u64 + 1, BTreeMap::new()));
    }
    hub_state
}

fn source(name: &str) -> SourceRef {
    SourceRef::new("configmaps", NAMESPACE, name)
}

fn is_read(hub_state: &HubState, name: &str) -> bool {
    let index = hub_state.index.read();
    index
        .sources()
        .get(&source(name))
        .is_some_and(|source| matches!(source.body, SourceState::Read(_)))
}

/// Checks that the list of the scope has ended.
fn is_listed(hub_state: &HubState) {
    hub_state
        .leadership
        .relist_barrier
        .done(Watched::Sources(WatchScope::everywhere("configmaps")), 0);
    hub_state.queues.to_read.wake();
}

/// Runs reads until the condition is true.
async fn reads_until(api: &Arc<FakeApi>, hub_state: &Arc<HubState>, holds: impl Fn() -> bool) {
    let holds = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        () = read_sources(api.client(), hub_state.clone()) => unreachable!(),
        () = render_rules(hub_state.clone()) => unreachable!(),
        in_time = tokio::time::timeout(Duration::from_secs(60), holds) => in_time.unwrap(),
    }
}

#[tokio::test]
async fn sources_of_a_new_hub_are_read_in_pages() {
    let api = Arc::new(FakeApi::with(1000, 10));
    let hub_state = hub(&api, json!(["*"]));
    // The hub does not know the number of sources yet.
    let turns = std::cell::Cell::new(0);
    reads_until(&api, &hub_state, || turns.replace(turns.get() + 1) > 20).await;
    assert_eq!(*api.asked.lock(), Vec::<String>::new());
    is_listed(&hub_state);
    hub_state
        .queues
        .to_read
        .add(api.objects.keys().map(|name| source(name)));
    reads_until(&api, &hub_state, || {
        api.objects.keys().all(|name| is_read(&hub_state, name))
    })
    .await;
    assert_eq!(
        (api.asked("get"), api.asked("list")),
        (0, 5),
        "100, 200 and 3 times 250 objects"
    );
}

#[tokio::test]
async fn pages_of_large_sources_are_bounded_in_bytes() {
    let api = Arc::new(FakeApi::with(120, 200_000));
    let hub_state = hub(&api, json!(["*"]));
    is_listed(&hub_state);
    reads_until(&api, &hub_state, || {
        api.objects.keys().all(|name| is_read(&hub_state, name))
    })
    .await;
    // A page of 100 has 20 MB, one of 25 has 5.
    assert_eq!((api.asked("get"), api.asked("list")), (0, 6));
}

#[tokio::test]
async fn few_sources_are_read_individually() {
    let no_right = FakeApi {
        forbids_lists: true,
        ..FakeApi::with(50, 10)
    };
    let all = |count: usize| {
        (0..count)
            .map(|number| format!("s{number:04}"))
            .collect::<Vec<_>>()
    };
    for (api, selected, lists) in [
        (no_right, all(50), 1),
        (FakeApi::with(1000, 10), all(30), 0),
    ] {
        let api = Arc::new(api);
        let hub_state = hub(&api, json!(selected));
        is_listed(&hub_state);
        reads_until(&api, &hub_state, || {
            selected.iter().all(|name| is_read(&hub_state, name))
        })
        .await;
        assert_eq!(
            (api.asked("get"), api.asked("list")),
            (selected.len(), lists)
        );
    }
}

#[tokio::test]
async fn observed_version_is_read_from_the_cache_of_the_api_server() {
    for (is_behind, gets) in [(false, 1), (true, 2)] {
        let api = Arc::new(FakeApi {
            is_behind,
            ..FakeApi::with(3, 10)
        });
        let hub_state = hub(&api, json!(["s0001"]));
        is_listed(&hub_state);
        reads_until(&api, &hub_state, || is_read(&hub_state, "s0001")).await;
        let read = [("s0001".to_owned(), "2".to_owned())];
        assert_eq!(*api.versions.lock(), read);
        assert_eq!(api.asked("get"), gets, "behind: {is_behind}");
    }
    // A version of an earlier list may be old: the object is read in its newest version.
    let api = Arc::new(FakeApi::with(1, 10));
    let hub_state = hub(&api, json!(["s0000"]));
    let everywhere = WatchScope::everywhere("configmaps");
    hub_state.change_quietly(|index| index.sources_mut().mark_stale(&everywhere));
    is_listed(&hub_state);
    reads_until(&api, &hub_state, || is_read(&hub_state, "s0000")).await;
    assert_eq!(*api.versions.lock(), []);
}

#[tokio::test]
async fn list_that_takes_too_long_leaves_its_sources_to_single_reads() {
    for answers in [0, 2] {
        let api = Arc::new(FakeApi {
            answers: Some(answers),
            ..FakeApi::with(1000, 10)
        });
        let hub_state = hub(&api, json!(["*"]));
        let wanted: BTreeSet<_> = api.objects.keys().map(|name| source(name)).collect();
        let scope = ListScope {
            resource: "configmaps".into(),
            namespace: NAMESPACE.into(),
        };
        let limit = Duration::from_secs(2);
        let ReadResult::List(_, _, left) =
            read_by_list(api.client(), hub_state, scope, wanted, limit).await
        else {
            panic!()
        };
        assert_eq!(
            left.len(),
            if answers == 0 { 1000 } else { 700 },
            "pages of 100 and 200 objects"
        );
    }
}
