//! What the author of a test may choose.

use crate::control_plane::Options;

/// What a fleet is made of.
#[derive(Clone, Debug)]
pub struct FleetOptions {
    /// How many member clusters of their own there are.
    pub members: usize,
    /// Whether the hub's cluster is a member as well; it is the last one and called `hub`.
    pub hub_is_member: bool,
    /// The labels of every `MemberCluster`.
    pub labels: Vec<(String, String)>,
    /// What the binaries log (`RUNNEL_LOG`).
    pub log: String,
    /// More arguments for `runnel-hub run`.
    pub hub_arguments: Vec<String>,
    /// More arguments for `runnel-agent run`.
    pub agent_arguments: Vec<String>,
    /// How each control plane differs from the usual one; a folder here is ignored.
    pub control_plane: Options,
}

impl Default for FleetOptions {
    /// One member cluster with the label `env=prod`.
    fn default() -> Self {
        Self {
            members: 1,
            hub_is_member: false,
            labels: vec![("env".to_owned(), "prod".to_owned())],
            log: "runnel=debug".to_owned(),
            hub_arguments: Vec::new(),
            agent_arguments: Vec::new(),
            control_plane: Options::default(),
        }
    }
}
