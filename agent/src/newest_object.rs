//! The object of the newest event of the watches. A copy that has drifted is mostly corrected at once, and need not be read
//! again to name what is corrected.
use std::sync::Arc;

use kube::core::DynamicObject;
use parking_lot::Mutex;
use runnel_agent_core::decide::ExpectedObject;
use runnel_proto::model::{Kind, SourceRef};
use serde_json::Value;

/// The most JSON values that an object may have to be kept.
const VALUES: usize = 2_000;

/// The newest object, with the kind in its version. Clones share it.
#[derive(Clone, Default)]
pub struct NewestObject(Arc<Mutex<Option<(Kind, DynamicObject)>>>);

impl NewestObject {
    /// Keeps an object instead of the former one, if it is small.
    pub fn set(&self, kind: Kind, object: DynamicObject) {
        let mut left = VALUES;
        *self.0.lock() = has_at_most(&mut left, &object.data).then_some((kind, object));
    }

    /// Takes the object, if it is this one in this version of it and of its kind.
    pub fn take(
        &self,
        kind: &Kind,
        copy: &SourceRef,
        target: &ExpectedObject,
    ) -> Option<DynamicObject> {
        let is_target = |(of, object): &mut (Kind, DynamicObject)| {
            let metadata = &object.metadata;
            of == kind
                && metadata.name.as_deref() == Some(&*copy.name)
                && metadata.namespace.as_deref() == copy.optional_namespace()
                && metadata.uid.as_deref() == Some(&*target.uid)
                && metadata.resource_version.as_deref() == Some(&*target.version)
        };
        self.0.lock().take_if(is_target).map(|(_, object)| object)
    }
}

/// Whether a value has at most this many values in it. Stops counting where it has not.
fn has_at_most(left: &mut usize, value: &Value) -> bool {
    let Some(rest) = left.checked_sub(1) else {
        return false;
    };
    *left = rest;
    match value {
        Value::Array(items) => items.iter().all(|item| has_at_most(left, item)),
        Value::Object(fields) => fields.values().all(|field| has_at_most(left, field)),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(version: &str, data: Value) -> DynamicObject {
        let metadata =
            json!({"namespace": "shop", "name": "a", "uid": "u", "resourceVersion": version});
        let mut object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata});
        object["data"] = data;
        serde_json::from_value(object).unwrap()
    }

    fn target(version: &str) -> ExpectedObject {
        ExpectedObject {
            uid: "u".into(),
            version: version.into(),
            is_shared: false,
        }
    }

    #[test]
    fn object_is_taken_once_and_only_in_the_version_that_was_judged() {
        let (newest, copy) = (
            NewestObject::default(),
            SourceRef::new("configmaps", "shop", "a"),
        );
        let kind = Kind::by_resource("configmaps").unwrap();
        newest.set(kind.clone(), object("7", json!({"k": "v"})));
        assert!(newest.take(kind, &copy, &target("6")).is_none());
        let secret = Kind::by_resource("secrets").unwrap();
        assert!(newest.take(secret, &copy, &target("7")).is_none());
        let other = SourceRef::new("configmaps", "shop", "b");
        assert!(newest.take(kind, &other, &target("7")).is_none());
        let taken = newest.take(kind, &copy, &target("7")).unwrap();
        assert_eq!(taken.data["data"]["k"], "v");
        assert!(newest.take(kind, &copy, &target("7")).is_none());
    }

    #[test]
    fn large_object_is_not_kept() {
        let (newest, copy) = (
            NewestObject::default(),
            SourceRef::new("configmaps", "shop", "a"),
        );
        let kind = Kind::by_resource("configmaps").unwrap();
        newest.set(
            kind.clone(),
            object("7", vec![json!({"a": 0}); VALUES].into()),
        );
        assert!(newest.take(kind, &copy, &target("7")).is_none());
    }
}
