//! Copies that cannot be changed, against an API server that refuses every change and has one object of each kind.
use std::convert::Infallible;
use std::sync::Mutex;

use axum::body::Body;
use http::{Request, Response};
use runnel_agent_core::copy::IntentKey;
use runnel_agent_core::decide::Recreate;
use runnel_agent_core::policy::Policy;
use runnel_proto::model::{CUSTOM_RESOURCE_DEFINITIONS, Revision, Scope};

use super::*;

/// The bodies of the requests that delete.
type Deletes = Arc<Mutex<Vec<Value>>>;

fn list(resource: &str, kind: &str, scope: &str) -> Value {
    json!({"resource": resource, "responseKind": {"kind": kind}, "scope": scope, "verbs": ["list"]})
}

fn group(name: &str, version: &str, resources: &[Value]) -> Value {
    let version = json!({"version": version, "freshness": "Current", "resources": resources});
    json!({"metadata": {"name": name}, "versions": [version]})
}

fn answer(method: &Method, path: &str) -> (u16, Value) {
    let groups = |group: Value| json!({"metadata": {}, "items": [group]});
    if method == Method::PATCH {
        let text = "field is immutable";
        let cause = json!({"reason": "FieldValueInvalid", "field": "spec", "message": text});
        let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 422,
            "reason": "Invalid", "message": text, "details": {"causes": [cause]}});
        return (422, status);
    }
    let metadata = json!({"name": "widgets.example.org", "uid": "u", "resourceVersion": "7",
        "deletionTimestamp": (method == Method::DELETE).then_some("2026-01-01T00:00:00Z")});
    let object = json!({"apiVersion": "v1", "kind": "Any", "metadata": metadata,
        "status": {"acceptedNames": {"plural": "widgets"}}});
    let one = json!({"kind": "PartialObjectMetadataList", "metadata": {}, "items": [object]});
    let answer = match path {
        "/api" => groups(group("", "v1", &[list("pods", "Pod", "Namespaced")])),
        "/apis" => groups(group(
            "example.org",
            "v1",
            &[list("widgets", "Widget", "Namespaced")],
        )),
        "/api/v1/namespaces/shop/pods" => one,
        _ if path.ends_with("/widgets") => one,
        _ => object,
    };
    (200, answer)
}

/// Returns access to the API server for copies of these kinds.
fn member(kinds: &[Kind], deletes: &Deletes) -> Member {
    let deletes = deletes.clone();
    let service = tower::service_fn(move |request: Request<kube::client::Body>| {
        let deletes = deletes.clone();
        async move {
            let (head, body) = request.into_parts();
            if head.method == Method::DELETE {
                let body = body.collect_bytes().await.unwrap();
                let options = serde_json::from_slice(&body).unwrap();
                deletes.lock().unwrap().push(options);
            }
            let (code, answer) = answer(&head.method, head.uri.path());
            let response = Response::builder().status(code);
            let response = response.body(Body::from(answer.to_string())).unwrap();
            Ok::<_, Infallible>(response)
        }
    });
    let registry = KindRegistry::default();
    registry.replace(kinds.iter().cloned().collect());
    let sealer = Sealer::new(&[7; 32], "hub", ["member", ""]);
    Member::new(
        Client::new(service, "default"),
        sealer,
        registry,
        NewestObject::default(),
    )
}

/// Changes a copy whose rule has `immutablePolicy: Recreate`. Returns the result, and the options of its deletes.
async fn change(kind: Kind, copy: SourceRef, propagation: Propagation) -> (Done, Vec<Value>) {
    let content = Content {
        version: Some((&*kind.version).into()),
        fields: [("spec".to_owned(), json!({"x": "y"}))].into(),
        ..Content::default()
    };
    let intent = IntentKey {
        rule: "r".into(),
        source: copy.clone(),
    };
    let mut policy = Policy::open();
    policy.kinds.insert(kind.resource.clone());
    policy.cluster_kinds.insert(kind.resource.clone());
    let body = DesiredObject {
        intent,
        rule: RuleName::default(),
        revision: Revision([1; 16]),
        content: ContentSource::Payload(Payload::encode(content.to_bytes())),
        ignored: BTreeSet::new(),
        version: None,
        recreate: Recreate::Yes,
        dry_run: false,
        reports_drift: false,
        limits: Limits {
            policy: Arc::new(policy),
            location: "runnel-agent".into(),
        },
    };
    let target = ExpectedObject {
        uid: "u".into(),
        version: "7".into(),
        is_shared: false,
    };
    let job = Job {
        key: Key::Copy(copy),
        work: Work::Change(target, body),
        account: None,
        propagation,
        corrects_drift: false,
        nodes: 1,
    };
    let deletes = Deletes::default();
    let done = member(&[kind], &deletes).run(job).await;
    let deletes = std::mem::take(&mut *deletes.lock().unwrap());
    (done, deletes)
}

#[tokio::test]
async fn workload_is_recreated_with_the_propagation_of_its_rule() {
    for (kind, plural) in [
        ("StatefulSet", "statefulsets"),
        ("Deployment", "deployments"),
    ] {
        for (propagation, sent) in [
            (Propagation::Background, "Background"),
            (Propagation::Foreground, "Foreground"),
            (Propagation::Orphan, "Orphan"),
        ] {
            let kind = Kind::new("apps", "v1", kind, plural, Scope::Namespaced);
            let copy = SourceRef::new(&kind.resource, "shop", "db");
            let (done, deletes) = change(kind, copy, propagation).await;
            assert_eq!(done.copy_error, None);
            assert!(done.deleted && done.wrote == Some(WriteEffect::Deleted));
            let expected = json!({"propagationPolicy": sent, "preconditions": {"uid": "u", "resourceVersion": "7"}});
            assert_eq!(deletes, [expected], "{plural}");
        }
    }
}

#[tokio::test]
async fn what_has_data_is_not_recreated() {
    let group = "apiextensions.k8s.io";
    let definitions = "customresourcedefinitions";
    let claims = "persistentvolumeclaims";
    let volumes = "persistentvolumes";
    for (kind, copy, reason, words) in [
        (
            Kind::new("", "v1", "PersistentVolumeClaim", claims, Scope::Namespaced),
            SourceRef::new(claims, "shop", "data"),
            Reason::Immutable,
            "save the data",
        ),
        (
            Kind::new("", "v1", "PersistentVolume", volumes, Scope::Cluster),
            SourceRef::new(volumes, "", "data"),
            Reason::Immutable,
            "save the data",
        ),
        (
            Kind::new(
                group,
                "v1",
                "CustomResourceDefinition",
                definitions,
                Scope::Cluster,
            ),
            SourceRef::new(CUSTOM_RESOURCE_DEFINITIONS, "", "widgets.example.org"),
            Reason::NotEmpty,
            "objects of widgets.example.org",
        ),
        (
            Kind::new("", "v1", "Namespace", "namespaces", Scope::Cluster),
            SourceRef::new("namespaces", "", "shop"),
            Reason::NotEmpty,
            "objects of pods",
        ),
    ] {
        let (done, deletes) = change(kind, copy, Propagation::default()).await;
        let error = done.copy_error.unwrap();
        assert_eq!(error.reason, reason, "{}", error.message);
        assert!(error.message.contains(words), "{}", error.message);
        assert!(deletes.is_empty() && done.wrote.is_none());
    }
}
