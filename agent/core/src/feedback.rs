//! Fields of copies that rules have returned: the paths that are read, and their values in a live object.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube_core::DynamicObject;
use runnel_proto::model::{
    FEEDBACK_VALUE_LIMIT, FeedbackField, FeedbackValue, JsonPath, Kind, SourceRef, plain_text,
};
use serde_json::Value;

/// The most paths that are read in objects of one kind. Those of further rules have no values.
const PATHS_LIMIT: usize = 64;

/// The values of paths in a live object, as far as it has them.
pub type PathValues = BTreeMap<JsonPath, Box<str>>;

/// The paths that are read in live objects, by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeedbackPaths(BTreeMap<Box<str>, BTreeSet<JsonPath>>);

impl FeedbackPaths {
    /// Returns the paths of the fields of these owners, such as namespaces of the hub. Each owner gets one path after the other in
    /// turn, so that none takes the places of the others.
    pub fn of<'a, O: Ord>(fields: impl IntoIterator<Item = (O, &'a FeedbackField)>) -> Self {
        let mut owners: BTreeMap<(&str, O), BTreeSet<&JsonPath>> = BTreeMap::new();
        for (owner, field) in fields {
            let of_owner = owners.entry((&field.resource, owner)).or_default();
            of_owner.insert(&field.path);
        }
        let ranked = owners.iter().flat_map(|((resource, _), paths)| {
            let paths = paths.iter().enumerate();
            paths.map(move |(turn, path)| (turn, *resource, *path))
        });
        let ranked: BTreeSet<_> = ranked.collect();
        let mut paths = Self::default();
        for (_, resource, path) in ranked {
            let of_kind = paths.0.entry(resource.into()).or_default();
            if of_kind.len() < PATHS_LIMIT {
                of_kind.insert(path.clone());
            }
        }
        paths
    }

    /// Returns the kinds whose paths differ.
    pub fn changed(&self, other: &Self) -> BTreeSet<Box<str>> {
        let differs = |resource: &str| self.0.get(resource) != other.0.get(resource);
        let all = self.0.keys().chain(other.0.keys());
        all.filter(|resource| differs(resource)).cloned().collect()
    }

    /// Reads the values of a live object. Returns `None` without any. Nothing is read of a sensitive kind.
    pub fn read(&self, kind: &Kind, object: &DynamicObject) -> Option<Arc<PathValues>> {
        let paths = self.0.get(&*kind.resource)?;
        let values: PathValues = paths
            .iter()
            .filter(|_| !kind.content.sensitive)
            .filter_map(|path| Some((path.clone(), text(path.find(&object.data)?)?)))
            .collect();
        (!values.is_empty()).then(|| Arc::new(values))
    }
}

/// Returns a value as one bounded line; `None` for null.
fn text(value: &Value) -> Option<Box<str>> {
    let text = match value {
        Value::Null => return None,
        Value::String(text) => plain_text(text, FEEDBACK_VALUE_LIMIT),
        other => plain_text(&other.to_string(), FEEDBACK_VALUE_LIMIT),
    };
    Some(text.into())
}

/// Returns the values of a copy's live object under the names of its rule.
pub fn named(
    fields: &[FeedbackField],
    copy: &SourceRef,
    values: Option<&PathValues>,
) -> Vec<FeedbackValue> {
    let Some(values) = values else {
        return vec![];
    };
    let of_kind = fields
        .iter()
        .filter(|field| *field.resource == *copy.resource);
    of_kind
        .filter_map(|field| {
            Some(FeedbackValue {
                name: field.name.clone(),
                value: values.get(&field.path)?.clone(),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use runnel_proto::model::Scope;
    use serde_json::json;

    use super::*;

    fn field(resource: &str, path: &str) -> FeedbackField {
        FeedbackField {
            resource: resource.into(),
            name: "name".into(),
            path: JsonPath::parse(path).unwrap(),
        }
    }

    fn read(paths: &FeedbackPaths, kind: &Kind, object: Value) -> Vec<(String, String)> {
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        let values = paths.read(kind, &object);
        let values = values.iter().flat_map(|values| values.iter());
        values
            .map(|(path, value)| (path.to_string(), value.to_string()))
            .collect()
    }

    #[test]
    fn values_are_bounded_lines_of_kinds_that_are_not_sensitive() {
        let kind = |plural| Kind::new("", "v1", "Any", plural, Scope::Namespaced);
        let fields = [
            field("widgets", ".status.text"),
            field("widgets", ".status.size"),
            field("widgets", ".status.list"),
            field("widgets", ".status.absent"),
            field("widgets", ".status.nothing"),
            field("secrets", ".status.text"),
        ];
        let paths = FeedbackPaths::of(fields.iter().map(|field| ("team", field)));
        let status = json!({"text": format!("a\n{}", "b".repeat(200)), "size": 3, "list": [1], "nothing": null});
        let object =
            json!({"apiVersion": "v1", "kind": "Any", "metadata": {"name": "x"}, "status": status});
        let values = read(&paths, &kind("widgets"), object.clone());
        let [list, size, text] = values.as_slice() else {
            panic!("{values:?}")
        };
        assert_eq!((list.1.as_str(), size.1.as_str()), ("[1]", "3"));
        assert!(text.1.len() == FEEDBACK_VALUE_LIMIT && !text.1.contains('\n'));
        assert!(read(&paths, &kind("secrets"), object.clone()).is_empty());
        assert!(read(&paths, &kind("gadgets"), object).is_empty());
    }

    #[test]
    fn paths_of_one_kind_are_bounded() {
        let fields: Vec<_> = (0..100)
            .map(|number| field("widgets", &format!(".status.f{number}")))
            .collect();
        let of = |fields: &[FeedbackField]| {
            FeedbackPaths::of(fields.iter().map(|field| ("team", field)))
        };
        let paths = of(&fields);
        assert_eq!(paths.0["widgets"].len(), PATHS_LIMIT);
        let fewer = of(&fields[..1]);
        assert_eq!(paths.changed(&fewer), BTreeSet::from(["widgets".into()]));
        assert!(paths.changed(&paths).is_empty());
    }

    #[test]
    fn paths_of_one_owner_leave_room_for_those_of_others() {
        let many: Vec<_> = (0..100)
            .map(|number| field("widgets", &format!(".status.f{number:03}")))
            .collect();
        let few = [field("widgets", ".status.x"), field("widgets", ".status.y")];
        let greedy = many.iter().map(|field| ("greedy", field));
        let paths = FeedbackPaths::of(greedy.chain(few.iter().map(|field| ("modest", field))));
        assert_eq!(paths.0["widgets"].len(), PATHS_LIMIT);
        let has = |field: &FeedbackField| paths.0["widgets"].contains(&field.path);
        assert!(few.iter().all(has) && many[..PATHS_LIMIT - 2].iter().all(has));
    }
}
