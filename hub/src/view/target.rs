//! What a request is about, and the form in which its client accepts the answer.
use http::{HeaderMap, header};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::delivery::Scope;
use super::discovery::{GROUP_PATH, RESOURCES, Resource};
use super::error::ViewError;
use super::request::Query;
use super::table::{ViewObject, partial, table};

/// The resource and the objects of a request.
pub(super) struct Target {
    pub(super) resource: &'static Resource,
    /// Empty: all namespaces, or a resource without namespaces.
    pub(super) namespace: String,
    pub(super) name: Option<String>,
}

impl Target {
    /// Reads a path; `None` if it leads to no resource.
    pub(super) fn of(path: &str) -> Option<Self> {
        let parts: Vec<_> = path
            .strip_prefix(GROUP_PATH)?
            .trim_matches('/')
            .split('/')
            .map(|part| percent_encoding::percent_decode_str(part).decode_utf8())
            .collect::<Result<_, _>>()
            .ok()?;
        let parts: Vec<&str> = parts.iter().map(AsRef::as_ref).collect();
        let (namespace, plural, name) = match parts.as_slice() {
            ["namespaces", namespace, plural] => (*namespace, *plural, None),
            ["namespaces", namespace, plural, name] => (*namespace, *plural, Some(*name)),
            [plural] => ("", *plural, None),
            [plural, name] => ("", *plural, Some(*name)),
            _ => return None,
        };
        let resource = RESOURCES
            .iter()
            .find(|resource| resource.plural == plural)?;
        // A namespaced object has a namespace, and no other object has one.
        let fits = match (resource.namespaced, namespace.is_empty(), name) {
            (true, true, Some(_)) | (false, false, _) => false,
            (true, ..) | (false, true, _) => true,
        };
        fits.then(|| Self {
            resource,
            namespace: namespace.to_owned(),
            name: name.map(str::to_owned),
        })
    }

    /// Whether an object can be created here.
    pub(super) fn can_create(&self) -> bool {
        let is_placed = !self.resource.namespaced || !self.namespace.is_empty();
        self.name.is_none() && is_placed && self.resource.verbs().contains(&"create")
    }

    /// Returns the rules of the request.
    pub(super) fn scope(&self) -> Scope {
        if self.resource.namespaced {
            Scope::Namespace(self.namespace.clone())
        } else {
            Scope::Cluster
        }
    }
}

/// The form of objects that a client accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Object,
    Table,
    Metadata,
}

impl Form {
    /// Reads what a client accepts: the first form that this API has.
    ///
    /// # Errors
    /// [`ViewError::NotAcceptable`], if it has none of them.
    pub(super) fn of(headers: &HeaderMap) -> Result<Self, ViewError> {
        let accepted = headers.get_all(header::ACCEPT).iter();
        let accepted = accepted.filter_map(|value| value.to_str().ok());
        let mut accepted = accepted
            .flat_map(|value| value.split(','))
            .map(str::trim)
            .filter(|accepted| !accepted.is_empty())
            .peekable();
        if accepted.peek().is_none() {
            return Ok(Self::Object);
        }
        accepted.find_map(form).ok_or(ViewError::NotAcceptable)
    }

    /// Returns one object in this form.
    pub(super) fn one<O: ViewObject>(self, object: O, version: u64, query: &Query) -> Value {
        match self {
            Self::Object => object.object(),
            Self::Metadata => partial(&object),
            Self::Table => {
                let metadata = json!({"resourceVersion": version.to_string()});
                table(&object, &metadata, query.include_object, Timestamp::now())
            }
        }
    }
}

/// Returns the form of a media type with its parameters, if this API has it.
fn form(accepted: &str) -> Option<Form> {
    let mut parts = accepted.split(';').map(str::trim);
    if !matches!(parts.next()?, "application/json" | "application/*" | "*/*") {
        return None;
    }
    match parts.find_map(|part| part.strip_prefix("as=")) {
        None => Some(Form::Object),
        Some("Table") => Some(Form::Table),
        Some("PartialObjectMetadata" | "PartialObjectMetadataList") => Some(Form::Metadata),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_resource_namespace_and_object() {
        let target = |path: &str| {
            let target = Target::of(path)?;
            Some((
                target.resource.plural.clone(),
                target.namespace,
                target.name,
            ))
        };
        let of = |plural: &str, namespace: &str, name: Option<&str>| {
            Some((
                plural.to_owned(),
                namespace.to_owned(),
                name.map(str::to_owned),
            ))
        };
        let base = "/apis/view.runnel.dev/v1alpha1";
        assert_eq!(
            target(&format!("{base}/deliveries")),
            of("deliveries", "", None)
        );
        assert_eq!(
            target(&format!("{base}/namespaces/shop/deliveries/r%3Aeu-1")),
            of("deliveries", "shop", Some("r:eu-1"))
        );
        assert_eq!(
            target(&format!("{base}/clusterdeliveries/r:eu-1")),
            of("clusterdeliveries", "", Some("r:eu-1"))
        );
        for wrong in [
            "/deliveries/r:eu-1",
            "/namespaces/shop/clusterdeliveries",
            "/others",
            "/namespaces/shop/deliveries/r/status",
        ] {
            assert_eq!(target(&format!("{base}{wrong}")), None, "{wrong}");
        }
    }

    #[test]
    fn form_is_the_first_that_the_client_accepts() {
        let of = |accept: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, header::HeaderValue::from_static(accept));
            Form::of(&headers).ok()
        };
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
        let metadata = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
        let protobuf = "application/vnd.kubernetes.protobuf";
        for (accept, form) in [
            (format!("{table},application/json"), Some(Form::Table)),
            (format!("application/json, {table}"), Some(Form::Object)),
            (
                format!("{protobuf};as=PartialObjectMetadataList,{metadata}"),
                Some(Form::Metadata),
            ),
            (format!("{protobuf}, */*"), Some(Form::Object)),
            (
                "application/json;as=Other,application/json;stream=watch".to_owned(),
                Some(Form::Object),
            ),
            (String::new(), Some(Form::Object)),
            (protobuf.to_owned(), None),
            ("application/json;as=Other".to_owned(), None),
        ] {
            assert_eq!(of(accept.clone().leak()), form, "{accept}");
        }
        let mut headers = HeaderMap::new();
        for accept in [protobuf, "application/json"] {
            headers.append(header::ACCEPT, header::HeaderValue::from_static(accept));
        }
        assert_eq!(Form::of(&headers).ok(), Some(Form::Object));
        assert_eq!(Form::of(&HeaderMap::new()).ok(), Some(Form::Object));
    }
}
