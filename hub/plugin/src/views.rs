//! Reads the view API of the hub, with the user's own rights; see `runnel_api`'s views.
use std::time::Duration;

use anyhow::anyhow;
use http::Method;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use runnel_api::{Delivery, DeliveryStatus, VIEW_GROUP, VIEW_VERSION};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::access::Cluster;
use super::objects::Rule;

/// The number of objects on one page of a list.
const PAGE: usize = 500;
/// The time limit of a list, which the hub answers from its memory.
const LIST_LIMIT: Duration = Duration::from_secs(20);
/// The time limit of a request about which the hub asks agents; longer than the hub's own.
const REQUEST_LIMIT: Duration = Duration::from_secs(50);

/// A rule in one member cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeliveryRow {
    /// The object, as the view API returned it.
    pub object: Value,
    /// The name of the cluster.
    pub cluster: String,
    /// The state.
    pub status: DeliveryStatus,
}

/// Returns the state of a rule in each of its clusters, the worst first.
///
/// # Errors
/// A sentence with a hint.
pub async fn deliveries(hub: &Cluster, rule: &Rule) -> anyhow::Result<Vec<DeliveryRow>> {
    let action = "list the deliveries of the rule";
    let path = delivery_path(rule);
    let (mut rows, mut token) = (Vec::new(), String::new());
    loop {
        let page = format!("{path}&limit={PAGE}&continue={token}");
        let mut list = call(hub, action, (Method::GET, &page, Value::Null), LIST_LIMIT).await?;
        let Value::Array(items) = list["items"].take() else {
            return Err(anyhow!("cannot {action}: the answer is no list"));
        };
        for object in items {
            rows.push(DeliveryRow::read(object)?);
        }
        // The hub's tokens need no encoding.
        token = match list["metadata"]["continue"].as_str() {
            Some(next) if !next.is_empty() => next.to_owned(),
            _ => break,
        };
    }
    rows.sort_by(|left, right| {
        (left.status.state, &left.cluster).cmp(&(right.status.state, &right.cluster))
    });
    Ok(rows)
}

/// The path of the list of a rule's deliveries.
fn delivery_path(rule: &Rule) -> String {
    let resource = match rule {
        Rule::DistributionRule(_) => format!("namespaces/{}/deliveries", rule.namespace()),
        Rule::ClusterDistributionRule(_) => "clusterdeliveries".to_owned(),
    };
    format!(
        "{}/{resource}?fieldSelector=rule%3D{}",
        group_path(),
        rule.name()
    )
}

impl DeliveryRow {
    /// Reads a delivery as the view API returned it.
    ///
    /// # Errors
    /// If it has a value that this program does not support.
    pub fn read(object: Value) -> anyhow::Result<Self> {
        // Both kinds of deliveries have the same fields.
        let read: Delivery = understood("read a delivery", object.clone())?;
        Ok(Self {
            object,
            cluster: read.spec.cluster,
            status: read.status.unwrap_or_default(),
        })
    }
}

/// Creates a request, and returns it with its answer. `namespace`: of a namespaced resource.
///
/// # Errors
/// A sentence with a hint.
pub async fn create<T: Serialize + DeserializeOwned>(
    hub: &Cluster,
    action: &str,
    (namespace, resource): (Option<&str>, &str),
    request: &T,
) -> anyhow::Result<T> {
    let place = (namespace, resource);
    Ok(create_within(hub, action, place, request, REQUEST_LIMIT).await?)
}

/// As [`create`], within this time.
///
/// # Errors
/// [`RequestError`].
pub async fn create_within<T: Serialize + DeserializeOwned>(
    hub: &Cluster,
    action: &str,
    (namespace, resource): (Option<&str>, &str),
    request: &T,
    limit: Duration,
) -> Result<T, RequestError> {
    let place = namespace.map_or_else(String::new, |name| format!("namespaces/{name}/"));
    let path = format!("{}/{place}{resource}", group_path());
    let body = serde_json::to_value(request).expect("a request is JSON");
    let answer = call(hub, action, (Method::POST, &path, body), limit).await?;
    understood(action, answer).map_err(RequestError::Final)
}

/// Why a request has no answer.
#[derive(Debug)]
pub enum RequestError {
    /// The same request may have an answer later.
    Temporary(anyhow::Error),
    /// The request is refused.
    Final(anyhow::Error),
}

impl From<RequestError> for anyhow::Error {
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::Temporary(error) | RequestError::Final(error) => error,
        }
    }
}

/// Codes with which an API server answers while it, or the hub behind it, is busy or restarts.
const TEMPORARY: [u16; 5] = [429, 500, 502, 503, 504];

fn group_path() -> String {
    format!("/apis/{VIEW_GROUP}/{VIEW_VERSION}")
}

fn understood<T: DeserializeOwned>(action: &str, answer: Value) -> anyhow::Result<T> {
    serde_json::from_value(answer).map_err(|error| {
        anyhow!(
            "cannot {action}: the answer has a value that this plugin does not support ({error}); the \
             hub may be newer (`kubectl runnel version`)"
        )
    })
}

