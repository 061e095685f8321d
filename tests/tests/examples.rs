//! The examples of rules are taken by an API server as they are.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use runnel_hub::crd::yaml;
use runnel_tests::control_plane::{ControlPlane, Options};
use runnel_tests::wait::eventually;

const SOON: Duration = Duration::from_secs(30);
const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/examples");

#[tokio::test]
async fn every_example_is_accepted() -> Result<()> {
    let hub = ControlPlane::start("examples", Options::default()).await?;
    hub.kubectl_stdin(&["apply", "--server-side", "-f", "-"], &yaml()).await?;
    hub.kubectl_stdin(&["wait", "--for=condition=Established", "--timeout=30s", "-f", "-"], &yaml()).await?;
    // A dry run makes no namespace, and needs the one that the seed makes.
    hub.kubectl(&["create", "namespace", "ns-codis-test"]).await?;
    eventually("kubectl to find the new kinds", SOON, async || Ok(Some(hub.kubectl(&["get", "drule"]).await?))).await?;

    let mut accepted = 0;
    for entry in Path::new(EXAMPLES).read_dir().context(EXAMPLES)? {
        let path = entry?.path();
        let file = path.to_str().context("a path that is not text")?;
        let apply =
            ["apply", "--server-side", "--dry-run=server", "--validate=strict", "--warnings-as-errors", "-f", file];
        let said = hub.kubectl(&apply).await.with_context(|| file.to_owned())?;
        ensure!(said.contains("distributionrule.runnel.dev/"), "{file} holds no rule: {said}");
        accepted += 1;
    }
    ensure!(accepted >= 4, "only {accepted} examples");
    Ok(())
}
