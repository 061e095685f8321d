//! The inputs of a completed rollout of a rule, and their encoding: the rule's spec and the contents of its sources. A rollback
//! plans them again, for the clusters, labels and grants of its own time.
//!
//! Encoded, it is one zstd frame of JSON lines: a header with the spec, each content once, then the objects. It contains values
//! of Secrets: no type here has `Debug`, and no error names a part of it.
use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::sync::Arc;

use jiff::Timestamp;
use runnel_api::KeptRevision;
use runnel_api::conditions::whole_seconds;
use runnel_proto::model::{Content, Payload, Revision, RuleUid, SourceRef};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::SourceContent;
use super::bundle::{Bundle, BundleParts};
use super::stored_source::{StoredSource, named, source_of};

/// The version of the encoding.
const VERSION: u32 = 2;
/// The most bytes that an encoded state may decompress to.
const PLAIN_LIMIT: u64 = 1 << 30;
const LEVEL: i32 = 3;

/// The reason why a rule cannot be rolled back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RollbackBlocker {
    /// No rollout was completed with `onFailure: Revert`, or its state was not stored.
    #[default]
    NoneCompleted,
    /// The state of the last completed rollout is not known in full, for this reason.
    Incomplete(&'static str),
    /// It does not fit into the hub's storage.
    TooLarge,
    /// It is stored, and cannot be decoded.
    Damaged,
    /// The hub lacks the right to read its storage.
    Unreadable,
    /// It is stored, and not decoded yet.
    Unread,
}

impl RollbackBlocker {
    /// Returns the message, without a final period.
    pub fn message(&self) -> String {
        match self {
            Self::NoneCompleted => "no state of a completed rollout is kept: none was completed while \
                                    spec.rollout.onFailure was Revert, or an edit followed before the hub could store it"
                .to_owned(),
            Self::Incomplete(why) => format!("the state of the last completed rollout was not stored: {why}"),
            Self::TooLarge => "the state of the last completed rollout does not fit into the hub's storage for rollbacks; \
                               raise --rollback-storage (chart value rollback.storageMiB)"
                .to_owned(),
            Self::Damaged => {
                "the stored state of the last completed rollout is damaged: the Secrets runnel-hub-rollback-* were changed"
                    .to_owned()
            }
            Self::Unread => "the hub has not read the state yet".to_owned(),
            Self::Unreadable => "the hub may not read the Secrets runnel-hub-rollback-* of its own namespace; upgrade its \
                                 chart for the right"
                .to_owned(),
        }
    }
}

/// The inputs of a completed rollout.
pub struct CompletedState {
    /// The target of the rollout.
    pub revision: String,
    /// When the rollout was completed, if that is known.
    pub completed_at: Option<Timestamp>,
    /// The spec of the rule.
    pub(super) spec: Arc<str>,
    /// The selected objects, bundles included.
    pub(super) sources: BTreeMap<SourceRef, Arc<SourceContent>>,
    /// The Secrets whose values are used in copies of others.
    pub(super) secret_refs: BTreeMap<SourceRef, Arc<SourceContent>>,
}

impl CompletedState {
    /// Encodes the state; `None` if it exceeds `limit` bytes.
    pub fn encode(&self, uid: &RuleUid, limit: usize) -> Option<Vec<u8>> {
        let mut encoder = zstd::stream::write::Encoder::new(
            LimitedWriter {
                bytes: Vec::new(),
                limit,
            },
            LEVEL,
        )
        .ok()?;
        encoder.include_checksum(true).ok()?;
        self.write(uid, &mut encoder).ok()?;
        Some(encoder.finish().ok()?.bytes)
    }

