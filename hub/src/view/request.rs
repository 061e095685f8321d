//! Reads a request to the view API: its path, selectors and page.
use std::collections::BTreeMap;
use std::time::Duration;

use data_encoding::BASE64URL_NOPAD;
use runnel_api::LabelSelector;
use runnel_proto::model::{Selector, SourceRef};
use serde::{Deserialize, Serialize};

use super::error::ViewError;

/// The limit of objects on one page. A client that asks for more gets a `continue` token.
pub(super) const PAGE_LIMIT: usize = 5000;
/// The size limit of a selector in bytes. It is compared with each object.
const SELECTOR_LIMIT: usize = 8 * 1024;
/// The longest time for which a watch lasts.
const WATCH_LIMIT: Duration = Duration::from_secs(30 * 60);

/// The position of an object in a list. Lists are in this order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Position {
    pub(super) namespace: String,
    pub(super) rule: String,
    pub(super) cluster: String,
    /// The resource, namespace and name of a copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) copy: Option<[String; 3]>,
}

/// One requirement of a field selector.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FieldRequirement {
    field: Field,
    /// Whether the field must equal the value, or must not.
    equal: bool,
    value: String,
}

/// A field of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    Name,
    Namespace,
    Rule,
    Cluster,
    State,
    Reason,
    TargetKind,
    TargetNamespace,
    TargetName,
}

/// The fields by which the objects of a resource can be selected, by their names in a selector.
pub(super) type FieldNames = &'static [(&'static str, Field)];

/// The fields of deliveries.
pub(super) const DELIVERY_FIELDS: FieldNames = &[
    ("metadata.name", Field::Name),
    ("metadata.namespace", Field::Namespace),
    ("rule", Field::Rule),
    ("spec.rule", Field::Rule),
    ("cluster", Field::Cluster),
    ("spec.cluster", Field::Cluster),
    ("state", Field::State),
    ("status.state", Field::State),
    ("reason", Field::Reason),
    ("status.reason", Field::Reason),
];
/// The fields of copies.
pub(super) const COPY_FIELDS: FieldNames = &[
    ("metadata.name", Field::Name),
    ("metadata.namespace", Field::Namespace),
    ("rule", Field::Rule),
    ("spec.rule", Field::Rule),
    ("cluster", Field::Cluster),
    ("spec.cluster", Field::Cluster),
    ("kind", Field::TargetKind),
    ("spec.target.kind", Field::TargetKind),
    ("namespace", Field::TargetNamespace),
    ("spec.target.namespace", Field::TargetNamespace),
    ("name", Field::TargetName),
    ("spec.target.name", Field::TargetName),
    ("state", Field::State),
    ("status.state", Field::State),
    ("reason", Field::Reason),
    ("status.reason", Field::Reason),
];
/// The fields of objects without others.
pub(super) const METADATA_FIELDS: FieldNames = &[
    ("metadata.name", Field::Name),
    ("metadata.namespace", Field::Namespace),
];

/// The values of an object by which clients can select.
#[derive(Default)]
pub(super) struct Fields<'a> {
    pub(super) name: &'a str,
    pub(super) namespace: &'a str,
    pub(super) rule: &'a str,
    pub(super) cluster: &'a str,
    pub(super) state: &'a str,
    pub(super) reason: &'a str,
    pub(super) target_kind: &'a str,
    pub(super) target_namespace: &'a str,
    pub(super) target_name: &'a str,
}

/// Returns the name of a delivery. Names of rules and clusters have no colon, so it is unambiguous.
pub(super) fn object_name(rule: &str, cluster: &str) -> String {
    format!("{rule}:{cluster}")
}

/// What a request selects.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Selection {
    labels: Option<Selector>,
    fields: Vec<FieldRequirement>,
}

impl Selection {
    /// The only value that a field may have, if the request names one.
    fn only(&self, field: Field) -> Option<&str> {
        self.fields
            .iter()
            .find(|requirement| requirement.field == field && requirement.equal)
            .map(|requirement| requirement.value.as_str())
    }

