//! `kubectl runnel unjoin`: a cluster leaves in order, or by force.
use std::time::{Duration, Instant};

use jiff::Timestamp;
use runnel_api::MemberCluster;
use runnel_hub::ca;
use runnel_proto::model::HUB_LABEL;
use runnel_proto::model::is_subdomain;
use serde_json::json;

use super::access::Cluster;
use super::args;
use super::confirm::confirm;
use super::helm::Helm;
use super::hints::Endpoint;
use super::join::{forget_agent, hub, member};
use super::objects::{HasConditions, Rule};
use super::progress::Progress;
use super::{
    CommandContext, FAILED, TIMED_OUT, ended, note, parse, print, read_cluster, rights, usage,
};
use runnel_api::conditions::ConditionType;
use runnel_hub_core::now::age;

const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Lets a cluster leave.
pub(super) async fn run(
    session: &CommandContext<'_>,
    options: &args::Unjoin,
) -> anyhow::Result<()> {
    let timeout = parse::duration("--timeout", &options.timeout).map_err(usage)?;
    let name = &options.cluster;
    if !is_subdomain(name) {
        return Err(usage(format!("`{name}` is no name of a cluster")));
    }
    let namespace = session.system();
    let hub = hub(session, &options.member).await?;
    let member = member(session, &options.member).await?;
    if member.is_some() {
        // Before anything is changed.
        Helm::binary()?;
    }
    hub.require("let a cluster leave", &rights::unjoin())
        .await?;
    let Some(object) = hub
        .get::<MemberCluster>("read the MemberCluster", &read_cluster::member_path(name))
        .await?
    else {
        return Err(ended(
            FAILED,
            format!("there is no member {name}: `kubectl runnel members` lists all"),
        ));
    };
    let connected = object.condition(ConditionType::Connected);
    if !connected.is_true() && !options.force {
        let since = age(connected.since, Timestamp::now());
        let text = format!(
            "{name} is not connected ({}, {since}), so its copies cannot be removed or released; nothing was changed. Bring it back, \
             or `kubectl runnel unjoin {name} --force` to remove it and leave its copies where they are",
            if connected.reason.is_empty() {
                "NeverConnected"
            } else {
                connected.reason
            }
        );
        return Err(ended(FAILED, text));
    }
    print(&summary(&hub, name, &object))?;
    if options.dry_run {
        return print("Dry run: nothing was changed.\n");
    }
    confirm(&format!("Remove {name}?"), options.yes)?;
    let left_behind = if options.force && !connected.is_true() {
        Some(left_behind(&hub, namespace, name, &object).await)
    } else {
        match leave(&hub, name, timeout, options.force).await? {
            Some(message) => Some(format!("{message}\n")),
            None => Some(left_behind(&hub, namespace, name, &object).await),
        }
    };
    remove(&hub, name, timeout).await?;
    print(&format!(
        "{name} is removed: its MemberCluster is deleted, and its certificates are revoked.\n"
    ))?;
    if let Some(text) = left_behind {
        print(&text)?;
    }
    match member {
        Some(member) => {
            let there = forget_agent(&member, namespace).await?;
            let what = if there {
                "The agent is uninstalled"
            } else {
                "There was no agent of helm's"
            };
            print(&format!(
                "{what} in {}, and its own Secrets are deleted.\n",
                member.place
            ))
        }
        None => print(&format!(
            "The agent is still installed there: helm uninstall runnel-agent -n {namespace} --kube-context CONTEXT\n"
        )),
    }
}

/// Lists what `unjoin` removes.
fn summary(hub: &Cluster, name: &str, object: &MemberCluster) -> String {
    let Endpoint {
        context, server, ..
    } = &hub.place;
    let copies = if object.condition(ConditionType::Connected).is_true() {
        "its copies are removed or kept, by the deletionPolicy of each rule; blocked removals, too"
    } else {
        "it is not connected: its copies stay there and are managed no more"
    };
    format!(
        "This removes {name} from the hub (context {context}, {server}):\n  \
         {copies}\n  \
         its MemberCluster is deleted, and its certificates are revoked\n"
    )
}