    fn write(&self, uid: &RuleUid, out: &mut impl Write) -> io::Result<()> {
        let mut contents = NumberedContents::default();
        let mut object = |source: &SourceRef, content: &Arc<SourceContent>| {
            let bundle = content.bundle.as_ref();
            StoredObject {
                source: named(source),
                content: contents.number(content),
                bundle: bundle.map(|bundle| bundle.parts(|manifest| contents.number(manifest))),
            }
        };
        let mut objects = |of: &BTreeMap<SourceRef, Arc<SourceContent>>| -> Vec<_> {
            let all = of.iter();
            all.map(|(source, content)| object(source, content))
                .collect()
        };
        let (sources, secret_refs) = (objects(&self.sources), objects(&self.secret_refs));
        let header = Header {
            version: VERSION,
            rule: uid.to_string(),
            revision: self.revision.clone(),
            completed_at: self.completed_at,
            spec: self.spec.to_string(),
            contents: contents.all.len(),
            sources: sources.len(),
            secret_refs: secret_refs.len(),
        };
        write_line(out, &header)?;
        for content in contents.all {
            // A bundle has no content itself.
            let plain = content.bundle.is_none().then(|| content.payload.decode());
            let denied = content.denied.as_ref().map(Payload::decode);
            let stored = StoredContent {
                revision: content.revision.0,
                content: plain.transpose().map_err(io::Error::other)?,
                denied: denied.transpose().map_err(io::Error::other)?,
                controlled: content.controlled,
            };
            write_line(out, &stored)?;
        }
        for object in sources.iter().chain(&secret_refs) {
            write_line(out, object)?;
        }
        Ok(())
    }

    /// Decodes the state of a rule; `None` for anything that [`CompletedState::encode`] has not written for this rule.
    pub fn decode(uid: &RuleUid, bytes: &[u8]) -> Option<Self> {
        let (header, mut lines) = read_header(uid, bytes)?;
        let mut contents = Vec::new();
        for _ in 0..header.contents {
            contents.push(Arc::new(read_line::<StoredContent>(&mut lines)?.read()));
        }
        let content = |number: usize| contents.get(number).cloned();
        let mut objects = |count: usize| -> Option<BTreeMap<SourceRef, Arc<SourceContent>>> {
            let mut all = BTreeMap::new();
            for _ in 0..count {
                let object: StoredObject = read_line(&mut lines)?;
                let mut read = content(object.content)?;
                if let Some(parts) = object.bundle {
                    let bundle = Bundle::of_parts(parts, content)?;
                    read = Arc::new(SourceContent::of_bundle(
                        read.revision,
                        read.controlled,
                        bundle,
                    ));
                }
                all.insert(source_of(&object.source), read);
            }
            Some(all)
        };
        let (sources, secret_refs) = (objects(header.sources)?, objects(header.secret_refs)?);
        // The checksum is at the end.
        if lines.read(&mut [0]).ok()? > 0 {
            return None;
        }
        Some(Self {
            revision: header.revision,
            completed_at: header.completed_at,
            spec: header.spec.into(),
            sources,
            secret_refs,
        })
    }
}

/// Returns the revision of an encoded state of a rule, and the time of its completion. The rest may be damaged.
pub fn kept_revision(uid: &RuleUid, bytes: &[u8]) -> Option<KeptRevision> {
    let (header, _) = read_header(uid, bytes)?;
    Some(KeptRevision {
        revision: header.revision,
        completed_at: header.completed_at.map(whole_seconds),
    })
}

fn read_header<'a>(uid: &RuleUid, bytes: &'a [u8]) -> Option<(Header, impl BufRead + use<'a>)> {
    let decoder = zstd::stream::read::Decoder::new(bytes).ok()?;
    let mut lines = BufReader::new(decoder.take(PLAIN_LIMIT));
    let header: Header = read_line(&mut lines)?;
    (header.version == VERSION && header.rule == uid.as_str()).then_some((header, lines))
}

/// Each content once, with its number.
#[derive(Default)]
struct NumberedContents {
    numbers: BTreeMap<*const SourceContent, usize>,
    all: Vec<Arc<SourceContent>>,
}

impl NumberedContents {
    fn number(&mut self, content: &Arc<SourceContent>) -> usize {
        let next = self.all.len();
        *self.numbers.entry(Arc::as_ptr(content)).or_insert_with(|| {
            self.all.push(content.clone());
            next
        })
    }
}

/// Collects bytes up to a limit.
struct LimitedWriter {
    bytes: Vec<u8>,
    limit: usize,
}

