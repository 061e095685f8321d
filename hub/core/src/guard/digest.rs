//! Digests by which people approve a set.
use std::collections::BTreeSet;

use jiff::Timestamp;
use ring::digest::{Context, SHA256};
use runnel_proto::model::SourceRef;

use super::Item;

/// Names exactly this set of one rule, blocked since then because of this cause.
pub(super) fn digest_of(
    uid: &str,
    cause: &str,
    since: Timestamp,
    blocked: &BTreeSet<Item>,
) -> String {
    let mut text = Text::new();
    text.line("blocked", uid);
    text.line("cause", cause);
    text.line("since", &since.as_second().to_string());
    for item in blocked {
        match item {
            Item::Rule => text.line("rule", ""),
            Item::Cluster(cluster) => text.line("cluster", cluster.as_str()),
            Item::Kind(cluster, kind) => {
                text.line("cluster of a kind", cluster.as_str());
                text.line("kind", kind);
            }
            Item::Copy(cluster, intent) => {
                text.line("cluster of a copy", cluster.as_str());
                text.intent("copy", intent);
            }
            Item::Name(intent) => text.intent("name", intent),
            Item::Source(source) => text.line("source", &source.to_string()),
            Item::Prune(cluster, digest) => {
                text.line("cluster of namespaces", cluster.as_str());
                text.line("copies", &data_encoding::HEXLOWER.encode(&digest.0));
            }
        }
    }
    text.end()
}

/// Returns the digest of the sets of several rules with one cause.
pub fn digest_of_all<'a>(cause: &str, digests: impl Iterator<Item = &'a str>) -> String {
    let mut text = Text::new();
    text.line("cause", cause);
    digests.for_each(|digest| text.line("rule", digest));
    text.end()
}

struct Text(Context);

impl Text {
    fn new() -> Self {
        Self(Context::new(&SHA256))
    }

    fn line(&mut self, kind: &str, name: &str) {
        for part in [kind, name] {
            self.0.update(part.as_bytes());
            self.0.update(b"\0");
        }
    }

    fn intent(&mut self, kind: &str, intent: &SourceRef) {
        self.line(kind, &intent.plain().to_string());
        self.line("as", intent.copy_name());
    }

    /// Short enough to be typed, long enough that no two sets share it.
    fn end(self) -> String {
        data_encoding::HEXLOWER.encode(&self.0.finish().as_ref()[..10])
    }
}
