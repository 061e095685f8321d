//! A cluster of the user's kubeconfig, and calls to it that explain themselves.
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{anyhow, bail};
use http::{HeaderValue, Method, Request, header};
use jiff::Timestamp;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ListMeta, ObjectMeta};
use kube::api::PostParams;
use kube::client::Body;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::args::Connection;
use super::hints::{self, Endpoint};
use super::parse;
use super::rights::{Right, refusal};

/// The field manager of the plugin's writes.
pub const FIELD_MANAGER: &str = "kubectl-runnel";
/// The time limit of a call, unless `--request-timeout` sets another one.
const CALL_LIMIT: Duration = Duration::from_secs(20);
/// The time after which a connection without data is dead, longer than any call.
const READ_LIMIT: Duration = Duration::from_secs(60);
/// The time without a byte after which a watch is broken. API servers send bookmarks about once a minute.
const IDLE_LIMIT: Duration = Duration::from_secs(180);
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// How often a call is repeated that the API server refused because it is busy (429).
const BUSY_RETRIES: usize = 5;
/// The delay before that.
const BUSY_DELAY: Duration = Duration::from_secs(1);
/// Page size of lists that may be long.
const PAGE: u32 = 500;
/// Objects without their content.
const METADATA: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
/// The API server's time is in the header of every answer.
const CLOCK: &str = "/version";

/// Runs a call within a time limit, if there is one. The error: no answer came in time.
async fn within<T>(limit: Option<Duration>, call: impl Future<Output = T>) -> Result<T, ()> {
    match limit {
        Some(limit) => tokio::time::timeout(limit, call).await.map_err(drop),
        None => Ok(call.await),
    }
}

/// The connection flags of the command line, checked.
#[derive(Clone, Default)]
pub struct ConnectionFlags {
    user_to_be: Option<String>,
    groups: Vec<String>,
    cluster: Option<String>,
    user: Option<String>,
    server: Option<http::Uri>,
    token: Option<String>,
    /// The time limit of every call; zero: none.
    request_timeout: Option<Duration>,
}

impl ConnectionFlags {
    /// Reads the flags.
    ///
    /// # Errors
    /// A sentence that names the flag.
    pub fn read(flags: &Connection) -> Result<Self, String> {
        if flags.as_user.is_none() && !flags.as_groups.is_empty() {
            return Err("--as-group needs --as: groups are impersonated with a user".to_owned());
        }
        let server = flags.server.as_ref().map(|given| {
            let url = given.parse::<http::Uri>().ok();
            let url = url.filter(|url| url.host().is_some() && url.scheme().is_some());
            url.ok_or_else(|| {
                format!(
                    "--server `{given}` is no address: write for example https://k.example.com:6443"
                )
            })
        });
        let request_timeout = flags.request_timeout.as_deref().map(|given| {
            let given = match given.parse::<u64>() {
                Ok(seconds) => format!("{seconds}s"),
                Err(_) => given.to_owned(),
            };
            parse::duration("--request-timeout", &given).map_err(|error| error.to_string())
        });
        Ok(Self {
            user_to_be: flags.as_user.clone(),
            groups: flags.as_groups.clone(),
            cluster: flags.cluster.clone(),
            user: flags.user.clone(),
            server: server.transpose()?,
            token: flags.token.clone(),
            request_timeout: request_timeout.transpose()?,
        })
    }

    /// The flags for a cluster that `--context` does not name: only the time limit.
    #[must_use]
    pub fn of_other_cluster(&self) -> Self {
        Self {
            request_timeout: self.request_timeout,
            ..Self::default()
        }
    }

    /// The time limit of a call that has this one without the flag; `None`: no limit.
    fn limit(&self, usual: Duration) -> Option<Duration> {
        match self.request_timeout {
            Some(given) => Some(given).filter(|given| !given.is_zero()),
            None => Some(usual),
        }
    }

    fn check_names(&self, read: &Kubeconfig, shown: &str) -> anyhow::Result<()> {
        let clusters = read.clusters.iter().map(|one| one.name.as_str());
        let users = read.auth_infos.iter().map(|one| one.name.as_str());
        let check = |flag: &str, given: &Option<String>, known: Vec<&str>| match given {
            Some(name) if !known.contains(&name.as_str()) => {
                bail!("{shown} has no {flag} {name}; it has: {}", known.join(", "))
            }
            _ => Ok(()),
        };
        check("cluster", &self.cluster, clusters.collect())?;
        check("user", &self.user, users.collect())
    }

