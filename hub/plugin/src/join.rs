//! `kubectl runnel join`: a token on the hub, an agent in the member, and the wait until they have met.
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Namespace;
use runnel_api::MemberCluster;
use runnel_transport::identity::JoinString;
use serde_json::{Value, json};

use super::access::Cluster;
use super::args;
use super::diagnose::{self, Finding, JoinFacts, Reachability};
use super::helm::{self, AGENT, Helm};
use super::install::check;
use super::objects::{HasConditions, member_status};
use super::progress::Progress;
use super::values::{self, HelmInstall};
use super::{CommandContext, TIMED_OUT, ended, parse, print, read_cluster, rights, usage};
use runnel_api::conditions::ConditionType;
use runnel_hub::membership::tokens::WRONG_SECRETS;
use runnel_hub::token::{self, TokenRequest};
use runnel_hub_core::epoch::REPLACES;

/// The Secret through which the agent gets its join string.
pub(super) const JOIN_SECRET: &str = "runnel-agent-join";
/// The Secret with the identity of the agent.
const IDENTITY_SECRET: &str = "runnel-agent-identity";
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// The interval of the diagnosis during a wait.
const DIAGNOSIS_INTERVAL: Duration = Duration::from_secs(3);

/// Lets a cluster join.
pub(super) async fn run(session: &CommandContext<'_>, options: &args::Join) -> anyhow::Result<()> {
    if options.values.show_values {
        return print(&helm::shown_values(session.charts, AGENT)?);
    }
    check(&options.values, &options.advertise)?;
    let timeout = parse::duration("--timeout", &options.timeout).map_err(usage)?;
    let namespace = session.system();
    let request = TokenRequest {
        cluster: options.cluster.clone(),
        labels: options.labels.clone(),
        ttl: options.ttl.clone(),
        advertise: options.advertise.clone(),
    };
    request.check().map_err(|error| usage(error.to_string()))?;
    let helm = Helm::unpack(session.charts)?;
    let hub = hub(session, &options.member).await?;
    let Some(member) = member(session, &options.member).await? else {
        let text = "name the cluster that joins: --context NAME (or --member-kubeconfig FILE); the hub is that of the \
                    current context, or of --hub-context";
        return Err(usage(text));
    };
    let needed = rights::join_hub(namespace, options.replace.is_some());
    hub.require("let a cluster join", &needed).await?;
    member
        .require("install the agent", &rights::join_member(namespace))
        .await?;
    let mut progress = Progress::start(&format!("looking at {}", member.place));
    let joining = Joining {
        hub: &hub,
        member: &member,
        namespace,
        options,
        timeout,
    };
    let ended = joining.run(&helm, request, &mut progress).await;
    progress.end();
    print(&ended?)
}

/// Returns the hub of a command whose `--context` is the member.
pub(super) async fn hub(
    session: &CommandContext<'_>,
    access: &args::MemberAccess,
) -> anyhow::Result<Cluster> {
    let context = access.hub_context.as_deref();
    // The other connection flags are about the cluster of --context.
    let connection = session.connection.of_other_cluster();
    Cluster::open("the hub", session.kubeconfig, context, &connection).await
}

/// Returns the member of such a command, if it is given.
pub(super) async fn member(
    session: &CommandContext<'_>,
    access: &args::MemberAccess,
) -> anyhow::Result<Option<Cluster>> {
    if session.context.is_none() && access.member_kubeconfig.is_none() {
        return Ok(None);
    }
    let kubeconfig: Option<&Path> = access.member_kubeconfig.as_deref().or(session.kubeconfig);
    let connection = &session.connection;
    Cluster::open("the member", kubeconfig, session.context, connection)
        .await
        .map(Some)
}

