//! `kubectl runnel uninstall`: rules, members, the hub, its CRDs; in this order, as each needs the next.
use std::time::{Duration, Instant};

use serde_json::json;

use super::access::Cluster;
use super::args::{self, Copies};
use super::confirm::confirm;
use super::helm::{HUB, Helm};
use super::hints::Endpoint;
use super::objects::{HasConditions, Rule, member_name};
use super::progress::Progress;
use super::unjoin::remove;
use super::{
    CommandContext, FAILED, TIMED_OUT, ended, note, parse, print, read_cluster, rights, usage,
};
use runnel_api::conditions::ConditionType;
use runnel_api::{APPROVE, DeletionPolicy, FINALIZER, MemberCluster};
use runnel_hub_core::plan::ROLLBACK_SECRETS;

const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Removes Runnel from the hub.
pub(super) async fn run(
    session: &CommandContext<'_>,
    options: &args::Uninstall,
) -> anyhow::Result<()> {
    let timeout = parse::duration("--timeout", &options.timeout).map_err(usage)?;
    let namespace = session.system();
    let binary = Helm::binary()?;
    let hub = session.hub().await?;
    hub.require("uninstall the hub", &rights::uninstall(namespace))
        .await?;
    let (mut rules, mut members) = (Vec::<Rule>::new(), Vec::<MemberCluster>::new());
    if any_crd(&hub).await? {
        rules = read_cluster::rules(&hub, None).await?;
        members = read_cluster::members(&hub).await?;
    }
    let away: Vec<String> = members
        .iter()
        .filter(|member| !member.condition(ConditionType::Connected).is_true())
        .map(|member| member_name(member).to_owned())
        .collect();
    if !away.is_empty() && !rules.is_empty() && options.copies == Copies::Delete && !options.force {
        let text = format!(
            "not connected: {}. Their copies cannot be deleted; nothing was changed. Reconnect them, or --force to continue and leave \
             their copies in place",
            away.join(", ")
        );
        return Err(ended(FAILED, text));
    }
    print(&summary(&hub, &rules, members.len(), options.copies))?;
    if options.dry_run {
        return print("Dry run: nothing was changed.\n");
    }
    confirm("Uninstall?", options.yes)?;
    let removing = Removing {
        hub: &hub,
        options,
        timeout,
    };
    let count = rules.len();
    removing.rules(rules).await?;
    let what = if options.copies == Copies::Keep {
        "kept"
    } else {
        "deleted"
    };
    print(&format!(
        "{count} rules are deleted; their copies in connected clusters are {what}.\n"
    ))?;
    // Only now their records list the removals that were not carried out.
    let members = if members.is_empty() {
        members
    } else {
        read_cluster::members(&hub).await?
    };
    for member in &members {
        let name = member_name(member);
        let record = read_cluster::record(&hub, member).await?;
        let pending = record.map(|record| record.spec.pending_removals);
        for pending in pending.unwrap_or_default() {
            let rule = &pending.rule;
            let why = if member.condition(ConditionType::Connected).is_true() {
                "has not confirmed their removal"
            } else {
                "was not connected"
            };
            note(&format!(
                "warning: the copies of rule {rule} are kept in {name}, which {why}"
            ));
        }
        remove(&hub, name, timeout).await?;
    }
    print(&format!("{} members are deleted.\n", members.len()))?;
    let there = Helm::uninstall(&binary, &hub, HUB, namespace).await?;
    print(if there {
        "The hub is uninstalled.\n"
    } else {
        "There was no release runnel-hub of helm's.\n"
    })?;
    removing.crds().await?;
    removing.remains(namespace).await?;
    print("The CRDs and the hub's own Secrets are deleted.\n")?;
    if !members.is_empty() {
        print("The agents are still installed. In each member:\n")?;
        for member in &members {
            let name = member_name(member);
            print(&format!(
                "  helm uninstall runnel-agent -n {namespace} --kube-context CONTEXT   # {name}\n"
            ))?;
        }
    }
    Ok(())
}

/// Lists what `uninstall` removes.
fn summary(hub: &Cluster, rules: &[Rule], members: usize, copies: Copies) -> String {
    let count: i64 = rules
        .iter()
        .filter_map(|rule| rule.status()?.summary.as_ref())
        .map(|summary| summary.copies_applied)
        .sum();
    let fate = match copies {
        Copies::Keep => "are kept",
        Copies::Delete => "are DELETED",
    };
    let Endpoint {
        context, server, ..
    } = &hub.place;
    format!(
        "This removes Runnel from the hub (context {context}, {server}):\n  \
         {} rules; their {count} copies {fate}\n  \
         {members} members\n  \
         the hub, its CRDs and the keys of its CA: members must join again\n",
        rules.len()
    )
}

async fn any_crd(hub: &Cluster) -> anyhow::Result<bool> {
    for crd in runnel_api::crds() {
        let name = crd.metadata.name.unwrap_or_default();
        if !hub.exists("read the CRDs", &crd_path(&name)).await? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn crd_path(name: &str) -> String {
    format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}")
}

struct Removing<'a> {
    hub: &'a Cluster,
    options: &'a args::Uninstall,
    timeout: Duration,
}