    /// The only name that can match; `None` if any can.
    pub(super) fn name(&self) -> Option<&str> {
        self.only(Field::Name)
    }

    /// The only rule that can match; `None` if any can.
    pub(super) fn rule(&self) -> Option<&str> {
        self.only(Field::Rule)
            .or_else(|| Some(self.only(Field::Name)?.split_once(':')?.0))
    }

    /// The only cluster that can match; `None` if any can.
    pub(super) fn cluster(&self) -> Option<&str> {
        self.only(Field::Cluster)
            .or_else(|| self.only(Field::Name)?.split(':').nth(1))
    }

    /// Whether objects with these labels can match.
    pub(super) fn matches_labels(&self, labels: &BTreeMap<String, String>) -> bool {
        self.labels
            .as_ref()
            .is_none_or(|selector| selector.matches(labels))
    }

    /// Whether an object with these fields matches.
    pub(super) fn matches(&self, fields: &Fields<'_>) -> bool {
        self.fields.iter().all(|requirement| {
            let value = requirement.value.as_str();
            let equals = match requirement.field {
                Field::Name => fields.name == value,
                Field::Namespace => fields.namespace == value,
                Field::Rule => fields.rule == value,
                Field::Cluster => fields.cluster == value,
                Field::State => fields.state == value,
                Field::Reason => fields.reason == value,
                Field::TargetKind => fields.target_kind == value,
                Field::TargetNamespace => fields.target_namespace == value,
                Field::TargetName => fields.target_name == value,
            };
            equals == requirement.equal
        })
    }

    /// Whether an object can begin or cease to match while it exists.
    pub(super) fn can_change(&self) -> bool {
        let changes = |requirement: &FieldRequirement| {
            matches!(requirement.field, Field::State | Field::Reason)
        };
        self.labels.is_some() || self.fields.iter().any(changes)
    }

    /// Selects one object by its name.
    pub(super) fn of_name(name: &str) -> Self {
        Self {
            labels: None,
            fields: vec![FieldRequirement {
                field: Field::Name,
                equal: true,
                value: name.to_owned(),
            }],
        }
    }
}

/// The query parameters of a list or watch.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Query {
    pub(super) selection: Selection,
    pub(super) limit: usize,
    pub(super) after: Option<Position>,
    /// The version of the first page of the list; `None`: this is the first page.
    pub(super) first: Option<u64>,
    pub(super) watch: bool,
    /// The version after which a watch begins; `None`: it begins with all objects.
    pub(super) version: Option<u64>,
    pub(super) timeout: Duration,
    pub(super) bookmarks: bool,
    /// Whether rows of a table have their objects; by default only their metadata.
    pub(super) include_object: IncludeObject,
}

/// What a row of a table has of its object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum IncludeObject {
    None,
    #[default]
    Metadata,
    Object,
}

/// The content of a `continue` token.
#[derive(Serialize, Deserialize)]
struct ContinueToken {
    after: Position,
    /// The version of the first page.
    #[serde(default)]
    version: u64,
}

/// Returns the token for the page after an object, in a list whose first page has this version.
pub(super) fn token(after: &Position, version: u64) -> String {
    let token = ContinueToken {
        after: after.clone(),
        version,
    };
    BASE64URL_NOPAD.encode(&serde_json::to_vec(&token).expect("a token has only text"))
}

fn position(token: &str) -> Option<(Position, u64)> {
    let bytes = BASE64URL_NOPAD.decode(token.as_bytes()).ok()?;
    let token: ContinueToken = serde_json::from_slice(&bytes).ok()?;
    if let Some([resource, namespace, name]) = &token.after.copy {
        SourceRef::checked(resource, namespace, name)?;
    }
    Some((token.after, token.version))
}

