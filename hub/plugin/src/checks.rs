//! The checks of the doctor: each observation gives a result and a hint.
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray,
};
use serde_json::{Value, json};

use super::diagnose::{Finding, Reachability, Workload, address, wanted_replicas, workload};
use super::objects::{HasConditions, Rule, member_name};
use super::read_cluster::is_of;
use super::rights::Right;
use super::table::Tone;
use runnel_api::conditions::{ConditionType, Reason};
use runnel_api::{MemberCluster, MemberRecord};
use runnel_hub_core::now::{age, span};

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Fine.
    Ok,
    /// A warning.
    Warn,
    /// Wrong.
    Fail,
}

impl Level {
    fn label(self) -> &'static str {
        match self {
            Level::Ok => "ok",
            Level::Warn => "warn",
            Level::Fail => "fail",
        }
    }
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// The result.
    pub level: Level,
    /// The observation.
    pub message: String,
    /// The fix; empty for a passed check.
    pub hint: String,
}

impl Check {
    /// Creates a passed check.
    pub fn ok(what: impl Into<String>) -> Self {
        Self {
            level: Level::Ok,
            message: what.into(),
            hint: String::new(),
        }
    }

    /// Returns a warning.
    pub fn warn(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            level: Level::Warn,
            message: what.into(),
            hint: hint.into(),
        }
    }

    /// Creates a failed check.
    pub fn fail(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            level: Level::Fail,
            message: what.into(),
            hint: hint.into(),
        }
    }
}

impl From<Finding> for Check {
    fn from(finding: Finding) -> Self {
        Self::fail(finding.message, finding.hint)
    }
}

/// The checks of the installation, and apart from them those of the rules, which users write.
#[derive(Debug, Default)]
pub struct Report {
    /// The hub, its members and this machine.
    pub installation: Vec<Check>,
    /// The rules.
    pub rules: Vec<Check>,
}

impl Report {
    /// Returns the checks as text.
    pub fn text(&self, colors: bool) -> String {
        let mut page = section("Installation", &self.installation, colors);
        if !self.rules.is_empty() {
            page += "\n";
            page += &section("Rules", &self.rules, colors);
        }
        page
    }

    /// Returns the checks as JSON.
    pub fn as_json(&self) -> Value {
        let one = |check: &Check| json!({"level": check.level.label(), "what": check.message, "hint": check.hint});
        let all = |checks: &[Check]| checks.iter().map(one).collect::<Vec<_>>();
        json!({"installation": all(&self.installation), "rules": all(&self.rules)})
    }

    /// Whether a check of the installation failed; with `rules` also one of the rules.
    pub fn has_failed(&self, rules: bool) -> bool {
        let failed = |checks: &[Check]| checks.iter().any(|check| check.level == Level::Fail);
        failed(&self.installation) || (rules && failed(&self.rules))
    }

    /// A hub that leads works, wherever its pods are: that they are not ready is a warning then.
    pub fn pods_of_leader(pods: Vec<Check>, lease: &Check) -> Vec<Check> {
        let is_led = lease.level == Level::Ok;
        let soften = |check: Check| match check.level {
            Level::Fail if is_led => Check::warn(check.message, check.hint),
            _ => check,
        };
        pods.into_iter().map(soften).collect()
    }
}

fn section(title: &str, checks: &[Check], colors: bool) -> String {
    let mut page = format!("{title}\n");
    for check in checks {
        let (word, tone) = match check.level {
            Level::Ok => ("ok  ", Tone::Good),
            Level::Warn => ("warn", Tone::Warning),
            Level::Fail => ("fail", Tone::Bad),
        };
        page += &format!("{}  {}\n", tone.paint(word, colors), check.message);
        if !check.hint.is_empty() {
            page += &format!("      -> {}\n", check.hint);
        }
    }
    let count = |level| checks.iter().filter(|check| check.level == level).count();
    page + &format!(
        "{} ok, {} warn, {} fail\n",
        count(Level::Ok),
        count(Level::Warn),
        count(Level::Fail)
    )
}