    fn apply(&self, config: &mut Config) {
        if let Some(server) = &self.server {
            config.cluster_url = server.clone();
        }
        if let Some(token) = &self.token {
            // A client certificate would precede the token.
            config.auth_info = serde_json::from_value::<AuthInfo>(json!({"token": token}))
                .expect("a user of a kubeconfig may have only a token");
        }
        if let Some(user) = &self.user_to_be {
            config.auth_info.impersonate = Some(user.clone());
            config.auth_info.impersonate_groups =
                Some(self.groups.clone()).filter(|groups| !groups.is_empty());
        }
    }

    /// Returns the environment with which helm connects in the same way.
    ///
    /// # Errors
    /// A sentence, if helm has no such flag.
    pub fn for_helm(&self) -> Result<Vec<(&'static str, String)>, String> {
        if self.cluster.is_some() || self.user.is_some() {
            return Err(
                "helm has no --cluster and --user: make a context of them (`kubectl config set-context`) and give --context"
                    .to_owned(),
            );
        }
        let server = self.server.as_ref().map(ToString::to_string);
        let groups = Some(self.groups.join(",")).filter(|groups| !groups.is_empty());
        let all = [
            ("HELM_KUBEAPISERVER", server),
            ("HELM_KUBETOKEN", self.token.clone()),
            ("HELM_KUBEASUSER", self.user_to_be.clone()),
            ("HELM_KUBEASGROUPS", groups),
        ];
        let set = all
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)));
        Ok(set.collect())
    }
}

/// A cluster that the user has access to.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
    /// Contains the user's credentials.
    config: Config,
    /// The cluster, for messages.
    pub place: Endpoint,
    /// `--kubeconfig`, for helm.
    pub kubeconfig: Option<PathBuf>,
    /// The context, for helm.
    pub context: String,
    /// The connection flags.
    connection: ConnectionFlags,
    /// The namespace of the context.
    pub default_namespace: String,
}

impl Cluster {
    /// Creates access to the cluster of a context, by default the current one. Sends no request.
    ///
    /// # Errors
    /// A message, if the kubeconfig is invalid or has no such context.
    pub async fn open(
        role: &'static str,
        kubeconfig: Option<&Path>,
        context: Option<&str>,
        connection: &ConnectionFlags,
    ) -> anyhow::Result<Self> {
        let read = match kubeconfig {
            Some(path) => Kubeconfig::read_from(path),
            None => Kubeconfig::read(),
        };
        let shown = kubeconfig.map_or("the kubeconfig".to_owned(), |path| {
            format!("the kubeconfig {}", path.display())
        });
        let read = read.map_err(|error| unusable(&shown, &error))?;
        let Some(context) = context
            .map(str::to_owned)
            .or_else(|| read.current_context.clone())
        else {
            bail!(
                "{shown} has no current context: set that of {role}, or run `kubectl config use-context NAME`"
            );
        };
        let named: Vec<&str> = read.contexts.iter().map(|one| one.name.as_str()).collect();
        let Some(found) = read.contexts.iter().find(|one| one.name == context) else {
            bail!(
                "{shown} has no context {context} for {role}; its contexts: {}",
                named.join(", ")
            );
        };
        let inner = found.context.clone().unwrap_or_default();
        connection.check_names(&read, &shown)?;
        let options = KubeConfigOptions {
            context: Some(context.clone()),
            cluster: connection.cluster.clone(),
            user: connection.user.clone(),
        };
        let config = Config::from_custom_kubeconfig(read, &options).await;
        let mut config = config.map_err(|error| unusable(&shown, &error))?;
        connection.apply(&mut config);
        config.default_retry = false;
        config.connect_timeout = Some(CONNECT_LIMIT);
        config.read_timeout = connection
            .limit(READ_LIMIT)
            .map(|limit| limit.max(READ_LIMIT));
        let agent = HeaderValue::from_static(concat!("kubectl-runnel/", env!("CARGO_PKG_VERSION")));
        config.headers.push((header::USER_AGENT, agent));
        let server = config
            .cluster_url
            .to_string()
            .trim_end_matches('/')
            .to_owned();
        let place = Endpoint {
            role,
            context: context.clone(),
            server,
        };
        let client = Client::try_from(config.clone()).map_err(|error| unusable(&shown, &error))?;
        Ok(Self {
            client,
            config,
            place,
            kubeconfig: kubeconfig.map(Path::to_owned),
            context,
            connection: connection.clone(),
            default_namespace: inner.namespace.unwrap_or_else(|| "default".to_owned()),
        })
    }

