//! The Secrets in which the agent keeps what copies held before a rollout: a few of fixed names in its own namespace, so that it
//! needs no right to any other. Each entry is a batch as the hub would send it, with one intent, or with a tombstone where
//! there is nothing to go back to. Their content is never logged.
use data_encoding::{BASE64, HEXLOWER};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use prost::Message;
use ring::digest;
use runnel_proto::convert::{hub_frame, hub_frame_to_wire};
use runnel_proto::model::{
    Batch, DeletionPolicy, HubFrame, Intent, Payload, Reason, Revision, RuleDelta, Tombstone, Travel,
};
use runnel_proto::wire;
use serde_json::json;

use crate::call::{Call, with_timeout};
use runnel_agent_core::classify::{CallError, copy_error};
use runnel_agent_core::copy::CopyError;
use runnel_agent_core::copy::IntentKey;
use runnel_agent_core::job::{Done, Work};
use runnel_agent_core::previous::Kept;

/// How many Secrets there are.
pub const PLACES: usize = 8;
const PREFIX: &str = "runnel-agent-previous-";
/// Another name than those that apply copies and store the terms.
const MANAGER: &str = "runnel-agent-previous";
/// Owns the entries, so that applying the Secret anew takes none away.
const ENTRIES: &str = "runnel-agent-previous-entries";
/// How often in a row somebody else may have been faster.
const RACES: usize = 16;

/// The Secrets.
#[derive(Clone)]
pub struct Keep {
    api: Api<Secret>,
}

