//! `kubectl runnel status` and `members`.
use anyhow::Context;
use jiff::Timestamp;
use runnel_proto::model::is_subdomain;
use serde_json::{Value, json};

use super::access::Cluster;
use super::args::{Members, Status};
use super::follow::{Followed, follow};
use super::objects::{HasConditions, Rule, tidy};
use super::output::ListOutput;
use super::parse::{self, RuleRef};
use super::progress::colors;
use super::read_cluster::{self, API};
use super::table::{Table, Widths};
use super::views::DeliveryRow;
use super::{
    CommandContext, checks, clusters_output, ended, note, print, rules, usage, views, write_out,
};
use runnel_api::conditions::ConditionType;
use runnel_api::{
    ClusterDelivery, ClusterDistributionRule, Delivery, DistributionRule, MemberCluster,
};

/// Shows rules, or one.
pub(super) async fn run(session: &CommandContext<'_>, options: &Status) -> anyhow::Result<()> {
    let hub = session.hub().await?;
    let namespace = session.rule_namespace(&hub)?;
    warn_of_silence(&hub, &options.hub_namespace).await;
    if options.watch {
        return watch(&hub, options, &namespace).await;
    }
    let all_ready = match &options.rule {
        Some(given) => {
            let object = tidy(one(&hub, given, &namespace).await?);
            show_rule(&hub, options, object).await?
        }
        None => show_rules(&hub, options, &namespace).await?,
    };
    if options.exit_code && !all_ready {
        return Err(ended(super::NOT_READY, ""));
    }
    Ok(())
}

/// Shows one rule. Returns whether it is ready; with `--outdated` whether no cluster is outdated.
async fn show_rule(hub: &Cluster, options: &Status, object: Value) -> anyhow::Result<bool> {
    let now = Timestamp::now();
    if options.outdated {
        let rows = views::deliveries(hub, &Rule::read(&object)?).await?;
        let old = rows
            .iter()
            .filter(|row| clusters_output::outdated_word(row).is_some());
        let old: Vec<Value> = old.map(|row| row.object.clone()).collect();
        let text = formatted(options.output.as_ref(), &listed(&old))?;
        let text = text.unwrap_or_else(|| clusters_output::outdated(&rows, width(), colors()));
        print(&text)?;
        return Ok(old.is_empty());
    }
    if let Some(text) = formatted(options.output.as_ref(), &object)? {
        print(&text)?;
        return Ok(is_ready(&Rule::read(&object)?));
    }
    let rule = Rule::read(&object)?;
    if options.output == Some(ListOutput::Wide) {
        print_rule(hub, &rule, now).await?;
    } else {
        print(&rules::rule(&rule, now, colors()))?;
    }
    Ok(is_ready(&rule))
}

/// Shows the rules of a namespace, or all. Returns whether all are ready.
async fn show_rules(hub: &Cluster, options: &Status, namespace: &str) -> anyhow::Result<bool> {
    let all = options.all_namespaces;
    let namespace = (!all).then_some(namespace);
    let found = read_cluster::labeled_rules(hub, namespace, options.selector.as_deref()).await?;
    let found: Vec<Value> = found.into_iter().map(tidy).collect();
    let read = || {
        found
            .iter()
            .map(Rule::read)
            .collect::<anyhow::Result<Vec<_>>>()
    };
    if let Some(text) = formatted(options.output.as_ref(), &listed(&found))? {
        print(&text)?;
        return Ok(!options.exit_code || read()?.iter().all(is_ready));
    }
    let rules = read()?;
    if rules.is_empty() {
        let (place, hint) = match namespace {
            None => ("this cluster".to_owned(), ""),
            Some(name) => (format!("namespace {name}"), " (-A shows all namespaces)"),
        };
        note(&format!("No rules in {place}{hint}."));
    } else {
        let wide = options.output == Some(ListOutput::Wide);
        let table = rules::rules(&rules, all, wide, Timestamp::now());
        print(&table.headed(!options.no_headers).text(colors()))?;
    }
    // Below the rules, because most problems of all of them come from an unreachable member.
    if !options.no_headers
        && let Ok(members) = read_cluster::members::<MemberCluster>(hub).await
    {
        print(&format!("\n{}\n", rules::members_in_short(&members)))?;
    }
    Ok(rules.iter().all(is_ready))
}