/// Checks the CRDs: `found` are those of the API server, by name; `own` those of this
/// plugin.
pub fn crds(found: &[CustomResourceDefinition], own: &[CustomResourceDefinition]) -> Vec<Check> {
    let hint = "kubectl runnel install";
    let mut checks = Vec::new();
    for wanted in own {
        let name = wanted.metadata.name.as_deref().unwrap_or_default();
        let Some(there) = found
            .iter()
            .find(|there| there.metadata.name == wanted.metadata.name)
        else {
            checks.push(Check::fail(
                format!("the CRD {name} is not installed"),
                hint,
            ));
            continue;
        };
        if !is_established(there) {
            let message = crd_message(there, "NamesAccepted");
            checks.push(Check::fail(
                format!("the CRD {name} is not served: {message}"),
                "see its conditions",
            ));
        } else if let Some(field) = schema(wanted)
            .zip(schema(there))
            .and_then(|(wanted, there)| missing_field(wanted, there, ""))
        {
            let what = format!("the CRD {name} is older than this plugin: it has no {field}");
            checks.push(Check::warn(what, "upgrade the hub: kubectl runnel install"));
        }
    }
    if checks.is_empty() {
        checks.push(Check::ok(format!(
            "the CRDs of {} kinds are installed and served",
            own.len()
        )));
    }
    checks
}

/// Whether the API server has established a CRD.
pub fn is_established(crd: &CustomResourceDefinition) -> bool {
    let status = crd.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition.type_ == "Established" && condition.status == "True")
}

/// The message of the condition of that type; empty where there is none.
pub fn crd_message<'a>(crd: &'a CustomResourceDefinition, kind: &str) -> &'a str {
    let status = crd.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .find(|condition| condition.type_ == kind)
        .and_then(|condition| condition.message.as_deref())
        .unwrap_or_default()
}

fn schema(crd: &CustomResourceDefinition) -> Option<&JSONSchemaProps> {
    let version = crd.spec.versions.first()?;
    version.schema.as_ref()?.open_api_v3_schema.as_ref()
}

/// A field that `own` has and `there` has not.
fn missing_field(own: &JSONSchemaProps, there: &JSONSchemaProps, path: &str) -> Option<String> {
    for (name, own) in own.properties.iter().flatten() {
        let path = if path.is_empty() {
            name.clone()
        } else {
            format!("{path}.{name}")
        };
        let Some(there) = there.properties.as_ref().and_then(|all| all.get(name)) else {
            return Some(path);
        };
        if let Some(missing) = missing_field(own, there, &path) {
            return Some(missing);
        }
    }
    match (&own.items, &there.items) {
        (
            Some(JSONSchemaPropsOrArray::Schema(own)),
            Some(JSONSchemaPropsOrArray::Schema(there)),
        ) => missing_field(own, there, path),
        _ => None,
    }
}

/// The hub's Deployment.
pub fn hub(seen: &Workload, namespace: &str) -> Vec<Check> {
    let deployment = seen.deployment.as_ref();
    let wanted = deployment.map_or(0, wanted_replicas);
    let ready = deployment
        .and_then(|deployment| deployment.status.as_ref()?.ready_replicas)
        .unwrap_or_default();
    if ready >= wanted && wanted > 0 {
        let image = deployment.and_then(image).unwrap_or_default();
        return vec![Check::ok(format!(
            "the hub runs: {ready} of {wanted} pods are ready ({image})"
        ))];
    }
    let mut checks: Vec<Check> = workload(seen, "runnel-hub", namespace)
        .into_iter()
        .map(Check::from)
        .collect();
    if deployment.is_none() {
        checks[0].hint = "kubectl runnel install --advertise HOST:PORT".to_owned();
    } else {
        let what = format!("{ready} of {wanted} pods of the hub are ready");
        let hint =
            format!("kubectl -n {namespace} describe pods -l app.kubernetes.io/name=runnel-hub");
        let level = if ready > 0 { Level::Warn } else { Level::Fail };
        checks.insert(
            0,
            Check {
                level,
                message: what,
                hint,
            },
        );
    }
    checks
}

