//! `kubectl runnel status` and `members`.
use anyhow::Context;
use jiff::Timestamp;
use runnel_proto::model::is_subdomain;
use serde_json::{Value, json};

use super::access::Cluster;
use super::args::{Members, Output, Status};
use super::objects::{Rule, tidy};
use super::parse::{self, RuleRef};
use super::progress::colors;
use super::read_cluster::{self, API};
use super::{
    CommandContext, checks, clusters_output, ended, for_machines, note, print, rules, usage, views,
};
use runnel_api::MemberCluster;

/// Shows rules, or one.
pub(super) async fn run(session: &CommandContext<'_>, options: &Status) -> anyhow::Result<()> {
    let hub = session.hub().await?;
    let namespace = session.rule_namespace(&hub)?;
    let now = Timestamp::now();
    warn_of_silence(&hub, hub_namespace(&options.hub_namespace)?).await;
    if let Some(given) = &options.rule {
        let object = tidy(one(&hub, given, &namespace).await?);
        if let Some(text) = for_machines(options.output, &object)?.filter(|_| !options.outdated) {
            return print(&text);
        }
        let rule = Rule::read(&object)?;
        if options.outdated {
            let rows = views::deliveries(&hub, &rule).await?;
            return print(&clusters_output::outdated(&rows, width(), colors()));
        }
        if options.output == Some(Output::Wide) {
            return print_rule(&hub, &rule, now).await;
        }
        return print(&rules::rule(&rule, now, colors()));
    }
    let all = options.all_namespaces;
    let found = read_cluster::rules(&hub, (!all).then_some(namespace.as_str())).await?;
    let found: Vec<Value> = found.into_iter().map(tidy).collect();
    if let Some(text) = for_machines(options.output, &listed(&found))? {
        return print(&text);
    }
    if found.is_empty() {
        let place = if all {
            "this cluster".to_owned()
        } else {
            format!("namespace {namespace}")
        };
        let hint = if all {
            ""
        } else {
            " (-A shows all namespaces)"
        };
        note(&format!("No rules in {place}{hint}."));
    } else {
        let rules = found
            .iter()
            .map(Rule::read)
            .collect::<anyhow::Result<Vec<_>>>()?;
        print(
            &rules::rules(&rules, all, options.output == Some(Output::Wide), now).text(colors()),
        )?;
    }
    // Below the rules, because most problems of all of them come from an unreachable member.
    if let Ok(members) = read_cluster::members::<MemberCluster>(&hub).await {
        print(&format!("\n{}\n", rules::members_in_short(&members)))?;
    }
    Ok(())
}

/// Returns the columns of the terminal, if the shell exports them.
fn width() -> usize {
    std::env::var("COLUMNS")
        .ok()
        .and_then(|columns| columns.parse().ok())
        .unwrap_or(100)
}

fn hub_namespace(namespace: &str) -> anyhow::Result<&str> {
    if !is_subdomain(namespace) {
        return Err(usage(format!("--hub-namespace `{namespace}` is no name")));
    }
    Ok(namespace)
}

/// Warns if no hub leads. Prints nothing if the Lease cannot be read.
async fn warn_of_silence(hub: &Cluster, namespace: &str) {
    let Ok(Some(lease)) = read_cluster::lease(hub, namespace).await else {
        return;
    };
    // By the API server's clock, as the hub that renews it may be elsewhere.
    let Ok(Some(now)) = hub.clock().await else {
        return;
    };
    if let Some(warning) = checks::silence(&lease, now) {
        note(&warning);
    }
}

/// Shows one rule with all its clusters. Without the view API it shows the status.
async fn print_rule(hub: &Cluster, rule: &Rule, now: Timestamp) -> anyhow::Result<()> {
    match views::deliveries(hub, rule).await {
        Ok(rows) => {
            print(&rules::heading(rule, now, colors()))?;
            print(&format!("\n{}", clusters_output::clusters(&rows, colors())))
        }
        Err(why) => {
            print(&rules::rule(rule, now, colors()))?;
            Err(ended(
                super::FAILED,
                format!("this is the status of the rule, with 20 clusters at most: {why:#}"),
            ))
        }
    }
}

pub(super) async fn one(hub: &Cluster, given: &str, namespace: &str) -> anyhow::Result<Value> {
    let (path, what, other) = match parse::rule(given, namespace).map_err(usage)? {
        RuleRef::Cluster(name) => (
            format!("{API}/clusterdistributionrules/{name}"),
            format!("ClusterDistributionRule {name}"),
            None,
        ),
        RuleRef::Namespaced { namespace, name } => (
            format!("{API}/namespaces/{namespace}/distributionrules/{name}"),
            format!("DistributionRule {name} in namespace {namespace}"),
            (!given.contains('/')).then(|| format!("{API}/clusterdistributionrules/{name}")),
        ),
    };
    if let Some(found) = hub.get("read the rule", &path).await? {
        return Ok(found);
    }
    if let Some(path) = other
        && let Ok(Some(found)) = hub.get("read the rule", &path).await
    {
        return Ok(found);
    }
    Err(ended(
        super::FAILED,
        format!("there is no {what}: `kubectl runnel status -A` lists all rules"),
    ))
}

/// Shows members.
pub(super) async fn members(session: &CommandContext<'_>, options: &Members) -> anyhow::Result<()> {
    let hub = session.hub().await?;
    warn_of_silence(&hub, hub_namespace(&options.hub_namespace)?).await;
    let found: Vec<Value> = match &options.cluster {
        Some(name) if !is_subdomain(name) => {
            return Err(usage(format!("`{name}` is no name of a cluster")));
        }
        Some(name) => match hub
            .get("read the member", &read_cluster::member_path(name))
            .await?
        {
            Some(member) => vec![tidy(member)],
            None => {
                return Err(ended(
                    super::FAILED,
                    format!("there is no member {name}: `kubectl runnel members`"),
                ));
            }
        },
        None => read_cluster::members(&hub)
            .await?
            .into_iter()
            .map(tidy)
            .collect(),
    };
    let value = match (&options.cluster, found.as_slice()) {
        (Some(_), [one]) => one.clone(),
        _ => listed(&found),
    };
    if let Some(text) = for_machines(options.output, &value)? {
        return print(&text);
    }
    let members = found
        .into_iter()
        .map(serde_json::from_value)
        .collect::<Result<Vec<MemberCluster>, _>>()
        .context(
            "a member has a value that this plugin does not support (`kubectl runnel version`)",
        )?;
    if members.is_empty() {
        note(&rules::members_in_short(&members));
        return Ok(());
    }
    print(
        &rules::members(
            &members,
            options.output == Some(Output::Wide),
            Timestamp::now(),
        )
        .text(colors()),
    )
}

fn listed(items: &[Value]) -> Value {
    json!({"apiVersion": "v1", "kind": "List", "items": items})
}