    /// Returns the environment with which helm connects in the same way.
    ///
    /// # Errors
    /// As [`ConnectionFlags::for_helm`].
    pub fn helm_environment(&self) -> Result<Vec<(&'static str, String)>, String> {
        self.connection.for_helm()
    }

    /// A client, for code that the hub has as well.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Returns a client for watches, whose streams may be idle for longer than a call takes.
    ///
    /// # Errors
    /// A message, if the credentials of the kubeconfig are not available.
    pub fn watching_client(&self) -> anyhow::Result<Client> {
        let mut config = self.config.clone();
        config.read_timeout = Some(IDLE_LIMIT);
        Client::try_from(config).map_err(|error| unusable("the kubeconfig", &error))
    }

    /// Reads an object by its path; `None` where there is none.
    ///
    /// # Errors
    /// A sentence that names the place and a hint.
    pub async fn get<T: DeserializeOwned>(
        &self,
        action: &str,
        path: &str,
    ) -> anyhow::Result<Option<T>> {
        match self.review(Method::GET, path, "", Value::Null).await {
            Ok(value) => Ok(Some(understood(action, value)?)),
            Err(Some(kube::Error::Api(status))) if status.code == 404 && names_object(&status) => {
                Ok(None)
            }
            Err(error) => Err(self.explained(action, error)),
        }
    }

    /// Whether there is an object at a path.
    ///
    /// # Errors
    /// As [`Cluster::get`].
    pub async fn exists(&self, action: &str, path: &str) -> anyhow::Result<bool> {
        Ok(self.get::<Value>(action, path).await?.is_some())
    }

    /// Reads a list by its path.
    ///
    /// # Errors
    /// As [`Cluster::get`]; a kind that is not known is an error.
    pub async fn list<T: DeserializeOwned>(
        &self,
        action: &str,
        path: &str,
    ) -> anyhow::Result<Vec<T>> {
        let mut answer = self
            .review(Method::GET, path, "", Value::Null)
            .await
            .map_err(|error| self.explained(action, error))?;
        match answer["items"].take() {
            Value::Array(items) => items
                .into_iter()
                .map(|item| understood(action, item))
                .collect(),
            _ => Ok(Vec::new()),
        }
    }

    /// Reads the metadata of everything at a path, page by page.
    ///
    /// # Errors
    /// As [`Cluster::list`].
    pub async fn metadata(&self, action: &str, path: &str) -> anyhow::Result<Vec<ObjectMeta>> {
        let (mut all, mut token) = (Vec::new(), String::new());
        loop {
            let page = format!("{path}?limit={PAGE}&continue={token}");
            let request = Request::get(page)
                .header(header::ACCEPT, METADATA)
                .body(Vec::new())?;
            let answer = self.client.request::<MetadataPage>(request);
            let page = self.within(action, answer).await?;
            let items = page.items.into_iter().flatten();
            all.extend(items.map(|item| item.metadata));
            let next = page.metadata.continue_.unwrap_or_default();
            if next.is_empty() {
                return Ok(all);
            }
            // The token is base64: a query needs these characters encoded.
            token = next
                .replace('+', "%2B")
                .replace('/', "%2F")
                .replace('=', "%3D");
        }
    }

    /// Changes an object by a merge patch.
    ///
    /// # Errors
    /// As [`Cluster::get`].
    pub async fn patch(&self, action: &str, path: &str, patch: Value) -> anyhow::Result<Value> {
        let path = format!("{path}?fieldManager={FIELD_MANAGER}");
        let answer = self
            .review(Method::PATCH, &path, "application/merge-patch+json", patch)
            .await;
        answer.map_err(|error| self.explained(action, error))
    }