impl Removing<'_> {
    /// Deletes the rules and waits until the hub has removed its finalizer from each.
    async fn rules(&self, rules: Vec<Rule>) -> anyhow::Result<()> {
        let policy = if self.options.copies == Copies::Keep {
            DeletionPolicy::Retain
        } else {
            DeletionPolicy::Delete
        };
        for rule in &rules {
            let (path, name) = (read_cluster::rule_path(rule), rule.full_name());
            if rule.terms().deletion_policy != policy {
                let patch = json!({"spec": {"deletionPolicy": policy}});
                self.hub
                    .patch(
                        &format!("set the deletionPolicy of rule {name}"),
                        &path,
                        patch,
                    )
                    .await?;
            }
        }
        for rule in &rules {
            self.hub
                .delete(
                    &format!("delete rule {}", rule.full_name()),
                    &read_cluster::rule_path(rule),
                )
                .await?;
        }
        let mut progress = Progress::start(&format!("{} rules are being deleted", rules.len()));
        let begin = Instant::now();
        let mut left = rules;
        while !left.is_empty() && begin.elapsed() < self.timeout {
            let mut still = Vec::new();
            for rule in left {
                let path = read_cluster::rule_path(&rule);
                if let Some(now) = self.hub.get::<Rule>("read the rule", &path).await? {
                    // The removal guard blocks the removal of all of them at once, but it was
                    // requested here.
                    let pending = now
                        .status()
                        .and_then(|status| status.pending_approval.as_ref());
                    let annotations = now.metadata().annotations.as_ref();
                    let approved = annotations.and_then(|all| all.get(APPROVE));
                    if let Some(pending) = pending
                        && now.condition(ConditionType::ApprovalRequired).is_true()
                        && approved != Some(&pending.digest)
                    {
                        let digest = &pending.digest;
                        let patch = json!({"metadata": {"annotations": {APPROVE: digest}}});
                        self.hub
                            .patch(
                                &format!("approve the removal of rule {}", rule.full_name()),
                                &path,
                                patch,
                            )
                            .await?;
                    }
                    still.push(rule);
                }
            }
            left = still;
            if !left.is_empty() {
                progress.set_text(&format!("waiting for the copies of {} rules", left.len()));
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        }
        progress.end();
        if left.is_empty() {
            return Ok(());
        }
        let names: Vec<String> = left.iter().map(Rule::full_name).collect();
        if !self.options.force {
            let text = format!(
                "not deleted within {}: {}. The hub removes the finalizer of a rule when its copies are removed: does it run \
                 (`kubectl runnel doctor`)? With --force their finalizers are removed without it, and their copies stay",
                parse::duration_text(self.timeout),
                names.join(", ")
            );
            return Err(ended(TIMED_OUT, text));
        }
        for rule in &left {
            self.release(rule).await?;
        }
        Ok(())
    }

    /// Removes our finalizer, and no other, from a rule that no hub handles.
    async fn release(&self, rule: &Rule) -> anyhow::Result<()> {
        let (path, name) = (read_cluster::rule_path(rule), rule.full_name());
        let Some(now) = self.hub.get::<Rule>("read the rule", &path).await? else {
            return Ok(());
        };
        note(&format!(
            "warning: the finalizer of rule {name} is removed by force: its copies are kept in every cluster that has not removed them"
        ));
        let metadata = now.metadata();
        let others: Vec<&String> = metadata
            .finalizers
            .iter()
            .flatten()
            .filter(|finalizer| *finalizer != FINALIZER)
            .collect();
        let version = &metadata.resource_version;
        let patch = json!({"metadata": {"finalizers": others, "resourceVersion": version}});
        self.hub
            .patch(&format!("release rule {name}"), &path, patch)
            .await
            .map(drop)
    }

    async fn crds(&self) -> anyhow::Result<()> {
        let names: Vec<String> = runnel_api::crds()
            .into_iter()
            .filter_map(|one| one.metadata.name)
            .collect();
        for name in &names {
            self.hub
                .delete(&format!("delete the CRD {name}"), &crd_path(name))
                .await?;
        }
        let begin = Instant::now();
        for name in &names {
            while self.hub.exists("read the CRDs", &crd_path(name)).await? {
                if begin.elapsed() >= self.timeout {
                    let text = format!(
                        "the CRD {name} is still there: objects of its kind have other finalizers"
                    );
                    return Err(ended(TIMED_OUT, text));
                }
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        }
        Ok(())
    }

    /// Deletes objects that the hub created itself, which helm does not know.
    async fn remains(&self, namespace: &str) -> anyhow::Result<()> {
        for secret in ["runnel-hub-identity", "runnel-hub-ca-bundle"] {
            self.delete_secret(namespace, secret).await?;
        }
        // None of them exists beyond the first that does not.
        let mut rollback = (0..).map(|number| format!("{ROLLBACK_SECRETS}{number}"));
        while let Some(secret) = rollback.next()
            && self.delete_secret(namespace, &secret).await?
        {}
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{HUB}");
        self.hub
            .delete(&format!("delete the Lease {namespace}/{HUB}"), &path)
            .await
            .map(drop)
    }

    /// Returns whether there was one.
    async fn delete_secret(&self, namespace: &str, secret: &str) -> anyhow::Result<bool> {
        let path = format!("/api/v1/namespaces/{namespace}/secrets/{secret}");
        self.hub
            .delete(&format!("delete the Secret {namespace}/{secret}"), &path)
            .await
    }
}