/// The image of a Deployment's first container.
pub fn image(deployment: &Deployment) -> Option<&str> {
    let pod = deployment.spec.as_ref()?.template.spec.as_ref()?;
    pod.containers.first()?.image.as_deref()
}

/// The Lease of the leader, if there is one.
pub fn lease(lease: Option<&Lease>, now: Timestamp) -> Check {
    let hint = "check the hub's pods and logs: there is no leader, so nothing is sent";
    let Some(lease) = lease else {
        return Check::fail(
            "there is no Lease runnel-hub: no hub has ever led here",
            hint,
        );
    };
    let spec = lease.spec.clone().unwrap_or_default();
    let holder = spec.holder_identity.as_deref().unwrap_or_default();
    let seconds = i64::from(spec.lease_duration_seconds.unwrap_or_default().max(1));
    let renewed = spec.renew_time.map(|time| time.0);
    let silent = renewed.map_or(i64::MAX, |at| {
        now.as_second().saturating_sub(at.as_second())
    });
    if holder.is_empty() || silent > seconds * 2 {
        return Check::fail(
            format!(
                "no hub leads: the Lease was last renewed {} ago",
                age(renewed, now)
            ),
            hint,
        );
    }
    Check::ok(format!(
        "one hub leads: {}",
        holder.split(' ').next().unwrap_or(holder)
    ))
}

/// Returns a warning if the Lease of the leader has expired: then no hub updates what is shown.
pub fn silence(lease: &Lease, now: Timestamp) -> Option<String> {
    silent_for(lease, now).map(|silent| {
        format!(
            "warning: the hub has been silent for {silent}; what follows is the last reported state"
        )
    })
}

/// Returns how long ago the Lease of the leader was renewed, if it has expired.
pub fn silent_for(lease: &Lease, now: Timestamp) -> Option<String> {
    let spec = lease.spec.as_ref()?;
    let renewed = spec.renew_time.as_ref()?.0;
    let silent = now.as_second().saturating_sub(renewed.as_second());
    let lasts = i64::from(spec.lease_duration_seconds.unwrap_or_default().max(1));
    (silent > lasts).then(|| age(Some(renewed), now))
}

/// Checks the rights of the user.
pub fn rights(missing: &[Right], all: usize) -> Check {
    if missing.is_empty() {
        return Check::ok(format!(
            "you have the permissions that this plugin needs ({all} checked)"
        ));
    }
    let list: Vec<String> = missing.iter().map(ToString::to_string).collect();
    Check::warn(
        format!("you lack rights: {}", list.join(", ")),
        "install, join or unjoin will be refused; ask the cluster's administrator, or bind the ClusterRole runnel-hub-admin",
    )
}

/// Checks the advertised addresses of the hub from here.
pub fn addresses(seen: &[(String, Reachability)]) -> Vec<Check> {
    if seen.is_empty() {
        let hint = "kubectl runnel install --advertise HOST:PORT (its load balancer, or a node and the node port)";
        return vec![Check::fail(
            "the hub advertises no address: no cluster can join",
            hint,
        )];
    }
    seen.iter()
        .map(|(at, reach)| match address(at, reach) {
            None => Check::ok(format!("the hub answers at {at}")),
            Some(Finding {
                message: what,
                hint,
            }) => Check::warn(format!("{what} (checked from this machine)"), hint),
        })
        .collect()
}

