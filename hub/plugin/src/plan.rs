//! `kubectl runnel plan`: previews a rule, saved or not.
//! A rule of a file is sent to the API server as a dry run with the user's permissions first, so
//! that a refusal has the same message as on save.
use anyhow::Context;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use runnel_api::{
    BUNDLE_KIND, ClusterRulePlan, ClusterRulePlanSpec, PLANNED_BUNDLES, PlanOptions, RulePlan,
    RulePlanSpec, RulePlanStatus,
};
use runnel_proto::model::is_subdomain;
use serde_json::{Value, json};

use super::access::Cluster;
use super::args::{DryRun, Output, Plan};
use super::manifests;
use super::objects::{Rule, tidy};
use super::plan_report::{self, PlanReport, State};
use super::progress::colors;
use super::{CommandContext, ended, for_machines, print, read_cluster, status, usage, views};

/// Lines of a table: as a terminal has them, and as a wide one.
const NARROW: usize = 80;
const WIDE: usize = 160;
/// The most rules that are planned at a time.
const RULES: usize = 200;
/// Number of dry runs against an object that others write meanwhile.
const DRY_RUN_TRIES: usize = 5;

/// What is planned: an object that is saved, or one that is not.
struct Subject {
    object: Value,
    is_saved: bool,
    /// The bundles that the plan of a rule assumes to be saved.
    bundles: Vec<Value>,
}

