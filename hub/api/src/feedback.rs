//! The fields of copies that agents return.
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema;

/// A field of the copies of one kind, whose value the agents return.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Feedback {
    /// The kind, as in sources, such as deployments.apps. Not secrets: nothing is returned of them.
    #[schemars(transform = schema::feedback_resource)]
    pub resource: String,
    /// The name under which the value is shown, such as ready. Each name is used once.
    #[schemars(transform = schema::feedback_name)]
    pub name: String,
    /// The field, in status or spec, such as `.status.readyReplicas`, `.status.loadBalancer.ingress[0].ip` or
    /// `.status.conditions[?(@.type=="Ready")].reason`. Steps are names, `[0]`, and one filter for a text. A value is cut
    /// to 128 bytes.
    #[schemars(transform = schema::feedback_path)]
    pub json_path: String,
}
