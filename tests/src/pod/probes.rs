//! The probes of a pod, asked as a kubelet asks them.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Probe;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::{Pod, container_of};
use crate::http;

const ANSWER: Duration = Duration::from_secs(5);

impl Pod {
    /// Says that the container has a startup, a liveness and a readiness probe, and that each succeeds.
    ///
    /// # Errors
    /// When one is missing, fails, or is no `httpGet`.
    pub async fn passes_probes(&self) -> Result<()> {
        let template = self.state.lock().template.clone();
        let container = container_of(&template)?;
        let probes = [
            ("startup", &container.startup_probe),
            ("liveness", &container.liveness_probe),
            ("readiness", &container.readiness_probe),
        ];
        for (kind, probe) in probes {
            let probe = probe
                .as_ref()
                .with_context(|| format!("{} has no {kind} probe", self.name()))?;
            self.passes(probe)
                .await
                .with_context(|| format!("the {kind} probe of {}", self.name()))?;
        }
        Ok(())
    }

    async fn passes(&self, probe: &Probe) -> Result<()> {
        let get = probe.http_get.as_ref().context("is no httpGet")?;
        let address = match &get.port {
            IntOrString::Int(port) => format!("{}:{port}", self.address()),
            IntOrString::String(name) => self.port(name)?,
        };
        let path = get.path.as_deref().unwrap_or("/");
        let answer = http::get(&address, path, ANSWER).await?;
        ensure!(
            answer.status == 200,
            "{path} at {address} answers {} {}",
            answer.status,
            answer.body
        );
        Ok(())
    }
}