/// Reads the query part of a request for a resource with these fields.
///
/// # Errors
/// [`ViewError::BadRequest`], which names the parameter.
pub(super) fn query(text: &str, names: FieldNames) -> Result<Query, ViewError> {
    let mut query = Query {
        limit: PAGE_LIMIT,
        timeout: WATCH_LIMIT,
        ..Query::default()
    };
    for (name, value) in form_urlencoded::parse(text.as_bytes()) {
        let wrong =
            |why: &str| ViewError::BadRequest(format!("the parameter {name}={value} {why}"));
        let number = || value.parse::<u64>().map_err(|_| wrong("is no number"));
        if name.ends_with("Selector") && value.len() > SELECTOR_LIMIT {
            return Err(ViewError::BadRequest(format!(
                "the parameter {name} has more than {SELECTOR_LIMIT} bytes"
            )));
        }
        match name.as_ref() {
            "labelSelector" => {
                let selector =
                    LabelSelector::parse(&value).map_err(|error| wrong(&error.to_string()))?;
                query.selection.labels = selector.as_ref().map(Selector::from);
            }
            "fieldSelector" => query.selection.fields = fields(&value, names)?,
            "limit" => {
                let limit = usize::try_from(number()?).unwrap_or(PAGE_LIMIT);
                if limit > 0 {
                    query.limit = limit.min(PAGE_LIMIT);
                }
            }
            "continue" if !value.is_empty() => {
                let token = position(&value);
                let (after, first) = token.ok_or_else(|| wrong("is no token of this API"))?;
                (query.after, query.first) = (Some(after), Some(first));
            }
            "watch" => query.watch = is_true(&value),
            "resourceVersion" if !value.is_empty() && value != "0" => {
                query.version = Some(number()?);
            }
            // As for the API server, zero is no limit of the client.
            "timeoutSeconds" => match number()? {
                0 => {}
                seconds => query.timeout = Duration::from_secs(seconds).min(WATCH_LIMIT),
            },
            "allowWatchBookmarks" => query.bookmarks = is_true(&value),
            // There are no former states. A client that asks for one lists again.
            "resourceVersionMatch" if value == "Exact" => return Err(ViewError::Expired),
            // A client that asks for it lists first if this is refused.
            "sendInitialEvents" if is_true(&value) => {
                return Err(ViewError::Invalid(
                    "sendInitialEvents is not supported: list, then watch".to_owned(),
                ));
            }
            "includeObject" => {
                query.include_object = match value.as_ref() {
                    "None" => IncludeObject::None,
                    "Object" => IncludeObject::Object,
                    _ => IncludeObject::Metadata,
                };
            }
            _ => {}
        }
    }
    Ok(query)
}

/// Reads a boolean parameter as the API server does.
fn is_true(value: &str) -> bool {
    !(value == "0" || value.eq_ignore_ascii_case("false"))
}