/// Shows rules, or the clusters of one, whenever they change.
async fn watch(hub: &Cluster, options: &Status, namespace: &str) -> anyhow::Result<()> {
    let wide = options.output == Some(ListOutput::Wide);
    let selector = options.selector.as_deref();
    let followed = match &options.rule {
        Some(given) => {
            let rule = Rule::read(&one(hub, given, namespace).await?)?;
            let (own, name) = (Some(rule.namespace()), rule.name());
            vec![match (&rule, wide) {
                (Rule::DistributionRule(_), true) => {
                    Followed::all::<Delivery>(own).with_field("rule", name)
                }
                (Rule::ClusterDistributionRule(_), true) => {
                    Followed::all::<ClusterDelivery>(None).with_field("rule", name)
                }
                (Rule::DistributionRule(_), false) => {
                    Followed::all::<DistributionRule>(own).with_field("metadata.name", name)
                }
                (Rule::ClusterDistributionRule(_), false) => {
                    Followed::all::<ClusterDistributionRule>(None).with_field("metadata.name", name)
                }
            }]
        }
        None if options.all_namespaces => vec![
            Followed::all::<DistributionRule>(None).with_labels(selector),
            Followed::all::<ClusterDistributionRule>(None).with_labels(selector),
        ],
        None => vec![Followed::all::<DistributionRule>(Some(namespace)).with_labels(selector)],
    };
    let mut printer = Printer::new(options.no_headers);
    let clusters = options.rule.is_some() && wide;
    follow(hub, followed, |objects| {
        printer.print(options.output.as_ref(), objects, || {
            if clusters {
                let rows = objects.iter().cloned().map(DeliveryRow::read);
                return Ok(clusters_output::table(
                    &rows.collect::<anyhow::Result<Vec<_>>>()?,
                ));
            }
            let rules = objects.iter().map(Rule::read);
            let rules = rules.collect::<anyhow::Result<Vec<_>>>()?;
            Ok(rules::rules(
                &rules,
                options.all_namespaces,
                wide,
                Timestamp::now(),
            ))
        })
    })
    .await
}

/// Prints the objects of a watch: tables whose columns continue, or a text for each object.
struct Printer {
    headed: bool,
    widths: Widths,
}

impl Printer {
    fn new(no_headers: bool) -> Self {
        Self {
            headed: !no_headers,
            widths: Widths::default(),
        }
    }

    /// Returns whether somebody reads the output.
    fn print(
        &mut self,
        output: Option<&ListOutput>,
        objects: &[Value],
        table: impl FnOnce() -> anyhow::Result<Table>,
    ) -> anyhow::Result<bool> {
        let mut texts = String::new();
        let mut is_table = true;
        for object in objects {
            if let Some(text) = formatted(output, object)? {
                is_table = false;
                texts += &text;
            }
        }
        if is_table && !objects.is_empty() {
            let table = table()?.headed(std::mem::take(&mut self.headed));
            texts = table.continued(&mut self.widths, colors());
        }
        write_out(&texts)
    }
}

/// Returns the text for machines; `None` for a table.
fn formatted(output: Option<&ListOutput>, object: &Value) -> anyhow::Result<Option<String>> {
    output.map_or(Ok(None), |output| output.text(object))
}

fn is_ready(rule: &Rule) -> bool {
    rule.condition(ConditionType::Ready).is_true()
}

/// Returns the columns of the terminal, if the shell exports them.
fn width() -> usize {
    std::env::var("COLUMNS")
        .ok()
        .and_then(|columns| columns.parse().ok())
        .unwrap_or(100)
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
    warn_of_silence(&hub, &options.hub_namespace).await;
    if let Some(name) = options
        .cluster
        .as_deref()
        .filter(|name| !is_subdomain(name))
    {
        return Err(usage(format!("`{name}` is no name of a cluster")));
    }
    let wide = options.output == Some(ListOutput::Wide);
    let table = |objects: &[Value]| {
        let members = objects.iter().cloned().map(serde_json::from_value);
        let members = members.collect::<Result<Vec<MemberCluster>, _>>().context(
            "a member has a value that this plugin does not support (`kubectl runnel version`)",
        )?;
        anyhow::Ok((rules::members(&members, wide, Timestamp::now()), members))
    };
    if options.watch {
        let all = Followed::all::<MemberCluster>(None).with_labels(options.selector.as_deref());
        let followed = match &options.cluster {
            Some(name) => all.with_field("metadata.name", name),
            None => all,
        };
        let mut printer = Printer::new(options.no_headers);
        return follow(&hub, vec![followed], |objects| {
            printer.print(options.output.as_ref(), objects, || Ok(table(objects)?.0))
        })
        .await;
    }
    let found: Vec<Value> = match &options.cluster {
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
        None => read_cluster::labeled_members(&hub, options.selector.as_deref())
            .await?
            .into_iter()
            .map(tidy)
            .collect(),
    };
    let value = match (&options.cluster, found.as_slice()) {
        (Some(_), [one]) => one.clone(),
        _ => listed(&found),
    };
    if let Some(text) = formatted(options.output.as_ref(), &value)? {
        return print(&text);
    }
    let (table, members) = table(&found)?;
    if members.is_empty() {
        note(&match &options.selector {
            Some(selector) => format!("No member has labels that fit {selector}."),
            None => rules::members_in_short(&members),
        });
        return Ok(());
    }
    print(&table.headed(!options.no_headers).text(colors()))
}

fn listed(items: &[Value]) -> Value {
    json!({"apiVersion": "v1", "kind": "List", "items": items})
}
