//! The name of a source as a state of a completed rollout stores it.
use runnel_proto::model::SourceRef;

/// Kind, namespace and name of a source.
pub(super) type StoredSource = (String, String, String);

/// Returns the stored name of a source.
pub(super) fn named(source: &SourceRef) -> StoredSource {
    let text = |part: &str| part.to_owned();
    (
        text(&source.resource),
        text(&source.namespace),
        text(&source.name),
    )
}

/// Returns the source with a stored name.
pub(super) fn source_of((resource, namespace, name): &StoredSource) -> SourceRef {
    SourceRef::new(resource, namespace, name)
}
