//! The analysis of a rollout: a check that has to hold while a wave soaks.
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema;

/// A check that has to hold while a wave soaks. Set exactly one of prometheus and http. The hub makes the request, and only to
/// URLs that its administrator allows (`analysis.allowedURLs` of the chart).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::analysis)]
pub struct Analysis {
    /// A query whose values have to be within bounds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "PrometheusCheck")]
    pub prometheus: Option<PrometheusCheck>,
    /// A URL that has to answer with a status from 200 to 299.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "HttpCheck")]
    pub http: Option<HttpCheck>,
    /// The time between two checks. The first one is made when the wave is applied. 5 to 3600.
    #[serde(default = "interval_seconds")]
    #[schemars(transform = schema::in_range(5, 3600))]
    pub interval_seconds: i64,
    /// How many checks may fail in one wave. With one more the rollout stops, or is rolled back, as onFailure says. 0 to 100.
    #[serde(default)]
    #[schemars(transform = schema::in_range(0, 100))]
    pub failure_limit: i64,
}

fn interval_seconds() -> i64 {
    60
}

/// A query of a Prometheus API. Each value of its result has to be within min and max; a result without values is a failure.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::prometheus_check)]
pub struct PrometheusCheck {
    /// The URL of the API without `/api/v1`, such as `http://prometheus.monitoring:9090`.
    #[schemars(transform = schema::url("address"))]
    pub address: String,
    /// The query in PromQL. At most 4096 characters.
    #[schemars(transform = schema::filled_text(4096))]
    pub query: String,
    /// The least value, as a decimal number such as 0.99.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", transform = schema::decimal("min"))]
    pub min: Option<String>,
    /// The largest value, as a decimal number such as 0.01.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", transform = schema::decimal("max"))]
    pub max: Option<String>,
}

/// A GET of a URL. Redirects are not followed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HttpCheck {
    /// The URL.
    #[schemars(transform = schema::url("url"))]
    pub url: String,
}

/// The checks of the current wave.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AnalysisStatus {
    /// Number of checks.
    #[serde(default)]
    pub checks: i64,
    /// Of these, the checks that failed.
    #[serde(default)]
    pub failures: i64,
    /// Whether the last check held.
    #[serde(default)]
    pub holds: bool,
    /// The value of the last check, or why it failed. Never content of an answer.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(transform = schema::text(256))]
    pub message: String,
    /// The time of the last check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Time")]
    pub last_checked_at: Option<Time>,
}