    /// Creates or changes an object (server-side apply).
    ///
    /// # Errors
    /// As [`Cluster::get`].
    pub async fn apply(&self, action: &str, path: &str, object: Value) -> anyhow::Result<Value> {
        let path = format!("{path}?fieldManager={FIELD_MANAGER}&force=true");
        let answer = self
            .review(Method::PATCH, &path, "application/apply-patch+yaml", object)
            .await;
        answer.map_err(|error| self.explained(action, error))
    }

    /// Deletes an object; whether there was one.
    ///
    /// # Errors
    /// As [`Cluster::get`].
    pub async fn delete(&self, action: &str, path: &str) -> anyhow::Result<bool> {
        match self.review(Method::DELETE, path, "", Value::Null).await {
            Ok(_) => Ok(true),
            Err(Some(kube::Error::Api(status))) if status.code == 404 => Ok(false),
            Err(error) => Err(self.explained(action, error)),
        }
    }

    /// The end of a pod's log; empty where it has none.
    pub async fn log(&self, namespace: &str, pod: &str, previous: bool) -> Vec<String> {
        let path = format!(
            "/api/v1/namespaces/{namespace}/pods/{pod}/log?tailLines=20&previous={previous}"
        );
        let Ok(request) = Request::get(path).body(Vec::new()) else {
            return Vec::new();
        };
        let answer = within(
            self.connection.limit(CALL_LIMIT),
            self.client.request_text(request),
        )
        .await;
        answer
            .ok()
            .and_then(Result::ok)
            .unwrap_or_default()
            .lines()
            .map(str::to_owned)
            .collect()
    }

    /// Creates or replaces (`exists`) an object as a dry run, and returns the result; `None` if another client has
    /// written it since it was read.
    ///
    /// # Errors
    /// As [`Cluster::get`].
    pub async fn dry_run(
        &self,
        action: &str,
        path: &str,
        object: &Value,
        exists: bool,
    ) -> anyhow::Result<Option<Value>> {
        let path = format!("{path}?dryRun=All&fieldValidation=Strict&fieldManager={FIELD_MANAGER}");
        let method = if exists { Method::PUT } else { Method::POST };
        let answer = self
            .review(method, &path, "application/json", object.clone())
            .await;
        match answer {
            Ok(saved) => Ok(Some(saved)),
            Err(Some(kube::Error::Api(status))) if status.reason == "Conflict" => Ok(None),
            Err(error) => Err(self.explained(action, error)),
        }
    }