/// Waits until the cluster is drained, and returns the hub's message; `None`: ended early by force.
async fn leave(
    hub: &Cluster,
    name: &str,
    timeout: Duration,
    force: bool,
) -> anyhow::Result<Option<String>> {
    let path = read_cluster::member_path(name);
    hub.patch(
        "let the cluster leave",
        &path,
        json!({"spec": {"leaving": true}}),
    )
    .await?;
    let mut progress = Progress::start(&format!("{name} leaves: waiting for its copies"));
    let begin = Instant::now();
    let outcome = loop {
        let Some(object) = hub
            .get::<MemberCluster>("read the MemberCluster", &path)
            .await?
        else {
            break Ok(String::new());
        };
        let (left, connected) = (
            object.condition(ConditionType::Drained),
            object.condition(ConditionType::Connected),
        );
        if left.is_true() {
            break Ok(left
                .message
                .split(": this MemberCluster")
                .next()
                .unwrap_or_default()
                .to_owned());
        }
        if begin.elapsed() >= timeout {
            break Err((left.message.to_owned(), connected.is_true()));
        }
        let how = match (connected.is_true(), left.message) {
            (true, "") => "waiting for its copies",
            (true, message) => message,
            (false, _) => "the agent is not connected any more",
        };
        progress.set_text(&format!("{name} leaves: {how}"));
        tokio::time::sleep(POLL_INTERVAL).await;
    };
    progress.end();
    match outcome {
        Ok(message) => Ok(Some(message)),
        Err(_) if force => {
            note(&format!(
                "warning: {name} has not removed or released its copies within {}; it is removed by force",
                parse::duration_text(timeout)
            ));
            Ok(None)
        }
        Err((message, connected)) => {
            let why = if connected {
                message
            } else {
                "its agent is not connected".to_owned()
            };
            let text = format!(
                "{name} has not left within {}: {why}. It is still leaving (spec.leaving is true): `kubectl runnel unjoin \
                 {name}` again waits again, with --force it is removed and what is left of its copies stays; \
                 `kubectl runnel status -A` and the agent's log say what holds it",
                parse::duration_text(timeout)
            );
            Err(ended(TIMED_OUT, text))
        }
    }
}

/// Deletes a `MemberCluster` and waits for its deletion.
pub(super) async fn remove(hub: &Cluster, name: &str, timeout: Duration) -> anyhow::Result<()> {
    let path = read_cluster::member_path(name);
    let begin = Instant::now();
    hub.delete(&format!("delete the MemberCluster {name}"), &path)
        .await?;
    while hub.exists("read the MemberCluster", &path).await? {
        if begin.elapsed() >= timeout {
            let text =
                format!("the MemberCluster {name} is still there: see its metadata.finalizers");
            return Err(ended(TIMED_OUT, text));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

/// Describes the remaining copies in a cluster that is removed by force.
async fn left_behind(hub: &Cluster, namespace: &str, name: &str, object: &MemberCluster) -> String {
    let rules: Vec<Rule> = read_cluster::rules(hub, None).await.unwrap_or_default();
    let mut lines = Vec::new();
    for rule in &rules {
        let clusters = rule.status().map(|status| &status.clusters);
        let cluster = clusters
            .into_iter()
            .flatten()
            .find(|cluster| cluster.name == name && cluster.applied > 0);
        if let Some(cluster) = cluster {
            lines.push(format!(
                "  {} copies of rule {}",
                cluster.applied,
                rule.full_name()
            ));
        }
    }
    match read_cluster::record(hub, object).await {
        Ok(record) => lines.extend(record.iter().flat_map(|record| {
            let pending = record.spec.pending_removals.iter();
            pending.map(|pending| format!("  the copies of the deleted rule {}", pending.rule))
        })),
        Err(error) => lines.push(format!("  copies of deleted rules, perhaps: {error:#}")),
    }
    if lines.is_empty() {
        lines.push("  nothing in the state of the hub".to_owned());
    }
    // Another hub may have copies in the cluster, too.
    let identity = ca::load(&hub.client(), namespace).await.ok().flatten();
    let id = identity.map_or_else(|| "ID".to_owned(), |identity| identity.hub_id);
    format!(
        "Left behind there, by the state of the hub:\n{}\nTo remove all copies of this hub in that cluster:\n  kubectl \
         --context CONTEXT delete configmaps,secrets -A -l {HUB_LABEL}={id}\nand the same with the other kinds of its policy\n",
        lines.join("\n")
    )
}