/// Members: connected, accepted, with a certificate that lives on.
pub fn members(objects: &[MemberCluster], now: Timestamp) -> Vec<Check> {
    let mut checks = Vec::new();
    let mut fine = 0;
    for object in objects {
        let name = member_name(object);
        let connected = object.condition(ConditionType::Connected);
        let log =
            "check the agent's log there: kubectl -n runnel-system logs deployment/runnel-agent";
        if !object.spec.accepted {
            let hint = format!(
                "set spec.accepted: true to accept it again, or run kubectl runnel unjoin {name} --force"
            );
            checks.push(Check::warn(
                format!("{name} is shut out (spec.accepted is false)"),
                hint,
            ));
        } else if connected.reason == Reason::NeverConnected.as_str() || connected.status.is_empty()
        {
            let hint = format!("kubectl runnel join {name} --context CONTEXT-OF-THAT-CLUSTER");
            checks.push(Check::fail(format!("{name} has never connected"), hint));
        } else if !connected.is_true() {
            let since = age(connected.since, now);
            checks.push(Check::fail(
                format!("{name} is not connected ({}, {since})", connected.reason),
                log,
            ));
        } else if let Some(check) = certificate(object, now) {
            checks.push(check);
        } else {
            fine += 1;
        }
        for theft in [ConditionType::PossibleKeyTheft, ConditionType::KeyShared] {
            if object.condition(theft).is_true() {
                let hint = format!(
                    "set spec.accepted: false, find out who has the key, then kubectl runnel join {name} again"
                );
                checks.push(Check::fail(
                    format!("{name}: {}", object.condition(theft).message),
                    hint,
                ));
            }
        }
        for warning in [
            ConditionType::RestoredFromBackup,
            ConditionType::Duplicate,
            ConditionType::PreviousMembership,
        ] {
            if object.condition(warning).is_true() {
                let hint =
                    "see that all is as it should be, then run the command that the message names";
                checks.push(Check::fail(
                    format!("{name}: {}", object.condition(warning).message),
                    hint,
                ));
            }
        }
        if object.condition(ConditionType::OrphanedCopies).is_true() {
            let hint = "they are kept; restore the rules, or delete the copies: kubectl runnel orphans --delete";
            checks.push(Check::warn(
                format!(
                    "{name}: {}",
                    object.condition(ConditionType::OrphanedCopies).message
                ),
                hint,
            ));
        }
    }
    if objects.is_empty() {
        checks.push(Check::warn(
            "no cluster has joined",
            "kubectl runnel join NAME --context CONTEXT",
        ));
    } else if fine > 0 {
        checks.insert(
            0,
            Check::ok(format!(
                "{fine} of {} members are connected and well",
                objects.len()
            )),
        );
    }
    checks
}

/// The removals that wait for members.
pub fn pending_removals(members: &[MemberCluster], records: &[MemberRecord]) -> Vec<Check> {
    let check = |member: &MemberCluster| {
        let record = records.iter().find(|record| is_of(record, member))?;
        let (name, pending) = (member_name(member), record.spec.pending_removals.len());
        let hint = format!(
            "they are removed when it is back; kubectl runnel forget-removal {name} RULE keeps them"
        );
        let text = format!("{name}: the copies of {pending} deleted rules wait for it");
        (pending > 0).then(|| Check::warn(text, hint))
    };
    members.iter().filter_map(check).collect()
}

/// A connected agent renews at half of its certificate's life.
fn certificate(object: &MemberCluster, now: Timestamp) -> Option<Check> {
    let name = member_name(object);
    let end = object.status.as_ref()?.certificate.as_ref()?.expires_at.0;
    let left = end.as_second() - now.as_second();
    let hint = "the agent renews it automatically: see its log in the member for the cause";
    if left <= 0 {
        return Some(Check::fail(
            format!("the certificate of {name} has expired"),
            hint,
        ));
    }
    (left < 3600).then(|| {
        Check::warn(
            format!("the certificate of {name} expires in {}", span(left)),
            hint,
        )
    })
}

