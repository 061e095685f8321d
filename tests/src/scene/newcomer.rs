//! A cluster that joins a fleet which runs already.

use anyhow::{Context, Result, ensure};

use crate::control_plane::{ControlPlane, write_private};
use crate::fleet::{Fleet, FleetOptions, arguments, output};
use crate::guard::Program;
use crate::ports::{self, local};
use crate::restartable::Restartable;

/// The agent of a cluster that joined late; dropping it ends the agent.
#[derive(Debug)]
pub struct Newcomer {
    agent: Restartable,
    ops_port: u16,
}

impl Newcomer {
    /// Lets `cluster` join a fleet under `name`: a join string is made and an agent started with it. Of the options, the
    /// labels and what concerns agents count. The namespace of Runnel has to exist in the cluster.
    ///
    /// # Errors
    /// When no join string is given out, or the agent cannot be started.
    pub async fn join(fleet: &Fleet, name: &str, cluster: &ControlPlane, options: &FleetOptions) -> Result<Self> {
        let address = fleet.hub_address();
        let port = address.rsplit(':').next().context("a port")?.parse()?;
        let token = arguments::token(name, fleet.hub().kubeconfig(), port, options);
        let join = output(&fleet.binaries().hub, &token).await?;
        ensure!(!join.trim().is_empty(), "no join string was printed");
        let path = cluster.folder().join(format!("join-string-{name}"));
        write_private(&path, join.trim())?;
        let ops_port = ports::free()?;
        let program = Program::new(&fleet.binaries().agent, cluster.folder().join(format!("runnel-agent-{name}.log")))
            .arguments(arguments::agent(&path, cluster.kubeconfig(), ops_port, options))
            .environment("RUNNEL_LOG", &options.log);
        let agent = Restartable::new(format!("the agent of {name}"), program);
        agent.start()?;
        Ok(Self { agent, ops_port })
    }

    /// The agent's process.
    #[must_use]
    pub fn process(&self) -> &Restartable {
        &self.agent
    }

    /// Where the agent tells its operator about itself.
    #[must_use]
    pub fn ops_url(&self) -> String {
        format!("http://{}", local(self.ops_port))
    }
}
