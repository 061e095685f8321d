//! The front proxy of the API server: its certificate, and the user that it names.
use std::collections::BTreeMap;

use anyhow::Context;
use http::{HeaderMap, HeaderValue};
use k8s_openapi::api::authentication::v1::UserInfo;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use runnel_transport::identity::ServingPair;
use runnel_transport::tls::{FrontProxyTls, TlsError};

use super::error::ViewError;
use crate::call::with_timeout;

/// The ConfigMap in which the API server publishes how its front proxy authenticates.
const CONFIG_MAP: &str = "extension-apiserver-authentication";

/// How the front proxy authenticates, and in which headers it names the user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FrontProxy {
    cas: String,
    names: Vec<String>,
    user: Vec<String>,
    uid: Vec<String>,
    group: Vec<String>,
    extra: Vec<String>,
}

impl FrontProxy {
    /// Reads the ConfigMap of the API server.
    ///
    /// # Errors
    /// When the API server refuses the request or does not answer, or the ConfigMap is damaged.
    pub(super) async fn read(client: &Client) -> anyhow::Result<Self> {
        let api = Api::<ConfigMap>::namespaced(client.clone(), "kube-system");
        let call = with_timeout(
            format!("read ConfigMap kube-system/{CONFIG_MAP}"),
            api.get(CONFIG_MAP),
        );
        Self::of(&call.await?.data.unwrap_or_default())
    }

    fn of(data: &BTreeMap<String, String>) -> anyhow::Result<Self> {
        // A list that cannot be read is no empty one: without names each certificate is accepted.
        let list = |key: &str| -> anyhow::Result<Vec<String>> {
            let text = data.get(key).map_or("[]", String::as_str);
            serde_json::from_str(text).with_context(|| {
                format!("{key} in the ConfigMap kube-system/{CONFIG_MAP} is no JSON list of texts")
            })
        };
        Ok(Self {
            cas: data
                .get("requestheader-client-ca-file")
                .cloned()
                .unwrap_or_default(),
            names: list("requestheader-allowed-names")?,
            user: list("requestheader-username-headers")?,
            uid: list("requestheader-uid-headers")?,
            group: list("requestheader-group-headers")?,
            extra: list("requestheader-extra-headers-prefix")?,
        })
    }

    /// Whether the API server has a front proxy at all.
    pub(super) fn is_known(&self) -> bool {
        !self.cas.is_empty()
    }

    /// Returns the TLS settings with this serving certificate.
    ///
    /// # Errors
    /// [`TlsError`], when the CA is unusable.
    pub(super) fn tls(&self, serving: ServingPair) -> Result<FrontProxyTls, TlsError> {
        FrontProxyTls::new(&self.cas, self.names.clone(), serving)
    }

    /// Returns the user that the headers name.
    ///
    /// # Errors
    /// [`ViewError::Unauthenticated`], when they name none, and [`ViewError::BadRequest`], when a
    /// header of the user is no text: who has another name or fewer groups is another user.
    pub(super) fn user(&self, headers: &HeaderMap) -> Result<UserInfo, ViewError> {
        let values = |name: &String| -> Result<Vec<String>, ViewError> {
            let values = headers.get_all(name.to_lowercase().as_str()).iter();
            values.map(|value| text(name, value)).collect()
        };
        let all = |names: &[String]| -> Result<Vec<String>, ViewError> {
            let values: Vec<_> = names.iter().map(values).collect::<Result<_, _>>()?;
            Ok(values.concat())
        };
        let first = |names: &[String]| -> Result<Option<String>, ViewError> {
            Ok(all(names)?.into_iter().find(|value| !value.is_empty()))
        };
        Ok(UserInfo {
            username: Some(first(&self.user)?.ok_or(ViewError::Unauthenticated)?),
            uid: first(&self.uid)?,
            groups: Some(all(&self.group)?),
            extra: Some(self.extra(headers)?),
        })
    }

