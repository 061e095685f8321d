//! Workloads that others scale.
use anyhow::{Result, ensure};
use runnel_proto::model::Reason;
use serde_json::json;

use crate::owned::{Kept, deployment};

#[tokio::test]
async fn contention_with_who_scales_names_the_field_to_leave_out() -> Result<()> {
    let one = Kept::start("scaled", "deployments.apps", "apps/v1", "Deployment").await?;
    let mut fields = deployment("web:1", &["A"]);
    fields["spec"]["replicas"] = json!(2);
    one.want(fields).await?;
    let ours = ("/spec/replicas", json!(2));
    let namespace = one.alone.ns("a");
    for _ in 0..6 {
        let arguments = [
            "-n",
            &namespace,
            "scale",
            "deployment",
            "one",
            "--replicas=5",
        ];
        one.alone.plane.kubectl(&arguments).await?;
        one.has("put back", std::slice::from_ref(&ours)).await?;
    }
    let message = one.alone.hub.wait_failed("r", Reason::Contended).await?;
    ensure!(
        message.starts_with("kubectl keeps changing /spec/replicas of this copy")
            && message.contains("ignoreFields: [/spec/replicas]"),
        "{message}"
    );
    Ok(())
}