    /// The clock of the API server.
    ///
    /// # Errors
    /// As [`Cluster::get`].
    pub async fn clock(&self) -> anyhow::Result<Option<Timestamp>> {
        let request = Request::get(CLOCK).body(Body::empty())?;
        let answer =
            match within(self.connection.limit(CALL_LIMIT), self.client.send(request)).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(error)) => return Err(self.explained("read the server's time", Some(error))),
                Err(_) => return Err(self.explained("read the server's time", None)),
            };
        let date = answer
            .headers()
            .get(header::DATE)
            .and_then(|date| date.to_str().ok());
        Ok(date
            .and_then(|date| jiff::fmt::rfc2822::parse(date).ok())
            .map(|date| date.timestamp()))
    }

    /// Those of the rights that the user does not have.
    ///
    /// # Errors
    /// As [`Cluster::get`].
    pub async fn missing(&self, rights: &[Right]) -> anyhow::Result<Vec<Right>> {
        let api: Api<SelfSubjectAccessReview> = Api::all(self.client.clone());
        let mut missing = Vec::new();
        for right in rights {
            let attributes = ResourceAttributes {
                verb: Some(right.verb.to_owned()),
                group: Some(right.group.to_owned()),
                resource: Some(right.resource.to_owned()),
                namespace: Some(right.namespace.clone()),
                ..ResourceAttributes::default()
            };
            let spec = SelfSubjectAccessReviewSpec {
                resource_attributes: Some(attributes),
                ..Default::default()
            };
            let review = SelfSubjectAccessReview {
                spec,
                ..SelfSubjectAccessReview::default()
            };
            let params = PostParams::default();
            let answer = within(
                self.connection.limit(CALL_LIMIT),
                api.create(&params, &review),
            )
            .await;
            let answer = match answer {
                Ok(Ok(answer)) => answer,
                Ok(Err(error)) => return Err(self.explained("check your permissions", Some(error))),
                Err(_) => return Err(self.explained("check your permissions", None)),
            };
            if !answer.status.is_some_and(|status| status.allowed) {
                missing.push(right.clone());
            }
        }
        Ok(missing)
    }

    /// Ends with a sentence when the user lacks a right.
    ///
    /// # Errors
    /// That sentence, or as [`Cluster::get`].
    pub async fn require(&self, what: &str, rights: &[Right]) -> anyhow::Result<()> {
        match refusal(what, &self.place, &self.missing(rights).await?) {
            Some(refusal) => Err(anyhow!(refusal)),
            None => Ok(()),
        }
    }

    async fn review(
        &self,
        method: Method,
        path: &str,
        kind: &str,
        body: Value,
    ) -> Result<Value, Option<kube::Error>> {
        self.call(method, path, (kind, body), CALL_LIMIT).await
    }

    /// Sends a request, with a body of this content type.
    ///
    /// # Errors
    /// That of the client; `None`: no answer in time.
    pub async fn call(
        &self,
        method: Method,
        path: &str,
        (kind, body): (&str, Value),
        limit: Duration,
    ) -> Result<Value, Option<kube::Error>> {
        let body = if body.is_null() {
            Vec::new()
        } else {
            body.to_string().into_bytes()
        };
        let mut request = Request::builder().method(method).uri(path);
        if !kind.is_empty() {
            request = request.header(header::CONTENT_TYPE, kind);
        }
        let request = request
            .body(body)
            .map_err(|error| Some(kube::Error::HttpError(error)))?;
        let ask = async {
            for _ in 0..BUSY_RETRIES {
                match self.client.request::<Value>(request.clone()).await {
                    // Nothing was done. The API server answers so, for example, while it sets a kind up.
                    Err(kube::Error::Api(status)) if status.code == 429 => {
                        tokio::time::sleep(BUSY_DELAY).await;
                    }
                    answer => return answer,
                }
            }
            self.client.request::<Value>(request).await
        };
        match within(self.connection.limit(limit), ask).await {
            Ok(answer) => answer.map_err(Some),
            Err(()) => Err(None),
        }
    }

    /// Runs calls of the client within the time limit of one call.
    ///
    /// # Errors
    /// As [`Cluster::get`].
    pub async fn within<T>(
        &self,
        action: &str,
        calls: impl Future<Output = Result<T, kube::Error>>,
    ) -> anyhow::Result<T> {
        match within(self.connection.limit(CALL_LIMIT), calls).await {
            Ok(found) => found.map_err(|error| self.explained(action, Some(error))),
            Err(()) => Err(self.explained(action, None)),
        }
    }

    /// Explains the error of a call; `None`: no answer in time.
    pub fn explained(&self, action: &str, error: Option<kube::Error>) -> anyhow::Error {
        match error {
            Some(error) => anyhow!(hints::call(&self.place, action, &error)),
            None => anyhow!(
                "cannot {action}: {}",
                hints::unreachable(&self.place, "timed out")
            ),
        }
    }
}

/// A page of a `PartialObjectMetadataList`.
#[derive(Deserialize)]
struct MetadataPage {
    #[serde(default)]
    metadata: ListMeta,
    /// Null for a list without objects.
    items: Option<Vec<MetadataItem>>,
}

#[derive(Deserialize)]
struct MetadataItem {
    #[serde(default)]
    metadata: ObjectMeta,
}

/// Reads an object as its type.
fn understood<T: DeserializeOwned>(action: &str, object: Value) -> anyhow::Result<T> {
    serde_json::from_value(object).map_err(|error| {
        anyhow!(
            "cannot {action}: the answer has a value that this plugin does not support ({error}); the \
             hub may be newer (`kubectl runnel version`)"
        )
    })
}

