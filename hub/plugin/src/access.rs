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
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::hints::{self, Endpoint};
use super::rights::{Right, refusal};

/// The field manager of the plugin's writes.
pub const FIELD_MANAGER: &str = "kubectl-runnel";
/// The time limit of a call.
const CALL_LIMIT: Duration = Duration::from_secs(20);
/// The time after which a connection without data is dead, longer than any call.
const READ_LIMIT: Duration = Duration::from_secs(60);
/// The time without a byte after which a watch is broken. API servers send bookmarks about once a minute.
const IDLE_LIMIT: Duration = Duration::from_secs(180);
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// Page size of lists that may be long.
const PAGE: u32 = 500;
/// Objects without their content.
const METADATA: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
/// The API server's time is in the header of every answer.
const CLOCK: &str = "/version";

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
        let options = KubeConfigOptions {
            context: Some(context.clone()),
            ..KubeConfigOptions::default()
        };
        let config = Config::from_custom_kubeconfig(read, &options).await;
        let mut config = config.map_err(|error| unusable(&shown, &error))?;
        config.default_retry = false;
        config.connect_timeout = Some(CONNECT_LIMIT);
        config.read_timeout = Some(READ_LIMIT);
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
            default_namespace: inner.namespace.unwrap_or_else(|| "default".to_owned()),
        })
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
            let page = match tokio::time::timeout(CALL_LIMIT, answer).await {
                Ok(page) => page.map_err(|error| self.explained(action, Some(error)))?,
                Err(_) => return Err(self.explained(action, None)),
            };
            all.extend(page.items.into_iter().map(|item| item.metadata));
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
        let answer = tokio::time::timeout(CALL_LIMIT, self.client.request_text(request)).await;
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
        let answer = match tokio::time::timeout(CALL_LIMIT, self.client.send(request)).await {
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
            let answer = tokio::time::timeout(CALL_LIMIT, api.create(&params, &review)).await;
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
        match tokio::time::timeout(limit, self.client.request::<Value>(request)).await {
            Ok(answer) => answer.map_err(Some),
            Err(_) => Err(None),
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
    #[serde(default)]
    items: Vec<MetadataItem>,
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
