//! A cluster that joins a fleet which runs already.

use anyhow::{Result, ensure};

use crate::control_plane::ControlPlane;
use crate::fleet::{Agent, Fleet, FleetOptions};
use crate::helm::Helm;
use crate::pod::Site;
use crate::restartable::Restartable;

/// The agent of a cluster that joined late; dropping it ends the agent.
#[derive(Debug)]
pub struct Newcomer {
    agent: Agent,
}

impl Newcomer {
    /// Joins `cluster` to a fleet under `name`: installs the chart, creates a join string and
    /// starts the agent. Uses the labels and the agent options.
    ///
    /// # Errors
    /// If the chart cannot be installed, no join string is created, or the agent cannot be started.
    pub async fn join(
        fleet: &Fleet,
        name: &str,
        cluster: &ControlPlane,
        options: &FleetOptions,
    ) -> Result<Self> {
        let (helm, site) = (Helm::find().await?, Site::from(cluster));
        let log = format!("runnel-agent-{name}.log");
        let agent = Agent::install(&helm, (&site, name), fleet.binaries(), options, &log).await?;
        let join_string = fleet
            .hub_release()
            .join_string(name, fleet.binaries(), options)
            .await?;
        ensure!(!join_string.is_empty(), "no join string was printed");
        agent.hand_over(&join_string).await?;
        agent.pod().start().await?;
        Ok(Self { agent })
    }

    /// Returns the installed agent.
    #[must_use]
    pub fn agent(&self) -> &Agent {
        &self.agent
    }

    /// The agent's process.
    #[must_use]
    pub fn process(&self) -> &Restartable {
        self.agent.process()
    }

    /// The operations endpoint of the agent.
    #[must_use]
    pub fn ops_url(&self) -> String {
        self.agent.ops_url().to_owned()
    }
}
