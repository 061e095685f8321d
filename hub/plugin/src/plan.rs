//! `kubectl runnel plan`: previews a rule, saved or not.
//! A rule of a file is sent to the API server as a dry run with the user's permissions first, so
//! that a refusal has the same message as on save.
use anyhow::Context;
use runnel_proto::model::is_subdomain;
use runnel_proto::wire::{PlanQuestion, RuleQuestion};
use serde_json::{Value, json};

use super::access::Cluster;
use super::args::{DryRun, Output, Plan};
use super::manifests;
use super::objects::tidy;
use super::plan_report::{self, PlanReport, State};
use super::progress::colors;
use super::{CommandContext, ended, for_machines, hub_query, print, read_cluster, status, usage};

/// Lines of a table: as a terminal has them, and as a wide one.
const NARROW: usize = 80;
const WIDE: usize = 160;
/// The most rules that are planned at a time.
const RULES: usize = 200;
/// Number of dry runs against an object that others write meanwhile.
const DRY_RUN_TRIES: usize = 5;

/// Plans rules.
pub(super) async fn run(session: &CommandContext<'_>, options: &Plan) -> anyhow::Result<()> {
    let hub = session.hub().await?;
    let namespace = session
        .namespace
        .unwrap_or(&hub.default_namespace)
        .to_owned();
    for (flag, name) in [
        ("--namespace", &namespace),
        ("--hub-namespace", &options.hub_namespace),
    ] {
        if !is_subdomain(name) {
            return Err(usage(format!("{flag} `{name}` is no name")));
        }
    }
    let (dry_run, diff) = (options.dry_run == Some(DryRun::Members), options.diff);
    let question = || PlanQuestion {
        dry_run,
        diff,
        delete: options.delete,
        ..PlanQuestion::default()
    };
    let mut questions = Vec::new();
    if let Some(given) = &options.rule {
        let rule = status::one(&hub, given, &namespace).await?;
        questions.push((
            called(&rule),
            PlanQuestion {
                rule: Some(named(&rule)),
                ..question()
            },
        ));
    }
    let rules = manifests::read_all(&options.files, options.recursive)?
        .into_iter()
        .map(|file| {
            let rules =
                plan_report::rules(file.documents, &file.name, &namespace).map_err(usage)?;
            Ok(rules
                .into_iter()
                .map(|rule| (file.name.clone(), rule))
                .collect())
        });
    let rules: Vec<(String, Value)> = rules.collect::<anyhow::Result<Vec<Vec<_>>>>()?.concat();
    if rules.is_empty() && !options.files.is_empty() {
        let files = options.files.join(", ");
        return Err(usage(format!(
            "{files}: no DistributionRule, ClusterDistributionRule, DistributionGrant or MemberCluster"
        )));
    }
    if rules.len() > RULES {
        return Err(usage(format!(
            "{} objects: at most {RULES} are planned at a time",
            rules.len()
        )));
    }
    for (file, rule) in rules {
        if options.delete {
            questions.push((
                called(&rule),
                PlanQuestion {
                    rule: Some(named(&rule)),
                    ..question()
                },
            ));
        } else {
            let taken = with_defaults(&hub, rule).await.with_context(|| file)?;
            questions.push((
                called(&taken),
                PlanQuestion {
                    object: taken.to_string(),
                    ..question()
                },
            ));
        }
    }
    let mut plans = Vec::new();
    for (rule, question) in questions {
        let saved = if question.delete {
            State::Deleted
        } else if question.object.is_empty() {
            State::Saved
        } else {
            State::Edited
        };
        let pages = hub_query::plan(
            &hub,
            &options.hub_namespace,
            options.hub_url.as_deref(),
            question,
        )
        .await;
        plans.push(PlanReport::of(
            rule.clone(),
            saved,
            pages.with_context(|| rule)?,
        ));
    }
    let value = json!({"plans": plans.iter().map(PlanReport::value).collect::<Vec<_>>()});
    match for_machines(options.output, &value)? {
        Some(text) => print(&text)?,
        None => {
            let width = if options.output == Some(Output::Wide) {
                WIDE
            } else {
                NARROW
            };
            let texts: Vec<_> = plans
                .iter()
                .map(|plan| plan.text(width, colors()))
                .collect();
            print(&texts.join("\n"))?;
        }
    }
    if plans.iter().any(PlanReport::would_fail) {
        return Err(ended(super::WOULD_FAIL, ""));
    }
    Ok(())
}