impl Keep {
    /// The Secrets in this namespace.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self { api: Api::namespaced(client, namespace) }
    }

    /// All that is kept. What cannot be read is left out, also where the agent lacks the right: then it has kept nothing.
    ///
    /// # Errors
    /// [`CallError`], when the API server does not answer or refuses.
    pub async fn all(&self) -> Call<Vec<(IntentKey, Kept)>> {
        let reads = (0..PLACES).map(async |place| match self.read(place).await {
            Err(error) if error.code() == 403 => Ok((place, None)),
            read => Ok::<_, CallError>((place, read?)),
        });
        let secrets: Vec<(usize, Option<Secret>)> = futures::future::try_join_all(reads).await?;
        let entries = secrets.into_iter().flat_map(|(place, secret)| {
            let data = secret.and_then(|secret| secret.data).unwrap_or_default();
            data.into_values().filter_map(move |ByteString(bytes)| {
                let Entry { key, base, held } = read_entry(&bytes)?;
                Some((key, Kept { revision: held.map(|(revision, _)| revision), place, base }))
            })
        });
        Ok(entries.collect())
    }

    /// Keeps what the copies of an intent hold since this base, or that there is nothing to go back to. What is kept of the same
    /// base already stays. Returns what is kept now.
    ///
    /// # Errors
    /// Why it is not kept.
    pub async fn keep(
        &self,
        key: &IntentKey,
        base: &str,
        held: Option<(Revision, Payload)>,
    ) -> Result<Kept, CopyError> {
        let revision = held.as_ref().map(|(revision, _)| *revision);
        let entry = written_entry(key, base, held);
        let kept = |revision, place| Kept { revision, place, base: base.to_owned() };
        let first = usize::from(digest_of(key).as_ref()[0]) % PLACES;
        for place in (first..PLACES).chain(0..first) {
            match self.add(place, (key, base), &entry).await {
                Ok(Some(there)) => return Ok(kept(there, place)),
                Ok(None) => return Ok(kept(revision, place)),
                // It is full.
                Err(error) if matches!(error.code(), 413 | 422) => {}
                Err(error) => {
                    let CopyError { reason, message } = copy_error(&error);
                    return Err(CopyError::new(
                        reason,
                        format!("what it holds cannot be kept for a rollback: {message}"),
                    ));
                }
            }
        }
        let message = "what it holds does not fit into the Secrets that keep it for a rollback; spec.rollout.onFailure: Stop \
                       needs none";
        Err(CopyError::new(Reason::TooLarge, message))
    }

    /// What is kept of an intent in this revision.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub async fn content(&self, key: &IntentKey, revision: &Revision, place: usize) -> Result<Payload, CopyError> {
        let secret = self.read(place).await.map_err(|error| copy_error(&error))?;
        let entry = secret.and_then(|mut secret| secret.data.as_mut()?.remove(&slot(key)));
        let held = entry.and_then(|ByteString(bytes)| read_entry(&bytes)?.held);
        let payload = held.filter(|(kept, _)| kept == revision).map(|(_, payload)| payload);
        payload
            .ok_or_else(|| CopyError::new(Reason::WaitingForHub, "what was kept for a rollback is not there any more"))
    }

    /// Does a piece of work about what is kept.
    pub async fn work(&self, work: Work, done: &mut Done) {
        let Work::Forget(keys) = work else { return };
        match self.forget(&keys).await {
            Ok(()) => done.forgot = keys.into_iter().map(|(key, _)| key).collect(),
            Err(error) => done.copy_error = Some(copy_error(&error)),
        }
    }

    /// Forgets these, and the Secrets in which nothing is left.
    ///
    /// # Errors
    /// [`CallError`], when the API server does not answer or refuses: some of them may be forgotten.
    async fn forget(&self, keys: &[(IntentKey, usize)]) -> Call<()> {
        for place in 0..PLACES {
            let here = keys.iter().filter(|(_, other)| *other == place);
            let gone: serde_json::Map<_, _> = here.map(|(key, _)| (slot(key), json!(null))).collect();
            if gone.is_empty() {
                continue;
            }
            match self.merge(place, json!({"data": gone})).await {
                Ok(secret) if secret.data.as_ref().is_none_or(|data| data.is_empty()) => {
                    self.delete(place, secret.metadata.resource_version).await?;
                }
                Ok(_) => {}
                Err(error) if error.code() == 404 => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Adds an entry. Returns what is kept there already of the same base, if anything is.
    async fn add(&self, place: usize, (key, base): (&IntentKey, &str), entry: &[u8]) -> Call<Option<Option<Revision>>> {
        for _ in 0..RACES {
            let Some(secret) = self.read(place).await? else {
                self.create(place).await?;
                continue;
            };
            let there = secret.data.as_ref().and_then(|data| data.get(&slot(key)));
            let there = there.and_then(|ByteString(bytes)| read_entry(bytes));
            if let Some(Entry { held, .. }) = there.filter(|there| there.base == base) {
                return Ok(Some(held.map(|(revision, _)| revision)));
            }
            // Of two that add at once the one would not know that the place has become full.
            let patch = json!({
                "metadata": {"resourceVersion": secret.metadata.resource_version},
                "data": {slot(key): BASE64.encode(entry)},
            });
            match self.merge(place, patch).await {
                Ok(_) => return Ok(None),
                Err(error) if matches!(error.code(), 404 | 409) => {}
                Err(error) => return Err(error),
            }
        }
        Err(CallError::Unanswered)
    }

    async fn read(&self, place: usize) -> Call<Option<Secret>> {
        let name = name(place);
        with_timeout(self.api.get_opt(&name)).await
    }

    async fn create(&self, place: usize) -> Call<()> {
        let body = json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name(place), "labels": {"app.kubernetes.io/part-of": "runnel"}},
            "type": "runnel.dev/previous",
        });
        let (name, params, patch) = (name(place), PatchParams::apply(MANAGER).force(), Patch::Apply(body));
        with_timeout(self.api.patch(&name, &params, &patch)).await.map(drop)
    }

    async fn merge(&self, place: usize, patch: serde_json::Value) -> Call<Secret> {
        let params = PatchParams { field_manager: Some(ENTRIES.to_owned()), ..PatchParams::default() };
        let (name, patch) = (name(place), Patch::Merge(patch));
        with_timeout(self.api.patch(&name, &params, &patch)).await
    }

    /// Deletes a Secret, if it is as it was seen.
    async fn delete(&self, place: usize, resource_version: Option<String>) -> Call<()> {
        let conditions = Preconditions { uid: None, resource_version };
        let (name, params) = (name(place), DeleteParams::default().preconditions(conditions));
        match with_timeout(self.api.delete(&name, &params)).await {
            Ok(_) => Ok(()),
            Err(error) if matches!(error.code(), 404 | 409) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

fn name(place: usize) -> String {
    format!("{PREFIX}{place}")
}

fn digest_of(key: &IntentKey) -> digest::Digest {
    let mut context = digest::Context::new(&digest::SHA256);
    for part in [key.rule.as_str(), &key.source.resource, &key.source.namespace, &key.source.name] {
        context.update(part.as_bytes());
        context.update(&[0]);
    }
    context.update(key.source.copy_name().as_bytes());
    context.finish()
}

/// Under what name an entry stands in its Secret.
fn slot(key: &IntentKey) -> String {
    HEXLOWER.encode(&digest_of(key).as_ref()[..16])
}

/// One entry. Without `Debug`: it holds content.
struct Entry {
    key: IntentKey,
    base: String,
    held: Option<(Revision, Payload)>,
}

fn written_entry(key: &IntentKey, base: &str, held: Option<(Revision, Payload)>) -> Vec<u8> {
    let travel = Some(Travel::Keep(base.to_owned()));
    let mut delta = RuleDelta { travel, ..RuleDelta::new(key.rule.clone()) };
    let source = key.source.clone();
    match held {
        Some((revision, payload)) => delta.upserts.push(Intent { source, revision, payload }),
        None => delta.tombstones.push(Tombstone { source, deletion_policy: DeletionPolicy::Retain }),
    }
    hub_frame_to_wire(&HubFrame::Batch(Batch { nonce: 1, rules: vec![delta] })).encode_to_vec()
}

fn read_entry(bytes: &[u8]) -> Option<Entry> {
    let (HubFrame::Batch(mut batch), refused) = hub_frame(wire::HubFrame::decode(bytes).ok()?).ok()? else {
        return None;
    };
    let mut delta = batch.rules.pop().filter(|_| refused.is_empty())?;
    let base = delta.travel.as_ref().and_then(Travel::base)?.to_owned();
    let (source, held) = match (delta.upserts.pop(), delta.tombstones.pop()) {
        (Some(Intent { source, revision, payload }), _) => (source, Some((revision, payload))),
        (None, tombstone) => (tombstone?.source, None),
    };
    Some(Entry { key: IntentKey { rule: delta.uid, source }, base, held })
}

#[cfg(test)]
mod tests {
    use super::*;
    use runnel_proto::model::SourceRef;

    #[test]
    fn what_is_kept_reads_back() {
        let source = SourceRef::new("configmaps", "team", "settings").as_copy("other");
        let key = IntentKey { rule: "rule".into(), source };
        let payload = Payload::encode(b"{}".to_vec());
        let read = read_entry(&written_entry(&key, "9", Some((Revision([7; 16]), payload.clone())))).unwrap();
        let held = read.held.unwrap();
        assert!(read.key == key && read.base == "9" && held.0 == Revision([7; 16]) && held.1 == payload);
        let read = read_entry(&written_entry(&key, "", None)).unwrap();
        assert!(read.key == key && read.base.is_empty() && read.held.is_none());
        assert!(read_entry(b"something else").is_none());
    }
}
