//! The client for the API server of a hub or a member cluster.
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::HeaderValue;
use http::header::USER_AGENT;
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::client::{ClientBuilder, ConfigExt};
use kube::config::{InClusterError, KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tower_http::decompression::DecompressionLayer;

use crate::ops::WatchTimes;

/// Idle time after which a connection to the API server is closed: longer than a watch without events, which the server
/// ends itself.
const READ_TIMEOUT: Duration = Duration::from_secs(75);

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ApiClientError {
    /// The kubeconfig cannot be read, or has no usable cluster.
    #[error("the kubeconfig {} cannot be used ({cause}): check --kubeconfig", path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// The first line of the cause: the other lines quote the file, which contains credentials.
        cause: String,
    },
    /// There is neither a kubeconfig nor a pod's ServiceAccount.
    #[error(
        "there is no ServiceAccount here: run in a pod of the cluster, or give --kubeconfig FILE"
    )]
    NotInCluster(#[from] InClusterError),
    /// The certificates or the proxy of the cluster are unusable.
    #[error(
        "cannot create a client for the API server: check certificates and proxy of the kubeconfig"
    )]
    Settings(#[source] kube::Error),
}

/// Returns a client for the cluster of a kubeconfig, or for that of the pod. It retries nothing, since those who call it
/// back off themselves, and records in `watches` when its watches last received data. It sends no request yet.
///
/// # Errors
/// When the settings are unusable.
pub async fn client(
    kubeconfig: Option<&Path>,
    user_agent: &'static str,
    watches: &WatchTimes,
) -> Result<Client, ApiClientError> {
    let mut config = match kubeconfig {
        Some(path) => {
            let unusable = |cause: &dyn std::fmt::Display| ApiClientError::Kubeconfig {
                path: path.to_owned(),
                cause: cause
                    .to_string()
                    .lines()
                    .next()
                    .unwrap_or_default()
                    .to_owned(),
            };
            let file = Kubeconfig::read_from(path).map_err(|error| unusable(&error))?;
            let own_proxy = has_proxy(&file);
            let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
            let mut config = config.map_err(|error| unusable(&error))?;
            // A proxy of the environment is not for the connection to the API server.
            config.proxy_url = config.proxy_url.filter(|_| own_proxy);
            config
        }
        None => Config::incluster()?,
    };
    config.default_retry = false;
    config.read_timeout = Some(READ_TIMEOUT);
    config
        .headers
        .push((USER_AGENT, HeaderValue::from_static(user_agent)));
    let client = if config.proxy_url.is_some() {
        ClientBuilder::try_from(config).map(|builder| builder.with_layer(watches).build())
    } else {
        without_delay(config, watches)
    };
    client.map_err(ApiClientError::Settings)
}

/// Returns the client that kube would build from these settings, with `TCP_NODELAY` on its connections.
///
/// Without it, the end of a request of several segments waits for the acknowledgment of the earlier
/// ones. The server's system may delay this by 40 ms.
fn without_delay(config: Config, watches: &WatchTimes) -> Result<Client, kube::Error> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    let mut connector = TimeoutConnector::new(config.rustls_https_connector_with_connector(tcp)?);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    let http = hyper_util::client::legacy::Client::builder(TokioExecutor::new()).build(connector);
    let service = tower::ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .layer(DecompressionLayer::new())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(tower::BoxError::from)
        .service(http);
    Ok(
        ClientBuilder::new(service, config.default_namespace.clone())
            .with_layer(watches)
            .build(),
    )
}

/// Whether the current cluster of the kubeconfig has its own proxy.
fn has_proxy(file: &Kubeconfig) -> bool {
    let current = file
        .contexts
        .iter()
        .find(|context| Some(&context.name) == file.current_context.as_ref());
    let cluster = current
        .and_then(|context| context.context.as_ref())
        .map(|context| &context.cluster);
    let cluster = file
        .clusters
        .iter()
        .find(|known| Some(&known.name) == cluster);
    cluster
        .and_then(|known| known.cluster.as_ref())
        .is_some_and(|cluster| cluster.proxy_url.is_some())
}