/// A text of a manifest, which may be anything; empty where it is none.
fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn called(rule: &Value) -> String {
    plan_report::called(
        text(&rule["kind"]),
        text(&rule["metadata"]["namespace"]),
        text(&rule["metadata"]["name"]),
    )
}

fn named(rule: &Value) -> RuleQuestion {
    RuleQuestion {
        kind: text(&rule["kind"]).to_owned(),
        namespace: text(&rule["metadata"]["namespace"]).to_owned(),
        name: text(&rule["metadata"]["name"]).to_owned(),
    }
}

/// The rule as the API server would save it, with its defaults; nothing is saved.
async fn with_defaults(hub: &Cluster, rule: Value) -> anyhow::Result<Value> {
    let (namespace, name) = (
        text(&rule["metadata"]["namespace"]),
        text(&rule["metadata"]["name"]),
    );
    for given in [name, namespace]
        .into_iter()
        .filter(|given| !given.is_empty())
    {
        if !is_subdomain(given) {
            return Err(usage(format!("`{given}` is no name")));
        }
    }
    if name.is_empty() {
        return Err(usage("an object without metadata.name"));
    }
    let (all, what) = match text(&rule["kind"]) {
        "DistributionRule" => (
            format!(
                "{}/namespaces/{namespace}/distributionrules",
                read_cluster::API
            ),
            format!("{namespace}/{name}"),
        ),
        "DistributionGrant" => (
            format!("{}/distributiongrants", read_cluster::API),
            name.to_owned(),
        ),
        "MemberCluster" => (
            format!("{}/memberclusters", read_cluster::API),
            name.to_owned(),
        ),
        _ => (
            format!("{}/clusterdistributionrules", read_cluster::API),
            name.to_owned(),
        ),
    };
    let one = format!("{all}/{name}");
    let action = format!(
        "save {} {what} (a dry run: nothing was saved)",
        text(&rule["kind"])
    );
    // The hub writes statuses at any time, and so may another client.
    for _ in 0..DRY_RUN_TRIES {
        let saved: Option<Value> = hub.get("read the object as it is saved", &one).await?;
        let taken = match saved {
            None => hub.dry_run(&action, &all, &rule, false).await?,
            Some(saved) => {
                hub.dry_run(&action, &one, &edited(saved, &rule), true)
                    .await?
            }
        };
        if let Some(taken) = taken {
            let mut taken = tidy(taken);
            if let Some(object) = taken.as_object_mut() {
                object.remove("status");
            }
            return Ok(taken);
        }
    }
    anyhow::bail!("cannot {action}: it changed {DRY_RUN_TRIES} times meanwhile; try again")
}

/// Returns the saved object with the spec, labels and annotations of a manifest.
fn edited(mut saved: Value, rule: &Value) -> Value {
    match (text(&rule["kind"]), &rule["spec"]) {
        // A manifest of a member cluster often has its labels alone.
        ("MemberCluster", spec) => {
            for (field, value) in spec.as_object().into_iter().flatten() {
                saved["spec"][field] = value.clone();
            }
        }
        (_, spec) => saved["spec"] = spec.clone(),
    }
    for place in ["labels", "annotations"] {
        for (key, value) in rule["metadata"][place].as_object().into_iter().flatten() {
            saved["metadata"][place][key] = value.clone();
        }
    }
    saved
}