/// Returns the member that the new one replaces, if it exists. A cluster, which the uid of its
/// `kube-system` namespace identifies, has one member.
fn check_membership<'a>(
    name: &str,
    replace: Option<&str>,
    uid: &str,
    members: &'a [MemberCluster],
) -> Result<Option<&'a MemberCluster>, String> {
    let of = |object: &MemberCluster| member_status(object).cluster_uid.unwrap_or_default();
    let called = |object: &MemberCluster| object.metadata.name.clone().unwrap_or_default();
    let mut in_cluster = members
        .iter()
        .filter(|object| !uid.is_empty() && of(object) == uid && called(object) != name);
    if let Some(first) = in_cluster.find(|object| Some(&*called(object)) != replace) {
        let first = called(first);
        return Err(format!(
            "this cluster has joined as {first}, so it cannot join as {name}: check --context; to rename it, give \
             --replace {first}"
        ));
    }
    let Some(old) = replace else { return Ok(None) };
    if old == name {
        return Err(format!("--replace names {name} itself"));
    }
    let replaced = members.iter().find(|object| called(object) == old);
    if let Some(object) = replaced
        && !of(object).is_empty()
        && of(object) != uid
    {
        return Err(format!("{old} is another cluster: check --context"));
    }
    Ok(replaced)
}

/// Returns the labels of the replaced member, with the `KEY=VALUE` labels that were given instead.
fn with_labels(replaced: &MemberCluster, given: Vec<String>) -> Vec<String> {
    let key = |label: &str| label.split('=').next().unwrap_or_default().to_owned();
    let keys: BTreeSet<String> = given.iter().map(|label| key(label)).collect();
    let labels = replaced.metadata.labels.iter().flatten();
    let kept = labels.filter(|(key, _)| !keys.contains(*key));
    kept.map(|(key, value)| format!("{key}={value}"))
        .chain(given)
        .collect()
}

/// Returns the patch by which a member replaces the one with this name. A new member gets its
/// settings.
fn replacing(old: &str, replaced: Option<&MemberCluster>, is_new: bool) -> Value {
    let mut patch = json!({"metadata": {"annotations": {REPLACES: old}}});
    if let Some(replaced) = replaced.filter(|_| is_new) {
        let spec = &replaced.spec;
        patch["spec"] = json!({"cordoned": spec.cordoned, "windows": spec.windows});
    }
    patch
}

struct Joining<'a> {
    hub: &'a Cluster,
    member: &'a Cluster,
    namespace: &'a str,
    options: &'a args::Join,
    timeout: Duration,
}