/// Rules that are not ready.
pub fn rules(objects: &[Rule]) -> Vec<Check> {
    let ready = |object: &&Rule| object.condition(ConditionType::Ready).is_true();
    let mut checks = Vec::new();
    let fine = objects.iter().filter(ready).count();
    if fine > 0 {
        checks.push(Check::ok(format!(
            "{fine} of {} rules are ready",
            objects.len()
        )));
    }
    for object in objects.iter().filter(|object| !ready(object)) {
        let (name, seen) = (object.full_name(), object.condition(ConditionType::Ready));
        let hint = format!("kubectl runnel status {name}");
        let blocked = object.condition(ConditionType::ApprovalRequired);
        if blocked.is_true() {
            let hint = format!("undo what led to it, or approve it: kubectl runnel approve {name}");
            checks.push(Check::warn(
                format!("rule {name}: ApprovalRequired: {}", blocked.message),
                hint,
            ));
        } else if object.metadata().deletion_timestamp.is_some() {
            checks.push(Check::warn(
                format!("rule {name} is being deleted and waits for its copies"),
                hint,
            ));
        } else if seen.status.is_empty() {
            checks.push(Check::fail(
                format!("rule {name} has not been reconciled by a hub"),
                "does the hub run?",
            ));
        } else if seen.status == "False" && seen.reason != Reason::CopiesWaiting.as_str() {
            checks.push(Check::fail(
                format!("rule {name}: {}: {}", seen.reason, seen.message),
                hint,
            ));
        } else {
            checks.push(Check::warn(
                format!("rule {name}: {}: {}", seen.reason, seen.message),
                hint,
            ));
        }
    }
    checks.extend(objects.iter().filter_map(open_selector));
    checks
}

/// A rule whose sources anybody chooses who may write in any namespace.
fn open_selector(object: &Rule) -> Option<Check> {
    let Rule::ClusterDistributionRule(rule) = object else {
        return None;
    };
    let mut sources = rule.spec.sources.iter();
    let is_open = sources.any(|entry| {
        entry.source.selector.is_some() && entry.namespaces.iter().any(|name| name == "*")
    });
    is_open.then(|| {
        Check::warn(
            format!(
                "rule {} selects sources by label in all namespaces: anybody who may create one there is its author",
                object.name()
            ),
            "name the namespaces in spec.sources[].namespaces, the most trusted one first",
        )
    })
}

/// Clocks: that of the API server against this machine's.
pub fn clocks(server: Option<Timestamp>, here: Timestamp) -> Check {
    let Some(server) = server else {
        return Check::warn("the API server returns no time", "check the clocks by hand");
    };
    let apart = server.duration_since(here).abs();
    let words = span(apart.as_secs());
    let hint = "certificates depend on clocks: synchronize all machines by NTP";
    if apart > SignedDuration::from_secs(60) {
        return Check::fail(
            format!("the clock of the API server differs from this machine's by {words}"),
            hint,
        );
    }
    if apart > SignedDuration::from_secs(5) {
        return Check::warn(
            format!("the clock of the API server differs from this machine's by {words}"),
            hint,
        );
    }
    Check::ok("the clocks of the API server and this machine agree")
}

/// The hub's own CA.
pub fn ca(ends: Timestamp, now: Timestamp) -> Check {
    let left = ends.as_second() - now.as_second();
    let hint = "the hub renews it automatically: see its log for the cause";
    if left <= 0 {
        return Check::fail("the hub's CA has expired", hint);
    }
    if left < 7 * 86_400 {
        return Check::warn(format!("the hub's CA expires in {}", span(left)), hint);
    }
    Check::ok(format!("the hub's CA is valid for {}", span(left)))
}