impl Write for LimitedWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > self.limit {
            return Err(io::Error::other("too large"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write_line(out: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, value)?;
    out.write_all(b"\n")
}

fn read_line<T: DeserializeOwned>(lines: &mut impl BufRead) -> Option<T> {
    let mut line = Vec::new();
    lines.read_until(b'\n', &mut line).ok()?;
    serde_json::from_slice(&line).ok()
}

#[derive(Serialize, Deserialize)]
struct Header {
    version: u32,
    rule: String,
    revision: String,
    #[serde(default)]
    completed_at: Option<Timestamp>,
    spec: String,
    contents: usize,
    sources: usize,
    secret_refs: usize,
}

#[derive(Serialize, Deserialize)]
struct StoredContent {
    revision: [u8; 16],
    content: Option<Content>,
    denied: Option<Content>,
    controlled: bool,
}

impl StoredContent {
    fn read(self) -> SourceContent {
        let canonical = self.content.as_ref().map(Content::to_bytes);
        let content = self.content.unwrap_or_default();
        let mut read = SourceContent::of(
            Revision(self.revision),
            &content,
            canonical.unwrap_or_default(),
        );
        read.denied = self.denied.map(|denied| Payload::encode(denied.to_bytes()));
        read.controlled = self.controlled;
        read
    }
}

#[derive(Serialize, Deserialize)]
struct StoredObject {
    source: StoredSource,
    content: usize,
    bundle: Option<BundleParts<usize>>,
}

#[cfg(test)]
mod tests {
    use runnel_proto::model::{Kind, RevisionKey, Scope as KindScope, Terms};
    use serde_json::json;

    use super::super::{Rule, RulePlan, Scope, SourceState};
    use super::*;

    fn rule(spec: serde_json::Value) -> Rule {
        rule_of(spec, "configmaps")
    }

    fn rule_of(spec: serde_json::Value, kind: &str) -> Rule {
        let mut spec = spec;
        spec["sources"] = json!([{"resources": [kind], "names": ["*"]}]);
        spec["clusters"] = json!({"all": true});
        spec["rollout"] = json!({"onFailure": "Revert"});
        let object = json!({
            "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionRule",
            "metadata": {"name": "r", "namespace": "a", "uid": "r", "generation": 1}, "spec": spec,
        });
        let object: runnel_api::DistributionRule = serde_json::from_value(object).unwrap();
        Rule::namespaced(&object, "runnel-system").unwrap()
    }

    fn source(name: &str) -> SourceRef {
        SourceRef::new("configmaps", "a", name)
    }

    fn body(text: &str) -> SourceState {
        let fields = json!({"data": {"k": text}}).as_object().unwrap().clone();
        let content = Content {
            fields: fields.into_iter().collect(),
            ..Content::default()
        };
        let revision = Revision([text.as_bytes()[0]; 16]);
        SourceState::Read(Arc::new(SourceContent::new(
            revision,
            Payload::encode(content.to_bytes()),
        )))
    }

    fn selection(rule: &Rule) -> RulePlan {
        let mut plan = RulePlan::empty(rule);
        plan.set(&source("one"), Some(&body(&"x".repeat(5000))));
        plan.set(&source("two"), Some(&body("y")));
        plan
    }

    fn state(rule: &Rule) -> CompletedState {
        CompletedState::of(rule, &selection(rule), "t0", None)
            .ok()
            .unwrap()
    }

    /// Name, revision and content of a copy.
    type Copy = (String, [u8; 16], Vec<u8>);

    /// The plan of a state, with the name, revision and content of each copy.
    fn planned(state: &CompletedState, rule: &Rule) -> (RulePlan, Vec<Copy>) {
        let plan = state.plan(&state.rule(rule).unwrap(), &Scope::default());
        let intent = |(source, content): (&SourceRef, &Arc<SourceContent>)| {
            let plain = content.payload.decode().unwrap().to_bytes();
            (source.to_string(), content.revision.0, plain)
        };
        let intents = plan.intents.iter().map(intent).collect();
        (plan, intents)
    }

    #[test]
    fn stored_state_reads_back() {
        let former = rule(json!({"conflictPolicy": "Overwrite"}));
        let state = state(&former);
        let bytes = state.encode(&"r".into(), 1 << 20).unwrap();
        let read = CompletedState::decode(&"r".into(), &bytes).unwrap();
        // The rule is another one now.
        let now = rule(json!({"suspend": true}));
        let ((before, intents), (after, read_back)) = (planned(&state, &now), planned(&read, &now));
        assert!(before.has_equal_content(&after) && intents == read_back && intents.len() == 2);
        let rule = read.rule(&now).unwrap();
        let terms = Terms {
            suspend: true,
            ..Terms::clone(&former.terms)
        };
        assert_eq!(*rule.terms.to_shared(), terms);
    }

    #[test]
    fn bundle_reads_back_with_its_errors() {
        let bundle = SourceRef::new(runnel_api::BUNDLE_KIND, "a", "b");
        let namespace = Kind::new("", "v1", "Namespace", "namespaces", KindScope::Cluster);
        let kinds = Kind::supported().iter().cloned().chain([namespace]);
        let kinds = kinds.collect();
        let object = json!({"spec": {"manifests": [
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one"}, "data": {"k": "v"}},
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}},
            {"apiVersion": "unknown/v1", "kind": "Unknown", "metadata": {"name": "x"}},
        ]}});
        let key = RevisionKey::new(&[]);
        let content = crate::plan::read_bundle(&bundle, &object, &kinds, &key).unwrap();
        let rule = rule_of(json!({}), runnel_api::BUNDLE_KIND);
        let mut plan = RulePlan::empty(&rule);
        plan.set(&bundle, Some(&SourceState::Read(Arc::new(content))));
        let state = CompletedState::of(&rule, &plan, "t0", None).ok().unwrap();
        let bytes = state.encode(&"r".into(), 1 << 20).unwrap();
        let read = CompletedState::decode(&"r".into(), &bytes).unwrap();
        let (read, _) = planned(&read, &rule);
        assert!(read.has_equal_content(&plan) && read.render_errors.len() == 2);
        assert_eq!(read.intents.len(), 1);
    }