    fn extra(&self, headers: &HeaderMap) -> Result<BTreeMap<String, Vec<String>>, ViewError> {
        let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (name, value) in headers {
            let key = self
                .extra
                .iter()
                .find_map(|prefix| name.as_str().strip_prefix(prefix.to_lowercase().as_str()));
            let Some(key) = key else {
                continue;
            };
            // The API server escapes characters that a header's name cannot have.
            let key = percent_encoding::percent_decode_str(key).decode_utf8_lossy();
            extra
                .entry(key.into_owned())
                .or_default()
                .push(text(name.as_str(), value)?);
        }
        Ok(extra)
    }
}

/// Returns the value of a header. Names of users and groups may have any characters.
fn text(name: &str, value: &HeaderValue) -> Result<String, ViewError> {
    let text = std::str::from_utf8(value.as_bytes());
    text.map(str::to_owned)
        .map_err(|_| ViewError::BadRequest(format!("the header {name} is no UTF-8 text")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn front_proxy() -> FrontProxy {
        let data = [
            ("requestheader-client-ca-file", "pem"),
            ("requestheader-allowed-names", r#"["front-proxy-client"]"#),
            ("requestheader-username-headers", r#"["X-Remote-User"]"#),
            ("requestheader-group-headers", r#"["X-Remote-Group"]"#),
            (
                "requestheader-extra-headers-prefix",
                r#"["X-Remote-Extra-"]"#,
            ),
        ];
        let data = data.map(|(key, value)| (key.to_owned(), value.to_owned()));
        FrontProxy::of(&data.into()).unwrap()
    }

    #[test]
    fn headers_name_the_user() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("x-remote-user", "alice"),
            ("x-remote-group", "shop"),
            ("x-remote-group", "system:authenticated"),
            ("x-remote-extra-example.com%2fscope", "read"),
            ("x-other", "ignored"),
        ] {
            headers.append(
                http::HeaderName::from_static(name),
                http::HeaderValue::from_static(value),
            );
        }
        let user = front_proxy().user(&headers).unwrap();
        assert_eq!(user.username.as_deref(), Some("alice"));
        let groups = user.groups.unwrap();
        assert_eq!(groups, ["shop", "system:authenticated"]);
        let scope = user.extra.unwrap().remove("example.com/scope");
        assert_eq!(scope, Some(vec!["read".to_owned()]));
    }

    #[test]
    fn request_without_a_user_is_refused() {
        let refused = front_proxy().user(&HeaderMap::new());
        assert!(matches!(refused, Err(ViewError::Unauthenticated)));
        let none = FrontProxy::of(&BTreeMap::new()).unwrap();
        assert!(front_proxy().is_known() && !none.is_known());
    }

    #[test]
    fn damaged_list_is_refused_by_name() {
        let names = "requestheader-allowed-names".to_owned();
        let damaged = FrontProxy::of(&[(names.clone(), "front-proxy-client".to_owned())].into());
        assert!(damaged.is_err_and(|error| error.to_string().contains(&names)));
    }

    #[test]
    fn names_of_users_and_groups_have_any_characters() {
        let with = |group: &[u8]| {
            let mut headers = HeaderMap::new();
            let jose = HeaderValue::from_bytes("josé".as_bytes()).unwrap();
            headers.append("x-remote-user", jose);
            headers.append("x-remote-group", HeaderValue::from_static("shop"));
            headers.append("x-remote-group", HeaderValue::from_bytes(group).unwrap());
            front_proxy().user(&headers)
        };
        let user = with("équipe".as_bytes()).unwrap();
        assert_eq!(user.username.as_deref(), Some("josé"));
        assert_eq!(user.groups.unwrap(), ["shop", "équipe"]);
        let Err(ViewError::BadRequest(message)) = with(b"\xff") else {
            unreachable!("a group is left out");
        };
        assert!(message.contains("X-Remote-Group"), "{message}");
    }
}
