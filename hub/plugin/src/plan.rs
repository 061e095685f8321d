//! `kubectl runnel plan`: what a rule would do, saved or not.
//!
//! A rule of a file is first shown to the API server as a dry run, with the user's own rights: so it is refused for what it
//! would be refused for when it is saved, in the same words.
use std::io::Read;

use anyhow::Context;
use runnel_proto::model::is_subdomain;
use runnel_proto::wire::{PlanQuestion, RuleQuestion};
use serde_json::{Value, json};

use super::access::Cluster;
use super::args::{DryRun, Output, Plan};
use super::observed_json::{text, tidy};
use super::planned::{self, Planned};
use super::progress::colours;
use super::{CommandContext, ask, ended, for_machines, look, say, status, usage};

/// Lines of a table: as a terminal has them, and as a wide one.
const NARROW: usize = 80;
const WIDE: usize = 160;

/// Plans rules.
pub(super) async fn run(session: &CommandContext<'_>, options: &Plan) -> anyhow::Result<()> {
    let hub = session.hub().await?;
    let namespace = session.namespace.unwrap_or(&hub.default_namespace).to_owned();
    for (flag, name) in [("--namespace", &namespace), ("--hub-namespace", &options.hub_namespace)] {
        if !is_subdomain(name) {
            return Err(usage(format!("{flag} `{name}` is no name")));
        }
    }
    let rehearse = options.dry_run == Some(DryRun::Members);
    let mut questions = Vec::new();
    if let Some(given) = &options.rule {
        let rule = status::one(&hub, given, &namespace).await?;
        let named = RuleQuestion {
            kind: text(&rule, "/kind").to_owned(),
            namespace: text(&rule, "/metadata/namespace").to_owned(),
            name: text(&rule, "/metadata/name").to_owned(),
        };
        questions.push((called(&rule), PlanQuestion { object: String::new(), rule: Some(named), rehearse }));
    }
    for file in &options.files {
        for rule in planned::rules(documents(file)?, file, &namespace).map_err(usage)? {
            let taken = shown(&hub, rule).await?;
            questions.push((called(&taken), PlanQuestion { object: taken.to_string(), rule: None, rehearse }));
        }
    }
    let mut plans = Vec::new();
    for (rule, question) in questions {
        let saved = question.object.is_empty();
        let pages = ask::plan(&hub, &options.hub_namespace, options.hub_url.as_deref(), question).await;
        plans.push(Planned::of(rule.clone(), saved, pages.with_context(|| rule)?));
    }
    let value = json!({"plans": plans.iter().map(Planned::value).collect::<Vec<_>>()});
    match for_machines(options.output, &value)? {
        Some(text) => say(&text)?,
        None => {
            let width = if options.output == Some(Output::Wide) { WIDE } else { NARROW };
            let texts: Vec<_> = plans.iter().map(|plan| plan.text(width, colours())).collect();
            say(&texts.join("\n"))?;
        }
    }
    if plans.iter().any(Planned::would_fail) {
        return Err(ended(super::WOULD_FAIL, ""));
    }
    Ok(())
}

fn called(rule: &Value) -> String {
    let (kind, namespace, name) =
        (text(rule, "/kind"), text(rule, "/metadata/namespace"), text(rule, "/metadata/name"));
    if namespace.is_empty() { format!("{kind} {name}") } else { format!("{kind} {namespace}/{name}") }
}

/// The documents of a file; `-` is standard input.
fn documents(file: &str) -> anyhow::Result<Vec<Value>> {
    let text = match file {
        "-" => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).context("cannot read standard input")?;
            text
        }
        path => std::fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?,
    };
    serde_saphyr::from_multiple(&text).with_context(|| format!("{file} is no YAML or JSON"))
}

/// The rule as the API server would save it, with its defaults; nothing is saved.
async fn shown(hub: &Cluster, rule: Value) -> anyhow::Result<Value> {
    let (namespace, name) = (text(&rule, "/metadata/namespace"), text(&rule, "/metadata/name"));
    for given in [name, namespace].into_iter().filter(|given| !given.is_empty()) {
        if !is_subdomain(given) {
            return Err(usage(format!("`{given}` is no name")));
        }
    }
    if name.is_empty() {
        return Err(usage("a rule without metadata.name"));
    }
    let (all, what) = match text(&rule, "/kind") {
        "DistributionRule" => {
            (format!("{}/namespaces/{namespace}/distributionrules", look::API), format!("{namespace}/{name}"))
        }
        _ => (format!("{}/clusterdistributionrules", look::API), name.to_owned()),
    };
    let one = format!("{all}/{name}");
    let action = format!("save the rule {what} (a dry run: nothing was saved)");
    let saved = hub.get("read the rule as it is saved", &one).await?;
    let taken = match saved {
        None => hub.dry_run(&action, &all, &rule, false).await?,
        Some(mut saved) => {
            saved["spec"] = rule["spec"].clone();
            for place in ["labels", "annotations"] {
                for (key, value) in rule["metadata"][place].as_object().into_iter().flatten() {
                    saved["metadata"][place][key] = value.clone();
                }
            }
            hub.dry_run(&action, &one, &saved, true).await?
        }
    };
    let mut taken = tidy(taken);
    if let Some(object) = taken.as_object_mut() {
        object.remove("status");
    }
    Ok(taken)
}