/// Plans rules.
pub(super) async fn run(session: &CommandContext<'_>, options: &Plan) -> anyhow::Result<()> {
    let hub = session.hub().await?;
    let namespace = session.rule_namespace(&hub)?;
    let plan_options = PlanOptions {
        dry_run: options.dry_run == Some(DryRun::Members),
        diff: options.diff,
        delete: options.delete,
    };
    let mut subjects = Vec::new();
    if let Some(given) = &options.rule {
        subjects.push(Subject {
            object: status::one(&hub, given, &namespace).await?,
            is_saved: true,
            bundles: vec![],
        });
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
            "{files}: no DistributionRule, ClusterDistributionRule, DistributionGrant, MemberCluster or ManifestBundle"
        )));
    }
    if rules.len() > RULES {
        return Err(usage(format!(
            "{} objects: at most {RULES} are planned at a time",
            rules.len()
        )));
    }
    for (file, rule) in rules {
        let object = if options.delete {
            rule
        } else {
            with_defaults(&hub, rule).await.with_context(|| file)?
        };
        subjects.push(Subject {
            object,
            is_saved: options.delete,
            bundles: vec![],
        });
    }
    if !options.delete {
        add_bundles(&mut subjects).map_err(usage)?;
    }
    let mut plans = Vec::new();
    for subject in subjects {
        let state = if options.delete {
            State::Deleted
        } else if subject.is_saved {
            State::Saved
        } else {
            State::Edited
        };
        let name = called(&subject.object);
        let answer = planned(&hub, subject, plan_options).await;
        plans.push(PlanReport::new(
            name.clone(),
            state,
            answer.with_context(|| name)?,
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

/// Adds to each rule the bundles of the same files that it may select.
fn add_bundles(subjects: &mut [Subject]) -> Result<(), String> {
    let is_bundle = |subject: &&Subject| subject.object["kind"] == "ManifestBundle";
    let bundles: Vec<_> = subjects.iter().filter(is_bundle).collect();
    let bundles: Vec<Value> = bundles.into_iter().map(|one| one.object.clone()).collect();
    for subject in subjects {
        let rule = &subject.object;
        let namespace = match text(&rule["kind"]) {
            "ClusterDistributionRule" => None,
            "DistributionRule" => Some(&rule["metadata"]["namespace"]),
            _ => continue,
        };
        let entries = rule["spec"]["sources"].as_array().into_iter().flatten();
        let mut kinds = entries.filter_map(|entry| entry["resources"].as_array());
        if !kinds.any(|kinds| kinds.iter().any(|kind| kind == BUNDLE_KIND)) {
            continue;
        }
        let is_near = |bundle: &&Value| {
            namespace.is_none_or(|namespace| bundle["metadata"]["namespace"] == *namespace)
        };
        let near: Vec<Value> = bundles.iter().filter(is_near).cloned().collect();
        if near.len() > PLANNED_BUNDLES {
            return Err(format!(
                "{} bundles for {}: a plan assumes at most {PLANNED_BUNDLES}; give fewer files",
                near.len(),
                called(rule)
            ));
        }
        subject.bundles = near;
    }
    Ok(())
}

/// Returns the plan of a saved rule in these member clusters alone, with the paths that change, as text.
pub(super) async fn of_clusters(
    hub: &Cluster,
    rule: &Rule,
    clusters: &[String],
) -> anyhow::Result<String> {
    let object = json!({
        "kind": rule.kind(),
        "metadata": {"namespace": rule.namespace(), "name": rule.name()},
    });
    let name = called(&object);
    let subject = Subject {
        object,
        is_saved: true,
        bundles: vec![],
    };
    let options = PlanOptions {
        diff: true,
        ..PlanOptions::default()
    };
    let mut answer = planned(hub, subject, options).await?;
    for rule in &mut answer.rules {
        rule.clusters
            .retain(|cluster| clusters.contains(&cluster.name));
        rule.copies.retain(|copy| clusters.contains(&copy.cluster));
    }
    let report = PlanReport::new(name, State::Saved, answer);
    Ok(report.text(NARROW, colors()))
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

/// Returns the answer of the hub.
async fn planned(
    hub: &Cluster,
    subject: Subject,
    options: PlanOptions,
) -> anyhow::Result<RulePlanStatus> {
    let Subject {
        object,
        is_saved,
        bundles,
    } = subject;
    let field = |pointer: &str| text(object.pointer(pointer).unwrap_or(&Value::Null)).to_owned();
    let (kind, namespace) = (field("/kind"), field("/metadata/namespace"));
    // A request has the name of a saved object, or a manifest.
    let (saved_kind, name, object) = if is_saved {
        (kind.clone(), field("/metadata/name"), None)
    } else {
        (String::new(), String::new(), Some(object))
    };
    let action = "plan it";
    let answer = if ["DistributionRule", "ManifestBundle"].contains(&kind.as_str()) {
        if !is_subdomain(&namespace) {
            return Err(usage(format!("`{namespace}` is no name of a namespace")));
        }
        let request = RulePlan {
            metadata: ObjectMeta::default(),
            spec: RulePlanSpec {
                object,
                kind: saved_kind,
                name,
                bundles,
                options,
            },
            status: None,
        };
        let place = (Some(namespace.as_str()), "ruleplans");
        views::create(hub, action, place, &request).await?.status
    } else {
        let request = ClusterRulePlan {
            metadata: ObjectMeta::default(),
            spec: ClusterRulePlanSpec {
                kind: saved_kind,
                object,
                name,
                bundles,
                options,
            },
            status: None,
        };
        let place = (None, "clusterruleplans");
        views::create(hub, action, place, &request).await?.status
    };
    answer.context("the answer has no plan: the hub may be older (`kubectl runnel version`)")
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
        "ManifestBundle" => (
            format!(
                "{}/namespaces/{namespace}/manifestbundles",
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

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(kind: &str, namespace: &str, resource: &str) -> Subject {
        let metadata = json!({"namespace": namespace, "name": "n"});
        let spec = json!({"sources": [{"resources": [resource]}]});
        Subject {
            object: json!({"kind": kind, "metadata": metadata, "spec": spec}),
            is_saved: false,
            bundles: vec![],
        }
    }

    #[test]
    fn rule_is_planned_with_the_bundles_that_it_may_select() {
        let mut subjects = [
            subject("DistributionRule", "team", BUNDLE_KIND),
            subject("DistributionRule", "team", "configmaps"),
            subject("ClusterDistributionRule", "", BUNDLE_KIND),
            subject("ManifestBundle", "team", ""),
            subject("ManifestBundle", "other", ""),
        ];
        add_bundles(&mut subjects).unwrap();
        let counts = subjects.map(|subject| subject.bundles.len());
        assert_eq!(counts, [1, 0, 2, 0, 0]);
    }

    #[test]
    fn bundles_beyond_the_limit_are_refused() {
        let with = |bundles: usize| {
            let bundles = (0..bundles).map(|_| subject("ManifestBundle", "team", ""));
            let rule = subject("DistributionRule", "team", BUNDLE_KIND);
            let mut subjects: Vec<_> = bundles.chain([rule]).collect();
            add_bundles(&mut subjects)
        };
        assert_eq!(with(PLANNED_BUNDLES), Ok(()));
        let error = with(PLANNED_BUNDLES + 1).unwrap_err();
        assert!(error.contains("DistributionRule team/n"), "{error}");
    }
}
