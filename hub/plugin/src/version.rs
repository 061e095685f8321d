//! `kubectl runnel version`.
use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::Deployment;
use runnel_api::MemberCluster;
use serde_json::{Value, json};

use super::checks::image;
use super::helm::HUB;
use super::objects::member_status;
use super::{CommandContext, args, for_machines, print, read_cluster};

/// Shows versions.
pub(super) async fn run(
    session: &CommandContext<'_>,
    options: &args::Version,
) -> anyhow::Result<()> {
    let mut seen = json!({"client": env!("CARGO_PKG_VERSION")});
    let mut why = None;
    if !options.client {
        match of_clusters(session).await {
            Ok((hub, agents)) => {
                seen["hub"] = hub;
                seen["agents"] = json!(agents);
            }
            Err(error) => why = Some(error),
        }
    }
    match for_machines(options.output, &seen)? {
        Some(text) => print(&text)?,
        None => print(&text_page(&seen))?,
    }
    match why {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

async fn of_clusters(
    session: &CommandContext<'_>,
) -> anyhow::Result<(Value, BTreeMap<String, usize>)> {
    let hub = session.hub().await?;
    let namespace = session.system();
    let path = format!("/apis/apps/v1/namespaces/{namespace}/deployments/{HUB}");
    let deployment: Option<Deployment> = hub.get("read the Deployment runnel-hub", &path).await?;
    let mut agents: BTreeMap<String, usize> = BTreeMap::new();
    if deployment.is_some() {
        for member in read_cluster::members::<MemberCluster>(&hub).await? {
            let version = member_status(&member).agent_version;
            let version = version.unwrap_or_else(|| "unknown".to_owned());
            *agents.entry(version).or_default() += 1;
        }
    }
    let described = deployment.map_or(Value::Null, |deployment| {
        let labels = deployment.metadata.labels.as_ref();
        let version = labels.and_then(|labels| labels.get("app.kubernetes.io/version"));
        json!({
            "version": version.map_or("", String::as_str),
            "image": image(&deployment).unwrap_or_default(),
        })
    });
    Ok((described, agents))
}

fn text_page(seen: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut page = format!("Client: {}\n", text(&seen["client"]));
    if let Some(hub) = seen.get("hub") {
        page += &if hub.is_null() {
            "Hub:    not installed\n".to_owned()
        } else {
            format!(
                "Hub:    {} ({})\n",
                text(&hub["version"]),
                text(&hub["image"])
            )
        };
    }
    let agents = seen.get("agents").and_then(Value::as_object);
    for (version, count) in agents.into_iter().flatten() {
        page += &format!("Agents: {version} ({count})\n");
    }
    page
}
