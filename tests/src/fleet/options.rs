//! The options of a fleet.

use serde_json::Value;

use crate::control_plane::Options;
use crate::memory::Enforcement;

/// The options of a fleet.
#[derive(Clone, Debug)]
pub struct FleetOptions {
    /// How many member clusters of their own there are.
    pub members: usize,
    /// Whether the hub's cluster is a member as well; it is the last one and called `hub`.
    pub hub_is_member: bool,
    /// The number of hub processes: the pods of the one Deployment, each with its own address.
    pub hub_replicas: usize,
    /// The labels of every `MemberCluster`.
    pub labels: Vec<(String, String)>,
    /// The log filter of the binaries (the charts' `log.level`).
    pub log: String,
    /// More arguments for `runnel-hub run` (its chart's `extraArgs`).
    pub hub_arguments: Vec<String>,
    /// More arguments for `runnel-agent run` (its chart's `extraArgs`).
    pub agent_arguments: Vec<String>,
    /// Whether the API server of the hub forwards requests for views to the hub, which the plugin needs. While the hub
    /// is away, no namespace of the hub's cluster is deleted to the end then.
    pub views: bool,
    /// Values of the hub's chart, over those that a fleet has by itself.
    pub hub_values: Value,
    /// Values of the agents' chart, over those that a fleet has by itself: every namespace, also new ones.
    pub agent_values: Value,
    /// Namespaces that exist in the hub's cluster before the chart is installed, such as those of
    /// `sourceNamespaces`.
    pub hub_namespaces: Vec<String>,
    /// Namespaces that exist in each member before the chart is installed, such as those of
    /// `policy.namespaces`.
    pub member_namespaces: Vec<String>,
    /// Whether the `Fleet` has the limits of a large one in writing: half of the few copies of a test is no limit then.
    pub written_limits: bool,
    /// How the memory limits of the charts are enforced for hub and agents.
    pub memory_limits: Enforcement,
    /// How each control plane differs from the usual one; a folder here is ignored.
    pub control_plane: Options,
}

impl Default for FleetOptions {
    /// One member cluster with the label `env=prod`, and one hub process.
    fn default() -> Self {
        Self {
            members: 1,
            hub_is_member: false,
            hub_replicas: 1,
            labels: vec![("env".to_owned(), "prod".to_owned())],
            log: "runnel=debug".to_owned(),
            hub_arguments: Vec::new(),
            agent_arguments: Vec::new(),
            views: false,
            hub_values: Value::Null,
            agent_values: Value::Null,
            hub_namespaces: Vec::new(),
            member_namespaces: Vec::new(),
            written_limits: true,
            memory_limits: Enforcement::default(),
            control_plane: Options::default(),
        }
    }
}
