//! The front proxy of the API server: its certificate, and the user that it names.
use std::collections::BTreeMap;

use http::HeaderMap;
use k8s_openapi::api::authentication::v1::UserInfo;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use runnel_transport::identity::ServingPair;
use runnel_transport::tls::{FrontProxyTls, TlsError};

use super::error::ViewError;
use crate::call::{ApiError, with_timeout};

/// The ConfigMap in which the API server publishes how its front proxy authenticates.
const CONFIG_MAP: &str = "extension-apiserver-authentication";

/// How the front proxy authenticates, and in which headers it names the user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FrontProxy {
    authorities: String,
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
    /// [`ApiError`], when the API server refuses the request or does not answer.
    pub(super) async fn read(client: &Client) -> Result<Self, ApiError> {
        let api = Api::<ConfigMap>::namespaced(client.clone(), "kube-system");
        let call = with_timeout(
            format!("read ConfigMap kube-system/{CONFIG_MAP}"),
            api.get(CONFIG_MAP),
        );
        Ok(Self::of(&call.await?.data.unwrap_or_default()))
    }

    fn of(data: &BTreeMap<String, String>) -> Self {
        let list = |key: &str| -> Vec<String> {
            data.get(key)
                .and_then(|text| serde_json::from_str(text).ok())
                .unwrap_or_default()
        };
        Self {
            authorities: data
                .get("requestheader-client-ca-file")
                .cloned()
                .unwrap_or_default(),
            names: list("requestheader-allowed-names"),
            user: list("requestheader-username-headers"),
            uid: list("requestheader-uid-headers"),
            group: list("requestheader-group-headers"),
            extra: list("requestheader-extra-headers-prefix"),
        }
    }

    /// Whether the API server has a front proxy at all.
    pub(super) fn is_known(&self) -> bool {
        !self.authorities.is_empty()
    }

    /// Returns the TLS settings with this serving certificate.
    ///
    /// # Errors
    /// [`TlsError`], when the CA is unusable.
    pub(super) fn tls(&self, serving: ServingPair) -> Result<FrontProxyTls, TlsError> {
        FrontProxyTls::new(&self.authorities, self.names.clone(), serving)
    }

    /// Returns the user that the headers name.
    ///
    /// # Errors
    /// [`ViewError::Unauthenticated`], when they name none.
    pub(super) fn user(&self, headers: &HeaderMap) -> Result<UserInfo, ViewError> {
        let first = |names: &[String]| {
            names
                .iter()
                .find_map(|name| headers.get(name.to_lowercase().as_str()))
                .and_then(|value| value.to_str().ok())
                .filter(|value| !value.is_empty())
                .map(str::to_owned)
        };
        let username = first(&self.user).ok_or(ViewError::Unauthenticated)?;
        let groups = self
            .group
            .iter()
            .flat_map(|name| headers.get_all(name.to_lowercase().as_str()))
            .filter_map(|value| value.to_str().ok().map(str::to_owned))
            .collect();
        Ok(UserInfo {
            username: Some(username),
            uid: first(&self.uid),
            groups: Some(groups),
            extra: Some(self.extra(headers)),
        })
    }

    fn extra(&self, headers: &HeaderMap) -> BTreeMap<String, Vec<String>> {
        let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (name, value) in headers {
            let key = self
                .extra
                .iter()
                .find_map(|prefix| name.as_str().strip_prefix(prefix.to_lowercase().as_str()));
            let (Some(key), Ok(value)) = (key, value.to_str()) else {
                continue;
            };
            // The API server escapes characters that a header's name cannot have.
            let key = percent_encoding::percent_decode_str(key).decode_utf8_lossy();
            extra
                .entry(key.into_owned())
                .or_default()
                .push(value.to_owned());
        }
        extra
    }
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
        FrontProxy::of(&data.into())
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
        assert!(front_proxy().is_known() && !FrontProxy::of(&BTreeMap::new()).is_known());
    }
}