impl Joining<'_> {
    async fn run(
        &self,
        helm: &Helm,
        request: TokenRequest,
        progress: &mut Progress,
    ) -> anyhow::Result<String> {
        let name = &self.options.cluster;
        let uid = self.uid().await?;
        let members: Vec<MemberCluster> = read_cluster::members(self.hub).await?;
        let replaced = check_membership(name, self.options.replace.as_deref(), &uid, &members)
            .map_err(|error| anyhow!("{error}; nothing was changed in {}", self.member.place))?;
        let named = |object: &&MemberCluster| object.metadata.name.as_deref() == Some(name);
        let before = members.iter().find(named);
        let connected =
            before.is_some_and(|member| member.condition(ConditionType::Connected).is_true());
        let elsewhere = before.and_then(|member| member_status(member).cluster_uid);
        if connected && elsewhere.unwrap_or_default() != uid {
            bail!(
                "{name} is connected already, from another cluster than {}: choose another name, or let that one leave \
                 first with `kubectl runnel unjoin {name}`",
                self.member.place
            );
        }
        let join = if connected {
            // Its agent is at work: only the chart is brought up to date.
            None
        } else {
            progress.set_text(&format!("making a join string for {name} on the hub"));
            let mut request = request;
            if let Some(replaced) = replaced {
                request.labels = with_labels(replaced, request.labels);
            }
            let made = token::create(self.hub.client(), self.namespace, request).await;
            let made = made.map_err(|error| self.no_token(&error))?;
            let read = JoinString::parse(&made).map_err(|error| anyhow!("{error}"))?;
            if let Some(old) = &self.options.replace {
                // Before the agent connects: the hub refuses it without this.
                let patch = replacing(old, replaced, before.is_none());
                let path = read_cluster::member_path(name);
                let action = format!("let {name} replace {old}");
                self.hub.patch(&action, &path, patch).await?;
            }
            self.hand_over(&made).await?;
            self.forget_certificate().await?;
            Some(read)
        };
        let existed = read_cluster::workload(self.member, AGENT, self.namespace).await?;
        progress.set_text("installing the agent");
        let install = HelmInstall {
            chart: AGENT,
            namespace: self.namespace,
            values: values::of_agent(self.options, JOIN_SECRET),
            given: &self.options.values,
            wait: None,
        };
        helm.install(self.member, &install).await?;
        if join.is_some() && existed.deployment.is_some() {
            self.restart().await?;
        }
        self.wait(join.as_ref(), &uid, progress).await?;
        if join.is_some() {
            // It is used, and must not stay readable.
            let _ = self
                .member
                .delete("delete the used join string", &self.secret_path())
                .await;
        }
        let done = self.done(join.is_some(), progress.elapsed());
        Ok(done + &self.remove_replaced().await?)
    }

    /// Deletes the replaced `MemberCluster`, whose cluster is connected under the new name.
    async fn remove_replaced(&self) -> anyhow::Result<String> {
        let Some(old) = &self.options.replace else {
            return Ok(String::new());
        };
        let path = read_cluster::member_path(old);
        let read = || self.hub.get("read the MemberCluster", &path);
        // An agent of its own would be revoked, and may remove its copies.
        let is_connected =
            |object: &MemberCluster| object.condition(ConditionType::Connected).is_true();
        let (begin, mut present) = (std::time::Instant::now(), read().await?);
        while present.as_ref().is_some_and(is_connected) && begin.elapsed() < self.timeout {
            tokio::time::sleep(POLL_INTERVAL).await;
            present = read().await?;
        }
        match present {
            None => Ok(String::new()),
            Some(object) if is_connected(&object) => Ok(format!(
                "{old} is still connected: another agent of the cluster uses it. Uninstall that agent, then \
                 `kubectl delete member {old}`.\n"
            )),
            Some(_) => {
                let action = format!("delete the MemberCluster {old}");
                self.hub.delete(&action, &path).await?;
                Ok(format!(
                    "{old} is removed: its copies belong to {} now. Rules that name {old} must name {}.\n",
                    self.options.cluster, self.options.cluster
                ))
            }
        }
    }

    fn done(&self, joined: bool, took: Duration) -> String {
        let name = &self.options.cluster;
        let verb = if joined {
            "has joined and is connected"
        } else {
            "was connected already; its agent is up to date"
        };
        format!("{name} {verb} ({}).\n", parse::duration_text(took))
    }

    /// Returns the uid that identifies the member's cluster.
    async fn uid(&self) -> anyhow::Result<String> {
        let system: Option<Namespace> = self
            .member
            .get(
                "read the namespace kube-system",
                "/api/v1/namespaces/kube-system",
            )
            .await?;
        Ok(system
            .and_then(|namespace| namespace.metadata.uid)
            .unwrap_or_default())
    }

    fn no_token(&self, error: &anyhow::Error) -> anyhow::Error {
        let message = format!("{error:#}");
        if message.contains("no address of the hub is known") {
            return anyhow!(
                "{} advertises no address: `kubectl runnel install --advertise HOST:PORT` with the address at \
                 which agents in other clusters reach it, or give --advertise here",
                self.hub.place
            );
        }
        anyhow!(
            "cannot create a join string on {}: {message}",
            self.hub.place
        )
    }

    fn secret_path(&self) -> String {
        format!(
            "/api/v1/namespaces/{}/secrets/{JOIN_SECRET}",
            self.namespace
        )
    }

    /// Writes the join string to the agent's Secret. It is sent only in the body of a request.
    async fn hand_over(&self, join_string: &str) -> anyhow::Result<()> {
        let namespace = self.namespace;
        let path = format!("/api/v1/namespaces/{namespace}");
        if !self
            .member
            .exists(&format!("read the namespace {namespace}"), &path)
            .await?
        {
            let object =
                json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
            self.member
                .apply(&format!("create the namespace {namespace}"), &path, object)
                .await?;
        }
        let secret = json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": JOIN_SECRET, "labels": {"app.kubernetes.io/part-of": "runnel"}},
            "data": {"join-string": data_encoding::BASE64.encode(join_string.as_bytes())},
        });
        self.member
            .apply(
                &format!("write the Secret {namespace}/{JOIN_SECRET}"),
                &self.secret_path(),
                secret,
            )
            .await?;
        Ok(())
    }

    /// A disconnected agent may have a certificate that its hub no longer accepts, or one of
    /// another hub. Without a certificate it joins again, and still identifies its copies by the
    /// keys that stay.
    async fn forget_certificate(&self) -> anyhow::Result<()> {
        let path = format!(
            "/api/v1/namespaces/{}/secrets/{IDENTITY_SECRET}",
            self.namespace
        );
        if self
            .member
            .exists("read the agent's identity", &path)
            .await?
        {
            self.member
                .patch(
                    "let the agent join again",
                    &path,
                    json!({"data": {"tls.crt": null}}),
                )
                .await?;
        }
        Ok(())
    }

    /// An agent that runs reads its join string when it starts.
    async fn restart(&self) -> anyhow::Result<()> {
        let path = format!(
            "/apis/apps/v1/namespaces/{}/deployments/{AGENT}",
            self.namespace
        );
        let annotations =
            json!({"kubectl.kubernetes.io/restartedAt": Timestamp::now().to_string()});
        let patch = json!({"spec": {"template": {"metadata": {"annotations": annotations}}}});
        self.member
            .patch("restart the agent", &path, patch)
            .await
            .map(drop)
    }

    async fn wait(
        &self,
        join: Option<&JoinString>,
        uid: &str,
        progress: &mut Progress,
    ) -> anyhow::Result<()> {
        let name = &self.options.cluster;
        progress.set_text(&format!("waiting for the agent of {name}"));
        let begin = std::time::Instant::now();
        let mut last_check = begin;
        // By the same machine, and only once: the addresses do not change while this waits.
        let mut addresses: Option<Vec<(String, Reachability)>> = None;
        loop {
            let seen = self
                .hub
                .get::<MemberCluster>("read the MemberCluster", &read_cluster::member_path(name))
                .await;
            if let Ok(Some(object)) = &seen
                && object.condition(ConditionType::Connected).is_true()
                && member_status(object).cluster_uid.unwrap_or_default() == uid
            {
                return Ok(());
            }
            let late = begin.elapsed() >= self.timeout;
            if late || last_check.elapsed() >= DIAGNOSIS_INTERVAL {
                if let (None, Some(join)) = (&addresses, join) {
                    addresses = Some(read_cluster::reach(join).await);
                }
                let found = self
                    .findings(seen.ok().flatten(), addresses.clone().unwrap_or_default())
                    .await;
                if late {
                    return Err(self.timed_out(&found));
                }
                progress.set_text(&format!(
                    "waiting for the agent of {name}: {}",
                    diagnose::in_short(&found)
                ));
                last_check = std::time::Instant::now();
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    async fn findings(
        &self,
        member: Option<MemberCluster>,
        addresses: Vec<(String, Reachability)>,
    ) -> Vec<Finding> {
        let agent = read_cluster::workload(self.member, AGENT, self.namespace)
            .await
            .unwrap_or_default();
        let record = match &member {
            Some(member) => read_cluster::record(self.hub, member).await,
            None => Ok(None),
        };
        let tokens = record.ok().flatten().map(|record| record.spec.tokens);
        let join = member.as_ref().and_then(|member| member.spec.join.as_ref());
        let used = tokens
            .iter()
            .flatten()
            .find(|used| join.is_some_and(|join| used.token_hash == join.token_hash));
        let redeemed = used.is_some_and(|used| used.key_fingerprint.is_some());
        let burnt = !redeemed && used.is_some_and(|used| used.wrong_secrets >= WRONG_SECRETS);
        let facts = JoinFacts {
            redeemed,
            is_locked_out: burnt,
            member,
            agent,
            addresses,
        };
        diagnose::join(&facts, self.namespace, Timestamp::now())
    }

    fn timed_out(&self, found: &[Finding]) -> anyhow::Error {
        let name = &self.options.cluster;
        let text = format!(
            "{name} is not connected after {}. What is wrong, most telling first:\n{}\nThe agent keeps trying until the \
             join string expires; `kubectl runnel join {name} ...` again makes a new one.",
            parse::duration_text(self.timeout),
            diagnose::in_full(found)
        );
        ended(TIMED_OUT, text)
    }
}

/// Removes the agent's objects that helm does not remove.
pub(super) async fn forget_agent(member: &Cluster, namespace: &str) -> anyhow::Result<bool> {
    let binary = Helm::binary()?;
    let there = Helm::uninstall(&binary, member, AGENT, namespace)
        .await
        .context("the agent is still installed")?;
    for secret in [IDENTITY_SECRET, "runnel-agent-terms", JOIN_SECRET] {
        let path = format!("/api/v1/namespaces/{namespace}/secrets/{secret}");
        member
            .delete(&format!("delete the Secret {namespace}/{secret}"), &path)
            .await?;
    }
    Ok(there)
}

#[cfg(test)]
mod tests {
    use super::*;
    use runnel_api::{MemberClusterSpec, MemberClusterStatus};

    fn member(name: &str, uid: &str) -> MemberCluster {
        let mut member = MemberCluster::new(name, MemberClusterSpec::default());
        member.status = Some(MemberClusterStatus {
            cluster_uid: (!uid.is_empty()).then(|| uid.to_owned()),
            ..MemberClusterStatus::default()
        });
        member
    }

    #[test]
    fn second_name_of_a_cluster_is_refused_unless_it_replaces() {
        let members = [member("prod", "p"), member("test", "t"), member("new", "")];
        let check = |name, replace, uid| {
            check_membership(name, replace, uid, &members)
                .map(|replaced| replaced.and_then(|object| object.metadata.name.clone()))
        };
        let refused = check("eu-test", None, "p").unwrap_err();
        assert!(refused.contains("joined as prod") && refused.contains("--replace prod"));
        assert!(check("eu-test", Some("test"), "p").is_err());
        assert_eq!(check("eu", Some("prod"), "p"), Ok(Some("prod".to_owned())));
        assert!(check("prod", Some("prod"), "p").is_err());
        // --replace does not take the name of another cluster.
        assert!(
            check("eu", Some("test"), "u")
                .unwrap_err()
                .contains("another cluster")
        );
        assert_eq!(check("eu", Some("new"), "u"), Ok(Some("new".to_owned())));
        assert_eq!(check("eu", Some("deleted"), "u"), Ok(None));
        assert_eq!(check("prod", None, "p"), Ok(None));
        assert_eq!(check("eu", None, "u"), Ok(None));
        assert_eq!(check("eu", None, ""), Ok(None));
    }

    #[test]
    fn new_name_keeps_labels_and_settings() {
        let mut old = member("prod", "p");
        old.metadata.labels = Some(
            [("env", "prod"), ("tier", "gold")]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
        );
        old.spec.cordoned = true;
        let labels = with_labels(&old, vec!["tier=silver".to_owned()]);
        assert_eq!(labels, ["env=prod", "tier=silver"]);
        let patch = replacing("prod", Some(&old), true);
        assert_eq!(patch["metadata"]["annotations"][REPLACES], "prod");
        assert_eq!(patch["spec"]["cordoned"], true);
        assert_eq!(replacing("prod", Some(&old), false)["spec"], Value::Null);
    }
}
