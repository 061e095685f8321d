//! Reads the content of selected sources, and buries those whose grace is over.
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use kube::api::DynamicObject;
use kube::{Api, Client, ResourceExt};
use runnel_proto::model::{Kind, PAYLOAD_LIMIT, Payload, SourceRef};

use super::READ_LIMIT;
use super::sources::api_resource;
use crate::index::version_number;
use crate::plan::{Body, Refused, SourceContent, content_of, denied_of, is_never_a_source};
use crate::shared::{Shared, until};

/// Reads at a time.
const READS: usize = 8;
/// How long to wait before a source that could not be read is tried again.
const AGAIN: Duration = Duration::from_secs(5);

/// Reads the sources that the index asks for, for ever; one read per source at a time.
pub async fn read_sources(client: Client, shared: Arc<Shared>) {
    let mut waiting = BTreeSet::new();
    let mut under_way = BTreeSet::new();
    let mut reads = FuturesUnordered::new();
    let mut failed: Vec<(Instant, SourceRef)> = Vec::new();
    loop {
        let now = Instant::now();
        waiting.extend(shared.to_read.take());
        waiting.extend(failed.extract_if(.., |(at, _)| *at <= now).map(|(_, source)| source));
        while reads.len() < READS {
            let Some(source) = waiting.iter().find(|source| !under_way.contains(*source)).cloned() else { break };
            waiting.remove(&source);
            under_way.insert(source.clone());
            reads.push(read(client.clone(), shared.clone(), source));
        }
        let next_try = failed.iter().map(|(at, _)| *at).min();
        tokio::select! {
            () = shared.to_read.added() => {}
            Some((source, done)) = reads.next(), if !reads.is_empty() => {
                under_way.remove(&source);
                if !done {
                    failed.push((Instant::now() + AGAIN, source));
                }
            }
            () = until(next_try) => {}
        }
    }
}

/// Reads one source into the index. Returns whether there is nothing to try again.
async fn read(client: Client, shared: Arc<Shared>, source: SourceRef) -> (SourceRef, bool) {
    let Some(kind) = Kind::by_resource(&source.resource) else { return (source, true) };
    let api: Api<DynamicObject> = Api::namespaced_with(client, &source.namespace, &api_resource(kind));
    let answer = tokio::time::timeout(READ_LIMIT, api.get_opt(&source.name)).await;
    let done = match answer {
        Ok(Ok(Some(object))) => {
            take_in(&shared, kind, &source, object);
            true
        }
        // The watch says what became of it.
        Ok(Ok(None)) => true,
        Ok(Err(error)) => unreadable(&shared, &source, &describe(&error)),
        Err(_) => unreadable(&shared, &source, "the API server did not answer in time"),
    };
    (source, done)
}

/// An answer of the API server without what it may quote from the object.
fn describe(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => format!("{} {}", status.code, status.reason),
        _ => "the API server cannot be reached".to_owned(),
    }
}

fn unreadable(shared: &Shared, source: &SourceRef, why: &str) -> bool {
    tracing::warn!(%source, why, "cannot read a source; its copies stay as they are, and it is tried again");
    shared.change(|index| index.could_not_read(source));
    false
}

fn take_in(shared: &Shared, kind: &'static Kind, source: &SourceRef, object: DynamicObject) {
    let labels = object.labels().clone();
    if object.metadata.deletion_timestamp.is_some() || is_never_a_source(kind, &source.name, &labels) {
        return;
    }
    let version = version_number(object.metadata.resource_version.as_deref());
    let body = body_of(shared, kind, &object);
    shared.change(|index| {
        let effect = index.read(source, version, labels, body);
        shared.follow_edit(index, source, &effect);
        effect
    });
}

/// The content of an object as the API server gave it, or why it is none.
pub fn body_of(shared: &Shared, kind: &'static Kind, object: &DynamicObject) -> Body {
    let Ok(object) = serde_json::to_value(object) else { return Body::Unreadable };
    match content_of(kind, &object) {
        Err(refused) => Body::Refused(refused),
        Ok(content) => {
            let canonical = content.to_bytes();
            if canonical.len() > PAYLOAD_LIMIT {
                return Body::Refused(Refused::TooLarge);
            }
            let revision = shared.settings.revision_key.revision(kind.resource, &canonical);
            let denied = denied_of(&object).map(|denied| Payload::encode(denied.to_bytes()));
            Body::Read(Arc::new(SourceContent { denied, ..SourceContent::of(revision, &content, canonical) }))
        }
    }
}

/// Removes vanished sources when their grace is over, and judges deletions of rules when it is time, for ever.
pub async fn bury_sources(shared: Arc<Shared>) {
    let grace = shared.settings.source_gone_grace;
    loop {
        let (next, judgement) = {
            let index = shared.index.read();
            // Who does not serve judges nothing; who begins to looks again.
            let judgement = index.next_judgement().filter(|_| shared.serving_since().is_some());
            (index.next_burial(grace), judgement)
        };
        tokio::select! {
            () = shared.vanished.notified() => {}
            () = until(next) => shared.change(|index| index.bury(Instant::now(), grace)),
            () = until(judgement.map(|(at, _)| at)) => shared.judge_due(),
        }
    }
}