    #[test]
    fn anything_but_a_whole_state_of_the_rule_is_refused() {
        let rule = rule(json!({}));
        let bytes = state(&rule).encode(&"r".into(), 1 << 20).unwrap();
        assert!(CompletedState::decode(&"r".into(), &bytes).is_some());
        assert!(CompletedState::decode(&"other".into(), &bytes).is_none());
        for end in 0..bytes.len() {
            assert!(
                CompletedState::decode(&"r".into(), &bytes[..end]).is_none(),
                "{end}"
            );
        }
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            let read = CompletedState::decode(&"r".into(), &damaged);
            let is_same =
                |read: CompletedState| planned(&read, &rule).1 == planned(&state(&rule), &rule).1;
            assert!(read.is_none_or(is_same), "{at}");
        }
    }

    #[test]
    fn state_beyond_the_limit_is_not_encoded() {
        let state = state(&rule(json!({})));
        let size = state.encode(&"r".into(), 1 << 20).unwrap().len();
        assert!(
            state.encode(&"r".into(), size).is_some()
                && state.encode(&"r".into(), size - 1).is_none()
        );
    }

    #[test]
    fn incomplete_state_is_not_kept() {
        let rule = rule(json!({}));
        let of = |change: &dyn Fn(&mut RulePlan)| {
            let mut plan = selection(&rule);
            change(&mut plan);
            CompletedState::of(&rule, &plan, "t0", None).is_ok()
        };
        assert!(of(&|_| ()));
        assert!(!of(&|plan| drop(
            plan.set(&source("three"), Some(&SourceState::Unread))
        )));
        assert!(!of(&|plan| drop(
            plan.set(&source("one"), Some(&SourceState::Unreadable))
        )));
        assert!(!of(&|plan| plan.unknown =
            std::collections::BTreeSet::from([
                crate::plan::WatchScope::everywhere("secrets")
            ])));
    }
}