#[cfg(test)]
#[path = "checks_tests.rs"]
mod snapshots;
#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        "2026-01-01T01:00:00Z".parse().unwrap()
    }

    fn typed<T: serde::de::DeserializeOwned>(object: Value) -> T {
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn report_separates_the_installation_from_rules() {
        let mut report = Report {
            installation: vec![Check::ok("a"), Check::warn("b", "do b")],
            rules: vec![Check::fail("c", "do c")],
        };
        let golden = "Installation\nok    a\nwarn  b\n      -> do b\n1 ok, 1 warn, 0 fail\n\n\
                      Rules\nfail  c\n      -> do c\n0 ok, 0 warn, 1 fail\n";
        assert_eq!(report.text(false), golden);
        assert_eq!(
            report.as_json()["rules"][0],
            json!({"level": "fail", "what": "c", "hint": "do c"})
        );
        assert!(!report.has_failed(false) && report.has_failed(true));
        report.installation.push(Check::fail("d", "do d"));
        assert!(report.has_failed(false));
    }

    #[test]
    fn pods_of_a_hub_that_leads_are_no_failure() {
        let pods = || vec![Check::fail("0 of 1 pods are ready", "see the log")];
        let led = Report::pods_of_leader(pods(), &Check::ok("one hub leads"));
        assert_eq!(led, [Check::warn("0 of 1 pods are ready", "see the log")]);
        let silent = Report::pods_of_leader(pods(), &Check::fail("no hub leads", "see the log"));
        assert_eq!(silent, pods());
    }

    #[test]
    fn missing_and_old_crds_are_named() {
        let crd = |fields: Value| {
            typed(json!({
                "metadata": {"name": "memberclusters.runnel.dev"},
                "spec": {"versions": [{"schema": {"openAPIV3Schema": {"properties": {"spec": {"properties": fields}}}}}]},
                "status": {"conditions": [{"type": "Established", "status": "True"}]},
            }))
        };
        let own = [crd(json!({"leaving": {}, "accepted": {}}))];
        assert_eq!(crds(&own, &own)[0].level, Level::Ok);
        assert!(
            crds(&[], &own)[0]
                .message
                .contains("memberclusters.runnel.dev is not installed")
        );
        let old = crds(&[crd(json!({"accepted": {}}))], &own);
        assert_eq!(
            (
                old[0].level,
                old[0].message.ends_with("it has no spec.leaving")
            ),
            (Level::Warn, true),
            "{old:?}"
        );
    }

    #[test]
    fn silent_hub_is_a_warning_once_its_lease_has_expired() {
        let renewed = |at: &str| -> Lease {
            typed(json!({"spec": {"leaseDurationSeconds": 15, "renewTime": at}}))
        };
        let fresh = renewed("2026-01-01T00:59:45.000000Z");
        assert_eq!(silence(&fresh, now()), None);
        assert_eq!(
            silence(&renewed("2026-01-01T00:59:08.000000Z"), now()).as_deref(),
            Some(
                "warning: the hub has been silent for 52s; what follows is the last reported state"
            )
        );
        assert_eq!(silence(&Lease::default(), now()), None);
    }

    #[test]
    fn lease_without_renewal_is_a_failure() {
        let renewed = |at: &str| -> Option<Lease> {
            typed(
                json!({"spec": {"holderIdentity": "runnel-hub-1 x", "leaseDurationSeconds": 15, "renewTime": at}}),
            )
        };
        assert_eq!(
            lease(renewed("2026-01-01T00:59:58.000000Z").as_ref(), now()),
            Check::ok("one hub leads: runnel-hub-1")
        );
        assert!(
            lease(renewed("2026-01-01T00:50:00.000000Z").as_ref(), now())
                .message
                .contains("10m ago")
        );
        assert_eq!(lease(None, now()).level, Level::Fail);
    }

    #[test]
    fn members_and_rules_fail_with_a_hint() {
        let member = |name: &str, status: &str, reason: &str, ends: &str| {
            let certificate = (!ends.is_empty()).then(|| json!({"expiresAt": ends}));
            typed(
                json!({"metadata": {"name": name}, "spec": {"accepted": true}, "status": {
                    "certificate": certificate,
                    "conditions": [{"type": "Connected", "status": status, "reason": reason, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
                }}),
            )
        };
        let all = [
            member("a", "True", "SessionOpen", "2026-01-02T00:00:00Z"),
            member("b", "Unknown", "SessionLost", "2026-01-02T00:00:00Z"),
            member("c", "False", "NeverConnected", ""),
            member("d", "True", "SessionOpen", "2026-01-01T01:30:00Z"),
        ];
        let checks = members(&all, now());
        let page: Vec<&str> = checks.iter().map(|check| check.message.as_str()).collect();
        assert_eq!(
            page,
            [
                "1 of 4 members are connected and well",
                "b is not connected (SessionLost, 60m)",
                "c has never connected",
                "the certificate of d expires in 30m"
            ]
        );
        assert_eq!(members(&[], now())[0].level, Level::Warn);
        let rule = |status: &str, reason: &str| {
            typed(
                json!({"kind": "DistributionRule", "metadata": {"name": "r", "namespace": "n"}, "spec": {"sources": [], "clusters": {}}, "status": {"conditions": [{"type": "Ready", "status": status, "reason": reason, "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}),
            )
        };
        let checks = rules(&[
            rule("True", "AllApplied"),
            rule("False", "Conflict"),
            rule("Unknown", "ClustersUnreachable"),
        ]);
        let levels: Vec<Level> = checks.iter().map(|check| check.level).collect();
        assert_eq!(levels, [Level::Ok, Level::Fail, Level::Warn]);
        assert_eq!(checks[1].hint, "kubectl runnel status n/r");
        let cluster_rule = |namespaces: Value| {
            typed(
                json!({"kind": "ClusterDistributionRule", "metadata": {"name": "all"}, "spec": {
                "sources": [{"namespaces": namespaces, "resources": ["configmaps"], "selector": {"matchLabels": {"a": "b"}}}],
                "clusters": {},
            }, "status": {"conditions": [{"type": "Ready", "status": "True", "reason": "AllApplied", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}),
            )
        };
        let checks = rules(&[
            cluster_rule(json!(["platform", "*"])),
            cluster_rule(json!(["platform"])),
        ]);
        let levels: Vec<Level> = checks.iter().map(|check| check.level).collect();
        assert_eq!(levels, [Level::Ok, Level::Warn]);
        assert!(
            checks[1]
                .message
                .contains("rule all selects sources by label"),
            "{checks:?}"
        );
    }

    #[test]
    fn clocks_and_addresses() {
        assert_eq!(clocks(Some(now()), now()).level, Level::Ok);
        assert_eq!(
            clocks("2026-01-01T01:02:00Z".parse().ok(), now()).level,
            Level::Fail
        );
        assert_eq!(addresses(&[])[0].level, Level::Fail);
        let seen = addresses(&[
            ("a:1".into(), Reachability::Hub),
            ("b:1".into(), Reachability::Timeout),
        ]);
        assert_eq!((seen[0].level, seen[1].level), (Level::Ok, Level::Warn));
        assert_eq!(
            ca("2026-01-03T01:00:00Z".parse().unwrap(), now()).level,
            Level::Warn
        );
    }

    #[test]
    fn a_hub_without_ready_pods_is_a_failure() {
        let ready = typed(
            json!({"spec": {"replicas": 2, "template": {"spec": {"containers": [{"image": "runnel-hub:0.1.0"}]}}}, "status": {"readyReplicas": 2}}),
        );
        let seen = Workload {
            deployment: Some(ready),
            ..Workload::default()
        };
        assert_eq!(
            hub(&seen, "n"),
            [Check::ok(
                "the hub runs: 2 of 2 pods are ready (runnel-hub:0.1.0)"
            )]
        );
        let none = hub(&Workload::default(), "n");
        assert_eq!(
            (
                none[0].level,
                none[0].hint.contains("kubectl runnel install")
            ),
            (Level::Fail, true)
        );
    }
}
