//! The watches of many areas, on one channel.
use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use http::{Request, Response};
use prometheus_client::registry::Registry;
use serde_json::json;

use super::*;

const DEADLINE: Duration = Duration::from_secs(30);
const AREAS: usize = 100;

/// Returns a client whose API server has no objects, serves only built-in kinds and keeps watches open. It answers the
/// discovery after all first lists were requested.
fn empty_cluster() -> Client {
    let lists = Arc::new(Semaphore::new(0));
    let service = tower::service_fn(move |request: Request<kube::client::Body>| {
        let lists = lists.clone();
        async move {
            let path = request.uri().path();
            let is_watch = request.uri().query().unwrap_or_default().contains("watch=");
            let body = if path == "/apis" || path == "/api" {
                let all = u32::try_from(AREAS).unwrap();
                let _ = tokio::time::timeout(Duration::from_secs(1), lists.acquire_many(all)).await;
                json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": []})
            } else if is_watch {
                return Ok::<_, Infallible>(Response::new(Body::from_stream(
                    futures::stream::pending::<Result<axum::body::Bytes, Infallible>>(),
                )));
            } else {
                lists.add_permits(1);
                json!({"metadata": {"resourceVersion": "7"}, "items": []})
            };
            Ok(Response::new(Body::from(body.to_string())))
        }
    });
    Client::new(service, "default")
}

fn watches(policy: &str, events: mpsc::Sender<Event>) -> Watches {
    Watches {
        client: empty_cluster(),
        sealer: Sealer::new(&[7; 32], "hub", ["member", ""]),
        file: None,
        policy: Arc::new(Policy::parse(policy).unwrap()),
        metrics: Metrics::new(&mut Registry::default()),
        times: WatchTimes::default(),
        liveness: Liveness::default(),
        kinds: KindRegistry::default(),
        newest: NewestObject::default(),
        deleted: BTreeSet::new(),
        events,
    }
}

/// Returns a policy with so many namespaces of two kinds, of which the cluster serves one.
fn policy() -> String {
    let names: Vec<String> = (0..AREAS).map(|number| format!("team-{number}")).collect();
    json!({"namespaces": {"allowed": names}, "kinds": ["configmaps", "widgets.example.org"]})
        .to_string()
}

#[tokio::test]
async fn unserved_kind_stops_no_watch_while_many_begin() {
    let (events, mut received) = mpsc::channel(32);
    let collect = async {
        // The channel is full, and watches and the end of the discovery wait for room in it.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let (mut complete, mut unserved) = (0, 0);
        while (complete, unserved) != (AREAS, AREAS) {
            match received.recv().await.unwrap() {
                Event::CopiesComplete(_) => complete += 1,
                Event::CopiesForbidden(..) => unserved += 1,
                _ => {}
            }
        }
    };
    let watches = watches(&policy(), events).run();
    tokio::select! {
        () = watches => unreachable!(),
        in_time = tokio::time::timeout(DEADLINE, collect) => assert!(in_time.is_ok(), "the watches stand still"),
    }
}

#[tokio::test]
async fn copy_that_is_too_large_is_not_taken_for_its_former_state() {
    let deep = format!("{}0{}", "[".repeat(200), "]".repeat(200));
    let metadata = r#"{"name":"a","namespace":"team-1","uid":"u","resourceVersion":"8"}"#;
    let shown = format!(
        "{{\"type\":\"MODIFIED\",\"object\":{{\"kind\":\"ConfigMap\",\"apiVersion\":\"v1\",\"metadata\":{metadata},\"x\":{deep}}}}}\n"
    );
    let service = tower::service_fn(move |request: Request<kube::client::Body>| {
        let query = request.uri().query().unwrap_or_default();
        let body = if query.contains("watch=") {
            shown.clone()
        } else {
            json!({"metadata": {"resourceVersion": "7"}, "items": []}).to_string()
        };
        async { Ok::<_, Infallible>(Response::new(Body::from(body))) }
    });
    let (events, mut received) = mpsc::channel(32);
    let kind = Kind::by_resource("configmaps").unwrap().clone();
    let area = Area {
        resource: kind.resource.clone(),
        namespace: None,
    };
    let copies = Copies {
        kind,
        area,
        sealer: Sealer::new(&[7; 32], "hub", ["member", ""]),
        kinds: KindRegistry::default(),
        newest: NewestObject::default(),
    };
    let watches = Watches {
        client: Client::new(service, "default"),
        ..watches("{}", events)
    };
    let watch = watches.follow(copies, Arc::new(Semaphore::new(1)));
    let outdated = async {
        loop {
            if let Event::CopyDeleted(copy, uid) = received.recv().await.unwrap() {
                return (copy.to_string(), uid);
            }
        }
    };
    tokio::select! {
        () = watch.run() => unreachable!(),
        outdated = tokio::time::timeout(DEADLINE, outdated) => {
            let expected = ("configmaps/team-1/a".to_owned(), "u".into());
            assert_eq!(outdated.unwrap(), expected);
        }
    }
}
