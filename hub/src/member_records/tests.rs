//! Reads and writes with an API server that stores the objects of one member.
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use kube::client::Body;
use parking_lot::Mutex;
use serde_json::Value;

use super::*;
use runnel_api::{NO_RECORD, PendingRemoval, UsedToken};

const NAME: &str = "eu-1";

/// The stored objects, by plural, and the requests.
#[derive(Default)]
struct StoredObjects {
    objects: BTreeMap<String, Value>,
    requests: Vec<String>,
    writes: u64,
}

impl StoredObjects {
    fn with_member(uid: &str) -> Arc<Mutex<Self>> {
        let mut stored = Self::default();
        stored.put("memberclusters", cluster(uid));
        Arc::new(Mutex::new(stored))
    }

    fn put(&mut self, plural: &str, mut object: Value) -> Value {
        self.writes += 1;
        object["metadata"]["resourceVersion"] = json!(self.writes.to_string());
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = json!(format!("uid-{}", self.writes));
        }
        self.objects.insert(plural.to_owned(), object.clone());
        object
    }

    fn answer(&mut self, method: &str, plural: &str, body: Value) -> (u16, Value) {
        self.requests.push(format!("{method} {plural}"));
        match (method, self.objects.get(plural).cloned()) {
            ("POST", Some(_)) => (409, Value::Null),
            ("POST", None) => (201, self.put(plural, body)),
            (_, None) => (404, Value::Null),
            ("DELETE", Some(known)) => {
                self.objects.remove(plural);
                (200, known)
            }
            ("PATCH", Some(mut known)) => {
                let version = &body["metadata"]["resourceVersion"];
                if *version != known["metadata"]["resourceVersion"] {
                    return (409, Value::Null);
                }
                for (field, value) in body["spec"].as_object().unwrap() {
                    known["spec"][field] = value.clone();
                }
                (200, self.put(plural, known))
            }
            (_, Some(known)) => (200, known),
        }
    }
}

fn client(stored: &Arc<Mutex<StoredObjects>>) -> Client {
    let stored = stored.clone();
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let stored = stored.clone();
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect_bytes().await.unwrap();
            let body = serde_json::from_slice(&body).unwrap_or_default();
            let plural = head.uri.path().split('/').nth(4).unwrap();
            let (code, mut answer) = stored.lock().answer(head.method.as_str(), plural, body);
            if answer.is_null() {
                answer = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                    "message": "", "reason": if code == 404 { "NotFound" } else { "Conflict" }, "code": code});
            }
            let answer = Body::from(answer.to_string().into_bytes());
            Ok::<_, Infallible>(http::Response::builder().status(code).body(answer).unwrap())
        }
    });
    Client::new(service, "default")
}

fn cluster(uid: &str) -> Value {
    json!({
        "apiVersion": "runnel.dev/v1alpha1", "kind": "MemberCluster",
        "metadata": {"name": NAME, "uid": uid}, "spec": {},
    })
}

fn used(hash: &str) -> MemberRecordSpec {
    MemberRecordSpec {
        tokens: vec![UsedToken {
            token_hash: hash.to_owned(),
            ..UsedToken::default()
        }],
        ..NO_RECORD.clone()
    }
}

async fn read(stored: &Arc<Mutex<StoredObjects>>, known: &ObjectCache) -> kube::Result<Member> {
    let read = read_member(&client(stored), known, NAME).await?;
    Ok(read.expect("a MemberCluster"))
}

fn code<T>(result: kube::Result<T>) -> Option<u16> {
    match result {
        Err(kube::Error::Api(status)) => Some(status.code),
        _ => None,
    }
}

#[tokio::test]
async fn record_is_read_first_and_written_as_read() {
    let (stored, known) = (StoredObjects::with_member("m"), ObjectCache::default());
    let new = read(&stored, &known).await.unwrap();
    assert_eq!(*new.record(), NO_RECORD);
    assert_eq!(
        stored.lock().requests,
        ["GET memberrecords", "GET memberclusters"]
    );
    let written = write_record(&client(&stored), &new, used("a"))
        .await
        .unwrap();
    assert_eq!(written.spec.member_uid, "m");
    let owner = &written.metadata.owner_references.as_ref().unwrap()[0];
    assert_eq!((&*owner.kind, &*owner.uid), ("MemberCluster", "m"));
    // Two decide from the same record: only the first one writes.
    let (one, two) = (read(&stored, &known).await, read(&stored, &known).await);
    assert!(
        write_record(&client(&stored), &one.unwrap(), used("b"))
            .await
            .is_ok()
    );
    let late = write_record(&client(&stored), &two.unwrap(), used("c")).await;
    assert_eq!(code(late), Some(409));
    assert_eq!(
        code(write_record(&client(&stored), &new, used("d")).await),
        Some(409)
    );
    let last = read(&stored, &known).await.unwrap();
    assert_eq!(last.record().tokens, used("b").tokens);
    // An emptied list is written, too.
    let empty = write_record(&client(&stored), &last, NO_RECORD.clone()).await;
    assert_eq!(empty.unwrap().spec.tokens, []);
}

#[tokio::test]
async fn record_that_is_not_served_is_unknown() {
    let (stored, known) = (StoredObjects::with_member("m"), ObjectCache::default());
    let member = read(&stored, &known).await.unwrap();
    let record = write_record(&client(&stored), &member, used("a"))
        .await
        .unwrap();
    known.set_member(NAME.into(), record);
    known.set_member(NAME.into(), MemberCluster::clone(&member.cluster));
    let gone = stored.lock().objects.remove("memberrecords").unwrap();
    assert_eq!(
        code(read(&stored, &known).await),
        Some(503),
        "with its CRD, perhaps"
    );
    // The watch has decided that it is deleted.
    known.remove_member::<MemberRecord>(&NAME.into());
    assert_eq!(*read(&stored, &known).await.unwrap().record(), NO_RECORD);
    // A write that is late stores nothing for the member.
    let known: MemberRecord = serde_json::from_value(gone).unwrap();
    let late = Member::new(member.cluster, Some(known.into()));
    assert_eq!(
        code(write_record(&client(&stored), &late, used("b")).await),
        Some(409)
    );
}

#[tokio::test]
async fn record_of_a_former_member_makes_way() {
    let (stored, known) = (StoredObjects::with_member("m1"), ObjectCache::default());
    let former = read(&stored, &known).await.unwrap();
    let record = MemberRecordSpec {
        pending_removals: vec![PendingRemoval::default()],
        ..used("a")
    };
    let record = write_record(&client(&stored), &former, record)
        .await
        .unwrap();
    known.set_member(NAME.into(), record);
    // The garbage collector is slower than the join.
    stored.lock().put("memberclusters", cluster("m2"));
    let next = read(&stored, &known).await.unwrap();
    assert_eq!(*next.record(), NO_RECORD);
    assert_eq!(
        code(write_record(&client(&stored), &next, used("b")).await),
        Some(409)
    );
    let written = write_record(&client(&stored), &next, used("b"))
        .await
        .unwrap();
    let of_next = MemberRecordSpec {
        member_uid: "m2".to_owned(),
        ..used("b")
    };
    assert_eq!(written.spec, of_next);
    // A late write for the former member deletes nothing.
    assert_eq!(
        code(write_record(&client(&stored), &former, used("c")).await),
        Some(409)
    );
    assert_eq!(read(&stored, &known).await.unwrap().record(), &of_next);
}