fn fields(text: &str, names: FieldNames) -> Result<Vec<FieldRequirement>, ViewError> {
    let parts = text
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty());
    parts
        .map(|part| {
            let (name, equal, value) = if let Some((name, value)) = part.split_once("!=") {
                (name, false, value)
            } else if let Some((name, value)) =
                part.split_once("==").or_else(|| part.split_once('='))
            {
                (name, true, value)
            } else {
                return Err(ViewError::BadRequest(format!(
                    "the field selector has a part {part:?} that is no requirement: write FIELD=VALUE"
                )));
            };
            let field = names.iter().find(|(known, _)| *known == name.trim());
            let Some((_, field)) = field else {
                let short = names.iter().map(|(known, _)| *known);
                let short: Vec<_> = short
                    .filter(|known| !known.starts_with("spec.") && !known.starts_with("status."))
                    .collect();
                return Err(ViewError::BadRequest(format!(
                    "the field {:?} cannot be selected: use {}",
                    name.trim(),
                    short.join(", ")
                )));
            };
            Ok(FieldRequirement {
                field: *field,
                equal,
                value: value.trim().to_owned(),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Result<Query, ViewError> {
        query(text, DELIVERY_FIELDS)
    }

    fn fields_of<'a>(cluster: &'a str, state: &'a str) -> Fields<'a> {
        Fields {
            name: "settings.v1:eu-1",
            namespace: "shop",
            rule: "settings.v1",
            cluster,
            state,
            reason: "AllApplied",
            ..Fields::default()
        }
    }

    #[test]
    fn token_with_an_impossible_copy_is_refused() {
        let with = |copy: [&str; 3]| {
            let after = Position {
                namespace: "shop".to_owned(),
                rule: "settings".to_owned(),
                cluster: "eu-1".to_owned(),
                copy: Some(copy.map(str::to_owned)),
            };
            read(&format!("continue={}", token(&after, 7)))
        };
        assert!(with(["configmaps", "web", "settings"]).is_ok());
        assert!(with(["namespaces", "", "web"]).is_ok());
        for wrong in [
            ["ConfigMap", "web", "settings"],
            ["configmaps", "-", "settings"],
            ["configmaps", "web", "a/b"],
        ] {
            assert!(
                matches!(with(wrong), Err(ViewError::BadRequest(_))),
                "{wrong:?}"
            );
        }
    }

    #[test]
    fn field_selectors_select_by_equality() {
        let query = read("fieldSelector=cluster%3Deu-1,state!%3DReady&limit=7").unwrap();
        assert_eq!((query.selection.cluster(), query.limit), (Some("eu-1"), 7));
        assert!(query.selection.matches(&fields_of("eu-1", "Failed")));
        assert!(!query.selection.matches(&fields_of("eu-1", "Ready")));
        assert!(!query.selection.matches(&fields_of("eu-2", "Failed")));
        assert!(query.selection.can_change());
    }

    #[test]
    fn name_of_a_delivery_names_rule_and_cluster() {
        let selection = Selection::of_name(&object_name("settings.v1", "eu-1"));
        assert_eq!(
            (selection.rule(), selection.cluster()),
            (Some("settings.v1"), Some("eu-1"))
        );
        assert!(selection.matches(&fields_of("eu-1", "Ready")));
        assert!(!selection.can_change());
    }

    #[test]
    fn wrong_parameters_are_refused_by_name() {
        for (text, named) in [
            ("limit=many", "limit"),
            ("continue=%21", "continue"),
            ("fieldSelector=age%3D1", "age"),
            ("fieldSelector=cluster", "cluster"),
            ("labelSelector=a+has+(b)", "labelSelector"),
            (
                &*format!("labelSelector=a+in+({})", "b,".repeat(SELECTOR_LIMIT)),
                "labelSelector",
            ),
            (
                &*format!("fieldSelector={}", "rule!=a,".repeat(SELECTOR_LIMIT)),
                "fieldSelector",
            ),
        ] {
            let Err(ViewError::BadRequest(message)) = read(text) else {
                unreachable!("{text} is accepted");
            };
            assert!(message.contains(named), "{message}");
        }
        assert!(matches!(
            read("watch=true&sendInitialEvents=true"),
            Err(ViewError::Invalid(_))
        ));
        let exact = read("resourceVersion=7&resourceVersionMatch=Exact");
        assert!(matches!(exact, Err(ViewError::Expired)));
    }

    #[test]
    fn watch_without_a_limit_of_its_client_ends_at_the_own_limit() {
        for (text, timeout) in [
            ("watch", WATCH_LIMIT),
            ("watch=1&timeoutSeconds=0", WATCH_LIMIT),
            ("watch=True&timeoutSeconds=86400", WATCH_LIMIT),
            ("watch=t&timeoutSeconds=7", Duration::from_secs(7)),
        ] {
            let query = read(text).unwrap();
            assert_eq!((query.watch, query.timeout), (true, timeout), "{text}");
        }
        for text in ["", "watch=false", "watch=False", "watch=0"] {
            assert!(!read(text).unwrap().watch, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_query_is_read_or_refused(text in ".{0,200}") {
            let _ = query(&text, COPY_FIELDS);
        }

        #[test]
        fn token_names_its_position(namespace in "[a-z-]{0,9}", rule in "[a-z.]{1,9}", cluster in "[a-z]{1,9}") {
            let after = Position { namespace, rule, copy: Some([cluster.clone(), "web".to_owned(), cluster.clone()]), cluster };
            prop_assert_eq!(position(&token(&after, 7)), Some((after, 7)));
        }
    }
}
