//! Digests by which people and later processes name a set.
use std::collections::BTreeSet;

use ring::digest::{Context, SHA256};
use runnel_proto::model::{ClusterName, SourceRef};

use super::Item;
use super::named::{Matter, Waiting};

/// Names exactly this set of one rule; `previous` is the digest that was released before.
pub fn digest_of(uid: &str, previous: &str, held: &BTreeSet<Item>) -> String {
    let mut text = Text::new();
    text.line("held", uid);
    text.line("after", previous);
    for item in held {
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
        }
    }
    text.end()
}

/// Names exactly the objects that a rule is to overwrite, or to remove in namespaces given up; `previous` is the digest
/// that was released before.
pub fn named_digest(matter: Matter, uid: &str, previous: &str, held: &Waiting) -> String {
    let mut text = Text::new();
    let what = match matter {
        Matter::Takeovers => "takeovers",
        Matter::GivenUp => "given up",
    };
    text.line(what, uid);
    text.line("after", previous);
    for (cluster, asked) in held {
        text.line("cluster", cluster.as_str());
        text.line("objects", &data_encoding::HEXLOWER.encode(&asked.digest.0));
        text.line("number", &asked.objects.to_string());
    }
    text.end()
}

/// Names what a rule wants: in each cluster the kinds that are not granted, and what is sent, where `sent` says it of one
/// cluster or of all.
pub fn wanted_digest<'a, W: Iterator<Item = &'a SourceRef>>(
    uid: &str,
    deleting: bool,
    clusters: impl Iterator<Item = (&'a ClusterName, Vec<&'a str>)>,
    sent: impl Iterator<Item = (Option<&'a ClusterName>, W)>,
) -> String {
    let mut text = Text::new();
    text.line("wanted", uid);
    text.line("deleting", if deleting { "yes" } else { "no" });
    for (cluster, ungranted) in clusters {
        text.line("cluster", cluster.as_str());
        ungranted.into_iter().for_each(|kind| text.line("without", kind));
    }
    for (cluster, wanted) in sent {
        text.line("sent", cluster.map_or("", |cluster| cluster.as_str()));
        wanted.for_each(|intent| text.intent("intent", intent));
    }
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