async fn call(
    hub: &Cluster,
    action: &str,
    (method, path, body): (Method, &str, Value),
    limit: Duration,
) -> Result<Value, RequestError> {
    let kind = if body.is_null() {
        ""
    } else {
        "application/json"
    };
    let error = match hub.call(method, path, (kind, body), limit).await {
        Ok(answer) => return Ok(answer),
        Err(error) => error,
    };
    let is_temporary = match &error {
        Some(kube::Error::Api(status)) => TEMPORARY.contains(&status.code),
        _ => true,
    };
    let obstacle = match &error {
        Some(error) if is_not_served(error) => obstacle(hub).await,
        _ => None,
    };
    let error = match (obstacle, error) {
        (Some(obstacle), _) => anyhow!("cannot {action} on {}: {obstacle}", hub.place),
        (None, None) => anyhow!("cannot {action}: the hub did not answer in time"),
        (None, error) => hub.explained(action, error),
    };
    Err(if is_temporary {
        RequestError::Temporary(error)
    } else {
        RequestError::Final(error)
    })
}

/// Whether the API server has answered in place of the hub.
fn is_not_served(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => {
            status.code == 503 || (status.code == 404 && status.reason != "NotFound")
        }
        _ => false,
    }
}

/// Returns why the API server does not forward requests to the hub, by its APIService.
async fn obstacle(hub: &Cluster) -> Option<String> {
    let name = format!("{VIEW_VERSION}.{VIEW_GROUP}");
    let path = format!("/apis/apiregistration.k8s.io/v1/apiservices/{name}");
    let found: anyhow::Result<Option<APIService>> = hub.get("read the APIService", &path).await;
    match found {
        Ok(service) => reason_of(&name, service.as_ref()),
        Err(_) => Some(format!(
            "the hub's view API is not available; its administrator sees why: `kubectl get apiservice {name}`"
        )),
    }
}

/// Returns what is wrong with the APIService; `None` if it is available.
fn reason_of(name: &str, service: Option<&APIService>) -> Option<String> {
    let Some(service) = service else {
        return Some(format!(
            "the hub's view API is not installed (there is no APIService {name}): set `view.enabled: true` in the values \
             of the hub's chart"
        ));
    };
    let conditions = service.status.as_ref()?.conditions.as_deref()?;
    let available = conditions
        .iter()
        .find(|condition| condition.type_ == "Available" && condition.status != "True")?;
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    Some(format!(
        "the hub's view API is not available ({}: {}): `kubectl runnel doctor` shows whether the hub runs; the API server \
         must reach the port `ports.view` of its pods",
        text(&available.reason),
        text(&available.message)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::Status;
    use serde_json::json;

    #[test]
    fn missing_api_is_explained_by_its_service() {
        let service = |status: &str| -> APIService {
            serde_json::from_value(json!({"metadata": {"name": "v"}, "status": {"conditions": [{
                "type": "Available", "status": status, "reason": "MissingEndpoints", "message": "no endpoints",
            }]}}))
            .unwrap()
        };
        let missing = reason_of("v", None).unwrap();
        assert!(missing.contains("view.enabled: true"), "{missing}");
        let away = reason_of("v", Some(&service("False"))).unwrap();
        assert!(
            away.contains("(MissingEndpoints: no endpoints)") && away.contains("doctor"),
            "{away}"
        );
        assert_eq!(reason_of("v", Some(&service("True"))), None);
    }

    #[test]
    fn answer_of_the_hub_differs_from_the_api_servers() {
        let error = |code: u16, reason: &str| {
            kube::Error::Api(Box::new(Status {
                code,
                reason: reason.into(),
                ..Status::default()
            }))
        };
        assert!(is_not_served(&error(404, "Failed to parse error data")));
        assert!(is_not_served(&error(503, "ServiceUnavailable")));
        assert!(!is_not_served(&error(404, "NotFound")));
        assert!(!is_not_served(&error(403, "Forbidden")));
    }

    #[test]
    fn deliveries_of_a_rule_are_selected_by_its_name() {
        let rule = |kind: &str, metadata: Value| {
            Rule::read(&json!({
                "kind": kind, "metadata": metadata, "spec": {"sources": [], "clusters": {}},
            }))
            .unwrap()
        };
        let own = rule(
            "DistributionRule",
            json!({"name": "all", "namespace": "shop"}),
        );
        assert_eq!(
            delivery_path(&own),
            "/apis/view.runnel.dev/v1alpha1/namespaces/shop/deliveries?fieldSelector=rule%3Dall"
        );
        let whole = rule("ClusterDistributionRule", json!({"name": "ca"}));
        assert_eq!(
            delivery_path(&whole),
            "/apis/view.runnel.dev/v1alpha1/clusterdeliveries?fieldSelector=rule%3Dca"
        );
    }
}