/// Whether a 404 names the object, and not its kind.
fn names_object(status: &kube::core::Status) -> bool {
    status
        .details
        .as_ref()
        .is_some_and(|details| !details.name.is_empty())
}

/// Of the cause only the first line: the others quote the file, which holds credentials.
fn unusable(shown: &str, cause: &dyn std::error::Error) -> anyhow::Error {
    let cause = hints::error_chain(cause)
        .lines()
        .next()
        .unwrap_or_default()
        .to_owned();
    anyhow!("{shown} cannot be used ({cause}): check --kubeconfig, $KUBECONFIG or ~/.kube/config")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(connection: Connection) -> Result<ConnectionFlags, String> {
        ConnectionFlags::read(&connection)
    }

    fn given(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn list_of_metadata_may_have_no_objects() {
        for (text, objects) in [
            (r#"{"metadata":{},"items":null}"#, 0),
            (r#"{"metadata":{}}"#, 0),
            (r#"{"items":[{"metadata":{"name":"x"}}]}"#, 1),
        ] {
            let page: MetadataPage = serde_json::from_str(text).unwrap();
            assert_eq!(page.items.into_iter().flatten().count(), objects, "{text}");
        }
    }

    #[test]
    fn token_and_user_replace_those_of_the_kubeconfig() {
        let own = flags(Connection {
            as_user: given("eve"),
            as_groups: vec!["a".to_owned(), "b".to_owned()],
            server: given("https://k.example.com:6443"),
            token: given("t0ken"),
            ..Connection::default()
        });
        let own = own.unwrap();
        let mut config = Config::new("https://other:1".parse().unwrap());
        config.auth_info.client_certificate = given("a.crt");
        own.apply(&mut config);
        let auth = &config.auth_info;
        assert_eq!(config.cluster_url.host(), Some("k.example.com"));
        assert!(auth.token.is_some() && auth.client_certificate.is_none());
        assert_eq!(auth.impersonate.as_deref(), Some("eve"));
        assert_eq!(auth.impersonate_groups.as_deref().map(<[_]>::len), Some(2));
        let environment = own.for_helm().unwrap();
        assert!(environment.contains(&("HELM_KUBEASGROUPS", "a,b".to_owned())));
        assert_eq!(environment.len(), 4);
        // Another cluster gets no credentials of this one.
        let mut other = Config::new("https://other:1".parse().unwrap());
        own.of_other_cluster().apply(&mut other);
        assert!(other.auth_info.token.is_none() && other.auth_info.impersonate.is_none());
        assert_eq!(own.of_other_cluster().for_helm(), Ok(Vec::new()));
    }

    #[test]
    fn request_timeout_is_a_duration_or_seconds() {
        let limit = |text: &str| {
            let request_timeout = given(text);
            flags(Connection {
                request_timeout,
                ..Connection::default()
            })
            .map(|flags| flags.limit(CALL_LIMIT))
        };
        assert_eq!(limit("5s"), Ok(Some(Duration::from_secs(5))));
        assert_eq!(limit("90"), Ok(Some(Duration::from_secs(90))));
        assert_eq!(limit("0"), Ok(None));
        assert!(
            limit("soon")
                .unwrap_err()
                .contains("--request-timeout `soon`")
        );
        let usual = ConnectionFlags::default();
        assert_eq!(usual.limit(CALL_LIMIT), Some(CALL_LIMIT));
    }

    #[test]
    fn wrong_flags_are_refused_by_name() {
        let groups = flags(Connection {
            as_groups: vec!["a".to_owned()],
            ..Connection::default()
        });
        assert!(groups.err().is_some_and(|why| why.contains("--as-group")));
        let server = flags(Connection {
            server: given("k8s"),
            ..Connection::default()
        });
        assert!(
            server
                .err()
                .is_some_and(|why| why.contains("--server `k8s`"))
        );
        let cluster = flags(Connection {
            cluster: given("prod"),
            ..Connection::default()
        });
        let cluster = cluster.unwrap();
        let refused = cluster.for_helm().unwrap_err();
        assert!(refused.contains("set-context"), "{refused}");
        let refused = cluster.check_names(&Kubeconfig::default(), "the kubeconfig");
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("no cluster prod"), "{refused}");
    }
}
